"""Where parts go follows from what they cost: known answers; and the costs are those of the real parts."""

import math
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import podium
from launch.commands import tiny
from podium.core import settings, toml
from podium.core.algorithm_configs import DQNConfig, PPOConfig
from podium.core.config import EnvConfig, Experiment, LimitsConfig, NetworkConfig, TopologyConfig
from podium.core.specs import Box, Discrete, MultiDiscrete
from podium.launch import calibration
from podium.launch.placement import Cost, Costs, choose, slots_for
from podium.launch.plan import draw, make_plan

MS = 1e-3
SMALL = {n: Cost(0.1 * MS, 0.1 * MS) for n in (4, 8, 16)}
"""Choosing with a small network: the same for 4 rows as for 16."""
UPDATE = Cost(0.4 * MS, 0.4 * MS)


def costs(env_ms: float, core: float = 1.0, **more: Any) -> Costs:
    """Of 16 environments that are on a core for this part of their step."""
    return Costs(Cost(env_ms * MS, core * env_ms * MS), **{"act": SMALL, "update": UPDATE, **more})


def test_fast_environments_with_threads_of_their_own_stay_one_batch_in_one_process() -> None:
    place = choose(costs(1.0, core=1.6, parallel=True), cores=2, num_envs=16)
    assert (place.mode, place.actors, place.slots, place.transport) == ("inline", 1, 1, "memory")
    assert place.reasons == (
        "a step of 16 environments takes 1 ms, choosing their actions 0.1 ms, learning from it 0.4 ms",
        "one actor: the environments have threads of their own",
    )


def test_slow_environments_that_compute_get_an_actor_process_for_each_core() -> None:
    for cores, actors in ((2, 2), (4, 4), (8, 8)):
        place = choose(costs(32.0), cores, num_envs=16)
        assert (place.mode, place.actors, place.slots, place.transport) == ("inline", actors, actors, "shm")
    assert "2 actor(s) with 1 slot(s) each: about 883 steps/s, against 498" in choose(costs(32.0), 2, 16).reasons[1]


def test_slow_environments_that_wait_get_two_actor_processes_for_each_core() -> None:
    assert choose(costs(32.0, core=0.05), cores=2, num_envs=16).actors == 4


def test_slow_environments_that_wait_are_spread_over_more_processes_than_there_could_be_actors() -> None:
    place = choose(costs(32.0, core=0.05), cores=2, num_envs=16, env_processes=True)
    # 16 processes: 2 ms of stepping, 1.6 ms of pipes, 0.1 ms of choosing; 8 are not within a tenth of it.
    assert (place.mode, place.actors, place.slots, place.transport) == ("inline", 1, 1, "memory")
    assert place.env_processes == 16
    assert place.reasons[1] == "one actor, env.processes=16: about 3,892 steps/s, against 498 in its own process"
    assert choose(costs(32.0), cores=2, num_envs=16, env_processes=True).actors == 2, "those that compute get actors"
    assert choose(costs(32.0, core=0.05), cores=2, num_envs=16, env_processes=True, slots=4).env_processes == 0


def test_more_actors_than_the_learner_can_follow_are_not_started() -> None:
    slow_learner = costs(32.0, update=Cost(15 * MS, 15 * MS))
    assert choose(slow_learner, cores=16, num_envs=16).actors == 2
    assert choose(costs(32.0, update=Cost(40 * MS, 40 * MS)), cores=16, num_envs=16).transport == "memory"


def test_a_short_run_does_not_wait_for_processes_to_start() -> None:
    assert choose(costs(32.0), 2, 16, steps=20_000).actors == 2  # 40 s of steps
    for limit in ({"steps": 2_000}, {"seconds": 4.0}, {"steps": 4_000}):
        place = choose(costs(32.0), 2, 16, **limit)
        assert (place.actors, place.transport) == (1, "memory")
    assert choose(costs(32.0), 2, 16, steps=2_000).reasons == (
        "one process, because all its environment steps take about 4.0 s",
    )
    assert choose(costs(32.0), 2, 16, steps=4_000).reasons[1] == "other processes would save 3.5 s only"


def test_what_other_processes_cannot_make_stays_here() -> None:
    assert choose(costs(32.0), 2, 16, processes=False).transport == "memory"


def test_a_large_network_is_served_in_batches_where_each_actor_alone_would_read_all_its_weights() -> None:
    large = {n: Cost((14 + n / 16) * MS, (14 + n / 16) * MS) for n in (1, 2, 4, 8, 16)}
    place = choose(costs(64.0, act=large), cores=8, num_envs=16)
    assert (place.mode, place.inference_workers, place.inference_batch) == ("served", 1, 16)
    assert choose(costs(64.0), cores=8, num_envs=16).mode == "inline"


def test_actors_do_not_share_an_accelerator_so_it_serves_them() -> None:
    place = choose(costs(32.0), cores=8, num_envs=16, accelerator=True)
    assert (place.mode, place.inference_workers, place.transport) == ("served", 1, "shm")
    assert choose(costs(1.0, parallel=True), cores=8, num_envs=16, accelerator=True).mode == "inline"


def test_environments_with_threads_of_their_own_take_turns_where_choosing_takes_as_long_as_stepping() -> None:
    act = {8: Cost(1 * MS, 1 * MS), 16: Cost(2 * MS, 2 * MS)}
    place = choose(costs(2.0, core=1.0, parallel=True, act=act), cores=4, num_envs=16)
    assert (place.mode, place.actors, place.slots, place.transport) == ("inline", 1, 2, "memory")
    assert choose(costs(2.0, core=1.9, parallel=True, act=act), cores=1, num_envs=16).slots == 1, "no core to spare"


@pytest.mark.parametrize(
    ("step_s", "latency_s", "rows", "slots"),
    [(8.0, 0.0, 8, 2), (8.0, 3.9, 8, 2), (8.0, 4.0, 8, 4), (8.0, 6.5, 8, 8), (8.0, 9.0, 8, 8), (8.0, 6.5, 6, 6)],
)
def test_slots_are_the_fewest_that_leave_no_idle_time(step_s: float, latency_s: float, rows: int, slots: int) -> None:
    assert slots_for(step_s, latency_s, rows) == slots
    enough = latency_s < step_s / slots * (slots - 1)
    assert enough or slots == rows


@pytest.mark.parametrize("num_envs", [1, 2, 3, 6, 10, 16, 24, 100])
@pytest.mark.parametrize("cores", [1, 2, 5, 64])
def test_every_placement_is_one_that_a_plan_takes(num_envs: int, cores: int) -> None:
    act = {num_envs: Cost(9 * MS, 9 * MS), max(1, num_envs // 2): Cost(8 * MS, 8 * MS)}
    for core, accelerator in ((0.1, False), (1.0, False), (1.0, True)):
        place = choose(costs(2.0 * num_envs, core, act=act), cores, num_envs, accelerator=accelerator)
        assert num_envs % place.slots == 0
        assert place.slots % place.actors == 0
        assert place.actors <= 2 * cores
        assert place.mode == "inline" or (place.inference_batch or 0) >= num_envs // place.slots


def test_slots_and_transport_that_the_user_set_are_kept() -> None:
    place = choose(costs(32.0), 2, 16, slots=4, transport="tcp")
    assert (place.actors, place.slots, place.transport) == (2, 4, "tcp")
    assert choose(costs(32.0), 2, 16, slots=1).transport == "memory"


class Slow(gymnasium.Env):
    """Waits 2 ms in each step; episodes of 10 steps; refuses actions that are not its own."""

    def __init__(self, action_space: gymnasium.Space | None = None) -> None:
        self.observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
        self.action_space = action_space or gymnasium.spaces.Discrete(3)
        self.count, self.closed = 0, False

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.count = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action)
        assert not self.closed
        time.sleep(2 * MS)
        self.count += 1
        return np.zeros(2, np.float32), 0.0, False, self.count == 10, {}

    def close(self) -> None:
        self.closed = True


def slow() -> gymnasium.Env:
    return Slow()


def experiment(env: str = "launch.test_calibration:slow", steps: int = 1_000_000, **topology: Any) -> Experiment:
    return Experiment(
        algorithm=PPOConfig(fragment_length=16, minibatch_size=32, num_epochs=1),
        env=EnvConfig(env, num_envs=4),
        network=NetworkConfig(hidden=(8,)),
        topology=TopologyConfig(**topology),
        limits=LimitsConfig(total_steps=steps),
    )


def off_policy(ratio: float = 1.0, **topology: Any) -> Experiment:
    config = DQNConfig(fragment_length=8, batch_size=16, buffer_size=1000, learning_starts=500, update_ratio=ratio)
    return replace(experiment(**topology), algorithm=config)


def test_what_is_learned_from_a_fragment_of_an_off_policy_algorithm_is_all_its_updates(monkeypatch) -> None:
    made = 0

    def watch(update: Callable[[], object], seconds: float) -> Cost:
        nonlocal made
        update()
        made += 1
        return Cost(2 * MS, 3 * MS)

    monkeypatch.setattr(calibration, "watch", watch)
    for ratio, updates in ((1.0, 32), (0.25, 8)):
        assert calibration.measure_updates(make_plan(off_policy(ratio))) == Cost(updates * 2 * MS, updates * 3 * MS)
    assert made == 2


def test_all_parts_of_a_slow_experiment_are_measured() -> None:
    measured = calibration.measure(make_plan(experiment()))
    assert not measured.parallel
    assert 4 * MS < measured.env.wall_s < 800 * MS  # four of 2 ms, some of them resets; more on a busy machine
    assert measured.env.core_s < measured.env.wall_s
    assert max(measured.act) == 4
    assert all(cost.wall_s > 0 for cost in (*measured.act.values(), measured.update))


def test_the_choice_is_stored_and_is_not_made_again() -> None:
    plan = calibration.settle(make_plan(experiment()))
    topology = plan.experiment.topology
    assert (plan.mode, plan.transport, topology.mode, topology.transport) == ("inline", "shm", "inline", "shm")
    assert topology.actors == topology.slots == plan.actors == plan.slots
    assert topology.actors is not None
    assert topology.actors > 1
    assert plan.notes[-2].startswith("mode inline: a step of 4 environments takes ")
    stored = make_plan(plan.experiment)
    assert stored.asked is None
    assert calibration.settle(stored) is stored
    assert (stored.actors, stored.slots, stored.transport) == (plan.actors, plan.slots, plan.transport)


def test_the_choice_of_processes_for_environments_is_stored_and_is_not_made_again(monkeypatch, tmp_path: Path) -> None:
    waiting = Costs(Cost(64 * MS, 1 * MS), act=SMALL, update=UPDATE)
    monkeypatch.setattr(calibration, "measure", lambda plan: waiting)
    monkeypatch.setattr(calibration, "count_cores", lambda: 2)
    open_one = experiment()
    plan = calibration.settle(make_plan(replace(open_one, env=replace(open_one.env, num_envs=16))))
    (tmp_path / "experiment.toml").write_text(toml.dump(plan.experiment))
    stored = make_plan(settings.read_experiment(tmp_path / "experiment.toml"))
    for each in (plan, stored):
        assert each.experiment.env.processes == 16
        assert (each.asked, each.mode, each.actors, each.transport) == (None, "inline", 1, "memory")
        assert each.env.note.endswith("in 16 processes")


def test_a_short_run_is_measured_by_its_environments_alone() -> None:
    measured = calibration.measure(make_plan(experiment(steps=1000)))
    assert measured.act == {}


def test_what_else_was_noted_stays_when_the_choice_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "measure", lambda plan: Costs(Cost(0.01, 0.01), parallel=True))
    asked = off_policy()
    config = replace(asked.algorithm, learning_starts=asked.limits.total_steps, buffer_size=asked.limits.total_steps)
    before = make_plan(replace(asked, algorithm=config))
    after = calibration.settle(before)
    assert before.asked is not None
    assert any(note.startswith("nothing will be learned") for note in after.notes)
    assert [note for note in after.notes if note.startswith("mode ")] != []
    assert set(before.notes[:-1]) <= set(after.notes)


def test_nothing_is_measured_where_nothing_is_open() -> None:
    assert make_plan(experiment()).asked is not None
    for closed in ({"actors": 1}, {"mode": "inline"}, {"staleness": 0}):
        assert make_plan(experiment(**closed)).asked is None
    replay = make_plan(off_policy(replay_workers=2))
    assert (replay.asked, replay.actors) == (None, 2)
    fused = make_plan(experiment("podium:Catch-v0"))
    assert fused.asked is None


def test_a_dry_run_measures_nothing_and_says_so() -> None:
    assert "# auto: who steps the environments is measured when the run starts" in draw(make_plan(experiment()))


def test_an_environment_that_only_this_process_knows_stays_in_it() -> None:
    plan = make_plan(experiment("notebook:<lambda>"), lambda: Slow())
    assert not plan.importable
    settled = calibration.settle(plan)
    assert (settled.actors, settled.transport) == (1, "memory")

    gymnasium.register("OnlyHere-v0", entry_point="launch.test_calibration:Slow", max_episode_steps=10)
    try:
        assert calibration.settle(make_plan(experiment("OnlyHere-v0"))).transport == "memory"
    finally:
        del gymnasium.registry["OnlyHere-v0"]


def test_an_environment_that_fails_while_it_is_measured_fails_as_in_any_run(tmp_path: Path) -> None:
    faults = tiny(env__kwargs={"how": "raise", "at": 5})
    with pytest.raises(podium.EnvError, match="the wheel came off"):
        podium.train("ppo", "launch.faulty:make", name="run", set=faults, root=tmp_path, progress=False, track=())
    assert podium.Run(tmp_path / "run").summary["status"] == "failed"


def test_a_run_that_chose_one_process_stores_it(tmp_path: Path) -> None:
    run = podium.train(
        "ppo", "launch.faulty:make", total_steps=256, set=tiny(), root=tmp_path, progress=False, track=()
    )
    topology = settings.read_experiment(run.path / "experiment.toml").topology
    assert (topology.mode, topology.actors, topology.slots, topology.transport) == ("inline", 1, 1, "memory")


@pytest.mark.parametrize("spec", [Discrete(3), MultiDiscrete((2, 3)), Box((2,), (-0.5, -math.inf), (0.5, math.inf))])
def test_random_actions_are_within_the_space(spec: Any) -> None:
    random = np.random.default_rng(0)
    for _ in range(20):
        actions = calibration._sample(spec, random, 8, None)
        if isinstance(spec, Box):
            assert actions.shape == (8, 2)
            assert (np.abs(actions) <= [0.5, 1.0]).all()
        else:
            assert (actions >= 0).all()
            assert (actions < (3 if isinstance(spec, Discrete) else np.array([2, 3]))).all()


def test_random_actions_are_legal() -> None:
    mask = np.array([[True, False, False, True, False], [False, True, False, False, True]])
    for _ in range(20):
        actions = calibration._sample(MultiDiscrete((2, 3)), np.random.default_rng(), 2, mask)
        assert actions.tolist() == [[0, 1], [1, 2]]
