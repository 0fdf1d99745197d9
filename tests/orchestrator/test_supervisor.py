"""What supervision decides, and when: with a clock of the test's own and workers that end as the test says.

What processes really do is in test_local_workers.py.
"""

import itertools
import threading
from dataclasses import replace

import pytest

from orchestrator.toy_workers import group, program
from podium.core.errors import EnvError, EnvLostError, TrainingError
from podium.orchestrator.program import Group
from podium.orchestrator.spawner import Handle, Spawner
from podium.orchestrator.supervisor import LIMITS, Limits, Outcome, Supervisor
from podium.orchestrator.worker import ENV_FAILED, FAILED, HOPELESS, MISCONFIGURED, STOPPED, supervised
from podium.protocol.directory import Directory, Registration

TICK_S = 0.05


class Incarnation(Handle):
    """An incarnation that ends when the test says so; it notes what was done to it, and when."""

    def __init__(self, stage: "Stage", group: Group, index: int, incarnation: int) -> None:
        self.name, self.pid = f"{group.role}-{index}", 1000 + len(stage.incarnations)
        self.stage, self.entry = stage, Registration(group.role, index, incarnation, "host", self.pid)
        self.code: int | None = None
        self.words: str | None = None
        self.done: list[tuple[str, float]] = []
        self.mortal = True
        self.waits = False

    @property
    def pending(self) -> bool:
        return self.waits

    def poll(self) -> int | None:
        return self.code

    def terminate(self) -> None:
        self.done.append(("terminate", self.stage.now))

    def kill(self) -> None:
        self.done.append(("kill", self.stage.now))
        if self.mortal:
            self.code = -9

    def wait(self, timeout: float) -> int | None:
        return self.code

    def failure(self) -> str | None:
        return self.words


class Stage(Spawner):
    """A supervisor, its clock and its workers. Workers renew their leases by themselves unless they are `frozen`."""

    host = "host"

    def __init__(self, *groups: Group, limits: Limits = LIMITS) -> None:
        self.now = 0.0
        self.incarnations: list[Incarnation] = []
        self.starts: list[tuple[str, float]] = []
        self.frozen: set[str] = set()
        self.progress = 0
        self.refuses: OSError | None = None
        self.directory = Directory(lease_s=5, clock=lambda: self.now)
        self.supervisor = Supervisor(
            program(group("learner", "learn"), *groups),
            self,
            self.directory,
            limits=limits,
            clock=lambda: self.now,
        )
        self.supervisor.start()

    def start(self, group: Group, index: int, incarnation: int) -> Incarnation:
        self.starts.append((f"{group.role}-{index}.{incarnation}", round(self.now, 6)))
        if self.refuses:
            raise self.refuses
        self.incarnations.append(Incarnation(self, group, index, incarnation))
        return self.incarnations[-1]

    def current(self, name: str) -> Incarnation:
        return [incarnation for incarnation in self.incarnations if incarnation.name == name][-1]

    def run(self, seconds: float) -> None:
        end = self.now + seconds - 1e-9
        while self.now < end and self.supervisor.outcome is None:
            self.now += TICK_S
            for incarnation in self.incarnations:
                place = incarnation.entry.role, incarnation.entry.index, incarnation.entry.incarnation
                withdrawn = self.directory.state(*place) == "withdrawn"
                if incarnation.code is None and incarnation.name not in self.frozen and not withdrawn:
                    self.directory.renew(
                        Registration(*place, "host", incarnation.entry.pid, ready=True, progress=self.progress)
                    )
            self.supervisor.tick()

    def end(self, name: str, code: int, words: str | None = None) -> None:
        self.current(name).words = words
        self.current(name).code = code


def states(stage: Stage) -> list[str]:
    return [one.state for one in stage.supervisor.status().workers]


def test_five_deaths_without_progress_end_the_run_with_the_last_traceback() -> None:
    stage = Stage(group("actor", "work"))
    for incarnation in range(5):
        stage.run(1.5)
        stage.end("actor-0", 1, f"Traceback (most recent call last):\nValueError: {incarnation}")
    stage.run(0.2)
    assert [incarnation.entry.incarnation for incarnation in stage.incarnations if incarnation.name == "actor-0"] == [
        0,
        1,
        2,
        3,
        4,
    ]
    assert stage.supervisor.restarts == {"actor": 4}
    stage.end("learner-0", STOPPED)
    stage.run(1)
    assert stage.supervisor.outcome == Outcome(
        "failed",
        "actor-0 died 5 times without progress: Traceback (most recent call last):\nValueError: 4",
        1,
    )


def test_deaths_with_progress_in_between_never_end_the_run() -> None:
    stage = Stage(group("actor", "work"))
    stage.progress = 3
    for _ in range(12):
        stage.run(1)
        stage.end("actor-0", -11)
    stage.run(1)
    assert stage.supervisor.outcome is None
    assert stage.supervisor.restarts == {"actor": 12}
    assert stage.supervisor.causes == {"actor-0": ["killed by SIGSEGV"] * 12}
    assert stage.current("actor-0").entry.incarnation == 12
    waits = [later - earlier for (_, earlier), (_, later) in itertools.pairwise(stage.starts[1:])]
    assert max(waits) < 1.5  # the back-off begins anew each time


def test_back_off_doubles_up_to_five_seconds_also_if_nothing_can_be_started() -> None:
    stage = Stage(group("actor", "work"), limits=Limits(deaths=10))
    stage.refuses = OSError("no more processes")
    stage.end("actor-0", -9)
    stage.run(60)
    tried = [at for name, at in stage.starts if name.startswith("actor")]
    waits = [later - earlier for earlier, later in itertools.pairwise(tried)]
    assert waits == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5, 5, 5], abs=0.11)
    assert stage.supervisor.status().message == (
        "actor-0 died 10 times without progress: could not be started: no more processes"
    )


@pytest.mark.parametrize(("role", "code"), [("actor", 0), ("actor", 3), ("learner", 3), ("learner", 1), ("actor", -9)])
def test_who_ends_unasked_is_started_again_with_the_next_incarnation(role: str, code: int) -> None:
    stage = Stage(group("actor", "work"))
    stage.run(1)
    stage.end(f"{role}-0", code)
    stage.run(0.1)
    assert sorted(states(stage)) == ["restarting", "running"]
    stage.run(1)
    assert states(stage) == ["running", "running"]
    assert stage.starts[-1][0] == f"{role}-0.1"
    assert stage.directory.state(role, 0, 0) == "unknown"  # only its successor is known


def test_the_learners_end_ends_the_others_first_kindly_then_not() -> None:
    stage = Stage(group("actor", "work", 2))
    stage.run(1)
    stage.end("learner-0", 0)
    stage.run(0.1)
    assert stage.directory.news().stop
    assert stage.supervisor.status().state == "stopping"
    stage.end("actor-0", STOPPED)
    at = stage.now
    stage.run(30)
    deaf = stage.current("actor-1")
    assert [what for what, _ in deaf.done] == ["terminate", "kill"]
    assert [when - at for _, when in deaf.done] == pytest.approx([4, 8], abs=0.2)
    assert stage.current("actor-0").done == []
    assert stage.supervisor.outcome == Outcome("done", "", 0)
    assert states(stage) == ["ended"] * 3
    assert stage.supervisor.restarts == {}


def test_stop_gives_the_learner_time_for_a_checkpoint_and_the_others_as_long() -> None:
    stage = Stage(group("actor", "work"))
    stage.run(1)
    stage.supervisor.stop("Ctrl-C")
    stage.run(50)
    assert stage.directory.news().stop
    assert [incarnation.done for incarnation in stage.incarnations] == [[], []]
    stage.end("learner-0", STOPPED)
    stage.run(3)
    stage.end("actor-0", STOPPED)
    stage.run(1)
    assert stage.supervisor.outcome == Outcome("stopped", "Ctrl-C", 130)


def test_a_learner_that_does_not_stop_is_killed_and_that_is_a_failure() -> None:
    stage = Stage(group("actor", "work"))
    stage.run(1)
    stage.supervisor.stop("Ctrl-C")
    stage.end("actor-0", STOPPED)
    stage.run(100)
    assert [when for _, when in stage.current("learner-0").done] == pytest.approx([61, 65], abs=0.3)
    assert stage.supervisor.outcome == Outcome(
        "failed", "learner-0 failed while it stopped: did not stop when it was told to, and was killed", 1
    )


def test_a_learner_that_finishes_while_the_run_is_stopped_is_done() -> None:
    stage = Stage()
    stage.run(1)
    stage.supervisor.stop("Ctrl-C")
    stage.end("learner-0", 0)
    stage.run(1)
    assert stage.supervisor.outcome == Outcome("done", "", 0)


def test_a_configuration_error_ends_the_run_at_once_with_its_line() -> None:
    stage = Stage(group("actor", "work"))
    stage.run(1)
    stage.end("actor-0", MISCONFIGURED, "error: env.num_envs = 0: must be at least 1")
    stage.run(0.1)
    stage.end("learner-0", STOPPED)
    stage.run(1)
    assert stage.supervisor.outcome == Outcome("failed", "env.num_envs = 0: must be at least 1", 2, MISCONFIGURED)
    assert stage.supervisor.restarts == {}


def test_what_would_fail_again_after_hours_is_not_tried_again() -> None:
    stage = Stage()
    stage.progress = 9
    stage.run(1)
    stage.end("learner-0", HOPELESS, "error: the loss is not finite")
    stage.run(1)
    assert stage.supervisor.outcome == Outcome("failed", "learner-0: the loss is not finite", 1, HOPELESS)


def test_a_group_that_is_not_to_be_restarted_fails_the_run() -> None:
    stage = Stage(group("actor", "work", restart=False))
    stage.end("actor-0", -9)
    stage.run(0.1)
    stage.end("learner-0", STOPPED)
    stage.run(1)
    assert stage.supervisor.outcome == Outcome(
        "failed", "actor-0 died, and is not to be restarted: killed by SIGKILL", 1
    )


def test_a_lease_that_ran_out_though_the_process_lives_gets_it_killed_and_replaced() -> None:
    stage = Stage(group("actor", "work", 2))
    stage.run(1)
    stage.frozen.add("actor-1")
    stage.run(4.5)
    assert stage.current("actor-1").done == []
    stage.run(1)
    assert [what for what, _ in stage.incarnations[2].done] == ["kill"]
    stage.frozen.clear()
    stage.run(1)
    assert states(stage) == ["running"] * 3
    assert stage.supervisor.restarts == {"actor": 1}


def test_a_silent_worker_is_kept_for_a_while_and_is_welcome_back() -> None:
    stage = Stage(group("actor", "work", 2), limits=replace(LIMITS, silence_s=30.0))
    stage.run(1)
    stage.frozen.add("actor-0")
    stage.run(25)
    assert (stage.supervisor.restarts, states(stage)) == ({}, ["running", "silent", "running"])
    stage.frozen.clear()
    stage.run(1)
    assert (stage.supervisor.restarts, states(stage)) == ({}, ["running"] * 3)
    stage.frozen.add("actor-0")
    stage.run(31)
    assert stage.supervisor.restarts == {"actor": 1}


def test_who_never_registers_has_two_minutes_for_its_imports() -> None:
    stage = Stage(group("actor", "work"))
    stage.frozen.add("actor-0")
    stage.run(119)
    assert stage.current("actor-0").done == []
    assert states(stage) == ["running", "starting"]
    stage.run(2)
    assert stage.supervisor.restarts == {"actor": 1}


def test_a_worker_that_waits_for_room_is_pending_and_its_clock_begins_when_it_has_a_place() -> None:
    stage = Stage(group("actor", "work"))
    stage.frozen.add("actor-0")
    stage.current("actor-0").waits = True
    stage.run(1000)
    assert (stage.supervisor.restarts, states(stage)) == ({}, ["running", "pending"])
    stage.current("actor-0").waits = False
    stage.run(119)
    assert (stage.supervisor.restarts, states(stage)) == ({}, ["running", "starting"])
    stage.run(2)
    assert stage.supervisor.restarts == {"actor": 1}


def test_a_process_that_outlives_its_own_farewell_is_killed() -> None:
    stage = Stage(group("actor", "work"))
    stage.run(1)
    stage.directory.withdraw("actor", 0, 0)
    stage.run(29)
    assert stage.incarnations[1].done == []
    stage.run(2)
    assert [what for what, _ in stage.incarnations[1].done] == ["kill"]
    assert stage.supervisor.restarts == {"actor": 1}


def test_a_launcher_that_was_asleep_kills_nobody_for_it() -> None:
    stage = Stage(group("actor", "work"))
    stage.run(1)
    stage.now += 20  # nobody's renewal was heard, and everybody's lease has run out
    stage.supervisor.tick()
    assert [incarnation.done for incarnation in stage.incarnations] == [[], []]
    stage.run(1)
    assert states(stage) == ["running", "running"]
    stage.frozen.add("actor-0")
    stage.run(6)
    assert stage.supervisor.restarts == {"actor": 1}  # but who stays silent is found out


def test_what_cannot_be_ended_is_said_and_does_not_hang() -> None:
    stage = Stage(group("actor", "work"))
    stage.current("actor-0").mortal = False
    stage.run(1)
    stage.end("learner-0", 0)
    stage.run(100)
    assert stage.supervisor.outcome == Outcome("failed", "actor-0 cannot be ended", 1)


def test_a_program_without_a_learner_is_a_bug_of_the_launcher() -> None:
    with pytest.raises(ValueError, match="no group 'leader'"):
        Supervisor(program(group("learner", "learn")), Stage(), Directory(), lead="leader")


def test_an_environment_that_raises_ends_the_run_however_much_was_done_before() -> None:
    stage = Stage(group("actor", "work"))
    stage.progress = 3
    stage.run(1)
    stage.end("actor-0", ENV_FAILED, "error: environment 3 (seed 7) raised in step:\nZeroDivisionError")
    stage.run(0.2)
    stage.end("learner-0", STOPPED)
    stage.run(1)
    line = "actor-0: environment 3 (seed 7) raised in step:\nZeroDivisionError"
    assert stage.supervisor.outcome == Outcome("failed", line, 1, ENV_FAILED)
    assert stage.supervisor.restarts == stage.supervisor.causes == {}


@pytest.mark.parametrize(
    ("error", "code"),
    [(EnvError("x"), ENV_FAILED), (EnvLostError("x"), FAILED), (TrainingError("x"), HOPELESS)],
)
def test_only_a_lost_environment_is_a_death_to_go_on_from(error: Exception, code: int) -> None:
    def work() -> None:
        raise error

    assert supervised(work, threading.Event()) == (code, "error: x")
