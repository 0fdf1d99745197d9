"""A run that cannot go on says why, exits with 1, and keeps what was good."""

import math
import re
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import podium
from launch import commands, faulty
from launch.commands import checkpoints, flags, tiny
from podium.cli.main import main
from podium.core.algorithm_configs import PPOConfig
from podium.core.config import LimitsConfig
from podium.runs.checkpoint import Checkpoints
from podium.runs.metrics import MetricsLog, read_metrics
from podium.runs.progress import Progress
from podium.runs.recorder import Counts, Recorder
from podium.runs.summary import EpisodeReturn

STEPS = ["--total-steps", "5000"]


def fail(root: Path, capsys: pytest.CaptureFixture[str], **settings: object) -> tuple[podium.Run, str]:
    """Train in an environment that fails; returns the run and what stderr said."""
    args = ["train", "ppo", "launch.faulty:make", "--name", "run", "--root", str(root), "--quiet"]
    assert main([*args, *STEPS, *flags(tiny(**settings))]) == 1
    run = podium.Run(root / "run")
    assert run.summary["status"] == "failed"
    assert run.summary["samples"]["unexplained"] == 0
    return run, capsys.readouterr().err


@pytest.mark.parametrize(("how", "what"), [("nan", "a reward"), ("nan seen", "an observation")])
def test_nan_of_an_environment_is_told_with_its_place_and_the_last_good_checkpoint_stays(
    how: str, what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, said = fail(tmp_path, capsys, env__kwargs=f'{{how="{how}",at=90}}', checkpoint__every_updates=2)
    (line,) = said.splitlines()
    # Each ninth call only resets: the 90th step comes after eleven of them.
    place = rf"environment 0 \(launch.faulty:make, seed \d+\) gave {what} that is not finite, at its step 101:"
    assert re.match(f"error: {place} what it computes is at fault, not the training", line)
    newest = checkpoints(run.path)[-1]
    assert podium.load(run).update == newest <= 6
    assert np.isfinite(podium.evaluate(run, episodes=2).mean)


def test_nan_of_a_fused_environment_is_told_with_its_place_too(tmp_path: Path) -> None:
    settings = tiny(env__kwargs={"at": 80}, topology__dispatch=2, checkpoint__every_updates=2)
    told = r"environment 0 \(.*make_jax, seed 0 of the run\) gave a reward that is not finite, at its step 81"
    with pytest.raises(podium.EnvError, match=told):
        podium.train("ppo", faulty.make_jax, name="run", set=settings, root=tmp_path, progress=False, track=())
    run = podium.Run(tmp_path / "run", faulty.make_jax)
    assert podium.load(run).update == 4
    assert run.summary["status"] == "failed"
    assert run.summary["samples"] == {
        **dict.fromkeys(("stale", "lost", "undone", "in_flight", "unknown_workers", "unexplained"), 0),
        **dict.fromkeys(("produced", "trained"), 5 * 64),
    }


def test_a_loss_that_is_not_finite_stops_the_run_and_names_the_checkpoint_that_stays(tmp_path: Path) -> None:
    with Checkpoints(tmp_path / "checkpoints") as saved, MetricsLog(tmp_path, track=()) as log:
        recorder = Recorder(podium.Experiment(), log, Progress(1, False), saved, Counts(), threading.Event())
        recorder.report(1, {"loss": 0.5}, [])
        recorder.save({"train": {"weight": np.ones(2, np.float32)}})
        with pytest.raises(podium.TrainingError, match=r"loss is nan at update 2 \(kl too\).*checkpoint 1 is kept"):
            recorder.report(1, {"loss": math.nan, "kl": math.inf}, [])


@pytest.mark.parametrize("bad", ["nan", "inf"])
def test_parameters_that_are_not_finite_never_replace_a_good_checkpoint(bad: str, tmp_path: Path) -> None:
    with Checkpoints(tmp_path / "checkpoints") as saved, MetricsLog(tmp_path, track=()) as log:
        recorder = Recorder(podium.Experiment(), log, Progress(1, False), saved, Counts(), threading.Event())
        recorder.report(1, {"loss": 0.5}, [])
        recorder.save({"train": {"weight": np.ones(2, np.float32), "updates": np.int32(1)}})
        recorder.report(1, {"loss": 0.5}, [])
        with pytest.raises(podium.TrainingError, match=rf"train\['weight'\] has {bad} .*checkpoint 1 is kept"):
            recorder.save({"train": {"weight": np.float32([1, float(bad)]), "updates": np.int32(2)}})
    assert checkpoints(tmp_path) == [1]


def test_a_bound_of_inf_is_a_setting_and_no_damage(tmp_path: Path) -> None:
    experiment = podium.Experiment(algorithm=PPOConfig(clip=math.inf, max_grad_norm=math.inf))
    hyper = {name: np.float32(value) for name, value in experiment.hyper().items()}
    with Checkpoints(tmp_path / "checkpoints") as saved, MetricsLog(tmp_path, track=()) as log:
        recorder = Recorder(experiment, log, Progress(1, False), saved, Counts(), threading.Event())
        recorder.report(1, {"loss": 0.5}, [])
        recorder.save({"train": {"weight": np.ones(2, np.float32), "hyper": hyper}})
    assert checkpoints(tmp_path) == [1]


def test_episodes_of_a_simulator_that_lost_its_numbers_are_counted_and_hide_no_others(tmp_path: Path) -> None:
    experiment = podium.Experiment(limits=LimitsConfig(target_return=4.0))
    with Checkpoints(tmp_path / "checkpoints") as saved, MetricsLog(tmp_path, track=()) as log:
        recorder = Recorder(experiment, log, Progress(1, False), saved, Counts(), threading.Event())
        recorder.report(1, {}, [(3.0, 7)] * 50 + [(math.nan, 8), (math.inf, 9)])
        recorder.report(1, {}, [(3.0, 7)] * 49 + [(math.inf, 9)])
        assert recorder.ended is None
        assert recorder.episode_return() == EpisodeReturn(mean=3.0, std=0.0, n=99)
        recorder.report(1, {}, [(103.0, 7)])
        assert recorder.ended == "done"
    *_, last = read_metrics(tmp_path)
    assert (last["episodes"], last["episodes_not_finite"], last["episode_return"]) == (103, 3, 4.0)


@pytest.mark.parametrize("processes", [0, 2])
def test_an_environment_that_raises_is_named_with_its_seed_and_its_own_traceback(
    processes: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, said = fail(tmp_path, capsys, env__kwargs='{how="raise",at=20}', env__processes=processes)
    assert re.search(r"^error: environment \d \(seed \d+\) raised in step:$", said, re.MULTILINE)
    assert "ZeroDivisionError: the wheel came off" in said
    assert "faulty.py" in said
    assert "inline.py" not in said, "only the environment's own traceback"


def test_an_environment_that_raises_ends_a_run_of_two_actors_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {"env__kwargs": '{how="raise",at=20}', "topology__actors": 2, "topology__transport": "shm"}
    run, said = fail(tmp_path, capsys, **settings)
    assert re.search(r"^error: actor-\d: environment \d \(seed \d+\) raised in step:$", said, re.MULTILINE)
    assert "ZeroDivisionError: the wheel came off" in said
    assert run.summary["restarts"] == run.summary["restart_causes"] == {}


def test_an_environment_that_never_ends_an_episode_ends_no_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("podium.workers.evaluator.MAX_STEPS", 50)
    args = ["train", "ppo", "launch.faulty:make", "--name", "run", "--root", str(tmp_path), "--total-steps", "200"]
    assert main([*args, *flags(tiny(env__kwargs='{how="endless"}', evaluation__episodes=2))]) == 0
    note = "not evaluated: a greedy episode has not ended after 50 steps; give env.wrappers a time_limit"
    summary = podium.Run(tmp_path / "run").summary
    assert (summary["status"], summary["eval_return"], summary["notes"]) == ("done", None, [note])
    assert f"warning: {note}" in capsys.readouterr().err


@pytest.mark.parametrize("processes", [0, 2])
def test_an_environment_that_returns_a_wrong_shape_is_named_with_both_shapes(
    processes: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, said = fail(tmp_path, capsys, env__kwargs='{how="shape",at=20}', env__processes=processes)
    (line,) = said.splitlines()
    assert re.match(r"error: environment \d \(seed \d+\) in step: observation has shape \(7,\)", line)
    assert "its space says (3,)" in line


@pytest.mark.parametrize("processes", [0, 2])
@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("reward None", r"reward is None, must be a number"),
        ("four", r"it must return \(observation, reward, terminated, truncated, info\), not a tuple of 4"),
    ],
)
def test_a_step_that_gives_no_number_or_not_five_things_is_one_line_with_the_users_own(
    how: str, told: str, processes: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, said = fail(tmp_path, capsys, env__kwargs=f'{{how="{how}",at=20}}', env__processes=processes)
    (line,) = said.splitlines()
    own = r"\(.*faulty.py, line \d+, Faulty.step\)"
    assert re.match(rf"error: environment \d \(seed \d+\) in step: {told} {own}$", line)


def test_the_command_itself_exits_with_1_and_leaves_no_process(tmp_path: Path) -> None:
    settings = tiny(env__kwargs='{how="raise",at=20}', env__processes=2)
    process = commands.start("train", "ppo", "launch.faulty:make", *STEPS, *flags(settings), cwd=tmp_path)
    assert process.wait(commands.LIMIT_S) == 1
    assert commands.group_is_empty(process)
    assert "ZeroDivisionError" in (tmp_path / "said").read_text()


def test_a_failed_run_resumes_from_the_checkpoint_before(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # In turns with the learner: five updates are made before the sixth fragment fails, and the fourth is saved.
    settings = {"checkpoint__every_updates": 2, "topology__staleness": 0}
    run, _ = fail(tmp_path, capsys, env__kwargs='{how="nan",at=75}', **settings)
    failed = run.summary["samples"]
    podium.resume(run, total_steps=run.summary["env_steps"] + 1, progress=False)
    resumed = run.summary["samples"]
    assert run.summary["status"] == "done"
    assert resumed["undone"] > 0
    assert resumed["lost"] == failed["in_flight"]
    assert resumed["unexplained"] == 0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 600 kB, where this user may mount one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=600k", "none", disk], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"no small disk can be mounted here: {mounted.stderr.strip()}")
    yield disk
    subprocess.run(["umount", disk], check=True, timeout=60)


@pytest.mark.parametrize("every", [40, 10**6], ids=["in a checkpoint", "in a row of metrics"])
def test_a_full_disk_is_one_line_and_the_last_checkpoint_stays(
    every: int, small_disk: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    args = ["train", "ppo", "gymnasium:CartPole-v1", "--name", "run", "--root", str(small_disk), "--quiet"]
    if every == 10**6:
        (small_disk / "ballast").write_bytes(bytes(500_000))
    settings = tiny(checkpoint__every_updates=every)
    assert main([*args, "--track", "none", "--total-steps", "1000000", *flags(settings)]) == 1
    run, saved = podium.Run(small_disk / "run"), checkpoints(small_disk / "run")
    stays = f"checkpoint {saved[-1]} stays" if saved else "there is no checkpoint yet"
    way = f"make room, then `podium resume run --root {small_disk}`"
    assert capfd.readouterr().err == f"error: no space left on the disk of {run.path}: {stays}; {way}\n"
    assert run.summary["status"] == "failed"
    assert bool(saved) == (every == 40)
    if saved:
        assert not list((run.path / "checkpoints").glob("saving-*"))
        assert podium.load(run).update == saved[-1]


def test_environments_that_hang_end_a_run_of_one_process(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kwargs = f'{{how="hang",flag="{tmp_path}/flag"}}'
    _, said = fail(tmp_path, capsys, env__kwargs=kwargs, limits__hang_s=1, topology__transport="memory")
    assert said.strip() == "error: the environments have not finished a step for 1 s (limits.hang_s)"


@pytest.mark.parametrize("how", ["hang", "hang in reset"])
def test_an_actor_that_hangs_is_replaced_and_its_log_says_where_it_hung(how: str, tmp_path: Path) -> None:
    kwargs = f'{{how="{how}",flag="{tmp_path}/flag"}}'
    settings = tiny(env__kwargs=kwargs, limits__hang_s=4, topology__transport="shm")
    done = commands.podium(
        "train", "ppo", "launch.faulty:make", "--name", "run", *STEPS, *flags(settings), cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    summary = podium.Run(tmp_path / "runs/run").summary
    assert (summary["status"], summary["samples"]["unexplained"]) == ("done", 0)
    assert summary["restarts"] == {"actor": 1}
    (worker, [cause]) = next(iter(summary["restart_causes"].items()))
    assert f"restarted: {worker} (once: {cause})" in done.stdout
    logs = "".join(log.read_text() for log in (tmp_path / "runs/run/logs").glob("actor-*"))
    assert "Timeout (0:00:04)!" in logs
    assert "faulty.py" in logs
