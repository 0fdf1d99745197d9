"""Whether a replay buffer fits where it would be kept, asked before anything is made."""

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import jax

from podium.algorithms import learning, replay
from podium.algorithms.algorithm import Algorithm, Replay
from podium.core.config import Experiment
from podium.core.errors import ConfigError
from podium.core.specs import EnvSpec
from podium.workers.layout import make_layouts

ROOM = 0.9
"""Of a device's memory: the rest is for parameters, batches and programs."""
PROCESS_BYTES = 400_000_000
"""Of a launcher, learner, actor or replay worker beside what it keeps: JAX, the simulator, compiled programs."""
COPIES = 3
"""Of a buffer in the host's memory while a checkpoint is written: itself (an accelerator's, as it comes to the host),
the copy that is written while training goes on, and what that one is compressed to, which may be as much."""


@dataclass(frozen=True)
class Room:
    """Bytes of a replay buffer of so many steps, and of the memory that so many copies of it would have to fit in."""

    kept: int
    capacity: int
    memory: int
    copies: int = 1

    @property
    def is_enough(self) -> bool:
        """Whether they fit."""
        return self.copies * self.kept <= ROOM * self.memory

    @property
    def lack(self) -> str:
        """What does not fit into what."""
        sizes = f"{self.kept / 1e9:,.1f} GB"
        if self.copies > 1:
            sizes += f" ({self.copies * self.kept / 1e9:,.1f} while a checkpoint is written)"
        return f"its {sizes} do not fit into {ROOM * self.memory / 1e9:,.1f} GB"

    @property
    def steps(self) -> int:
        """How many would fit."""
        return int(self.capacity * ROOM * self.memory / (self.copies * self.kept))

    def refuse(self, instead: str = "") -> NoReturn:
        """In one line, with the number of steps that would fit."""
        would = f"at most {self.steps:,} steps fit{instead}"
        raise ConfigError(f"algorithm.buffer_size = {self.capacity}: {self.lack}; {would}")


def room_at_learner(algorithm: Algorithm, spec: EnvSpec, experiment: Experiment, devices: int) -> Room:
    """Of a buffer that so many devices of the learner share: theirs, or the host's, which writes checkpoints of it."""
    assert isinstance(algorithm.experience, Replay)
    rows, capacity = spec.rows(experiment.env.num_envs), algorithm.experience.capacity
    kept = bytes_kept(algorithm, spec, experiment, rows)
    on_host = Room(kept, capacity, host_memory(), COPIES)
    if jax.default_backend() == "cpu":
        return on_host
    on_device = Room(kept, capacity, memory_of(jax.local_devices()[0]) * devices)
    return on_host if on_device.is_enough else on_device


def room_at_shards(
    algorithm: Algorithm, spec: EnvSpec, experiment: Experiment, rows: int, shards: int, actors: int
) -> Room:
    """Of a buffer in the host's memory, a part of which each of so many shards has for fragments of so many rows; they
    are in no checkpoint. The other processes want their memory, too, but of many, we do not know that all are here.
    """
    experience = algorithm.experience
    assert isinstance(experience, Replay)
    replay.num_fragments(experience, rows, shards)
    shard = algorithm._replace(experience=replace(experience, capacity=experience.capacity // shards))
    host = host_memory()
    left = max(host // 2, host - (2 + shards + actors) * PROCESS_BYTES)
    return Room(shards * bytes_kept(shard, spec, experiment, rows), experience.capacity, left)


def bytes_kept(algorithm: Algorithm, spec: EnvSpec, experiment: Experiment, rows: int) -> int:
    """Of the store for fragments of so many rows; traces, computes nothing."""
    layouts = make_layouts(algorithm, spec, experiment, rows)
    fragment = layouts.record.tree(layouts.record.schema.fields).fragment
    store = jax.eval_shape(lambda: learning.init(algorithm, fragment))
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(store))


def memory_of(device: Any) -> int:
    """Bytes of an accelerator; of one that does not tell, as it has none of its own, the host's."""
    return (device.memory_stats() or {}).get("bytes_limit", host_memory())


def host_memory() -> int:
    """Bytes that this process may have: of the machine's, what its container or batch system allows."""
    return min([os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), *control_group_limits()])


def control_group_limits(groups: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")) -> list[int]:
    """Bytes that the control groups of this process allow, its own and those around it; none where there are none.

    In a container, the path that the kernel names may be the host's, and not there: the group is then the root.
    """
    limits = []
    for line in groups.read_text().splitlines() if groups.is_file() else ():
        _, controllers, path = line.split(":", 2)
        if not controllers:  # version 2
            top, name = root, "memory.max"
        elif "memory" in controllers.split(","):
            top, name = root / "memory", "memory.limit_in_bytes"
        else:
            continue
        group = top / path.strip("/")
        limit_files = [place / name for place in (group, *group.parents) if place.is_relative_to(top)]
        limits += [text for file in limit_files if file.is_file() and (text := file.read_text().strip()) != "max"]
    return [int(limit) for limit in limits]
