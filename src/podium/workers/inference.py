"""The inference worker: acts for actors elsewhere, on whatever requests are pending, as one batch."""

import threading
import time
from collections.abc import Callable

import jax
import numpy as np

from podium.algorithms.algorithm import Algorithm
from podium.core.padding import padded_size
from podium.protocol.streams import InferenceServer, ParameterReader, RequestBatch
from podium.workers.action_sources import Weights, jit_act
from podium.workers.layout import Layouts

WAIT_S = 0.1
"""How long it waits for requests or parameters before it looks whether it should stop."""
FOLLOW_S = 0.2
"""How often `reconnect` is called."""
BEAT_S = 1.0
"""How often `beat` is called."""


class InferenceWorker:
    """Answers with the newest parameters. It keeps nothing between requests: memory travels with them.

    worker = InferenceWorker(algorithm, layouts, server, reader, max_rows=256, wait_s=0.0005)
    worker.warm_up()
    worker.run(stop)

    `beat` is given the metrics about once a second; `reconnect` is called every 0.2 s, and may rebind the reader to a
    learner that has come back. Nothing that it was given is closed.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        layouts: Layouts,
        server: InferenceServer,
        reader: ParameterReader,
        max_rows: int,
        wait_s: float,
        beat: Callable[[dict[str, float]], None] = lambda metrics: None,
        reconnect: Callable[[], None] = lambda: None,
    ) -> None:
        self._act = jit_act(algorithm)
        self._layouts = layouts
        self._server = server
        self._weights = Weights(layouts.params, reader)
        self._max_rows = max_rows
        self._wait_s = wait_s
        self._beat = beat
        self._reconnect = reconnect
        self._batches = self._rows = 0
        self._waited = 0.0

    def warm_up(self) -> None:
        """Compile for every size of a batch that there can be; nothing is answered."""
        params, fields = self._weights.zeros(), self._layouts.request.schema.fields
        smallest = _rows_of_a_slot(self._layouts)
        size, largest = padded_size(smallest), padded_size(max(smallest, self._max_rows))
        while size <= largest:
            arrays = [np.zeros((size, *field.shape), field.dtype) for field in fields]
            jax.block_until_ready(self._act(params, self._layouts.request.tree(arrays)))
            size *= 2

    def run(self, stop: threading.Event) -> None:
        """Until `stop` is set, or a stream fails."""
        followed = beaten = time.monotonic()
        while not stop.is_set():
            batch = self._next_batch()
            if batch is not None:
                self._answer(batch)
            now = time.monotonic()
            if now - followed > FOLLOW_S:
                self._reconnect()
                followed = now
            if now - beaten > BEAT_S:
                self._beat(self.metrics())
                beaten = now

    def metrics(self) -> dict[str, float]:
        """Counts since the start, and how old the version in use is."""
        return {
            "batches": self._batches,
            "rows": self._rows,
            "rows_per_act": self._rows / max(1, self._batches),
            "request_wait_s": self._waited,
            "weights_age_s": self._weights.age(),
            "refused": self._server.counters.refused,
            "malformed": self._server.counters.malformed,
        }

    def _next_batch(self) -> RequestBatch | None:
        """What is pending, once there are parameters to answer it with."""
        began = time.perf_counter()
        known = self._weights.version is not None or self._weights.refresh(WAIT_S)
        batch = self._server.gather(self._max_rows, self._wait_s, WAIT_S) if known else None
        self._waited += time.perf_counter() - began
        return batch

    def _answer(self, batch: RequestBatch) -> None:
        self._weights.refresh()
        assert self._weights.version is not None
        answer = self._act(self._weights.params, self._layouts.request.tree(batch.arrays))
        self._server.reply(batch, self._weights.version, self._layouts.answer.arrays(answer))
        self._batches += 1
        self._rows += batch.rows


def _rows_of_a_slot(layouts: Layouts) -> int:
    """R: the size of the smallest request."""
    record = layouts.record.tree(layouts.record.schema.fields)
    return record.fragment.valid.shape[1]
