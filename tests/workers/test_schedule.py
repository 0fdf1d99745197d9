"""What `topology.staleness` means: synchronous at 0, bounded beyond."""

import numpy as np
import pytest

from podium.protocol.schema import Version
from podium.workers.schedule import Bounded, Synchronous, make_schedule


def test_staleness_0_takes_turns_and_more_runs_ahead() -> None:
    assert (make_schedule(0), make_schedule(3)) == (Synchronous(0), Bounded(3))
    assert (make_schedule(0).in_turns, make_schedule(3).in_turns) == (True, False)


@pytest.mark.parametrize(("staleness", "parts", "credits"), [(0, 1, 4), (1, 1, 8), (2, 1, 12), (0, 4, 4), (2, 4, 36)])
def test_a_slot_has_a_buffer_for_each_part_that_it_may_be_ahead_and_one_to_fill(
    staleness: int, parts: int, credits: int
) -> None:
    assert make_schedule(staleness).credits(4, parts) == credits


@pytest.mark.parametrize(
    ("played", "newest", "may"),
    [
        (None, None, False),
        (None, Version(0, 0), True),
        (Version(0, 0), Version(0, 0), False),
        (Version(0, 0), Version(0, 1), True),
        (Version(0, 7), Version(1, 3), True),  # a restored learner's is newer than its predecessor's
    ],
)
def test_in_turns_a_slot_begins_once_with_each_version(played: Version | None, newest: Version | None, may: bool):
    assert make_schedule(0).may_begin(played, newest) is may
    assert make_schedule(1).may_begin(played, newest), "credit alone decides"


def test_in_turns_a_fragment_has_the_number_and_place_that_its_version_and_slot_give() -> None:
    assert make_schedule(0).number(5, Version(1, 3)) == 3
    assert make_schedule(0).place(slot=2, arrived=0) == 2


def test_else_it_is_numbered_by_its_slot_and_placed_as_it_comes() -> None:
    assert make_schedule(1).number(5, Version(1, 3)) == 5
    assert make_schedule(1).place(slot=2, arrived=0) == 0


@pytest.mark.parametrize(("staleness", "old"), [(0, [True, True, False, False]), (1, [True, False, False, False])])
def test_steps_older_than_the_bound_are_left_out(staleness: int, old: list[bool]) -> None:
    """The last one is by a version that a restored learner has not reached again."""
    updates = np.array([5, 6, 7, 8], np.int32)
    assert make_schedule(staleness).too_old(updates, newest=7).tolist() == old
    assert not make_schedule(staleness, any_age=True).too_old(updates, newest=7).any()


def test_what_a_dead_learner_had_asked_for_is_refused_however_new_but_for_replay() -> None:
    newest = Version(1, 7)
    assert [make_schedule(1).accepts(v, newest) for v in (Version(0, 9), Version(1, 5), Version(1, 6))] == [
        False,
        False,
        True,
    ]
    assert make_schedule(1, any_age=True).accepts(Version(0, 0), newest)
