"""Values of actions: the parts that a configuration asks for are those that the network has."""

import jax
import pytest

from podium.core.config import NetworkConfig
from podium.core.specs import Array, Discrete, EnvSpec
from podium.networks import q_values


@pytest.mark.parametrize(("vision", "convolutions"), [("shallow", 2), ("nature", 3), ("resnet", 15)])
def test_pictures_are_seen_by_the_convolutions_that_were_asked_for(vision, convolutions):
    config, spec = NetworkConfig((8,), vision=vision), EnvSpec(Array((36, 36, 1), "uint8"), Discrete(3))
    encoder = jax.eval_shape(q_values.make(config, spec, dueling=True).init, jax.random.key(0))["encoder"]
    kernels = [leaf for path, leaf in jax.tree.leaves_with_path(encoder) if "kernel" in str(path)]
    assert sum(leaf.ndim == 4 for leaf in kernels) == convolutions
