"""Actors of a plan: what each slot is given of all that environments have."""

import numpy as np
import pytest

from podium.core.algorithm_configs import DQNConfig
from podium.core.config import EnvConfig, Experiment, NetworkConfig, TopologyConfig
from podium.launch.env_slots import close_slots, make_slots
from podium.launch.plan import make_plan
from podium.workers.layout import make_layouts


@pytest.mark.parametrize("actors", [1, 2])
def test_environments_explore_by_their_number_in_the_run_whichever_slot_and_actor_they_are_of(actors: int) -> None:
    config = DQNConfig(fragment_length=4, batch_size=8, buffer_size=64, learning_starts=0, exploration_spread=0.001)
    env, topology = EnvConfig("gymnasium:CartPole-v1", num_envs=4), TopologyConfig(actors=actors, slots=2)
    plan = make_plan(Experiment(config, env, NetworkConfig(hidden=(4,)), topology))
    layouts = make_layouts(plan.algorithm, plan.env.spec, plan.experiment, plan.rows)
    slots = [slot for actor in range(actors) for slot in make_slots(plan, layouts, actor, update=0, incarnation=0)]
    try:
        exploration = [slot.request().exploration for slot in slots]
    finally:
        close_slots(slots)
    np.testing.assert_allclose(exploration, [[1.0, 0.1], [0.01, 0.001]], rtol=1e-5)
