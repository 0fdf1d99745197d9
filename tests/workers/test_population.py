"""A population in one XLA program: every individual's own return, on however many devices, and on from what was
saved."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podium.algorithms import es
from podium.core.algorithm_configs import ESConfig
from podium.core.config import EnvConfig, Experiment, NetworkConfig, TopologyConfig
from podium.core.errors import ConfigError
from podium.core.specs import Array, Box, Discrete, EnvSpec
from podium.envs import toy
from podium.envs.interface import JaxEnv, JaxStep
from podium.launch.plan import draw, make_plan
from podium.workers import population
from podium.workers.fused import FusedState
from podium.workers.population import Population

TARGET = 0.7


def make_aim() -> JaxEnv:
    """One step, paid by how near the action is to TARGET."""

    def step(state: Any, action: Any, key: Any) -> tuple:
        reward = -jnp.sum((action - TARGET) ** 2)
        return state, JaxStep(jnp.ones(1), reward, jnp.ones((), bool), jnp.zeros((), bool))

    spec = EnvSpec(Array((1,)), Box((1,), (-1.0,), (1.0,)))
    return JaxEnv(spec, lambda key: (jnp.zeros(()), jnp.ones(1)), step)


def make_spans(longest: int) -> JaxEnv:
    """Lasts for a random number of steps, n, and is paid n at each; observes how many it has made."""

    def reset(key: Any) -> tuple:
        return (jax.random.randint(key, (), 1, longest + 1), jnp.int32(0)), jnp.zeros(1)

    def step(state: Any, action: Any, key: Any) -> tuple:
        span, made = state[0], state[1] + 1
        # What comes after an end is poison: nobody may look at it.
        obs = jnp.where(made > span, jnp.nan, made.astype(jnp.float32))[None]
        over = made == span
        return (span, made), JaxStep(
            obs, jnp.where(made > span, jnp.nan, span.astype(jnp.float32)), over, ~over & False
        )

    return JaxEnv(EnvSpec(Array((1,)), Discrete(2)), reset, step)


def build(env: JaxEnv, devices: int = 1, hidden: tuple[int, ...] = (), **algorithm: Any) -> Population:
    config = ESConfig(**{"noise_table": 50_000, "population": 16, "episode_limit": 100, **algorithm})
    topology = TopologyConfig(dispatch=2)
    experiment = Experiment(config, EnvConfig("toy"), NetworkConfig(hidden=hidden), topology)
    return Population(es.make(config, experiment, env.spec), env, experiment, jax.local_devices()[:devices])


def run(program: Population, dispatches: int, state: FusedState | None = None) -> tuple[FusedState, list]:
    state = program.place(program.init() if state is None else state)
    rows = []
    for _ in range(dispatches):
        state, dispatched = program.dispatch(state, 10**9)
        rows += list(program.rows_of(dispatched))
    return jax.device_get(state), rows


def same(a: Any, b: Any, rtol: float, atol: float) -> None:
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol, atol), a, b)


@pytest.mark.parametrize(("memory", "least", "most"), [("none", -0.3, 0.3), ("gru", 0.8, 1.0)])
def test_individuals_recall_what_they_saw_if_their_network_has_memory(memory: Any, least: float, most: float) -> None:
    """A cue that only memory can tell of later: without it, returns are 0 on average."""
    env, network = toy.make_memory(), NetworkConfig(hidden=(8,), memory=memory, memory_size=8)
    config = ESConfig(noise_table=50_000, population=512, episode_limit=100, sigma=0.3, learning_rate=0.05)
    experiment = Experiment(config, EnvConfig("toy"), network, TopologyConfig(dispatch=15))
    program = Population(es.make(config, experiment, env.spec), env, experiment, jax.local_devices()[:1])
    _, rows = run(program, dispatches=10)
    assert least <= rows[-1][1]["population_mean"] <= most


def test_the_mean_finds_an_optimum_that_is_known() -> None:
    program = build(make_aim(), sigma=0.1, learning_rate=0.05, weight_decay=0.0, action_noise=0.0)
    state, rows = run(program, dispatches=100)
    (head,) = state.train.mean["policy"].values()
    assert abs(float(head["kernel"][0, 0] + head["bias"][0, 0]) - TARGET) < 0.05
    assert rows[0][1]["population_mean"] < -0.3 < -0.05 < rows[-1][1]["population_mean"]


@pytest.mark.parametrize("devices", [1, 2])
def test_individuals_that_end_at_different_steps_have_each_their_own_return(devices: int) -> None:
    _, rows = run(build(make_spans(40), devices, population=64), dispatches=1)
    for steps, metrics, episodes in rows:
        returns, lengths = (np.array(column) for column in zip(*episodes, strict=True))
        assert len(episodes) == 64
        np.testing.assert_array_equal(returns, lengths**2)
        assert len(set(lengths.tolist())) > 8
        assert lengths.min() >= 1
        assert steps == lengths.sum()
        assert metrics["population_max"] == returns.max()


def test_an_episode_ends_at_the_limit() -> None:
    _, rows = run(build(make_spans(40), episode_limit=5, population=64), dispatches=1)
    lengths = [length for _, length in rows[0][2]]
    assert max(lengths) == 5
    assert lengths.count(5) > 40


def test_what_individuals_observe_is_counted_until_they_end() -> None:
    """Spans of one step each see 0 only; of up to 3, what is weighed by how often it was seen."""
    state, rows = run(build(make_spans(3), normalize_observations=True), dispatches=1)
    lengths = np.array([length for _, _, episodes in rows for _, length in episodes])
    seen = np.concatenate([np.arange(length) for length in lengths])
    observations = state.train.observations
    assert float(observations.count) == len(seen)
    np.testing.assert_allclose(observations.mean, [seen.mean()], rtol=1e-4)
    np.testing.assert_allclose(observations.var, [seen.var()], rtol=1e-3)


def test_one_device_and_two_learn_the_same() -> None:
    settings = {"hidden": (8,), "sigma": 0.1, "normalize_observations": True}
    one, two = (run(build(make_aim(), devices, **settings), dispatches=2)[0] for devices in (1, 2))
    same(one, two, rtol=1e-3, atol=1e-4)


def test_individuals_that_do_not_fit_at_once_play_one_part_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"sigma": 0.1, "normalize_observations": True}
    whole, rows = run(build(make_spans(20), **settings), dispatches=1)
    monkeypatch.setattr(population, "NUMBERS_AT_ONCE", 4 * 20)
    parts, rows_of_parts = run(build(make_spans(20), **settings), dispatches=1)
    same(whole, parts, rtol=1e-3, atol=1e-4)
    assert [steps for steps, _, _ in rows] == [steps for steps, _, _ in rows_of_parts]


def test_a_run_on_two_devices_goes_on_bit_for_bit_from_what_was_saved() -> None:
    program = build(make_aim(), devices=2, hidden=(8,))
    saved, _ = run(program, dispatches=1)
    straight, _ = run(program, dispatches=3)
    again, _ = run(program, dispatches=2, state=saved)
    same(straight, again, rtol=0, atol=0)


def test_a_budget_of_steps_ends_a_dispatch_early() -> None:
    program = build(make_aim())
    _, dispatched = program.dispatch(program.place(program.init()), 16)
    assert len(list(program.rows_of(dispatched))) == 1


def experiment(**changes: Any) -> Experiment:
    config = ESConfig(noise_table=50_000, population=12)
    return Experiment(config, EnvConfig("podium:Catch-v0", num_envs=4), topology=TopologyConfig(**changes))


def test_as_many_devices_as_share_the_pairs_evenly_are_used_and_drawn() -> None:
    plan = make_plan(experiment())
    assert plan.devices == 6
    assert "play 12 individuals" in draw(plan)
    with pytest.raises(ConfigError, match=r"topology.devices = 4: must divide the population's 6 pairs"):
        make_plan(experiment(devices=4))


def test_served_mode_and_a_population_that_rows_cannot_share_are_refused_in_one_line() -> None:
    with pytest.raises(ConfigError, match=r"topology.mode = 'served': es gives each individual parameters of its own"):
        make_plan(experiment(mode="served"))
    uneven = Experiment(
        ESConfig(noise_table=50_000, population=14),
        EnvConfig("podium:Catch-v0", num_envs=4),
        topology=TopologyConfig(mode="inline", staleness=0),
    )
    with pytest.raises(ConfigError, match=r"algorithm.population = 14: .* multiple of env.num_envs = 4"):
        make_plan(uneven)
