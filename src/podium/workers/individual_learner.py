"""The learner of a population: takes records of individuals, updates, publishes.

With staleness 0, a population is one batch of records of every slot, in order, all by the newest version. Else it is
whoever comes first: individuals that are older than the staleness allows are left out and counted, and nobody waits
for an actor that is slow or dead. Records are copied when they arrive, and the buffer goes back at once.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from podium.algorithms.algorithm import Algorithm, Individuals, Played, Seen
from podium.core.types import Tree
from podium.ops.compiling import jit_learning
from podium.protocol.schema import Version
from podium.protocol.streams import ParameterPublisher, Received, SampleReceiver
from podium.runs.accounting import Booking, LearnerAccount
from podium.workers.individual_records import IndividualRecords
from podium.workers.layout import Layouts
from podium.workers.learner import Learned
from podium.workers.schedule import Schedule

AXIS = "individuals"
EVERY = slice(None)


class Gathering:
    """The population of the next update, as its individuals come in.

    gathering = Gathering(individuals, layouts, make_schedule(1), devices=1)
    gathering.take(records, place, booking)
    if gathering.full: update(gathering.played(table))
    """

    def __init__(self, individuals: Individuals, layouts: Layouts, schedule: Schedule, devices: int) -> None:
        example: IndividualRecords = layouts.record.tree(layouts.record.schema.allocate())
        self._batch, self._population = len(example.index), individuals.population
        self._seen_like = example.seen
        self._schedule, self._devices = schedule, devices
        # A batch is taken whole, so that the last one may bring some more than are needed.
        most = individuals.population + (0 if schedule.in_turns else self._batch - 1)
        most = -(-most // devices) * devices
        self.index, self.lengths, self.version = (np.zeros(most, np.int32) for _ in range(3))
        self.sign, self.returns, self.valid = (
            np.zeros(most, np.float32),
            np.zeros(most, np.float32),
            np.zeros(most, bool),
        )
        self._seen: dict[int, Seen] = {}
        self.clear()

    def clear(self) -> None:
        """Begin with the next population."""
        self.valid[...] = False
        self.index[...] = 0
        self.filled = 0
        self.bookings: dict[int, Booking] = {}
        self._seen.clear()

    @property
    def full(self) -> bool:
        """Whether all are there."""
        return self.filled >= self._population

    def take(self, records: IndividualRecords, place: int, booking: Booking, kept: Any = EVERY) -> None:
        """Copy these individuals of a batch: all, unless there are indices of some."""
        start = self._schedule.place(place * self._batch, self.filled)
        end = start + (self._batch if kept is EVERY else len(kept))
        self.index[start:end], self.sign[start:end] = records.index[kept], records.sign[kept]
        self.returns[start:end], self.lengths[start:end] = records.returns[kept], records.lengths[kept]
        self.version[start:end], self.valid[start:end] = records.version[kept], True
        self.filled += end - start
        self.bookings[place] = booking
        if records.seen is not None:
            self._seen[place] = jax.tree.map(np.array, records.seen)

    def played(self, table: Any) -> Played:
        """What the update eats."""
        return Played(self.index, self.sign, self.returns, self.lengths, self.valid, self._merge(), table)

    def _merge(self) -> Seen | None:
        """All that was seen as two rows, of the first device; in order of the places, so that sums do not depend on who
        came first."""
        if self._seen_like is None:
            return None
        parts = [self._seen[place] for place in sorted(self._seen)] or [self._seen_like]
        weight = np.concatenate([part.weight for part in parts]).astype(np.float64)
        total = max(float(weight.sum()), 1e-9)

        def rows(*leaves: np.ndarray) -> np.ndarray:
            stacked = np.concatenate(leaves).astype(np.float64)
            share = (weight / total).reshape(-1, *(1,) * (stacked.ndim - 1))
            mean = (share * stacked).sum(axis=0)
            deviation = np.sqrt((share * (stacked - mean) ** 2).sum(axis=0))
            both = np.stack([mean + deviation, mean - deviation] * self._devices)
            return both.astype(leaves[0].dtype)

        halves = np.zeros(2 * self._devices, np.float32)
        halves[:2] = weight.sum() / 2
        return Seen(halves, jax.tree.map(rows, *(part.obs for part in parts)))


class IndividualLearner:
    """Learns from whoever sends records of individuals; it is driven as `Learner` is.

    worker = IndividualLearner(algorithm, layouts, state, key, version, receiver, publisher, account, make_schedule(1),
                               devices=jax.local_devices()[:1])
    with worker:
        learned = worker.step(timeout=1.0)       # None: the population is not complete yet
    """

    def __init__(
        self,
        algorithm: Algorithm,
        layouts: Layouts,
        state: Tree,
        key: jax.Array,
        version: Version,
        receiver: SampleReceiver,
        publisher: ParameterPublisher,
        account: LearnerAccount,
        schedule: Schedule,
        devices: Sequence[Any],
    ) -> None:
        assert isinstance(algorithm.experience, Individuals)
        self.store, self.version = (), version
        self.waited_s = 0.0
        self._algorithm, self._layouts, self._individuals = algorithm, layouts, algorithm.experience
        self._receiver, self._publisher, self._account = receiver, publisher, account
        self._schedule = schedule
        self._updates = self._late = 0
        self._gathering = Gathering(self._individuals, layouts, schedule, len(devices))
        mesh = Mesh(np.array(devices), (AXIS,))
        # The state too: an update returns it so placed, and for another placement it would be compiled once more.
        placed = state, self._individuals.table.numbers
        self.state, self._table = jax.device_put(placed, NamedSharding(mesh, PartitionSpec()))
        self._learn = partial(_jit_update(algorithm, mesh), key)

    def __enter__(self) -> "IndividualLearner":
        return self

    def __exit__(self, *_: object) -> None:
        pass  # there is no thread to end: records are so small that the streams' own buffers do for prefetching

    def warm_up(self) -> None:
        """Compile the update; nothing is learned."""
        jax.block_until_ready(self._learn(self.state, self._gathering.played(self._table), self.version.update))

    def wait(self, timeout: float) -> bool:
        """Whether there are records to learn from, or were within `timeout` seconds."""
        if not self._gathering.bookings and (received := self._receiver.receive(timeout)) is not None:
            self._take(received)
        return bool(self._gathering.bookings)

    def metrics(self) -> dict[str, float]:
        """Counts since the start, and how full the queues of actors are."""
        waiting = self._receiver.senders()
        return {
            "updates": self._updates,
            "data_wait_s": self.waited_s,
            "late_individuals": self._late,
            "senders": len(waiting),
            "queue": sum(waiting.values()),
            "refused": self._receiver.counters.refused,
            "malformed": self._receiver.counters.malformed,
        }

    def step(self, timeout: float) -> Learned | None:
        """Wait for a population, learn from it, book it, and publish. None: not complete; what has come is kept."""
        began = time.monotonic()
        while not self._gathering.full:
            left = began + timeout - time.monotonic()
            received = self._receiver.receive(left) if left > 0 else None
            if received is None:
                self.waited_s += time.monotonic() - began
                return None
            self._take(received)
        self.waited_s += time.monotonic() - began
        gathering = self._gathering
        played = gathering.played(self._table)
        self.state, metrics = jax.block_until_ready(self._learn(self.state, played, self.version.update))
        self.version = Version(self.version.incarnation, self.version.update + 1)
        self._account.trained(gathering.bookings.values())
        self.publish()
        self._updates += 1
        kept = gathering.valid
        returns, lengths = gathering.returns[kept], gathering.lengths[kept]
        ages = self.version.update - 1 - gathering.version[kept]
        episodes = list(zip(returns.tolist(), lengths.tolist(), strict=True))
        gathering.clear()
        return Learned(metrics, int(lengths.sum()), episodes, float(ages.mean()), int(ages.max()))

    def publish(self) -> None:
        """Let everybody have the parameters; after an update `step` does, before the first one the caller."""
        self._publisher.publish(self.version, self._layouts.params.arrays(self._algorithm.params(self.state)))

    def _take(self, received: Received) -> None:
        """Put individuals among the population, or book them as stale. Thousands of actors send here: it must be
        quick."""
        records = self._read(received.arrays)
        sender, header = received.sender, received.header
        steps = int(records.lengths.sum())
        booking = Booking(f"{sender.worker}.{sender.incarnation}", header.sequence, steps, header.produced)
        if self._account.arrive(booking):
            place = self._schedule.place(header.slot, len(self._gathering.bookings))
            # Of a learner that died; or of a slot that was taken over by an actor which was started again.
            if self._schedule.outlived(header.version, self.version) or place in self._gathering.bookings:
                self._late += len(records.index)
                self._account.stale([booking])
            elif self._schedule.accepts(header.version, self.version):  # the oldest of them
                self._gathering.take(records, place, booking)
            else:
                self._sort_out(records, place, booking)
        received.release()

    def _sort_out(self, records: IndividualRecords, place: int, booking: Booking) -> None:
        """Of a batch with some that are late, take the others."""
        late = self._schedule.too_old(records.version, self.version.update)
        self._late += int(np.count_nonzero(late))
        if late.all():
            self._account.stale([booking])
            return
        stale = int(records.lengths[late].sum())
        self._gathering.take(records, place, booking._replace(stale=stale), np.flatnonzero(~late))

    def _read(self, arrays: list[np.ndarray]) -> IndividualRecords:
        if len(arrays) == len(IndividualRecords._fields) - 1:  # nothing was observed: the columns are all there is
            return IndividualRecords(*arrays, seen=None)
        return self._layouts.record.tree(arrays)


def _jit_update(algorithm: Algorithm, mesh: Mesh) -> Callable[..., tuple[Tree, dict]]:
    """The update, its individuals divided among the devices of the mesh."""
    axis = AXIS if mesh.size > 1 else None

    def update(key: jax.Array, state: Tree, played: Played, update: jax.Array) -> tuple[Tree, dict]:
        state, metrics, _ = algorithm.update(state, played, jax.random.fold_in(key, update), axis)
        return state, metrics

    if axis is None:
        return jit_learning(update)
    same: Any = PartitionSpec()
    individuals: Any = PartitionSpec(AXIS)
    played = Played(individuals, individuals, individuals, individuals, individuals, individuals, same)
    return jit_learning(
        jax.shard_map(update, mesh=mesh, in_specs=(same, same, played, same), out_specs=(same, same), check_vma=False)
    )
