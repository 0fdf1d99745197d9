"""Replay workers: what they give was sent, neither side runs away from the other, and priorities find their rows."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace

import jax
import numpy as np
import pytest

from podium.algorithms import dqn
from podium.core.algorithm_configs import DQNConfig
from podium.core.config import EnvConfig, Experiment, NetworkConfig
from podium.envs import registry
from podium.protocol.memory import MemoryTransport
from podium.protocol.schema import SenderId, Version
from podium.protocol.streams import FragmentHeader, Reply
from podium.runs.books import Books
from podium.workers.layout import Record, make_layouts
from podium.workers.replay import ReplayWorker, Share
from podium.workers.replay_layout import Given, Judged, make_replay_layouts
from podium.workers.replay_learner import ReplayLearner, count, start_store

LENGTH, ROWS, LIMIT_S = 4, 2, 60.0
CONFIG = DQNConfig(
    fragment_length=LENGTH, batch_size=8, buffer_size=3 * LENGTH * ROWS, learning_starts=0, priority_exponent=1.0
)
EXPERIMENT = Experiment(CONFIG, EnvConfig("CartPole-v1", num_envs=ROWS), NetworkConfig(hidden=(4,)))
SPEC = registry.resolve(EXPERIMENT.env, None).spec
ALGORITHM = dqn.make(CONFIG, EXPERIMENT, SPEC)
LAYOUTS = make_layouts(ALGORITHM, SPEC, EXPERIMENT, ROWS)
EXPERIENCE = ALGORITHM.experience
SHAPES = make_replay_layouts(EXPERIENCE, LAYOUTS)
STEPS = LENGTH * ROWS
ALONE = Share(steps=STEPS, starts=STEPS, ahead=1, updates=2, rows=8)


class Shard:
    """A replay worker in a thread, with an actor's sender and a learner's client in our hands."""

    def __init__(self, share: Share, index: int, stack: ExitStack) -> None:
        transport = stack.enter_context(MemoryTransport())  # which has one receiver of samples
        self.receiver = stack.enter_context(closing(transport.sample_receiver(LAYOUTS.record.schema)))
        schemas = SHAPES.request.schema, SHAPES.answer.schema
        self.server = stack.enter_context(closing(transport.inference_server(*schemas)))
        self.books, self.share = Books(None), share
        key = jax.random.key(index)
        self.beaten = threading.Event()
        streams = self.receiver, self.server
        self.worker = ReplayWorker(
            EXPERIENCE, LAYOUTS, SHAPES, *streams, self.books, share, key, life=7, beat=lambda _: self.beaten.set()
        )
        sender = transport.sample_sender(self.receiver.endpoint, LAYOUTS.record.schema, SenderId(index, 0), credits=1)
        self.sender = stack.enter_context(closing(sender))
        rows = [share.updates * share.rows] * 2
        client = transport.inference_client(self.server.endpoint, *schemas, SenderId(0, 0), rows, LIMIT_S)
        self.client = stack.enter_context(closing(client))
        self.sent = self.steps = 0

    def send(
        self, reward: float, timeout: float = LIMIT_S, episode: tuple[float, int] | None = None, resets: int = 0
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
        if episode is not None:
            record.episodes.returns[0, 0], record.episodes.lengths[0, 0] = episode
        self.steps += STEPS - resets
        header = FragmentHeader("main", 0, self.sent, Version(0, 0), STEPS - resets, self.steps)
        self.sent += 1
        self.sender.commit(buffer, header)
        return True

    def ask(self, judged: Judged | None = None) -> None:
        rows = self.share.updates * self.share.rows
        nothing = Judged(np.full(rows, -1, np.int32), np.zeros(rows, np.int32), np.zeros(rows, np.float32))
        self.client.submit(0, list(judged or nothing))

    def reply(self, timeout: float = LIMIT_S) -> Reply | None:
        return next(iter(self.client.poll(timeout)), None)

    def draw(self, judged: Judged | None = None) -> Given:
        self.ask(judged)
        reply = self.reply()
        assert reply is not None
        return jax.tree.map(np.array, SHAPES.answer.tree(reply.arrays))


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
    assert given.drawn.rows.rewards.shape == (16, 1)
    np.testing.assert_array_equal(given.drawn.rows.rewards, 7.0)
    assert (given.drawn.weight > 0).all()
    assert [(r, n) for r, n in zip(*given.episodes, strict=True) if n] == [(21.0, 3)]


def test_steps_are_booked_when_they_are_taken_in_and_told_with_the_next_rows() -> None:
    with shards(ALONE) as [shard]:
        shard.send(1.0)
        shard.ask()
        reply = shard.reply()
        assert reply is not None
        assert reply.version == Version(7, LENGTH * ROWS)
        assert shard.books.account.trained == LENGTH * ROWS


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


def test_a_row_that_was_judged_is_drawn_as_often_as_its_priority_says() -> None:
    with shards(replace(ALONE, steps=0, starts=2 * STEPS)) as [shard]:  # two fragments, and as many rounds as we like
        shard.send(1.0)
        shard.send(2.0)
        given = shard.draw()
        assert set(given.added) == {2}
        index = np.arange(16, dtype=np.int32)  # every row of both fragments
        priority = np.where(index == 11, 15.0, 1.0).astype(np.float32)
        given = shard.draw(Judged(index, given.added, priority))
    assert np.mean(given.index == 11) == pytest.approx(15 / 30, abs=2 / 16)
    np.testing.assert_array_equal(given.drawn.rows.rewards[given.index == 11], 2.0)


def test_what_is_said_of_rows_that_were_overwritten_is_not_heard() -> None:
    with shards(replace(ALONE, ahead=8)) as [shard]:
        for reward in (1.0, 2.0, 3.0):
            shard.send(reward)
        given = shard.draw()
        before = int(given.added[0])
        for _ in range(3):
            shard.send(4.0)
            shard.draw()  # until all three have been overwritten
        everything = np.zeros(16, np.int32)
        judged = Judged(everything, np.full(16, before, np.int32), np.full(16, 1e6, np.float32))
        given = shard.draw(judged)
    assert np.mean(given.index == 0) < 0.5, "row 0 is of another fragment by now"


def test_what_is_said_of_rows_that_a_life_before_had_drawn_is_not_heard() -> None:
    with shards(replace(ALONE, steps=0, starts=2 * STEPS)) as [shard]:
        shard.send(1.0)
        shard.send(2.0)
        everything = np.zeros(16, np.int32)
        judged = Judged(everything, np.full(16, 3, np.int32), np.full(16, 1e6, np.float32))
        given = shard.draw(judged)
    assert np.mean(given.index == 0) < 0.5, "this one never had three fragments"


def test_a_learner_learns_from_rows_of_all_shards_and_counts_their_steps_and_episodes() -> None:
    with shards(*[replace(ALONE, rows=4)] * 2) as both, MemoryTransport() as transport:
        publisher = transport.parameter_publisher("main", LAYOUTS.params.schema)
        state = ALGORITHM.init(jax.random.key(0), SPEC, CONFIG.hyper())
        learner = ReplayLearner(
            ALGORITHM, LAYOUTS, SHAPES, state, start_store(2), jax.random.key(1), Version(0, 0),
            [shard.client for shard in both], publisher, updates=2, rows=4,
        )  # fmt: skip
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
    assert learned.steps + again.steps == sum(shard.books.account.trained for shard in both)
    assert learned.episodes + again.episodes == [(5.0, 5)] * 2
    assert learned.metrics["gradient_updates"] == 2
    assert learner.version == Version(0, 2)
    changed = jax.tree.map(lambda a, b: bool(np.any(np.asarray(a) != np.asarray(b))), state, learner.state)
    assert any(jax.tree.leaves(changed))


def test_steps_of_a_shard_are_counted_once_whatever_life_of_it_answers_first() -> None:
    store, grown = start_store(2), []
    for life, steps in [(3, 100), (3, 160), (4, 20), (3, 180), (4, 50), (4, 40), (4, 60)]:
        store, more = count(store, [Version(life, steps), Version(0, 0)])
        grown.append(more)
    assert grown == [100, 60, 20, 0, 30, 0, 10]
