"""A replay buffer is refused where it does not fit, and one that would fit is named."""

import re
from pathlib import Path

import pytest

from podium.core.algorithm_configs import DQNConfig
from podium.core.config import EnvConfig, Experiment, TopologyConfig
from podium.core.errors import ConfigError
from podium.launch import memory
from podium.launch.plan import make_plan

SHARDS = {"actors": 4, "replay_workers": 2}


def plan(env: str = "gymnasium:CartPole-v1", steps: int = 10**6, **topology: int) -> None:
    config = DQNConfig(fragment_length=8, batch_size=16, buffer_size=steps)
    make_plan(Experiment(algorithm=config, env=EnvConfig(env, num_envs=16), topology=TopologyConfig(**topology)))


@pytest.mark.parametrize(
    ("env", "topology"),
    [("podium:Catch-v0", {}), ("gymnasium:CartPole-v1", {}), ("gymnasium:CartPole-v1", SHARDS)],
    ids=["fused", "inline", "shards"],
)
def test_a_buffer_that_no_machine_holds_is_refused_and_the_one_that_is_named_is_not(env, topology) -> None:
    with pytest.raises(
        ConfigError, match=r"buffer_size = 100000000000: its .* do not fit .* at most [\d,]+ st"
    ) as refused:
        plan(env, 10**11, **topology)
    assert "\n" not in str(refused.value)
    fits = re.search(r"at most ([\d,]+) steps", str(refused.value))
    assert fits is not None
    plan(env, int(fits[1].replace(",", "")), **topology)


def test_a_learner_needs_room_for_its_buffer_and_for_a_checkpoint_of_it_but_shards_are_in_none(monkeypatch) -> None:
    kept = 29e6  # of a million steps: an observation of 16 bytes (9 for 8 steps), 4 of action and reward each, 3 flags
    monkeypatch.setattr(memory, "host_memory", lambda: int(2.9 * kept / memory.ROOM))
    with pytest.raises(
        ConfigError, match=r"its 0.0 GB \(0.1 while a checkpoint is written\) do not .*replay_workers=1"
    ):
        plan()
    plan(**SHARDS)
    monkeypatch.setattr(memory, "host_memory", lambda: int(3.1 * kept / memory.ROOM))
    plan()
    monkeypatch.setattr(memory, "host_memory", lambda: int(0.9 * kept / memory.ROOM))
    with pytest.raises(ConfigError, match="do not fit") as refused:
        plan(**SHARDS)
    assert "replay_workers" not in str(refused.value)


def test_a_policy_that_only_acts_needs_no_room_for_a_buffer(monkeypatch) -> None:
    monkeypatch.setattr(memory, "host_memory", lambda: 1000)
    config = DQNConfig(fragment_length=8, batch_size=16)
    make_plan(Experiment(algorithm=config, env=EnvConfig("gymnasium:CartPole-v1", num_envs=16)), learns=False)


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


@pytest.mark.parametrize(
    ("groups", "files", "limits"),
    [
        ("0::/\n", {"memory.max": "5000\n"}, {5000}),
        ("0::/\n", {"memory.max": "max\n"}, set()),
        ("0::/\n", {}, set()),
        (
            "0::/slurm/job_7/task_0\n",
            {"slurm/memory.max": "9000", "slurm/job_7/memory.max": "4000", "slurm/job_7/task_0/memory.max": "max"},
            {9000, 4000},
        ),
        ("0::/of/the/host\n", {"memory.max": "6000"}, {6000}),
        (
            "5:cpu,cpuacct:/a\n4:memory:/a/b\n0::/\n",
            {"memory/a/b/memory.limit_in_bytes": "7000", "memory/memory.limit_in_bytes": "9223372036854771712"},
            {7000, 9223372036854771712},
        ),
    ],
    ids=["container", "no limit", "no controller", "the job's around the task", "a path of the host", "version 1"],
)
def test_what_control_groups_allow_is_found_in_both_versions(groups, files, limits, tmp_path) -> None:
    write(tmp_path, {"groups": groups} | {f"fs/{name}": text for name, text in files.items()})
    assert set(memory.control_group_limits(tmp_path / "groups", tmp_path / "fs")) == limits


def test_a_container_s_limit_counts_where_the_machine_has_more(monkeypatch) -> None:
    machine = memory.host_memory()
    monkeypatch.setattr(memory, "control_group_limits", lambda: [10**6, 2 * machine])
    assert memory.host_memory() == 10**6
    monkeypatch.setattr(memory, "control_group_limits", lambda: [2 * machine])
    assert memory.host_memory() == machine
