"""The contract of an algorithm: a tuple of pure functions, which every run mode drives alike."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from podium.algorithms.minibatches import num_blocks
from podium.core.types import Fragment, Tree
from podium.ops.noise_table import NoiseTable


@dataclass(frozen=True)
class Fragments:
    """On-policy experience: each update eats one fragment of [length, B] and forgets it.

    `discount` is that of the running return which reward scaling looks at. The rest tells what devices can share.
    """

    length: int
    discount: float = 0.99
    minibatch: int = 0  # steps of a gradient step; 0: all of them
    sequences: bool = False  # whether minibatches are whole sequences
    parts: int = 1  # of the parameters: devices can train one each, where that pays

    def blocks(self, rows: int) -> int:
        """Blocks of rows that minibatches are drawn from; each device has whole ones."""
        return num_blocks(rows, self.minibatch // (self.length if self.sequences else 1))

    def exploration(self, env_ids: Any, num_envs: int) -> Any:
        """`ActInput.exploration` of these environments."""
        return 0.0 * env_ids + 1.0


@dataclass(frozen=True)
class Replay:
    """Off-policy experience: fragments go into a buffer, and updates are made of rows drawn from it.

    An update eats `Drawn`: rows are `Transitions` [batch_size], or whole sequences, a Fragment [length, batch_size],
    if `sequences` is set. Its feedback is a new priority for each row, where `priority_exponent` is not 0.
    """

    length: int
    discount: float
    batch_size: int
    capacity: int  # env steps that are kept
    starts: int  # env steps before the first update
    ratio: float  # updates for each env step
    n_step: int = 1
    sequences: bool = False
    priority_exponent: float = 0.0
    priority_correction: float = 0.4
    spread: float = 1.0  # the last environment's exploration as a part of the first one's
    parts: ClassVar[int] = 1

    @property
    def minibatch(self) -> int:
        """Steps of an update."""
        return self.batch_size * (self.length if self.sequences else 1)

    def blocks(self, rows: int) -> int:
        """Blocks of rows; each device has whole ones."""
        return num_blocks(rows, self.minibatch)

    def exploration(self, env_ids: Any, num_envs: int) -> Any:
        """`ActInput.exploration` of these environments: from 1 to `spread` by equal factors (Horgan et al., 2018).

        >>> Replay(8, 0.99, 1, 100, 0, 1, spread=0.01).exploration(np.arange(3), num_envs=3).round(3).tolist()
        [1.0, 0.1, 0.01]
        """
        return self.spread ** (env_ids / max(1, num_envs - 1))


@dataclass(frozen=True)
class Individuals:
    """Experience of a population: an update eats what `population` individuals have reached (`Played`), each with
    parameters of its own in one episode of at most `episode_limit` steps.

    An individual is an index into the noise table and a sign: `perturb(params, noise, sign)` makes its parameters of
    the published ones and the `size` numbers from that index on. It is vmapped in JAX, and called with NumPy arrays on
    the host: plain arithmetic does for both. Individuals come in pairs with the same index and opposite signs.
    """

    population: int
    episode_limit: int
    size: int
    table: NoiseTable
    perturb: Callable
    observes: bool = False  # whether statistics of the observations come with the individuals' records

    @property
    def last_index(self) -> int:
        """The largest index that leaves `size` numbers."""
        return self.table.size - self.size


class Seen(NamedTuple):
    """Rows [k, ...] of observations that stand for all that were seen: weighed, they have their mean and variance."""

    weight: Any  # float32[k]; the weights add up to the number of observations
    obs: Tree  # float32[k, ...]


class Played(NamedTuple):
    """What an update of a population eats: n individuals that have played, and the table that their noise lies in."""

    index: Any  # int32[n]
    sign: Any  # float32[n]: 1 or -1
    returns: Any  # float32[n]
    lengths: Any  # int32[n]: steps of its episode
    valid: Any  # bool[n]: False where there is no individual
    seen: Seen | None
    table: Any  # float32[size of the table]


Rollouts = Fragments | Replay
"""Experience that actors send as fragments."""
Experience = Rollouts | Individuals


class Transitions(NamedTuple):
    """Steps drawn from a replay buffer, each with the `steps` (at most n) that follow from it in its episode.

    A target is sum_i gamma^i rewards[i] + gamma^steps * value(next_obs), the last term only where not terminated.
    """

    obs: Tree  # [b, ...]
    mask: Any  # bool[b, n] or None
    action: Any  # [b, ...]
    rewards: Any  # float32[b, n_step], 0 beyond `steps`
    steps: Any  # int32[b], from 1 to n_step
    terminated: Any  # bool[b]: nothing comes after
    next_obs: Tree  # [b, ...]: after `steps` steps
    next_mask: Any


class Drawn(NamedTuple):
    """What a replay buffer gives for an update."""

    rows: Transitions | Fragment
    weight: Any  # float32[b]: corrects for priorities, at most 1; 0 for rows that must be left out


class Algorithm(NamedTuple):
    """An algorithm for one environment spec. The loop it lives in:

    state = algorithm.init(key, spec, hyper)
    while True:
        params = algorithm.params(state)
        memory = algorithm.memory(params, B)                       # at an episode's start
        action, extras, memory = algorithm.act(params, memory, act_input, greedy)
        ...                                                        # T times, into a Fragment
        state, metrics, feedback = algorithm.update(state, batch, key, axis)

    What a batch is depends on `experience`: a Fragment, `Drawn` from a replay buffer, or `Played` individuals.
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
    observe: Callable | None = None  # (TrainState, Fragment, axis=None) -> TrainState, as replay takes a fragment in
    notes: tuple[str, ...] = ()  # what a user should know of these settings before the run

    @property
    def rollouts(self) -> Rollouts:
        """The experience of an algorithm that eats fragments, or rows of them."""
        assert not isinstance(self.experience, Individuals), "individuals are played to the end of their episodes"
        return self.experience
