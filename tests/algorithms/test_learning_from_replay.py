"""What a learner does with a fragment when there is a replay buffer: when updates start, how many, and in place."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podium.algorithms import dqn, learning
from podium.algorithms.algorithm import Algorithm, Drawn, Replay
from podium.core.algorithm_configs import DQNConfig
from podium.core.config import EnvConfig, Experiment, NetworkConfig, TopologyConfig
from podium.core.errors import ConfigError
from podium.core.types import Fragment
from podium.envs import toy
from podium.envs.jax_wrappers import vectorize
from podium.workers.fused import Fused

T, B = 4, 2


class Seen(NamedTuple):
    """A train state that only counts, and adds up the rewards that it was given."""

    updates: jax.Array
    rewards: jax.Array


def algorithm(**changes) -> Algorithm:
    """Learns nothing; a row's new priority is its reward."""
    fields = {"length": T, "discount": 0.9, "batch_size": 4, "capacity": 64, "starts": 0, "ratio": 0.5}

    def update(state: Seen, batch: Drawn, key: jax.Array, axis: str | None = None) -> tuple:
        rewards = jnp.sum(batch.rows.rewards)
        return Seen(state.updates + 1, state.rewards + rewards), {"number": state.updates}, batch.rows.rewards[:, 0]

    def nothing(*_):
        raise AssertionError("not for learning")

    return Algorithm(Replay(**(fields | changes)), nothing, nothing, nothing, nothing, update)


def fragment(reward: float = 0.0, reset: int = 0) -> Fragment:
    """Steps that all pay the same; the first `reset` of each column are none."""
    flags, valid = np.zeros((T, B), bool), np.ones((T, B), bool)
    valid[:reset] = False
    return Fragment(
        obs=np.zeros((T + 1, B, 8), np.float32),
        first=np.zeros((T + 1, B), bool),
        mask=None,
        action=np.zeros((T, B), np.int32),
        extras=(),
        reward=np.full((T, B), reward, np.float32),
        discounted=np.zeros((T, B), np.float32),
        terminated=flags,
        truncated=flags,
        valid=valid,
        version=np.zeros((T, B), np.int32),
        memory=(),
    )


def learn(what: Algorithm, fragments: list[Fragment]) -> tuple[Seen, list[dict]]:
    state, store, told = Seen(jnp.int32(0), jnp.float32(0)), learning.init(what, fragment()), []
    step = jax.jit(lambda *args: learning.learn(what, *args), donate_argnums=1)
    for number, piece in enumerate(fragments):
        state, store, metrics = step(state, store, piece, jax.random.key(number))
        told.append(learning.reported(jax.device_get(metrics)))
    return state, told


def test_updates_made_in_parts_are_those_made_at_once():
    what, pieces = algorithm(ratio=2.0, priority_exponent=0.6), [fragment(1.0), fragment(2.0)]
    at_once, told = learn(what, pieces)
    state, store = Seen(jnp.int32(0), jnp.float32(0)), learning.init(what, fragment())
    for number, piece in enumerate(pieces):
        store, due = learning.take_in(what, store, piece)
        assert int(due) == 16
        sums = learning.no_sums(what, state, store)
        for begin in (0, 7, 14):
            end = min(begin + 7, 16)
            key = jax.random.key(number)
            state, store, sums = learning.update_some(what, state, store, sums, key, begin, end)
        assert float(sums["number"]) / 16 == told[number]["number"]
    assert (int(state.updates), float(state.rewards)) == (32, float(at_once.rewards))


def test_updates_start_with_enough_valid_steps_and_then_follow_the_ratio():
    # 8, 16, 22, 30 and 38 valid steps: enough from the third fragment on, 0.5 for each step.
    state, told = learn(algorithm(starts=20), [fragment(), fragment(), fragment(reset=1), fragment(), fragment()])
    assert [row["gradient_updates"] for row in told] == [0, 0, 3, 4, 4]
    assert told[0] == {"gradient_updates": 0}
    assert int(state.updates) == 11
    # Means over the updates of a round: of 0..2, 3..6 and 7..10.
    assert [row["number"] for row in told[2:]] == [1.0, 4.5, 8.5]


def test_what_steps_leave_of_an_update_is_made_up_for_with_the_next_ones():
    # 6 valid steps a fragment, of which 3/8 are 2.25 updates.
    _, told = learn(algorithm(ratio=0.375), [fragment(reset=1)] * 8)
    assert [row["gradient_updates"] for row in told] == [2, 2, 2, 3, 2, 2, 2, 3]


def test_every_update_draws_anew_and_from_what_came_before_too():
    state, _ = learn(algorithm(), [fragment(1.0), fragment(0.0)])
    # The first four updates see four ones each; then half of the steps pay.
    assert 16 < float(state.rewards) < 32


def test_priorities_that_an_update_gives_count_for_the_next_one():
    # All priorities are 1 at first, but what pays nothing is set to almost 0 when it was drawn.
    state, _ = learn(algorithm(priority_exponent=1.0, ratio=8.0), [fragment(0.0), fragment(1.0)])
    drawn = 4 * 64
    assert float(state.rewards) > 0.9 * drawn


def test_a_ratio_that_gives_no_whole_number_of_updates_is_refused_in_one_line():
    with pytest.raises(
        ConfigError, match=r"algorithm.update_ratio = 0.3: times fragment_length x num_envs = 8 it must"
    ):
        learn(algorithm(ratio=0.3), [fragment()])
    with pytest.raises(ConfigError, match=r"algorithm.update_ratio = 0.01: .* at least 1"):
        learn(algorithm(ratio=0.01), [fragment()])


def test_a_batch_that_devices_cannot_share_is_refused_in_one_line():
    what = algorithm(batch_size=3)
    state, store = Seen(jnp.int32(0), jnp.float32(0)), learning.init(what, fragment(), devices=2)
    two = jax.tree.map(lambda x: jnp.stack([x, x]), (store, fragment()))
    with pytest.raises(ConfigError, match=r"algorithm.batch_size: its 3 rows must be shared by 2 devices"):
        jax.vmap(lambda s, f: learning.learn(what, state, s, f, jax.random.key(0), "rows"), axis_name="rows")(*two)


@pytest.mark.parametrize("alpha", [0.0, 0.6])
def test_the_buffer_is_changed_in_place_whatever_its_size(alpha):
    """XLA copies what it cannot prove to be safe: for a buffer of gigabytes that would be the end."""

    def temporary_bytes(capacity: int) -> int:
        what = algorithm(capacity=capacity, priority_exponent=alpha)
        args = Seen(jnp.int32(0), jnp.float32(0)), learning.init(what, fragment()), fragment(), jax.random.key(0)
        step = jax.jit(lambda *args: learning.learn(what, *args), donate_argnums=1)
        memory = step.lower(*jax.eval_shape(lambda: args)).compile().memory_analysis()
        assert memory.alias_size_in_bytes > 4 * 8 * capacity
        return memory.temp_size_in_bytes

    assert temporary_bytes(capacity=2**16) < temporary_bytes(capacity=2**10) + 1024


def test_a_fused_dispatch_changes_the_buffer_in_place_whatever_its_size():
    def temporary_bytes(capacity: int) -> int:
        config = DQNConfig(fragment_length=T, batch_size=4, buffer_size=capacity, n_step=2, priority_exponent=0.6)
        env = toy.make_env("Catch-v0", {})
        environment, network = EnvConfig("podium:Catch-v0", num_envs=B), NetworkConfig(hidden=(4,))
        experiment = Experiment(config, environment, network, TopologyConfig(dispatch=2))
        fused = Fused(dqn.make(config, experiment, env.spec), vectorize(env), experiment, jax.local_devices()[:1])
        program = fused._compiled.lower(jax.eval_shape(fused.init), jax.random.key(0), np.int32(1)).compile()
        assert program.memory_analysis().alias_size_in_bytes > 4 * 50 * capacity
        return program.memory_analysis().temp_size_in_bytes

    assert temporary_bytes(capacity=2**14) < temporary_bytes(capacity=2**10) + 1024
