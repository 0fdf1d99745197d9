"""A replay buffer stays with the learner where it fits, else is streamed; one that fits nowhere is refused."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from gymnasium.envs.classic_control import CartPoleEnv

from podium.core.algorithm_configs import DQNConfig
from podium.core.config import EnvConfig, Experiment, LimitsConfig, TopologyConfig
from podium.core.errors import ConfigError
from podium.launch import memory
from podium.launch.plan import Plan, make_plan
from podium.launch.program import make_program
from podium.launch.replay_share import make_share
from podium.workers.layout import make_layouts

SHARDS = {"actors": 4, "replay_workers": 2}
KEPT = 29e6
"""Of a million steps of CartPole: an observation of 16 bytes (9 for 8 steps), 4 of action and reward each, 3 flags."""


def plan(env: str = "gymnasium:CartPole-v1", steps: int = 10**6, num_envs: int = 16, **topology: Any) -> Plan:
    config, where = DQNConfig(fragment_length=8, batch_size=16, buffer_size=steps), TopologyConfig(**topology)
    return make_plan(Experiment(algorithm=config, env=EnvConfig(env, num_envs=num_envs), topology=where))


def have(monkeypatch: pytest.MonkeyPatch, copies: float) -> None:
    """A host with room for so many copies of a buffer of CartPole."""
    monkeypatch.setattr(memory, "host_memory", lambda: int(copies * KEPT / memory.ROOM))
    monkeypatch.setattr(memory, "PROCESS_BYTES", 0)


@pytest.mark.parametrize(
    ("env", "topology"),
    [
        ("podium:Catch-v0", {}),
        ("podium:Catch-v0", {"replay_workers": 0}),
        ("gymnasium:CartPole-v1", {}),
        ("gymnasium:CartPole-v1", {"replay_workers": 0}),
        ("gymnasium:CartPole-v1", SHARDS),
    ],
    ids=["auto", "fused", "auto on the host", "inline", "shards"],
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


def test_on_a_small_machine_the_buffer_that_is_named_is_the_larger_of_what_both_places_hold(monkeypatch) -> None:
    """Four processes leave half of 2 GB to a replay worker; a third of 1.8 is more than nothing, and less than that."""
    monkeypatch.setattr(memory, "host_memory", lambda: 2 * 10**9)
    for actors in (1, 64):
        with pytest.raises(ConfigError, match=r"do not fit into 0.9 GB; at most 31,[\d,]+ steps fit$"):
            plan(steps=40_000_000, actors=actors, slots=64, num_envs=64)
        plan(steps=30_000_000, actors=actors, slots=64, num_envs=64)


def test_a_buffer_stays_with_the_learner_where_it_fits_thrice_since_checkpoints_are_written_of_it(monkeypatch) -> None:
    have(monkeypatch, copies=3.1)
    made = plan()
    assert (made.replay_workers, made.transport) == (0, "memory")
    assert made.experiment.topology.replay_workers == 0, "the choice is stored"
    assert any(re.match(r"replay: 29\.\d MB, on the learner's device", note) for note in made.notes)
    assert made.asked is not None
    assert made.asked.replay_workers == 0, "and is not made again when the rest is measured"


@pytest.mark.parametrize("env", ["gymnasium:CartPole-v1", "podium:Memory-v0"], ids=["host", "jax"])
def test_a_buffer_that_does_not_fit_there_is_streamed_from_a_replay_worker(env, monkeypatch) -> None:
    have(monkeypatch, copies=2.9 if env.endswith("CartPole-v1") else 1.5)
    made = plan(env)
    assert (made.mode, made.replay_workers, made.transport) == ("inline", 1, "shm")
    assert made.experiment.topology.replay_workers == 1, "the choice is stored"
    [said] = [note for note in made.notes if note.startswith("replay:")]
    assert re.search(r"while a checkpoint is written\) do not fit into .* at the learner; 1 worker keeps it", said)
    assert any(role == "replay" for role in (group.role for group in make_program(made, {}).groups))


def test_a_buffer_that_an_accelerator_does_not_hold_is_streamed_from_the_host(monkeypatch) -> None:
    have(monkeypatch, copies=10)
    monkeypatch.setattr(memory.jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(memory, "memory_of", lambda device: int(1.1 * KEPT / memory.ROOM))
    assert plan().replay_workers == 0
    monkeypatch.setattr(memory, "memory_of", lambda device: int(0.9 * KEPT / memory.ROOM))
    assert plan().replay_workers == 1


@pytest.mark.parametrize(
    ("env", "topology", "settings"),
    [
        ("gymnasium:CartPole-v1", {"replay_workers": 0}, "topology.replay_workers=1"),
        ("gymnasium:CartPole-v1", {"staleness": 0}, "topology.replay_workers=1 topology.staleness=1"),
        ("gymnasium:CartPole-v1", {"transport": "memory"}, "topology.replay_workers=1 topology.transport=auto"),
        ("podium:Memory-v0", {"mode": "fused"}, "topology.replay_workers=1 topology.mode=inline"),
    ],
)
def test_where_a_setting_forbids_that_it_is_refused_with_what_would_do(env, topology, settings, monkeypatch) -> None:
    have(monkeypatch, copies=2.9 if env.endswith("CartPole-v1") else 1.5)
    with pytest.raises(ConfigError, match=f"steps fit, or keep it in the host's memory, .*: {settings}$"):
        plan(env, **topology)
    said = {"mode": "auto"} | {name.split(".")[1]: value for name, value in map(split, settings.split())}
    plan(env, **{**topology, **said})


def split(setting: str) -> tuple[str, Any]:
    name, value = setting.split("=")
    return name, int(value) if value.isdigit() else value


def test_shards_are_in_no_checkpoint_and_need_room_once(monkeypatch) -> None:
    have(monkeypatch, copies=1.1)
    plan(**SHARDS)
    have(monkeypatch, copies=0.9)
    with pytest.raises(ConfigError, match="do not fit") as refused:
        plan(**SHARDS)
    assert "replay_workers" not in str(refused.value)


def test_shards_leave_room_for_the_processes_beside_them(monkeypatch) -> None:
    have(monkeypatch, copies=1.1)
    monkeypatch.setattr(memory, "PROCESS_BYTES", int(0.02 * KEPT))
    plan(actors=1, replay_workers=1)  # with a launcher and a learner, four
    with pytest.raises(ConfigError, match="do not fit"):
        plan(actors=4, replay_workers=1)


def register_here() -> tuple[str, None]:
    if "RegisteredHere-v0" not in gymnasium.registry:
        gymnasium.register("RegisteredHere-v0", entry_point=CartPoleEnv)
    return "gymnasium:RegisteredHere-v0", None


@pytest.mark.parametrize(
    "make",
    [lambda: ("__main__:make", lambda: gymnasium.make("CartPole-v1")), register_here],
    ids=["a lambda", "registered in a script"],
)
def test_an_environment_that_no_other_process_finds_is_not_sent_to_one(make, monkeypatch) -> None:
    have(monkeypatch, copies=2.9)
    env, factory = make()
    experiment = Experiment(algorithm=DQNConfig(fragment_length=8, batch_size=16), env=EnvConfig(env, num_envs=16))
    with pytest.raises(ConfigError, match=r"at most [\d,]+ steps fit$"):
        make_plan(experiment, factory)


def test_a_run_that_ends_before_it_learns_is_not_told_of_replay_workers(monkeypatch) -> None:
    have(monkeypatch, copies=2.9)
    config, limits = DQNConfig(fragment_length=8, batch_size=16), LimitsConfig(total_steps=500)
    with pytest.raises(ConfigError, match=r"buffer_size .* at most [\d,]+ steps fit$"):
        make_plan(Experiment(algorithm=config, env=EnvConfig("gymnasium:CartPole-v1"), limits=limits))


def test_over_tcp_a_batch_of_more_rows_than_a_request_has_is_refused() -> None:
    topology = TopologyConfig(replay_workers=1, transport="tcp")
    config = DQNConfig(fragment_length=8, batch_size=8192)
    experiment = Experiment(algorithm=config, env=EnvConfig("gymnasium:CartPole-v1", num_envs=16), topology=topology)
    with pytest.raises(ConfigError, match=r"at most 4,096 of the 8,192 rows .* topology.transport=shm"):
        make_plan(experiment)
    make_plan(replace(experiment, topology=replace(topology, actors=2, replay_workers=2)))
    make_plan(replace(experiment, topology=replace(topology, transport="shm")))


@pytest.mark.parametrize(
    ("env", "batch", "updates"),
    [("gymnasium:CartPole-v1", 256, 16), ("gymnasium:CartPole-v1", 16, 64), ("gymnasium:CartPole-v1", 8192, 1)],
    ids=["4,096 rows", "64 updates", "one update"],
)
def test_a_request_is_small_whatever_a_round_is(env, batch, updates) -> None:
    config = DQNConfig(fragment_length=64, batch_size=batch)
    made = make_plan(Experiment(config, EnvConfig(env, num_envs=16), topology=TopologyConfig(replay_workers=1)))
    layouts = make_layouts(made.algorithm, made.env.spec, made.experiment, made.rows)
    share = make_share(made, layouts)
    assert (share.updates, share.rows) == (updates, batch)
    assert share.steps == updates, "each env step asks for an update"
    assert share.ahead * share.steps == 2 * 1024


def test_a_request_of_pictures_is_cut_by_their_bytes() -> None:
    config = DQNConfig(fragment_length=64, batch_size=64)
    env = EnvConfig("envpool:Pong-v5", num_envs=16)
    made = make_plan(Experiment(config, env, topology=TopologyConfig(replay_workers=1)), learns=False)
    share = make_share(made, make_layouts(made.algorithm, made.env.spec, made.experiment, made.rows))
    assert share.updates == 4  # of 3.6 MB each: 16 MB, and a divisor of 1,024


def test_a_policy_that_only_acts_needs_no_room_for_a_buffer(monkeypatch) -> None:
    monkeypatch.setattr(memory, "host_memory", lambda: 1000)
    config = DQNConfig(fragment_length=8, batch_size=16)
    for workers in (None, 0, 1):
        env, topology = EnvConfig("gymnasium:CartPole-v1", num_envs=16), TopologyConfig(replay_workers=workers)
        make_plan(Experiment(algorithm=config, env=env, topology=topology), learns=False)


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
