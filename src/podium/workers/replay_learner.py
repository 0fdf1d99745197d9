"""The learner that is fed by replay workers: asks every shard for rows, and tells it what became of the ones before.

While it trains on one round of updates, the shards draw the next: two requests are out at each of them.
"""

import time
from collections.abc import Callable, Sequence
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
from podium.protocol.streams import InferenceClient, ParameterPublisher
from podium.workers.layout import Layouts
from podium.workers.learner import ROUND, Learned
from podium.workers.replay_layout import TURNS, Given, Judged, ReplayLayouts, time_first

CALL_S = 0.2
"""After so long without rows, `follow` is called."""
WORD = 1 << 30
"""Counts of steps are kept as two words of 30 bits: JAX has 32."""


def start_store(shards: int) -> Tree:
    """What is kept of each shard between updates, and in checkpoints: its life, and the steps it had told of."""
    return {"life": jnp.full(shards, -1, jnp.int32), "steps": jnp.zeros((shards, 2), jnp.int32)}


class ReplayLearner:
    """Makes `updates` updates a round, each of rows of all shards.

    worker = ReplayLearner(algorithm, layouts, replay_layouts, state, store, key, version, clients, publisher, 64)
    with worker:
        learned = worker.step(timeout=1.0)       # None: not all rows are there yet

    It looks like `learner.Learner` to those who drive it. A shard that comes back empty makes it wait: `follow` is
    called meanwhile, and may rebind a client to it. `beat` is called between the programs that a round is made of.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        layouts: Layouts,
        replay_layouts: ReplayLayouts,
        state: Tree,
        store: Tree,
        key: jax.Array,
        version: Version,
        clients: Sequence[InferenceClient],
        publisher: ParameterPublisher,
        updates: int,
        rows: int,
        follow: Callable[[], None] = lambda: None,
        beat: Callable[[], None] = lambda: None,
    ) -> None:
        self.state, self.store, self.version = state, store, version
        self.waited_s = 0.0
        self._algorithm, self._layouts, self._replay_layouts = algorithm, layouts, replay_layouts
        self._clients, self._publisher, self._follow = list(clients), publisher, follow
        self._shape = (updates, len(self._clients), rows)  # rows of each shard in each update
        self._part = max(n for n in range(1, min(updates, ROUND) + 1) if updates % n == 0)  # in one program
        self._beat = beat
        self._learn = jit_learning(
            lambda state, drawn, update, begin: _update(
                algorithm, state, drawn, updates, begin, jax.random.fold_in(key, update)
            )
        )
        self._given: list[list[Given | None]] = [[None] * len(self._clients) for _ in range(TURNS)]
        self._told: list[list[Version | None]] = [[None] * len(self._clients) for _ in range(TURNS)]
        nothing = np.zeros(updates * rows, np.int32)
        self._nothing = list(Judged(nothing - 1, nothing, nothing, nothing.astype(np.float32)))
        self._staleness = 0.0, 0  # of what was new last
        self._updates = self._failed = 0
        self._followed_at = time.monotonic()

    def warm_up(self) -> None:
        """Compile the updates; nothing is learned."""
        schema, (updates, shards, rows) = self._replay_layouts.answer.schema, self._shape
        given = self._replay_layouts.answer.tree(
            [np.zeros((updates * rows, *field.shape), field.dtype) for field in schema.fields]
        )
        drawn = jax.tree.map(lambda x: x[: self._part], self._join([given] * shards))
        jax.block_until_ready(self._learn(self.state, drawn, self.version.update, 0))

    def __enter__(self) -> "ReplayLearner":
        for turn in range(TURNS):
            for client in self._clients:
                client.submit(turn, self._nothing)
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def wait(self, timeout: float) -> bool:
        """Whether every shard has rows for the next round, or had within `timeout` seconds."""
        given = self._given[self._updates % TURNS]
        deadline = time.monotonic() + timeout
        while any(part is None for part in given):
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            waiting = next(i for i, part in enumerate(given) if part is None)
            for i in range(len(self._clients)):
                self._poll(i, min(left, CALL_S) if i == waiting else 0.0)
            if time.monotonic() - self._followed_at > CALL_S:
                self._follow()
                self._followed_at = time.monotonic()
        return True

    def metrics(self) -> dict[str, float]:
        """Counts since the start."""
        return {"updates": self._updates, "data_wait_s": self.waited_s, "failed": self._failed}

    def step(self, timeout: float) -> Learned | None:
        """Wait for rows, make a round of updates, publish, and ask for more."""
        began = time.monotonic()
        ready = self.wait(timeout)
        self.waited_s += time.monotonic() - began
        if not ready:
            return None
        turn = self._updates % TURNS
        given = [part for part in self._given[turn] if part is not None]
        metrics, priorities = self._update(self._join(given))
        # Shards do not keep step with us: of a round for which they took nothing in, nothing is known.
        self._staleness = _staleness(given, self.version.update) or self._staleness
        self.version = Version(self.version.incarnation, self.version.update + 1)
        self._updates += 1
        self.publish()
        self.store, steps = count(self.store, [version for version in self._told[turn] if version is not None])
        episodes = [episode for part in given for episode in _episodes(part)]
        self._ask(turn, given, priorities)
        return Learned(metrics, steps, episodes, *self._staleness)

    def _update(self, drawn: Tree) -> tuple[dict[str, Any], Tree]:
        """All updates of a round: the means of their metrics, and the priorities of all rows, or ()."""
        told, judged = [], []
        for begin in range(0, self._shape[0], self._part):
            part = jax.tree.map(lambda x, begin=begin: x[begin : begin + self._part], drawn)
            learned = self._learn(self.state, part, self.version.update, begin)
            self.state, metrics, priorities = jax.block_until_ready(learned)
            told.append(metrics)
            judged.append(priorities)
            self._beat()
        means = jax.tree.map(lambda *parts: np.mean([np.asarray(part) for part in parts]), *told)
        joined = jax.tree.map(lambda *parts: np.concatenate([np.asarray(part) for part in parts]), *judged)
        return means | {GRADIENT_UPDATES: self._shape[0]}, joined

    def publish(self) -> None:
        """Let everybody have the parameters; after an update `step` does, before the first one the caller."""
        self._publisher.publish(self.version, self._layouts.params.arrays(self._algorithm.params(self.state)))

    def _poll(self, shard: int, timeout: float) -> None:
        for turn, version, arrays in self._clients[shard].poll(timeout):
            if arrays is None:  # the shard has died: the next life of it is asked
                self._failed += 1
                self._clients[shard].submit(turn, self._nothing)
            else:
                self._given[turn][shard] = self._replay_layouts.answer.tree(arrays)
                self._told[turn][shard] = version

    def _ask(self, turn: int, given: list[Given], priorities: Tree) -> None:
        """For the round after the next, with the errors of this one."""
        updates, shards, rows = self._shape
        none = isinstance(priorities, tuple)
        judged = np.zeros(self._shape, np.float32) if none else np.asarray(priorities).reshape(self._shape)
        told = [version for version in self._told[turn] if version is not None]
        for i, (client, part, version) in enumerate(zip(self._clients, given, told, strict=True)):
            priority = np.ascontiguousarray(judged[:, i]).reshape(updates * rows)
            life = np.full(updates * rows, version.incarnation, np.int32)
            # Copies: the arrays of a reply are the client's again once the next request is out.
            client.submit(turn, list(Judged(life, np.array(part.index), np.array(part.added), priority)))
        self._given[turn] = [None] * shards

    def _join(self, given: list[Given]) -> Tree:
        """The rows of all shards as batches [updates, batch, ...], and the share that each has in its shard."""
        updates, _, rows = self._shape
        drawn = [(part.rows, part.share) for part in given]
        cut = [jax.tree.map(lambda x: np.asarray(x).reshape(updates, rows, *x.shape[1:]), part) for part in drawn]
        if len(cut) == 1:
            return cut[0]
        return jax.tree.map(lambda *parts: np.concatenate(parts, axis=1), *cut)


def count(store: Tree, told: Sequence[Version]) -> tuple[Tree, int]:
    """The store, and the valid steps that shards have taken in since they were last asked what they had.

    Answers may overtake each other: a shard dies, its next life answers one request, and only then comes the turn of
    what the dead one had answered. It tells of steps that were counted, or died with it.
    """
    lives, words = np.array(store["life"]), np.array(store["steps"])
    grown = 0
    for i, (life, steps) in enumerate(told):
        before = int(words[i, 0]) * WORD + int(words[i, 1]) if lives[i] == life else 0
        if life < lives[i] or steps < before:
            continue
        grown += steps - before
        lives[i], words[i] = life, divmod(steps, WORD)
    return {"life": lives, "steps": words}, grown


def _update(
    algorithm: Algorithm, state: Tree, drawn: Tree, updates: int, begin: jax.Array, key: jax.Array
) -> tuple[Tree, dict, Tree]:
    """Updates of rows [n, ...], one after another, the first of which is number `begin` of so many: the means of their
    metrics, and the priorities of all rows."""
    experience, (rows, share) = algorithm.experience, drawn
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


def _staleness(given: Sequence[Given], update: int) -> tuple[float, int] | None:
    """Mean and greatest age, in versions, of the steps that shards took in for this update; None if they took none."""
    version = np.concatenate([np.asarray(part.acted.version) for part in given])
    steps = np.concatenate([np.asarray(part.acted.steps) for part in given])
    # A learner that was restored from a checkpoint may have fewer updates behind it than the policy that acted.
    ages = np.maximum(update - version, 0)[steps > 0]
    return (float(np.average(ages, weights=steps[steps > 0])), int(ages.max())) if len(ages) else None


def _episodes(given: Given) -> list[tuple[float, int]]:
    returns, lengths = given.episodes
    ended = np.asarray(lengths) > 0
    return list(zip(np.asarray(returns)[ended].tolist(), np.asarray(lengths)[ended].tolist(), strict=True))
