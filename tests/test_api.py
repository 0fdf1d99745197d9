"""Podium from Python: the promises of `podium.train`, `load`, `evaluate`, `resume` and their arguments."""

import functools
import shlex
import sys
from dataclasses import replace
from pathlib import Path

import gymnasium
import jax
import numpy as np
import pytest

import podium
from launch import faulty
from launch.commands import TINY, digest, flags, tiny
from podium.algorithms import ppo
from podium.cli.main import main
from podium.cli.train import tell_end
from podium.core.algorithm_configs import PPOConfig
from podium.core.config import NetworkConfig
from podium.core.settings import read_experiment, resolve
from podium.launch import training
from podium.launch.plan import make_plan
from podium.launch.recording import adopt
from podium.networks import network as networks
from podium.runs.directory import RunDirectory
from podium.runs.leaves import params_digest
from podium.runs.metrics import read_metrics
from podium.runs.results import format_return, format_score

QUIET = {"progress": False, "track": ()}


def train(env: object, root: Path, **options: object) -> podium.Run:
    return podium.train("ppo", env, **({"total_steps": 200, "set": TINY, "root": root} | QUIET | options))


def make_local() -> gymnasium.Env:
    return faulty.make()


@pytest.mark.parametrize(
    "env",
    [
        "gymnasium:CartPole-v1",
        "launch.faulty:make",
        make_local,
        lambda: faulty.Faulty(),
        functools.partial(faulty.Faulty, at=10**6),
        faulty.Faulty,
    ],
    ids=["id", "path", "function", "lambda", "partial", "class"],
)
def test_an_environment_is_an_id_a_path_or_anything_that_makes_one(env: object, tmp_path: Path) -> None:
    run = train(env, tmp_path)
    assert run.summary["status"] == "done"
    assert podium.evaluate(run, episodes=1).episodes == 1
    podium.resume(run, total_steps=300, progress=False)
    assert run.summary["env_steps"] >= 300


def test_a_function_within_a_function_works_in_processes_too(tmp_path: Path) -> None:
    length = 8

    def make() -> gymnasium.Env:
        return gymnasium.wrappers.TimeLimit(faulty.Faulty(), length)

    run = train(make, tmp_path, set=tiny(env__processes=2))
    assert run.summary["episode_return"]["mean"] == length


@pytest.fixture(scope="module")
def cartpole(tmp_path_factory: pytest.TempPathFactory) -> podium.Run:
    return train("CartPole-v1", tmp_path_factory.mktemp("runs"), name="first", set=tiny(evaluation__episodes=2))


def test_load_finds_a_run_by_itself_by_its_name_its_path_and_as_the_latest(cartpole: podium.Run) -> None:
    root = cartpole.path.parent
    found = [
        podium.load(cartpole),
        podium.load("first", root=root),
        podium.load(cartpole.path),
        podium.load(root=root),
        podium.load(cartpole, best=True),
    ]
    assert len({params_digest(policy.params) for policy in found}) == 1


def test_evaluate_plays_the_same_greedy_episodes_for_a_seed(cartpole: podium.Run) -> None:
    one, same, other = (podium.evaluate(cartpole, episodes=3, seed=seed) for seed in (5, 5, 6))
    assert one.returns == same.returns != other.returns
    assert one.episodes == len(one.returns) == 3
    assert one.mean == pytest.approx(np.mean(one.returns))
    assert one.stderr == pytest.approx(np.std(one.returns, ddof=1) / 3**0.5)
    assert cartpole.summary["eval_return"] >= 1
    assert cartpole.summary["eval_episodes"] == 2
    assert cartpole.summary["eval_std"] >= 0


def test_the_last_line_podium_runs_and_the_log_tell_the_greedy_result(
    cartpole: podium.Run, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = cartpole.summary
    score = format_score(summary["eval_return"], summary["eval_std"] / 2**0.5)
    tell_end([cartpole], quiet=False)
    assert main(["runs", "--root", str(cartpole.path.parent)]) == 0
    said, log = capsys.readouterr().out, (cartpole.path / "log.txt").read_text()
    name, end = f"first --root {cartpole.path.parent}", 2 * summary["env_steps"]
    hints = f"next: podium eval {name} --video | podium plot {name} | podium resume {name} --total-steps {end}\n"
    assert hints in said
    assert "s; ended by limits.total_steps\n" in said
    assert f"{cartpole.path}: greedy {score} over 2 episodes (training " in said
    assert f"done: greedy {score} over 2 episodes (training " in log.splitlines()[-1]
    header, row = said.splitlines()[-2:]
    assert row[header.index("greedy") :].startswith(score)
    assert f"  {format_return(summary['episode_return']['mean'])}  " in row


def test_evaluate_films_an_episode(cartpole: podium.Run) -> None:
    video = podium.evaluate(cartpole, episodes=1, video=True).video
    assert video is not None
    assert video.parent == cartpole.path / "videos"
    assert b"ftyp" in video.read_bytes()[:16], "an mp4 starts with its file type"


def test_init_from_starts_from_the_other_run_s_parameters_with_its_own_settings(cartpole: podium.Run) -> None:
    still = tiny(algorithm__learning_rate=0.0)
    root = cartpole.path.parent
    run = train("CartPole-v1", root, set=still, init_from="first", name="second")
    assert params_digest(podium.load(run).params) == params_digest(podium.load(cartpole).params)
    assert params_digest(podium.load(train("CartPole-v1", root, set=still, name="third")).params) != params_digest(
        podium.load(cartpole).params
    )
    assert read_metrics(run.path)[0]["learning_rate"] == 0
    assert run.summary["notes"] == ["started from the training state of first"]
    with pytest.raises(podium.ConfigError, match=r"--init-from first: .* this experiment needs"):
        train("CartPole-v1", root, init_from=cartpole, set=tiny(network__hidden=[9]), name="fourth")
    assert not (root / "fourth").exists()


def test_two_deterministic_runs_with_one_seed_have_the_same_bits(tmp_path: Path) -> None:
    auto = {name: value for name, value in TINY.items() if name != "topology.actors"}  # open to be measured
    options = {"seed": 3, "total_steps": 2_000, "set": auto}
    runs = [train("CartPole-v1", tmp_path, deterministic=True, **options) for _ in range(2)]
    assert digest(runs[0].path) == digest(runs[1].path)
    assert digest(runs[0].path) != digest(
        train("CartPole-v1", tmp_path, deterministic=True, **options | {"seed": 4}).path
    )
    experiment = read_experiment(runs[0].path / "experiment.toml")
    assert experiment.topology.staleness == 0
    complete = replace(experiment, topology=replace(experiment.topology, staleness=1))
    again = podium.train(complete, deterministic=True, root=tmp_path, **QUIET)
    assert digest(again.path) == digest(runs[0].path)


def test_init_from_begins_the_schedules_of_dqn_anew_and_keeps_what_it_learned(tmp_path: Path) -> None:
    small = {name: TINY[name] for name in ("env.num_envs", "network.hidden", "topology.devices", "evaluation.episodes")}
    asked = {"fragment_length": 16, "batch_size": 16, "buffer_size": 1024, "learning_starts": 64, "update_ratio": 0.25}
    small |= {f"algorithm.{name}": value for name, value in asked.items()} | {"algorithm.schedule": "linear"}
    options = {"total_steps": 1024, "set": small, "root": tmp_path, "preset": "none"} | QUIET
    first = podium.train("dqn", "podium:Catch-v0", **options)
    second = podium.train("dqn", "podium:Catch-v0", init_from=first, **options)
    of_first, of_second = ([r for r in read_metrics(run.path) if "epsilon" in r] for run in (first, second))
    assert of_first[0]["learning_rate"] > 0.8 * 3e-4 > 0.2 * 3e-4 > of_first[-1]["learning_rate"]
    for schedule in ("learning_rate", "epsilon"):
        assert [row[schedule] for row in of_second] == [row[schedule] for row in of_first]
    plan = make_plan(read_experiment(second.path / "experiment.toml"))
    state = training.initial_state(plan)["train"]
    adopted = adopt(state, RunDirectory(first.path), plan.experiment.algorithm)
    assert not plan.algorithm.params(adopted).random
    assert params_digest(adopted.network) != params_digest(state.network)


def test_init_from_takes_the_own_settings_of_a_user_s_algorithm_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its training state is a plain tuple."""
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "examples")
    of_ppo = ("algorithm.minibatch_size", "algorithm.num_epochs")
    small = {name: value for name, value in TINY.items() if name not in of_ppo}
    options = {"total_steps": 200, "root": tmp_path} | QUIET
    first = podium.train("reinforce:algorithm", "podium:Catch-v0", set=small, **options)
    still = small | {"algorithm.learning_rate": 0.0}
    second = podium.train("reinforce:algorithm", "podium:Catch-v0", set=still, init_from=first, **options)
    assert params_digest(podium.load(second).params) == params_digest(podium.load(first).params)
    state = training.initial_state(make_plan(read_experiment(first.path / "experiment.toml")))
    with pytest.raises(podium.ConfigError, match=r"does not hold the dict `hyper` .*say HYPER = \(\)"):
        adopt(state["train"], RunDirectory(first.path), PPOConfig(name="ppo"))


def test_a_run_keeps_what_was_typed_and_what_it_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    typed = ["train", "ppo", "podium:Bandit-v0", "--name", "b", "--root", str(tmp_path), "--quiet", *flags(TINY)]
    monkeypatch.setattr(sys, "argv", ["/usr/bin/podium", *typed, "--total-steps", "64"])
    assert main(sys.argv[1:]) == 0
    more = ["resume", str(tmp_path / "b"), "--total-steps", "128", "--quiet"]
    monkeypatch.setattr(sys, "argv", ["/usr/bin/podium", *more])
    assert main(sys.argv[1:]) == 0
    said = (tmp_path / "b" / "log.txt").read_text()
    assert f"$ podium {shlex.join(typed)} --total-steps 64 " in said
    assert "mode fused: the environment is a JAX function\n" in said
    assert f"$ podium {shlex.join(more)} " in said
    assert "going on from checkpoint" in said


def test_seeds_are_runs_of_their_own(tmp_path: Path) -> None:
    runs = podium.train_seeds("ppo", "podium:Bandit-v0", seeds=2, name="b", total_steps=64, set=TINY, root=tmp_path)
    assert [run.name for run in runs] == ["b-seed0", "b-seed1"]
    assert [run.summary["seed"] for run in runs] == [0, 1]
    assert digest(runs[0].path) != digest(runs[1].path)


def test_an_experiment_object_and_its_file_give_the_same_run(tmp_path: Path) -> None:
    experiment = resolve("ppo", "podium:Bandit-v0", preset="none", overrides=TINY, seed=4).experiment
    one = podium.train(experiment, total_steps=64, root=tmp_path, **QUIET)
    again = podium.train(config=one.path / "experiment.toml", root=tmp_path, **QUIET)
    # The file is the experiment with the run's own choice of mode in it.
    assert read_experiment(one.path / "experiment.toml") == replace(
        experiment,
        limits=replace(experiment.limits, total_steps=64),
        topology=replace(experiment.topology, mode="fused", replay_workers=0),
    )
    assert digest(one.path) == digest(again.path)
    elsewhere = podium.train(experiment, make_local, total_steps=64, seed=5, root=tmp_path, **QUIET)
    assert (elsewhere.summary["env_library"], elsewhere.summary["seed"]) == ("python", 5)


def test_settings_beside_a_whole_experiment_are_refused_rather_than_ignored(tmp_path: Path) -> None:
    with pytest.raises(podium.ConfigError, match="an Experiment is complete"):
        podium.train(podium.Experiment(), set=TINY, root=tmp_path)


def test_a_dry_run_shows_the_experiment_and_starts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shown = podium.dry_run("ppo", "podium:Catch-v0", total_steps=5000, set=TINY)
    assert "total_steps = 5000" in shown
    assert "mode fused: the environment is a JAX function" in shown
    assert list(tmp_path.iterdir()) == []


def half_network(config: object, spec: object, num_outputs: int) -> object:
    """A network of a user's own, by the function itself."""
    return networks.make(NetworkConfig(hidden=(5,)), spec, num_outputs)


def own_algorithm(config: PPOConfig, experiment: podium.Experiment, spec: object) -> object:
    """An algorithm of a user's own: PPO."""
    return ppo.make(config, experiment, spec)


def shorten(env: gymnasium.Env) -> gymnasium.Env:
    """A wrapper of a user's own."""
    return gymnasium.wrappers.TimeLimit(env, 4)


def test_algorithm_network_and_wrappers_are_functions_or_their_names(tmp_path: Path) -> None:
    settings = tiny(network__factory=half_network, env__wrappers=[shorten])
    options = {"total_steps": 64, "root": tmp_path} | QUIET
    run = podium.train(own_algorithm, make_local, set=settings, **options)
    assert run.summary["episode_return"]["mean"] == 4
    shapes = {leaf.shape[0] for leaf in jax.tree.leaves(podium.load(run).params.network) if leaf.ndim == 2}
    assert 5 in shapes
    with pytest.raises(podium.ConfigError, match=r"algorithm = .*<lambda>: no name leads to it; must be a function"):
        podium.train(lambda *_: None, make_local, set=settings, **options)
    with pytest.raises(podium.ConfigError, match=r"network\.factory = .*<lambda>: no name leads to it"):
        podium.train("ppo", make_local, set=tiny(network__factory=lambda *_: None), **options)


def test_what_a_script_defines_does_not_travel_to_other_processes(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(sys.modules["__main__"], "half_network", half_network, raising=False)
    settings = tiny(network__factory="__main__:half_network", topology__transport="shm")
    with pytest.raises(podium.ConfigError, match=r"network\.factory = __main__:half_network: is of this script"):
        train("gymnasium:CartPole-v1", tmp_path, set=settings)


def test_misuse_is_refused_with_what_would_be_right() -> None:
    with pytest.raises(podium.ConfigError, match=r"^seeds = \[1, 2\]: must be how many"):
        podium.api.train_seeds("ppo", "podium:Catch-v0", seeds=[1, 2])
    with pytest.raises(podium.ConfigError, match=r"^episodes = 0: must be at least 1$"):
        podium.evaluate("nothing", episodes=0)
    with pytest.raises(podium.ConfigError, match=r"^track = 'tensorboard': must be a list of names, such as"):
        podium.train("ppo", "podium:Catch-v0", track="tensorboard")
