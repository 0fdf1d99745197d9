"""The built-in networks: shapes for every observation kind, memory that ends with the episode, initial weights."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podium.core.config import NetworkConfig
from podium.core.errors import ConfigError
from podium.core.specs import Array, Discrete, EnvSpec
from podium.networks import network as networks
from podium.networks.network import zeros_like_spec

VECTOR = EnvSpec(Array((5,)), Discrete(3))


def test_pictures_are_convolved_as_bytes_and_when_they_were_normalised():
    network = networks.make(NetworkConfig(hidden=()), EnvSpec(Array((36, 36, 1), "uint8"), Discrete(3)), 3)
    params, first = network.init(jax.random.key(0)), jnp.zeros((1, 2), bool)
    obs = np.random.default_rng(0).integers(0, 256, (1, 2, 36, 36, 1), np.uint8)
    outputs, value, _ = network.apply(params, (), obs, first)
    same = network.apply(params, (), obs / np.float32(255), first)
    np.testing.assert_allclose(same[0], outputs, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(same[1], value, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("core", ["gru", "lstm"])
def test_memory_ends_where_an_episode_starts(core):
    network = networks.make(NetworkConfig(hidden=(8,), memory=core, memory_size=4), VECTOR, 3)
    params = network.init(jax.random.key(0))
    obs = jax.random.normal(jax.random.key(1), (6, 2, 5))
    first = jnp.zeros((6, 2), bool).at[3, 0].set(True)
    whole, _, _ = network.apply(params, network.memory(2), obs, first)
    fresh, _, _ = network.apply(params, network.memory(2), obs[3:], jnp.zeros((3, 2), bool))
    np.testing.assert_allclose(whole[3:, 0], fresh[:, 0], rtol=1e-6)
    assert not np.allclose(whole[3:, 1], fresh[:, 1])


@pytest.mark.parametrize("core", ["none", "gru", "lstm"])
def test_step_by_step_gives_what_the_whole_sequence_gives(core):
    network = networks.make(NetworkConfig(hidden=(8,), memory=core, memory_size=4), VECTOR, 3)
    params = network.init(jax.random.key(0))
    obs = jax.random.normal(jax.random.key(1), (6, 2, 5))
    first = jax.random.bernoulli(jax.random.key(2), 0.3, (6, 2))
    whole, values, last = network.apply(params, network.memory(2), obs, first)
    memory = network.memory(2)
    for t in range(6):
        outputs, value, memory = network.apply(params, memory, obs[t : t + 1], first[t : t + 1])
        np.testing.assert_allclose(outputs[0], whole[t], rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(value[0], values[t], rtol=1e-5, atol=1e-7)
    for a, b in zip(jax.tree.leaves(memory), jax.tree.leaves(last), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)


def test_hidden_weights_are_orthogonal_and_the_policy_starts_almost_uniform():
    network = networks.make(NetworkConfig(hidden=(16, 16)), VECTOR, 3)
    params = network.init(jax.random.key(0))
    weights = np.asarray(params["policy"]["hidden"]["Dense_1"]["kernel"])
    np.testing.assert_allclose(weights.T @ weights, 2 * np.eye(16), atol=1e-5)
    assert np.abs(params["policy"]["head"]["kernel"]).max() < 0.01
    assert not any(np.any(leaf) for path, leaf in jax.tree.leaves_with_path(params) if "bias" in str(path))


@pytest.mark.parametrize(
    "observation",
    [
        Array((84, 84, 4), "uint8"),
        Array((10, 5, 1), "uint8"),
        {"camera": Array((36, 36, 3), "uint8"), "joints": Array((7,)), "goal": {"place": Array((2, 2))}},
    ],
)
def test_images_and_dicts_become_outputs_and_values(observation):
    network = networks.make(NetworkConfig(hidden=(8,)), EnvSpec(observation, Discrete(3)), 3)
    shapes = jax.eval_shape(
        lambda: network.apply(
            network.init(jax.random.key(0)), (), zeros_like_spec(observation, (2, 3)), jnp.zeros((2, 3), bool)
        )
    )
    assert shapes[0].shape == (2, 3, 3)
    assert shapes[1].shape == (2, 3)


def test_pixels_are_scaled_in_the_network_and_not_before():
    spec = EnvSpec(Array((8, 8, 1), "uint8"), Discrete(2))
    network = networks.make(NetworkConfig(hidden=(8,)), spec, 2)
    params = network.init(jax.random.key(0))
    white = jnp.full((1, 1, 8, 8, 1), 255, jnp.uint8)
    outputs, _, _ = network.apply(params, (), white, jnp.zeros((1, 1), bool))
    assert float(jnp.abs(outputs).max()) < 1.0


def make_nothing(config, spec, num_outputs):
    return None


def test_a_factory_that_returns_no_network_is_refused():
    path = f"{__name__}:make_nothing"
    with pytest.raises(ConfigError, match=r"network.factory = .*must return a podium.networks.network.Network"):
        networks.make(NetworkConfig(factory=path), VECTOR, 3)


def make_faulty(fault):
    """A factory whose network has one fault."""

    def make(config, spec, num_outputs):
        network = networks.make(NetworkConfig(hidden=(8,)), spec, num_outputs)

        def apply(params, memory, obs, first):
            outputs, value, memory = network.apply(params, memory, obs, first)
            return {
                "pair": lambda: (outputs, value),
                "outputs": lambda: (outputs[..., 1:], value, memory),
                "value": lambda: (outputs, value[..., None], memory),
                "memory": lambda: (outputs, value, value),
                "raises": lambda: {}["colour"],
            }[fault]()

        return network._replace(apply=apply)

    return make


pair, outputs, value, memory, raises = map(make_faulty, ("pair", "outputs", "value", "memory", "raises"))
three = 3


def make_of_one(config):
    raise AssertionError


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("three", r"must be a function \(config, spec, num_outputs\) -> Network, is 3$"),
        ("make_of_one", r"called with \(config, spec, num_outputs\), it raised TypeError: make_of_one\(\) takes 1 "),
        ("pair", r"its apply must return \(outputs, value, memory\), not tuple"),
        ("outputs", r"must return outputs \(2, 3, 3\) and a value \(2, 3\), not \(2, 3, 2\) and \(2, 3\)$"),
        ("value", r"must return outputs \(2, 3, 3\) and a value \(2, 3\), not \(2, 3, 3\) and \(2, 3, 1\)$"),
        ("memory", r"its apply must return memory of the shapes that it was given$"),
        ("raises", r"its apply raised KeyError: 'colour' \(.*test_actor_critic.py, line \d+, in .*\)$"),
    ],
)
def test_a_factory_of_a_wrong_kind_is_refused_in_one_line(name, told):
    with pytest.raises(ConfigError, match=rf"^network.factory = '{__name__}:{name}': .*{told}"):
        networks.make(NetworkConfig(factory=f"{__name__}:{name}"), VECTOR, 3)


def make_one_network_that_says_it_is_two(config, spec, num_outputs):
    shared = networks.make(NetworkConfig(memory="gru"), spec, num_outputs)
    return shared._replace(separate=True)


def test_a_factory_whose_separate_network_is_not_in_two_parts_is_refused():
    path = f"{__name__}:make_one_network_that_says_it_is_two"
    with pytest.raises(
        ConfigError, match=r"network.factory = .*must be a dict of 'policy' and 'value', not of \['core'"
    ):
        networks.make(NetworkConfig(factory=path), VECTOR, 3)


def test_outputs_of_a_separate_network_need_the_policy_only_and_values_the_rest():
    network = networks.make(NetworkConfig(hidden=(8,)), VECTOR, 3)
    obs, first = jax.random.normal(jax.random.key(1), (6, 2, 5)), jnp.zeros((6, 2), bool)

    def sums(params):
        outputs, value, _ = network.apply(params, (), obs, first)
        return (outputs**2).sum(), value.sum()

    by_outputs, by_value = jax.jacrev(sums)(network.init(jax.random.key(0)))
    assert network.separate
    assert any_nonzero(by_outputs["policy"])
    assert not any_nonzero(by_outputs["value"])
    assert any_nonzero(by_value["value"])
    assert not any_nonzero(by_value["policy"])


def any_nonzero(tree) -> bool:
    return any(np.any(leaf) for leaf in jax.tree.leaves(tree))


@pytest.mark.parametrize(
    ("config", "observation"),
    [(NetworkConfig(memory="lstm"), Array((5,))), (NetworkConfig(), Array((36, 36, 3), "uint8"))],
)
def test_policy_and_value_share_memory_and_convolutions(config, observation):
    assert not networks.make(config, EnvSpec(observation, Discrete(3)), 3).separate


def test_policy_and_value_may_have_widths_of_their_own():
    shapes = jax.eval_shape(networks.make(NetworkConfig((8,), value_hidden=(16, 4)), VECTOR, 3).init, jax.random.key(0))
    widths = {
        part: [layer["bias"].shape[0] for layer in shapes[part]["hidden"].values()] for part in ("policy", "value")
    }
    assert widths == {"policy": [8], "value": [16, 4]}
    with pytest.raises(ConfigError, match="policy and value share their layers"):
        networks.make(NetworkConfig((8,), memory="gru", value_hidden=(16,)), VECTOR, 3)
