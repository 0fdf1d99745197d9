"""Fragments of many senders become batches: in order at staleness 0, first come first served beyond it."""

from contextlib import closing
from typing import NamedTuple

import numpy as np
import pytest

from podium.algorithms import registry as algorithms
from podium.core.algorithm_configs import PPOConfig
from podium.core.config import EnvConfig, Experiment, NetworkConfig, TopologyConfig
from podium.envs import registry as envs
from podium.protocol.memory import MemoryTransport
from podium.protocol.schema import SenderId, Version
from podium.protocol.streams import FragmentHeader, SampleSender
from podium.runs.accounting import LearnerAccount
from podium.workers.batches import Assembler, Prefetch
from podium.workers.layout import Layouts, Record, make_layouts
from podium.workers.schedule import make_schedule

LENGTH, ROWS = 4, 2


class Bench(NamedTuple):
    """An assembler, of two slots if nothing else is said, and two senders."""

    layouts: Layouts
    account: LearnerAccount
    assembler: Assembler
    senders: list[SampleSender]
    counts: list[int]

    def send(self, sender: int, slot: int, version: Version, value: float, versions: list[int] | None = None) -> None:
        """A fragment whose rewards are `value`; `versions` of its steps, if they differ."""
        buffer = self.senders[sender].acquire(timeout=0)
        assert buffer is not None, "no credit"
        record: Record = self.layouts.record.tree(buffer.arrays)
        record.fragment.reward[...] = value
        record.fragment.valid[...] = True
        record.fragment.version[...] = np.array(versions or [version.update] * LENGTH)[:, None]
        record.episodes.lengths[...] = 0
        record.episodes.lengths[0, 0], record.episodes.returns[0, 0] = 7, value
        steps = LENGTH * ROWS
        sequence = self.counts[sender]
        self.counts[sender] += 1
        header = FragmentHeader(slot, sequence, version, steps, steps * (sequence + 1))
        self.senders[sender].commit(buffer, header)


@pytest.fixture
def bench(request: pytest.FixtureRequest):
    staleness, first, *more = request.param
    experiment = Experiment(
        algorithm=PPOConfig(fragment_length=LENGTH, minibatch_size=LENGTH * ROWS * 2, num_epochs=1),
        env=EnvConfig("podium:Memory-v0", num_envs=ROWS * 2),
        network=NetworkConfig(hidden=(4,), memory="gru", memory_size=4),
        topology=TopologyConfig(staleness=staleness),
    )
    spec = envs.resolve(experiment.env).spec
    layouts = make_layouts(algorithms.make(experiment, spec), spec, experiment, ROWS)
    account = LearnerAccount(None)
    with MemoryTransport() as transport, closing(transport.sample_receiver(layouts.record.schema)) as receiver:
        senders = [
            transport.sample_sender(receiver.endpoint, layouts.record.schema, SenderId(i, 0), credits=3)
            for i in range(2)
        ]
        slots = more[0] if more else 2
        assembler = Assembler(receiver, account, layouts, slots, make_schedule(staleness, *more[1:]), first)
        yield Bench(layouts, account, assembler, senders, [0, 0])
        for sender in senders:
            sender.close()


def rewards(batch) -> list[float]:
    return batch.fragment.reward[0].tolist()


@pytest.mark.parametrize("bench", [(1, Version(0, 3), 1)], indirect=True)
def test_steps_of_an_only_slot_that_are_too_old_are_left_out_too(bench: Bench) -> None:
    bench.send(0, slot=0, version=Version(0, 1), value=1.0, versions=[1] + [2] * (LENGTH - 1))
    batch = bench.assembler.next(timeout=1)
    assert batch is not None
    assert not batch.fragment.valid[0].any()
    assert batch.fragment.valid[1:].all()
    assert batch.steps == (LENGTH - 1) * ROWS
    bench.account.trained(batch.bookings)
    assert (bench.account.record.trained, bench.account.record.stale) == ((LENGTH - 1) * ROWS, ROWS)


@pytest.mark.parametrize("bench", [(0, Version(0, 0))], indirect=True)
def test_at_staleness_0_slots_stand_in_their_order_whoever_comes_first(bench: Bench) -> None:
    bench.send(1, slot=1, version=Version(0, 0), value=1.0)
    assert bench.assembler.next(timeout=0) is None
    bench.send(0, slot=0, version=Version(0, 0), value=0.5)
    batch = bench.assembler.next(timeout=1)
    assert batch is not None
    assert rewards(batch) == [0.5, 0.5, 1.0, 1.0]
    assert batch.fragment.memory.shape == (ROWS * 2, 4)
    assert sorted(batch.episodes) == [(0.5, 7), (1.0, 7)]
    assert batch.steps == LENGTH * ROWS * 2


@pytest.mark.parametrize("bench", [(0, Version(0, 3))], indirect=True)
def test_at_staleness_0_another_version_is_stale_and_a_slot_counts_once(bench: Bench) -> None:
    bench.send(0, slot=0, version=Version(0, 2), value=9.0)
    bench.send(0, slot=0, version=Version(0, 3), value=1.0)
    bench.send(0, slot=0, version=Version(0, 3), value=9.0)  # its actor was started again, say
    assert bench.assembler.next(timeout=0) is None
    bench.send(1, slot=1, version=Version(0, 3), value=2.0)
    batch = bench.assembler.next(timeout=1)
    assert batch is not None
    assert rewards(batch) == [1.0, 1.0, 2.0, 2.0]
    assert bench.account.record.stale == 2 * LENGTH * ROWS


@pytest.mark.parametrize("bench", [(1, Version(0, 5))], indirect=True)
def test_beyond_staleness_0_nobody_waits_for_a_slow_actor(bench: Bench) -> None:
    for value in (1.0, 2.0):
        bench.send(0, slot=0, version=Version(0, 5), value=value)
    batch = bench.assembler.next(timeout=1)
    assert batch is not None
    assert rewards(batch) == [1.0, 1.0, 2.0, 2.0]
    assert batch.ages.tolist() == [0] * (2 * LENGTH * ROWS)


@pytest.mark.parametrize("bench", [(1, Version(0, 5))], indirect=True)
def test_of_a_fragment_that_took_too_long_only_the_old_steps_are_left_out(bench: Bench) -> None:
    bench.send(0, slot=0, version=Version(0, 3), value=1.0, versions=[3, 4, 5, 5])
    bench.send(1, slot=1, version=Version(0, 5), value=2.0)
    batch = bench.assembler.next(timeout=1)
    assert batch is not None
    assert batch.fragment.valid[:, 0].tolist() == [False, True, True, True]
    assert batch.fragment.valid[:, 2].all()
    assert sorted(batch.ages.tolist()) == [0] * 12 + [1] * 2
    bench.account.trained(batch.bookings)
    assert (bench.account.record.trained, bench.account.record.stale) == (2 * LENGTH * ROWS - ROWS, ROWS)


@pytest.mark.parametrize("bench", [(2, Version(1, 5))], indirect=True)
def test_what_a_dead_learners_policy_collected_is_stale(bench: Bench) -> None:
    bench.send(0, slot=0, version=Version(0, 9), value=9.0)
    bench.send(0, slot=0, version=Version(1, 5), value=1.0)
    bench.send(1, slot=1, version=Version(1, 4), value=2.0)
    batch = bench.assembler.next(timeout=1)
    assert batch is not None
    assert sorted(rewards(batch)) == [1.0, 1.0, 2.0, 2.0]
    assert bench.account.record.stale == LENGTH * ROWS


@pytest.mark.parametrize("bench", [(2, Version(1, 5), 1, True)], indirect=True)
def test_what_a_dead_learners_policy_collected_is_replayed_and_not_younger_than_new(bench: Bench) -> None:
    bench.send(0, slot=0, version=Version(0, 9), value=1.0, versions=[2, 5, 9, 9])
    batch = bench.assembler.next(timeout=1)
    assert batch is not None
    assert batch.ages.tolist() == [3, 3, 0, 0, 0, 0, 0, 0]


@pytest.mark.parametrize("bench", [(1, Version(0, 0))], indirect=True)
def test_a_batch_stays_as_it_is_while_the_next_one_is_put_together(bench: Bench) -> None:
    with Prefetch(bench.assembler) as prefetch:
        for value in (1.0, 2.0):
            bench.send(0, slot=0, version=Version(0, 0), value=value)
        first = prefetch.next(timeout=10)
        assert first is not None
        for value in (3.0, 4.0):
            bench.send(1, slot=1, version=Version(0, 0), value=value)
        assert prefetch.wait(timeout=10)
        assert rewards(first) == [1.0, 1.0, 2.0, 2.0]
        for release in first.releases:
            release()
        second = prefetch.next(timeout=10)
        assert second is not None
        assert rewards(second) == [3.0, 3.0, 4.0, 4.0]


@pytest.mark.parametrize("bench", [(0, Version(0, 0))], indirect=True)
def test_credit_comes_back_with_the_release_and_not_before(bench: Bench) -> None:
    for sequence in range(3):
        bench.send(0, slot=0, version=Version(0, sequence), value=0.0)
    assert bench.senders[0].acquire(timeout=0) is None
    bench.send(1, slot=1, version=Version(0, 0), value=0.0)
    batch = bench.assembler.next(timeout=1)
    assert batch is not None
    assert bench.senders[0].acquire(timeout=0) is None
    for release in batch.releases:
        release()
    assert bench.senders[0].acquire(timeout=5) is not None
