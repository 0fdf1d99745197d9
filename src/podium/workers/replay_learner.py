"""The learner that is fed by replay workers: trains on rows of every shard, and tells it what became of them."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from podium.algorithms import replay
from podium.algorithms.algorithm import Algorithm, Drawn, Replay
from podium.algorithms.learning import GRADIENT_UPDATES
from podium.core.types import Tree
from podium.ops.compiling import jit_learning
from podium.protocol.schema import Version
from podium.protocol.streams import ParameterPublisher
from podium.workers.layout import Layouts
from podium.workers.learner import Learned
from podium.workers.replay_layout import Acted, time_first
from podium.workers.replay_requests import ReplayRequests

WORD = 1 << 30
"""Counts of steps are kept as two words of 30 bits: JAX has 32."""
PREFETCH_S = 0.005
"""How long to wait for the next rows before looking whether a device has finished."""


def start_store(shards: int) -> Tree:
    """What is kept of each shard between updates, and in checkpoints: its incarnation, and the steps it had told of."""
    return {"incarnation": jnp.full(shards, -1, jnp.int32), "steps": jnp.zeros((shards, 2), jnp.int32)}


@dataclass
class _Round:
    """What the updates of a round have given so far."""

    updates: int = 0
    metrics: list[dict[str, Any]] = field(default_factory=list)
    told: list[Version] = field(default_factory=list)
    acted: list[Acted] = field(default_factory=list)
    episodes: list[tuple[float, int]] = field(default_factory=list)
    outcomes: list[np.ndarray] = field(default_factory=list)


class ReplayLearner:
    """Makes rounds of so many updates, each of rows of all shards, and a few of them at a time: those of a request.

    worker = ReplayLearner(algorithm, layouts, state, store, key, version, requests, publisher, updates=64)
    with worker:
        learned = worker.step(timeout=1.0)       # None: rows are missing yet, or others of the round are to come

    It looks like `learner.Learner` to those who drive it. Its state is that after the last whole round, also in the
    midst of the next: so is a checkpoint that is written there.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        layouts: Layouts,
        state: Tree,
        store: Tree,
        key: jax.Array,
        version: Version,
        requests: ReplayRequests,
        publisher: ParameterPublisher,
        updates: int,
    ) -> None:
        self.state, self.store, self.version = state, store, version
        self.waited_s = 0.0
        self._algorithm, self._layouts = algorithm, layouts
        self._requests, self._publisher, self._updates = requests, publisher, updates
        self._key = key
        self._learn = jit_learning(
            lambda state, batches, key, update, begin: _update(
                algorithm, state, batches, updates, begin, jax.random.fold_in(key, update)
            )
        )
        self._round = _Round()
        self._trained = state  # in the midst of a round
        self._staleness = 0.0, 0  # of what was new last
        self._rounds = 0

    def warm_up(self) -> None:
        """Compile the updates; nothing is learned."""
        self._learn.lower(self.state, self._requests.example(), self._key, self.version.update, 0).compile()

    def __enter__(self) -> "ReplayLearner":
        self._requests.start()
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def wait(self, timeout: float) -> bool:
        """Whether there are rows to learn from, or were within `timeout` seconds."""
        return self._requests.wait(timeout)

    def metrics(self) -> dict[str, float]:
        """Counts since the start."""
        return {"updates": self._rounds, "data_wait_s": self.waited_s, "failed": self._requests.failed}

    def step(self, timeout: float) -> Learned | None:
        """Wait for rows, train on them, and ask for more; publish after the last ones of a round."""
        began = time.monotonic()
        taken = self._requests.take(timeout)
        self.waited_s += time.monotonic() - began
        if taken is None:
            return None
        priorities = self._train(taken.batches)
        self._round.told = self._round.told or taken.told
        for given in taken.given:  # copies: the arrays are gone when more is asked for
            self._round.acted.append(jax.tree.map(np.array, given.acted))
            self._round.episodes += given.episodes.ended()
            if (outcomes := given.episodes.outcomes()) is not None:
                self._round.outcomes.append(outcomes)
        self._requests.judge(taken, priorities)
        return self._end_round() if self._round.updates == self._updates else None

    def publish(self) -> None:
        """Let everybody have the parameters; after a round `step` does, before the first one the caller."""
        self._publisher.publish(self.version, self._layouts.params.arrays(self._algorithm.params(self.state)))

    def _train(self, batches: Tree) -> Tree:
        """The next updates of the round; returns the priorities of their rows, or ()."""
        learned = self._learn(self._trained, batches, self._key, self.version.update, self._round.updates)
        while not _is_ready(learned) and not self._requests.prefetch(PREFETCH_S):
            pass  # an accelerator computes meanwhile; the CPU was ready when it came back
        self._trained, metrics, priorities = jax.block_until_ready(learned)
        self._round.metrics.append(jax.device_get(metrics))
        self._round.updates += len(batches[1])
        return priorities

    def _end_round(self) -> Learned:
        done, self._round, self.state = self._round, _Round(), self._trained
        # Shards do not keep step with us: of a round for which they took nothing in, nothing is known.
        self._staleness = _staleness(done.acted, self.version.update) or self._staleness
        self.version = Version(self.version.incarnation, self.version.update + 1)
        self._rounds += 1
        self.publish()
        # As the first part tells: what shards have taken in since then is for rounds to come.
        self.store, steps = count(self.store, done.told)
        metrics = jax.tree.map(lambda *parts: np.mean(parts), *done.metrics)
        outcomes = np.concatenate(done.outcomes) if done.outcomes else None
        return Learned(metrics | {GRADIENT_UPDATES: done.updates}, steps, done.episodes, *self._staleness, outcomes)


def count(store: Tree, told: Sequence[Version]) -> tuple[Tree, int]:
    """The store, and the valid steps that shards have taken in since they were last asked what they had.

    Answers may overtake each other: a shard dies, its next incarnation answers one request, and only then comes the
    turn of what the dead one had answered. It tells of steps that were counted, or died with it.
    """
    incarnations, words = np.array(store["incarnation"]), np.array(store["steps"])
    grown = 0
    for i, (incarnation, steps) in enumerate(told):
        before = int(words[i, 0]) * WORD + int(words[i, 1]) if incarnations[i] == incarnation else 0
        if incarnation < incarnations[i] or steps < before:
            continue
        grown += steps - before
        incarnations[i], words[i] = incarnation, divmod(steps, WORD)
    return {"incarnation": incarnations, "steps": words}, grown


def _update(
    algorithm: Algorithm, state: Tree, batches: Tree, updates: int, begin: jax.Array, key: jax.Array
) -> tuple[Tree, dict, Tree]:
    """Updates of rows [n, ...], one after another, the first of which is number `begin` of so many: the means of their
    metrics, and the priorities of all rows."""
    experience, (rows, share) = algorithm.experience, batches
    assert isinstance(experience, Replay)

    def update(state: Tree, batch: tuple) -> tuple:
        rows, share, key = batch
        # Here, where rows of all shards are one batch: weights are relative to the greatest of all of them.
        drawn = Drawn(rows, replay.weigh(experience, share))
        state, metrics, priorities = algorithm.update(state, drawn, key)
        return state, (metrics, priorities)

    keys = jax.lax.dynamic_slice_in_dim(jax.random.split(key, updates), begin, len(share))
    state, (metrics, priorities) = jax.lax.scan(update, state, (time_first(rows), share, keys))
    return state, jax.tree.map(jnp.mean, metrics), priorities


def _is_ready(tree: Tree) -> bool:
    """Whether a program that gives these arrays has run: they are all there at once. Typed keys cannot tell."""
    return all(leaf.is_ready() for leaf in jax.tree.leaves(tree) if hasattr(leaf, "is_ready"))


def _staleness(acted: Sequence[Acted], update: int) -> tuple[float, int] | None:
    """Mean and greatest age, in versions, of the steps that shards took in for this update; None if they took none."""
    version = np.concatenate([part.version for part in acted])
    steps = np.concatenate([part.steps for part in acted])
    # A learner that was restored from a checkpoint may have fewer updates behind it than the policy that acted.
    ages = np.maximum(update - version, 0)[steps > 0]
    return (float(np.average(ages, weights=steps[steps > 0])), int(ages.max())) if len(ages) else None
