"""What is particular to a plan whose algorithm plays individuals: who can play them, and on how many devices."""

import jax

from podium.algorithms.algorithm import Individuals
from podium.core.config import Experiment
from podium.core.errors import ConfigError
from podium.envs.metrics import refuse_unknown_metrics
from podium.workers.population import iterations_per_dispatch
from podium.workers.schedule import make_schedule

NUMBERS_PER_DEVICE = 1 << 24
"""Noise that a learner's device adds up in the time that it takes devices to meet, many times over."""


def check(experiment: Experiment, individuals: Individuals, mode: str) -> None:
    """Refuse what cannot work, before anything is compiled."""
    num_envs, name = experiment.env.num_envs, experiment.algorithm.name
    if mode == "served":
        raise ConfigError(
            f"topology.mode = 'served': {name} gives each individual parameters of its own, which actors "
            "have; use inline"
        )
    refuse_unknown_metrics(f"an individual of {name}", experiment.env.metrics, ())
    if mode == "inline" and make_schedule(experiment.topology.staleness).in_turns and individuals.population % num_envs:
        raise ConfigError(
            f"algorithm.population = {individuals.population}: at topology.staleness = 0 each environment plays the "
            f"same number of individuals, so it must be a multiple of env.num_envs = {num_envs}"
        )


def choose_devices(experiment: Experiment, individuals: Individuals) -> int:
    """As many as there are, if each gets as many pairs as the others."""
    wanted, available, pairs = experiment.topology.devices, jax.local_device_count(), individuals.population // 2
    if wanted is None:
        return max(n for n in range(1, available + 1) if pairs % n == 0)
    if wanted > available:
        raise ConfigError(f"topology.devices = {wanted}: this machine has {available}")
    if pairs % wanted:
        raise ConfigError(f"topology.devices = {wanted}: must divide the population's {pairs} pairs")
    return wanted


def learner_devices(individuals: Individuals) -> int:
    """Devices that share a learner's update: one, unless there is much noise to add up."""
    work = individuals.population * individuals.size
    return max(1, min(jax.local_device_count(), work // NUMBERS_PER_DEVICE))


def draw(experiment: Experiment, individuals: Individuals, devices: int) -> list[str]:
    """A fused run as text."""
    iterations = iterations_per_dispatch(experiment, individuals)
    return [
        f"fused   x1   {devices} device(s), {iterations} iteration(s) a dispatch",
        f"  play {individuals.population} individuals of {individuals.size} parameters, up to "
        f"{individuals.episode_limit} steps each -> update -> play ... in one XLA program",
    ]
