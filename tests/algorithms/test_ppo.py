"""PPO against known answers: by hand, on tiny environments with known optima, on one and eight devices."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from algorithms.toy_runs import SPEC, assert_close, one_update, random_fragment
from podium.algorithms import appo, ppo
from podium.algorithms import stochastic_policy as policies
from podium.algorithms.advantages import by_gae
from podium.algorithms.steps import Steps
from podium.core.algorithm_configs import APPOConfig, PPOConfig
from podium.core.config import EnvConfig, Experiment, NetworkConfig, TopologyConfig
from podium.core.errors import ConfigError
from podium.core.specs import Array, Box, EnvSpec
from podium.core.types import ActInput, Fragment
from podium.envs import toy
from podium.envs.jax_wrappers import vectorize
from podium.networks import network as networks
from podium.ops.returns import generalized_advantages
from podium.workers.fused import Fused


def experiment(env: str = "Catch-v0", **algorithm) -> Experiment:
    options = {"fragment_length": 16, "minibatch_size": 64, "num_epochs": 4, **algorithm}
    return Experiment(
        algorithm=PPOConfig(**options),
        env=EnvConfig(f"podium:{env}", num_envs=16),
        network=NetworkConfig(hidden=(32,)),
        topology=TopologyConfig(dispatch=1),
    )


def small(**algorithm) -> Experiment:
    base = experiment(**{"fragment_length": 4, "minibatch_size": 32, "num_epochs": 1, **algorithm})
    return replace(base, env=replace(base.env, num_envs=8))


def functions(config: Experiment) -> ppo.PPO:
    """What an update is made of."""
    return ppo.PPO(config.algorithm, config, policies.make(config.algorithm, config, SPEC), by_gae)


def equal(a, b) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


def test_the_loss_of_one_minibatch_is_the_one_computed_by_hand():
    config = small(normalize_advantages=False, entropy_coef=0.01, value_clip=0.1, gamma=0.9, gae_lambda=0.8)
    fragment = random_fragment()
    state, _, metrics = one_update(config, fragment)
    network = networks.make(config.network, SPEC, 2)
    logits, value, _ = network.apply(state.params.network, (), fragment.obs, fragment.first)
    logits, value = np.asarray(logits, np.float64), np.asarray(value, np.float64)
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    advantage = np.zeros(fragment.reward.shape)
    for row in range(8):
        later = 0.0
        for t in reversed(range(4)):
            alive = 1.0 - fragment.terminated[t, row]
            goes_on = alive * (1.0 - fragment.truncated[t, row])
            delta = fragment.reward[t, row] + 0.9 * alive * value[t + 1, row] - value[t, row]
            later = advantage[t, row] = delta + 0.9 * 0.8 * goes_on * later
    chosen = np.take_along_axis(log_probs[:-1], fragment.action[..., None], -1)[..., 0]
    ratio = np.exp(chosen - fragment.extras["log_prob"])
    surrogate = np.minimum(ratio * advantage, np.clip(ratio, 0.8, 1.2) * advantage)
    entropy = -(np.exp(log_probs) * log_probs).sum(-1)[:-1]
    valid = fragment.valid
    # The value has not moved yet, so clipping its change does nothing: the error is the advantage.
    expected = -surrogate[valid].mean() + 0.5 * 0.5 * (advantage[valid] ** 2).mean() - 0.01 * entropy[valid].mean()
    np.testing.assert_allclose(metrics["loss"], expected, rtol=1e-5)
    np.testing.assert_allclose(metrics["clip_fraction"], (np.abs(ratio - 1) > 0.2)[valid].mean(), rtol=1e-6)


def test_what_a_reset_row_holds_changes_nothing():
    config = small(normalize_observations=True, normalize_rewards=True)
    fragment = random_fragment()
    rng = np.random.default_rng(9)
    reset = ~fragment.valid
    changed = fragment._replace(
        action=np.where(reset, 1 - fragment.action, fragment.action),
        reward=np.where(reset, 100.0, fragment.reward).astype(np.float32),
        discounted=np.where(reset, 1e6, fragment.discounted).astype(np.float32),
        extras={"log_prob": np.where(reset, rng.normal(size=reset.shape), fragment.extras["log_prob"]).astype("f4")},
    )
    _, state, _ = one_update(config, fragment)
    _, other, _ = one_update(config, changed)
    assert equal(state, other)


def test_a_final_observation_that_is_not_a_number_reaches_nothing():
    config = small(normalize_observations=True)
    fragment = random_fragment()
    obs = fragment.obs.copy()
    obs[1, 0] = np.nan  # row 0 terminated at t=0: this is what its simulator ended in
    _, state, metrics = one_update(config, fragment._replace(obs=obs))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((state, metrics)))


def test_a_fragment_of_reset_rows_only_changes_no_parameter():
    fragment = random_fragment()
    nothing = fragment._replace(valid=np.zeros_like(fragment.valid))
    before, after, metrics = one_update(small(), nothing)
    assert equal(before.params, after.params)
    assert all(np.isfinite(value) for value in metrics.values())


def test_what_comes_after_a_stale_step_is_trained_with_the_memory_that_acted():
    """A step left out in the midst of an episode is still a part of what the network remembers after it."""
    config = small()
    config = replace(config, network=NetworkConfig(hidden=(8,), memory="gru", memory_size=8))
    algorithm = functions(config)
    state = algorithm.init(jax.random.key(0), SPEC, config.hyper())
    fragment = random_fragment()
    memory = jax.random.normal(jax.random.key(2), (8, 8))
    logits, _, _ = algorithm.network.apply(state.params.network, memory, fragment.obs, fragment.first)
    log_prob = np.take_along_axis(np.asarray(jax.nn.log_softmax(logits[:-1])), fragment.action[..., None], -1)[..., 0]
    valid = fragment.valid.copy()
    valid[1, 3:6] = False
    fragment = fragment._replace(memory=memory, extras={"log_prob": log_prob}, valid=valid)
    metrics = jax.jit(algorithm.update)(state, fragment, jax.random.key(1))[1]
    np.testing.assert_allclose(metrics["approx_kl"], 0, atol=1e-9)


def test_rows_after_an_end_do_not_reach_the_episode_before():
    config = small(gae_lambda=1.0)
    fragment = random_fragment()
    algorithm = ppo.make(config.algorithm, config, SPEC)
    state = algorithm.init(jax.random.key(0), SPEC, config.hyper())
    gradient = jax.grad(lambda obs: _advantage(config, state, fragment._replace(obs=obs))[0, 0])(fragment.obs)
    assert np.any(gradient[0, 0] != 0)
    assert not np.any(gradient[1:, 0])
    gradient = jax.grad(lambda obs: _advantage(config, state, fragment._replace(obs=obs))[1, 1])(fragment.obs)
    assert np.any(gradient[2, 1] != 0), "a truncated episode bootstraps from its final observation"
    assert not np.any(gradient[3:, 1])


def _advantage(config: Experiment, state, fragment):
    network = networks.make(config.network, SPEC, 2)
    _, value, _ = network.apply(state.params.network, (), fragment.obs, fragment.first)
    return generalized_advantages(
        fragment.reward, value, fragment.terminated, fragment.truncated, 0.99, config.algorithm.gae_lambda
    )


def run(config: Experiment, updates: int, devices: int = 1):
    env = toy.make_env(config.env.id.removeprefix("podium:"), dict(config.env.kwargs))
    algorithm = ppo.make(config.algorithm, config, env.spec)
    fused = Fused(algorithm, vectorize(env), config, jax.local_devices()[:devices])
    state, rows = fused.init(), []
    for _ in range(updates):
        state, dispatched = fused.dispatch(state, 10**9)
        rows += fused.rows_of(dispatched)
    return state, rows


def last_return(rows, updates: int = 10) -> float:
    return float(np.mean([episode[0] for _, _, episodes in rows[-updates:] for episode in episodes]))


@pytest.mark.parametrize("env", ["Masked-v0", "Target-v0"])
def test_the_first_ratio_of_a_synchronous_run_is_one(env):
    config = experiment(env, num_epochs=1, minibatch_size=256, normalize_observations=True)
    _, rows = run(config, 3)
    for _, metrics, _ in rows:
        assert abs(metrics["approx_kl"]) < 1e-6
        assert metrics["clip_fraction"] == 0


@pytest.mark.parametrize(
    ("env", "devices", "options"),
    [
        ("Catch-v0", 8, {"normalize_observations": True, "normalize_rewards": True, "entropy_coef": 0.01}),
        ("Target-v0", 2, {"objective": "adaptive_kl", "value_clip": 0.2}),
    ],
)
def test_policy_and_value_trained_on_a_device_each_give_the_parameters_of_one_device(env, devices, options):
    config = experiment(env, grad_norm_of="each", **options)
    one, one_rows = run(config, 2)
    apart, rows = run(config, 2, devices)
    assert_close(one.train, apart.train)
    # The same environments, whichever device they are on.
    assert_close(one.rows.obs, apart.rows.obs)
    assert [row[0] for row in rows] == [row[0] for row in one_rows]
    assert_close([row[1] for row in one_rows], [row[1] for row in rows])


@pytest.mark.parametrize(
    ("options", "rows_per_core"),
    [({"normalize_observations": True}, 0), ({"objective": "adaptive_kl", "kl_stop": 0.02, "value_clip": 0.2}, 4096)],
)
def test_eight_devices_that_share_the_rows_give_the_parameters_of_one(options, rows_per_core, monkeypatch):
    monkeypatch.setattr(ppo, "ROWS_PER_CORE", rows_per_core)
    monkeypatch.setattr(ppo.collectives, "do_one_each", None)  # or this would be the way above
    config = experiment(**options)
    assert_close(run(config, 2)[0].train, run(config, 2, devices=8)[0].train)


@pytest.mark.parametrize(("of", "expected"), [("all", {"both": 1e-3}), ("each", {"policy": 1e-3, "value": 1e-3})])
def test_gradients_are_clipped_all_together_or_each_by_itself(of, expected):
    _, state, _ = one_update(small(max_grad_norm=1e-3, grad_norm_of=of), random_fragment())
    # After one step Adam's first moments are a tenth of the gradient, whose norm was more than the limit.
    norms = {name: 10 * float(optax.tree.norm(moments.mu)) for name, moments in state.optimizer.items()}
    assert norms == pytest.approx(expected, rel=1e-2)


def test_eight_devices_give_the_parameters_of_one_with_memory():
    config = experiment("Memory-v0", minibatch_size=128)
    config = replace(config, network=NetworkConfig(hidden=(8,), memory="gru", memory_size=8))
    assert_close(run(config, 2)[0].train, run(config, 2, devices=8)[0].train)


@pytest.mark.parametrize(
    ("env", "optimum", "tolerance", "options"),
    [
        ("Catch-v0", 1.0, 0.05, {"learning_rate": 1e-3, "entropy_coef": 0.01}),
        ("Masked-v0", 8.0, 0.1, {}),
        ("Target-v0", 0.0, 0.6, {"log_std": -1.0, "squash": True}),
        ("MultiTarget-v0", 1.0, 0.05, {}),
    ],
)
def test_it_finds_the_known_optimum(env, optimum, tolerance, options):
    config = experiment(env, **{"learning_rate": 3e-3, "gamma": 0.9, **options})
    _, rows = run(config, 300)
    assert last_return(rows) >= optimum - tolerance


@pytest.mark.parametrize("memory", ["gru", "lstm"])
def test_with_memory_it_recalls_a_cue_and_without_it_cannot(memory):
    config = experiment("Memory-v0", learning_rate=2e-3, minibatch_size=64, fragment_length=16, gamma=0.95)
    recurrent = replace(config, network=NetworkConfig(hidden=(16,), memory=memory, memory_size=16))
    _, rows = run(recurrent, 150)
    assert last_return(rows) > 0.9
    if memory == "gru":
        _, rows = run(config, 60)
        assert abs(last_return(rows)) < 0.5


@pytest.mark.parametrize(("of", "parts"), [("all", ["both"]), ("each", ["policy", "value"])])
def test_a_large_kl_stops_the_update_early(of, parts):
    free = small(learning_rate=0.05, num_epochs=8, minibatch_size=8, grad_norm_of=of)
    stopped = replace(free, algorithm=replace(free.algorithm, kl_stop=1e-6))
    start, after, _ = one_update(stopped, random_fragment())
    _, unstopped, _ = one_update(free, random_fragment())
    for name in parts:
        counts = [int(state.optimizer[name].count) for state in (start, after, unstopped)]
        assert counts == sorted(set(counts))
        assert (counts[0], counts[2]) == (0, 32)


def test_the_kl_coefficient_moves_towards_the_target():
    far = small(objective="adaptive_kl", kl_target=1e-9, learning_rate=0.05, num_epochs=4)
    near = small(objective="adaptive_kl", kl_target=1e9)
    assert float(one_update(far, random_fragment())[1].kl_coef) == 2.0
    assert float(one_update(near, random_fragment())[1].kl_coef) == 0.5


def steps_by_hand(**fields) -> Steps:
    """Two steps of one environment, the first of which counts for a quarter."""
    nothing = dict.fromkeys(Steps._fields)
    return Steps(**{**nothing, "weight": jnp.array([[0.25], [0.75]]), **fields})


def test_a_value_that_moved_too_far_is_judged_by_the_clipped_one_where_that_is_worse():
    algorithm = functions(small(value_clip=0.1))
    rows = steps_by_hand(value=jnp.zeros((2, 1)), target=jnp.array([[1.0], [-0.5]]))
    # The first is right, but clipped to 0.1 it is off by 0.9; the second is off by 1.5, clipped by 0.6.
    loss = algorithm.value_loss(jnp.array([[1.0], [1.0]]), rows)
    np.testing.assert_allclose(loss, 0.5 * (0.25 * 0.9**2 + 0.75 * 1.5**2), rtol=1e-6)


def test_the_kl_penalty_is_the_divergence_from_the_policy_before_the_update():
    algorithm = functions(small(objective="adaptive_kl"))
    start = algorithm.init(jax.random.key(0), SPEC, algorithm.experiment.hyper())
    before, after = np.log([[[0.5, 0.5]], [[0.9, 0.1]]]), np.log([[[0.8, 0.2]], [[0.9, 0.1]]])
    rows = steps_by_hand(
        action=jnp.zeros((2, 1), jnp.int32), log_prob=jnp.zeros((2, 1)), advantage=jnp.zeros((2, 1)), outputs=before
    )
    policy = algorithm.policy.distribution(start.params, jnp.asarray(after), None)
    _, metrics = algorithm.policy_terms(policy, start._replace(kl_coef=jnp.float32(3.0)), rows)
    kl = 0.5 * np.log(0.5 / 0.8) + 0.5 * np.log(0.5 / 0.2)
    np.testing.assert_allclose(metrics["policy_loss"], 3.0 * 0.25 * kl, rtol=1e-5)


def learning_rates(fragment: Fragment, total_steps: int) -> list[float]:
    config = small(schedule="linear", learning_rate=1.0)
    config = replace(config, limits=replace(config.limits, total_steps=total_steps))
    algorithm = ppo.make(config.algorithm, config, SPEC)
    state = algorithm.init(jax.random.key(0), SPEC, config.hyper())
    update, rates = jax.jit(algorithm.update), []
    for _ in range(5):
        state, metrics, _ = update(state, fragment, jax.random.key(0))
        rates.append(float(metrics["learning_rate"]))
    return rates


def test_a_linear_schedule_ends_at_zero():
    fragment = random_fragment()
    whole = fragment._replace(valid=np.ones_like(fragment.valid))
    assert learning_rates(whole, 4 * whole.valid.size) == [1.0, 0.75, 0.5, 0.25, 0.0]


def test_reset_rows_do_not_move_the_schedule():
    fragment = random_fragment()
    rates = learning_rates(fragment, 4 * fragment.valid.size)
    steps = np.arange(5) * np.count_nonzero(fragment.valid)
    np.testing.assert_allclose(rates, 1 - steps / (4 * fragment.valid.size), rtol=1e-6)


def test_changing_a_traced_hyperparameter_compiles_nothing():
    config = small()
    algorithm = ppo.make(config.algorithm, config, SPEC)
    update = jax.jit(algorithm.update)
    state = algorithm.init(jax.random.key(0), SPEC, config.hyper())
    update(state, random_fragment(), jax.random.key(0))
    before = update._cache_size()
    moved, _, _ = update(
        state._replace(hyper={**state.hyper, "learning_rate": jnp.float32(0)}), random_fragment(), jax.random.key(0)
    )
    assert update._cache_size() == before
    assert equal(moved.params, state.params)


def test_a_minibatch_that_does_not_divide_is_refused_in_one_line():
    config = experiment(minibatch_size=100)
    with pytest.raises(ConfigError, match=r"algorithm.minibatch_size = 100: must divide .* = 256"):
        ppo.make(config.algorithm, config, SPEC)


def test_squash_without_bounds_is_refused():
    config = experiment(squash=True)
    spec = EnvSpec(Array((3,)), Box((1,), (-np.inf,), (np.inf,)))
    with pytest.raises(ConfigError, match=r"algorithm.squash = true: needs continuous actions with finite bounds"):
        ppo.make(config.algorithm, config, spec)


def test_a_large_recurrent_minibatch_computed_in_pieces_gives_the_same(monkeypatch):
    config = experiment("Memory-v0", minibatch_size=256)
    config = replace(config, network=NetworkConfig(hidden=(8,), memory="lstm", memory_size=8))
    whole, _ = run(config, 1)
    in_pieces = ppo.minibatches.sum_over_chunks
    monkeypatch.setattr(ppo.minibatches, "sum_over_chunks", lambda f, rows, chunk: in_pieces(f, rows, chunk=64))
    pieces, _ = run(config, 1)
    assert_close(whole.train.params, pieces.train.params)


@pytest.mark.parametrize(("config", "make"), [(PPOConfig, ppo.make), (APPOConfig, appo.make)])
def test_a_row_that_weighs_nothing_makes_no_nan_however_sharp_the_policy(config: type[PPOConfig], make) -> None:
    size, steps, rows = 24, 4, 8  # at exp(-5), densities of so many actions near their mean are beyond e^88
    spec = EnvSpec(Array((3,)), Box((size,), (-1.0,) * size, (1.0,) * size))
    options = config(fragment_length=steps, minibatch_size=steps * rows, num_epochs=1, log_std=-5.0)
    settings = replace(small(), algorithm=options)
    algorithm = make(options, settings, spec)
    state = jax.jit(lambda key: algorithm.init(key, spec, settings.hyper()))(jax.random.key(0))
    terminated = np.zeros((steps, rows), bool)
    terminated[0] = True
    first, valid = np.zeros((steps + 1, rows), bool), np.ones((steps, rows), bool)
    first[2:], valid[1:] = terminated[:-1], ~terminated[:-1]
    obs = np.zeros((steps + 1, rows, 3), np.float32)
    keys = jax.random.split(jax.random.key(1), (steps, rows))
    acts = [
        algorithm.act(algorithm.params(state), (), ActInput(obs[0], first[0], None, key, None), False) for key in keys
    ]
    action, log_prob = np.stack([act[0] for act in acts]), np.stack([act[1]["log_prob"] for act in acts])
    ones, none = np.ones((steps, rows), np.float32), np.zeros((steps, rows), bool)
    ends = terminated, none, valid, np.zeros((steps, rows), np.int32)
    fragment = Fragment(obs, first, None, action, {"log_prob": log_prob}, ones, ones, *ends, ())
    state, metrics, _ = jax.jit(algorithm.update)(state, fragment, jax.random.key(2))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((state.params, metrics)))
    assert float(metrics["approx_kl"]) == pytest.approx(0.0, abs=1e-5)
