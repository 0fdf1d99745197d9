"""A run's metrics over HTTP, in Prometheus' text exposition format 0.0.4: `curl http://127.0.0.1:9100/metrics`."""

import re
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from podium.core.errors import ConfigError

HOST = "127.0.0.1"
"""Whoever is on the machine may read it, nobody else."""
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
CLIENT_LIMIT_S = 10.0

MEANINGS = {
    "step": "Valid env steps trained since the run's beginning.",
    "update": "Updates made since the run's beginning.",
    "wall_s": "Seconds of training, compilation included.",
    "steps_per_s": "Valid env steps in a second, smoothed.",
    "episode_return": "Mean return of the last training episodes, 100 at most.",
    "episode_length": "Mean length of the last training episodes, 100 at most.",
    "episodes": "Training episodes that have ended.",
    "staleness": "Mean versions between acting and training, in the last update.",
    "restarts": "How often the supervisor has started it again.",
    "samples_produced": "Valid env steps that the run's actors have made.",
    "samples_trained": "Of those, trained on by the learner that there is.",
    "samples_stale": "Of those, too old to be trained on.",
    "samples_lost": "Of those, lost with who was killed.",
    "samples_undone": "Of those, trained on after the checkpoint that a learner went back to.",
    "samples_in_flight": "Of those, on the way to the learner.",
}


@dataclass(frozen=True)
class Snapshot:
    """A run at one moment: its own metrics, and those of each worker by its name (`actor-2`)."""

    run: str
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    workers: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)


class MetricsServer:
    """Answers `GET /metrics` on a thread of its own while it is open; each answer calls `snapshot` anew.

    with MetricsServer(9100, lambda: Snapshot("run-1", {"step": 2048}, {"actor-0": {"steps_per_s": 900.0}})) as server:
        print(server.url)                # port 0 takes one that is free
    """

    def __init__(self, port: int, snapshot: Callable[[], Snapshot]) -> None:
        check_port(port)
        handler = type("Handler", (_Handler,), {"snapshot": staticmethod(snapshot)})
        try:
            self._server = ThreadingHTTPServer((HOST, port), handler)
        except OSError as error:
            raise ConfigError(
                f"--metrics-port = {port}: {error.strerror}; choose another one, or 0 for one that is free"
            ) from None
        self.port: int = self._server.server_port
        # Its only argument: how soon, in seconds, it sees that it shall end.
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), name="metrics", daemon=True)

    @property
    def url(self) -> str:
        """Where the metrics are."""
        return f"http://{HOST}:{self.port}/metrics"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def check_port(port: int) -> None:
    """Raise ConfigError unless it is a number of a port."""
    if not 0 <= port <= 65535:
        raise ConfigError(f"--metrics-port = {port}: must be from 0 to 65535; 0 takes one that is free")


def render(snapshot: Snapshot) -> str:
    r"""The text of a snapshot. What is None is left out.

    >>> print(render(Snapshot("r", {"step": 7})), end="")
    # HELP podium_run_step Valid env steps trained since the run's beginning.
    # TYPE podium_run_step gauge
    podium_run_step{run="r"} 7
    """
    samples: dict[str, dict[str, tuple[str, float]]] = {}  # of each metric: by its labels, its own name and value
    for name, labels, key, value in _samples(snapshot):
        samples.setdefault(name, {})[labels] = (key, value)
    lines = []
    for name, series in samples.items():
        key = next(iter(series.values()))[0]
        meaning = MEANINGS.get(key, f"{key}, as it is reported.")
        lines += [f"# HELP {name} {_escape(meaning)}", f"# TYPE {name} gauge"]
        lines += [f"{name}{{{labels}}} {_number(value)}" for labels, (_, value) in series.items()]
    return "".join(f"{line}\n" for line in lines)


def _samples(snapshot: Snapshot) -> Iterator[tuple[str, str, str, float]]:
    """Metric, labels, key and value of each figure.

    A worker's metrics have other names than the run's: a sum over one name counts nothing twice.
    """
    for key, value in snapshot.metrics.items():
        if value is not None:
            yield _name("run", key), _labels(run=snapshot.run), key, value
    for worker, metrics in snapshot.workers.items():
        labels = _labels(run=snapshot.run, worker=worker, role=worker.rpartition("-")[0] or worker)
        for key, value in metrics.items():
            if value is not None:
                yield _name("worker", key), labels, key, value


def _name(scope: str, key: str) -> str:
    return f"podium_{scope}_{re.sub(r'[^a-zA-Z0-9_]', '_', key)}"


def _labels(**labels: str) -> str:
    return ",".join(f'{name}="{_escape(value, quote=True)}"' for name, value in labels.items())


def _escape(text: str, quote: bool = False) -> str:
    """As the format wants it: help texts keep their quotation marks, labels do not."""
    text = text.replace("\\", r"\\").replace("\n", r"\n")
    return text.replace('"', r"\"") if quote else text


def _number(value: float) -> str:
    """The shortest text that reads as the same number, `+Inf`, `-Inf` or `NaN`."""
    text = repr(float(value))
    return {"inf": "+Inf", "-inf": "-Inf", "nan": "NaN"}.get(text, text.removesuffix(".0"))


class _Handler(BaseHTTPRequestHandler):
    """One request."""

    snapshot: Callable[[], Snapshot]
    timeout = CLIENT_LIMIT_S  # a client that says nothing must not keep its thread

    def do_GET(self) -> None:
        if self.path.partition("?")[0] != "/metrics":
            self.send_error(404, "metrics are at /metrics")
            return
        body = render(self.snapshot()).encode()
        self.send_response(200)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: the terminal belongs to the run's progress."""
