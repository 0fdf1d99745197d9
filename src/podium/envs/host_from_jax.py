"""A JAX environment as a host environment: a jitted batch on the CPU, for inline mode and evaluation."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from podium.core.specs import Action, Array, EnvSpec
from podium.core.types import Tree
from podium.envs.buffers import allocate_actions
from podium.envs.interface import HostEnv, JaxEnv, TimeStep
from podium.envs.jax_wrappers import vectorize


@lru_cache(maxsize=16)
def compile_env(reset: Callable, step: Callable, mask: Callable | None, action: Action) -> tuple[Callable, Callable]:
    """Jitted batch functions `reset(keys, count)` and `step(state, actions, keys, count)`.

    Kept, so that training and evaluation of one environment compile it once.
    """
    batch = vectorize(JaxEnv(EnvSpec(Array(()), action), reset, step, mask))

    def fold(keys: jax.Array, count: jax.Array) -> jax.Array:
        return jax.vmap(jax.random.fold_in, (0, None))(keys, count)

    def reset_all(keys: jax.Array, count: jax.Array) -> tuple:
        return batch.reset(fold(keys, count))

    def step_all(state: tuple, actions: jax.Array, keys: jax.Array, count: jax.Array) -> tuple:
        return batch.step(state, actions, fold(keys, count))

    return jax.jit(reset_all), jax.jit(step_all)


class Saved(NamedTuple):
    """Where B environments are, and the randomness that is to come."""

    keys: jax.Array
    count: int  # pyright: ignore[reportIncompatibleMethodOverride] (hides tuple.count)
    state: Tree
    step: TimeStep


class HostFromJax(HostEnv):
    """B copies of a JaxEnv, one seed each.

    env = HostFromJax(jax_env, seeds=range(8))
    step = env.step(actions)
    """

    def __init__(self, env: JaxEnv, seeds: Sequence[int] | np.ndarray) -> None:
        self.spec = env.spec
        self.num_envs = len(seeds)
        self._actions = allocate_actions(env.spec.action, self.num_rows)
        self._device = jax.local_devices(backend="cpu")[0]
        self._jit_reset, self._jit_step = compile_env(env.reset, env.step, env.mask, env.spec.action)
        with jax.default_device(self._device):
            words = jnp.asarray([int(seed) % 2**32 for seed in seeds], jnp.uint32)
            self._keys = jax.vmap(jax.random.key)(words)
        self._count = 0
        self._state: tuple | None = None
        self._step: TimeStep | None = None

    def reset(self) -> TimeStep:
        with jax.default_device(self._device):
            self._state, self._step = self._jit_reset(self._keys, self._tick())
        return self.recv()

    def send(self, actions: np.ndarray) -> None:
        assert self._state is not None, "reset comes before send"
        # a copy of our own: jax may read it after we return, and the caller may reuse theirs
        actions = np.reshape(actions, self._actions.shape).astype(self._actions.dtype)
        with jax.default_device(self._device):
            self._state, self._step = self._jit_step(self._state, actions, self._keys, self._tick())

    def recv(self) -> TimeStep:
        assert self._step is not None, "send comes before recv"
        return TimeStep(*jax.tree.map(np.asarray, tuple(self._step)))

    def save(self) -> Saved:
        assert self._state is not None, "reset comes before save"
        assert self._step is not None
        return Saved(self._keys, self._count, self._state, self._step)

    def load(self, saved: Saved) -> TimeStep:
        self._keys, self._count, self._state, self._step = saved
        return self.recv()

    def close(self) -> None:
        self._state = self._step = None

    def _tick(self) -> np.uint32:
        """A number that no earlier call had, so that every call has keys of its own."""
        self._count += 1
        return np.uint32(self._count % 2**32)
