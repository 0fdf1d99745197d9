"""How an actor gets its actions: from its own copy of the parameters, or from inference workers.

An actor submits what its slots see, goes on stepping others, and polls for what was chosen.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
import numpy as np

from podium.algorithms.algorithm import Algorithm
from podium.core.padding import padded_size
from podium.core.types import ActInput, Tree
from podium.protocol.schema import Version
from podium.protocol.streams import ParameterReader
from podium.workers.layout import ActAnswer, ActRequest, Layout, Layouts
from podium.workers.schedule import Schedule


class Choice(NamedTuple):
    """The actions of one slot, and the version of the policy that chose them."""

    slot: int
    version: Version
    answer: ActAnswer


class ActionSource(ABC):
    """What an actor asks for actions, for each of its slots (counted from 0) once at a time.

    policy.submit(slot, request)
    for choice in policy.poll(timeout=0.1): ...      # may submit again

    A request's arrays stay as they are until its choice has come.
    """

    version: Version | None = None
    """The newest that it knows."""

    @abstractmethod
    def submit(self, slot: int, request: ActRequest) -> None:
        """Ask for a slot's actions."""

    @abstractmethod
    def poll(self, timeout: float) -> Iterator[Choice]:
        """Choices as they are made, each once; ends after `timeout` seconds without any.

        The arrays are valid until the slot's next `submit`, but for the memory, which goes into it.
        """

    @abstractmethod
    def refresh(self, timeout: float) -> None:
        """Take up a newer version if there is one within `timeout` seconds. At staleness 0, between fragments."""

    @abstractmethod
    def warm_up(self, request: ActRequest, slots: int) -> None:
        """Compile for requests like this one of up to so many slots."""

    @abstractmethod
    def metrics(self) -> dict[str, float]:
        """Counts since the start, and how old the version in use is."""


class Weights:
    """The newest parameters of a stream, where jitted functions take them, or where `place` puts them.

    weights = Weights(layouts.params, reader)
    if weights.refresh(timeout=0.1): act(weights.params, request)
    """

    def __init__(self, layout: Layout, reader: ParameterReader, place: Callable[[Tree], Tree] = jax.device_put) -> None:
        self.version: Version | None = None
        self.params: Tree = None
        self._layout, self._reader, self._place = layout, reader, place
        self._read_at = 0.0

    def refresh(self, timeout: float = 0.0) -> bool:
        """Read a newer version if there is one; says whether there are any parameters now."""
        if (news := self._reader.read(timeout)) is not None:
            self.version = news[0]
            # On the CPU, jax takes the reader's arrays as they are: no copy, and they hold until the next read.
            self.params = self._place(self._layout.tree(news[1]))
            self._read_at = time.monotonic()
        return self.version is not None

    def zeros(self) -> Tree:
        """Parameters to compile with before there are any."""
        return jax.device_put(self._layout.tree(self._layout.schema.allocate()))

    def age(self) -> float:
        """Seconds since the version in use was read."""
        return 0.0 if self.version is None else time.monotonic() - self._read_at


def jit_act(algorithm: Algorithm) -> Callable[[Tree, ActRequest], ActAnswer]:
    """`algorithm.act` from a request to an answer, with exploration."""

    def act(params: Tree, request: ActRequest) -> ActAnswer:
        keys = jax.random.wrap_key_data(request.key, impl="threefry2x32")
        inputs = ActInput(request.obs, request.first, request.mask, keys, request.exploration)
        return ActAnswer(*algorithm.act(params, request.memory, inputs, False))

    return jax.jit(act)


class InlineActions(ActionSource):
    """Acts with its own copy of the parameters.

    With staleness, the newest version acts on all slots submitted, as one batch. At staleness 0 each slot is a batch
    of its own, because XLA's rows change in the last bit with the size of the batch, and the version changes only
    when the actor says so.
    """

    def __init__(self, algorithm: Algorithm, layouts: Layouts, reader: ParameterReader, schedule: Schedule) -> None:
        self._act = jit_act(algorithm)
        self._layouts = layouts
        self._weights = Weights(layouts.params, reader)
        self._in_turns = schedule.in_turns
        self._pending: list[tuple[int, ActRequest]] = []
        self._batches: dict[int, list[np.ndarray]] = {}
        self._acts = self._rows = 0
        self._seconds = 0.0

    def submit(self, slot: int, request: ActRequest) -> None:
        self._pending.append((slot, request))

    def poll(self, timeout: float) -> Iterator[Choice]:
        if not self._pending:
            return
        if self.version is None:
            self.refresh(timeout)
        elif not self._in_turns:
            self.refresh(0.0)
        if self.version is None:
            return
        pending, self._pending = self._pending, []
        if len(pending) > 1 and not self._in_turns:
            yield from self._choose_together(pending)
            return
        for slot, request in pending:
            yield self._choose(slot, request)

    def refresh(self, timeout: float) -> None:
        if self._weights.refresh(timeout):
            self.version = self._weights.version

    def warm_up(self, request: ActRequest, slots: int) -> None:
        zeros = self._weights.zeros()
        jax.block_until_ready(self._act(zeros, request))
        while not self._in_turns and slots > 1:
            jax.block_until_ready(self._act(zeros, self._merge([request] * slots)))
            slots = padded_size(slots) // 2

    def metrics(self) -> dict[str, float]:
        return {
            "inference_wait_s": self._seconds,
            "rows_per_act": self._rows / max(1, self._acts),
            "weights_age_s": self._weights.age(),
        }

    def _choose(self, slot: int, request: ActRequest) -> Choice:
        began = time.perf_counter()
        action, extras, memory = self._act(self._weights.params, request)
        answer = ActAnswer(np.asarray(action), extras, memory)
        self._count(len(request.first), began)
        return Choice(slot, self._newest(), answer)

    def _choose_together(self, pending: list[tuple[int, ActRequest]]) -> Iterator[Choice]:
        began = time.perf_counter()
        rows = len(pending[0][1].first)
        answer = self._act(self._weights.params, self._merge([request for _, request in pending]))
        answer, version = jax.tree.map(np.asarray, answer), self._newest()
        self._count(rows * len(pending), began)
        for i, (slot, _) in enumerate(pending):
            part = jax.tree.map(lambda x, i=i: x[i * rows : (i + 1) * rows], answer)
            # A copy: memory that act leaves as it is could be the very batch that the next merge writes into.
            yield Choice(slot, version, part._replace(memory=jax.tree.map(np.array, part.memory)))

    def _merge(self, requests: list[ActRequest]) -> ActRequest:
        """Requests as one batch, padded to a power of two of slots, so that few shapes are compiled."""
        rows, slots = len(requests[0].first), padded_size(len(requests))
        layout = self._layouts.request
        if slots not in self._batches:
            self._batches[slots] = [np.zeros((slots * rows, *f.shape), f.dtype) for f in layout.schema.fields]
        batch = self._batches[slots]
        for i, request in enumerate(requests):
            for into, leaf in zip(batch, layout.structure.flatten_up_to(request), strict=True):
                into[i * rows : (i + 1) * rows] = leaf
        return layout.tree(batch)

    def _newest(self) -> Version:
        assert self._weights.version is not None
        return self._weights.version

    def _count(self, rows: int, began: float) -> None:
        self._acts += 1
        self._rows += rows
        self._seconds += time.perf_counter() - began
