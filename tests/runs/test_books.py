"""The two counts of env steps: what adds up, what is lost, and what stays unexplained."""

import subprocess
import sys
import textwrap
from pathlib import Path

from podium.runs.books import ActorLedger, Booking, Books, balance, go_back, next_incarnation, tally
from podium.runs.summary import Samples


def produce(
    ledger: ActorLedger, *fragments: int, unfinished: int = 0, ends: bool = True, life: str = "0.0"
) -> list[Booking]:
    """An actor that makes fragments of so many steps."""
    bookings = []
    for steps in fragments:
        ledger.produced += steps
        sequence = ledger.fragments
        ledger.commit(sequence, steps)
        before = bookings[-1].produced if bookings else ledger.produced - steps
        bookings.append(Booking(life, sequence, steps, before + steps))
    ledger.produced += unfinished
    if ends:
        ledger.end(unfinished)
    return bookings


def test_all_that_was_trained_adds_up() -> None:
    ledger, books = ActorLedger.in_memory(), Books(None)
    first, second, third = produce(ledger, 10, 20, 30, unfinished=5)
    for booking in (first, second):
        assert books.arrive(booking)
    books.trained([first])
    books.stale([second])
    samples = balance(books.account, {"0.0": ledger})
    assert samples == Samples(produced=65, trained=10, stale=20, in_flight=35)
    assert samples.unexplained == 0
    assert third.steps == 30


def test_what_a_dead_actor_had_under_way_is_lost() -> None:
    ledger, books = ActorLedger.in_memory(), Books(None)
    (first, _) = produce(ledger, 10, 20, unfinished=5, ends=False)
    books.arrive(first)
    books.trained([first])
    samples = balance(books.account, {"0.0": ledger})
    assert (samples.lost, samples.in_flight, samples.unexplained) == (25, 0, 0)


def test_what_was_in_flight_at_the_end_of_a_session_is_lost_to_the_next() -> None:
    ledger, books = ActorLedger.in_memory(), Books(None)
    produce(ledger, 10, unfinished=5)
    assert balance(books.account, {"0.3": ledger}, since=3).in_flight == 15
    assert balance(books.account, {"0.3": ledger}, since=4) == Samples(produced=15, lost=15)


def test_a_fragment_that_never_came_is_lost_and_known_by_its_successor() -> None:
    ledger, books = ActorLedger.in_memory(), Books(None)
    first, _, third = produce(ledger, 10, 20, 30)
    books.arrive(first)
    books.arrive(third)
    books.trained([first, third])
    samples = balance(books.account, {"0.0": ledger})
    assert samples == Samples(produced=60, trained=40, lost=20)
    assert samples.unexplained == 0


def test_a_fragment_counted_twice_is_unexplained() -> None:
    ledger, books = ActorLedger.in_memory(), Books(None)
    (first,) = produce(ledger, 10)
    books.arrive(first)
    books.trained([first])
    books.trained([first])
    assert balance(books.account, {"0.0": ledger}).unexplained == -10


def test_a_fragment_that_comes_again_before_it_was_trained_on_is_refused() -> None:
    ledger, books = ActorLedger.in_memory(), Books(None)
    first, second = produce(ledger, 10, 20)
    assert [books.arrive(booking) for booking in (first, second, first, second)] == [True, True, False, False]
    books.trained([first, second])
    assert balance(books.account, {"0.0": ledger}).unexplained == 0


def test_steps_that_vanish_without_a_trace_are_unexplained() -> None:
    ledger, books = ActorLedger.in_memory(), Books(None)
    (first,) = produce(ledger, 10)
    ledger.produced += 7  # nobody says where they are
    books.arrive(first)
    books.trained([first])
    assert balance(books.account, {"0.0": ledger}).unexplained == 7


def test_a_fragment_that_comes_again_is_refused_though_a_later_one_was_booked_before_it(tmp_path: Path) -> None:
    first, second, third = produce(ActorLedger.in_memory(), 10, 20, 30)
    books = Books(tmp_path)
    for booking in (first, second, third):
        books.arrive(booking)
    books.stale([second])  # released at once, while the first one waits in a batch that is never trained on
    books.close()
    again = Books(tmp_path)
    assert again.arrive(first)
    assert not again.arrive(second)
    assert again.arrive(third)
    again.trained([first, third])
    assert (again.account.trained, again.account.stale, again.account.lives["0.0"].lost) == (40, 20, 0)
    again.close()


def test_over_a_transport_that_forgets_what_the_dead_learner_held_is_lost(tmp_path: Path) -> None:
    first, second, third, fourth = produce(ActorLedger.in_memory(), 10, 20, 30, 40)
    books = Books(tmp_path)
    for booking in (first, second, third):
        books.arrive(booking)
    books.trained([first])
    books.stale([third])
    books.close()
    again = Books(tmp_path)
    assert again.arrive(fourth)
    assert again.account.lives["0.0"].lost == second.steps
    again.close()


def test_a_learner_that_goes_back_to_its_checkpoint_undoes_what_came_after(tmp_path: Path) -> None:
    ledger = ActorLedger.create(tmp_path, 0, 0)
    bookings = produce(ledger, 10, 20, 30)
    books = Books(tmp_path)
    books.open(trained=0)
    for booking in bookings:
        books.arrive(booking)
        books.trained([booking])
    books.close()
    again = Books(tmp_path)
    again.open(trained=10)
    again.close()
    samples = tally(tmp_path)
    assert samples == Samples(produced=60, trained=10, undone=50)
    assert samples.unexplained == 0


def test_what_replay_workers_took_in_beyond_a_checkpoint_is_undone_when_all_begin_empty(tmp_path: Path) -> None:
    for shard in range(2):
        books = Books(tmp_path, f"replay-{shard}")
        for booking in produce(ActorLedger.create(tmp_path, shard, 0), 30, 50, life=f"{shard}.0"):
            books.arrive(booking)
            books.trained([booking])
        books.close()
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
        from podium.runs.books import ActorLedger, Booking, Books
        ledger = ActorLedger.create(Path(sys.argv[1]), 0, 0)
        books = Books(Path(sys.argv[1]))
        for i in range(100):
            ledger.produced += 3
            ledger.commit(i, 3)
            books.arrive(Booking("0.0", i, 3, 3 * i + 3))
            books.trained([Booking("0.0", i, 3, 3 * i + 3)])
        ledger.produced += 2
        os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    assert subprocess.run([sys.executable, "-c", script, str(tmp_path)], timeout=60).returncode == -9
    assert tally(tmp_path) == Samples(produced=302, trained=300, lost=2)


def test_a_record_that_was_cut_in_the_middle_gives_the_one_before(tmp_path: Path) -> None:
    books = Books(tmp_path)
    books.open(trained=5)
    books.open(trained=5)
    books.open(trained=4)
    books.close()
    file = tmp_path / "learner"
    newest = file.read_bytes()
    at = newest.rindex(b'"undone":1')
    file.write_bytes(newest[:at] + b'"undone":9' + newest[at + 10 :])
    assert Books(tmp_path).account.trained == 5


def test_no_life_of_an_actor_or_a_replay_worker_has_been_in_an_earlier_session(tmp_path: Path) -> None:
    assert next_incarnation(tmp_path) == 0
    ActorLedger.create(tmp_path, worker=0, incarnation=0)
    assert next_incarnation(tmp_path) == 1
    for life in (0, 1):  # it was started again, the actor never
        books = Books(tmp_path, "replay-0")
        books.begin(life)
        books.close()
    assert next_incarnation(tmp_path) == 2
