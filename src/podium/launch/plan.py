"""What a run will do, worked out before anything starts: `podium train --dry-run` prints it."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import jax

from podium.algorithms import registry as algorithms
from podium.algorithms.algorithm import Algorithm
from podium.algorithms.minibatches import num_blocks
from podium.core import toml
from podium.core.config import Experiment
from podium.core.errors import ConfigError
from podium.envs import registry as envs
from podium.envs.registry import ResolvedEnv
from podium.launch.devices import configure
from podium.workers.fused import iterations_per_dispatch

ROWS_PER_CORE = 4096


@dataclass(frozen=True)
class Plan:
    """An experiment with every open choice made."""

    experiment: Experiment
    env: ResolvedEnv
    algorithm: Algorithm
    mode: Literal["fused", "inline"]
    slots: int
    devices: int
    notes: tuple[str, ...]


def make_plan(experiment: Experiment, env_factory: Callable | None = None, notes: tuple[str, ...] = ()) -> Plan:
    """Resolve environment, algorithm and mode; whatever cannot work raises ConfigError here."""
    configure(experiment)
    env = envs.resolve(experiment.env, env_factory)
    algorithm = algorithms.make(experiment, env.spec)
    mode, why = _choose_mode(experiment, env)
    slots = _choose_slots(experiment) if mode == "inline" else 1
    devices = _choose_devices(experiment) if mode == "fused" else 1
    notes = (*notes, env.note, f"mode {mode}: {why}")
    chosen = {"mode": mode, "devices": devices} if mode == "fused" else {"mode": mode, "slots": slots}
    experiment = replace(experiment, topology=replace(experiment.topology, **chosen))
    return Plan(experiment, env, algorithm, mode, slots, devices, notes)


def draw(plan: Plan) -> str:
    """The resolved experiment as TOML, then the program as text."""
    experiment = plan.experiment
    rows = f"[{experiment.algorithm.fragment_length} x {experiment.env.num_envs}]"
    if plan.mode == "fused":
        program = [
            f"fused   x1   {plan.devices} device(s), {iterations_per_dispatch(experiment)} iteration(s) a dispatch",
            f"  collect {rows} -> update -> collect ... in one XLA program",
        ]
    else:
        program = [
            f"collector x1   {plan.slots} slot(s) of {plan.env.library} environments",
            f"  | samples: fragments {rows}, {experiment.topology.staleness + 1} buffer(s)",
            "  v",
            "learner   x1",
            f"  | parameters: at most {experiment.topology.staleness} version(s) old",
            "  v",
            "collector",
        ]
    return "\n".join([toml.dump(experiment), "# program", *(f"# {line}" for line in (*plan.notes, *program))])


def _choose_mode(experiment: Experiment, env: ResolvedEnv) -> tuple[Literal["fused", "inline"], str]:
    wanted = experiment.topology.mode
    if wanted == "fused" and env.kind != "jax":
        raise ConfigError(
            f"topology.mode = 'fused': {experiment.env.id} is not a JAX environment; use inline, or one of gymnax:"
        )
    if wanted == "inline" or (wanted == "auto" and env.kind == "host"):
        return "inline", "asked for" if wanted == "inline" else "the environment runs on the host"
    return "fused", "asked for" if wanted == "fused" else "the environment is a JAX function"


def _choose_slots(experiment: Experiment) -> int:
    """One: EnvPool's are faster in one batch, where choosing actions takes a tenth of a step's time."""
    slots, num_envs = experiment.topology.slots or 1, experiment.env.num_envs
    if num_envs % slots:
        raise ConfigError(f"topology.slots = {slots}: must divide env.num_envs = {num_envs}")
    return slots


def _choose_devices(experiment: Experiment) -> int:
    """All accelerators; of the CPU's cores, as many as have a few thousand rows of each minibatch to work on.

    With fewer, meeting to add up gradients takes longer than the second core saves.
    """
    wanted, available, blocks = experiment.topology.devices, jax.local_device_count(), _blocks(experiment)
    if wanted is None:
        if jax.default_backend() == "cpu":
            rows = getattr(experiment.algorithm, "minibatch_size", experiment.steps_per_update)
            available = min(available, max(1, rows // ROWS_PER_CORE))
        return max(n for n in range(1, available + 1) if blocks % n == 0)
    if wanted > available:
        raise ConfigError(f"topology.devices = {wanted}: this machine has {available}")
    if blocks % wanted:
        raise ConfigError(
            f"topology.devices = {wanted}: must divide {blocks}, the blocks that minibatches are drawn from"
        )
    return wanted


def _blocks(experiment: Experiment) -> int:
    """Into how many blocks an algorithm with minibatches cuts the environments; each device has whole ones."""
    rows = getattr(experiment.algorithm, "minibatch_size", 0)
    if experiment.network.memory != "none" or experiment.network.factory is not None:
        rows //= experiment.algorithm.fragment_length
    return num_blocks(experiment.env.num_envs, rows)
