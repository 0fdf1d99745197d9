"""The replay buffer by hand: n-step at every kind of end, what is overwritten, and how often what is drawn."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podium.algorithms import replay
from podium.algorithms.algorithm import Drawn, Replay, Transitions
from podium.core.errors import ConfigError
from podium.core.types import Fragment

T, B = 6, 2


def experience(**changes) -> Replay:
    fields = {"length": T, "discount": 0.9, "batch_size": 4, "capacity": 3 * T * B, "starts": 0, "ratio": 1.0}
    return Replay(**(fields | changes))


def fragment(number: int = 0) -> Fragment:
    """Observations and rewards that tell where they are from: 100 number + 10 column + step.

    Column 0 terminates at step 1 (so step 2 is a reset row), column 1 is truncated at step 3.
    """
    place = 100 * number + 10 * np.arange(B) + np.arange(T + 1)[:, None]
    terminated, truncated = np.zeros((T, B), bool), np.zeros((T, B), bool)
    terminated[1, 0] = truncated[3, 1] = True
    ended = terminated | truncated
    valid, first = np.ones((T, B), bool), np.zeros((T + 1, B), bool)
    valid[1:], first[2:] = ~ended[:-1], ended[:-1]
    return Fragment(
        obs={"place": place.astype(np.int32)},
        first=first,
        mask=np.stack([place % 2 == 0, place % 2 == 1], axis=-1),
        action=place[:-1].astype(np.int32),
        extras={"log_prob": np.zeros((T, B), np.float32)},
        reward=np.where(valid, place[:-1], np.nan).astype(np.float32),
        discounted=np.zeros((T, B), np.float32),
        terminated=terminated,
        truncated=truncated,
        valid=valid,
        version=np.zeros((T, B), np.int32),
        memory=np.array([[number, 0], [number, 1]], np.float32),
    )


def filled(kind: Replay, fragments: int = 1) -> replay.ReplayBuffer:
    buffer = replay.init(kind, fragment())
    add = jax.jit(lambda buffer, fragment: replay.add(kind, buffer, fragment))
    for number in range(fragments):
        buffer = add(buffer, fragment(number))
    return buffer


def draw_many(kind: Replay, buffer: replay.ReplayBuffer, batch: int, seed: int = 0) -> tuple[Drawn, np.ndarray]:
    drawn, index = jax.jit(lambda b, k: replay.draw(kind, b, k, batch))(buffer, jax.random.key(seed))
    return jax.tree.map(np.asarray, drawn), np.asarray(index)


def by_place(drawn: Drawn) -> dict[int, tuple]:
    """What was drawn from each place that weighs something: (rewards, steps, terminated, next place)."""
    rows = drawn.rows
    assert isinstance(rows, Transitions)
    found = {}
    for i in np.flatnonzero(drawn.weight):
        what = rows.rewards[i].tolist(), int(rows.steps[i]), bool(rows.terminated[i]), int(rows.next_obs["place"][i])
        assert found.setdefault(int(rows.obs["place"][i]), what) == what
    return found


def test_n_steps_end_with_the_episode_and_with_the_fragment():
    kind = experience(n_step=3)
    drawn, _ = draw_many(kind, filled(kind), 500)
    assert by_place(drawn) == {
        0: ([0, 1, 0], 2, True, 2),  # terminates at 1
        1: ([1, 0, 0], 1, True, 2),
        3: ([3, 4, 5], 3, False, 6),  # the next episode, up to the fragment's last observation
        4: ([4, 5, 0], 2, False, 6),
        5: ([5, 0, 0], 1, False, 6),
        10: ([10, 11, 12], 3, False, 13),
        11: ([11, 12, 13], 3, False, 14),  # truncated at 13: its final observation is 14
        12: ([12, 13, 0], 2, False, 14),
        13: ([13, 0, 0], 1, False, 14),
        15: ([15, 0, 0], 1, False, 16),
    }


def test_actions_and_masks_are_those_of_their_observations():
    kind = experience(n_step=2)
    drawn, _ = draw_many(kind, filled(kind, 2), 200)
    rows = drawn.rows
    here, later = rows.obs["place"], rows.next_obs["place"]
    assert np.array_equal(rows.action, here)
    for mask, place in ((rows.mask, here), (rows.next_mask, later)):
        assert np.array_equal(mask, np.stack([place % 2 == 0, place % 2 == 1], axis=-1))


def test_reset_rows_weigh_nothing_and_all_others_are_drawn_alike():
    kind = experience()
    drawn, index = draw_many(kind, filled(kind), 24_000)
    assert set(drawn.rows.obs["place"][drawn.weight == 0].tolist()) == {2, 14}
    assert set(drawn.weight.tolist()) == {0.0, 1.0}
    counts = np.bincount(index, minlength=T * B)
    # 2,000 of each are expected, with a standard deviation of 43.
    assert np.all(np.abs(counts - 2000) < 6 * 43)


def test_the_oldest_fragment_goes_first():
    kind = experience(capacity=3 * T * B + 5)  # what does not fill a fragment is not used
    for fragments, kept in ((1, {0}), (3, {0, 1, 2}), (4, {1, 2, 3}), (8, {5, 6, 7})):
        drawn, _ = draw_many(kind, filled(kind, fragments), 300)
        assert set((drawn.rows.obs["place"] // 100).tolist()) == kept


def test_sequences_are_whole_columns_with_the_memory_from_before():
    kind = experience(sequences=True)
    drawn, _ = draw_many(kind, filled(kind, 2), 50)
    rows = drawn.rows
    assert isinstance(rows, Fragment)
    starts = rows.obs["place"][0]
    assert set(starts.tolist()) == {0, 10, 100, 110}
    assert np.array_equal(rows.obs["place"], starts + np.arange(T + 1)[:, None])
    assert np.array_equal(rows.memory, np.stack([starts // 100, starts // 10 % 10], axis=-1))
    assert np.array_equal(rows.valid[:, starts == 0][:, 0], fragment().valid[:, 0])
    assert np.all(drawn.weight == 1)


def test_frequencies_and_weights_are_those_of_the_priorities():
    kind = experience(priority_exponent=0.5, priority_correction=0.4)
    buffer = filled(kind)
    valid = np.flatnonzero(fragment().valid.ravel())
    errors = np.linspace(0, 9, len(valid))
    buffer = replay.reprioritize(kind, buffer, jnp.asarray(valid), jnp.asarray(-errors, jnp.float32))
    drawn, index = draw_many(kind, buffer, 20_000)
    priorities = np.zeros(T * B)
    priorities[valid] = (errors + replay.SMALL) ** 0.5
    shares = priorities / priorities.sum()
    # Each of 20,000 equal parts of the total is hit once: no place is off by more than two, of which each end has one.
    assert np.abs(np.bincount(index, minlength=T * B) - 20_000 * shares).max() <= 2
    by_hand = (len(valid) * shares[index]) ** -0.4
    np.testing.assert_allclose(drawn.weight, by_hand / by_hand.max(), rtol=1e-4)


def test_what_is_new_gets_the_greatest_priority_so_far_and_reset_rows_none():
    kind = experience(priority_exponent=1.0)
    buffer = filled(kind)
    buffer = replay.reprioritize(kind, buffer, jnp.array([0, 1]), jnp.array([7.0, 0.5]))
    buffer = replay.reprioritize(kind, buffer, jnp.array([0]), jnp.array([0.1]))
    buffer = replay.add(kind, buffer, fragment(1))
    weights = np.asarray(replay.sum_tree.weights(buffer.tree, jnp.arange(2 * T * B))).reshape(2, -1)
    np.testing.assert_allclose(weights[0, :4], [0.1, 0.5, 1, 1], rtol=1e-4)
    np.testing.assert_allclose(weights[1], np.where(fragment().valid.ravel(), 7, 0), rtol=1e-4)


def test_a_reset_row_cannot_be_given_a_priority():
    kind = experience(priority_exponent=1.0)
    reset = np.flatnonzero(~fragment().valid.ravel())
    before = filled(kind)
    after = replay.reprioritize(kind, before, jnp.asarray(reset), jnp.full(len(reset), jnp.nan))
    assert np.array_equal(after.tree[1:], before.tree[1:])
    assert float(after.top) == 1.0


def test_priorities_that_are_not_known_stay_as_they_are():
    kind = experience(priority_exponent=1.0)
    before = filled(kind)
    index, known = jnp.array([0, 1, -1]), jnp.array([True, False, False])
    after = replay.reprioritize(kind, before, index, jnp.array([3.0, 4.0, 5.0]), known)
    np.testing.assert_allclose(after.tree[before.tree != after.tree][-1], 3, rtol=1e-5)
    np.testing.assert_allclose(replay.sum_tree.weights(after.tree, jnp.array([0, 1])), [3, 1], rtol=1e-5)


def test_devices_share_the_capacity_and_the_greatest_weight():
    kind = experience(priority_exponent=1.0, priority_correction=1.0)
    assert replay.num_fragments(kind, rows=1, devices=2) == replay.num_fragments(kind, rows=2) == 3
    one = filled(kind)
    # On the second device all priorities are the same, so all of its rows have a tenth of its total.
    other = one
    one = replay.reprioritize(kind, one, jnp.array([0]), jnp.array([91.0]))
    both = jax.tree.map(lambda *xs: jnp.stack(xs), one, other)
    keys = jax.random.split(jax.random.key(0), 2)
    drawn, index = jax.vmap(lambda b, k: replay.draw(kind, b, k, 200, "devices"), axis_name="devices")(both, keys)
    share = np.where(np.arange(2)[:, None] == 1, 0.1, np.where(index == 0, 0.91, 0.01))
    np.testing.assert_allclose(drawn.weight, 0.01 / share, rtol=1e-3)


def test_a_buffer_too_small_for_a_fragment_is_refused_in_one_line():
    with pytest.raises(
        ConfigError, match=r"algorithm.buffer_size = 11: must hold at least one fragment of 6 steps x 2"
    ):
        replay.init(experience(capacity=11), fragment())
