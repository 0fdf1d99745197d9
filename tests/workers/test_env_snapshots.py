"""What a checkpoint is told of where a slot was, while its actor goes on."""

from podium.workers.env_snapshots import EnvSnapshots


def test_a_checkpoint_that_is_late_by_a_fragment_still_finds_its_place_and_no_other() -> None:
    snapshots = EnvSnapshots(5, "start")
    assert snapshots.at(5) == "start"
    snapshots.add(6, "after one")
    snapshots.add(7, "after two")  # the learner, which has made 6 updates, has not written its checkpoint yet
    assert (snapshots.at(6), snapshots.at(7)) == ("after one", "after two")
    assert snapshots.at(5) is None, "a place of another update would resume silently wrong"
    assert snapshots.at(8) is None


def test_environments_that_cannot_tell_have_no_snapshot() -> None:
    snapshots = EnvSnapshots(0, None)
    snapshots.add(1, None)
    assert snapshots.at(0) is None
    assert snapshots.at(1) is None
