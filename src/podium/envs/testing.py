"""The promises of an environment as checks: run an adapter, ours or your own, through all of them.

from podium.envs.testing import check_host_env, check_jax_env
check_host_env(lambda seeds: MyEnv(seeds))
check_jax_env(my_jax_env)
"""

from collections.abc import Callable, Mapping

import numpy as np

from podium.core.errors import BrokenPromiseError
from podium.core.specs import Action, Box, Discrete, EnvSpec, MultiDiscrete, Observation
from podium.core.types import Tree
from podium.envs.buffers import map_arrays
from podium.envs.interface import HostEnv, JaxEnv, TimeStep
from podium.envs.own_host import describe_saved

MakeHostEnv = Callable[[list[int]], HostEnv]
SEEDS = [11, 22, 33]


def check_host_env(make: MakeHostEnv, steps: int = 200, seed: int = 0, clips_rewards: bool = False) -> None:
    """Run all promises of `HostEnv`; `make(seeds)` builds one environment for each seed.

    Episodes must end within `steps` random steps for the promises about ends to be seen. With `clips_rewards`,
    episode_return is of rewards before clipping and so is not compared with theirs.
    """
    script = record(make, SEEDS, steps, seed)
    check_layout(script)
    if not clips_rewards:
        check_returns(script)
    check_same(script, record(make, SEEDS, steps, seed), "the same seeds and actions give the same steps")
    check_rows_independent(make, script)
    check_arrays_last(make, steps=min(steps, 20), seed=seed)
    check_saved(make, script)


def check_jax_env(env: JaxEnv, steps: int = 200, seed: int = 0) -> None:
    """Run all promises of `JaxEnv`: those of a host environment, and a state of constant shape under scan."""
    import jax

    from podium.envs.host_from_jax import HostFromJax
    from podium.envs.jax_wrappers import vectorize

    batch = vectorize(env)
    keys = jax.random.split(jax.random.key(seed), len(SEEDS))
    state, first = jax.eval_shape(batch.reset, keys)
    actions = draw_actions(env.spec, np.random.default_rng(seed), len(SEEDS), None)
    after, then = jax.eval_shape(batch.step, state, actions, keys)
    shape = jax.tree.map(lambda x: (x.shape, x.dtype), (state, first))
    expect(
        shape == jax.tree.map(lambda x: (x.shape, x.dtype), (after, then)),
        "state and step keep their shapes and dtypes, as a scan needs",
    )
    check_host_env(lambda seeds: HostFromJax(env, seeds), steps, seed)


class Script:
    """What an environment gave for recorded actions: copies of every step."""

    def __init__(self, spec: EnvSpec, seeds: list[int]) -> None:
        self.spec = spec
        self.seeds = seeds
        self.actions: list[np.ndarray] = []
        self.steps: list[TimeStep] = []


def record(make: MakeHostEnv, seeds: list[int], steps: int, seed: int) -> Script:
    """Play random legal actions and keep everything; close twice."""
    env = make(seeds)
    random = np.random.default_rng(seed)
    script = Script(env.spec, seeds)
    try:
        expect(env.num_envs == len(seeds), f"num_envs is the number of seeds, {len(seeds)}, not {env.num_envs}")
        step = copy_step(env.reset())
        script.steps.append(step)
        for _ in range(steps):
            script.actions.append(draw_actions(env.spec, random, len(seeds), step.mask))
            step = copy_step(env.step(script.actions[-1]))
            script.steps.append(step)
    finally:
        env.close()
        env.close()
    return script


def check_layout(script: Script) -> None:
    """Shapes, dtypes, bounds, and the canonical layout around the ends of episodes."""
    rows = len(script.seeds)
    ended, over, lengths = np.ones(rows, bool), np.ones(rows, bool), np.zeros(rows, int)
    for time, step in enumerate(script.steps):
        where = f" (step {time})"
        check_arrays(script.spec, step, rows, where)
        end = step.terminated | step.truncated
        expect(not (step.terminated & step.truncated).any(), "a step is terminated or truncated, not both" + where)
        expect(not step.reward[ended].any(), "a reset row has reward 0" + where)
        expect(not end[ended].any(), "a reset row is neither terminated nor truncated" + where)
        expect(not (step.episode_over & ~end).any(), "episode_over comes with an end" + where)
        expect(not step.episode_return[over].any(), "episode_return starts at 0" + where)
        lengths = np.where(over, 0, lengths + ~ended)
        expect(np.array_equal(step.episode_length, lengths), "episode_length counts steps, not reset rows" + where)
        ended, over = end, step.episode_over


def check_returns(script: Script) -> None:
    """The return of an episode is the sum of its rewards."""
    total = np.zeros(len(script.seeds), np.float64)
    over = np.ones(len(script.seeds), bool)
    for time, step in enumerate(script.steps):
        total = np.where(over, 0.0, total + step.reward)
        close = np.isclose(total, step.episode_return, rtol=1e-3, atol=1e-3)
        expect(bool(close.all()), f"episode_return adds up the rewards (step {time})")
        over = step.episode_over


def check_arrays(spec: EnvSpec, step: TimeStep, rows: int, where: str) -> None:
    """Every array has the shape and dtype that spec and TimeStep promise."""
    check_observation(spec.observation, step.obs, rows, "obs", where)
    kinds = {"reward": "float32", "terminated": "bool", "truncated": "bool", "episode_over": "bool"}
    kinds |= {"episode_return": "float32", "episode_length": "int32"}
    for name, dtype in kinds.items():
        array = getattr(step, name)
        found = f"{array.dtype}{list(array.shape)}"
        expect(found == f"{dtype}[{rows}]", f"{name} is {dtype}[{rows}], not {found}{where}")
    expect((step.metrics is not None) == bool(spec.metrics), f"there are metrics if and only if spec.metrics{where}")
    if step.metrics is not None:
        found = f"{step.metrics.dtype}{list(step.metrics.shape)}"
        wanted = f"float32{[rows, len(spec.metrics)]}"
        expect(found == wanted, f"metrics is {wanted}, not {found}{where}")
    expect((step.mask is not None) == spec.masked, f"there is a mask if and only if spec.masked{where}")
    if step.mask is not None:
        expect(step.mask.shape == (rows, spec.mask_size), f"mask is bool[{rows}, {spec.mask_size}]{where}")
        expect(step.mask.dtype == np.bool_, f"mask is bool, not {step.mask.dtype}{where}")
        going = ~(step.terminated | step.truncated)
        expect(bool(step.mask[going].any(axis=1).all()), f"some action is legal{where}")


def check_observation(spec: Observation, obs: Tree, rows: int, name: str, where: str) -> None:
    """The observation tree is the spec's, and its numbers are finite."""
    if isinstance(spec, Mapping):
        expect(isinstance(obs, Mapping) and set(obs) == set(spec), f"{name} has the keys {sorted(spec)}{where}")
        for key, part in spec.items():
            check_observation(part, obs[key], rows, f"{name}[{key!r}]", where)
        return
    found = f"{obs.dtype}{list(obs.shape)}"
    wanted = f"{spec.dtype}{[rows, *spec.shape]}"
    expect(found == wanted, f"{name} is {wanted}, not {found}{where}")
    expect(bool(np.isfinite(obs).all()), f"{name} is finite{where}")


def check_same(one: Script, other: Script, promise: str) -> None:
    """Two recordings are equal, number for number."""
    for time, (a, b) in enumerate(zip(one.steps, other.steps, strict=True)):
        expect(equal(tuple(a), tuple(b)), f"{promise} (step {time})")


def check_rows_independent(make: MakeHostEnv, script: Script) -> None:
    """A row's steps depend on its own seed and actions alone: alone, it plays the same."""
    row = len(script.seeds) - 1
    env = make([script.seeds[row]])
    try:
        steps = [copy_step(env.reset())] + [copy_step(env.step(actions[row : row + 1])) for actions in script.actions]
    finally:
        env.close()
    for time, (alone, together) in enumerate(zip(steps, script.steps, strict=True)):
        own = map_arrays(lambda array: array[row : row + 1], tuple(together))
        expect(close(tuple(alone), own), f"a row does not depend on the rows beside it (step {time})")


def check_arrays_last(make: MakeHostEnv, steps: int, seed: int) -> None:
    """What recv returned stays as it is during the next send and recv; bounds hold for wild actions."""
    env = make(SEEDS)
    random = np.random.default_rng(seed)
    try:
        step = env.reset()
        for time in range(steps):
            kept = copy_step(step)
            actions = draw_actions(env.spec, random, len(SEEDS), step.mask)
            if isinstance(env.spec.action, Box):
                actions = actions * 100  # must be clipped, not refused
            env.send(actions)
            actions[...] = 0  # the caller may reuse its array
            expect(equal(tuple(step), tuple(kept)), f"arrays are untouched by the next send (step {time})")
            later = env.recv()
            expect(equal(tuple(step), tuple(kept)), f"arrays are untouched by the next recv (step {time})")
            step = later
    finally:
        env.close()


def check_saved(make: MakeHostEnv, script: Script) -> None:
    """What was saved half-way goes on in the same steps, in environments of other seeds. Nothing need be saved."""
    half = len(script.actions) // 2
    env, other = make(script.seeds), make([seed + 1 for seed in script.seeds])
    try:
        env.reset()
        for actions in script.actions[:half]:
            env.step(actions)
        if (saved := env.save()) is None:
            return
        for actions in script.actions[half:]:
            env.step(actions)  # must leave alone what was saved
        other.reset()
        form, fresh = describe_saved(saved), describe_saved(other.save())
        expect(form == fresh, f"what is saved has the same shapes at any time: {form}, not {fresh}")
        steps = [copy_step(other.load(saved))] + [copy_step(other.step(actions)) for actions in script.actions[half:]]
    finally:
        env.close()
        other.close()
    for time, (again, before) in enumerate(zip(steps, script.steps[half:], strict=True), half):
        expect(equal(tuple(again), tuple(before)), f"what was loaded goes on where it was saved (step {time})")


def draw_actions(spec: EnvSpec, random: np.random.Generator, rows: int, mask: np.ndarray | None) -> np.ndarray:
    """Random actions within bounds, legal where there is a mask."""
    if mask is None:
        mask = np.ones((rows, spec.mask_size), bool)
    return np.stack([draw_action(spec.action, random, legal) for legal in mask])


def draw_action(spec: Action, random: np.random.Generator, legal: np.ndarray) -> np.ndarray:
    """One random legal action."""
    match spec:
        case Box(shape, low, high):
            low, high = np.maximum(low, -1e3).reshape(shape), np.minimum(high, 1e3).reshape(shape)
            return random.uniform(low, high).astype(np.float32)
        case Discrete():
            return np.asarray(draw_choice(random, legal), np.int32)
        case MultiDiscrete(nvec):
            parts = np.split(legal, np.cumsum(nvec)[:-1])
            return np.array([draw_choice(random, part) for part in parts], np.int32)


def draw_choice(random: np.random.Generator, legal: np.ndarray) -> int:
    """One of the legal choices; any where an ended episode has none."""
    choices = np.flatnonzero(legal)
    return int(random.choice(choices)) if choices.size else 0


def copy_step(step: TimeStep) -> TimeStep:
    """The step in memory of our own."""
    return TimeStep(*map_arrays(np.array, tuple(step)))


def equal(one: Tree, other: Tree) -> bool:
    """Whether two trees hold the same numbers; a metric that an episode lacks is NaN in both."""
    same: list[bool] = []
    map_arrays(lambda a, b: same.append(np.array_equal(a, b, equal_nan=True)), one, other)
    return all(same)


def close(one: Tree, other: Tree) -> bool:
    """Whether two trees hold nearly the same numbers: XLA's last bit changes with the batch size."""
    same: list[bool] = []
    map_arrays(lambda a, b: same.append(np.allclose(a, b, rtol=1e-4, atol=1e-5, equal_nan=True)), one, other)
    return all(same)


def expect(holds: bool, promise: str) -> None:
    """Raise unless a promise holds."""
    if not holds:
        raise BrokenPromiseError(f"broken promise: {promise}")
