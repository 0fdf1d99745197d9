"""A film of a MuJoCo policy on a machine without a screen."""

import ctypes.util
import threading
from pathlib import Path

import pytest

import podium
from launch import commands
from launch.commands import tiny
from podium.core import settings
from podium.launch import training
from podium.launch.evaluation import film, play_versions
from podium.launch.plan import make_plan
from podium.launch.policy import Policy, agent_of
from podium.protocol.memory import MemoryTransport
from podium.protocol.schema import Version
from podium.runs.directory import RunDirectory
from podium.workers.layout import make_layouts


@pytest.mark.skipif(ctypes.util.find_library("EGL") is None, reason="no libEGL to draw with: apt-get install libegl1")
def test_mujoco_is_filmed_without_a_screen(tmp_path: Path) -> None:
    short, root = tiny(env__wrappers=["time_limit(20)"]), tmp_path / "runs"
    podium.train("ppo", "Hopper-v5", name="hop", total_steps=64, set=short, root=root, preset="none", progress=False)
    # In a process of its own: MuJoCo chooses how to draw when it is imported.
    filmed = commands.podium("eval", "hop", "--episodes", "1", "--video", cwd=tmp_path, DISPLAY="", WAYLAND_DISPLAY="")
    assert filmed.returncode == 0, filmed.stderr
    (video,) = (tmp_path / "runs" / "hop" / "videos").glob("*.mp4")
    assert video.stat().st_size > 1000


def test_what_cannot_be_drawn_is_refused_in_one_line(tmp_path: Path) -> None:
    plan = make_plan(settings.resolve("ppo", "launch.faulty:make", preset=None, overrides=tiny()).experiment)
    params = plan.algorithm.params(training.initial_state(plan)["train"])
    run = RunDirectory(tmp_path)
    with pytest.raises(podium.ConfigError, match=r"^--video: launch\.faulty:make cannot be drawn here: .*\Z"):
        film(Policy(agent_of(plan), params, 0, run), run, seed=0)
    assert not list(tmp_path.rglob("*.mp4"))


def test_an_evaluator_that_cannot_film_says_so_once_and_plays_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = tiny(evaluation__video=True, evaluation__episodes=2)
    plan = make_plan(settings.resolve("ppo", "launch.faulty:make", preset=None, overrides=changes).experiment)
    layouts = make_layouts(plan.algorithm, plan.env.spec, plan.experiment, plan.rows)
    params = layouts.params.arrays(plan.algorithm.params(training.initial_state(plan)["train"]))
    stop, returns, steps = threading.Event(), [], []
    with MemoryTransport() as transport:
        publisher = transport.parameter_publisher("main", layouts.params.schema)
        reader = transport.parameter_reader(publisher.endpoint, layouts.params.schema)
        publisher.publish(Version(0, 0), params)

        def beat(metrics: dict[str, float]) -> None:
            returns.append(metrics["return"])
            publisher.publish(Version(0, len(returns)), params)
            if len(returns) == 3:
                stop.set()

        reconnect = steps.clear
        play_versions(plan, layouts, reader, RunDirectory(tmp_path), stop, beat, reconnect, lambda: steps.append(0))
    assert returns == [8.0, 8.0, 8.0], "episodes of eight steps"
    assert len(steps) >= 8, "each step is a heartbeat"
    said = capsys.readouterr().out
    assert said.count("evaluation.video: no more videos: ") == 1
