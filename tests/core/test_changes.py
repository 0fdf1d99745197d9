"""What may change when a run goes on is changed, and the rest refused."""

import pytest

from podium.core.changes import change_experiment
from podium.core.errors import ConfigError
from podium.core.settings import resolve

BEFORE = resolve("ppo", "CartPole-v1", preset=None).experiment


def test_limits_evaluation_checkpoints_and_traced_hyper_parameters_may_change() -> None:
    changes = ["limits.wall_s=60", "evaluation.episodes=3", "checkpoint.keep=5", "algorithm.learning_rate=1e-5"]
    after = change_experiment(BEFORE, changes)
    assert (after.limits.wall_s, after.evaluation.episodes, after.checkpoint.keep) == (60.0, 3, 5)
    assert after.algorithm.learning_rate == 1e-5
    assert (after.env, after.network, after.topology) == (BEFORE.env, BEFORE.network, BEFORE.topology)


def test_what_stays_as_it_is_may_be_said() -> None:
    assert change_experiment(BEFORE, [f"env.num_envs={BEFORE.env.num_envs}", "seed=0"]) == BEFORE


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("algorithm.minibatch_size=64", "the compiled update"),
        ("env.num_envs=3", "learned from these environments"),
        ("network.hidden=[8]", "the parameters have its shape"),
        ("topology.actors=2", "settled when the run started"),
        ("seed=1", "random numbers follow"),
    ],
)
def test_what_a_run_is_made_of_is_refused_in_one_line(change: str, why: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"{change.partition('=')[0]} = .*: cannot change .*{why}.*learning_rate"
    ) as told:
        change_experiment(BEFORE, [change])
    assert "\n" not in str(told.value)
