"""Every error that Podium raises on purpose.

PodiumError
 ├── ConfigError        what the user typed is wrong; one line says what would be right (exit code 2)
 ├── EnvError           an environment raised or broke its own spec (exit code 1)
 ├── CheckpointError    no checkpoint of a run can be read (exit code 1)
 └── TrainingError      the run cannot go on: a loss that is not finite (exit code 1)
"""


class PodiumError(Exception):
    """Base of all: `except podium.PodiumError` catches what Podium knows about, and no bug."""

    exit_code = 1


class ConfigError(PodiumError):
    """The user's input is wrong: names the field, the value, and what would be right."""

    exit_code = 2


class EnvError(PodiumError):
    """An environment raised, or returned what its spec does not allow."""


class CheckpointError(PodiumError):
    """No checkpoint of the run can be read."""


class TrainingError(PodiumError):
    """Training cannot go on, and the last good checkpoint is kept."""
