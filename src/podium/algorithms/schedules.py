"""Schedules of traced settings: over a run, each is multiplied by a factor of the part of the run that is done.

An algorithm need not know of them: its state has the dict `hyper` that its init was given, and finds it scheduled.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from podium.algorithms.algorithm import Algorithm, Individuals, Played, Replay
from podium.algorithms.collectives import add_up
from podium.algorithms.optimizers import count_on, part_done
from podium.core.algorithm_configs import STEP_SHARE, AlgorithmConfig
from podium.core.config import Experiment
from podium.core.errors import ConfigError
from podium.core.imports import load_path
from podium.core.types import Tree

Factor = Callable[[jax.Array], Any]


class ScheduledState(NamedTuple):
    """An algorithm's own state, and what schedules count in."""

    train: Tree
    steps: jax.Array  # uint32[2] by `count_on`: env steps, or updates where they are drawn from replay


def apply(algorithm: Algorithm, experiment: Experiment) -> Algorithm:
    """The algorithm with the schedules of `algorithm.schedules`; as it is, if there are none."""
    config = experiment.algorithm
    chosen = {name: how for name, how in config.schedules.items() if how != "constant"}
    if not chosen:
        return algorithm
    factors = {name: read(f"algorithm.schedules.{name}", how) for name, how in chosen.items()}
    scheduled = Scheduled(algorithm, config, factors)
    observe = None if algorithm.observe is None else scheduled.observe
    return algorithm._replace(init=scheduled.init, params=scheduled.params, update=scheduled.update, observe=observe)


@dataclass(frozen=True, eq=False)
class Scheduled:
    """An algorithm's functions around a state that counts."""

    algorithm: Algorithm
    config: AlgorithmConfig
    factors: Mapping[str, Factor]

    def init(self, key: jax.Array, spec: Any, hyper: dict[str, float]) -> ScheduledState:
        return ScheduledState(self.algorithm.init(key, spec, hyper), jnp.zeros(2, jnp.uint32))

    def params(self, state: ScheduledState) -> Tree:
        return self.algorithm.params(self.with_hyper(state.train, self.factors_now(state)))

    def update(self, state: ScheduledState, batch: Any, key: jax.Array, axis: str | None = None) -> tuple:
        now, hyper = self.factors_now(state), self.hyper(state.train)
        train, metrics, feedback = self.algorithm.update(self.with_hyper(state.train, now), batch, key, axis)
        metrics = metrics | {name: hyper[name] * factor for name, factor in now.items()}
        # The settings themselves stay: a factor belongs to a moment.
        same = jax.tree.map(
            lambda own, new: own if self.config.is_hyper(own) else new, state.train, train, is_leaf=self.config.is_hyper
        )
        return ScheduledState(same, count_on(state.steps, self.count(batch, axis))), metrics, feedback

    def observe(self, state: ScheduledState, fragment: Any, axis: str | None = None) -> ScheduledState:
        assert self.algorithm.observe is not None
        return state._replace(train=self.algorithm.observe(state.train, fragment, axis))

    def factors_now(self, state: ScheduledState) -> dict[str, jax.Array]:
        """The factor of each scheduled setting at this part of the run."""
        share, experience = self.hyper(state.train)[STEP_SHARE], self.algorithm.experience
        done = part_done(state.steps, share)
        if isinstance(experience, Replay):
            done = done / experience.ratio + experience.starts * share
        done = jnp.clip(done, 0.0, 1.0)
        return {name: jnp.float32(factor(done)) for name, factor in self.factors.items()}

    def count(self, batch: Any, axis: str | None) -> jax.Array:
        """By how much a batch moves the run on."""
        match self.algorithm.experience:
            case Replay():
                return jnp.uint32(1)
            case Individuals():
                assert isinstance(batch, Played)
                return add_up(jnp.sum(jnp.where(batch.valid, batch.lengths, 0)), axis)
        return add_up(jnp.sum(batch.valid), axis)

    def with_hyper(self, train: Tree, factors: Mapping[str, jax.Array]) -> Tree:
        """The state with its settings times these factors."""
        is_hyper = self.config.is_hyper

        def scale(leaf: Any) -> Any:
            return leaf | {name: leaf[name] * factor for name, factor in factors.items()} if is_hyper(leaf) else leaf

        return jax.tree.map(scale, train, is_leaf=is_hyper)

    def hyper(self, train: Tree) -> dict[str, jax.Array]:
        """The settings in a state, as they were given."""
        leaves = jax.tree.leaves(train, is_leaf=self.config.is_hyper)
        found = next((leaf for leaf in leaves if self.config.is_hyper(leaf)), None)
        if found is None or STEP_SHARE not in found:
            lacks = f"the training state of {self.config.name} does not hold the dict `hyper` as its init was given it"
            raise ConfigError(f"algorithm.schedules: {lacks}; keep it there, whole")
        return found


def read(field: str, how: Any) -> Factor:
    """The factor that a setting names: linear, cosine, points [[part, factor], ...], or a Python path.

    >>> round(float(read("algorithm.schedules.clip", [[0, 1], [0.5, 0.2]])(0.25)), 3)
    0.6
    """
    if how == "linear":
        return lambda done: 1 - done
    if how == "cosine":
        return lambda done: 0.5 * (1 + jnp.cos(jnp.pi * done))
    if isinstance(how, str):
        return _read_own(field, how)
    parts, factors = (jnp.array(side, jnp.float32) for side in zip(*how, strict=True))
    return lambda done: jnp.interp(done, parts, factors)


def _read_own(field: str, path: str) -> Factor:
    """A user's function, which is traced: it must make a scalar of a scalar."""
    function = load_path(path, field)
    try:
        shape = jax.eval_shape(function, jax.ShapeDtypeStruct((), jnp.float32))
    except Exception as error:
        raise ConfigError(f"{field} = {path!r}: cannot be traced by JAX: {type(error).__name__}: {error}") from error
    if getattr(shape, "shape", None) != ():
        raise ConfigError(f"{field} = {path!r}: must give one number for the part of the run that is done")
    return function
