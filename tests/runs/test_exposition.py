"""What a scraper reads over HTTP is, by the rules of the format, what the snapshot said."""

import math
import re
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from podium.core.errors import ConfigError
from podium.runs.exposition import MetricsServer, Snapshot, render

Labels = frozenset[tuple[str, str]]

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
SAMPLE = re.compile(rf"(?P<name>{NAME})(?:\{{(?P<labels>.*)\}})? (?P<value>\S+)")
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"(?:,|$)')


def parse(text: str) -> dict[str, dict[Labels, float]]:
    """Samples by metric and labels; asserts what the format demands: type before samples, no series twice."""
    assert text.endswith("\n")
    found: dict[str, dict[Labels, float]] = {}
    typed: list[str] = []
    for line in text.removesuffix("\n").split("\n"):
        if line.startswith("# HELP "):
            continue
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert kind == "gauge"
            assert name not in typed
            typed.append(name)
            continue
        match = SAMPLE.fullmatch(line)
        assert match, line
        assert match["name"] == typed[-1], "samples follow their own type"
        labels = frozenset(read_labels(match["labels"] or ""))
        series = found.setdefault(match["name"], {})
        assert labels not in series
        series[labels] = float(match["value"])
    return found


def read_labels(text: str) -> Iterator[tuple[str, str]]:
    at = 0
    while at < len(text):
        match = LABEL.match(text, at)
        assert match, text[at:]
        yield match[1], re.sub(r"\\(.)", lambda m: "\n" if m[1] == "n" else m[1], match[2])
        at = match.end()


def labels(**given: str) -> Labels:
    return frozenset(given.items())


def get(url: str) -> tuple[str, str]:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return answer.headers["Content-Type"], answer.read().decode()


def test_each_scrape_asks_for_a_new_snapshot_and_returns_all_of_it() -> None:
    steps = iter([1000.0, 2000.0])
    workers = {
        "actor-0": {"steps_per_s": 900.5, "restarts": 0},
        "actor-1": {"steps_per_s": 1100.25, "restarts": 2},
        "learner-0": {"loss": -0.125},
    }
    with MetricsServer(0, lambda: Snapshot("run-1", {"step": next(steps)}, workers)) as server:
        kind, text = get(server.url)
        assert kind == "text/plain; version=0.0.4; charset=utf-8"
        actors = [labels(run="run-1", worker=f"actor-{i}", role="actor") for i in (0, 1)]
        learner = labels(run="run-1", worker="learner-0", role="learner")
        assert parse(text) == {
            "podium_run_step": {labels(run="run-1"): 1000.0},
            "podium_worker_steps_per_s": {actors[0]: 900.5, actors[1]: 1100.25},
            "podium_worker_restarts": {actors[0]: 0.0, actors[1]: 2.0},
            "podium_worker_loss": {learner: -0.125},
        }
        assert "# HELP podium_run_step Valid env steps trained since the run's beginning.\n" in text
        assert parse(get(server.url)[1])["podium_run_step"] == {labels(run="run-1"): 2000.0}


def test_a_name_with_every_special_character_comes_back_as_it_was() -> None:
    run = 'a"b\\c\nd,e="f"} {g\\n'
    assert parse(render(Snapshot(run, {"step": 1}))) == {"podium_run_step": {labels(run=run): 1.0}}


def test_figures_keep_their_value_and_a_name_that_the_format_allows() -> None:
    values = {"big": 2**53, "small": 1e-300, "third": 1 / 3, "up": math.inf, "down": -math.inf, "loss/policy-π": 0.5}
    found = parse(render(Snapshot("r", {**values, "unknown": None})))
    assert {name: value for name, series in found.items() for value in series.values()} == {
        "podium_run_big": 2.0**53,
        "podium_run_small": 1e-300,
        "podium_run_third": 1 / 3,
        "podium_run_up": math.inf,
        "podium_run_down": -math.inf,
        "podium_run_loss_policy__": 0.5,
    }
    assert 'podium_run_up{run="r"} +Inf\n' in render(Snapshot("r", values))
    assert render(Snapshot("r", {"x": math.nan})).endswith('podium_run_x{run="r"} NaN\n')


def test_a_run_without_figures_is_an_empty_answer() -> None:
    assert render(Snapshot("r")) == ""


def test_other_paths_are_not_found() -> None:
    with MetricsServer(0, lambda: Snapshot("r")) as server:
        with pytest.raises(urllib.error.HTTPError, match="404") as error:
            get(server.url.replace("/metrics", "/other"))
        error.value.close()


def test_a_port_that_is_taken_or_is_none_is_one_line_of_the_users() -> None:
    with MetricsServer(0, lambda: Snapshot("r")) as server:
        message = f"--metrics-port = {server.port}: Address already in use; choose another one, or 0"
        with pytest.raises(ConfigError, match=message) as error:
            MetricsServer(server.port, lambda: Snapshot("r"))
        assert "\n" not in str(error.value)
    for port in (-1, 65536):
        with pytest.raises(ConfigError, match="must be from 0 to 65535"):
            MetricsServer(port, lambda: Snapshot("r"))


def test_the_port_is_free_again_afterwards_and_nobody_else_reaches_it() -> None:
    with MetricsServer(0, lambda: Snapshot("r")) as server:
        assert server._server.server_address[0] == "127.0.0.1"
        port = server.port
    with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port), timeout=30):
        pass
    with MetricsServer(port, lambda: Snapshot("r")) as again:
        assert again.port == port
