"""The contract of an algorithm: a tuple of pure functions, which every run mode drives alike."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True)
class Fragments:
    """On-policy experience: each update eats one fragment of [length, B] and forgets it.

    `discount` is that of the running return which reward scaling looks at.
    """

    length: int
    discount: float = 0.99


Experience = Fragments


class Algorithm(NamedTuple):
    """An algorithm for one environment spec. The loop it lives in:

    state = algorithm.init(key, spec, hyper)
    while True:
        params = algorithm.params(state)
        memory = algorithm.memory(params, B)                       # at an episode's start
        action, extras, memory = algorithm.act(params, memory, act_input, greedy)
        ...                                                        # T times, into a Fragment
        state, metrics, feedback = algorithm.update(state, batch, key, axis)

    `hyper` is a dict of scalars that are traced, so that changing one compiles nothing.
    `axis` names the mapped axis when rows are sharded over devices: gradients and statistics are
    then reduced over it.
    """

    experience: Experience
    init: Callable  # (key, spec, hyper) -> TrainState: all that a checkpoint must hold
    params: Callable  # TrainState -> the tree published to actors, normaliser included
    memory: Callable  # (params, B) -> memory at an episode's start; () if there is none
    act: Callable  # (params, memory, ActInput, greedy) -> (action, extras, memory)
    update: Callable  # (TrainState, batch, key, axis=None) -> (TrainState, metrics, feedback)
