"""A slot of individuals: some environments that are stepped together, in each of which one individual after another
plays."""

import time
from typing import Any, NamedTuple

import jax
import numpy as np

from podium.algorithms.algorithm import Individuals
from podium.core.errors import EnvError
from podium.core.types import Tree
from podium.envs.interface import HostEnv, TimeStep
from podium.protocol.schema import Version
from podium.workers.env_snapshots import EnvSnapshots
from podium.workers.layout import Layout
from podium.workers.observation_moments import HostTally

PATIENCE = 10
"""Times `episode_limit`, for an episode to end whose individual was stopped."""


class Individual(NamedTuple):
    """Who plays in a row, or has played: its noise, and whose parameters that was added to."""

    index: int  # pyright: ignore[reportIncompatibleMethodOverride] (hides tuple.index)
    sign: int
    version: Version


class Finished(NamedTuple):
    """An individual and what it reached."""

    individual: Individual
    returned: float
    length: int


class Inputs(NamedTuple):
    """What acting for all rows of a slot takes, [R, ...]."""

    params: Tree
    memory: Tree
    obs: Tree
    first: Any
    mask: Any
    index: Any  # int32
    sign: Any  # int8
    step: Any  # int32: of the episode


class IndividualSlot:
    """R environments of the experiment: rows [number * R, (number + 1) * R) of all.

    slot = IndividualSlot(0, env, layouts.params, layouts.request.memory, individuals)
    while True:
        for row in slot.waiting(): slot.begin(row, individual, params)
        slot.send(act(slot.inputs()))
        finished = slot.receive()

    An individual plays the task's own episode to its end: where a wrapper makes an end of each life, it goes on once
    the row has been reset. A row whose individual was stopped by `episode_limit` stays empty until its episode ends.
    """

    def __init__(
        self, number: int, env: HostEnv, params: Layout, memory: Tree, individuals: Individuals, updates: int = 0
    ) -> None:
        rows = env.num_rows
        self.number, self.env, self.rows = number, env, rows
        self.version: Version | None = None  # that the whole slot last played, at staleness 0
        self.finished: list[Finished] = []  # and not yet sent
        self.env_s = 0.0
        self.tally = HostTally(env.spec.observation) if individuals.observes else None
        self._individuals = individuals
        self._params = [_aligned((rows, *field.shape), field.dtype) for field in params.schema.fields]
        self._params_tree = params.tree(self._params)
        self._memory = jax.tree.map(lambda f: np.zeros((rows, *f.shape), f.dtype), memory)
        self._playing: list[Individual | None] = [None] * rows
        self._index, self._sign = np.zeros(rows, np.int32), np.ones(rows, np.int8)
        self._plays, self._first, self._over = (np.zeros(rows, bool) for _ in range(3))
        self._game_over, self._new_game = np.zeros(rows, bool), np.ones(rows, bool)
        self._returns, self._lengths = np.zeros(rows), np.zeros(rows, np.int32)
        self._idle = np.zeros(rows, np.int32)  # steps since an individual was stopped in the midst of an episode
        self._now: TimeStep = env.reset()
        self._first[...] = True
        self.snapshots = EnvSnapshots(updates, env.save())

    @property
    def is_playing(self) -> bool:
        """Whether an individual is in the midst of its episode."""
        return bool(self._plays.any())

    def restart(self) -> None:
        """New episodes in all rows; individuals that play are forgotten."""
        self._now = self.env.reset()
        self._plays[...], self._over[...], self._first[...] = False, False, True
        self._game_over[...], self._new_game[...] = False, True

    def waiting(self) -> list[int]:
        """Rows where an episode starts that nobody plays."""
        return np.flatnonzero(self._new_game & ~self._plays).tolist()

    def begin(self, row: int, individual: Individual, params: Tree) -> None:
        """Let an individual play in this row: its parameters are made of the published ones."""
        noise = self._individuals.table.numbers[individual.index : individual.index + self._individuals.size]
        own = self._individuals.perturb(params, noise, np.float32(individual.sign))
        for into, leaf in zip(self._params, jax.tree.leaves(own), strict=True):
            into[row] = leaf
        self._playing[row] = individual
        self._index[row], self._sign[row] = individual.index, individual.sign
        self._returns[row], self._lengths[row], self._plays[row] = 0.0, 0, True

    def inputs(self) -> Inputs:
        """What the next actions are chosen from."""
        now, rows = self._now, (self._index, self._sign, self._lengths)
        return Inputs(self._params_tree, self._memory, now.obs, self._first, now.mask, *rows)

    def send(self, action: np.ndarray, memory: Tree) -> None:
        """Hand the actions to the environments; returns at once where they can."""
        if self.tally is not None:
            self.tally.add(self._now.obs, self._plays & ~self._over)
        self._memory = memory
        began = time.perf_counter()
        self.env.send(action)
        self.env_s += time.perf_counter() - began

    def receive(self) -> int:
        """Wait for the outcome; individuals whose episode is over are `finished`. Returns the steps that individuals
        made."""
        began = time.perf_counter()
        self._now = now = self.env.recv()
        self.env_s += time.perf_counter() - began
        plays, counts = self._plays, self._plays & ~self._over  # not the row that resets after a life was lost
        np.add(self._returns, now.reward, out=self._returns, where=counts)
        np.add(self._lengths, 1, out=self._lengths, where=counts)
        steps = int(np.count_nonzero(counts))
        over = now.terminated | now.truncated
        ended = plays & (now.episode_over | (self._lengths >= self._individuals.episode_limit))
        for row in np.flatnonzero(ended):
            individual = self._playing[row]
            assert individual is not None
            self.finished.append(Finished(individual, float(self._returns[row]), int(self._lengths[row])))
        plays &= ~ended
        self._first, self._over = self._over, over
        self._new_game, self._game_over = self._game_over, now.episode_over.copy()
        self._idle = np.where(plays | self._game_over | self._new_game, 0, self._idle + 1)
        if self._idle.max() > (most := PATIENCE * self._individuals.episode_limit):
            raise EnvError(
                f"an episode has not ended {most:,} steps after its individual was stopped (algorithm.episode_limit = "
                f"{self._individuals.episode_limit}); give env.wrappers a time_limit({self._individuals.episode_limit})"
            )
        return steps

    def unfinished(self) -> int:
        """Steps of individuals that play, and of those that are finished but were not sent."""
        return int(self._lengths[self._plays].sum()) + sum(done.length for done in self.finished)

    def mark(self, updates: int) -> None:
        """Between two populations: keep where the environments are, for a checkpoint after so many updates."""
        self.snapshots.add(updates, self.env.save())

    def load(self, updates: int, snapshot: Tree) -> None:
        """Go on from there."""
        self._now = self.env.load(snapshot)
        self.snapshots = EnvSnapshots(updates, snapshot)


def _aligned(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Zeros where XLA reads them without a copy."""
    size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    block = np.zeros(size + 64, np.uint8)
    start = -block.ctypes.data % 64
    return block[start : start + size].view(dtype).reshape(shape)
