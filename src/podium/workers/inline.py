"""A collector thread beside the learner thread, at most `staleness` versions apart.

The buffers are the credits: there are staleness + 1 of them, and one is free again only after its
update has finished and the new parameters are published. So with staleness 0 the two take turns, and
collecting fragment n always uses version n; with staleness k it may use version n - k.
"""

import queue
import threading
import time
from typing import NamedTuple

import jax
import numpy as np

from podium.algorithms.algorithm import Algorithm
from podium.core.errors import EnvError
from podium.core.types import Fragment, Tree
from podium.workers.actor import Actor

HANG_LIMIT_S = 300.0
"""Without a single environment step for so long, the environments are taken for hung."""
LEAVE_LIMIT_S = 5.0
"""How long the collector may take to end its step once the learner has failed or been told to go."""


class Collected(NamedTuple):
    """A full buffer, and return and length of the episodes that ended in it."""

    fragment: Fragment
    episodes: list[tuple[float, int]]


class Learned(NamedTuple):
    """What one update did."""

    state: Tree
    metrics: dict[str, jax.Array]
    steps: int
    episodes: list[tuple[float, int]]
    staleness_mean: float
    staleness_max: int


class Inline:
    """Learns from an actor that runs in its own thread.

    with Inline(algorithm, actor, state, key, update=0, staleness=1) as inline:
        learned = inline.step()
    """

    def __init__(
        self, algorithm: Algorithm, actor: Actor, state: Tree, key: jax.Array, update: int, staleness: int
    ) -> None:
        self.actor = actor
        self.state = state
        self.update = update
        self._learning = 0  # steps of the fragment that an update is being made from
        self._cut_short = 0  # steps of the fragment that the collector did not fill
        self._waiting = 0
        self._algorithm = algorithm
        self._learn = jax.jit(
            lambda state, batch, update: algorithm.update(state, batch, jax.random.fold_in(key, update))
        )
        self._published = (update, algorithm.params(state))
        self._free: queue.SimpleQueue[Fragment] = queue.SimpleQueue()
        self._ready: queue.SimpleQueue[Collected | BaseException] = queue.SimpleQueue()
        self._stop = threading.Event()
        self._buffers = [actor.allocate() for _ in range(staleness + 1)]
        for buffer in self._buffers:
            self._free.put(buffer)
        self._thread = threading.Thread(target=self._collect, args=(update,), name="collector", daemon=True)

    def warm_up(self) -> None:
        """Compile act and update; nothing is stepped or learned."""
        self.actor.warm_up(self._published[1])
        jax.block_until_ready(self._learn(self.state, self._buffers[0], self.update))

    def __enter__(self) -> "Inline":
        self._thread.start()
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        self._stop.set()
        self._thread.join(HANG_LIMIT_S if error is None else LEAVE_LIMIT_S)
        self.actor.close()

    def step(self) -> Learned:
        """Wait for a fragment, learn from it, publish, and free its buffer."""
        fragment, episodes = self._next_collected()
        steps = self._learning = int(np.count_nonzero(fragment.valid))
        age = self.update - fragment.version[fragment.valid]  # empty if every environment was being reset
        self.state, metrics, _ = jax.block_until_ready(self._learn(self.state, fragment, self.update))
        self.update += 1
        self._published = (self.update, self._algorithm.params(self.state))
        self._learning = 0
        self._free.put(fragment)
        return Learned(
            self.state, metrics, steps, episodes, float(age.mean()) if steps else 0.0, int(age.max(initial=0))
        )

    def in_flight(self) -> int:
        """Valid steps collected but not learned from, counted in the buffers after the thread has ended."""
        while not self._ready.empty():
            item = self._ready.get()
            self._waiting += int(np.count_nonzero(item.fragment.valid)) if isinstance(item, Collected) else 0
        return self._waiting + self._learning + self._cut_short

    def _next_collected(self) -> Collected:
        seen, since = -1, time.monotonic()
        while True:
            try:
                item = self._ready.get(timeout=1.0)
            except queue.Empty:
                if self.actor.steps != seen:
                    seen, since = self.actor.steps, time.monotonic()
                elif time.monotonic() - since > HANG_LIMIT_S:
                    raise EnvError(f"the environments have not finished a step for {HANG_LIMIT_S:.0f} s") from None
                continue
            if isinstance(item, BaseException):
                raise item
            return item

    def _collect(self, update: int) -> None:
        """The collector thread: fill free buffers until told to stop. Its errors are raised by `step`."""
        whole = 0
        try:
            while not self._stop.is_set():
                try:
                    fragment = self._free.get(timeout=0.1)
                except queue.Empty:
                    continue
                steps = self.actor.collect(fragment, lambda: self._published, update, self._stop.is_set)
                if steps < len(fragment.valid):
                    self._cut_short = int(np.count_nonzero(fragment.valid[:steps]))
                    return
                whole, update = self.actor.steps, update + 1
                self._ready.put(Collected(fragment, self.actor.take_episodes()))
        except BaseException as error:  # noqa: BLE001 - handed to the learner's thread, which raises it
            self._cut_short = self.actor.steps - whole
            self._ready.put(error)
