"""Gymnasium environments stepped in this process."""

from collections.abc import Sequence

import numpy as np

from podium.core.specs import EnvSpec
from podium.envs.buffers import allocate_step
from podium.envs.gymnasium_rows import GymnasiumRows, MakeEnv, WrapEnv, probe
from podium.envs.interface import HostEnv, TimeStep


class GymnasiumEnv(HostEnv):
    """B environments from one constructor, one seed each.

    env = GymnasiumEnv(lambda: gymnasium.make("CartPole-v1"), seeds=[1, 2, 3])
    step = env.reset()
    step = env.step(np.zeros(3, int))
    """

    steps_in_send = True

    def __init__(
        self, make: MakeEnv, seeds: Sequence[int], wrap: WrapEnv | None = None, spec: EnvSpec | None = None
    ) -> None:
        self.spec = probe(make, wrap) if spec is None else spec
        self.num_envs = len(seeds)
        self._rows = GymnasiumRows(make, seeds, self.spec, wrap)
        # two, because what recv returned must outlive the next send
        self._steps = [allocate_step(self.spec, self.num_rows) for _ in range(2)]
        self._current = 0

    def reset(self) -> TimeStep:
        self._current ^= 1
        self._rows.reset(self._steps[self._current])
        return self._steps[self._current]

    def send(self, actions: np.ndarray) -> None:
        self._current ^= 1
        self._rows.step(actions, self._steps[self._current])

    def recv(self) -> TimeStep:
        return self._steps[self._current]

    def render(self) -> np.ndarray:
        return self._rows.render()

    def close(self) -> None:
        self._rows.close()
