"""A population in one XLA program: for environments that are JAX functions, and algorithms whose experience is
individuals.

An iteration plays every individual's episode and makes one update of what they reached; a dispatch runs several.
Individuals
are sharded over devices. All of a device's individuals step at once, and as they end, those that still play are moved
together into half the rows: an early end costs nothing from the next halving on.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from podium.algorithms.algorithm import Algorithm, Individuals, Played, Seen
from podium.algorithms.collectives import add_up
from podium.core.config import Experiment
from podium.core.types import ActInput, Tree
from podium.envs.interface import JaxEnv
from podium.envs.jax_wrappers import clip_action, like, strong
from podium.ops.compiling import jit_learning
from podium.ops.noise_table import slices
from podium.ops.random_keys import RandomKeys, random_keys, row_keys, run_key
from podium.workers.fused import AXIS, Dispatched, Fused, FusedState, repeat
from podium.workers.observation_moments import MomentTally
from podium.workers.rollout import EpisodeEnds

STEPS_PER_DISPATCH = 1 << 19
"""At most: individuals that all play as long as they may."""
NUMBERS_AT_ONCE = 1 << 26
"""Parameters of all individuals that a device plays at the same time; of more than that, some wait for the others."""
FEWEST_ROWS = 8
"""Fewer rows than these cost as much."""
HALVINGS = 4
"""Each is a loop of its own to compile."""


class PlayRows(NamedTuple):
    """Individuals that play, [n, ...]: who they are, and where their episodes stand."""

    individual: jax.Array  # place among those that began together
    params: Tree
    env: Tree
    obs: Tree
    memory: Tree
    key: jax.Array  # of the individual: that of a step is folded from it
    returns: jax.Array
    lengths: jax.Array
    over: jax.Array


class Scores(NamedTuple):
    """What individuals have reached, [n]."""

    returns: jax.Array
    lengths: jax.Array


def act_each(algorithm: Algorithm, params: Tree, memory: Tree, inputs: ActInput) -> tuple[jax.Array, Tree]:
    """Actions and memory of rows with parameters of their own: `params` [n, ...]."""

    def act(params: Tree, memory: Tree, inputs: ActInput) -> tuple[jax.Array, Tree]:
        alone = jax.tree.map(lambda x: x[None], (memory, inputs))
        action, _, memory = algorithm.act(params, *alone, False)
        return jax.tree.map(lambda x: x[0], (action, memory))

    return jax.vmap(act)(params, memory, inputs)


def iterations_per_dispatch(experiment: Experiment, individuals: Individuals) -> int:
    """From the configuration, never from timing: so two runs of one experiment dispatch alike."""
    return experiment.topology.dispatch or max(
        1, STEPS_PER_DISPATCH // (individuals.population * individuals.episode_limit)
    )


class Population:
    """The program of one experiment; it is driven as `Fused` is.

    population = Population(algorithm, env, experiment, devices)
    state = population.place(population.init())
    state, dispatched = population.dispatch(state, budget)
    """

    rows_of = staticmethod(Fused.rows_of)

    def __init__(self, algorithm: Algorithm, env: JaxEnv, experiment: Experiment, devices: Sequence[Any]) -> None:
        assert isinstance(algorithm.experience, Individuals)
        self._algorithm = algorithm
        self._individuals = algorithm.experience
        self._env = env
        self._experiment = experiment
        self._devices = devices
        self._mesh = Mesh(np.array(devices), (AXIS,))
        self._key = run_key(experiment.seed)
        self._compiled = self._compile()

    def init(self) -> FusedState:
        """The state before the first iteration. Environments have none between iterations."""
        return jax.jit(self.build)(self._key, self._experiment.hyper())

    def build(self, key: jax.Array, hyper: dict[str, float]) -> FusedState:
        """The same, of a key and hyper-parameters that may be traced."""
        train = self._algorithm.init(random_keys(key).init, self._env.spec, hyper)
        return FusedState(train, (), jnp.zeros((), jnp.int32), ())  # pyright: ignore[reportArgumentType]

    def place(self, state: FusedState) -> FusedState:
        """The state where dispatches leave it: on every device."""
        return state if len(self._devices) == 1 else jax.device_put(state, NamedSharding(self._mesh, PartitionSpec()))

    def warm_up(self, state: FusedState) -> None:
        """Make the noise table and compile; nothing is run."""
        self._compiled.lower(state, self._table, self._key, np.int32(0)).compile()

    def dispatch(self, state: FusedState, budget: int) -> tuple[FusedState, Dispatched]:
        """Several iterations, or until so many env steps are made."""
        return self._compiled(state, self._table, self._key, np.int32(min(budget, 2**31 - 1)))

    @cached_property
    def _table(self) -> jax.Array:
        return jax.device_put(self._individuals.table.numbers, NamedSharding(self._mesh, PartitionSpec()))

    def _compile(self) -> Any:
        sharded = len(self._devices) > 1
        iterations = iterations_per_dispatch(self._experiment, self._individuals)
        axis = AXIS if sharded else None

        def dispatch(state: FusedState, table: jax.Array, key: jax.Array, budget: jax.Array) -> tuple:
            return repeat(lambda state: self._iterate(state, table, key, axis), iterations, state, budget)

        if sharded:
            same: Any = PartitionSpec()
            out: Any = same, Dispatched(same, same, same, PartitionSpec(None, AXIS))  # pyright: ignore[reportArgumentType]
            # What devices add up is reduced by hand, as the algorithm's contract says: no tracking of what varies.
            dispatch = jax.shard_map(
                dispatch, mesh=self._mesh, in_specs=(same, same, same, same), out_specs=out, check_vma=False
            )
        return jit_learning(dispatch, donate_argnums=0)

    def _iterate(
        self, state: FusedState, table: jax.Array, key: jax.Array, axis: str | None
    ) -> tuple[FusedState, Dispatched]:
        """Play all individuals of this device, and learn from what those of all devices reached."""
        keys = RandomKeys(*(jax.random.fold_in(key, state.update) for key in random_keys(key)))
        device = 0 if axis is None else jax.lax.axis_index(axis)
        index, sign, pair = self._draw(keys.draw, device)
        scores, seen = self._play(self._algorithm.params(state.train), table, index, sign, pair, keys.play)
        valid = jnp.ones(index.shape, bool)
        batch = Played(index, sign, scores.returns, scores.lengths, valid, seen, table)
        train, metrics, _ = self._algorithm.update(state.train, batch, keys.learn, axis)
        steps = add_up(jnp.sum(scores.lengths), axis)
        report = Dispatched(jnp.ones((), bool), steps, metrics, EpisodeEnds(valid, scores.returns, scores.lengths))
        return FusedState(train, (), state.update + 1, ()), report  # pyright: ignore[reportArgumentType]

    def _draw(self, key: jax.Array, device: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Index, sign and number of the pair, of each of a device's individuals; both of a pair are on one device."""
        pairs = self._individuals.population // 2 // len(self._devices)
        pair = device * pairs + jnp.arange(pairs)
        index = jax.random.randint(key, (self._individuals.population // 2,), 0, self._individuals.last_index + 1)[pair]
        sign = jnp.repeat(jnp.array([1.0, -1.0]), pairs)
        return jnp.tile(index, 2), sign, jnp.tile(pair, 2)

    def _play(
        self, params: Tree, table: jax.Array, index: jax.Array, sign: jax.Array, pair: jax.Array, key: jax.Array
    ) -> tuple[Scores, Seen | None]:
        """An episode of each individual, as many at the same time as there is room for."""
        most = max(1, NUMBERS_AT_ONCE // self._individuals.size)
        rounds = next(n for n in range(1, len(index) + 1) if len(index) % n == 0 and len(index) // n <= most)

        def play(individuals: tuple) -> tuple[Scores, Seen | None]:
            index, sign, pair = individuals
            noise = slices(table, index, self._individuals.size)
            own = jax.vmap(self._individuals.perturb, (None, 0, 0))(params, noise, sign)
            return self._play_together(self._start(params, own, sign, pair, key))

        if rounds == 1:
            return play((index, sign, pair))
        played = jax.lax.map(play, jax.tree.map(lambda x: x.reshape(rounds, -1), (index, sign, pair)))
        return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), played)

    def _play_together(self, rows: PlayRows) -> tuple[Scores, Seen | None]:
        """Step all of these individuals until the last episode is over."""
        scores, first, step = Scores(rows.returns, rows.lengths), rows.obs, jnp.int32(0)
        tally = MomentTally.start(first) if self._individuals.observes else None
        while True:
            half = len(rows.over) // 2
            last = half < FEWEST_ROWS or len(scores.returns) // half > 2**HALVINGS
            step, rows, tally = self._step_until(step, rows, tally, 0 if last else half)
            reached = Scores(rows.returns, rows.lengths)
            scores = jax.tree.map(lambda all, some, rows=rows: all.at[rows.individual].set(some), scores, reached)
            if last:
                return scores, None if tally is None else tally.seen(first)
            playing = jnp.argsort(rows.over, stable=True)[:half]
            rows = jax.tree.map(lambda x, playing=playing: x[playing], rows)

    def _start(self, params: Tree, own: Tree, sign: jax.Array, pair: jax.Array, key: jax.Array) -> PlayRows:
        """Individuals at the first observation of their episodes, which both of a pair share; what is random later is
        each individual's own."""
        count = len(pair)
        env, obs = jax.vmap(lambda key: jax.tree.map(strong, self._env.reset(key)))(row_keys(key, pair, 0))
        one = self._algorithm.memory(params, 1)
        memory = jax.tree.map(lambda x: jnp.broadcast_to(x[0], (count, *x.shape[1:])), one)
        return PlayRows(
            individual=jnp.arange(count),
            params=own,
            env=env,
            obs=obs,
            memory=memory,
            key=row_keys(key, pair, jnp.where(sign > 0, 1, 2)),
            returns=jnp.zeros(count),
            lengths=jnp.zeros(count, jnp.int32),
            over=jnp.zeros(count, bool),
        )

    def _step_until(
        self, step: jax.Array, rows: PlayRows, tally: MomentTally | None, most: int
    ) -> tuple[jax.Array, PlayRows, MomentTally | None]:
        """Until no more than `most` still play."""
        limit, params = self._individuals.episode_limit, rows.params

        def more(carry: tuple) -> jax.Array:
            return jnp.sum(~carry[1].over) > most

        def advance(carry: tuple) -> tuple:
            step, rows, tally = carry
            if tally is not None:
                tally = tally.add(rows.obs, ~rows.over)
            after, reward, over = self._step(step, rows._replace(params=params))
            lengths = jnp.where(rows.over, rows.lengths, rows.lengths + 1)
            rows = after._replace(
                params=(),
                returns=jnp.where(rows.over, rows.returns, rows.returns + reward),
                lengths=lengths,
                over=rows.over | over | (lengths >= limit),
            )
            return step + 1, rows, tally

        # Parameters do not change: what a loop does not carry need not be copied.
        step, rows, tally = jax.lax.while_loop(more, advance, (step, rows._replace(params=()), tally))
        return step, rows._replace(params=params), tally

    def _step(self, step: jax.Array, rows: PlayRows) -> tuple[PlayRows, jax.Array, jax.Array]:
        """One step of every row; of those whose episode is over, nobody looks at the outcome."""
        count = len(rows.over)
        act_keys, env_keys = (
            jax.vmap(lambda key, n=n: jax.random.fold_in(key, 2 * step + n))(rows.key) for n in (0, 1)
        )
        mask = None if self._env.mask is None else jax.vmap(self._env.mask)(rows.env)
        inputs = ActInput(rows.obs, jnp.full(count, step == 0), mask, act_keys, jnp.ones(count))
        action, memory = act_each(self._algorithm, rows.params, rows.memory, inputs)

        def advance(state: Tree, action: jax.Array, key: jax.Array) -> tuple:
            return self._env.step(state, clip_action(self._env.spec, action), key)

        env, outcome = jax.vmap(advance)(rows.env, action, env_keys)
        env, obs = jax.tree.map(like, (env, outcome.obs), (rows.env, rows.obs))
        over = jnp.asarray(outcome.terminated, bool) | jnp.asarray(outcome.truncated, bool)
        return rows._replace(env=env, obs=obs, memory=memory), jnp.asarray(outcome.reward, jnp.float32), over
