"""The back end `threads`: the same program and supervision, in this process."""

import threading
from pathlib import Path

from orchestrator.supervision import QUICK, run_to_end, tick_until, worker
from orchestrator.toy_workers import group, program
from podium.orchestrator.backends import threads
from podium.orchestrator.status import read_status
from podium.orchestrator.supervisor import Outcome


def workers_left() -> list[str]:
    return [one.name for one in threading.enumerate() if one.name.startswith(("learner", "actor", "lease"))]


def test_workers_find_each_other_and_end_with_the_learner(tmp_path: Path) -> None:
    until, status = tmp_path / "until", tmp_path / "status.json"
    with threads(
        program(group("learner", "learn", until=str(until)), group("actor", "follow", 3)),
        lease_s=1.0,
        limits=QUICK,
        status=status,
    ) as supervisor:
        supervisor.start()
        tick_until(supervisor, lambda: all(worker(supervisor, f"actor-{index}").progress > 0 for index in range(3)))
        assert [one.state for one in supervisor.status().workers] == ["running"] * 4
        assert worker(supervisor, "actor-2").metrics == {"learner": 0.0}
        until.touch()
        assert run_to_end(supervisor) == Outcome("done", "", 0)
    assert workers_left() == []
    read = read_status(status)
    assert read is not None
    assert read.state == "done"
    assert [one.state for one in read.workers] == ["ended"] * 4


def test_a_worker_that_crashes_is_started_again_until_its_budget_is_used_up() -> None:
    with threads(
        program(group("learner", "work"), group("actor", "crash")),
        limits=QUICK,
    ) as supervisor:
        supervisor.start()
        outcome = run_to_end(supervisor)
    assert outcome.status == "failed"
    assert outcome.message.startswith("actor-0 died 5 times without progress: Traceback")
    assert outcome.message.endswith("RuntimeError: the toy broke in incarnation 4")
    assert supervisor.restarts == {"actor": 4}
    assert workers_left() == []


def test_a_worker_that_gets_on_between_its_deaths_is_always_started_again() -> None:
    with threads(program(group("learner", "work"), group("actor", "crash_with_progress")), limits=QUICK) as supervisor:
        supervisor.start()
        tick_until(supervisor, lambda: supervisor.restarts["actor"] >= 8)
        supervisor.stop("enough")
        assert run_to_end(supervisor) == Outcome("stopped", "enough", 130)


def test_an_entry_that_does_not_exist_ends_the_run_with_one_line() -> None:
    with threads(program(group("learner", "lern")), limits=QUICK) as supervisor:
        supervisor.start()
        assert run_to_end(supervisor) == Outcome(
            "failed",
            "entry of learner = 'orchestrator.toy_workers:lern': module 'orchestrator.toy_workers' has no 'lern'; "
            "did you mean 'learn'?",
            2,
        )


def test_a_loss_that_is_not_finite_ends_the_run_at_once() -> None:
    with threads(program(group("learner", "hopeless")), limits=QUICK) as supervisor:
        supervisor.start()
        assert run_to_end(supervisor) == Outcome("failed", "learner-0: the loss is not finite at update 7", 1)
        assert supervisor.restarts == {}


def test_a_launcher_that_leaves_without_a_word_leaves_no_thread() -> None:
    with threads(program(group("learner", "work"), group("actor", "work", 2)), limits=QUICK) as supervisor:
        supervisor.start()
    assert supervisor.outcome == Outcome("stopped", "the launcher left", 130)
    assert workers_left() == []
