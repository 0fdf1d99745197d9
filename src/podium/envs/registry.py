"""From `env.id` to environments: which library steps it, what it looks like, and how B of them are made.

`CartPole-v1` is Gymnasium's id, and EnvPool steps it where it can; `gymnax:CartPole-v1` says which library;
`my_module:make_env` is a user's own. Libraries are imported only when an id needs them.
"""

import importlib
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from podium.core.config import EnvConfig
from podium.core.errors import ConfigError
from podium.core.extras import install_line
from podium.core.imports import load_module, load_path, suggest
from podium.core.specs import EnvSpec
from podium.envs.codecs import Codec, make_codec
from podium.envs.interface import HostEnv, JaxEnv
from podium.envs.metrics import refuse_unknown_metrics
from podium.envs.user_errors import user_errors
from podium.envs.wrappers import HostFrameStack, Wrapper, parse_wrappers, refuse, stack_spec

if TYPE_CHECKING:
    from podium.envs.envpool_plan import EnvPoolPlan

RESERVED = {"playground": "MuJoCo Playground", "pettingzoo": "PettingZoo"}
"""Names that will say which library, but that no adapter is written for yet."""

LIBRARIES = {
    "gymnasium": "podium.envs.gymnasium_ids",
    "envpool": "podium.envs.envpool",
    "gymnax": "podium.envs.gymnax",
    "podium": "podium.envs.toy",
}
"""Library -> the module that lists its ids."""

MakeHost = Callable[..., HostEnv]


@dataclass(frozen=True)
class ResolvedEnv:
    """An environment that is known to exist: `resolved.make_host(seeds=[1, 2, 3], render=False)`."""

    library: str
    kind: Literal["host", "jax"]
    spec: EnvSpec
    make_host: MakeHost
    jax_env: JaxEnv | None
    note: str
    codec: Codec
    spread: bool = False
    """Whether `env.processes` may step it in processes of their own."""


def resolve(config: EnvConfig, factory: Callable[..., Any] | None = None) -> ResolvedEnv:
    """Find the environment that a configuration names; `factory` stands in for a Python path.

    env = resolve(EnvConfig("CartPole-v1")).make_host(seeds=range(16))
    """
    for package in config.packages:
        load_module(package, package, "env.packages")
    wrappers = parse_wrappers(config.wrappers)
    library, _, name = config.id.partition(":")
    if factory is not None:
        found = resolve_factory(config, wrappers, factory)
    elif library in RESERVED and name:
        own = "make it a JaxEnv or gymnasium.Env of your own, my_module:make_env (docs/environments.md)"
        raise ConfigError(f"env.id = {config.id!r}: there is no adapter for {RESERVED[library]} yet; {own}")
    elif "<" in config.id:  # <lambda>, <locals>
        gone = "was a function of a program, which no name leads to"
        raise ConfigError(f"env.id = {config.id!r}: {gone}; from Python, give it again: env=make_env")
    elif library in LIBRARIES:
        found = resolve_named(config, wrappers, library, name)
    elif name and all(part.isidentifier() for part in library.split(".")):
        found = resolve_in_module(config, wrappers, library, name)
    else:
        found = resolve_plain(config, wrappers)
    return found


def list_envs(pattern: str = "") -> list[tuple[str, str]]:
    """What is installed, as (id to type, library), by part of a name or a pattern such as `Half*`."""
    found = []
    for library in LIBRARIES:
        if not installed(library):
            continue
        prefix = "" if library == "gymnasium" else f"{library}:"
        ids = importlib.import_module(LIBRARIES[library]).list_ids()
        found += [(prefix + env_id, library) for env_id in sorted(ids)]
    wanted = pattern.lower() if any(sign in pattern for sign in "*?[") else f"*{pattern.lower()}*"
    return [(env_id, library) for env_id, library in found if fnmatch(env_id.lower(), wanted)]


def installed(library: str) -> bool:
    """Whether a library of `LIBRARIES` is there."""
    return library == "podium" or find_spec(library) is not None


def resolve_in_module(config: EnvConfig, wrappers: Sequence[Wrapper], module_name: str, name: str) -> ResolvedEnv:
    """What a module has under this name: a constructor of the user's, or an id that it registers with Gymnasium."""
    import gymnasium

    module = load_module(module_name, config.id, "env.id")
    own, registered = hasattr(module, name), name in gymnasium.registry
    if own and registered:
        raise ConfigError(
            f"env.id = {config.id!r}: {name} is in module {module_name}, and an id of Gymnasium; for the id, say "
            f"env.id=gymnasium:{name} env.packages={module_name}"
        )
    if registered:
        return resolve_gymnasium(config, wrappers, config.id)
    if own or name.isidentifier():
        return resolve_factory(config, wrappers, load_path(config.id, "env.id"))
    ids = [
        env_id for env_id in gymnasium.registry if str(gymnasium.registry[env_id].entry_point).startswith(module_name)
    ]
    near = suggest(name, ids) or (f"; it has: {', '.join(ids[:5])}" if ids else "")
    raise ConfigError(f"env.id = {config.id!r}: {module_name} registers no {name!r} with Gymnasium{near}")


def resolve_plain(config: EnvConfig, wrappers: Sequence[Wrapper]) -> ResolvedEnv:
    """A Gymnasium id, which EnvPool steps where it has it and nothing asks for Gymnasium."""
    from podium.envs import gymnasium_ids

    if not gymnasium_ids.has_id(config.id):
        raise unknown(config.id, config.id)
    plan = None
    if config.processes == 0 and installed("envpool"):
        from podium.envs.envpool_plan import plan_gymnasium

        plan = plan_gymnasium(config, wrappers)
    if plan is None:
        return resolve_gymnasium(config, wrappers, config.id)
    return resolve_envpool(config, plan, partial(make_gymnasium_host, config, wrappers, config.id))


def resolve_named(config: EnvConfig, wrappers: Sequence[Wrapper], library: str, name: str) -> ResolvedEnv:
    """An id with its library in front."""
    if not installed(library):
        raise ConfigError(f"env.id = {config.id!r}: {library} is not installed: {install_line(library)}")
    module = importlib.import_module(LIBRARIES[library])
    if library == "gymnasium":
        if not module.has_id(name):
            raise unknown(config.id, name)
        return resolve_gymnasium(config, wrappers, name)
    if name not in module.list_ids():
        raise unknown(config.id, name)
    forbid_processes(config)
    if library == "envpool":
        from podium.envs.envpool_plan import translate

        return resolve_envpool(config, translate(name, config.kwargs, wrappers), None)
    return resolve_jax(config, library, name, module.make_env(name, config.kwargs), wrappers)


def resolve_factory(config: EnvConfig, wrappers: Sequence[Wrapper], factory: Callable[..., Any]) -> ResolvedEnv:
    """A user's own constructor of a gymnasium.Env or a JaxEnv, or, if it takes `seeds`, of a HostEnv."""
    if not callable(factory):
        raise ConfigError(f"env.id = {config.id!r}: must be a function that makes an environment")
    signature = inspect.signature(factory)
    parameters = signature.parameters
    try:
        signature.bind_partial(**config.kwargs)
    except TypeError as error:
        raise ConfigError(f"env.kwargs = {dict(config.kwargs)!r}: {config.id} refuses it: {error}") from None
    if "seeds" in parameters:
        return resolve_own_host(config, wrappers, factory)
    with user_errors(f"{config.id} raised when it was called"):
        env = factory(**config.kwargs)
    if isinstance(env, JaxEnv):
        forbid_processes(config)
        return resolve_jax(config, "python", config.id, env, wrappers)
    import gymnasium

    if not isinstance(env, gymnasium.Env):
        kind = type(env).__name__
        right = "a gymnasium.Env, a JaxEnv, or with an argument `seeds` a HostEnv"
        raise ConfigError(f"env.id = {config.id!r}: must make {right}, not {kind}")
    env.close()
    draws = "render_mode" in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())

    def make(render: bool) -> gymnasium.Env:
        return factory(**config.kwargs, render_mode="rgb_array") if render and draws else factory(**config.kwargs)

    return resolve_gymnasium_maker("python", config, wrappers, make, f"{config.id} is your own")


def resolve_own_host(config: EnvConfig, wrappers: Sequence[Wrapper], factory: Callable[..., HostEnv]) -> ResolvedEnv:
    """A user's own batched environment. It resets itself, so only frames can be stacked around it."""
    forbid_processes(config)
    for wrapper in wrappers:
        if wrapper.name != "frame_stack":
            raise refuse(wrapper, "a HostEnv of your own steps whole batches; only frame_stack goes around it")

    def make_host(seeds: Sequence[int], render: bool = False) -> HostEnv:
        from podium.envs.own_host import OwnHost

        with user_errors(f"{config.id} raised when it was called with seeds={[int(seed) for seed in seeds]}"):
            env = factory(seeds=seeds, **config.kwargs)
        if not isinstance(env, HostEnv):
            kind = type(env).__name__
            raise ConfigError(f"env.id = {config.id!r}: takes seeds, so it must make a HostEnv, not {kind}")
        return stack_frames(OwnHost(env, seeds), [wrapper.count for wrapper in wrappers])

    probe = make_host([0])
    spec = probe.spec
    probe.close()
    refuse_unknown_metrics(config.id, config.metrics, spec.metrics)
    return ResolvedEnv("python", "host", spec, make_host, None, f"{config.id} steps its own batches", make_codec(spec))


def resolve_jax(config: EnvConfig, library: str, name: str, env: JaxEnv, wrappers: Sequence[Wrapper]) -> ResolvedEnv:
    """A JAX environment with its wrappers, which also runs on the host."""
    from podium.envs import jax_wrappers

    refuse_unknown_metrics(f"a JAX environment ({name})", config.metrics, ())
    if env.spec.metrics:
        raise ConfigError(f"env.id = {config.id!r}: the spec of a JAX environment must name no metrics")
    own = [wrapper for wrapper in wrappers if wrapper.function]
    if own:
        env = jax_wrappers.tally(env)
    for wrapper in wrappers:
        if wrapper.name == "atari":
            raise refuse(wrapper, "works on ALE games, such as ALE/Pong-v5")
        env = getattr(jax_wrappers, wrapper.name)(env, wrapper.count) if wrapper.count else wrapper.function(env)
        if not isinstance(env, JaxEnv):
            raise refuse(wrapper, f"must return a JaxEnv for {name}, not {type(env).__name__}")

    if library == "python" or own:
        from podium.envs.own_jax import check_functions

        check_functions(env, name)

    def make_host(seeds: Sequence[int], render: bool = False) -> HostEnv:
        from podium.envs.host_from_jax import HostFromJax

        return HostFromJax(env, seeds)

    by = {"podium": "a JAX environment of Podium", "python": "a JAX environment of your own"}
    note = f"{name} is {by.get(library) or f'a JAX environment of {library} {version(library)}'}"
    return ResolvedEnv(library, "jax", env.spec, make_host, env, note, make_codec(env.spec))


def resolve_gymnasium(config: EnvConfig, wrappers: Sequence[Wrapper], name: str) -> ResolvedEnv:
    """A Gymnasium id, stepped by Gymnasium."""
    note = f"Gymnasium steps {name} (gymnasium {version('gymnasium')})"
    return resolve_gymnasium_maker("gymnasium", config, wrappers, gymnasium_maker(config, wrappers, name), note)


def gymnasium_maker(config: EnvConfig, wrappers: Sequence[Wrapper], name: str) -> Callable[[bool], Any]:
    """A function of `render` that makes one environment of this id."""
    from podium.envs import gymnasium_ids

    # the atari wrapper skips frames by itself, with a maximum over two of them
    skips = gymnasium_ids.find_game(name) and any(wrapper.name == "atari" for wrapper in wrappers)
    extra = {"frameskip": 1} if skips else {}
    return partial(gymnasium_ids.make_in, config.packages, name, {**extra, **config.kwargs})


def make_gymnasium_host(
    config: EnvConfig, wrappers: Sequence[Wrapper], name: str, seeds: Sequence[int], render: bool = False
) -> HostEnv:
    """Gymnasium in place of EnvPool, where a picture is wanted."""
    return resolve_gymnasium(config, wrappers, name).make_host(seeds, render)


def resolve_gymnasium_maker(
    library: str, config: EnvConfig, wrappers: Sequence[Wrapper], make: Callable[[bool], Any], note: str
) -> ResolvedEnv:
    """Environments from a constructor, in this process or in `env.processes` others."""
    from podium.envs.gymnasium_rows import examine
    from podium.envs.gymnasium_wrappers import wrapping

    wrap = wrapping(wrappers)
    spec, codec = examine(partial(make, False), wrap, config.metrics)

    def make_host(seeds: Sequence[int], render: bool = False) -> HostEnv:
        if config.processes:
            from podium.envs.processes import ProcessesEnv

            return ProcessesEnv(partial(make, render), list(seeds), config.processes, wrap, spec)
        from podium.envs.gymnasium import GymnasiumEnv

        return GymnasiumEnv(partial(make, render), list(seeds), wrap, spec)

    where = {0: "", 1: ", in a process of its own"}.get(config.processes, f", in {config.processes} processes")
    return ResolvedEnv(library, "host", spec, make_host, None, note + where, codec, spread=True)


def resolve_envpool(config: EnvConfig, plan: "EnvPoolPlan", make_drawing: MakeHost | None) -> ResolvedEnv:
    """An id that EnvPool steps; `make_drawing` makes the environments that draw pictures."""
    from podium.envs.envpool import EnvPoolEnv, make_pool_codec, make_spec

    def make_host(seeds: Sequence[int] | np.ndarray, render: bool = False) -> HostEnv:
        if render and make_drawing is not None:
            return make_drawing(seeds, render=True)
        env = EnvPoolEnv(plan.name, seeds, config.threads, plan.options, render, plan.repeat, config.metrics)
        return stack_frames(env, plan.stacks)

    spec = make_spec(plan.name, plan.options, config.metrics)
    codec = make_pool_codec(plan.name, plan.options)
    for count in plan.stacks:
        spec = replace(spec, observation=stack_spec(spec.observation, count))
        codec = codec._replace(form=spec.observation)
    note = f"EnvPool steps {plan.name} (envpool {version('envpool')})"
    return ResolvedEnv("envpool", "host", spec, make_host, None, note, codec)


def stack_frames(env: HostEnv, counts: Sequence[int]) -> HostEnv:
    """Stacks of frames around a batch, in order."""
    for count in counts:
        env = HostFrameStack(env, count)
    return env


def forbid_processes(config: EnvConfig) -> None:
    """Only Gymnasium environments are stepped in processes of their own."""
    if config.processes:
        raise ConfigError(f"env.processes = {config.processes}: {config.id} is no Gymnasium environment; must be 0")


def unknown(env_id: str, name: str) -> ConfigError:
    """The error for an id that its library does not have, with the nearest ones of all libraries."""
    ids = [known for known, _ in list_envs() if known != env_id]
    same = [known for known in ids if known.rpartition(":")[2].rpartition("/")[2].lower() == name.lower()]
    same.sort(
        key=lambda known: known.partition(":")[0] != env_id.partition(":")[0]
    )  # the library asked for comes first
    near = f"; did you mean {' or '.join(map(repr, same[:3]))}?" if same else suggest(env_id, ids)
    return ConfigError(f"env.id = {env_id!r}: there is no such environment{near or '; `podium envs` lists them'}")
