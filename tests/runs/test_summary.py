"""summary.json has exactly the promised keys, is valid JSON, and is never half written."""

import json
from dataclasses import replace
from pathlib import Path

from podium.runs.summary import EpisodeReturn, Samples, Staleness, Summary, read_summary, versions, write_summary

SUMMARY = Summary(
    status="done",
    env_steps=100,
    updates=5,
    wall_s=1.5,
    compile_s=0.5,
    steps_per_s=100.0,
    episode_return=EpisodeReturn(mean=1.0, std=0.5, n=2),
    eval_return=None,
    samples=Samples(produced=110, trained=100, in_flight=10),
    staleness=Staleness(mean=0.5, max=1),
    restarts={"actor": 2},
    mode="inline",
    env_library="envpool",
    seed=3,
)
KEYS = [
    "status",
    "limit",
    "env_steps",
    "updates",
    "wall_s",
    "compile_s",
    "steps_per_s",
    "episode_return",
    "eval_return",
    "eval_std",
    "eval_episodes",
    "samples",
    "staleness",
    "restarts",
    "mode",
    "env_library",
    "seed",
    "restart_causes",
    "notes",
    "versions",
]


def test_the_file_has_exactly_the_keys_of_the_contract(tmp_path: Path) -> None:
    written = json.loads(write_summary(tmp_path, SUMMARY).read_text())
    assert list(written) == KEYS
    assert list(written["episode_return"]) == ["mean", "std", "n"]
    steps = ["produced", "trained", "stale", "lost", "undone", "in_flight"]
    assert list(written["samples"]) == [*steps, "unknown_workers", "unexplained"]
    assert list(written["staleness"]) == ["mean", "max"]
    assert written["restarts"] == {"actor": 2}
    assert read_summary(tmp_path) == read_summary(tmp_path / "summary.json") == written


def test_what_does_not_add_up_is_unexplained() -> None:
    assert SUMMARY.samples.unexplained == 0
    assert Samples(produced=100, trained=60, stale=10, lost=5, undone=3, in_flight=2).unexplained == 20
    assert Samples(trained=5).unexplained == -5


def test_what_is_not_finite_becomes_null(tmp_path: Path) -> None:
    summary = replace(SUMMARY, steps_per_s=float("nan"), episode_return=EpisodeReturn(float("inf"), None, 0))
    text = write_summary(tmp_path, summary).read_text()
    written = json.loads(text, parse_constant=lambda name: 1 / 0)
    assert written["steps_per_s"] is None
    assert written["episode_return"]["mean"] is None


def test_writing_again_replaces_it_and_leaves_nothing_beside(tmp_path: Path) -> None:
    write_summary(tmp_path, replace(SUMMARY, status="running"))
    write_summary(tmp_path, SUMMARY)
    assert [path.name for path in tmp_path.iterdir()] == ["summary.json"]
    summary = read_summary(tmp_path)
    assert summary is not None
    assert summary["status"] == "done"


def test_no_summary_is_none(tmp_path: Path) -> None:
    assert read_summary(tmp_path) is None
    (tmp_path / "summary.json").write_text('{"status": ')
    assert read_summary(tmp_path) is None


def test_versions_name_python_podium_and_jax() -> None:
    found = versions()
    assert found["python"].startswith("3.")
    assert {"podium", "jax", "numpy", "gymnasium"} <= set(found)
