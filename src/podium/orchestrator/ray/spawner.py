"""Starts workers on the nodes of a Ray cluster: Ray finds each a place, a seat there holds its process."""

import contextlib
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import ray
from ray.exceptions import RayActorError, RayError
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from podium.core.errors import ConfigError
from podium.orchestrator.host import Host
from podium.orchestrator.process import Description
from podium.orchestrator.processes import describe_worker
from podium.orchestrator.program import Group, Program, Resources
from podium.orchestrator.ray.seat import CALLS, Ended, Seat
from podium.orchestrator.spawner import Handle, Spawner
from podium.protocol.membership import host_identity
from podium.protocol.run_keys import RunKeys

LOST = -9
"""The exit code of a worker whose node is gone: nothing else is known of it."""
KILL_S = 5.0
"""How long a killed worker may take to be reported as ended: then its node is taken for lost."""
LEAVE_S = 10.0

Stage = Literal["placing", "seating", "starting", "running", "over"]


class RayHandle(Handle):
    """An incarnation of a worker on its way through a cluster: placed, seated, started, running, over.

    No call waits for Ray: each looks whether the present step is done, and begins the next.
    """

    def __init__(
        self, name: str, seat: "SeatRecord", description: Description, resources: Resources, logs: str
    ) -> None:
        self.name, self.pid = name, None
        self._seat, self._description, self._resources, self._logs = seat, description, resources, logs
        self._stage: Stage = "placing"
        self._answer: Any = seat.place()
        self._ended: Ended | None = None
        self._killed_at: float | None = None

    @property
    def pending(self) -> bool:
        self._advance()
        return self._stage == "placing"

    def poll(self) -> int | None:
        self._advance()
        if self._ended is None and self._killed_at is not None and time.monotonic() - self._killed_at > KILL_S:
            self._lose("its node does not answer")
        return None if self._ended is None else self._ended.code

    def terminate(self) -> None:
        if self._stage == "running":
            self._seat.actor.terminate.remote()
        else:
            self.kill()

    def kill(self) -> None:
        if self._ended is None and self._killed_at is None:
            self._killed_at = time.monotonic()
            if self._stage == "running":
                self._seat.actor.kill.remote()
            else:
                self._lose("it was not started yet")

    def wait(self, timeout: float) -> int | None:
        end = time.monotonic() + timeout
        while (code := self.poll()) is None and (left := end - time.monotonic()) > 0:
            ray.wait([self._answer], timeout=min(left, 0.2))
        return code

    def failure(self) -> str | None:
        return None if self._ended is None else self._ended.failure

    def account(self) -> bytes:
        return b"" if self._ended is None else self._ended.account

    def _advance(self) -> None:
        while self._stage != "over" and self._is_answered():
            try:
                self._step(ray.get(self._answer))
            except RayActorError as error:
                self._seat.forget()
                self._lose(f"its seat is gone: {str(error).splitlines()[0]}")
            except RayError as error:
                self._lose(str(error).splitlines()[0])

    def _is_answered(self) -> bool:
        return bool(ray.wait([self._answer], timeout=0)[0])

    def _step(self, answer: Any) -> None:
        if self._stage == "placing":
            self._stage, self._answer = "seating", self._seat.take()
        elif self._stage == "seating":
            description = replace(self._description, host=answer)
            self._stage = "starting"
            self._answer = self._seat.actor.start.remote(description, self._resources, self._logs)
        elif self._stage == "starting":
            self.pid = answer
            self._stage, self._answer = "running", self._seat.actor.ended.remote()
        else:
            self._finish(Ended(*answer))

    def _lose(self, why: str) -> None:
        self._finish(Ended(LOST, f"error: {self.name} is lost: {why}"))
        self._seat.forget()

    def _finish(self, ended: Ended) -> None:
        self._ended, self._stage = ended, "over"


class SeatRecord:
    """What the spawner knows of one worker's seat: its place, and the actor there. It outlives incarnations."""

    def __init__(self, run: str, name: str, resources: Resources) -> None:
        self._run, self._name, self._resources = run, f"{run}-{name}", resources
        self._group: PlacementGroup | None = None
        self.actor: Any = None

    def place(self) -> Any:
        """Ask Ray for room, unless there is some already; the answer comes when there is."""
        if self._group is None:
            self._group = placement_group([bundle(self._resources)], strategy="STRICT_PACK", name=self._name)
        return self._group.ready()

    def take(self) -> Any:
        """Ask where the seat is, after making it if need be."""
        if self.actor is None:
            assert self._group is not None, "place comes first"
            strategy = PlacementGroupSchedulingStrategy(placement_group=self._group, placement_group_bundle_index=0)
            seat = ray.remote(Seat).options(
                num_cpus=self._resources.cpus,
                num_gpus=self._resources.gpus,
                max_restarts=0,
                max_task_retries=0,
                max_concurrency=CALLS,
                scheduling_strategy=strategy,
            )
            self.actor = seat.remote(self._run)
        return self.actor.host.remote(self._resources.cpus)

    def is_infeasible(self) -> bool:
        """Whether Ray says that no node could ever hold it."""
        return self._group is not None and placement_group_table(self._group)["state"] == "INFEASIBLE"

    def forget(self) -> None:
        """Give up the seat and its place: the next incarnation begins with a new one, perhaps elsewhere."""
        if self.actor is not None:
            with contextlib.suppress(RayError):
                ray.kill(self.actor)
        if self._group is not None:
            with contextlib.suppress(RayError):
                remove_placement_group(self._group)
        self._group = self.actor = None

    def leave(self) -> Any:
        """Ask the seat to clean up; None if there is none."""
        return None if self.actor is None else self.actor.leave.remote()


class RaySpawner(Spawner):
    """Workers join the directory at `endpoint`; on each node their output goes to LOGS/ROLE-INDEX.log."""

    def __init__(
        self, program: Program, run: str, endpoint: str, keys: RunKeys, logs: Path, *, leave_s: float = 4.0
    ) -> None:
        self.host = host_identity()
        self._program, self._run, self._endpoint, self._keys = program, run, endpoint, keys
        self._logs, self._leave_s = str(logs), leave_s
        self._seats: dict[tuple[str, int], SeatRecord] = {}

    def start(self, group: Group, index: int, incarnation: int) -> RayHandle:
        fresh = SeatRecord(self._run, f"{group.role}-{index}", group.resources)
        seat = self._seats.setdefault((group.role, index), fresh)
        nowhere = Host("", "", "", 1)  # until the seat is known
        options = {"directory": self._endpoint, "host": nowhere, "leave_s": self._leave_s}
        description = describe_worker(self._program, group, index, incarnation, self._keys, **options)
        return RayHandle(f"{group.role}-{index}", seat, description, group.resources, self._logs)

    def close(self) -> None:
        """Leave no seat and no place behind."""
        asked = [answer for seat in self._seats.values() if (answer := seat.leave()) is not None]
        if asked:
            ray.wait(asked, num_returns=len(asked), timeout=LEAVE_S)
        for seat in self._seats.values():
            seat.forget()


def bundle(resources: Resources) -> dict[str, float]:
    """What a worker asks Ray for."""
    asked = {"CPU": float(resources.cpus), "GPU": float(resources.gpus)}
    if resources.memory_mb:
        asked["memory"] = float(resources.memory_mb * 2**20)
    if resources.pool:
        asked[pool_resource(resources.pool)] = 0.001
    asked = {name: amount for name, amount in asked.items() if amount}
    return asked or {"CPU": 0.001}  # Ray takes no empty bundle


def pool_resource(pool: str) -> str:
    """The resource that marks the nodes of a pool."""
    return f"pool_{pool}"


def refuse_infeasible(program: Program) -> None:
    """Raise ConfigError if some worker fits on no node that the cluster has."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    for group in program.groups:
        asked = bundle(group.resources)
        if not any(all(node.get(name, 0) >= amount for name, amount in asked.items()) for node in nodes):
            raise ConfigError(
                f"{group.role} asks for {_listed(asked)}, which no node has; "
                f"the cluster has {'; '.join(_listed(node) for node in nodes) or 'no node'}"
            )


def _listed(amounts: Mapping[str, float]) -> str:
    names = {"CPU": "cpus", "GPU": "gpus", "memory": "bytes of memory"}
    known = [(names.get(key, key), value) for key, value in amounts.items() if key in names or key.startswith("pool_")]
    return ", ".join(f"{value:g} {name}" for name, value in known)
