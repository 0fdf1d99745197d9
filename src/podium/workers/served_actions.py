"""How an actor gets its actions from inference workers: whichever is least busy, and another if one fails."""

import time
from collections.abc import Iterator, Sequence

import jax
import numpy as np

from podium.protocol.schema import Version
from podium.protocol.streams import InferenceClient, ParameterReader, Reply
from podium.workers.action_sources import ActionSource, Choice
from podium.workers.layout import ActAnswer, ActRequest, Layouts

SLICE_S = 0.0005
"""How long one of several inference workers is listened to before the next."""
RETRY_S = (0.5, 10.0)
"""How long an inference worker that failed a request is not asked: doubling from the first to the last."""


class _Desk:
    """An inference worker as one of several: what it was asked, and whether it can be relied on."""

    def __init__(self, client: InferenceClient) -> None:
        self.client = client
        self.out: dict[int, list[np.ndarray]] = {}  # slot -> its request
        self.failures = 0  # since its last reply
        self.retry_at = 0.0

    def fail(self) -> None:
        first, last = RETRY_S
        self.retry_at = time.monotonic() + min(last, first * 2.0**self.failures)
        self.failures += 1

    def rank(self) -> tuple[bool, int]:
        """The lowest is asked next: one that failed comes last, but for one request when its time has come."""
        doubtful = self.failures > 0 and (bool(self.out) or time.monotonic() < self.retry_at)
        return doubtful, len(self.out)


class ServedActions(ActionSource):
    """Asks inference workers, whichever has the fewest requests out. What fails is asked again elsewhere, and counted.

    policy = ServedActions([transport.inference_client(...), ...], layouts)

    At staleness 0 it needs a reader, to know which version a fragment begins with: a reply of an older one, from a
    worker that has not read it yet, is asked for again.
    """

    def __init__(
        self, clients: Sequence[InferenceClient], layouts: Layouts, reader: ParameterReader | None = None
    ) -> None:
        self._desks: list[_Desk] = []
        self._layouts = layouts
        self._reader = reader
        self._seen_at = time.monotonic()
        self._turn = self._failed = self._outdated = self._replies = self._rows = 0
        self._waited = 0.0
        self.replace(clients)

    def replace(self, clients: Sequence[InferenceClient]) -> None:
        """Inference workers have come or gone: from now on these. What those that went were asked is asked again."""
        if not clients:
            raise ValueError("no inference workers: at least one must stay, to fail what it is asked")
        gone = {desk.client: desk for desk in self._desks}
        self._desks = [gone.pop(client, None) or _Desk(client) for client in clients]
        for desk in gone.values():
            for slot, arrays in desk.out.items():
                self._failed += 1
                self._ask(slot, arrays)

    def submit(self, slot: int, request: ActRequest) -> None:
        self._ask(slot, self._layouts.request.arrays(request))

    def poll(self, timeout: float) -> Iterator[Choice]:
        deadline = time.monotonic() + timeout
        while True:
            busy = [desk for desk in self._desks if desk.out]
            choices = [choice for desk in busy for choice in self._take(desk, desk.client.poll(0.0))]
            now = time.monotonic()
            if not choices and busy and now < deadline:
                self._turn += 1
                desk = busy[self._turn % len(busy)]
                slice_s = deadline - now if len(busy) == 1 else min(SLICE_S, deadline - now)
                choices = list(self._take(desk, desk.client.poll(slice_s)))
                self._waited += time.monotonic() - now
            if choices or not busy or now >= deadline:
                yield from choices
                return

    def refresh(self, timeout: float) -> None:
        if self._reader is not None and (news := self._reader.read(timeout)) is not None:
            self._see(news[0])

    def warm_up(self, request: ActRequest, slots: int) -> None:
        pass  # inference workers compile

    def metrics(self) -> dict[str, float]:
        return {
            "inference_wait_s": self._waited,
            "inference_failed": self._failed,
            "inference_outdated": self._outdated,
            "rows_per_act": self._rows / max(1, self._replies),
            "weights_age_s": 0.0 if self.version is None else time.monotonic() - self._seen_at,
        }

    def _ask(self, slot: int, arrays: list[np.ndarray]) -> None:
        desk = min(self._desks, key=_Desk.rank)
        desk.out[slot] = arrays
        desk.client.submit(slot, arrays)

    def _take(self, desk: _Desk, replies: list[Reply]) -> Iterator[Choice]:
        for slot, version, arrays in replies:
            request = desk.out.pop(slot, None)
            if request is None:
                continue  # asked before its worker went, and of another since
            if arrays is None:
                desk.fail()
                self._failed += 1
                self._ask(slot, request)
                continue
            desk.failures = 0
            if self._reader is not None and self.version is not None and version < self.version:
                self._outdated += 1
                self._ask(slot, request)
                continue
            self._see(version)
            self._replies += 1
            self._rows += len(arrays[0])
            answer: ActAnswer = self._layouts.answer.tree(arrays)
            # A copy: the memory goes into the next request, which may have to be sent again.
            yield Choice(slot, version, answer._replace(memory=jax.tree.map(np.array, answer.memory)))

    def _see(self, version: Version) -> None:
        if self.version is None or version > self.version:
            self.version, self._seen_at = version, time.monotonic()
