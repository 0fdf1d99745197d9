"""Types of training states: what an update returns has those of what it was given, so that it is compiled once."""

import jax
import pytest

from podium.core import settings
from podium.core.algorithm_configs import ALGORITHMS
from podium.launch import training
from podium.launch.plan import make_plan

BOTH = ("CartPole-v1", "Pendulum-v1")
ENVS = {"dqn": BOTH[:1], "ddpg": BOTH[1:], "td3": BOTH[1:], "sac": BOTH[1:]}


@pytest.mark.parametrize(("algorithm", "env"), [(name, env) for name in ALGORITHMS for env in ENVS.get(name, BOTH)])
def test_no_part_of_an_initial_state_is_weakly_typed(algorithm: str, env: str) -> None:
    plan = make_plan(settings.resolve(algorithm, env, overrides={"topology.actors": 1}).experiment)
    state = jax.eval_shape(lambda: training.initial_state(plan))
    leaves = jax.tree_util.tree_flatten_with_path(state)[0]
    assert [jax.tree_util.keystr(path) for path, leaf in leaves if leaf.weak_type] == []
