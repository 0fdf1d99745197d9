"""Choices that a plan makes, and what it refuses before anything starts."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from envs.counting import Picture
from podium.core.algorithm_configs import DQNConfig, ESConfig, IMPALAConfig, PPOConfig
from podium.core.config import EnvConfig, Experiment, LimitsConfig, NetworkConfig, TopologyConfig
from podium.core.errors import ConfigError
from podium.launch import calibration, replay_keeper
from podium.launch.placement import Placement
from podium.launch.plan import Choices, Plan, draw, make_plan, rebuild_plan
from podium.protocol.shm import directories
from podium.workers.layout import make_layouts


def experiment(env: str = "podium:Catch-v0", num_envs: int = 16, minibatch: int = 64, **topology) -> Experiment:
    return Experiment(
        algorithm=PPOConfig(fragment_length=16, minibatch_size=minibatch),
        env=EnvConfig(env, num_envs=num_envs),
        topology=TopologyConfig(**topology),
    )


def test_the_mode_follows_the_environment_and_is_stored() -> None:
    fused, inline = make_plan(experiment()), make_plan(experiment("gymnasium:CartPole-v1"))
    assert (fused.mode, fused.experiment.topology.mode, fused.experiment.topology.devices) == ("fused", "fused", 1)
    assert (inline.mode, inline.experiment.topology.mode, inline.experiment.topology.slots) == ("inline", "inline", 1)
    assert "mode inline: the environment runs on the host" in draw(inline)


def test_at_staleness_0_an_inference_worker_takes_one_slot_at_a_time_since_bits_change_with_the_batch() -> None:
    def served(**topology: Any) -> Plan:
        return make_plan(experiment("gymnasium:CartPole-v1", mode="served", actors=1, slots=4, **topology))

    assert served(staleness=0).inference_rows == served(staleness=0, inference_batch=16).inference_rows == 4
    assert (served(staleness=1).inference_rows, served(staleness=1, inference_batch=8).inference_rows) == (16, 8)


def test_a_dispatch_of_many_updates_has_few_iterations() -> None:
    assert "1 device(s), 64 iteration(s) a dispatch" in draw(make_plan(experiment()))
    for ratio, iterations in ((1.0, 4), (0.25, 16)):
        config = DQNConfig(fragment_length=4, update_ratio=ratio)
        plan = make_plan(replace(experiment(), algorithm=config))
        assert f"1 device(s), {iterations} iteration(s) a dispatch" in draw(plan)


@pytest.mark.parametrize("env", ["podium:Catch-v0", "gymnasium:CartPole-v1"])
@pytest.mark.parametrize("ratio", [0.3, 0.001])
def test_a_ratio_that_gives_no_whole_number_of_updates_is_refused(env: str, ratio: float) -> None:
    config = DQNConfig(fragment_length=8, update_ratio=ratio)
    with pytest.raises(ConfigError, match=rf"algorithm.update_ratio = {ratio}: times .* = 128 it must be a whole"):
        make_plan(replace(experiment(env), algorithm=config))


@pytest.mark.parametrize(
    ("env", "topology", "rows"),
    [
        ("podium:Catch-v0", {}, 16),
        ("gymnasium:CartPole-v1", {}, 16),
        ("gymnasium:CartPole-v1", {"actors": 4, "replay_workers": 2}, 8),
    ],
    ids=["fused", "inline", "shards"],
)
def test_a_replay_buffer_that_holds_no_fragment_is_refused(env: str, topology: dict[str, int], rows: int) -> None:
    """Each shard must hold one, of a slot: here of 4 environments."""
    least = 8 * rows
    config = DQNConfig(fragment_length=8, batch_size=16, learning_starts=0, buffer_size=least)
    asked = replace(experiment(env, **topology), algorithm=config)
    make_plan(asked)
    with pytest.raises(ConfigError, match=rf"buffer_size = {least - 1}: must hold .* 8 steps x {rows} environments"):
        make_plan(replace(asked, algorithm=replace(config, buffer_size=least - 1)))


def test_fused_needs_a_jax_environment() -> None:
    with pytest.raises(ConfigError, match=r"topology.mode = 'fused': CartPole-v1 is not a JAX environment; use inline"):
        make_plan(experiment("CartPole-v1", mode="fused"))


def test_cores_share_a_minibatch_only_where_each_has_thousands_of_its_rows() -> None:
    large = replace(experiment(num_envs=1024, minibatch=8192), algorithm=PPOConfig(minibatch_size=8192))
    assert make_plan(large).devices == 2
    assert make_plan(experiment()).devices == 1


def test_devices_that_cannot_share_the_blocks_of_a_minibatch_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"topology.devices = 3: must divide 8, the blocks"):
        make_plan(experiment(devices=3))
    recurrent = replace(experiment(minibatch=16, devices=2), network=NetworkConfig(memory="gru"))
    with pytest.raises(ConfigError, match=r"topology.devices = 2: must divide 1, the blocks"):
        make_plan(recurrent)


def test_slots_must_divide_the_environments() -> None:
    with pytest.raises(ConfigError, match=r"topology.slots = 3: must divide env.num_envs = 16"):
        make_plan(experiment("gymnasium:CartPole-v1", slots=3))


@pytest.mark.parametrize(
    ("mode", "num_envs", "actors", "slots"),
    [("inline", 16, 2, 2), ("served", 16, 2, 4), ("served", 9, 3, 3), ("inline", 8, 3, 8), ("inline", 16, 3, 8)],
)
def test_actors_have_one_slot_or_two_and_more_where_their_shares_are_unequal(
    mode: str, num_envs: int, actors: int, slots: int
) -> None:
    plan = make_plan(experiment("gymnasium:CartPole-v1", num_envs, 16 * num_envs, mode=mode, actors=actors))
    assert (plan.slots, plan.slots * plan.rows) == (slots, num_envs)
    assert any("do not divide" in note for note in plan.notes) == bool(slots % actors)


def test_a_slot_of_more_environments_than_a_request_over_tcp_has_is_refused() -> None:
    asked = experiment("gymnasium:CartPole-v1", mode="served", actors=1, slots=1, transport="tcp")
    asked = replace(asked, env=replace(asked.env, num_envs=8192))
    with pytest.raises(ConfigError, match=r"topology.slots = 1: over tcp, a slot has at most 4,096 of the 8,192"):
        make_plan(asked)
    make_plan(replace(asked, topology=replace(asked.topology, slots=2)))
    make_plan(replace(asked, topology=replace(asked.topology, transport="shm")))


@pytest.mark.parametrize("too_small", [False, True])
def test_where_shared_memory_does_not_do_auto_takes_tcp_and_says_so(
    too_small: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = experiment("gymnasium:CartPole-v1", actors=2)
    plan = make_plan(wanted)
    assert plan.transport == "shm"
    layouts = make_layouts(plan.algorithm, plan.env.spec, plan.experiment, plan.rows)
    # Two slots with two buffers each, and the parameters in four.
    need = 2 * 2 * layouts.record.schema.nbytes + 4 * layouts.params.schema.nbytes
    if too_small:
        monkeypatch.setattr(directories.shutil, "disk_usage", lambda place: SimpleNamespace(free=need - 1))
        lack = f"/dev/shm has {(need - 1) / 2**20:.1f} MB free, and the run's streams need {need / 2**20:.1f}"
    else:
        monkeypatch.setattr(directories, "SHARED_MEMORY", tmp_path / "gone")
        lack = f"{tmp_path / 'gone'} cannot be written"
    plan = make_plan(wanted)
    assert plan.transport == plan.experiment.topology.transport == "tcp"
    assert f"transport tcp: {lack}" in plan.notes
    place = Placement("inline", 2, 2, 1, None, "shm", ("measured",))
    settled = calibration._placed(plan, wanted.topology, place)
    assert (settled.transport, settled.notes[-1]) == ("tcp", f"transport tcp: {lack}")
    with pytest.raises(ConfigError) as caught:
        make_plan(replace(wanted, topology=replace(wanted.topology, transport="shm")))
    assert str(caught.value) == f"topology.transport = 'shm': {lack}; use tcp"
    if too_small:
        monkeypatch.setattr(directories.shutil, "disk_usage", lambda place: SimpleNamespace(free=need))
        assert make_plan(wanted).transport == "shm"


def test_replay_workers_cannot_take_turns_with_the_learner() -> None:
    """They would wait for a version that is not made before there is enough to learn from."""
    asked = experiment("gymnasium:CartPole-v1", actors=2, replay_workers=2, staleness=0)
    with pytest.raises(ConfigError, match=r"topology.staleness = 0: must be at least 1 with topology.replay_workers"):
        make_plan(replace(asked, algorithm=DQNConfig(fragment_length=8, batch_size=16)))


def test_random_play_that_outlasts_the_run_is_said_or_refused_where_nothing_would_be_reported() -> None:
    config = DQNConfig(fragment_length=8, batch_size=16, learning_starts=500)
    asked = replace(experiment("gymnasium:CartPole-v1", actors=2), algorithm=config)
    for steps, said in ((500, True), (501, False)):
        notes = make_plan(replace(asked, limits=LimitsConfig(total_steps=steps))).notes
        assert (
            any(note.startswith("nothing will be learned: algorithm.learning_starts = 500") for note in notes) == said
        )
    shards = replace(asked, topology=replace(asked.topology, replay_workers=2))
    with pytest.raises(ConfigError, match=r"learning_starts = 500: with .* must be less than limits.total_steps = 500"):
        make_plan(replace(shards, limits=LimitsConfig(total_steps=500)))


@pytest.mark.parametrize(("shape", "said"), [((20, 16), True), ((20,), False)], ids=["pictures", "bytes as floats"])
def test_normalising_that_does_nothing_is_said(shape: tuple[int, ...], said: bool) -> None:
    asked = replace(experiment("mine"), algorithm=ESConfig(normalize_observations=True))
    notes = make_plan(asked, lambda: Picture(shape)).notes
    assert any("algorithm.normalize_observations does nothing here" in note for note in notes) == said


@pytest.mark.parametrize(
    ("memory", "size", "devices"), [("none", None, 8), ("none", 64, 8), ("gru", None, 8), ("gru", 64, 4)]
)
def test_impala_is_spread_over_devices_that_divide_its_sequences(memory: Any, size: int | None, devices: int) -> None:
    algorithm, network = IMPALAConfig(fragment_length=16, minibatch_size=size), NetworkConfig(memory=memory)

    def plan(**topology: int) -> Plan:
        return make_plan(replace(experiment(**topology), algorithm=algorithm, network=network))

    assert plan(devices=devices).devices == devices
    assert plan().devices == 1
    if devices < 8:
        with pytest.raises(ConfigError, match=r"topology.devices = 8: must divide 4"):
            plan(devices=8)


def test_a_plan_is_rebuilt_from_what_travels_and_nothing_is_chosen_or_measured_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = DQNConfig(fragment_length=8, batch_size=16, buffer_size=1_000, learning_starts=100)
    asked = replace(experiment("CartPole-v1", actors=2), algorithm=config)
    plan = make_plan(asked)

    def choose(*_: Any) -> None:
        raise AssertionError("a worker does not ask whether the buffer fits on its own host")

    monkeypatch.setattr(replay_keeper, "choose", choose)
    again = rebuild_plan(plan.experiment, list(plan.choices))
    for name in ("experiment", "mode", "actors", "slots", "transport", "devices", "rows", "credits", "replay_workers"):
        assert getattr(again, name) == getattr(plan, name), name
    assert again.env.library == plan.env.library


def test_a_host_without_the_chosen_library_says_so_and_steps_nothing_else() -> None:
    plan = make_plan(experiment("gymnasium:CartPole-v1", actors=2))
    with pytest.raises(ConfigError, match="the run steps it with envpool, this host would with gymnasium"):
        rebuild_plan(plan.experiment, Choices("envpool", 1))
