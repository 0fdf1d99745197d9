"""The learner: takes batches of fragments, updates, publishes, and gives the credit back, in this order.

Credits are what bounds staleness: an actor has staleness + 1 buffers for each of its slots, and one is free again
only after its update has finished and the new parameters are published. There is no other queue that could grow.
"""

import time
from typing import NamedTuple

import jax
import numpy as np

from podium.algorithms import learning
from podium.algorithms.algorithm import Algorithm, Fragments
from podium.core.types import Tree
from podium.ops.compiling import jit_learning
from podium.protocol.schema import Version
from podium.protocol.streams import ParameterPublisher, SampleReceiver
from podium.runs.books import Books
from podium.workers.batches import Assembler, Prefetch
from podium.workers.layout import Layouts


class Learned(NamedTuple):
    """What one update did."""

    metrics: dict[str, jax.Array]
    steps: int
    episodes: list[tuple[float, int]]
    staleness_mean: float
    staleness_max: int


class Learner:
    """Learns from whoever sends fragments.

    worker = Learner(algorithm, layouts, state, store, key, version, receiver, publisher, books, slots, staleness)
    with worker:
        learned = worker.step(timeout=1.0)       # None: no batch yet
    """

    def __init__(
        self,
        algorithm: Algorithm,
        layouts: Layouts,
        state: Tree,
        store: Tree,
        key: jax.Array,
        version: Version,
        receiver: SampleReceiver,
        publisher: ParameterPublisher,
        books: Books,
        slots: int,
        staleness: int,
    ) -> None:
        self.state = state
        self.store = store
        self.version = version
        self.waited_s = 0.0
        self._updates = 0
        self._ages = np.zeros(staleness + 1, np.int64)  # valid steps by the age of their version
        self._algorithm = algorithm
        self._layouts = layouts
        self._publisher = publisher
        self._books = books
        # The store is changed in place: a replay buffer may be most of the memory there is.
        self._learn = jit_learning(
            lambda state, store, batch, update: learning.learn(
                algorithm, state, store, batch, jax.random.fold_in(key, update)
            ),
            donate_argnums=1,
        )
        welcome_old = not isinstance(algorithm.experience, Fragments)
        self._assembler = Assembler(receiver, books, layouts, slots, staleness, version, welcome_old)
        self._prefetch = Prefetch(self._assembler)

    def warm_up(self) -> None:
        """Compile the update; nothing is learned, and nothing copied: the store may be most of the memory there is."""
        self._learn.lower(self.state, self.store, self._assembler.example(), self.version.update).compile()

    def __enter__(self) -> "Learner":
        self._prefetch.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._prefetch.__exit__()

    def wait(self, timeout: float) -> bool:
        """Whether there is a batch to learn from, or was within `timeout` seconds."""
        return self._prefetch.wait(timeout)

    def metrics(self) -> dict[str, float]:
        """Counts since the start, how old what was trained on was, and how full the queues of actors are."""
        receiver = self._assembler.receiver
        waiting = receiver.senders()
        ages = self._ages / max(1, self._ages.sum())
        return {
            "updates": self._updates,
            "data_wait_s": self.waited_s,
            "senders": len(waiting),
            "queue": sum(waiting.values()),
            "refused": receiver.counters.refused,
            "malformed": receiver.counters.malformed,
            **{f"staleness_{age}": float(share) for age, share in enumerate(ages)},
        }

    def step(self, timeout: float) -> Learned | None:
        """Wait for a batch, learn from it, book it, publish, and give its buffers back."""
        began = time.monotonic()
        batch = self._prefetch.next(timeout)
        self.waited_s += time.monotonic() - began
        if batch is None:
            return None
        learned = self._learn(self.state, self.store, batch.fragment, self.version.update)
        self.state, self.store, metrics = jax.block_until_ready(learned)
        self.version = Version(self.version.incarnation, self.version.update + 1)
        self._books.trained(batch.bookings)
        self.publish()
        for release in batch.releases:
            release()
        self._updates += 1
        self._ages += np.bincount(np.clip(batch.ages, 0, len(self._ages) - 1), minlength=len(self._ages))
        metrics = learning.reported(metrics)
        mean = float(batch.ages.mean()) if batch.steps else 0.0  # none, if every environment was being reset
        return Learned(metrics, batch.steps, batch.episodes, mean, int(batch.ages.max(initial=0)))

    def publish(self) -> None:
        """Let everybody have the parameters; after an update `step` does, before the first one the caller."""
        self._publisher.publish(self.version, self._layouts.params.arrays(self._algorithm.params(self.state)))
