"""The back end `local`: real processes are killed, stopped and orphaned, and none is left."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.supervision import (
    LIMIT_S,
    QUICK,
    lives,
    no_child_is_left,
    run_to_end,
    tick_until,
    wait_until,
    worker,
)
from orchestrator.toy_workers import group, program
from podium.orchestrator.backends import local
from podium.orchestrator.processes import environment
from podium.orchestrator.program import Resources
from podium.orchestrator.status import WorkerStatus, read_status
from podium.orchestrator.supervisor import Outcome
from podium.orchestrator.worker import MISCONFIGURED

TESTS = Path(__file__).parent.parent


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    yield
    assert no_child_is_left()


def test_a_killed_worker_comes_back_and_the_learners_end_ends_all(tmp_path: Path) -> None:
    until = tmp_path / "until"
    with local(
        program(group("learner", "learn", until=str(until)), group("actor", "follow", 2)),
        tmp_path / "logs",
        limits=QUICK,
    ) as supervisor:
        supervisor.start()
        tick_until(supervisor, lambda: all(worker(supervisor, f"actor-{i}").progress for i in (0, 1)))
        for name in ("actor-1", "learner-0"):
            pid = worker(supervisor, name).pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            tick_until(supervisor, lambda name=name: worker(supervisor, name).incarnation == 1)
            tick_until(supervisor, lambda name=name: worker(supervisor, name).progress > 0)
            assert worker(supervisor, name).pid != pid
        # Actors stay while the learner is away, and find its next incarnation.
        tick_until(supervisor, lambda: worker(supervisor, "actor-0").metrics == {"learner": 1.0})
        assert worker(supervisor, "actor-0").incarnation == 0
        until.touch()
        assert run_to_end(supervisor) == Outcome("done", "", 0)
    assert supervisor.restarts == {"actor": 1, "learner": 1}
    headers = [line.split(" pid ")[0] for line in (tmp_path / "logs" / "actor-1.log").read_text().splitlines()]
    assert headers == ["--- actor-1 incarnation 0", "--- actor-1 incarnation 1"]


def test_a_stopped_process_is_noticed_by_its_lease_and_replaced(tmp_path: Path) -> None:
    said: list[str] = []
    with local(
        program(group("learner", "work"), group("actor", "work")),
        tmp_path / "logs",
        lease_s=2.0,
        limits=QUICK,
        say=said.append,
    ) as supervisor:
        supervisor.start()
        tick_until(supervisor, lambda: worker(supervisor, "actor-0").progress > 0)
        stopped = worker(supervisor, "actor-0").pid
        assert stopped is not None
        os.kill(stopped, signal.SIGSTOP)
        tick_until(supervisor, lambda: worker(supervisor, "actor-0").incarnation > 0)
        assert not lives(stopped)
        gone = "did not renew its lease for 2 s: stopped, hung, or cut off"
        assert f"actor-0 died ({gone}); starting it again in 0.01 s" in said
        tick_until(supervisor, lambda: worker(supervisor, "actor-0").progress > 0)


def test_five_deaths_without_progress_end_the_run_with_the_traceback(tmp_path: Path) -> None:
    with local(
        program(group("learner", "work"), group("actor", "crash")), tmp_path / "logs", limits=QUICK
    ) as supervisor:
        supervisor.start()
        outcome = run_to_end(supervisor)
    assert (outcome.status, outcome.exit_code) == ("failed", 1)
    assert outcome.message.startswith("actor-0 died 5 times without progress: Traceback (most recent call last):\n")
    assert 'raise RuntimeError(f"the toy broke in incarnation {context.incarnation}")' in outcome.message
    assert outcome.message.endswith("RuntimeError: the toy broke in incarnation 4")


def test_a_signal_is_named_and_a_worker_that_dies_once_only_lives_on(tmp_path: Path) -> None:
    said: list[str] = []
    with local(
        program(group("learner", "work"), group("actor", "die_once"), group("idler", "leave_early")),
        tmp_path / "logs",
        limits=QUICK,
        say=said.append,
    ) as supervisor:
        supervisor.start()
        tick_until(supervisor, lambda: all(worker(supervisor, name).progress for name in ("actor-0", "idler-0")))
        assert supervisor.restarts == {"actor": 1, "idler": 1}
        pid = worker(supervisor, "idler-0").pid
        assert pid is not None
        os.kill(pid, signal.SIGTERM)
        tick_until(supervisor, lambda: supervisor.restarts["idler"] == 2)
    assert sorted(line.partition(";")[0] for line in said) == [
        "actor-0 died (killed by SIGKILL)",
        "idler-0 died (ended by itself)",
        "idler-0 died (left because of a signal, or because it lost its launcher)",
    ]


def test_a_configuration_error_ends_the_run_at_once_with_its_line(tmp_path: Path) -> None:
    with local(
        program(group("learner", "work"), group("actor", "misconfigured")), tmp_path / "logs", limits=QUICK
    ) as supervisor:
        supervisor.start()
        assert run_to_end(supervisor) == Outcome("failed", "env.num_envs = 0: must be at least 1", 2, MISCONFIGURED)
    assert supervisor.restarts == {}


def test_stop_lets_the_learner_write_its_checkpoint_and_takes_grandchildren_along(tmp_path: Path) -> None:
    checkpoint, child = tmp_path / "checkpoint", tmp_path / "child"
    learner = group("learner", "learn", until=str(tmp_path / "never"), checkpoint=str(checkpoint))
    with local(
        program(learner, group("actor", "parent", child=str(child)), group("deaf", "deaf")),
        tmp_path / "logs",
        limits=QUICK,
    ) as supervisor:
        supervisor.start()
        tick_until(supervisor, lambda: [one.state for one in supervisor.status().workers] == ["running"] * 3)
        supervisor.stop("Ctrl-C")
        assert run_to_end(supervisor) == Outcome("stopped", "Ctrl-C", 130)
    assert checkpoint.read_text() == "written when told to stop"
    assert wait_until(lambda: not lives(int(child.read_text())))


def test_a_worker_gets_its_platform_threads_keys_and_log_and_no_jax(tmp_path: Path) -> None:
    learner, actor = (group(role, "environment", seen=str(tmp_path)) for role in ("learner", "actor"))
    limited = replace(actor, resources=Resources(threads=1))
    with local(program(learner, limited), tmp_path / "logs", limits=QUICK, host="elsewhere") as supervisor:
        supervisor.start()
        tick_until(supervisor, lambda: all(worker(supervisor, name).progress for name in ("actor-0", "learner-0")))
        assert worker(supervisor, "actor-0").host == "elsewhere"
    actor, learner = (json.loads((tmp_path / f"{role}.json").read_text()) for role in ("actor", "learner"))
    assert (actor["JAX_PLATFORMS"], actor["OMP_NUM_THREADS"], actor["NPROC"]) == ("cpu", "1", "1")
    assert actor["XLA_FLAGS"].endswith("--xla_cpu_multi_thread_eigen=false")
    assert not actor["jax"], "starting a worker must not import jax before its entry does"
    assert actor["session"], "Ctrl-C in a terminal must reach the launcher only"
    assert actor["stdin"] == ""
    assert (actor["secret"], learner["secret"]) == (False, True)  # only who binds needs the server's secret
    assert (actor["host"], learner["host"]) == ("elsewhere", "elsewhere")
    log = (tmp_path / "logs" / "actor-0.log").read_text().splitlines()
    assert log[1:3] == ["said on stdout", "said on stderr"]


def test_the_environment_of_a_gpu_worker_leaves_the_choice_to_jax() -> None:
    shared = environment(Resources(gpus=0.5, platform="gpu"), {"JAX_PLATFORMS": "cpu", "HOME": "/home"})
    assert shared == {
        "HOME": "/home",
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    }
    assert environment(Resources(gpus=1, platform="gpu"), {"JAX_PLATFORMS": "cuda"})["JAX_PLATFORMS"] == "cuda"


class Launcher:
    """A launcher in a process of its own, and what its status file says."""

    def __init__(self, root: Path, lease_s: float) -> None:
        path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
        self._status = root / "status.json"
        self.process = subprocess.Popen(
            [sys.executable, "-m", "orchestrator.toy_launcher", str(root), str(lease_s)],
            env={**os.environ, "PYTHONPATH": path},
        )

    def workers(self) -> dict[str, WorkerStatus]:
        status = read_status(self._status)
        assert status is None or status.launcher == self.process.pid
        return {one.role: one for one in status.workers} if status else {}

    def run(self, incarnation: int, *roles: str) -> bool:
        """Whether these workers run, in this incarnation or a later one."""
        workers = self.workers()
        return all(
            role in workers and workers[role].state == "running" and workers[role].incarnation >= incarnation
            for role in roles
        )

    def kill(self) -> list[int]:
        """Kill it without a warning; returns the pids of its workers."""
        self.process.kill()
        self.process.wait(LIMIT_S)
        return [one.pid for one in self.workers().values() if one.pid]


def test_a_launcher_that_is_killed_leaves_no_worker_behind(tmp_path: Path) -> None:
    launcher = Launcher(tmp_path, lease_s=5.0)
    try:
        assert wait_until(lambda: launcher.run(0, "learner", "actor", "deaf"))
    finally:
        pids = launcher.kill()
    assert len(pids) == 3
    assert wait_until(lambda: not any(map(lives, pids)))
    assert (tmp_path / "checkpoint").read_text() == "written when told to stop"
    deaf = (tmp_path / "logs" / "deaf-0.log").read_text()
    assert "error: the launcher is gone, and this did not stop within 1 s" in deaf
    assert "in deaf" in deaf  # where it hung


def test_a_launcher_that_was_away_too_long_starts_its_workers_again(tmp_path: Path) -> None:
    launcher = Launcher(tmp_path, lease_s=1.0)
    try:
        assert wait_until(lambda: launcher.run(0, "learner", "actor"))
        launcher.process.send_signal(signal.SIGSTOP)
        before = [pid for role in ("learner", "actor") if (pid := launcher.workers()[role].pid)]
        assert wait_until(lambda: not any(map(lives, before)))  # two leases without an answer: it is lost
        assert (tmp_path / "checkpoint").exists()
        launcher.process.send_signal(signal.SIGCONT)
        assert wait_until(lambda: launcher.run(1, "learner", "actor"))
    finally:
        pids = launcher.kill()
    assert wait_until(lambda: not any(map(lives, pids)))


def test_a_process_without_a_description_says_who_starts_it() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "podium.orchestrator.process"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (
        1,
        "error: no description came; this module is started by the orchestrator\n",
    )
