"""Rows are (environment, agent) pairs, an environment's agents side by side."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from envs.pair import make_pair
from podium.core.settings import resolve
from podium.launch.env_slots import close_slots, make_slots
from podium.launch.plan import Plan, make_plan
from podium.ops.random_keys import run_key
from podium.workers.evaluator import evaluate
from podium.workers.layout import make_layouts

SETTINGS = ["env.num_envs=4", "algorithm.fragment_length=4", "algorithm.minibatch_size=16", "topology.slots=2"]


@pytest.fixture(scope="module")
def plan() -> Plan:
    return make_plan(resolve("ppo", "envs.pair:make_pair", overrides=[*SETTINGS, "network.hidden=[4]"]).experiment)


def test_a_plan_tells_environments_from_rows(plan: Plan) -> None:
    assert (plan.envs, plan.rows, plan.num_rows) == (2, 4, 8)
    assert plan.experiment.rows_per_update(plan.env.spec) == 32
    layouts = make_layouts(plan.algorithm, plan.env.spec, plan.experiment, plan.rows)
    shapes = {field.name: field.shape for field in layouts.record.schema.fields}
    assert (shapes["fragment.reward"], shapes["fragment.obs"]) == ((4, 4), (5, 4, 1))


def test_each_slot_has_seeds_for_its_environments_and_numbers_for_its_rows(plan: Plan) -> None:
    layouts = make_layouts(plan.algorithm, plan.env.spec, plan.experiment, plan.rows)
    slots = make_slots(plan, layouts, 0, update=0, incarnation=0)
    assert [(slot.env.num_envs, slot.row_ids.tolist()) for slot in slots] == [(2, [0, 1, 2, 3]), (2, [4, 5, 6, 7])]
    close_slots(slots)


def test_environment_steps_are_those_in_which_an_agent_took_part(plan: Plan) -> None:
    valid = np.array([[True, True, True, False], [False, False, True, True]])
    assert plan.env.spec.env_steps(valid) == 3
    assert replace(plan.env.spec, agents=("agent",)).env_steps(valid) == valid.sum() == 5


def test_an_episode_is_evaluated_for_each_agent(plan: Plan) -> None:
    state = plan.algorithm.init(run_key(0), plan.env.spec, plan.experiment.hyper())
    played = evaluate(plan.algorithm, plan.algorithm.params(state), make_pair([1, 2]), jax.random.key(0), greedy=True)
    assert (played.returns, played.lengths) == ([3, 30, 3, 30], [3, 3, 3, 3])
