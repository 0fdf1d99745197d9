"""The two counts of env steps: what adds up, what is lost, and what stays unexplained."""

import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

from podium.runs.accounting import (
    ActorAccount,
    Booking,
    LearnerAccount,
    balance,
    go_back,
    last_report,
    next_incarnation,
    save_reports,
    tally,
)
from podium.runs.summary import Samples


def produce(
    actor: ActorAccount, *fragments: int, unfinished: int = 0, ends: bool = True, incarnation: str = "0.0"
) -> list[Booking]:
    """An actor that makes fragments of so many steps."""
    bookings = []
    for steps in fragments:
        actor.produced += steps
        sequence = actor.fragments
        actor.commit(sequence, steps)
        before = bookings[-1].produced if bookings else actor.produced - steps
        bookings.append(Booking(incarnation, sequence, steps, before + steps))
    actor.produced += unfinished
    if ends:
        actor.end(unfinished)
    return bookings


def test_all_that_was_trained_adds_up() -> None:
    actor, learner = ActorAccount.in_memory(), LearnerAccount(None)
    first, second, third = produce(actor, 10, 20, 30, unfinished=5)
    for booking in (first, second):
        assert learner.arrive(booking)
    learner.trained([first])
    learner.stale([second])
    samples = balance(learner.record, {"0.0": actor})
    assert samples == Samples(produced=65, trained=10, stale=20, in_flight=35)
    assert samples.unexplained == 0
    assert third.steps == 30


def test_what_a_dead_actor_had_under_way_is_lost() -> None:
    actor, learner = ActorAccount.in_memory(), LearnerAccount(None)
    (first, _) = produce(actor, 10, 20, unfinished=5, ends=False)
    learner.arrive(first)
    learner.trained([first])
    samples = balance(learner.record, {"0.0": actor})
    assert (samples.lost, samples.in_flight, samples.unexplained) == (25, 0, 0)


def test_what_was_in_flight_at_the_end_of_a_session_is_lost_to_the_next() -> None:
    actor, learner = ActorAccount.in_memory(), LearnerAccount(None)
    produce(actor, 10, unfinished=5)
    assert balance(learner.record, {"0.3": actor}, since=3).in_flight == 15
    assert balance(learner.record, {"0.3": actor}, since=4) == Samples(produced=15, lost=15)


def test_a_fragment_that_never_came_is_lost_and_known_by_its_successor() -> None:
    actor, learner = ActorAccount.in_memory(), LearnerAccount(None)
    first, _, third = produce(actor, 10, 20, 30)
    learner.arrive(first)
    learner.arrive(third)
    learner.trained([first, third])
    samples = balance(learner.record, {"0.0": actor})
    assert samples == Samples(produced=60, trained=40, lost=20)
    assert samples.unexplained == 0


def test_a_fragment_counted_twice_is_unexplained() -> None:
    actor, learner = ActorAccount.in_memory(), LearnerAccount(None)
    (first,) = produce(actor, 10)
    learner.arrive(first)
    learner.trained([first])
    learner.trained([first])
    assert balance(learner.record, {"0.0": actor}).unexplained == -10


def test_a_fragment_that_comes_again_before_it_was_trained_on_is_refused() -> None:
    actor, learner = ActorAccount.in_memory(), LearnerAccount(None)
    first, second = produce(actor, 10, 20)
    assert [learner.arrive(booking) for booking in (first, second, first, second)] == [True, True, False, False]
    learner.trained([first, second])
    assert balance(learner.record, {"0.0": actor}).unexplained == 0


def test_steps_that_vanish_without_a_trace_are_unexplained() -> None:
    actor, learner = ActorAccount.in_memory(), LearnerAccount(None)
    (first,) = produce(actor, 10)
    actor.produced += 7  # nobody says where they are
    learner.arrive(first)
    learner.trained([first])
    assert balance(learner.record, {"0.0": actor}).unexplained == 7


def test_a_fragment_that_comes_again_is_refused_though_a_later_one_was_booked_before_it(tmp_path: Path) -> None:
    first, second, third = produce(ActorAccount.in_memory(), 10, 20, 30)
    learner = LearnerAccount(tmp_path)
    for booking in (first, second, third):
        learner.arrive(booking)
    learner.stale([second])  # released at once, while the first one waits in a batch that is never trained on
    learner.close()
    again = LearnerAccount(tmp_path)
    assert again.arrive(first)
    assert not again.arrive(second)
    assert again.arrive(third)
    again.trained([first, third])
    assert (again.record.trained, again.record.stale, again.record.incarnations["0.0"].lost) == (40, 20, 0)
    again.close()


def test_over_a_transport_that_forgets_what_the_dead_learner_held_is_lost(tmp_path: Path) -> None:
    first, second, third, fourth = produce(ActorAccount.in_memory(), 10, 20, 30, 40)
    learner = LearnerAccount(tmp_path)
    for booking in (first, second, third):
        learner.arrive(booking)
    learner.trained([first])
    learner.stale([third])
    learner.close()
    again = LearnerAccount(tmp_path)
    assert again.arrive(fourth)
    assert again.record.incarnations["0.0"].lost == second.steps
    again.close()


def test_a_learner_that_goes_back_to_its_checkpoint_undoes_what_came_after(tmp_path: Path) -> None:
    actor = ActorAccount.create(tmp_path, 0, 0)
    bookings = produce(actor, 10, 20, 30)
    learner = LearnerAccount(tmp_path)
    learner.open(trained=0)
    for booking in bookings:
        learner.arrive(booking)
        learner.trained([booking])
    learner.close()
    again = LearnerAccount(tmp_path)
    again.open(trained=10)
    again.close()
    samples = tally(tmp_path)
    assert samples == Samples(produced=60, trained=10, undone=50)
    assert samples.unexplained == 0


def test_what_replay_workers_took_in_beyond_a_checkpoint_is_undone_when_all_begin_empty(tmp_path: Path) -> None:
    for shard in range(2):
        learner = LearnerAccount(tmp_path, f"replay-{shard}")
        for booking in produce(ActorAccount.create(tmp_path, shard, 0), 30, 50, incarnation=f"{shard}.0"):
            learner.arrive(booking)
            learner.trained([booking])
        learner.close()
    go_back(tmp_path, trained=100)
    assert tally(tmp_path) == Samples(produced=160, trained=100, undone=60)
    go_back(tmp_path, trained=100)  # a second time there is nothing to undo
    go_back(tmp_path, trained=40)
    assert tally(tmp_path) == Samples(produced=160, trained=40, undone=120)


def test_both_ledgers_outlive_a_kill(tmp_path: Path) -> None:
    script = textwrap.dedent(
        """
        import os, signal, sys
        from pathlib import Path
        from podium.runs.accounting import ActorAccount, Booking, LearnerAccount
        actor = ActorAccount.create(Path(sys.argv[1]), 0, 0)
        learner = LearnerAccount(Path(sys.argv[1]))
        for i in range(100):
            actor.produced += 3
            actor.commit(i, 3)
            learner.arrive(Booking("0.0", i, 3, 3 * i + 3))
            learner.trained([Booking("0.0", i, 3, 3 * i + 3)])
        actor.produced += 2
        os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    assert subprocess.run([sys.executable, "-c", script, str(tmp_path)], timeout=60).returncode == -9
    assert tally(tmp_path) == Samples(produced=302, trained=300, lost=2)


def test_a_record_that_was_cut_in_the_middle_gives_the_one_before(tmp_path: Path) -> None:
    learner = LearnerAccount(tmp_path)
    learner.open(trained=5)
    learner.open(trained=5)
    learner.open(trained=4)
    learner.close()
    file = tmp_path / "learner"
    newest = file.read_bytes()
    at = newest.rindex(b'"undone":1')
    file.write_bytes(newest[:at] + b'"undone":9' + newest[at + 10 :])
    assert LearnerAccount(tmp_path).record.trained == 5


def test_no_life_of_an_actor_or_a_replay_worker_has_been_in_an_earlier_session(tmp_path: Path) -> None:
    assert next_incarnation(tmp_path) == 0
    ActorAccount.create(tmp_path, worker=0, incarnation=0)
    assert next_incarnation(tmp_path) == 1
    for incarnation in (0, 1):  # it was started again, the actor never
        learner = LearnerAccount(tmp_path, "replay-0")
        learner.begin(incarnation)
        learner.close()
    assert next_incarnation(tmp_path) == 2


def test_accounts_close_by_reports_alone_where_actor_and_launcher_share_no_disk(tmp_path: Path) -> None:
    actor, learner = ActorAccount.in_memory(), LearnerAccount(tmp_path / "learners own disk")
    actor.produced = 70
    for sequence, steps in enumerate((20, 20, 15)):
        actor.commit(sequence, steps)
    received = Booking("0.3", 0, 20, 20)
    assert learner.arrive(received)
    learner.trained([received])
    actor.end(unfinished=15)
    reports = [actor.report("actor-0.3"), learner.report("learner")]
    learner.close()
    found = tally(tmp_path / "launchers disk", since=3, reports=reports)
    assert found == Samples(produced=70, trained=20, in_flight=50)
    assert found.unexplained == 0


def test_a_file_counts_before_a_report_of_it(tmp_path: Path) -> None:
    actor = ActorAccount.create(tmp_path, worker=0, incarnation=0)
    old = actor.report("actor-0.0")
    actor.produced = 30
    assert tally(tmp_path, reports=[old]).produced == 30


def test_what_a_lost_host_had_not_reported_is_unknown_and_never_explained_away(tmp_path: Path) -> None:
    actor, silent, learner = ActorAccount.in_memory(), Booking("1.0", 0, 10, 10), LearnerAccount(tmp_path)
    actor.produced = 30
    actor.commit(0, 20)
    report = actor.report("actor-0.0")
    later = [Booking("0.0", 0, 20, 20), Booking("0.0", 1, 25, 45)]  # the second came after the last report
    assert all(learner.arrive(booking) for booking in (*later, silent))
    learner.trained([*later, silent])
    learner.close()
    assert tally(tmp_path, running=True, reports=[report]) == Samples(produced=55, trained=55)
    found = tally(tmp_path, reports=[report])
    assert found == Samples(produced=55, trained=55, unknown_workers=2)
    assert found.unexplained == 0


def test_what_was_reported_counts_in_later_sessions_and_a_dead_workers_file_is_final(tmp_path: Path) -> None:
    actor, learner = ActorAccount.create(tmp_path / "node", 0, 3), LearnerAccount(tmp_path / "node")
    actor.produced = 30
    actor.commit(0, 20)
    booking = Booking("0.3", 0, 20, 20)
    assert learner.arrive(booking)
    learner.trained([booking])
    learner.close()
    killed = [last_report(tmp_path / "node", role, 0) for role in ("actor", "learner")]
    found = Samples(produced=30, trained=20, lost=10)
    assert tally(tmp_path / "launcher", reports=killed) == found
    assert last_report(tmp_path / "node", "evaluator", 0) == b""
    cut_off = actor.report("actor-0.3")
    save_reports(tmp_path / "saved", killed)
    save_reports(tmp_path / "saved", killed)
    save_reports(tmp_path / "unknown", [cut_off, killed[1]])
    assert tally(tmp_path / "saved") == found
    assert tally(tmp_path / "unknown") == replace(found, unknown_workers=1)
    assert next_incarnation(tmp_path / "saved") == 4


def test_a_learner_on_another_host_goes_on_from_its_predecessors_last_report(tmp_path: Path) -> None:
    first, second = LearnerAccount(tmp_path / "first"), LearnerAccount(tmp_path / "second")
    first.open(trained=0)
    bookings = [Booking("0.0", sequence, 10, 10 * (sequence + 1)) for sequence in range(3)]
    assert all(first.arrive(booking) for booking in bookings)
    first.trained(bookings)
    reports = [first.report("learner")]
    first.close()
    second.take_over(reports)
    second.open(trained=20)  # what its checkpoint knows
    assert (second.record.trained, second.record.undone) == (20, 10)
    assert not second.arrive(bookings[2])
    assert second.arrive(Booking("0.0", 3, 10, 40))
    stale = tally(tmp_path / "first", reports=[second.report("learner")])
    assert stale.trained == 20, "a newer report counts before an older file"
    second.close()
