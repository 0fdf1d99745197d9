"""What a checkpoint is told of where a slot was, while its actor goes on."""

from podium.workers.places import Places


def test_a_checkpoint_that_is_late_by_a_fragment_still_finds_its_place_and_no_other() -> None:
    places = Places(5, "start")
    assert places.at(5) == "start"
    places.add(6, "after one")
    places.add(7, "after two")  # the learner, which has made 6 updates, has not written its checkpoint yet
    assert (places.at(6), places.at(7)) == ("after one", "after two")
    assert places.at(5) is None, "a place of another update would resume silently wrong"
    assert places.at(8) is None


def test_environments_that_cannot_tell_have_no_place() -> None:
    places = Places(0, None)
    places.add(1, None)
    assert places.at(0) is None
    assert places.at(1) is None
