"""Actor and learner in one XLA program: for environments that are JAX functions.

A dispatch runs several iterations of collect-then-update without leaving the device. Rows may be
sharded over devices: the algorithm then reduces gradients and statistics over the axis.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from podium.algorithms import learning
from podium.algorithms.algorithm import Algorithm, Replay
from podium.core.config import Experiment
from podium.core.specs import EnvSpec
from podium.core.types import Tree
from podium.envs.jax_wrappers import BatchedJaxEnv
from podium.ops.compiling import jit_learning
from podium.ops.random_keys import random_keys, run_key
from podium.workers import rollout
from podium.workers.finite import REWARD, decode_fault, describe_fault, encode_fault

AXIS = "rows"
FAULT = "fault"
"""A metric that is no metric: where the fragment has a number that is not finite (`workers.finite`), or 0."""
STEPS_PER_DISPATCH, PIXELS_PER_DISPATCH, UPDATES_PER_DISPATCH = 16_384, 1_024, 256
"""Of vectors, of images, and updates from replay: what a core does in about a second with a network of usual size."""


class FusedState(NamedTuple):
    """All that a checkpoint holds: with it, a run goes on bit for bit."""

    train: Tree
    rows: rollout.RolloutRows
    update: jax.Array
    store: Tree  # experience that is kept between updates; of each device its own, [devices, ...]


class Dispatched(NamedTuple):
    """What a dispatch reports, one row an iteration. `ran` is False beyond the step budget."""

    ran: jax.Array
    valid: jax.Array  # env steps of the iteration
    metrics: dict[str, jax.Array]
    episodes: rollout.EpisodeEnds


def iterations_per_dispatch(experiment: Experiment, algorithm: Algorithm, spec: EnvSpec) -> int:
    """From the configuration, never from timing: so two runs of one experiment dispatch alike."""
    if experiment.topology.dispatch:
        return experiment.topology.dispatch
    pixels = any(part.is_image for part in jax.tree.leaves(spec.observation))
    steps = PIXELS_PER_DISPATCH if pixels else STEPS_PER_DISPATCH
    if isinstance(algorithm.experience, Replay):
        steps = min(steps, int(UPDATES_PER_DISPATCH / algorithm.experience.ratio))
    return max(1, steps // experiment.rows_per_update(spec))


def repeat(
    iterate: Callable[[FusedState], tuple[FusedState, Dispatched]], most: int, state: FusedState, budget: jax.Array
) -> tuple[FusedState, Dispatched]:
    """Iterate until `most` times or the budget of env steps is used up; the reports, [most, ...].

    A loop that ends early, not a scan with a condition in it, for which XLA would copy a replay buffer each time.
    """

    def more(carry: tuple) -> jax.Array:
        count, _, budget, _ = carry
        return (count < most) & (budget > 0)

    def once(carry: tuple) -> tuple:
        count, state, budget, reports = carry
        state, report = iterate(state)
        reports = jax.tree.map(lambda xs, x: xs.at[count].set(x), reports, report)
        return count + 1, state, budget - report.valid, reports

    _, shapes = jax.eval_shape(iterate, state)
    reports = jax.tree.map(lambda s: jnp.zeros((most, *s.shape), s.dtype), shapes)
    _, state, _, reports = jax.lax.while_loop(more, once, (jnp.int32(0), state, budget, reports))
    return state, reports


class Fused:
    """The program of one experiment.

    fused = Fused(algorithm, env, experiment, devices)
    state = fused.init()
    state, dispatched = fused.dispatch(state, budget)
    """

    def __init__(
        self, algorithm: Algorithm, env: BatchedJaxEnv, experiment: Experiment, devices: Sequence[Any]
    ) -> None:
        self._algorithm = algorithm
        self._env = env
        self._experiment = experiment
        self._devices = devices
        self._mesh = Mesh(np.array(devices), (AXIS,))
        self._key = run_key(experiment.seed)
        self._compiled = self._compile()

    def init(self) -> FusedState:
        """The state before the first iteration."""
        return jax.jit(self.build)(self._key, self._experiment.hyper())

    def build(self, key: jax.Array, hyper: dict[str, float]) -> FusedState:
        """The same, of a key and hyper-parameters that may be traced."""
        keys = random_keys(key)
        train = self._algorithm.init(keys.init, self._env.spec, hyper)
        params = self._algorithm.params(train)
        rows = rollout.start(self._algorithm, self._env, params, keys.play, self._experiment.env.num_envs)
        return FusedState(train, rows, jnp.zeros((), jnp.int32), self._empty_store(train, rows))

    def place(self, state: FusedState) -> FusedState:
        """The state where dispatches leave it: rows spread over the devices, all else on each of them."""
        if len(self._devices) == 1:
            return state
        rows = NamedSharding(self._mesh, PartitionSpec(AXIS))
        same = NamedSharding(self._mesh, PartitionSpec())
        spread = {"rows": rows, "store": rows}
        return FusedState(**{name: jax.device_put(x, spread.get(name, same)) for name, x in state._asdict().items()})

    def _empty_store(self, train: Tree, rows: rollout.RolloutRows) -> Tree:
        """One for each device's share of the rows."""
        devices = len(self._devices)
        share = jax.tree.map(lambda x: x[: len(x) // devices], rows)
        shapes = jax.eval_shape(lambda: self._collect(train, share, self._key, jnp.int32(0))[1])
        store = learning.init(self._algorithm, shapes, devices)
        return jax.tree.map(lambda x: jnp.broadcast_to(x, (devices, *x.shape)), store)

    def warm_up(self, state: FusedState) -> None:
        """Compile; nothing is run."""
        self._compiled.lower(state, self._key, np.int32(0)).compile()

    @staticmethod
    def rows_of(dispatched: Dispatched) -> Iterator[tuple[int, dict[str, float], list[tuple[float, int]]]]:
        """Steps, metrics and finished episodes of each iteration that ran."""
        dispatched = jax.device_get(dispatched)
        for i in np.flatnonzero(dispatched.ran):
            over = dispatched.episodes.over[i]
            returns, lengths = dispatched.episodes.returns[i][over], dispatched.episodes.lengths[i][over]
            metrics = {name: float(values[i]) for name, values in dispatched.metrics.items()}
            yield (
                int(dispatched.valid[i]),
                learning.reported(metrics),
                list(zip(returns.tolist(), lengths.tolist(), strict=True)),
            )

    def describe_fault(self, code: int, update: int) -> str:
        """What the metric `FAULT` of the update after so many says, if it is not 0."""
        env, length = self._experiment.env, self._algorithm.rollouts.length
        t, row, kind = decode_fault(code, length, env.num_envs)
        name = f"environment {row} ({env.id}, seed {self._experiment.seed} of the run)"
        return describe_fault(name, kind, update * length + t + (kind == REWARD))

    def dispatch(self, state: FusedState, budget: int) -> tuple[FusedState, Dispatched]:
        """Several iterations, or until so many env steps are made."""
        return self._compiled(state, self._key, np.int32(min(budget, 2**31 - 1)))

    def _compile(self) -> Any:
        sharded = len(self._devices) > 1
        iterations = iterations_per_dispatch(self._experiment, self._algorithm, self._env.spec)
        axis = AXIS if sharded else None

        def dispatch(state: FusedState, key: jax.Array, budget: jax.Array) -> tuple[FusedState, Dispatched]:
            # The store of this device is taken out before the loop, not in it: else XLA would copy it each time.
            state = state._replace(store=jax.tree.map(lambda x: x[0], state.store))
            state, reports = repeat(lambda state: self._iterate(state, key, axis), iterations, state, budget)
            return state._replace(store=jax.tree.map(lambda x: x[None], state.store)), reports

        if sharded:
            rows: Any = PartitionSpec(AXIS)
            same: Any = PartitionSpec()
            episodes: Any = PartitionSpec(None, None, AXIS)
            state_spec = FusedState(train=same, rows=rows, update=same, store=rows)
            out_spec = Dispatched(same, same, same, episodes)
            # Gradients are reduced by hand, as the algorithm's contract says: no tracking of what varies.
            dispatch = jax.shard_map(
                dispatch,
                mesh=self._mesh,
                in_specs=(state_spec, same, same),
                out_specs=(state_spec, out_spec),
                check_vma=False,
            )
        return jit_learning(dispatch, donate_argnums=0)

    def _iterate(self, state: FusedState, key: jax.Array, axis: str | None) -> tuple[FusedState, Dispatched]:
        """Collect a fragment, and learn from it."""
        act_key, learn_key = jax.random.split(random_keys(key).learn)
        rows, fragment, episodes = self._collect(state.train, state.rows, act_key, state.update)
        learn_key = jax.random.fold_in(learn_key, state.update)
        train, store, metrics = learning.learn(self._algorithm, state.train, state.store, fragment, learn_key, axis)
        valid = jnp.sum(fragment.valid, dtype=jnp.int32)
        valid = valid if axis is None else jax.lax.psum(valid, axis)
        env_id = state.rows.row_id // len(self._env.spec.agents)
        fault = encode_fault(fragment, env_id, self._experiment.env.num_envs)
        metrics = metrics | {FAULT: fault if axis is None else jax.lax.pmax(fault, axis)}
        after = FusedState(train, rows, state.update + 1, store)
        return after, Dispatched(jnp.ones((), bool), valid, metrics, episodes)

    def _collect(self, train: Tree, rows: rollout.RolloutRows, key: jax.Array, update: jax.Array) -> tuple:
        params, num_envs = self._algorithm.params(train), self._experiment.env.num_envs
        return rollout.collect(self._algorithm, self._env, params, rows, key, update, num_envs)
