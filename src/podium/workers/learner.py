"""The learner: takes batches of fragments, updates, publishes, and gives the credit back, in this order.

Credits are what bounds staleness: an actor has staleness + 1 buffers for each of its slots, and one is free again
only after its update has finished and the new parameters are published. There is no other queue that could grow.
"""

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from podium.algorithms import learning
from podium.algorithms.algorithm import Algorithm, Replay
from podium.core.types import Fragment, Tree
from podium.ops.compiling import jit_learning
from podium.protocol.schema import Version
from podium.protocol.streams import ParameterPublisher, SampleReceiver
from podium.runs.accounting import LearnerAccount
from podium.workers.batches import Assembler, Prefetch
from podium.workers.layout import Layouts
from podium.workers.schedule import Schedule

ROUND = 64
"""Updates from replay in one program at most: as it runs, the process hears no signal and gives no sign of life."""


class Learned(NamedTuple):
    """What one update did."""

    metrics: Mapping[str, Any]
    steps: int
    episodes: list[tuple[float, int]]
    staleness_mean: float
    staleness_max: int
    outcomes: np.ndarray | None = None  # metrics of the episodes, [n, k]; None where the environment's spec names none


class _FromFragments:
    """One update on each fragment."""

    def __init__(self, algorithm: Algorithm, key: jax.Array, beat: Callable[[], None]) -> None:
        self._key = key  # an argument: a constant in the program would have it compiled for each seed
        self._program = jit_learning(
            lambda state, store, fragment, key, update: learning.learn(
                algorithm, state, store, fragment, jax.random.fold_in(key, update)
            )
        )

    def compile(self, state: Tree, store: Tree, fragment: Fragment) -> None:
        self._program.lower(state, store, fragment, self._key, 0).compile()

    def __call__(self, state: Tree, store: Tree, fragment: Fragment, update: int) -> tuple[Tree, Tree, Mapping]:
        return jax.block_until_ready(self._program(state, store, fragment, self._key, update))


class _FromReplay:
    """As many updates as a fragment asks for, in programs of `ROUND` at most; between them `beat` is called.

    The store is changed in place: a replay buffer may be most of the memory there is.
    """

    def __init__(self, algorithm: Algorithm, key: jax.Array, beat: Callable[[], None]) -> None:
        def update(state: Tree, store: Tree, sums: Tree, key: jax.Array, update: int, begin: int, end: int) -> tuple:
            return learning.update_some(algorithm, state, store, sums, jax.random.fold_in(key, update), begin, end)

        self._beat, self._key = beat, key
        self._observe = None if algorithm.observe is None else jit_learning(algorithm.observe)
        self._take_in = jit_learning(partial(learning.take_in, algorithm), donate_argnums=0)
        self._no_sums = jax.jit(partial(learning.no_sums, algorithm))
        self._update = jit_learning(update, donate_argnums=1)

    def compile(self, state: Tree, store: Tree, fragment: Fragment) -> None:
        if self._observe is not None:
            self._observe.lower(state, fragment).compile()
        self._take_in.lower(store, fragment).compile()
        self._update.lower(state, store, self._no_sums(state, store), self._key, 0, 0, 0).compile()

    def __call__(self, state: Tree, store: Tree, fragment: Fragment, update: int) -> tuple[Tree, Tree, Mapping]:
        state = state if self._observe is None else self._observe(state, fragment)
        store, due = self._take_in(store, fragment)
        sums, due = self._no_sums(state, store), int(due)
        for begin in range(0, due, ROUND):
            done = self._update(state, store, sums, self._key, update, begin, min(begin + ROUND, due))
            state, store, sums = jax.block_until_ready(done)
            self._beat()
        means = {name: np.asarray(total) / max(due, 1) for name, total in sums.items()}
        return state, store, means | {learning.GRADIENT_UPDATES: due}


class Learner:
    """Learns from whoever sends fragments.

    worker = Learner(algorithm, layouts, state, store, key, version, receiver, publisher, account, schedule, slots)
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
        account: LearnerAccount,
        schedule: Schedule,
        slots: int,
        beat: Callable[[], None] = lambda: None,
    ) -> None:
        self.state = state
        self.store = store
        self.version = version
        self.waited_s = 0.0
        self._updates = 0
        self._ages = np.zeros(schedule.ahead + 1, np.int64)  # valid steps by the age of their version
        self._algorithm = algorithm
        self._layouts = layouts
        self._publisher = publisher
        self._account = account
        make = _FromReplay if isinstance(algorithm.experience, Replay) else _FromFragments
        self._learn = make(algorithm, key, beat)
        self._assembler = Assembler(receiver, account, layouts, slots, schedule, version)
        self._prefetch = Prefetch(self._assembler)

    def warm_up(self) -> None:
        """Compile the update; nothing is learned, and nothing copied: the store may be most of the memory there is."""
        self._learn.compile(self.state, self.store, self._assembler.example())

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
        self.state, self.store, metrics = self._learn(self.state, self.store, batch.fragment, self.version.update)
        self.version = Version(self.version.incarnation, self.version.update + 1)
        self._account.trained(batch.bookings)
        self.publish()
        for release in batch.releases:
            release()
        self._updates += 1
        self._ages += np.bincount(np.clip(batch.ages, 0, len(self._ages) - 1), minlength=len(self._ages))
        metrics = learning.reported(metrics)
        mean = float(batch.ages.mean()) if batch.steps else 0.0  # none, if every environment was being reset
        return Learned(metrics, batch.steps, batch.episodes, mean, int(batch.ages.max(initial=0)), batch.outcomes)

    def publish(self) -> None:
        """Let everybody have the parameters; after an update `step` does, before the first one the caller."""
        self._publisher.publish(self.version, self._layouts.params.arrays(self._algorithm.params(self.state)))
