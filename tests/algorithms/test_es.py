"""ES against known answers: ranks by hand, gradients of a quadratic, the noise table, on one and eight devices."""

import errno
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

from podium.algorithms import es
from podium.algorithms.algorithm import Algorithm, Individuals, Played, Seen
from podium.core.algorithm_configs import ESConfig
from podium.core.config import EnvConfig, Experiment, NetworkConfig
from podium.core.errors import ConfigError
from podium.core.specs import Array, Box, Discrete, EnvSpec
from podium.core.types import ActInput
from podium.ops.noise_table import NoiseTable, slices, weighted_sum
from podium.ops.ranks import centered_ranks

BOX = EnvSpec(Array((3,)), Box((2,), (-1.0, -1.0), (1.0, 1.0)))
CHOICE = EnvSpec(Array((3,)), Discrete(2))
KEY = jax.random.key(0)


def experiment(**algorithm: Any) -> Experiment:
    config = ESConfig(**{"noise_table": 100_000, "population": 64, **algorithm})
    return Experiment(algorithm=config, env=EnvConfig("toy"), network=NetworkConfig(hidden=()))


def build(spec: EnvSpec = BOX, **algorithm: Any) -> tuple[Algorithm, Individuals]:
    settings = experiment(**algorithm)
    made = es.make(settings.algorithm, settings, spec)  # pyright: ignore[reportArgumentType]
    assert isinstance(made.experience, Individuals)
    return made, made.experience


def functions(spec: EnvSpec = BOX, **algorithm: Any) -> es.ES:
    """The algorithm's methods, which `Algorithm` hides."""
    made, _ = build(spec, **algorithm)
    return made.act.__self__  # pyright: ignore[reportFunctionMemberAccess]


def played(individuals: Individuals, returns: Any, index: Any = None, seen: Seen | None = None) -> Played:
    """Pairs with these returns, in the order + - + - ..."""
    count = len(returns)
    if index is None:
        index = np.repeat(np.random.default_rng(1).integers(0, individuals.last_index + 1, count // 2), 2)
    sign = np.tile(np.array([1, -1], np.float32), count // 2)
    valid, lengths = np.ones(count, bool), np.ones(count, np.int32)
    returns = np.asarray(returns, np.float32)
    return Played(np.asarray(index, np.int32), sign, returns, lengths, valid, seen, individuals.table.numbers)


def init(algorithm: Algorithm, spec: EnvSpec = BOX, **algorithm_fields: Any) -> es.TrainState:
    return algorithm.init(KEY, spec, experiment(**algorithm_fields).hyper())


def flat(tree: Any) -> np.ndarray:
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])


def test_ranks_by_hand_with_ties_sharing_the_mean_of_theirs() -> None:
    ranks = centered_ranks(jnp.array([3.0, -1.0, 3.0, 7.0, 1.0]))
    np.testing.assert_allclose(ranks, [0.125, -0.5, 0.125, 0.5, -0.25])
    assert centered_ranks(jnp.full(6, 4.0)).tolist() == [0.0] * 6
    assert centered_ranks(jnp.array([5.0])).tolist() == [0.0]


def test_ranks_add_up_to_nothing_and_do_not_look_at_what_is_not_valid() -> None:
    x = np.random.default_rng(0).normal(size=50).round(1).astype(np.float32)
    valid = np.arange(50) % 3 > 0
    ranks = np.asarray(centered_ranks(jnp.where(valid, x, jnp.nan), jnp.asarray(valid)))
    np.testing.assert_allclose(ranks[valid], centered_ranks(jnp.asarray(x[valid])), atol=1e-6)
    assert not ranks[~valid].any()
    assert abs(ranks.sum()) < 1e-5


def test_returns_that_are_not_finite_are_the_worst() -> None:
    ranks = centered_ranks(jnp.array([jnp.nan, 1.0, jnp.inf, 0.0, 2.0]), jnp.array([True, True, True, False, True]))
    np.testing.assert_allclose(ranks, [-1 / 3, 1 / 6, -1 / 3, 0.0, 0.5], atol=1e-6)


def test_a_weighted_sum_of_slices_is_what_it_says() -> None:
    table = np.random.default_rng(0).normal(size=1000).astype(np.float32)
    index = np.array([0, 990, 17, 17, 400, 3, 5, 7, 11, 800, 123])
    weight = np.linspace(-1, 2, len(index)).astype(np.float32)
    rows = np.stack([table[i : i + 10] for i in index])
    np.testing.assert_array_equal(slices(jnp.asarray(table), jnp.asarray(index), 10), rows)
    found = weighted_sum(jnp.asarray(table), jnp.asarray(index), jnp.asarray(weight), 10)
    np.testing.assert_allclose(found, weight @ rows, rtol=1e-5, atol=1e-6)


def test_the_table_is_made_of_the_seed_and_is_standard_normal() -> None:
    numbers = NoiseTable(seed=3, size=200_000).numbers
    np.testing.assert_array_equal(numbers, NoiseTable(seed=3, size=200_000).numbers)
    assert (numbers != NoiseTable(seed=4, size=200_000).numbers).mean() > 0.99
    assert abs(numbers.mean()) < 0.01
    assert abs(numbers.std() - 1) < 0.01
    with pytest.raises(ValueError, match="read-only"):
        numbers[0] = 1.0


def test_processes_of_a_host_share_one_file_with_the_same_numbers(tmp_path: Path) -> None:
    tables = [NoiseTable(seed=3, size=10_000) for _ in range(2)]
    for table in tables:
        table.share(tmp_path)
    np.testing.assert_array_equal(tables[0].numbers, NoiseTable(seed=3, size=10_000).numbers)
    np.testing.assert_array_equal(tables[1].numbers, tables[0].numbers)
    (file,) = tmp_path.iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.stat().st_size == 40_000


def test_without_room_to_share_it_every_process_has_a_table_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_room(self: NoiseTable, path: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(NoiseTable, "_write", no_room)
    table = NoiseTable(seed=3, size=10_000)
    table.share(tmp_path)
    np.testing.assert_array_equal(table.numbers, NoiseTable(seed=3, size=10_000).numbers)
    assert "this process keeps its own" in caplog.text


def test_a_table_that_is_smaller_than_the_network_is_refused() -> None:
    settings = replace(experiment(noise_table=1000), network=NetworkConfig(hidden=(256,)))
    with pytest.raises(ConfigError, match=r"algorithm.noise_table = 1000: must be more than the policy's 1538 param"):
        es.make(settings.algorithm, settings, BOX)  # pyright: ignore[reportArgumentType]


def test_both_of_a_pair_are_as_far_from_the_mean_as_their_noise_says() -> None:
    algorithm, individuals = build(sigma=0.5)
    state = init(algorithm, sigma=0.5)
    params, noise = algorithm.params(state), individuals.table.numbers[7 : 7 + individuals.size]
    one, other = (individuals.perturb(params, noise, np.float32(sign)) for sign in (1, -1))
    np.testing.assert_allclose(flat(one.network) - flat(params.network), 0.5 * noise, atol=1e-6)
    np.testing.assert_allclose((flat(one.network) + flat(other.network)) / 2, flat(params.network), atol=1e-6)
    traced = jax.vmap(individuals.perturb, (None, 0, 0))(params, jnp.stack([noise, noise]), jnp.array([1.0, -1.0]))
    np.testing.assert_allclose(jax.tree.leaves(traced.network)[0][0], jax.tree.leaves(one.network)[0], atol=1e-6)


def test_the_gradient_of_a_quadratic_is_the_analytic_one() -> None:
    functions_, (_, individuals) = functions(sigma=0.1), build(sigma=0.1, population=20_000)
    state = functions_.init(KEY, BOX, experiment(sigma=0.1).hyper())
    mean, target = flat(state.mean), np.arange(individuals.size, dtype=np.float32)
    index = np.repeat(np.random.default_rng(0).integers(0, individuals.last_index + 1, 10_000), 2)
    sign = np.tile(np.array([1, -1], np.float32), 10_000)
    noise = np.stack([individuals.table.numbers[i : i + individuals.size] for i in index])
    points = mean + 0.1 * sign[:, None] * noise
    returns = -0.5 * ((points - target) ** 2).sum(axis=1)
    found = jax.jit(lambda batch: functions_.gradient(state, batch, batch.returns, None))(
        played(individuals, returns, index)
    )
    analytic = target - mean
    assert np.linalg.norm(found - analytic) < 0.06 * np.linalg.norm(analytic)


def test_an_update_by_hand() -> None:
    """Two individuals: ranks are ±1/2, Adam's first step is the gradient's sign, and the mean decays."""
    settings = {"sigma": 0.1, "learning_rate": 0.01, "weight_decay": 0.5, "population": 2}
    algorithm, individuals = build(**settings)
    state = init(algorithm, **settings)
    batch = played(individuals, [1.0, 9.0], index=[40, 40])
    after, metrics, _ = jax.jit(algorithm.update)(state, batch, KEY)
    gradient = (-0.5 - 0.5) * individuals.table.numbers[40 : 40 + individuals.size] / (2 * 0.1)
    np.testing.assert_allclose(metrics["gradient_norm"], np.linalg.norm(gradient), rtol=1e-5)
    expected = flat(state.mean) + 0.01 * (np.sign(gradient) - 0.5 * flat(state.mean))
    np.testing.assert_allclose(flat(after.mean), expected, atol=1e-5)
    assert (metrics["population_mean"], metrics["population_max"], metrics["individuals"]) == (5.0, 9.0, 2.0)


def test_individuals_that_are_not_there_change_nothing() -> None:
    algorithm, individuals = build()
    state, batch = init(algorithm), played(individuals, np.arange(10.0))
    update = jax.jit(algorithm.update)
    alone, _, _ = update(state, batch, KEY)
    padding = {"returns": np.nan, "sign": np.nan, "index": 0, "lengths": 0, "valid": False}
    padded = batch._replace(
        **{k: np.append(getattr(batch, k), [v] * 6).astype(getattr(batch, k).dtype) for k, v in padding.items()}
    )
    among, metrics, _ = update(state, padded, KEY)
    np.testing.assert_allclose(flat(among.mean), flat(alone.mean), atol=1e-6)
    assert all(np.isfinite(value) for value in metrics.values())


def test_individuals_whose_simulator_lost_its_numbers_are_the_last_and_are_counted() -> None:
    algorithm, individuals = build()
    state, worst = init(algorithm), np.arange(10.0)
    update = jax.jit(algorithm.update)
    expected, _, _ = update(state, played(individuals, worst), KEY)
    for bad in (np.nan, np.inf):
        returns = np.where(worst == 0, bad, worst)
        found, metrics, _ = update(state, played(individuals, returns), KEY)
        np.testing.assert_allclose(flat(found.mean), flat(expected.mean), atol=1e-6)
        assert metrics["individuals_not_finite"] == 1
        assert (metrics["individuals"], metrics["population_mean"], metrics["population_max"]) == (10, 5.0, 9.0)


def test_eight_devices_with_a_share_of_the_individuals_each_learn_the_same() -> None:
    algorithm, individuals = build(normalize_observations=True)
    state = init(algorithm, normalize_observations=True)
    rng = np.random.default_rng(0)
    seen = Seen(rng.uniform(1, 5, 16).astype(np.float32), rng.normal(size=(16, 3)).astype(np.float32))
    batch = played(individuals, rng.normal(size=64).round(1), seen=seen)
    whole, _, _ = jax.jit(algorithm.update)(state, batch, KEY)
    rows, same = PartitionSpec("individuals"), PartitionSpec()
    spec: Any = Played(rows, rows, rows, rows, rows, rows, same)  # pyright: ignore[reportArgumentType]
    shared = jax.shard_map(
        lambda state, batch: algorithm.update(state, batch, KEY, "individuals")[:2],
        mesh=Mesh(np.array(jax.local_devices()), ("individuals",)),
        in_specs=(same, spec),
        out_specs=same,
        check_vma=False,
    )
    parts, _ = jax.jit(shared)(state, batch)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), whole, parts)


def test_what_individuals_saw_becomes_the_normaliser_of_the_next_version() -> None:
    algorithm, individuals = build(normalize_observations=True)
    state = init(algorithm, normalize_observations=True)
    rows = np.random.default_rng(0).normal(3.0, 2.0, (100, 3)).astype(np.float32)
    mean, deviation = rows.mean(axis=0), rows.std(axis=0)
    seen = Seen(np.full(2, 50, np.float32), np.stack([mean + deviation, mean - deviation]))
    after, _, _ = jax.jit(algorithm.update)(state, played(individuals, [1.0, 2.0], seen=seen), KEY)
    assert after.observations is not None
    np.testing.assert_allclose(after.observations.mean, mean, rtol=1e-5)
    np.testing.assert_allclose(after.observations.var, deviation**2, rtol=1e-4)
    assert algorithm.params(after).observations is after.observations


def test_acting_is_by_the_mean_and_action_noise_only_where_it_is_not_greedy() -> None:
    algorithm, _ = build(action_noise=0.2)
    params = algorithm.params(init(algorithm, action_noise=0.2))
    rows = 2000
    inputs = ActInput(jnp.ones((rows, 3)), jnp.ones(rows, bool), None, jax.random.split(KEY, rows), jnp.ones(rows))
    act = jax.jit(lambda inputs, greedy: algorithm.act(params, (), inputs, greedy)[0], static_argnums=1)
    greedy = np.asarray(act(inputs, True))
    kernel, bias = params.network["policy"]["head"]["kernel"], params.network["policy"]["head"]["bias"]
    np.testing.assert_allclose(greedy, np.tile((kernel @ jnp.ones(3) + bias[:, 0]), (rows, 1)), atol=1e-6)
    noise = np.asarray(act(inputs, False)) - greedy
    assert abs(noise.std() - 0.2) < 0.02
    np.testing.assert_array_equal(act(inputs._replace(exploration=jnp.zeros(rows)), False), greedy)


def test_discrete_actions_are_the_likeliest_legal_ones_and_have_no_noise() -> None:
    algorithm, _ = build(CHOICE)
    params = algorithm.params(init(algorithm, CHOICE))
    params = params._replace(network=jax.tree.map(jnp.zeros_like, params.network))
    params.network["policy"]["head"]["bias"] = jnp.array([[1.0], [2.0]])
    mask = jnp.array([[True, True], [True, False]])
    inputs = ActInput(jnp.ones((2, 3)), jnp.ones(2, bool), mask, jax.random.split(KEY, 2), jnp.ones(2))
    assert algorithm.act(params, (), inputs, False)[0].tolist() == [1, 0]
