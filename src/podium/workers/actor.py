"""The actor: steps a ring of environment slots and writes what happens into fragments.

While one slot's environments are being stepped, the actions of another are chosen, so neither the
simulator nor the policy waits for the other.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from podium.algorithms.algorithm import Algorithm
from podium.core.specs import Array, EnvSpec
from podium.core.types import ActInput, Fragment, Tree
from podium.envs.interface import HostEnv, TimeStep
from podium.ops.keys import row_keys

Parameters = Callable[[], tuple[int, Tree]]
"""Gives the newest version of the policy and its number."""


class Slot:
    """Some of an actor's environments: rows `columns` of its fragments, stepped together."""

    def __init__(self, env: HostEnv, columns: slice, memory: Tree) -> None:
        self.env = env
        self.columns = columns
        self.memory = memory
        self.over = np.zeros(env.num_envs, bool)
        self.first = np.ones(env.num_envs, bool)
        self.discounted = np.zeros(env.num_envs, np.float32)
        self.exploration = np.ones(env.num_envs, np.float32)
        self.now: TimeStep = env.reset()

    def send(self, fragment: Fragment, t: int, act: Callable, params: Tree, version: int, keys: np.ndarray) -> None:
        """Choose the actions of step t, hand them to the environments, then write them down."""
        rows = self.columns
        action, extras, self.memory = act(
            params, self.memory, self.now.obs, self.first, self.now.mask, keys[t, rows], self.exploration
        )
        action = np.asarray(action)
        self.env.send(action)
        self.write_observation(fragment, t)
        fragment.action[t, rows] = action
        for name, value in extras.items():
            fragment.extras[name][t, rows] = value
        np.logical_not(self.over, out=fragment.valid[t, rows])
        fragment.version[t, rows] = version

    def receive(self, fragment: Fragment, t: int, discount: float) -> None:
        """Wait for step t's outcome and write it down."""
        rows = self.columns
        self.now = now = self.env.recv()
        self.discounted[self.first] = 0
        self.discounted *= discount
        self.discounted += now.reward
        fragment.reward[t, rows] = now.reward
        fragment.discounted[t, rows] = self.discounted
        fragment.terminated[t, rows] = now.terminated
        fragment.truncated[t, rows] = now.truncated
        self.first = self.over
        self.over = now.terminated | now.truncated

    def write_observation(self, fragment: Fragment, t: int) -> None:
        """What the policy sees at step t; at t = T, what it will see first in the next fragment."""
        rows = self.columns
        for into, leaf in zip(jax.tree.leaves(fragment.obs), jax.tree.leaves(self.now.obs), strict=True):
            into[t, rows] = leaf
        fragment.first[t, rows] = self.first
        if fragment.mask is not None:
            fragment.mask[t, rows] = self.now.mask


class Actor:
    """Collects fragments from host environments.

    actor = Actor(algorithm, envs, params, key)
    fragment = actor.allocate()
    actor.collect(fragment, parameters)         # again and again, into whichever buffer is free

    `steps` counts valid steps as they happen.
    """

    def __init__(self, algorithm: Algorithm, envs: Sequence[HostEnv], params: Tree, key: jax.Array) -> None:
        self.spec: EnvSpec = envs[0].spec
        self.num_envs = sum(env.num_envs for env in envs)
        self.steps = 0
        self._episodes: list[tuple[float, int]] = []
        self._algorithm = algorithm
        self._length = algorithm.experience.length
        self._act = jax.jit(partial(_act, algorithm))
        self._keys = jax.jit(lambda step: _key_data(key, self.num_envs, self._length, step))
        starts = np.cumsum([0, *(env.num_envs for env in envs)])
        self._slots = [
            Slot(env, slice(start, start + env.num_envs), algorithm.memory(params, env.num_envs))
            for env, start in zip(envs, starts, strict=False)
        ]
        self._shapes = self._output_shapes(params)

    def collect(self, fragment: Fragment, parameters: Parameters, update: int, stop: Callable[[], bool]) -> int:
        """T steps of every row into `fragment`; fewer only if `stop` says so. Returns how many."""
        keys = np.asarray(self._keys(1 + update * self._length))
        discount = self._algorithm.experience.discount
        for slot in self._slots:
            for into, leaf in zip(jax.tree.leaves(fragment.memory), jax.tree.leaves(slot.memory), strict=True):
                into[slot.columns] = leaf
        for t in range(self._length):
            if stop():
                self._finish(fragment, t, discount)
                return t
            version, params = parameters()
            for slot in self._slots:
                if t > 0:
                    self._receive(slot, fragment, t - 1, discount)
                slot.send(fragment, t, self._act, params, version, keys)
        self._finish(fragment, self._length, discount)
        return self._length

    def take_episodes(self) -> list[tuple[float, int]]:
        """Return and length of each episode that ended since the last call."""
        taken, self._episodes = self._episodes, []
        return taken

    def warm_up(self, params: Tree) -> None:
        """Compile for every slot size, without stepping anything."""
        keys = np.asarray(self._keys(0))
        for slot in self._slots:
            now = slot.now
            first, exploration = slot.first, slot.exploration
            outputs = self._act(params, slot.memory, now.obs, first, now.mask, keys[0, slot.columns], exploration)
            jax.block_until_ready(outputs)

    def allocate(self) -> Fragment:
        """A zeroed fragment that `collect` can write into."""
        length, rows = self._length, self.num_envs

        def zeros(steps: int, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
            return np.zeros((steps, rows, *shape), dtype)

        def like(spec: Tree) -> Tree:
            if isinstance(spec, Array):
                return zeros(length + 1, spec.shape, spec.dtype)
            return {name: like(part) for name, part in spec.items()}

        action, extras, memory = self._shapes
        return Fragment(
            obs=like(self.spec.observation),
            first=zeros(length + 1, (), bool),
            mask=zeros(length + 1, (self.spec.mask_size,), bool) if self.spec.masked else None,
            action=zeros(length, action.shape[1:], action.dtype),
            extras={name: zeros(length, x.shape[1:], x.dtype) for name, x in extras.items()},
            reward=zeros(length, (), np.float32),
            discounted=zeros(length, (), np.float32),
            terminated=zeros(length, (), bool),
            truncated=zeros(length, (), bool),
            valid=zeros(length, (), bool),
            version=zeros(length, (), np.int32),
            memory=jax.tree.map(lambda m: np.zeros((rows, *m.shape[1:]), m.dtype), memory),
        )

    def close(self) -> None:
        """Close every slot's environments."""
        for slot in self._slots:
            slot.env.close()

    def _receive(self, slot: Slot, fragment: Fragment, t: int, discount: float) -> None:
        valid = slot.env.num_envs - int(np.count_nonzero(slot.over))
        slot.receive(fragment, t, discount)
        self.steps += valid
        now = slot.now
        if now.episode_over.any():
            ended = np.flatnonzero(now.episode_over)
            self._episodes += zip(now.episode_return[ended].tolist(), now.episode_length[ended].tolist(), strict=True)

    def _finish(self, fragment: Fragment, t: int, discount: float) -> None:
        for slot in self._slots:
            if t > 0:
                self._receive(slot, fragment, t - 1, discount)
            slot.write_observation(fragment, t)

    def _output_shapes(self, params: Tree) -> tuple[Any, dict[str, Any], Tree]:
        slot = self._slots[0]
        keys = np.zeros((slot.env.num_envs, 2), np.uint32)
        now = slot.now
        return jax.eval_shape(self._act, params, slot.memory, now.obs, slot.first, now.mask, keys, slot.exploration)


def _act(algorithm: Algorithm, params: Tree, memory: Tree, obs: Tree, first: Any, mask: Any, keys: Any, noise: Any):
    inputs = ActInput(obs, first, mask, jax.random.wrap_key_data(keys, impl="threefry2x32"), noise)
    return algorithm.act(params, memory, inputs, False)


def _key_data(key: jax.Array, num_envs: int, length: int, step: jax.Array) -> jax.Array:
    """All keys of a fragment at once, [T, B, 2]: folding them in at each act would cost more than the policy."""
    env_ids = jnp.arange(num_envs)
    keys = jax.vmap(lambda t: row_keys(key, env_ids, step + t))(jnp.arange(length))
    return jax.random.key_data(keys)
