"""A run on a real Ray cluster of several machines: workers, nodes and cables are lost, and training goes on."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from system.machines import HOME, Machine, Machines, require_machines
from system.ray_cluster import RayCluster

PODIUM = str(Path(sys.executable).parent / "podium")
LIMIT_S = 300.0


class ClusterRun:
    """`podium train` on the head of a cluster, and what its files say meanwhile."""

    def __init__(self, cluster: RayCluster, head: Machine, storage: Path, actors: int, *arguments: str) -> None:
        self.path, self._log = head.home / "runs" / storage.name, head.home / f"{storage.name}.log"
        self._head, self._storage = head, storage
        command = [PODIUM, "train", "ppo", "gymnasium:CartPole-v1", "--on", cluster.address]
        command += ["--root", f"{HOME}/runs", "--set", "env.num_envs=8", f"topology.actors={actors}"]
        command += ["topology.slots=4", *arguments]
        with self._log.open("wb") as output:
            self.process = head.start(command, cluster.env(), stdout=output, stderr=subprocess.STDOUT)

    def workers(self) -> dict[str, dict[str, Any]]:
        """By name: `actor-0`."""
        try:
            status = json.loads((self.path / "workers.json").read_text())
        except FileNotFoundError:
            return {}
        return {f"{worker['role']}-{worker['index']}": worker for worker in status["workers"]}

    def has_checkpoint(self) -> bool:
        """Whether one was stored whole."""
        return bool(list(self._storage.glob("checkpoints/*/SHA256SUMS")))

    def until(self, true: Callable[[], object], what: str) -> None:
        """Wait, while the run goes on."""
        deadline = time.monotonic() + LIMIT_S
        while not true():
            assert self.process.poll() is None, f"it ended before {what}:\n{self.said()}"
            assert time.monotonic() < deadline, f"not within {LIMIT_S:g} s: {what}\n{self.said()}"
            time.sleep(0.1)

    def until_training(self) -> None:
        """Wait for progress of every worker."""
        self.until(
            lambda: (now := self.workers()) and all(w["progress"] for w in now.values()), "all workers make progress"
        )

    def interrupt(self) -> dict[str, Any]:
        """Ctrl-C, long before its last step; its summary, with a checkpoint behind it."""
        self._head.signal(self.process, signal.SIGINT)
        assert self.process.wait(LIMIT_S) == 130, self.said()
        return json.loads((self.path / "summary.json").read_text())

    def said(self) -> str:
        """What it printed, and the ends of its workers' logs."""
        logs = {path.name: path.read_text()[-2000:] for path in (self.path / "logs").glob("*.log")}
        return f"{self._log.read_text()}\n{self.workers()}\n{logs}"


class Lab:
    """A cluster of a head without cpus and three nodes with one each; nodes that a test has lost are started again."""

    def __init__(self, machines: list[Machine], directory: Path) -> None:
        self.head, *self.nodes = machines
        self.cluster, self.directory, self._number = RayCluster(directory), directory, 0
        self.cluster.start_head(self.head, cpus=0)
        self._off = list(self.nodes)
        self.repair()

    def repair(self) -> None:
        """Start the nodes that are off."""
        for node in self._off:
            if not node.is_on:
                node.power_on()
            self.cluster.start_node(node, cpus=1)
        self._off = []

    def power_off(self, node: Machine) -> None:
        """A node is lost."""
        self._off.append(node)
        node.power_off()

    def train(self, *arguments: str, actors: int = 1) -> ClusterRun:
        """Start a run with storage of its own."""
        self._number += 1
        storage = self.directory / f"storage-{self._number}"
        place = "--storage", f"file://{storage}", "--name", f"run-{self._number}"
        return ClusterRun(self.cluster, self.head, storage / f"run-{self._number}", actors, *arguments, *place)

    def node_of(self, run: ClusterRun, name: str) -> Machine:
        """The machine that a worker is on."""
        host = run.workers()[name]["host"].rpartition("-")[0]
        return next(node for node in self.nodes if node.name == host)

    def shared_memory(self) -> dict[str, str]:
        """What runs have left in each node's shared memory."""
        return {node.name: node.run(["sh", "-c", "ls /dev/shm | grep podium"]).stdout for node in self.nodes}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    require_machines()
    pytest.importorskip("ray")
    with Machines("head", "one", "two", "three") as machines:
        yield Lab(machines, tmp_path_factory.mktemp("lab"))


@pytest.fixture
def lab(running: Lab) -> Lab:
    running.repair()
    return running


def expect_whole(summary: dict[str, Any]) -> None:
    assert summary["status"] == "interrupted"
    assert summary["env_steps"] > 0
    assert summary["samples"]["trained"] == summary["env_steps"]
    assert summary["samples"]["unexplained"] == 0


def test_killed_workers_come_back_where_they_were_and_nothing_is_left(lab: Lab) -> None:
    run = lab.train("checkpoint.every_s=2", "--total-steps", "100M", actors=2)
    run.until_training()
    run.until(run.has_checkpoint, "a checkpoint is stored")
    for name in ("actor-1", "learner-0"):
        worker = run.workers()[name]
        assert lab.node_of(run, name).run(["kill", "-9", str(worker["pid"])]).returncode == 0
        run.until(lambda name=name: run.workers()[name]["incarnation"] == 1, f"{name} has another incarnation")
        run.until(lambda name=name: run.workers()[name]["progress"], f"{name} makes progress")
    summary = run.interrupt()
    expect_whole(summary)
    assert summary["restarts"] == {"actor": 1, "learner": 1}
    assert summary["samples"]["unknown_workers"] == 0, "what a process had counted is found on its node"
    assert set(lab.shared_memory().values()) == {""}


def test_a_cut_of_20_seconds_costs_no_restart(lab: Lab) -> None:
    run = lab.train("limits.silence_s=60", "--total-steps", "100M", actors=2)
    run.until_training()
    node = lab.node_of(run, "actor-0")
    node.cut()
    try:
        run.until(lambda: run.workers()["actor-0"]["state"] == "silent", "the silence is noticed")
        time.sleep(14)
    finally:
        node.heal()
    run.until(lambda: run.workers()["actor-0"]["state"] == "running", "it is welcome back")
    summary = run.interrupt()
    expect_whole(summary)
    assert summary["restarts"] == {}
    assert summary["samples"]["unknown_workers"] == 0


def test_a_node_with_the_learner_is_lost_and_training_goes_on_elsewhere(lab: Lab) -> None:
    run = lab.train("limits.silence_s=6", "checkpoint.every_s=2", "--total-steps", "100M")
    run.until_training()
    run.until(run.has_checkpoint, "a checkpoint is stored")
    lost = lab.node_of(run, "learner-0")
    lab.power_off(lost)
    run.until(lambda: run.workers()["learner-0"]["incarnation"] == 1, "the learner has another incarnation")
    run.until(lambda: run.workers()["learner-0"]["progress"], "it learns")
    assert lab.node_of(run, "learner-0") is not lost
    summary = run.interrupt()
    expect_whole(summary)
    assert summary["restarts"]["learner"] >= 1
    lab.repair()
    assert set(lab.shared_memory().values()) == {""}


def test_without_the_right_token_nothing_runs(lab: Lab) -> None:
    train = [PODIUM, "train", "ppo", "gymnasium:CartPole-v1", "--on", lab.cluster.address, "--root", f"{HOME}/none"]
    told = lab.head.run(train, timeout=LIMIT_S)
    assert (told.returncode, told.stderr.count("\n")) == (2, 1)
    assert "set RAY_AUTH_MODE=token" in told.stderr
    told = lab.head.run(train, {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64}, timeout=LIMIT_S)
    assert told.returncode == 2
    assert "cannot join this Ray cluster" in told.stderr.splitlines()[-1]
