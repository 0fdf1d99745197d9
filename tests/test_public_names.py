"""The names that a release promises: a change here is a change for every user."""

import podium


def test_the_public_names_of_podium() -> None:
    assert sorted(podium.__all__) == [
        *("Callback", "CheckpointError", "ConfigError", "EnvError", "Evaluation", "Experiment", "PodiumError", "Run"),
        *("TrainingError", "dry_run", "evaluate", "load", "resume", "train", "train_seeds"),
    ]
    assert all(hasattr(podium, name) for name in podium.__all__)
