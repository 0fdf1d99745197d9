"""The actor writes the canonical layout, whole across fragments and slots."""

import gymnasium
import jax
import numpy as np
import pytest

from podium.algorithms import ppo
from podium.core.config import EnvConfig, Experiment, NetworkConfig, PPOConfig
from podium.core.errors import EnvError
from podium.envs.gymnasium import GymnasiumEnv
from podium.workers.actor import Actor
from podium.workers.inline import Inline

LENGTH = 5
GAMMA = 0.5


class Counter(gymnasium.Env):
    """Observes how many steps it has made, and is paid as much. Ends after 3 steps, by `end`."""

    observation_space = gymnasium.spaces.Box(-1, 100, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, end: str) -> None:
        self.end = end

    def reset(self, *, seed=None, options=None):
        self.count = 0
        return np.array([0.0], np.float32), {}

    def step(self, action):
        self.count += 1
        over = self.count == 3
        obs = np.array([self.count], np.float32)
        return obs, float(self.count), over and self.end == "terminated", over and self.end == "truncated", {}


def make_actor(slots: int, end: str, memory: str = "none", make=Counter):
    experiment = Experiment(
        algorithm=PPOConfig(fragment_length=LENGTH, minibatch_size=LENGTH * 4, num_epochs=1, gamma=GAMMA),
        env=EnvConfig("counter", num_envs=4),
        network=NetworkConfig(hidden=(4,), memory=memory, memory_size=4),
    )
    envs = [GymnasiumEnv(lambda: make(end), range(4 // slots)) for _ in range(slots)]
    algorithm = ppo.make(experiment.algorithm, experiment, envs[0].spec)
    state = algorithm.init(jax.random.key(0), envs[0].spec, experiment.algorithm.hyper())
    actor = Actor(algorithm, envs, algorithm.params(state), jax.random.key(1))
    return algorithm, state, actor


def collect(actor, algorithm, state, count: int):
    fragments = []
    for update in range(count):
        fragment = actor.allocate()
        assert actor.collect(fragment, lambda u=update: (u, algorithm.params(state)), update, lambda: False) == LENGTH
        fragments.append(fragment)
    return fragments


@pytest.mark.parametrize("slots", [1, 2])
@pytest.mark.parametrize("end", ["terminated", "truncated"])
def test_fragments_hold_the_canonical_layout(slots, end):
    algorithm, state, actor = make_actor(slots, end)
    one, two = collect(actor, algorithm, state, 2)
    actor.close()
    # 0 1 2 (3, the final observation) 0 1 2 (3) ...: the final one is seen in a reset row.
    np.testing.assert_array_equal(one.obs[:, 0, 0], [0, 1, 2, 3, 0, 1])
    np.testing.assert_array_equal(two.obs[:, 0, 0], [1, 2, 3, 0, 1, 2])
    np.testing.assert_array_equal(one.reward[:, 0], [1, 2, 3, 0, 1])
    np.testing.assert_array_equal(one.valid[:, 0], [True, True, True, False, True])
    np.testing.assert_array_equal(two.valid[:, 0], [True, True, False, True, True])
    np.testing.assert_array_equal(one.first[:, 0], [True, False, False, False, True, False])
    np.testing.assert_array_equal(two.first[:, 0], [False, False, False, True, False, False])
    ended = one.terminated if end == "terminated" else one.truncated
    np.testing.assert_array_equal(ended[:, 0], [False, False, True, False, False])
    assert not (one.truncated if end == "terminated" else one.terminated).any()
    np.testing.assert_allclose(one.discounted[[0, 1, 2, 4], 0], [1, 2.5, 4.25, 1])
    assert (two.version == 1).all()
    assert all(np.array_equal(one.obs[:, 0], one.obs[:, row]) for row in range(4))
    assert actor.steps == np.count_nonzero(one.valid) + np.count_nonzero(two.valid)
    assert actor.take_episodes() == [(6.0, 3)] * 8
    assert actor.take_episodes() == []


def test_log_probabilities_are_those_of_the_parameters_that_acted_and_memory_starts_the_fragment():
    algorithm, state, actor = make_actor(2, "terminated", memory="gru")
    one, two, three = collect(actor, algorithm, state, 3)
    actor.close()
    network = ppo.networks.make(NetworkConfig(hidden=(4,), memory="gru", memory_size=4), actor.spec, 2)
    for fragment in (one, two, three):
        outputs, _, _ = network.apply(state.params.network, fragment.memory, fragment.obs, fragment.first)
        log_probs = jax.nn.log_softmax(outputs)[:-1]
        chosen = np.take_along_axis(np.asarray(log_probs), fragment.action[..., None], -1)[..., 0]
        np.testing.assert_allclose(chosen, fragment.extras["log_prob"], rtol=1e-5)
    assert np.any(three.memory != 0)


def test_slots_change_nothing_but_the_last_bits():
    fragments = []
    for slots in (1, 2, 4):
        algorithm, state, actor = make_actor(slots, "terminated")
        fragments.append(collect(actor, algorithm, state, 1)[0])
        actor.close()
    for other in fragments[1:]:
        np.testing.assert_array_equal(fragments[0].action, other.action)
        np.testing.assert_allclose(fragments[0].extras["log_prob"], other.extras["log_prob"], rtol=1e-5)


@pytest.mark.parametrize("staleness", [0, 2])
def test_collecting_stops_when_every_buffer_waits_for_the_learner(staleness):
    algorithm, state, actor = make_actor(1, "terminated")
    inline = Inline(algorithm, actor, state, jax.random.key(2), 0, staleness)
    trained = 0
    with inline:
        for update in range(4):
            learned = inline.step()
            trained += learned.steps
            assert learned.staleness_max <= staleness
            assert inline.update == update + 1
    # What was collected is what was trained, what waits in full buffers, and what a stopped fragment holds.
    assert actor.steps == trained + inline.in_flight()
    assert actor.steps <= (4 + staleness + 1) * LENGTH * 4


class Broken(Counter):
    """Raises at its second step."""

    def step(self, action):
        if self.count == 1:
            raise ZeroDivisionError("the wheel came off")
        return super().step(action)


def test_an_error_of_the_environment_is_raised_by_the_learner():
    algorithm, state, actor = make_actor(1, "terminated", make=Broken)
    inline = Inline(algorithm, actor, state, jax.random.key(2), 0, 1)
    with pytest.raises(EnvError, match=r"(?s)environment 0 \(seed 0\).*the wheel came off"), inline:
        inline.step()
