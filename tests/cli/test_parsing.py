"""Arguments become commands; wrong ones are one line on stderr and exit code 2."""

import subprocess
import sys
from pathlib import Path

import pytest

from podium.cli.arguments import parse, spread_sets
from podium.cli.machine import BENCHMARKS, Bench, find_benchmark
from podium.cli.main import main
from podium.cli.results import Plot
from podium.cli.train import Train, read_trackers
from podium.core import settings
from podium.core.errors import ConfigError

build = settings._build


def test_train_reads_all_its_flags() -> None:
    line = "ppo CartPole-v1 --name a --overwrite --total-steps 1e5 --seed 3 --preset none --init-from b --config c.toml"
    line += (
        " --set env.num_envs=4 network.hidden=[8,8] --track tensorboard,wandb --set seed=3 --dry-run --root r --quiet"
    )
    assert parse(Train, "podium train", line.split()) == Train(
        algorithm="ppo",
        env="CartPole-v1",
        name="a",
        overwrite=True,
        total_steps="1e5",
        seed="3",
        preset="none",
        init_from="b",
        config=Path("c.toml"),
        set=("env.num_envs=4", "network.hidden=[8,8]", "seed=3"),
        track="tensorboard,wandb",
        dry_run=True,
        root=Path("r"),
        quiet=True,
    )


def test_positionals_may_follow_set() -> None:
    command = parse(Train, "podium train", ["--set", "a=1", "b=2", "ppo", "X", "--set=c=3"])
    assert (command.algorithm, command.env, command.set) == ("ppo", "X", ("a=1", "b=2", "c=3"))


def test_algorithm_and_environment_may_be_left_to_the_config() -> None:
    command = parse(Train, "podium train", ["--config", "x.toml"])
    assert (command.algorithm, command.env) == (None, None)


def test_a_set_without_settings_swallows_no_option() -> None:
    assert spread_sets(["--set", "--quiet"]) == ["--set", "--quiet"]


def test_plot_takes_several_runs() -> None:
    assert parse(Plot, "podium plot", ["a", "b", "--out", "c.png"]) == Plot(names=("a", "b"), out=Path("c.png"))


def test_trackers() -> None:
    assert read_trackers("tensorboard,wandb") == ("tensorboard", "wandb")
    assert read_trackers("none") == ()


LIST = "(`podium train --help` lists the arguments)"
MISTAKES = [
    ("trian", "podium trian: no such command; did you mean 'train'?"),
    ("train ppo X --total-step 3", "podium train: there is no --total-step; did you mean '--total-steps'?"),
    ("train ppo X --lr 3", "podium train: there is no --lr; use --set algorithm.learning_rate=VALUE"),
    (
        "train sac X --batch-size 64",
        "podium train: there is no --batch-size; use --set algorithm.batch_size=VALUE",
    ),
    ("train ppo X --batch-size=64", "podium train: there is no --batch-size; use --set algorithm.minibatch_size=VALUE"),
    ("train ppo X --num-workers 4", "podium train: there is no --num-workers; use --set topology.actors=VALUE"),
    ("train --algorithm ppo X", "podium train: ALGORITHM is given without --algorithm: podium train ALGORITHM ENV"),
    ("train ppo --env X", "podium train: ENV is given without --env: podium train ALGORITHM ENV"),
    ("resume --name X", "podium resume: NAME is given without --name: podium resume NAME"),
    ("train ppo X --num-envs 3", "podium train: there is no --num-envs; use --set env.num_envs=VALUE"),
    ("train ppo X Y", "podium train: one argument too many: 'Y' (`podium train --help` lists them)"),
    ("train ppo X --config", f"podium train: Missing value for argument '--config'. Expected 1 values {LIST}"),
    ("train ppo X --total-steps abc", "--total-steps = 'abc': must be a whole number"),
    ("train ppo X --seed 1 --seeds 2", "--seed 1 and --seeds 2: give one of them"),
    ("train ppo X --seeds 0", "--seeds = 0: must be at least 1"),
    ("train ppo X --track neptune", "--track neptune: 'neptune' must be one of tensorboard, wandb, none"),
    ("train ppo X --set env.n_envs=2", "env.n_envs = 2: no such field; here it is env.num_envs"),
    ("train ppo X --config no.toml", "no.toml: there is no such file"),
    ("train ppo", "env.id = none: must be an environment, as in `podium train ppo CartPole-v1`"),
    ("eval --episodes 0", "--episodes = 0: must be at least 1"),
    ("runs --rot x", "podium runs: there is no --rot; did you mean '--root'?"),
    ("bench speed", f"podium bench speed: must be one of {', '.join(BENCHMARKS)}"),
]


@pytest.mark.parametrize(("line", "message"), MISTAKES)
def test_a_wrong_line_is_told_in_one_line(line: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(line.split()) == 2
    said = capsys.readouterr()
    assert said.err == f"error: {message}\n"
    assert said.out == ""


def test_a_bug_of_podium_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("podium.cli.catalogue.Presets.run", lambda self: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main(["presets"])


def test_bench_runs_the_script_of_the_checkout_with_its_arguments(tmp_path: Path) -> None:
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "benchmarks" / "learning.py").write_text("import sys; print(sys.argv[1:]); sys.exit(3)")
    code = "import podium.cli.machine as m, podium.cli.main as c; m.__file__ = '/nowhere/a/b/c/d.py'; c.main()"
    for arguments in (["--seeds", "3"], ["--", "--help"]):
        done = subprocess.run(
            [sys.executable, "-c", code, "bench", "learning", *arguments],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.stdout == f"{[a for a in arguments if a != '--']}\n", done.stderr
        assert done.returncode == 3


def test_every_benchmark_has_its_script_and_is_taught() -> None:
    for name in BENCHMARKS:
        assert find_benchmark(name).name == f"{name}.py"
        assert f"podium bench {name} " in Bench.EXAMPLES


def test_bench_says_that_it_needs_a_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("podium.cli.machine.__file__", str(tmp_path / "a" / "b" / "c" / "d.py"))
    with pytest.raises(ConfigError, match="benchmarks need a source checkout"):
        find_benchmark("learning")
    assert parse(Bench, "podium bench", ["learning", "--seeds", "3"]).rest == ("--seeds", "3")


def test_runs_lists_what_is_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "first"
    run.mkdir()
    (run / "experiment.toml").write_text('seed = 7\n[algorithm]\nname = "ppo"\n[env]\nid = "CartPole-v1"\n')
    (run / "summary.json").write_text('{"status": "done", "env_steps": 100000, "episode_return": {"mean": 497.25}}')
    assert main(["runs", "--root", str(tmp_path)]) == 0
    header, row = capsys.readouterr().out.splitlines()
    assert header.split() == ["run", "status", "algorithm", "env", "seed", "steps", "greedy", "training", "steps/s"]
    assert row.split() == ["first", "done", "ppo", "CartPole-v1", "7", "100,000", "-", "497", "-"]


def test_settings_are_resolved_once_and_the_note_of_their_preset_is_kept(monkeypatch, capsys) -> None:
    made = []
    monkeypatch.setattr(settings, "_build", lambda values, algorithm: made.append(build(values, algorithm)) or made[-1])
    assert main(["train", "ppo", "CartPole-v1", "--dry-run", "--seed", "7", "--set", "env.num_envs=4"]) == 0
    shown = capsys.readouterr().out
    assert len(made) == 1
    assert "# preset ppo/" in shown
    assert "seed = 7" in shown
    assert "num_envs = 4" in shown


def test_seeds_and_a_seed_are_refused_together(capsys) -> None:
    assert main(["train", "ppo", "CartPole-v1", "--seeds", "2", "--set", "seed=5"]) == 2
    assert "--seeds 2 and --set seed=5: give one of them" in capsys.readouterr().err
