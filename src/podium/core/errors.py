"""Every error that Podium raises on purpose.

PodiumError
 ├── ConfigError        what the user typed is wrong; one line says what would be right (exit code 2)
 ├── EnvError           an environment raised or broke its own spec: the run ends (exit code 1)
 │    ├── EnvLostError          what steps environments died or hangs: a worker is restarted, or the run ends
 │    └── EndlessEpisodeError   a greedy episode did not end: the run is done, without evaluation
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


class EnvLostError(EnvError):
    """What steps the environments died or hangs. Another process may do better, so a worker is restarted."""


class EndlessEpisodeError(EnvError):
    """A greedy episode did not end. What was learned is not the worse for it."""


class CheckpointError(PodiumError):
    """No checkpoint of the run can be read."""


class TrainingError(PodiumError):
    """Training cannot go on, and the last good checkpoint is kept."""
