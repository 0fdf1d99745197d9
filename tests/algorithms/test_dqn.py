"""DQN against known answers: rlax's targets, sequences by hand, who explores how much, and tiny tasks' optima."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podium.algorithms import dqn
from podium.algorithms.algorithm import Algorithm, Drawn, Replay, Transitions
from podium.core.algorithm_configs import DQNConfig
from podium.core.config import EnvConfig, Experiment, LimitsConfig, NetworkConfig, TopologyConfig
from podium.core.errors import ConfigError
from podium.core.specs import Array, Box, Discrete, EnvSpec, MultiDiscrete
from podium.core.types import ActInput, Fragment
from podium.envs import toy
from podium.envs.jax_wrappers import vectorize
from podium.networks import q_values
from podium.ops.random_keys import row_keys, run_key
from podium.workers import rollout
from podium.workers.fused import Fused

SPEC = EnvSpec(Array((3,)), Discrete(4))
GRU = NetworkConfig(hidden=(8, 8), memory="gru", memory_size=5)


def experiment(env: str = "Catch-v0", network: NetworkConfig | None = None, **algorithm) -> Experiment:
    options = {"fragment_length": 8, "batch_size": 32, "buffer_size": 4096, "learning_starts": 128, "gamma": 0.9}
    return Experiment(
        algorithm=DQNConfig(**(options | {"update_ratio": 0.25} | algorithm)),
        env=EnvConfig(f"podium:{env}", num_envs=8),
        network=network or NetworkConfig(hidden=(8, 8)),
        topology=TopologyConfig(dispatch=25),
        limits=LimitsConfig(total_steps=12_800),
    )


def prepare(config: Experiment) -> tuple[dqn.DQN, Algorithm, dqn.TrainState]:
    """The functions, the algorithm, and a state whose target network is another one."""
    algorithm = dqn.make(config.algorithm, config, SPEC)
    network = q_values.make(config.network, SPEC, config.algorithm.dueling)
    state = jax.jit(lambda: algorithm.init(jax.random.key(0), SPEC, config.hyper()))()
    state = state._replace(target=jax.jit(network.init)(jax.random.key(1)), **count(10))
    return dqn.DQN(config.algorithm, config, network), algorithm, state


def count(updates: int) -> dict[str, jax.Array]:
    """Of a state after so many updates, all in its own run."""
    return {"updates": jnp.int32(updates), "steps": jnp.int32(updates)}


def transitions(n: int = 1, rows: int = 16, seed: int = 0) -> Drawn:
    rng = np.random.default_rng(seed)
    steps = rng.integers(1, n + 1, rows).astype(np.int32)
    legal = rng.random((rows, 4)) < 0.5
    legal[np.arange(rows), rng.integers(0, 4, rows)] = True
    return Drawn(
        Transitions(
            obs=rng.normal(size=(rows, 3)).astype(np.float32),
            mask=np.ones((rows, 4), bool),
            action=rng.integers(0, 4, rows).astype(np.int32),
            rewards=np.where(np.arange(n) < steps[:, None], rng.normal(size=(rows, n)), 0).astype(np.float32),
            steps=steps,
            terminated=rng.random(rows) < 0.3,
            next_obs=rng.normal(size=(rows, 3)).astype(np.float32),
            next_mask=legal,
        ),
        weight=rng.uniform(0.1, 1, rows).astype(np.float32),
    )


def sequences(rows: int = 6, length: int = 8, seed: int = 0) -> Drawn:
    """With both kinds of ends, and a column that begins with a reset row."""
    rng = np.random.default_rng(seed)
    terminated, truncated = np.zeros((2, length, rows), bool)
    terminated[3, 0] = terminated[6, 1] = truncated[4, 2] = True
    ended = terminated | truncated
    valid, first = np.ones((length, rows), bool), np.zeros((length + 1, rows), bool)
    valid[1:], first[2:] = ~ended[:-1], ended[:-1]
    valid[0, 3], first[1, 3] = False, True
    return Drawn(
        Fragment(
            obs=rng.normal(size=(length + 1, rows, 3)).astype(np.float32),
            first=first,
            mask=None,
            action=rng.integers(0, 4, (length, rows)).astype(np.int32),
            extras=(),
            reward=rng.normal(size=(length, rows)).astype(np.float32),
            discounted=None,
            terminated=terminated,
            truncated=truncated,
            valid=valid,
            version=None,
            memory=rng.normal(size=(rows, 5)).astype(np.float32),
        ),
        weight=rng.uniform(0.1, 1, rows).astype(np.float32),
    )


def equal(a, b) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


@pytest.mark.parametrize("double", [True, False])
def test_one_step_errors_are_those_of_rlax(double):
    rlax = pytest.importorskip("rlax")
    functions, _, state = prepare(experiment(double=double))
    rows, weight = transitions()
    rows = rows._replace(next_mask=None)
    q, next_q = functions.q(state.network, rows.obs), functions.q(state.network, rows.next_obs)
    target_q = functions.q(state.target, rows.next_obs)
    discount = 0.9 * (1.0 - rows.terminated)
    if double:
        learning = jax.vmap(rlax.double_q_learning)
        expected = learning(q, rows.action, rows.rewards[:, 0], discount, target_q, next_q)
    else:
        expected = jax.vmap(rlax.q_learning)(q, rows.action, rows.rewards[:, 0], discount, target_q)
    errors = functions.errors_of_steps(state.network, state, rows, weight)
    np.testing.assert_allclose(errors.error, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(errors.priority, np.abs(expected), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("double", [True, False])
def test_n_step_errors_and_the_loss_are_those_by_hand_and_illegal_actions_are_not_looked_at(double):
    functions, algorithm, state = prepare(experiment(double=double, n_step=3))
    drawn = transitions(n=3)
    rows, weight = drawn
    q, next_q, target_q = (
        np.asarray(functions.q(network, obs), np.float64)
        for network, obs in ((state.network, rows.obs), (state.network, rows.next_obs), (state.target, rows.next_obs))
    )
    expected = np.zeros(len(weight))
    for i in range(len(weight)):
        judge = next_q[i] if double else target_q[i]
        action = max(np.flatnonzero(rows.next_mask[i]), key=lambda a, judge=judge: judge[a])
        target = sum(0.9**k * rows.rewards[i, k] for k in range(rows.steps[i]))
        target += 0.0 if rows.terminated[i] else 0.9 ** rows.steps[i] * target_q[i, action]
        expected[i] = target - q[i, rows.action[i]]
    _, metrics, priorities = jax.jit(algorithm.update)(state, drawn, jax.random.key(0))
    np.testing.assert_allclose(priorities, np.abs(expected), rtol=1e-4, atol=1e-5)
    huber = np.where(np.abs(expected) < 1, expected**2 / 2, np.abs(expected) - 0.5)
    np.testing.assert_allclose(metrics["loss"], np.mean(weight * huber), rtol=1e-4)
    np.testing.assert_allclose(metrics["td_error"], np.mean(np.abs(expected)), rtol=1e-4)


@pytest.mark.parametrize("burn_in", [0, 2])
def test_errors_and_priorities_of_sequences_are_those_by_hand_after_the_burn_in(burn_in):
    functions, algorithm, state = prepare(experiment(network=GRU, n_step=3, burn_in=burn_in))
    rows, weight = drawn = sequences()
    burns = np.asarray(dqn.draw_burning(jax.random.key(0), len(weight), None))
    assert 0 < burns.sum() < len(burns)
    apply = jax.jit(functions.network.apply)
    whole = [apply(network, rows.memory, rows.obs, rows.first)[0] for network in (state.network, state.target)]
    q, target_q = (np.asarray(x, np.float64) for x in whole)
    length, columns = rows.valid.shape
    priorities, losses = np.zeros(columns), []
    for b in range(columns):
        errors = []
        for t in range(length):
            # An episode that begins here has no past to burn in.
            known = t >= burn_in or not burns[b] or rows.first[: t + 1, b].any()
            if not (rows.valid[t, b] and known):
                continue
            target, k = 0.0, 0
            while k < 3 and t + k < length:
                target += 0.9**k * rows.reward[t + k, b]
                k += 1
                if rows.terminated[t + k - 1, b] or rows.truncated[t + k - 1, b]:
                    break
            if not rows.terminated[t + k - 1, b]:
                target += 0.9**k * target_q[t + k, b, np.argmax(q[t + k, b])]
            errors.append(abs(target - q[t, b, rows.action[t, b]]))
            losses.append(weight[b] * (errors[-1] ** 2 / 2 if errors[-1] < 1 else errors[-1] - 0.5))
        priorities[b] = 0.9 * max(errors) + 0.1 * np.mean(errors)
    _, metrics, given = jax.jit(algorithm.update)(state, drawn, jax.random.key(0))
    np.testing.assert_allclose(given, priorities, rtol=1e-4)
    np.testing.assert_allclose(metrics["loss"], np.mean(losses), rtol=1e-4)


def test_every_step_of_a_sequence_is_in_the_loss_of_half_its_draws_at_least():
    functions, _, state = prepare(experiment(network=GRU, burn_in=3))
    rows, weight = sequences()
    rows = rows._replace(first=np.zeros_like(rows.first), valid=np.ones_like(rows.valid))  # all within episodes
    draws = [dqn.draw_burning(jax.random.key(number), len(weight), None) for number in range(60)]
    errors = jax.jit(jax.vmap(lambda burns: functions.errors_of_sequences(state.network, state, rows, weight, burns)))
    share = np.mean(errors(jnp.stack(draws)).weight > 0, axis=(0, 2))
    np.testing.assert_allclose(share[:3], 0.5, atol=0.1)
    assert np.all(share[3:] == 1)


def test_devices_draw_the_same_burn_in_as_one():
    together = jax.vmap(lambda _: dqn.draw_burning(jax.random.key(7), 4, "rows"), axis_name="rows")(jnp.arange(3))
    assert together.ravel().tolist() == dqn.draw_burning(jax.random.key(7), 12, None).tolist()


def test_no_gradient_goes_through_the_burn_in():
    functions, _, state = prepare(experiment(network=GRU, burn_in=3))
    rows = sequences().rows

    def total(obs, skip):
        own = dqn.DQN(replace(functions.config, burn_in=skip), functions.experiment, functions.network)
        return jnp.sum(own.unroll(state.network, rows._replace(obs=obs))[3:])

    gradient = jax.jit(jax.grad(total), static_argnums=1)
    after = gradient(rows.obs, 3)
    assert not np.any(after[:3])
    assert np.any(after[3:])
    assert np.any(gradient(rows.obs, 0)[:3])


@pytest.mark.parametrize("memory", ["gru", "lstm"])
def test_unrolling_from_the_stored_memory_gives_what_acting_had(memory):
    network = NetworkConfig(hidden=(8, 8), memory=memory, memory_size=5)
    config = experiment("Memory-v0", network, burn_in=4)
    env = toy.make_env("Memory-v0", {})
    algorithm = dqn.make(config.algorithm, config, env.spec)
    functions = dqn.DQN(config.algorithm, config, q_values.make(network, env.spec, dueling=True))
    params = algorithm.params(algorithm.init(jax.random.key(0), env.spec, config.hyper()))
    rows = rollout.start(algorithm, vectorize(env), params, jax.random.key(1), 8)
    collect = jax.jit(lambda rows, n: rollout.collect(algorithm, vectorize(env), params, rows, jax.random.key(2), n, 8))
    rows, _, _ = collect(rows, 0)
    after, fragment, _ = collect(rows, 1)
    assert any(np.any(leaf) for leaf in jax.tree.leaves(fragment.memory)), "a fragment that starts within episodes"
    # Acting one step at a time, with memory in the actor's hands.
    held, by_steps, apply = fragment.memory, [], jax.jit(functions.network.apply)
    for t in range(9):
        step = jax.tree.map(lambda x, t=t: x[t : t + 1], (fragment.obs, fragment.first))
        q, held = apply(params.network, held, *step)
        if t == 7:
            jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), held, after.memory)
        by_steps.append(q[0])
    burnt_in = jax.jit(functions.unroll)(params.network, fragment)
    np.testing.assert_allclose(burnt_in, np.stack(by_steps), rtol=1e-5, atol=1e-6)


def test_a_dueling_head_is_the_value_plus_what_advantages_are_above_their_mean():
    network = q_values.make(NetworkConfig(hidden=(6,)), SPEC, dueling=True)
    params = network.init(jax.random.key(0))
    obs = np.random.default_rng(0).normal(size=(1, 5, 3)).astype(np.float32)
    q, _ = network.apply(params, (), obs, np.zeros((1, 5), bool))

    def tower(part, x):
        hidden = np.tanh(x @ part["hidden"]["Dense_0"]["kernel"].T + part["hidden"]["Dense_0"]["bias"].T)
        return hidden @ part["head"]["kernel"].T + part["head"]["bias"].T

    params = jax.tree.map(np.asarray, params)
    value, advantages = tower(params["value"], obs[0]), tower(params["advantages"], obs[0])
    np.testing.assert_allclose(q[0], value + advantages - advantages.mean(-1, keepdims=True), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(np.mean(q[0], -1), value[:, 0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("network", [None, GRU])
def test_rows_without_weight_change_nothing_even_if_they_are_not_numbers(network):
    _, algorithm, state = prepare(experiment(network=network, n_step=2, burn_in=1 if network else 0))
    rows, weight = sequences() if network else transitions(n=2)
    weight = np.where(np.arange(len(weight)) == 1, 0, weight).astype(np.float32)
    update = jax.jit(algorithm.update)

    obs, rewards = rows.obs.copy(), (rows.reward if network else rows.rewards).copy()
    row = np.s_[:, 1] if network else np.s_[1]
    obs[row] = rewards[row] = np.nan
    spoilt = rows._replace(obs=obs, **{"reward" if network else "rewards": rewards})
    if network:
        spoilt = spoilt._replace(memory=np.where(weight[:, None] == 0, np.nan, rows.memory))
    state_a, metrics_a, feedback = update(state, Drawn(rows, weight), jax.random.key(0))
    state_b, metrics_b, _ = update(state, Drawn(spoilt, weight), jax.random.key(0))
    assert equal((state_a, metrics_a), (state_b, metrics_b))
    assert float(feedback[1]) == 0


def test_what_reset_rows_of_a_sequence_hold_changes_nothing():
    _, algorithm, state = prepare(experiment(network=GRU, n_step=2, burn_in=1))
    rows, weight = sequences()
    reset = ~rows.valid
    obs = rows.obs.copy()
    obs[4, 0] = obs[7, 1] = obs[0, 3] = np.nan  # what terminated episodes ended in
    reward = np.where(reset, np.nan, rows.reward).astype(np.float32)
    other = rows._replace(obs=obs, reward=reward, action=np.where(reset, 3 - rows.action, rows.action))
    update = jax.jit(algorithm.update)
    expected = update(state, Drawn(rows, weight), jax.random.key(0))
    assert equal(update(state, Drawn(other, weight), jax.random.key(0)), expected)
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(expected))


@pytest.mark.parametrize("network", [None, GRU])
def test_two_devices_that_share_a_batch_make_the_update_of_one(network):
    _, algorithm, state = prepare(experiment(network=network))
    rows, weight = sequences() if network else transitions()
    weight = np.where(np.arange(len(weight)) == 0, 0, weight).astype(np.float32)

    def halves(x, axis):
        return np.stack(np.split(x, 2, axis))

    if network:
        memory = halves(rows.memory, 0)
        half_rows = jax.tree.map(lambda x: halves(x, 1), rows._replace(memory=()))._replace(memory=memory)
    else:
        half_rows = jax.tree.map(lambda x: halves(x, 0), rows)
    apart = Drawn(half_rows, halves(weight, 0))
    one, metrics, priorities = jax.jit(algorithm.update)(state, Drawn(rows, weight), jax.random.key(0))
    mapped = jax.vmap(lambda batch: algorithm.update(state, batch, jax.random.key(0), "rows"), axis_name="rows")
    both, both_metrics, both_priorities = jax.jit(mapped)(apart)
    for a, b in zip(*map(jax.tree.leaves, ((one, metrics), (both, both_metrics))), strict=True):
        np.testing.assert_allclose(np.stack([a, a]), b, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(both_priorities.ravel(), priorities, rtol=1e-4, atol=1e-6)


def test_the_target_follows_the_network_by_tau_and_hyperparameters_are_traced():
    _, algorithm, state = prepare(experiment(tau=0.25, max_grad_norm=1e-3))
    update = jax.jit(algorithm.update)
    after, _, _ = update(state, transitions(), jax.random.key(0))
    for old, new, network in zip(*map(jax.tree.leaves, (state.target, after.target, after.network)), strict=True):
        np.testing.assert_allclose(new, 0.75 * old + 0.25 * network, rtol=1e-5, atol=1e-6)
    # After one step Adam's first moments are a tenth of the gradient, whose norm was more than the limit.
    norm = np.sqrt(sum(np.sum(np.square(leaf)) for leaf in jax.tree.leaves(after.optimizer.mu)))
    np.testing.assert_allclose(10 * norm, 1e-3, rtol=1e-2)
    still = state._replace(hyper={**state.hyper, "learning_rate": jnp.float32(0)})
    assert equal(update(still, transitions(), jax.random.key(0))[0].network, state.network)
    assert update._cache_size() == 1


def actions(config: Experiment, updates: int, rows: int = 4000, exploration: float = 1.0, mask=None) -> np.ndarray:
    """What many rows that see the same do, beside what the network finds best."""
    functions, algorithm, state = prepare(config)
    params = algorithm.params(state._replace(**count(updates)))
    obs = np.full((rows, 3), 0.5, np.float32)
    mask = None if mask is None else np.broadcast_to(mask, (rows, 4))
    inputs = ActInput(obs, np.ones(rows, bool), mask, row_keys(run_key(0), np.arange(rows), 1), exploration)
    chosen, _, _ = jax.jit(algorithm.act, static_argnums=3)(params, (), inputs, False)
    greedy, _, _ = jax.jit(algorithm.act, static_argnums=3)(params, (), inputs, True)
    q = np.asarray(functions.q(state.network, obs[:1]))[0]
    legal = np.ones(4, bool) if mask is None else mask[0]
    assert set(np.asarray(greedy).tolist()) == {int(np.argmax(np.where(legal, q, -np.inf)))}
    return np.stack([chosen, greedy])


def test_epsilon_falls_in_a_straight_line_after_the_start():
    config = experiment(epsilon_start=0.9, epsilon_end=0.1, epsilon_decay=0.5)
    _, algorithm, state = prepare(config)
    # 6,400 steps of decay at 0.25 updates a step: 1,600 updates.
    for updates, epsilon in ((0, 0.9), (400, 0.7), (800, 0.5), (1600, 0.1), (9999, 0.1)):
        params = algorithm.params(state._replace(**count(updates)))
        np.testing.assert_allclose(params.epsilon, epsilon, rtol=1e-5)
        assert bool(params.random) == (updates == 0)


def test_a_linear_schedule_ends_at_zero():
    config = experiment(schedule="linear", learning_rate=1.0, learning_starts=800)
    functions, _, state = prepare(config)
    # 12,800 steps: the first 800 without updates, then four for each of them.
    for updates, rate in ((0, 15 / 16), (600, 0.75), (1400, 0.5), (3000, 0.0), (9999, 0.0)):
        np.testing.assert_allclose(functions.learning_rate(state._replace(**count(updates))), rate, atol=1e-6)


def test_schedules_begin_anew_where_a_run_begins_from_another_but_random_play_does_not():
    config = experiment(schedule="linear", learning_rate=1.0, learning_starts=800, epsilon_start=0.9, epsilon_end=0.1)
    functions, algorithm, state = prepare(config)
    assert bool(algorithm.params(state._replace(**count(0))).random)
    adopted = state._replace(updates=jnp.int32(9999), steps=jnp.int32(0))
    np.testing.assert_allclose(functions.learning_rate(adopted), 15 / 16, atol=1e-6)
    params = algorithm.params(adopted)
    np.testing.assert_allclose(params.epsilon, 0.9, rtol=1e-5)
    assert not params.random
    after = jax.jit(algorithm.update)(adopted, transitions(), jax.random.key(0))[0]
    assert (int(after.updates), int(after.steps)) == (10_000, 1)


def test_so_many_actions_are_random_and_all_are_as_likely():
    config = experiment(epsilon_start=0.4, epsilon_end=0.4)
    for updates, exploration, share in ((5, 1.0, 0.4), (5, 0.5, 0.2), (5, 0.0, 0.0), (0, 0.01, 1.0), (0, 0.0, 0.0)):
        chosen, greedy = actions(config, updates, exploration=exploration)
        counts = np.bincount(chosen, minlength=4) / len(chosen)
        expected = np.full(4, share / 4) + (1 - share) * (np.arange(4) == greedy[0])
        assert np.abs(counts - expected).max() < 6 * 0.5 / np.sqrt(len(chosen))


def test_no_illegal_action_is_taken():
    config = experiment(epsilon_start=0.5, epsilon_end=0.5)
    for legal in ([True, False, False, True], [False, False, True, False], [False, True, True, True]):
        chosen, _ = actions(config, updates=5, mask=np.array(legal))
        assert set(chosen.tolist()) == set(np.flatnonzero(legal).tolist())


def test_environments_explore_as_in_ape_x():
    """epsilon_i = e^(1 + 7 i / (N - 1)) with e = 0.4 (Horgan et al., 2018)."""
    config = experiment(epsilon_start=0.4, epsilon_end=0.4, exploration_spread=0.4**7)
    algorithm = dqn.make(config.algorithm, config, SPEC)
    epsilon = 0.4 * algorithm.rollouts.exploration(np.arange(8), 8)
    np.testing.assert_allclose(epsilon, 0.4 ** (1 + 7 * np.arange(8) / 7), rtol=1e-6)


@pytest.mark.parametrize(
    ("action", "instead"), [(Box((1,), (-1.0,), (1.0,)), "sac, td3 or ppo"), (MultiDiscrete((2, 3)), "ppo or a2c")]
)
def test_other_actions_than_one_of_n_are_refused_in_one_line(action, instead):
    config = experiment()
    with pytest.raises(ConfigError, match=rf"^algorithm.name = 'dqn': chooses one of n actions, .*; use {instead}$"):
        dqn.make(config.algorithm, config, EnvSpec(Array((3,)), action))


def test_a_burn_in_without_memory_is_refused():
    config = experiment(burn_in=2)
    with pytest.raises(ConfigError, match=r"algorithm.burn_in = 2: needs a network with memory; set network.memory"):
        dqn.make(config.algorithm, config, SPEC)


def test_a_batch_of_sequences_has_as_many_steps_as_one_of_single_steps():
    for network, rows in ((NetworkConfig(hidden=(8, 8)), 32), (GRU, 4)):
        config = experiment(network=network)
        experience = dqn.make(config.algorithm, config, SPEC).experience
        assert isinstance(experience, Replay)
        assert experience.batch_size == rows
    config = experiment(network=GRU, batch_size=20)
    with pytest.raises(ConfigError, match=r"algorithm.batch_size = 20: .* a multiple of algorithm.fragment_length = 8"):
        dqn.make(config.algorithm, config, SPEC)


@pytest.mark.parametrize(
    ("env", "optimum", "options"),
    [
        ("Catch-v0", 1.0, {"priority_exponent": 0.6, "n_step": 3}),
        ("Chain-v0", 9.0, {}),
        ("Masked-v0", 8.0, {"double": False, "dueling": False}),
        ("Memory-v0", 1.0, {"n_step": 3, "burn_in": 2, "batch_size": 128, "priority_exponent": 0.6}),
    ],
)
def test_it_finds_the_known_optimum(env, optimum, options):
    options = {"learning_rate": 3e-3, "tau": 0.05, "epsilon_decay": 0.4, "epsilon_end": 0.01, **options}
    network = NetworkConfig(hidden=(32, 32), memory="gru" if env == "Memory-v0" else "none", memory_size=16)
    config = experiment(env, network, **options)
    jax_env = toy.make_env(env, {})
    fused = Fused(dqn.make(config.algorithm, config, jax_env.spec), vectorize(jax_env), config, jax.local_devices()[:1])
    state, rows, steps = fused.init(), [], 0
    while steps < config.limits.total_steps:
        state, dispatched = fused.dispatch(state, config.limits.total_steps - steps)
        rows += (new := list(fused.rows_of(dispatched)))
        steps += sum(row[0] for row in new)
    returns = [episode[0] for _, _, episodes in rows for episode in episodes][-200:]
    assert np.mean(returns) > 0.95 * optimum
