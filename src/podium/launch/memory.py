"""Whether what a run keeps fits where it is kept, asked before anything is made."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax

from podium.algorithms import learning, replay
from podium.algorithms.algorithm import Algorithm, Replay
from podium.core.config import Experiment
from podium.core.errors import ConfigError
from podium.core.specs import EnvSpec
from podium.workers.layout import make_layouts

ROOM = 0.9
"""Of a device's memory: the rest is for parameters, batches and programs."""
COPIES = 3
"""Of a buffer in the host's memory while a checkpoint is written: itself (an accelerator's, as it comes to the host),
the copy that is written while training goes on, and what that one is compressed to, which may be as much."""


def check_replay_fits(algorithm: Algorithm, spec: EnvSpec, experiment: Experiment, devices: int) -> None:
    """Refuse a learner's replay buffer that is larger than the memory of the devices that share it, or that the host
    could not write a checkpoint of.
    """
    if not isinstance(algorithm.experience, Replay):
        return
    kept, capacity = bytes_kept(algorithm, spec, experiment, experiment.env.num_envs), algorithm.experience.capacity
    if jax.default_backend() != "cpu":
        _refuse_beyond(memory_of(jax.local_devices()[0]) * devices, kept, capacity)
    _refuse_beyond(host_memory(), kept, capacity, COPIES)


def check_shards_fit(algorithm: Algorithm, spec: EnvSpec, experiment: Experiment, rows: int) -> None:
    """Refuse a replay buffer whose parts cannot hold a fragment of so many rows each, or are together more than the
    host's memory; they are in no checkpoint.
    """
    experience, shards = algorithm.experience, experiment.topology.replay_workers
    assert isinstance(experience, Replay)
    replay.num_fragments(experience, rows, shards)
    shard = algorithm._replace(experience=replace(experience, capacity=experience.capacity // shards))
    _refuse_beyond(host_memory(), shards * bytes_kept(shard, spec, experiment, rows), experience.capacity)


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


def _refuse_beyond(memory: int, kept: int, capacity: int, copies: int = 1) -> None:
    """One line on a buffer that so much memory does not hold so many copies of."""
    there = ROOM * memory
    if copies * kept <= there:
        return
    sizes = f"{kept / 1e9:,.1f} GB"
    if copies > 1:
        sizes += f" ({copies * kept / 1e9:,.1f} while a checkpoint is written)"
    instead = f"at most {int(capacity * there / (copies * kept)):,} steps fit"
    if kept <= ROOM * host_memory():
        instead += ", or keep it in the host's memory, out of checkpoints: topology.replay_workers=1"
    raise ConfigError(
        f"algorithm.buffer_size = {capacity}: its {sizes} do not fit into {there / 1e9:,.1f} GB; {instead}"
    )
