"""What takes long before a run's first line says so at once."""

from pathlib import Path

import pytest

import podium
from launch.commands import tiny
from podium.launch import session
from podium.launch.plan import Plan


class MeasuredError(Exception):
    """Raised where measuring would begin."""


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"topology__actors": None}, "preparing ppo on gymnasium:CartPole-v1: measuring where its parts run best\n"),
        ({}, "preparing ppo on gymnasium:CartPole-v1\n"),
    ],
    ids=["measured", "given"],
)
def test_a_run_says_that_it_measures_before_it_does(
    settings: dict, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def measure(_: Plan) -> Plan:
        raise MeasuredError

    monkeypatch.setattr(session, "settle", measure)
    changes = {"preset": "none", "set": tiny(**settings), "root": tmp_path}
    with pytest.raises(MeasuredError):
        podium.train("ppo", "gymnasium:CartPole-v1", **changes)
    assert capfd.readouterr().err == line
    with pytest.raises(MeasuredError):
        podium.train("ppo", "gymnasium:CartPole-v1", progress=False, **changes)
    assert capfd.readouterr().err == ""
