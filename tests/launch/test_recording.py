"""Where a run begins: the launcher of processes asks what its learner will, but has no memory for a second buffer."""

from dataclasses import asdict, replace
from pathlib import Path

import jax
import pytest

from launch.commands import checkpoints, truncate
from podium.core import toml
from podium.core.algorithm_configs import STEP_SHARE, DQNConfig
from podium.core.config import EnvConfig, Experiment, NetworkConfig, TopologyConfig
from podium.core.errors import CheckpointError, ConfigError
from podium.launch import distributed, session, training
from podium.launch.plan import Plan, make_plan
from podium.launch.recording import Beginning, set_hyper
from podium.runs.checkpoint import Checkpoints
from podium.runs.directory import RunDirectory
from podium.runs.recorder import Counts


class StartedError(Exception):
    """Processes would be started now."""


@pytest.fixture
def beginnings(monkeypatch: pytest.MonkeyPatch) -> list[Beginning]:
    """What launchers held when they would have started processes."""
    held: list[Beginning] = []

    def run(plan: Plan, directory: RunDirectory, beginning: Beginning, *_: object) -> None:
        held.append(beginning)
        raise StartedError

    monkeypatch.setattr(distributed, "run", run)
    return held


def plan(steps: int = 2**10, width: int = 8) -> Plan:
    config = DQNConfig(fragment_length=8, batch_size=16, buffer_size=steps)
    topology, env = TopologyConfig(actors=2), EnvConfig("gymnasium:CartPole-v1", num_envs=4)
    return make_plan(Experiment(algorithm=config, env=env, network=NetworkConfig(hidden=(width,)), topology=topology))


@pytest.fixture
def saved(tmp_path: Path) -> RunDirectory:
    """A run of `plan()` with two checkpoints."""
    directory, state = RunDirectory.create(tmp_path, "saved", "run", overwrite=False), training.initial_state(plan())
    directory.experiment_toml.write_text(toml.dump(plan().experiment))
    with Checkpoints(directory.checkpoints) as written:
        for update in (1, 2):
            written.save(update, state, asdict(Counts(updates=update, env_steps=32 * update)))
    return directory


def holds_no_array(beginning: Beginning) -> bool:
    return not any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(beginning.state))


def test_the_launcher_of_processes_holds_no_replay_buffer(beginnings: list[Beginning], tmp_path: Path) -> None:
    with pytest.raises(StartedError):
        session.train(plan(), tmp_path, track=(), progress=False)
    (beginning,) = beginnings
    assert holds_no_array(beginning)


def test_nor_does_one_that_resumes_and_it_knows_where_its_learner_will_go_on(
    beginnings: list[Beginning], saved: RunDirectory
) -> None:
    with pytest.raises(StartedError):
        session.resume(plan(), saved, progress=False)
    truncate(saved.path, 2)
    with pytest.raises(StartedError):
        session.resume(plan(), saved, progress=False)
    assert [beginning.counts.env_steps for beginning in beginnings] == [64, 32]
    assert "checkpoint 2 cannot be read" in beginnings[1].counts.notes[0]
    assert all(map(holds_no_array, beginnings))


def test_nor_does_one_that_begins_again_or_from_another_run(
    beginnings: list[Beginning], saved: RunDirectory, tmp_path: Path
) -> None:
    with pytest.raises(StartedError):
        session.train(plan(), tmp_path, name="fresh", init_from=saved, track=(), progress=False)
    with pytest.raises(StartedError):
        session.train(plan(), tmp_path, name="again", track=(), progress=False)
    del beginnings[1]
    with pytest.raises(StartedError):
        session.resume(plan(), RunDirectory(tmp_path / "again"), progress=False)
    assert "saved" in beginnings[0].notes[0]
    assert "began again" in beginnings[1].notes[0]
    assert all(map(holds_no_array, beginnings))


def test_it_refuses_what_its_learner_could_not_begin_with(
    beginnings: list[Beginning], saved: RunDirectory, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"--init-from saved: the checkpoint's leaf .* this experiment needs"):
        session.train(plan(width=9), tmp_path, name="wider", init_from=saved, track=(), progress=False)
    with pytest.raises(CheckpointError, match=r"leaf \['store'\].* this experiment needs"):
        session.resume(plan(steps=2**11), saved, progress=False)
    for update in checkpoints(saved.path):
        truncate(saved.path, update)
    with pytest.raises(CheckpointError, match="has no checkpoint to go on from"):
        session.resume(plan(), saved, progress=False)
    with pytest.raises(ConfigError, match=r"--init-from saved: .* has no checkpoint to go on from"):
        session.train(plan(), tmp_path, name="damaged", init_from=saved, track=(), progress=False)
    assert not beginnings
    assert [path.name for path in tmp_path.iterdir()] == ["saved"]


def test_a_run_that_goes_on_for_longer_has_its_schedules_reach_to_the_new_end() -> None:
    experiment = plan().experiment
    experiment = replace(experiment, limits=replace(experiment.limits, total_steps=400))
    state = {"steps": jax.numpy.int32(100), "hyper": {name: jax.numpy.float32(0) for name in experiment.hyper()}}
    train = set_hyper(state, experiment)
    assert train["steps"] * train["hyper"][STEP_SHARE] == 0.25
    assert train["hyper"]["gamma"].dtype == "float32"
