"""Every error that Podium raises on purpose, in one tree.

PodiumError
 ├── ConfigError              what the user typed is wrong; one line says what would be right (exit code 2)
 ├── EnvError                 an environment raised or broke its own spec: the run ends (exit code 1)
 │    ├── EnvLostError        what steps environments died or hangs: a worker is restarted, or the run ends
 │    └── EndlessEpisodeError     a greedy episode did not end: the run is done, without evaluation
 ├── CheckpointError          no checkpoint of a run can be read (exit code 1)
 ├── StorageError             the place that `--storage` names cannot be read or written
 │    └── FencedError         a newer learner has taken over a run's checkpoints
 ├── TrainingError            the run cannot go on: a loss that is not finite (exit code 1)
 ├── DirectoryError           a worker cannot join its run's directory
 ├── PeerError                a worker that another needs has not appeared
 └── StreamError              a stream cannot be used
      ├── RefusedError        the other end does not take this one
      └── MalformedSegmentError   a file of shared memory is not what its name promises

Handled where they arise; no user meets one:

ValueError
 ├── MismatchError            a value does not have the type of its field; becomes a ConfigError
 └── MalformedError           bytes that are no message; counted and logged
AssertionError
 └── BrokenPromiseError       a check of a conformance suite failed
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


class StorageError(PodiumError):
    """The place that `--storage` names cannot be read or written."""


class FencedError(StorageError):
    """A newer learner has taken over: this one may not write checkpoints any more."""


class TrainingError(PodiumError):
    """Training cannot go on, and the last good checkpoint is kept."""


class DirectoryError(PodiumError):
    """The directory does not answer, or refuses this worker. One line says which."""


class PeerError(PodiumError):
    """A worker that this one needs has not appeared."""


class StreamError(PodiumError):
    """A stream cannot be used: refused by the other end, or no room for it. One line says why."""


class RefusedError(StreamError):
    """The other end refuses this one: another schema, an older incarnation, a wrong key."""


class MalformedSegmentError(StreamError):
    """A file is not the segment that its name promises."""


class MismatchError(ValueError):
    """A value does not have the type of its field."""


class MalformedError(ValueError):
    """A peer sent bytes that are no message. It is counted and logged where it arrives, and goes no further."""


class BrokenPromiseError(AssertionError):
    """A check of a conformance suite failed; the message says which promise."""
