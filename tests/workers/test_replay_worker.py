"""Replay workers: what they give was sent, neither side runs away from the other, and priorities find their rows."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podium.algorithms import dqn
from podium.algorithms.algorithm import Algorithm
from podium.core.algorithm_configs import DQNConfig
from podium.core.config import EnvConfig, Experiment, NetworkConfig
from podium.envs import registry
from podium.protocol.memory import MemoryTransport
from podium.protocol.schema import SenderId, Version
from podium.protocol.streams import FragmentHeader, InferenceClient, Reply
from podium.runs.accounting import LearnerAccount
from podium.workers.layout import Record, make_layouts
from podium.workers.replay import ReplayWorker, Share
from podium.workers.replay_layout import TURNS, Given, Judged, make_replay_layouts
from podium.workers.replay_learner import ReplayLearner, count, start_store
from podium.workers.replay_requests import Asked, ReplayRequests

LENGTH, ROWS, LIMIT_S, LIFE = 4, 2, 60.0, 7
CONFIG = DQNConfig(
    fragment_length=LENGTH, batch_size=8, buffer_size=3 * LENGTH * ROWS, learning_starts=0, priority_exponent=1.0
)
EXPERIMENT = Experiment(CONFIG, EnvConfig("CartPole-v1", num_envs=ROWS), NetworkConfig(hidden=(4,)))
SPEC = replace(registry.resolve(EXPERIMENT.env, None).spec, metrics=("distance",))
ALGORITHM = dqn.make(CONFIG, EXPERIMENT, SPEC)
LAYOUTS = make_layouts(ALGORITHM, SPEC, EXPERIMENT, ROWS)
EXPERIENCE = ALGORITHM.experience
SHAPES = make_replay_layouts(EXPERIENCE, LAYOUTS)
STEPS = LENGTH * ROWS
ROUND = 2
ALONE = Share(steps=STEPS, starts=STEPS, ahead=1, updates=ROUND, rows=8)
HALVES = replace(ALONE, steps=STEPS / 2, ahead=2, updates=1)


class Shard:
    """A replay worker in a thread, with an actor's sender and a learner's client in our hands."""

    def __init__(self, share: Share, index: int, stack: ExitStack) -> None:
        transport = self._transport = stack.enter_context(MemoryTransport())  # which has one receiver of samples
        self.receiver = stack.enter_context(closing(transport.sample_receiver(LAYOUTS.record.schema)))
        self._schemas, self._stack = (SHAPES.request.schema, SHAPES.answer.schema), stack
        self.server = stack.enter_context(closing(transport.inference_server(*self._schemas)))
        self.account, self.share = LearnerAccount(None), share
        key = jax.random.key(index)
        self.beaten = threading.Event()
        streams = self.receiver, self.server
        self.worker = ReplayWorker(
            EXPERIENCE, LAYOUTS, SHAPES, *streams, self.account, share, key, LIFE, beat=lambda _: self.beaten.set()
        )
        sender = transport.sample_sender(self.receiver.endpoint, LAYOUTS.record.schema, SenderId(index, 0), credits=1)
        self.sender = stack.enter_context(closing(sender))
        self.client = self.join(incarnation=0)
        self.sent = self.steps = 0

    def join(self, incarnation: int) -> InferenceClient:
        """As this incarnation of the learner."""
        rows = [self.share.updates * self.share.rows] * TURNS
        ends = self.server.endpoint, *self._schemas
        return self._stack.enter_context(
            closing(self._transport.inference_client(*ends, SenderId(0, incarnation), rows, LIMIT_S))
        )

    def send(
        self,
        reward: float,
        timeout: float = LIMIT_S,
        episode: tuple[float, int] | None = None,
        resets: int = 0,
        version: int = 0,
    ) -> bool:
        """A fragment without ends, some of its rows resets; False if there was no credit for it in time."""
        buffer = self.sender.acquire(timeout)
        if buffer is None:
            return False
        for array in buffer.arrays:
            array[...] = 0
        record: Record = LAYOUTS.record.tree(buffer.arrays)
        record.fragment.valid[...] = np.arange(STEPS).reshape(LENGTH, ROWS) >= resets
        record.fragment.reward[...] = reward
        record.fragment.version[...] = np.where(record.fragment.valid, version, -100)
        if episode is not None:
            record.episodes.returns[0, 0], record.episodes.lengths[0, 0] = episode
            record.episodes.metrics[...], record.episodes.metrics[0, 0] = -1, 10 * episode[1]
        self.steps += STEPS - resets
        header = FragmentHeader(0, self.sent, Version(0, 0), STEPS - resets, self.steps)
        self.sent += 1
        self.sender.commit(buffer, header)
        return True

    def ask(self, judged: Judged | None = None, turn: int = 0) -> None:
        none = np.zeros(self.share.updates * self.share.rows, np.int32)
        self.client.submit(turn, list(judged or Judged(none - 1, none, none, none.astype(np.float32))))

    def reply(self, timeout: float = LIMIT_S) -> Reply | None:
        return next(iter(self.client.poll(timeout)), None)

    def draw(self, judged: Judged | None = None, turn: int = 0) -> Given:
        self.ask(judged, turn)
        reply = self.reply()
        assert reply is not None
        assert reply.slot == turn
        return jax.tree.map(np.array, SHAPES.answer.tree(reply.arrays))


def judge(index: np.ndarray | int, priority: np.ndarray | float, added: int, incarnation: int = LIFE) -> Judged:
    """Of the 16 rows of a round."""
    filled = (
        np.broadcast_to(np.array(incarnation), 16),
        np.broadcast_to(index, 16),
        np.broadcast_to(np.array(added), 16),
    )
    return Judged(*(part.astype(np.int32) for part in filled), np.broadcast_to(priority, 16).astype(np.float32))


def make_learner(algorithm: Algorithm, made: list[Shard], transport: MemoryTransport, update: int = 0) -> ReplayLearner:
    publisher = transport.parameter_publisher("main", LAYOUTS.params.schema)
    state, share = algorithm.init(jax.random.key(0), SPEC, EXPERIMENT.hyper()), made[0].share
    requests = ReplayRequests(SHAPES, [shard.client for shard in made], Asked(share.updates, share.rows))
    rest = jax.random.key(1), Version(0, update), requests, publisher, ROUND
    return ReplayLearner(algorithm, LAYOUTS, state, start_store(len(made)), *rest)


@contextmanager
def shards(*shares: Share) -> Iterator[list[Shard]]:
    stop, threads = threading.Event(), []
    with ExitStack() as stack:
        made = [Shard(share, index, stack) for index, share in enumerate(shares)]
        for shard in made:
            shard.worker.warm_up()
            threads.append(threading.Thread(target=shard.worker.run, args=(stop,), daemon=True))
            threads[-1].start()
        try:
            yield made
        finally:
            stop.set()
            for thread in threads:
                thread.join(LIMIT_S)


def test_rows_come_from_the_fragments_that_were_sent() -> None:
    with shards(ALONE) as [shard]:
        shard.send(7.0, episode=(21.0, 3))
        given = shard.draw()
    assert given.rows.rewards.shape == (16, 1)
    np.testing.assert_array_equal(given.rows.rewards, 7.0)
    np.testing.assert_allclose(given.share, 1 / STEPS, rtol=1e-5)
    assert [(r, n, m) for r, n, m in zip(*given.episodes, strict=True) if n] == [(21.0, 3, [30.0])]


def test_steps_are_booked_when_they_are_taken_in_and_told_with_the_next_rows() -> None:
    with shards(ALONE) as [shard]:
        shard.send(1.0)
        shard.ask()
        reply = shard.reply()
        assert reply is not None
        assert reply.version == Version(LIFE, LENGTH * ROWS)
        assert shard.account.record.trained == LENGTH * ROWS


def test_rows_are_held_back_until_there_are_fragments_enough() -> None:
    with shards(replace(ALONE, starts=2 * STEPS)) as [shard]:
        shard.send(1.0)
        shard.ask()
        assert shard.reply(0.3) is None
        shard.send(1.0)
        assert shard.reply() is not None
        shard.ask()
        assert shard.reply(0.3) is None, "the second round has a fragment to wait for"


def test_reset_rows_are_no_steps_that_rows_are_drawn_for() -> None:
    with shards(ALONE) as [shard]:
        shard.send(1.0, resets=STEPS // 2)
        shard.ask()
        assert shard.reply(0.3) is None, "half of its rows are no steps"
        shard.send(1.0, resets=STEPS // 2)
        assert shard.reply() is not None


def test_it_shows_that_it_is_alive_while_a_request_waits_for_fragments() -> None:
    with shards(ALONE) as [shard]:
        shard.ask()
        for _ in range(2):
            shard.beaten.clear()
            assert shard.beaten.wait(LIMIT_S)
        assert shard.reply(0.0) is None


def test_fragments_are_held_back_until_rows_were_drawn_for_those_before() -> None:
    with shards(ALONE) as [shard]:
        assert shard.send(1.0)  # starts
        assert shard.send(1.0)  # one round ahead
        assert shard.send(1.0)  # waits at the door: the credit for the next comes only when it is taken in
        assert not shard.send(1.0, timeout=0.4)
        shard.draw()
        assert shard.send(1.0)


def test_rounds_that_died_with_a_learner_are_drawn_again_for_the_next() -> None:
    with shards(replace(ALONE, ahead=2)) as [shard]:
        for _ in range(TURNS):
            shard.send(1.0)
        for turn in range(TURNS):
            shard.draw(turn=turn)
        shard.client = shard.join(incarnation=1)
        for turn in range(TURNS):  # without a new fragment: nobody was trained for those that are there
            shard.draw(turn=turn)
        shard.ask(judge(0, 1.0, added=2))
        assert shard.reply(0.3) is None, "what this one judges was trained on, and the next needs a fragment"
        shard.send(1.0)
        assert shard.reply() is not None
        assert shard.worker.metrics()["batches"] == 2 * TURNS + 1


def test_a_row_that_was_judged_is_drawn_as_often_as_its_priority_says() -> None:
    with shards(replace(ALONE, steps=0, starts=2 * STEPS)) as [shard]:  # two fragments, and as many rounds as we like
        shard.send(1.0)
        shard.send(2.0)
        given = shard.draw()
        assert set(given.added) == {2}
        index = np.arange(16, dtype=np.int32)  # every row of both fragments
        priority = np.where(index == 11, 15.0, 1.0).astype(np.float32)
        given = shard.draw(judge(index, priority, added=2))
    assert np.mean(given.index == 11) == pytest.approx(15 / 30, abs=2 / 16)
    np.testing.assert_array_equal(given.rows.rewards[given.index == 11], 2.0)


def test_what_is_said_of_rows_that_were_overwritten_is_not_heard() -> None:
    with shards(replace(ALONE, ahead=8)) as [shard]:
        for reward in (1.0, 2.0, 3.0):
            shard.send(reward)
        given = shard.draw()
        before = int(given.added[0])
        for _ in range(3):
            shard.send(4.0)
            shard.draw()  # until all three have been overwritten
        given = shard.draw(judge(0, 1e6, before))
    assert np.mean(given.index == 0) < 0.5, "row 0 is of another fragment by now"


def test_what_is_said_of_the_other_rows_is_heard_after_one_fragment_was_overwritten() -> None:
    with shards(replace(ALONE, steps=STEPS // 2, starts=3 * STEPS, ahead=8)) as [shard]:
        for reward in (1.0, 2.0, 3.0):
            shard.send(reward)
        given = shard.draw()
        assert set(given.added) == {3}
        shard.send(4.0)
        given = shard.draw()
        assert set(given.added) == {4}, "the first of three has been overwritten"
        index = np.where(np.arange(16) % 2, 3, 11)  # of the first, and of the second
        given = shard.draw(judge(index, 1e6, added=3))
    assert np.mean(given.index == 11) > 0.9
    np.testing.assert_array_equal(given.rows.rewards[given.index == 11], 2.0)


def test_what_is_said_of_rows_that_a_life_before_had_drawn_is_not_heard() -> None:
    with shards(replace(ALONE, steps=0, starts=2 * STEPS)) as [shard]:
        shard.send(1.0)
        shard.send(2.0)
        given = shard.draw(judge(0, 1e6, added=2, incarnation=LIFE - 1))
        assert np.mean(given.index == 0) < 0.5, "it had two fragments as well, but others"
        given = shard.draw(judge(0, 1e6, added=2))
        assert np.mean(given.index == 0) > 0.9, "of its own rows, it hears the same"


def test_a_learner_learns_from_rows_of_all_shards_and_counts_their_steps_and_episodes() -> None:
    with shards(*[replace(ALONE, rows=4)] * 2) as both, MemoryTransport() as transport:
        learner = make_learner(ALGORITHM, both, transport)
        state = learner.state
        learner.warm_up()
        learner.publish()
        with learner:
            assert learner.step(0.2) is None, "there is nothing yet"
            for shard in both:
                shard.send(1.0, episode=(5.0, 5))
            learned = learner.step(LIMIT_S)
            for shard in both:
                shard.send(1.0)
            again = learner.step(LIMIT_S)
    assert learned is not None
    assert again is not None
    assert learned.steps + again.steps == sum(shard.account.record.trained for shard in both)
    assert learned.episodes + again.episodes == [(5.0, 5)] * 2
    assert learned.metrics["gradient_updates"] == 2
    assert learner.version == Version(0, 2)
    changed = jax.tree.map(lambda a, b: bool(np.any(np.asarray(a) != np.asarray(b))), state, learner.state)
    assert any(jax.tree.leaves(changed))


def test_weights_are_relative_to_the_greatest_of_all_shards() -> None:
    """A flat shard, whose rows have 1/16 each, beside one where a row has a half and the others 1/30 each."""
    algorithm = ALGORITHM._replace(
        init=lambda *args: (ALGORITHM.init(*args), jnp.zeros(16)),
        params=lambda state: ALGORITHM.params(state[0]),
        update=lambda state, drawn, key: ((state[0], drawn.weight), {}, ()),
    )
    index = np.arange(16)
    with shards(*[replace(ALONE, steps=0, starts=2 * STEPS)] * 2) as both, MemoryTransport() as transport:
        for shard, peak in zip(both, (1.0, 15.0), strict=True):
            shard.send(1.0)
            shard.send(2.0)
            shard.draw()  # by when it has taken both in
            shard.draw(judge(index, np.where(index == 11, peak, 1.0), added=2))
        learner = make_learner(algorithm, both, transport)
        with learner:
            assert learner.step(LIMIT_S) is not None
    flat, peaked = np.asarray(learner.state[1]).reshape(2, 8)
    beta = CONFIG.priority_correction
    np.testing.assert_allclose(flat, (16 / 30) ** beta, rtol=1e-4)
    np.testing.assert_allclose(np.sort(peaked), [(1 / 15) ** beta] * 4 + [1.0] * 4, rtol=1e-4)


def test_a_learner_reports_how_old_the_steps_are_that_its_shards_took_in() -> None:
    with shards(*[replace(ALONE, rows=4, starts=2 * STEPS - 2)] * 2) as both, MemoryTransport() as transport:
        learner = make_learner(ALGORITHM, both, transport, update=5)
        learner.publish()
        for shard in both:
            shard.send(1.0, version=5)
        both[0].send(1.0, version=1, resets=2)
        both[1].send(1.0, version=4)
        with learner:
            learned = learner.step(LIMIT_S)
            for shard in both:
                shard.send(1.0, version=9)
            again = learner.step(LIMIT_S)
    assert learned is not None
    assert again is not None
    assert learned.staleness_mean == pytest.approx((6 * 4 + 8 * 1) / 30)
    assert learned.staleness_max == 4
    assert (again.staleness_mean, again.staleness_max) == (0.0, 0), "no policy is newer than the newest"


def test_steps_of_a_shard_are_counted_once_whatever_life_of_it_answers_first() -> None:
    store, grown = start_store(2), []
    for incarnation, steps in [(3, 100), (3, 160), (4, 20), (3, 180), (4, 50), (4, 40), (4, 60)]:
        store, more = count(store, [Version(incarnation, steps), Version(0, 0)])
        grown.append(more)
    assert grown == [100, 60, 20, 0, 30, 0, 10]


def draws(state: tuple, drawn: object, key: jax.Array) -> tuple:
    """An update of DQN that adds a random number to its state, and tells of it."""
    after, metrics, priorities = ALGORITHM.update(state[0], drawn, key)
    drawn_now = jax.random.uniform(key)
    return (after, state[1] + drawn_now, state[2]), metrics | {"drawn": drawn_now}, priorities


DRAWS = ALGORITHM._replace(
    init=lambda key, *rest: (ALGORITHM.init(key, *rest), jnp.zeros(()), jax.random.key(5)),
    params=lambda state: ALGORITHM.params(state[0]),
    update=draws,
)
"""Its state holds a typed key, too, as an algorithm of one's own may."""


def test_a_round_made_in_parts_gives_the_parameters_priorities_and_draws_of_one_made_at_once() -> None:
    with shards(ALONE) as [shard], MemoryTransport() as transport:
        shard.send(7.0)
        requests = ReplayRequests(SHAPES, [shard.client], Asked(ROUND, ALONE.rows))
        given = shard.draw()
        batches, ends = requests._join([given]), []
        for part in (ROUND, 1):
            learner = make_learner(DRAWS, [shard], transport)
            cuts = [slice(at, at + part) for at in range(0, ROUND, part)]
            parts = [jax.tree.map(lambda x, cut=cut: x[cut], batches) for cut in cuts]
            priorities = np.concatenate([learner._train(piece) for piece in parts])
            learner._round.acted.append(given.acted)
            ends.append((jax.device_get(learner._trained[:2]), priorities, learner._end_round().metrics))
    assert ROUND > 1
    (state, _, metrics), (_, _, other) = ends
    jax.tree.map(np.testing.assert_array_equal, ends[0][:2], ends[1][:2])
    assert metrics.keys() == other.keys()
    for name, value in metrics.items():
        np.testing.assert_allclose(other[name], value, rtol=1e-6, err_msg=name)
    assert metrics["drawn"] == pytest.approx(state[1] / ROUND), "the mean over the round"


def test_a_round_that_is_asked_for_in_parts_is_reported_published_and_saved_at_its_end() -> None:
    with shards(HALVES) as [shard], MemoryTransport() as transport:
        learner = make_learner(ALGORITHM, [shard], transport, update=5)
        learner.publish()
        reader = transport.parameter_reader(learner._publisher.endpoint, LAYOUTS.params.schema)
        shard.send(1.0, version=1, episode=(5.0, 5))
        with learner:
            before, store = learner.state, learner.store
            assert learner.step(LIMIT_S) is None, "the second half is yet to come"
            assert learner.state is before, "a checkpoint that is written now is that of the round before"
            assert learner.store is store
            read = reader.read(LIMIT_S)
            assert read is not None
            assert read[0] == Version(0, 5)
            assert learner.step(0.3) is None, "for which half a fragment more is needed"
            shard.send(1.0, version=5, episode=(7.0, 7))
            learned = learner.step(LIMIT_S)
            read = reader.read(LIMIT_S)
    assert learned is not None
    assert learned.metrics["gradient_updates"] == ROUND
    assert learned.steps == STEPS, "as the first half told: what came since is for the next round"
    assert learned.episodes == [(5.0, 5), (7.0, 7)]
    assert learned.outcomes is not None
    assert learned.outcomes.tolist() == [[50.0], [70.0]]
    assert (learned.staleness_mean, learned.staleness_max) == (2.0, 4)
    assert any(np.any(a != b) for a, b in zip(*map(jax.tree.leaves, (before, learner.state)), strict=True))
    assert read is not None
    assert read[0] == learner.version == Version(0, 6)


def test_rows_of_the_next_request_go_to_the_device_while_it_computes_on_those_of_this_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with shards(replace(ALONE, steps=0)) as [shard], MemoryTransport() as transport:
        learner = make_learner(ALGORITHM, [shard], transport)
        shard.send(7.0)
        with learner:
            # A device that never has finished: only the next rows end the wait for it.
            monkeypatch.setattr("podium.workers.replay_learner._is_ready", lambda tree: False)
            assert learner.step(LIMIT_S) is not None
            ahead = learner._requests._turns[1].batches
            taken = learner._requests.take(0.0)
    assert taken is not None
    assert taken.batches is ahead
    rows, _ = taken.batches
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(rows))
    np.testing.assert_array_equal(rows.rewards, 7.0)


def test_rows_that_have_not_come_are_not_prefetched_and_are_taken_when_they_have() -> None:
    with shards(ALONE) as [shard]:
        shard.send(7.0)
        requests = ReplayRequests(SHAPES, [shard.client], Asked(ALONE.updates, ALONE.rows))
        requests.start()
        taken = requests.take(LIMIT_S)
        assert taken is not None
        assert not requests.prefetch(0.05), "there is no second fragment"
        requests.judge(taken, ())
        shard.send(7.0)
        assert requests.take(LIMIT_S) is not None
