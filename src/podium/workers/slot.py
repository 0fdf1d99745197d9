"""A slot: some environments that are stepped together, and the fragment that they fill."""

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from podium.core.errors import EnvError
from podium.core.types import Fragment, Tree
from podium.envs.interface import HostEnv, TimeStep
from podium.protocol.schema import Version
from podium.protocol.streams import Buffer
from podium.workers.action_sources import Choice
from podium.workers.env_snapshots import EnvSnapshots
from podium.workers.finite import REWARD, describe_fault, find_fault
from podium.workers.layout import ActRequest, Episodes, Layouts


class EnvSnapshot(NamedTuple):
    """Where a slot is between two fragments: with it, the next one is collected bit for bit as it would have been."""

    env: Tree
    memory: Tree
    discounted: np.ndarray
    first: np.ndarray
    over: np.ndarray


class Page:
    """A buffer of a sample stream, seen as the record that it is to hold. Made once for each buffer."""

    def __init__(self, buffer: Buffer, layouts: Layouts) -> None:
        self.buffer = buffer
        record = layouts.record.tree(buffer.arrays)
        self.fragment: Fragment = record.fragment
        self.episodes: Episodes = record.episodes
        self.obs: list[np.ndarray] = jax.tree.leaves(self.fragment.obs)
        self.extras: list[np.ndarray] = jax.tree.leaves(self.fragment.extras)
        self.memory: list[np.ndarray] = jax.tree.leaves(self.fragment.memory)


class EnvSlot:
    """Some environments of the experiment: rows [number * R, (number + 1) * R) of all.

    slot = EnvSlot(number=3, env=env, layouts=layouts, discount=0.99, fragment=0)     # of its first fragment
    slot.begin(page, fragment=0, keys=keys)
    for _ in range(T):
        slot.send(policy(slot.request()))                                          # returns at once, where they can
        slot.receive()
    """

    def __init__(
        self,
        number: int,
        env: HostEnv,
        layouts: Layouts,
        discount: float,
        fragment: int = 0,
        exploration: np.ndarray | None = None,
        names: Sequence[str] = (),
    ) -> None:
        rows = env.num_rows
        self.number = number
        self.env = env
        self.row_ids = np.arange(number * rows, (number + 1) * rows, dtype=np.uint32)
        self._names = names  # of the environments, for errors
        self.fragment = fragment
        self.begun = 0  # fragments
        self.page: Page | None = None
        self.t = 0  # steps of the open fragment whose outcome is written
        self.steps = 0  # valid ones among them
        self.env_s = 0.0  # seconds in send and recv
        self.version: Version | None = None  # the oldest that chose an action of the last or open fragment
        # Zeros will do: every row starts an episode, where act forgets what it is given.
        self.memory = jax.tree.map(lambda f: np.zeros((rows, *f.shape), f.dtype), _memory_fields(layouts))
        self._keys = np.zeros((1, rows, 2), np.uint32)  # of all actions of the open fragment
        self._exploration = np.ones(rows, np.float32) if exploration is None else exploration
        self._discount = discount
        self._discounted = np.zeros(rows, np.float32)
        self._began = np.ones(rows, bool)  # rows whose last step was an episode's first
        self._first = np.ones(rows, bool)  # rows whose next step is one
        self._over = np.zeros(rows, bool)
        self._now: TimeStep = env.reset()
        self.snapshots = EnvSnapshots(fragment, self._snapshot())

    @property
    def rows(self) -> int:
        return self.env.num_rows

    def begin(self, page: Page, fragment: int, keys: np.ndarray) -> None:
        """Open a fragment. `keys` are those of all its actions, [T, R, 2]."""
        self.page, self.fragment, self._keys = page, fragment, keys
        self.begun += 1
        self.t = self.steps = 0
        self.version = None
        for into, leaf in zip(page.memory, jax.tree.leaves(self.memory), strict=True):
            into[...] = leaf
        page.episodes.returns[...] = 0
        page.episodes.lengths[...] = 0

    def request(self) -> ActRequest:
        """What a policy must know to choose the next actions."""
        now = self._now
        return ActRequest(now.obs, self._first, now.mask, self._keys[self.t], self._exploration, self.memory)

    def send(self, choice: Choice) -> None:
        """Hand the actions to the environments; while they step, write down what led to them."""
        page, t = self._open(), self.t
        action, extras, self.memory = choice.answer
        began = time.perf_counter()
        self.env.send(action)
        self.env_s += time.perf_counter() - began
        fragment = page.fragment
        if t:
            self._write_outcome(page, t - 1)
        self._write_observation(page, t)
        fragment.action[t] = action
        for into, leaf in zip(page.extras, jax.tree.leaves(extras), strict=True):
            into[t] = leaf
        np.logical_not(self._over, out=fragment.valid[t])
        fragment.version[t] = choice.version.update
        if self.version is None or choice.version < self.version:
            self.version = choice.version

    def receive(self) -> int:
        """Wait for the outcome. Returns the number of valid steps: rows that were not being reset.

        The next `send` writes it down, when environments do not wait for it; here it is done for a fragment's last.
        """
        page = self._open()
        began = time.perf_counter()
        self._now = now = self.env.recv()
        self.env_s += time.perf_counter() - began
        valid = self.rows - int(np.count_nonzero(self._over))
        self._began, self._first = self._first, self._over
        self._over = now.terminated | now.truncated
        self.t += 1
        self.steps += valid
        if self.t == len(page.fragment.reward):
            self._write_outcome(page, self.t - 1)
            self._write_observation(page, self.t)  # what the policy will see first in the next fragment
        return valid

    def refuse_not_finite(self) -> None:
        """Before a full fragment is sent: EnvError if an environment gave a number in it that is not finite."""
        page = self._open()
        if (fault := find_fault(page.fragment)) is not None:
            t, row, kind = fault
            step = (self.begun - 1) * len(page.fragment.reward) + t + (kind == REWARD)
            env = row // (self.env.num_rows // self.env.num_envs)
            name = self._names[env] if self._names else f"environment {env}"
            raise EnvError(describe_fault(name, kind, step))

    def unfinished(self) -> int:
        """Valid steps in the open fragment, counted in its array."""
        return 0 if self.page is None else int(np.count_nonzero(self.page.fragment.valid[: self.t]))

    def mark(self, updates: int) -> None:
        """Between two fragments: keep where the slot is, for a checkpoint after so many updates."""
        self.snapshots.add(updates, self._snapshot())

    def load(self, updates: int, snapshot: EnvSnapshot) -> None:
        """Go on from there."""
        self._now = self.env.load(snapshot.env)
        self.memory, self._first, self._over = snapshot.memory, snapshot.first, snapshot.over
        self._discounted[...] = snapshot.discounted
        self.snapshots = EnvSnapshots(updates, snapshot)

    def _snapshot(self) -> EnvSnapshot | None:
        if (env := self.env.save()) is None:
            return None
        memory = jax.tree.map(np.array, self.memory)
        return EnvSnapshot(env, memory, self._discounted.copy(), self._first.copy(), self._over.copy())

    def _open(self) -> Page:
        assert self.page is not None, "begin comes first"
        return self.page

    def _write_outcome(self, page: Page, t: int) -> None:
        now, fragment, episodes = self._now, page.fragment, page.episodes
        self._discounted[self._began] = 0
        self._discounted *= self._discount
        self._discounted += now.reward
        fragment.reward[t] = now.reward
        fragment.discounted[t] = self._discounted
        fragment.terminated[t] = now.terminated
        fragment.truncated[t] = now.truncated
        np.copyto(episodes.returns[t], now.episode_return, where=now.episode_over)
        np.copyto(episodes.lengths[t], now.episode_length, where=now.episode_over)
        if episodes.metrics is not None:
            episodes.metrics[t] = now.metrics

    def _write_observation(self, page: Page, t: int) -> None:
        for into, leaf in zip(page.obs, jax.tree.leaves(self._now.obs), strict=True):
            into[t] = leaf
        page.fragment.first[t] = self._first
        if page.fragment.mask is not None:
            page.fragment.mask[t] = self._now.mask


def _memory_fields(layouts: Layouts) -> Any:
    return layouts.request.tree(layouts.request.schema.fields).memory
