"""From what a user typed to one Experiment: defaults < preset < config file < flags and `--set`."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from podium.core.config import Experiment
from podium.core.errors import ConfigError
from podium.core.fields import ConfigField, config_class, list_fields, sections
from podium.core.foreign_names import explain_unknown
from podium.core.presets import find_preset, list_presets, load_preset, load_topology
from podium.core.toml import load
from podium.core.values import check_value, format_value, parse_value

Origin = Literal["default", "preset", "config", "flag"]


@dataclass(frozen=True)
class Resolved:
    """An experiment, and where each of its fields came from. `notes` are lines to print."""

    experiment: Experiment
    notes: tuple[str, ...]
    preset: str | None
    origins: dict[str, Origin]


class Setting(NamedTuple):
    """One key and its value; `is_text` if it was typed and must still be read."""

    path: str
    value: Any
    is_text: bool = False


def resolve(
    algorithm: str | None,
    env: str | None,
    *,
    preset: str | None = "auto",
    topology: str | None = None,
    config: str | Path | None = None,
    overrides: Mapping[str, Any] | Sequence[str] = (),
    total_steps: float | None = None,
    seed: float | None = None,
    deterministic: bool = False,
) -> Resolved:
    """Resolve an experiment. `algorithm` and `env` may be None where config or overrides name them.

    `topology` is an architecture by name (impala, seed, decoupled), which `config` and `overrides` may change.
    `deterministic` sets what makes two runs with one seed equal bit for bit, as `make_deterministic` does.

    >>> resolve("ppo", "CartPole-v1", overrides=["env.num_envs=4"]).experiment.env.num_envs
    4
    """
    file = list(_flatten(load(Path(config)))) if config else []
    shortcuts = {"algorithm.name": algorithm, "env.id": env, "limits.total_steps": total_steps, "seed": seed}
    typed = _join(shortcuts, read_overrides(overrides))
    if deterministic:
        typed = _set_in_turns(typed)
    named = {setting.path: setting.value for setting in (*file, *typed)}
    algorithm = _require_name(named, "algorithm.name", "an algorithm, as in `podium train ppo CartPole-v1`")
    env = _require_name(named, "env.id", "an environment, as in `podium train ppo CartPole-v1`")
    fields = list_fields(config_class(algorithm))
    preset_name, preset_tree = _choose_preset(preset, algorithm, env)

    values: dict[str, Any] = {path: field.default for path, field in fields.items()}
    origins: dict[str, Origin] = dict.fromkeys(fields, "default")
    names = [preset_name, *([f"topology/{topology}"] if topology else [])]
    layers: list[tuple[Origin, list[Setting]]] = [
        ("preset", list(_flatten(preset_tree))),
        ("preset", list(_flatten(load_topology(topology))) if topology else []),
        ("config", file),
        ("flag", typed),
    ]
    for origin, settings in layers:
        for setting in settings:
            origins[_apply(setting, values, fields)] = origin
    experiment = _build(values, algorithm)
    if deterministic:
        experiment = make_deterministic(experiment)
    return Resolved(experiment, _notes(names, values, origins), preset_name, origins)


def make_deterministic(experiment: Experiment) -> Experiment:
    """The experiment with actors and learner in turns, so that no clock decides what is computed.

    At staleness 0 nothing is measured either: auto places the parts by the settings alone.

    Raises ConfigError where another setting would let the clock decide.
    """
    topology, wall_s = experiment.topology, experiment.limits.wall_s
    if topology.replay_workers:
        where = f"topology.replay_workers = {topology.replay_workers}"
        raise ConfigError(f"{where}: they go at their own pace, so --deterministic needs 0; leave one of them out")
    if wall_s is not None:
        raise ConfigError(
            f"limits.wall_s = {wall_s:g}: ends a run by the clock, which --deterministic excludes; "
            "use limits.wall_s=none and --total-steps"
        )
    return replace(experiment, topology=replace(topology, staleness=0))


def build_experiment(tree: Mapping[str, Any]) -> Experiment:
    """The experiment of a nested dict such as `toml.load` returns; what it leaves out has its default.

    >>> build_experiment({"algorithm": {"name": "ppo", "gamma": 0.9}}).algorithm.gamma
    0.9
    """
    settings = list(_flatten(tree))
    named = {setting.path: setting.value for setting in settings}
    algorithm = _require_name(named, "algorithm.name", "an algorithm's name or Python path")
    fields = list_fields(config_class(algorithm))
    values: dict[str, Any] = {path: field.default for path, field in fields.items()}
    for setting in settings:
        _apply(setting, values, fields)
    return _build(values, algorithm)


def build_values(
    before: Mapping[str, Any], fields: Mapping[str, ConfigField], settings: Sequence[Setting], algorithm: str
) -> tuple[Experiment, dict[str, Any]]:
    """An experiment of values by path with settings put in, and these values."""
    values = dict(before)
    for setting in settings:
        _apply(setting, values, fields)
    return _build(values, algorithm), values


def read_experiment(source: Path | str) -> Experiment:
    """The experiment in a run's experiment.toml, or in the text of one."""
    return build_experiment(load(source))


def read_overrides(overrides: Mapping[str, Any] | Sequence[str]) -> list[Setting]:
    """Settings from `["a.b=1"]` as typed, or from `{"a.b": 1}` or `{"a": {"b": 1}}` as Python values."""
    if not isinstance(overrides, Mapping | Sequence):
        right = '{"algorithm.gamma": 0.9} or ["algorithm.gamma=0.9"]'
        raise ConfigError(f"set = {format_value(overrides, quote=True)}: must be settings, such as {right}")
    if isinstance(overrides, str):
        overrides = [overrides]
    if isinstance(overrides, Mapping):
        return list(_flatten(overrides))
    settings = []
    for item in overrides:
        path, equals, text = item.partition("=")
        if not equals or not path.strip():
            raise ConfigError(f"--set {item}: must be KEY=VALUE, such as algorithm.learning_rate=1e-3")
        settings.append(Setting(path.strip(), text, is_text=True))
    return settings


def _join(shortcuts: Mapping[str, Any], overrides: list[Setting]) -> list[Setting]:
    """Named flags and `--set` in one list; the same field in both must agree."""
    given = {path: value for path, value in shortcuts.items() if value is not None}
    for setting in overrides:
        if setting.path in given and str(given[setting.path]) != str(setting.value).strip():
            twice = f"{given[setting.path]} and {str(setting.value).strip()}"
            raise ConfigError(f"{setting.path} is given twice, as {twice}: leave one of them out")
    return [Setting(path, value) for path, value in given.items()] + overrides


def _set_in_turns(typed: list[Setting]) -> list[Setting]:
    """What was typed with `topology.staleness = 0`; another staleness that was typed is refused."""
    for setting in typed:
        if setting.path == "topology.staleness" and str(setting.value).strip() != "0":
            value = str(setting.value).strip()
            raise ConfigError(f"topology.staleness = {value}: --deterministic needs 0; leave one of them out")
    return [*typed, Setting("topology.staleness", 0)]


def _require_name(named: Mapping[str, Any], path: str, right: str) -> str:
    name = named.get(path)
    if not name or not isinstance(name, str):
        raise ConfigError(f"{path} = {format_value(name, quote=True)}: must be {right}")
    return name.strip()


def _flatten(tree: Mapping[str, Any]) -> Iterator[Setting]:
    """`{"env": {"kwargs": {"a": 1}}}` -> `env.kwargs = {"a": 1}`: two levels, as deep as the tree is."""
    for key, value in tree.items():
        if isinstance(value, Mapping) and "." not in key:
            yield from (Setting(f"{key}.{name}", item) for name, item in value.items())
        else:
            yield Setting(key, value)


def _apply(setting: Setting, values: dict[str, Any], fields: Mapping[str, ConfigField]) -> str:
    """Put a checked setting among the values; returns the field it belongs to."""
    path, value, is_text = setting
    owner, _, name = path.rpartition(".")
    if path not in fields and owner in fields and isinstance(values[owner], Mapping):
        item = parse_value(Any, value) if is_text else value
        values[owner] = {**values[owner], name: check_value(path, Any, item)}
        return owner
    if path not in fields:
        shown = value.strip() if is_text else format_value(value, quote=True)
        raise ConfigError(f"{path} = {shown}: no such field{explain_unknown(path, fields)}")
    kind = fields[path].kind
    values[path] = check_value(path, kind, parse_value(kind, value) if is_text else value)
    return path


def _choose_preset(preset: str | None, algorithm: str, env: str) -> tuple[str | None, dict[str, Any]]:
    if preset is None or preset == "none":
        return None, {}
    if preset == "auto":
        return find_preset(algorithm, env) or (None, {})
    name = f"{algorithm}/{preset}" if f"{algorithm}/{preset}" in list_presets() else preset
    tree = load_preset(name, f"{algorithm}/")
    if not name.startswith(f"{algorithm}/"):
        raise ConfigError(f"preset = {preset!r}: is not for {algorithm!r}; `podium presets` lists them")
    return name, tree


def _build(values: Mapping[str, Any], algorithm: str) -> Experiment:
    """The frozen tree from values by path; each section checks itself."""
    parts = sections(config_class(algorithm))
    arguments: dict[str, dict[str, Any]] = {name: {} for name in parts}
    top: dict[str, Any] = {}
    for path, value in values.items():
        if value is MISSING:
            raise ConfigError(f"{path} has no default: give it with --set {path}=VALUE")
        section, _, name = path.rpartition(".")
        (arguments[section] if section else top)[name] = value
    return Experiment(**{name: part(**arguments[name]) for name, part in parts.items()}, **top)


def _notes(presets: list[str | None], values: Mapping[str, Any], origins: Mapping[str, Origin]) -> tuple[str, ...]:
    """What to tell the user: the presets' settings that nothing overrode."""
    kept = [f"{path}={format_value(values[path])}" for path, origin in origins.items() if origin == "preset"]
    return (f"preset {' and '.join(filter(None, presets))}: {', '.join(kept)}",) if kept else ()
