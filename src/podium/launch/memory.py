"""Whether what a run keeps fits where it is kept, asked before anything is made."""

import os
from typing import Any

import jax

from podium.algorithms import learning
from podium.algorithms.algorithm import Algorithm, Replay
from podium.core.config import Experiment
from podium.core.errors import ConfigError
from podium.core.specs import EnvSpec
from podium.workers.layout import make_layouts

ROOM = 0.9
"""Of a device's memory: the rest is for parameters, batches and programs."""


def check_replay_fits(algorithm: Algorithm, spec: EnvSpec, experiment: Experiment, devices: int) -> None:
    """Refuse a replay buffer that is larger than the memory of the devices that share it."""
    if not isinstance(algorithm.experience, Replay):
        return
    layouts = make_layouts(algorithm, spec, experiment, experiment.env.num_envs)
    fragment = layouts.record.tree(layouts.record.schema.fields).fragment
    store = jax.eval_shape(lambda: learning.init(algorithm, fragment))
    needed = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(store))
    there = ROOM * memory_of(jax.local_devices()[0]) * (devices if jax.default_backend() != "cpu" else 1)
    if needed <= there:
        return
    capacity, sizes = algorithm.experience.capacity, f"{needed / 1e9:,.1f} GB do not fit into {there / 1e9:,.1f} GB"
    instead = f"at most {int(capacity * there / needed):,} steps fit"
    if jax.default_backend() != "cpu":
        instead += ", or keep it in the host's memory: topology.replay_workers=1"
    raise ConfigError(f"algorithm.buffer_size = {capacity}: its {sizes}; {instead}")


def memory_of(device: Any) -> int:
    """Bytes: of an accelerator its own, of a CPU the host's."""
    stats = None if device.platform == "cpu" else device.memory_stats()
    if stats and "bytes_limit" in stats:
        return stats["bytes_limit"]
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
