"""Any traced setting can have a schedule, with every algorithm: known factors at known parts of a run."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms.control_rows import SPEC as CONTROL
from algorithms.control_rows import draw_rows
from algorithms.control_rows import experiment as control
from algorithms.toy_runs import SPEC, random_fragment, small
from podium.algorithms import registry, schedules
from podium.algorithms.algorithm import Algorithm
from podium.core.algorithm_configs import A2CConfig, AlgorithmConfig, DDPGConfig, SACConfig
from podium.core.config import Experiment, LimitsConfig
from podium.core.errors import ConfigError
from podium.core.specs import EnvSpec
from podium.launch.recording import _restart


def half(done: jax.Array) -> jax.Array:
    """A schedule of a user's own."""
    return jnp.where(done < 0.5, 1.0, 0.25)


def not_traceable(done: float) -> float:
    return 1.0 if done < 0.5 else 0.0


def start(
    config: AlgorithmConfig, make=small, spec: EnvSpec = SPEC, total_steps: int = 100
) -> tuple[Algorithm, object]:
    experiment: Experiment = replace(make(config), limits=LimitsConfig(total_steps=total_steps))
    algorithm = registry.make(experiment, spec)
    return algorithm, algorithm.init(jax.random.key(0), spec, experiment.hyper())


@pytest.mark.parametrize(
    ("how", "factors"),
    [
        ("linear", [1.0, 0.75, 0.5, 0.0]),
        ("cosine", [1.0, 0.8535534, 0.5, 0.0]),
        ([[0, 1], [0.25, 0.2], [0.75, 0.6]], [1.0, 0.2, 0.4, 0.6]),
        ("algorithms.test_schedules:half", [1.0, 1.0, 0.25, 0.25]),
    ],
    ids=["linear", "cosine", "points", "path"],
)
def test_a_schedule_has_known_factors(how: object, factors: list[float]) -> None:
    factor = schedules.read("algorithm.schedules.clip", how)
    found = [factor(jnp.float32(done)) for done in (0.0, 0.25, 0.5, 1.0)]
    np.testing.assert_allclose(found, factors, atol=1e-6)


def test_on_policy_settings_follow_the_valid_steps() -> None:
    fragment = random_fragment()
    steps = int(fragment.valid.sum())
    config = A2CConfig(
        fragment_length=4, entropy_coef=0.5, schedules={"learning_rate": "linear", "entropy_coef": "cosine"}
    )
    algorithm, state = start(config, total_steps=4 * steps)
    update = jax.jit(algorithm.update)
    for done in (0.0, 0.25, 0.5, 0.75, 1.0, 1.0):
        state, metrics, _ = update(state, fragment, jax.random.key(1))
        np.testing.assert_allclose(metrics["learning_rate"], 7e-4 * (1 - done), atol=1e-8)
        np.testing.assert_allclose(metrics["entropy_coef"], 0.25 * (1 + np.cos(np.pi * done)), atol=1e-6)
    assert float(state.train.hyper["learning_rate"]) == pytest.approx(7e-4), "the setting itself stays"


def test_a_rate_of_zero_by_schedule_learns_nothing() -> None:
    config = A2CConfig(fragment_length=4, schedules={"learning_rate": [[0, 0]]})
    algorithm, state = start(config)
    after, _, _ = jax.jit(algorithm.update)(state, random_fragment(), jax.random.key(1))
    jax.tree.map(np.testing.assert_array_equal, state.train.params.network, after.train.params.network)


@pytest.mark.parametrize("config", [SACConfig, DDPGConfig])
def test_off_policy_settings_follow_the_updates(config: type[SACConfig | DDPGConfig]) -> None:
    """Env steps so far are learning_starts + updates / update_ratio: 50 of 100, and 10 for each update."""
    own = config(
        learning_starts=50, update_ratio=0.1, learning_rate=1e-3, n_step=2, schedules={"learning_rate": "linear"}
    )
    algorithm, state = start(own, control, CONTROL)
    update = jax.jit(algorithm.update)
    for number in range(3):
        state, metrics, _ = update(state, draw_rows(), jax.random.key(1))
        np.testing.assert_allclose(metrics["learning_rate"], 1e-3 * (0.5 - 0.1 * number), atol=1e-9)


def test_noise_that_actors_add_has_a_schedule_too() -> None:
    own = DDPGConfig(learning_starts=50, update_ratio=0.1, noise=0.4, n_step=2, schedules={"noise": "linear"})
    algorithm, state = start(own, control, CONTROL)
    assert float(algorithm.params(state).noise) == pytest.approx(0.2)


def test_a_run_that_begins_from_another_begins_its_schedules_anew() -> None:
    config = A2CConfig(fragment_length=4, schedules={"learning_rate": "linear"})
    algorithm, state = start(config)
    after, _, _ = jax.jit(algorithm.update)(state, random_fragment(), jax.random.key(1))
    again = _restart(state, after)
    assert int(after.steps[0]) > 0
    assert not np.any(again.steps)
    assert not np.any(again.train.steps)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"num_epochs": "linear"}, r"algorithm\.schedules\.num_epochs: has no schedule"),
        ({"learning_rate": "slow"}, r"learning_rate = 'slow': must be one of constant, linear, cosine, points"),
        ({"learning_rate": [[0.5, 1], [0.2, 0]]}, "must be one of"),
        ({"learning_rate": []}, "must be one of"),
    ],
)
def test_a_wrong_schedule_is_refused(wrong: dict, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        A2CConfig(schedules=wrong)


def test_a_learning_rate_has_one_schedule_and_a_function_must_be_traced() -> None:
    with pytest.raises(ConfigError, match=r"goes with algorithm\.schedule=constant"):
        A2CConfig(schedule="linear", schedules={"learning_rate": "cosine"})
    with pytest.raises(ConfigError, match="cannot be traced by JAX"):
        start(A2CConfig(fragment_length=4, schedules={"gamma": "algorithms.test_schedules:not_traceable"}))
