"""Two agents in one environment whose every number is known: agent 0 is paid 1 a step, agent 1 is paid 10."""

import numpy as np

from podium.core.specs import Array, Discrete, EnvSpec
from podium.envs.interface import HostEnv, TimeStep

END = 3


class Pair(HostEnv):
    """Episodes of three steps. What an agent sees is its place, 0 or 1."""

    def __init__(self, seeds: list[int]) -> None:
        self.spec = EnvSpec(Array((1,)), Discrete(2), agents=("small", "large"))
        self.num_envs, self.count = len(seeds), 0

    def reset(self) -> TimeStep:
        self.count = 0
        return self.recv()

    def send(self, actions: np.ndarray) -> None:
        assert actions.shape == (self.num_rows,)
        self.count = (self.count + 1) % (END + 1)

    def recv(self) -> TimeStep:
        pay = np.tile(np.float32([1, 10]), self.num_envs)
        over = np.full(self.num_rows, self.count == END)
        length = np.full(self.num_rows, self.count, np.int32)
        place = np.tile(np.float32([[0], [1]]), (self.num_envs, 1))
        return TimeStep(place, pay * (self.count > 0), over, np.zeros_like(over), None, pay * self.count, length, over)

    def close(self) -> None:
        pass


def make_pair(seeds: list[int]) -> Pair:
    return Pair(seeds)
