"""Precedence, and the exact line for each mistake."""

from pathlib import Path
from typing import Any

import pytest

from podium.core.algorithm_configs import ALGORITHMS, AlgorithmConfig
from podium.core.errors import ConfigError
from podium.core.fields import config_class, list_fields
from podium.core.foreign_names import FOREIGN_NAMES, translate
from podium.core.settings import resolve

OWN = '''
from dataclasses import dataclass
from podium.core.algorithm_configs import ALGORITHMS, AlgorithmConfig
from podium.core.config import Experiment

@dataclass(frozen=True)
class MyConfig(AlgorithmConfig):
    """Mine."""

    baseline: float = 0.5
    """Subtracted from returns."""

def algorithm(config: MyConfig, experiment, spec): ...
def plain(config, experiment, spec): ...
def wrong(config: Experiment): ...
number = 3
'''


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "own_settings_module.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "own_settings_module"


def test_defaults_then_preset_then_config_then_flags(tmp_path: Path) -> None:
    file = tmp_path / "part.toml"
    file.write_text("seed = 5\n[env]\nnum_envs = 3\n[algorithm]\ngamma = 0.5\n")
    found = resolve("ppo", "CartPole-v1", config=file, overrides=["algorithm.gamma=0.6"], total_steps=7000)
    experiment, origins = found.experiment, found.origins
    assert (experiment.network.hidden, origins["network.hidden"]) == ((64, 64), "default")
    assert (experiment.algorithm.fragment_length, origins["algorithm.fragment_length"]) == (64, "preset")
    assert (experiment.env.num_envs, origins["env.num_envs"]) == (3, "config")
    assert (experiment.algorithm.gamma, origins["algorithm.gamma"]) == (0.6, "flag")
    assert (experiment.limits.total_steps, origins["limits.total_steps"]) == (7000, "flag")
    assert (experiment.seed, origins["seed"]) == (5, "config")
    assert set(origins) == set(list_fields(config_class("ppo")))


def test_the_preset_is_noted_without_what_was_overridden() -> None:
    found = resolve("ppo", "gymnax:CartPole-v1", overrides=["algorithm.gamma=0.9"])
    (note,) = found.notes
    assert note.startswith("preset ppo/CartPole-v1: ")
    assert "env.num_envs=8" in note
    assert "gamma" not in note
    assert found.preset == "ppo/CartPole-v1"


def test_a_preset_can_be_refused_or_chosen() -> None:
    assert resolve("ppo", "CartPole-v1", preset="none").notes == ()
    assert resolve("ppo", "MyEnv-v0").preset is None
    assert resolve("ppo", "MyEnv-v0", preset="HalfCheetah-v5").experiment.algorithm.normalize_rewards
    assert resolve("ppo", "MyEnv-v0", preset="ppo/Hopper-v5").experiment.env.id == "MyEnv-v0"


def test_config_may_name_algorithm_and_environment_and_flags_win(tmp_path: Path) -> None:
    file = tmp_path / "whole.toml"
    file.write_text('algorithm.name = "ppo"\nenv.id = "Acrobot-v1"\n')
    assert resolve(None, None, config=file).preset == "ppo/Acrobot-v1"
    assert resolve(None, "Pendulum-v1", config=file).experiment.env.id == "Pendulum-v1"


def test_overrides_may_be_text_or_python_values() -> None:
    text = resolve("ppo", "X", overrides=["network.hidden=[8,8]", "limits.wall_s=none", "env.kwargs={a = 1}"])
    python = resolve(
        "ppo", "X", overrides={"network": {"hidden": [8, 8]}, "limits.wall_s": None, "env.kwargs": {"a": 1}}
    )
    assert text == python
    assert text.experiment.env.kwargs == {"a": 1}


def test_single_kwargs_are_added_to_those_that_are_there(tmp_path: Path) -> None:
    file = tmp_path / "part.toml"
    file.write_text("env.kwargs = {a = 1, b = 2}\n")
    found = resolve("ppo", "X", config=file, overrides=["env.kwargs.b=3", "env.kwargs.c=night"])
    assert found.experiment.env.kwargs == {"a": 1, "b": 3, "c": "night"}
    assert found.origins["env.kwargs"] == "flag"


def test_an_algorithm_of_ones_own_brings_its_fields(own_module: str) -> None:
    found = resolve(f"{own_module}:algorithm", "X", overrides=["algorithm.baseline=1"])
    algorithm: Any = found.experiment.algorithm
    assert (algorithm.name, algorithm.baseline) == (f"{own_module}:algorithm", 1.0)
    assert list_fields(type(algorithm))["algorithm.baseline"].meaning == "Subtracted from returns."
    assert list_fields(type(algorithm))["algorithm.gamma"].meaning == "Discount."


def test_without_annotation_an_own_algorithm_has_the_common_fields(own_module: str) -> None:
    assert config_class(f"{own_module}:plain") is AlgorithmConfig


def test_what_is_no_algorithm_is_refused(own_module: str) -> None:
    with pytest.raises(
        ConfigError, match=r"wrong': its first parameter is annotated Experiment, must be AlgorithmConfig"
    ):
        config_class(f"{own_module}:wrong")
    with pytest.raises(ConfigError, match="must be a function that makes an Algorithm, is 3"):
        config_class(f"{own_module}:number")


def test_every_field_has_a_meaning() -> None:
    assert [path for path, field in list_fields(config_class("ppo")).items() if not field.meaning] == []


MISTAKES = [
    (
        "algorithm.learning_rat=1e-3",
        "algorithm.learning_rat = 1e-3: no such field; did you mean 'algorithm.learning_rate'?",
    ),
    ("learning_rate=1", "learning_rate = 1: no such field; did you mean 'algorithm.learning_rate'?"),
    ("env.gamma=1", "env.gamma = 1: no such field; did you mean 'algorithm.gamma'?"),
    ("network.num_env=1", "network.num_env = 1: no such field; did you mean 'env.num_envs'?"),
    ("algorithm.n_steps=4", "algorithm.n_steps = 4: no such field; here it is algorithm.fragment_length"),
    ("batch_size=4", "batch_size = 4: no such field; here it is algorithm.minibatch_size"),
    ("n_epochs=4", "n_epochs = 4: no such field; here it is algorithm.num_epochs"),
    ("lr=4", "lr = 4: no such field; here it is algorithm.learning_rate"),
    ("anneal_lr=true", "anneal_lr = true: no such field; here it is algorithm.schedule (linear or constant)"),
    (
        "checkpoint=3",
        "checkpoint = 3: no such field; it is a section, with the fields"
        " checkpoint.every_s, checkpoint.every_updates, checkpoint.keep",
    ),
    ("zzz=3", "zzz = 3: no such field; `podium train ALGORITHM --help` lists them all"),
    ("env.num_envs=0", "env.num_envs = 0: must be at least 1"),
    ("env.num_envs=2.5", "env.num_envs = 2.5: must be a whole number"),
    ("network.activation=gelu", "network.activation = 'gelu': must be one of tanh, relu, swish, elu"),
    ("network.hidden=[64,0]", "network.hidden = (64, 0): must be widths of at least 1, such as [64, 64]"),
    ("algorithm.learning_rate=nan", "algorithm.learning_rate = nan: must be a finite number"),
    ("algorithm.value_coef=inf", "algorithm.value_coef = inf: must be a finite number"),
    ("seed=-1", "seed = -1: must be at least 0"),
    ("seed", "--set seed: must be KEY=VALUE, such as algorithm.learning_rate=1e-3"),
    ("env.id=Other", "env.id is given twice, as CartPole-v1 and Other: leave one of them out"),
]


@pytest.mark.parametrize(("override", "line"), MISTAKES)
def test_a_mistake_is_one_line_that_says_what_is_right(override: str, line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve("ppo", "CartPole-v1", overrides=[override])
    assert str(caught.value) == line


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("update_ratio=inf", "update_ratio = inf: must be more than 0 and at most 1,000"),
        ("target_entropy=nan", "target_entropy = nan: must be a finite number"),
        ("temperature=inf", "temperature = inf: must be a finite number"),
        ("batch_size=1e12", "batch_size = 1000000000000: must be from 1 to algorithm.buffer_size"),
    ],
)
def test_numbers_that_no_training_can_use_are_refused(override: str, line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve("sac", "Pendulum-v1", overrides=[f"algorithm.{override}"])
    assert str(caught.value) == f"algorithm.{line}"


def test_mistakes_in_a_file_are_told_the_same_way(tmp_path: Path) -> None:
    file = tmp_path / "part.toml"
    file.write_text('[algorithm]\nlr = "x"\n')
    with pytest.raises(ConfigError) as caught:
        resolve("ppo", "CartPole-v1", config=file)
    assert str(caught.value) == "algorithm.lr = 'x': no such field; here it is algorithm.learning_rate"


def test_unknown_algorithms_presets_and_missing_names() -> None:
    lines = {
        ("pppo", "X", "auto"): "algorithm.name = 'pppo': no such algorithm; did you mean 'ppo' or 'appo'?",
        ("quux", "X", "auto"): "algorithm.name = 'quux': no such algorithm; there are: a2c, appo, ddpg, dqn, ",
        ("ppo", "X", "CartPol"): "preset = 'CartPol': no such preset; did you mean 'ppo/CartPole-v1'?",
        (None, "X", "auto"): "algorithm.name = none: must be an algorithm, as in `podium train ppo CartPole-v1`",
        ("ppo", None, "auto"): "env.id = none: must be an environment, as in `podium train ppo CartPole-v1`",
    }
    for (algorithm, env, preset), line in lines.items():
        with pytest.raises(ConfigError) as caught:
            resolve(algorithm, env, preset=preset)
        assert str(caught.value).startswith(line)
        assert "\n" not in str(caught.value)


def test_names_of_other_libraries_lead_to_fields_that_exist() -> None:
    fields = {name: list_fields(config_class(name)) for name in ALGORITHMS}
    everywhere = {path for known in fields.values() for path in known}
    for here in FOREIGN_NAMES.values():
        for field in (here,) if isinstance(here, str) else here:
            assert field.partition(" ")[0] in everywhere
    for known in fields.values():
        for name in FOREIGN_NAMES:
            found = translate(name, known)
            assert found is None or found.partition(" ")[0] in known


@pytest.mark.parametrize(
    ("algorithm", "name", "here"),
    [
        ("sac", "batch_size", "; did you mean 'algorithm.batch_size'?"),
        ("ppo", "batch_size", "; here it is algorithm.minibatch_size"),
        ("sac", "ent_coef", "; here it is algorithm.temperature"),
        ("sac", "alpha", "; here it is algorithm.temperature"),
        ("ppo", "alpha", "; here it is algorithm.learning_rate"),
        ("dqn", "exploration_fraction", "; here it is algorithm.epsilon_decay"),
        ("td3", "sgd_minibatch_size", "; here it is algorithm.batch_size"),
        ("ppo", "num_workers", "; here it is topology.actors (env.num_envs are divided among them)"),
    ],
)
def test_advice_is_of_the_algorithm_in_question(algorithm: str, name: str, here: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(algorithm, "Pendulum-v1", overrides=[f"{name}=1"])
    assert str(caught.value) == f"{name} = 1: no such field{here}"


def test_settings_that_are_none_are_refused_with_what_would_be_right() -> None:
    with pytest.raises(ConfigError, match=r"^set = none: must be settings, such as"):
        resolve("ppo", "CartPole-v1", overrides=None)


def test_deterministic_takes_turns_and_refuses_what_goes_by_the_clock() -> None:
    resolved = resolve("ppo", "CartPole-v1", topology="seed", overrides=["topology.staleness=0"], deterministic=True)
    assert resolved.experiment.topology.staleness == 0
    assert "staleness" not in resolved.notes[0], "what a preset says is overridden"
    for override, line in (
        ("topology.staleness=2", "topology.staleness = 2: --deterministic needs 0"),
        (
            "topology.replay_workers=1",
            "topology.replay_workers = 1: they go at their own pace, so --deterministic needs 0",
        ),
        ("limits.wall_s=30", "limits.wall_s = 30: ends a run by the clock, which --deterministic excludes"),
    ):
        with pytest.raises(ConfigError) as caught:
            resolve("ppo", "CartPole-v1", overrides=[override], deterministic=True)
        assert str(caught.value).startswith(line)
