"""Whether this machine's shared memory has room for a run's streams; where it has not, auto takes tcp."""

from podium.algorithms.algorithm import Algorithm
from podium.core.config import Experiment
from podium.core.errors import ConfigError
from podium.core.specs import EnvSpec
from podium.core.transports import SHM, TCP, TransportName
from podium.protocol.shm.directories import describe_lack
from podium.protocol.shm.parameters import BUFFERS
from podium.workers.layout import make_layouts


def find_room(
    experiment: Experiment, algorithm: Algorithm, spec: EnvSpec, slots: int, credits: int, transport: TransportName
) -> tuple[TransportName, tuple[str, ...]]:
    """The transport, or tcp with a line that says why, where `topology.transport` is auto and shm does not do.

    Raises ConfigError where the user set shm.
    """
    if transport != SHM.name:
        return transport, ()
    lack = describe_lack(bytes_of_streams(experiment, algorithm, spec, slots, credits))
    if lack is None:
        return transport, ()
    if experiment.topology.transport == SHM.name:
        raise ConfigError(f"topology.transport = {SHM.name!r}: {lack}; use {TCP.name}")
    return TCP.name, (f"transport {TCP.name}: {lack}",)


def bytes_of_streams(experiment: Experiment, algorithm: Algorithm, spec: EnvSpec, slots: int, credits: int) -> int:
    """Of the fragments that all slots may have out, and of the parameters; requests are small beside them."""
    layouts = make_layouts(algorithm, spec, experiment, spec.rows(experiment.env.num_envs // slots))
    return slots * credits * layouts.record.schema.nbytes + BUFFERS * layouts.params.schema.nbytes
