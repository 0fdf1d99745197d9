"""Who keeps a replay buffer: the learner, on its device, or replay workers in the host's memory, which stream its rows.

On the device it is drawn from without a copy, and part of every checkpoint: so it stays there where it fits.
"""

from podium.algorithms.algorithm import Algorithm, Replay
from podium.core.config import Experiment
from podium.core.errors import ConfigError
from podium.core.specs import EnvSpec
from podium.core.transports import MEMORY, SHM, TRANSPORTS, TransportName
from podium.launch.memory import room_at_learner, room_at_shards
from podium.workers.schedule import make_schedule


def choose(
    experiment: Experiment, algorithm: Algorithm, spec: EnvSpec, devices: int, may_leave: bool
) -> tuple[int, str]:
    """The number of replay workers, 0 for the learner itself, and a line that says why; refuses what fits nowhere.

    `may_leave` says whether other processes could step the environments.
    """
    asked, experience = experiment.topology.replay_workers, algorithm.experience
    assert isinstance(experience, Replay)
    if asked:
        return asked, f"replay: {asked} worker(s), asked for"
    room = room_at_learner(algorithm, spec, experiment, devices)
    if room.is_enough:
        return 0, f"replay: {_size(room.kept)}, on the learner's device"
    actors = experiment.topology.actors or 1
    streamed = room_at_shards(algorithm, spec, experiment, spec.rows(experiment.env.num_envs), shards=1, actors=actors)
    against, learns = _against(experiment), experience.starts < experiment.limits.total_steps
    if asked is None and may_leave and learns and not against:
        if not streamed.is_enough:
            max(room, streamed, key=lambda place: place.steps).refuse()
        kept = "1 worker keeps it in the host's memory, in no checkpoint, and streams rows ahead of the learner"
        return 1, f"replay: {room.lack} at the learner; {kept}"
    if not (streamed.is_enough and may_leave and learns):
        room.refuse()
    settings = " ".join(["topology.replay_workers=1", *against])
    room.refuse(f", or keep it in the host's memory, out of checkpoints: {settings}")


def check_workers(
    experiment: Experiment, algorithm: Algorithm, spec: EnvSpec, actors: int, slots: int, transport: TransportName
) -> None:
    """Refuse replay workers that could not do their part, or not with this algorithm."""
    workers, experience, topology = experiment.topology.replay_workers or 0, algorithm.experience, experiment.topology
    where = f"topology.replay_workers = {workers}:"
    if not isinstance(experience, Replay):
        raise ConfigError(f"{where} {experiment.algorithm.name} has no replay; use 0, or an off-policy algorithm")
    if actors % workers:
        raise ConfigError(f"{where} must divide topology.actors = {actors}")
    if make_schedule(topology.staleness).in_turns:  # before learning starts there is no newer version to wait for
        raise ConfigError(
            "topology.staleness = 0: must be at least 1 with topology.replay_workers, which nobody waits for"
        )
    if experience.starts >= experiment.limits.total_steps:
        raise ConfigError(
            f"algorithm.learning_starts = {experience.starts}: with topology.replay_workers it must be less "
            f"than limits.total_steps = {experiment.limits.total_steps}, since nothing is reported before"
        )
    if experience.batch_size % workers:
        raise ConfigError(f"{where} must divide the {experience.batch_size} rows of algorithm.batch_size")
    if experience.batch_size // workers > (most := TRANSPORTS[transport].most_rows):
        raise ConfigError(
            f"{where} over {transport}, each gives at most {most:,} of the {experience.batch_size:,} rows of "
            f"algorithm.batch_size; use more of them, or topology.transport={SHM.name}"
        )
    room = room_at_shards(algorithm, spec, experiment, spec.rows(experiment.env.num_envs) // slots, workers, actors)
    if not room.is_enough:
        room.refuse()


def _against(experiment: Experiment) -> list[str]:
    """What would have to be set otherwise for replay workers."""
    topology = experiment.topology
    return [
        setting
        for setting, needed in (
            ("topology.mode=inline", topology.mode == "fused"),
            ("topology.staleness=1", make_schedule(topology.staleness).in_turns),
            ("topology.transport=auto", topology.transport == MEMORY.name),
        )
        if needed
    ]


def _size(count: int) -> str:
    return f"{count / 1e9:,.1f} GB" if count >= 1e9 else f"{count / 1e6:,.1f} MB"
