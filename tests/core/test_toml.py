"""TOML in and out is exact, and files of other shapes are refused in one line."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest

from podium.core.algorithm_configs import PPOConfig
from podium.core.config import CheckpointConfig, EnvConfig, Experiment
from podium.core.errors import ConfigError
from podium.core.fields import list_fields
from podium.core.settings import build_experiment, read_experiment, resolve
from podium.core.toml import dump, load

SPECIAL = {
    "algorithm.name": ["ppo"],
    "algorithm.gamma": [0.0, 0.1 + 0.2, 1.0],
    "algorithm.gae_lambda": [0.0, 0.95, 1.0],
    "algorithm.schedules": [{}, {"clip": "cosine"}, {"entropy_coef": [[0, 1], [0.5, 0.1]], "clip": "my_module:f"}],
    "env.id": ["CartPole-v1", "gymnax:CartPole-v1", 'quo"te', "ünï\nline"],
    "env.processes": [0, 1],
    "env.kwargs": [{}, {"a": 1, "b": [1.5, "x"], "c": {"d": True}}, {"with space": "]"}],
    "limits.target_return": [None, -1e-300, float("inf"), 475.0],
}


def draw(rng: random.Random, path: str, kind: Any) -> Any:
    """A value that the field allows."""
    if path in SPECIAL:
        return rng.choice(SPECIAL[path])
    options = get_args(kind) if type(None) in get_args(kind) else (kind,)
    kind = rng.choice(options)
    if get_origin(kind) is Literal:
        return rng.choice(get_args(kind))
    if get_origin(kind) is tuple:
        return tuple(draw(rng, "", get_args(kind)[0]) for _ in range(rng.randrange(4)))
    draws = {
        type(None): lambda: None,
        bool: lambda: rng.random() < 0.5,
        int: lambda: rng.choice([1, 7, 10**6, 2**63]),
        float: lambda: rng.choice([rng.random(), 1e-5, 1e300, 5e-324, 3.0]) or 1.0,
        str: lambda: rng.choice(["my_module:thing", "none", "1", "true"]),
    }
    return draws[kind]()


def draw_experiment(rng: random.Random) -> Experiment:
    tree: dict[str, Any] = {}
    for path, field in list_fields(PPOConfig).items():
        section, _, name = path.rpartition(".")
        (tree.setdefault(section, {}) if section else tree)[name] = draw(rng, path, field.kind)
    return build_experiment(tree)


@pytest.mark.parametrize("seed", range(200))
def test_every_experiment_survives_the_round_trip_exactly(seed: int) -> None:
    experiment = draw_experiment(random.Random(seed))
    assert build_experiment(load(dump(experiment))) == experiment


def test_format_is_the_first_key_and_none_is_left_out() -> None:
    lines = [line for line in dump(Experiment()).splitlines() if not line.startswith("#")]
    assert lines[0] == "format = 1"
    assert not any(line.startswith("wall_s") for line in lines)


def test_a_none_whose_default_is_a_number_survives() -> None:
    experiment = Experiment(checkpoint=CheckpointConfig(every_s=None))
    assert build_experiment(load(dump(experiment))).checkpoint.every_s is None


def test_a_dumped_experiment_as_config_repeats_the_run_whatever_its_preset_says(tmp_path: Path) -> None:
    file = tmp_path / "experiment.toml"
    plain = resolve("ppo", "CartPole-v1", preset="none", overrides=["checkpoint.every_s=none"]).experiment
    file.write_text(dump(plain))
    again = resolve(None, None, config=file)
    assert again.experiment == plain == read_experiment(file)
    assert again.notes == ()


def test_a_file_of_another_format_is_refused_with_what_to_do(tmp_path: Path) -> None:
    file = tmp_path / "old.toml"
    file.write_text("format = 99\n")
    with pytest.raises(ConfigError) as caught:
        load(file)
    assert str(caught.value) == (
        f"{file}: format = 99, and this podium reads format 1: run it with the podium that wrote it,"
        " or print today's fields with `podium train ALGORITHM ENV --dry-run` and carry the values over"
    )


def test_what_is_not_toml_is_refused_with_its_line() -> None:
    with pytest.raises(ConfigError, match=r"^configuration: is not TOML: .*line 2, column \d+\)$"):
        load("seed = 1\nenv.num_envs == 3")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path / "no.toml")
    assert str(caught.value) == f"{tmp_path / 'no.toml'}: there is no such file"


def test_kwargs_that_toml_cannot_hold_are_refused() -> None:
    experiment = replace(Experiment(), env=EnvConfig(kwargs={"a": None}))
    with pytest.raises(ConfigError, match=r"^env\.kwargs = \{a = none\}: must be a table of numbers"):
        dump(experiment)
