"""What a loaded policy answers: one observation or many, trees, memory, greedy or not, within bounds."""

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import podium
from launch import faulty
from launch.commands import tiny
from podium.launch.policy import Policy


def load(root: Path, env: object, **changes: object) -> Policy:
    run = podium.train("ppo", env, total_steps=100, set=tiny(**changes), root=root, track=(), progress=False)
    return podium.load(run)


@pytest.fixture(scope="module")
def cartpole(tmp_path_factory: pytest.TempPathFactory) -> Policy:
    return load(tmp_path_factory.mktemp("runs"), "gymnasium:CartPole-v1")


def test_one_observation_gives_one_action_that_the_environment_takes(cartpole: Policy) -> None:
    with gymnasium.make("CartPole-v1") as env:
        obs, _ = env.reset(seed=0)
        action, _ = cartpole.predict(obs)
        assert env.action_space.contains(np.int64(action))
        assert np.shape(action) == ()


def test_a_batch_gives_the_actions_that_its_rows_give_alone(cartpole: Policy) -> None:
    batch = np.random.default_rng(0).uniform(-1, 1, (5, 4))
    actions, _ = cartpole.predict(batch)
    assert actions.tolist() == [int(cartpole.predict(row)[0]) for row in batch]


def test_greedy_answers_repeat_and_sampled_ones_vary(cartpole: Policy) -> None:
    obs = np.zeros((64, 4), np.float32)
    greedy, again = (cartpole.predict(obs)[0] for _ in range(2))
    assert greedy.tolist() == again.tolist() == [greedy[0]] * 64
    sampled, other = (cartpole.predict(obs, deterministic=False)[0] for _ in range(2))
    assert set(sampled.tolist()) == {0, 1}
    assert sampled.tolist() != other.tolist()


def test_a_wrong_shape_is_told_with_the_right_one(cartpole: Policy) -> None:
    with pytest.raises(podium.ConfigError, match=r"shape \(3,\): must be \(4,\), or a batch"):
        cartpole.predict(np.zeros(3))


def test_an_empty_batch_is_refused(cartpole: Policy) -> None:
    with pytest.raises(podium.ConfigError, match=r"^predict: the batch is empty: must have at least one observation$"):
        cartpole.predict(np.zeros((0, 4)))


def test_a_mask_without_a_legal_action_or_of_another_size_is_refused(cartpole: Policy) -> None:
    obs = np.zeros((2, 4))
    assert cartpole.predict(obs, mask=np.array([[1, 0], [0, 1]]))[0].tolist() == [0, 1]
    with pytest.raises(podium.ConfigError, match=r"mask of observation 1 has no legal action: must have at least one$"):
        cartpole.predict(obs, mask=np.array([[1, 0], [0, 0]]))
    with pytest.raises(podium.ConfigError, match=r"mask of 3 flags: must be 2 for each of 2 observation\(s\)$"):
        cartpole.predict(obs, mask=np.ones(3))


def test_a_dict_observation_is_given_as_the_environment_gives_it(tmp_path: Path) -> None:
    policy = load(tmp_path, faulty.make_tree)
    obs, _ = faulty.make_tree().reset(seed=0)
    assert policy.predict(obs)[0] in (0, 1)
    batch = {name: np.stack([part, part]) for name, part in obs.items()}
    assert policy.predict(batch)[0].shape == (2,)


@pytest.mark.parametrize("squash", [False, True])
def test_continuous_actions_stay_within_their_bounds_sampled_or_not(squash: bool, tmp_path: Path) -> None:
    changes = {"env__kwargs": {"action": "box"}, "algorithm__log_std": 2.0, "algorithm__squash": squash}
    policy = load(tmp_path, "launch.faulty:make", **changes)
    low, high = np.float32([-0.5, 2.0]), np.float32([0.5, 2.5])
    for deterministic in (True, False):
        actions, _ = policy.predict(np.zeros((100, 3)), deterministic=deterministic)
        assert actions.shape == (100, 2)
        assert (actions >= low).all()
        assert (actions <= high).all()
    assert len(np.unique(actions[:, 0])) > 10 or not squash


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_memory_carries_what_was_seen_and_none_starts_anew(kind: str, tmp_path: Path) -> None:
    policy = load(tmp_path, "podium:Memory-v0", network__memory=kind, network__memory_size=4)
    cue, blank = np.float32([1, 0]), np.float32([0, 0])
    _, fresh = policy.predict(cue)
    _, later = policy.predict(blank, fresh)
    _, forgetful = policy.predict(blank)
    leaves = [np.concatenate([np.ravel(x) for x in np.atleast_1d(m)]) for m in (later, forgetful)]
    assert not np.array_equal(*leaves)
    again = policy.predict(blank, policy.predict(cue)[1])[1]
    assert np.array_equal(np.ravel(again), np.ravel(later))


class Shop(gymnasium.Env):
    """Each space has a start or a shape of its own; `step` refuses actions that are not its space's."""

    def __init__(self) -> None:
        self.observation_space = spaces.Tuple(
            [spaces.Discrete(3, start=4), spaces.MultiDiscrete([2, 3], start=[1, -1]), spaces.Box(0, 9, (2,), np.uint8)]
        )
        self.action_space = spaces.MultiDiscrete([[2, 3], [4, 2]], start=[[5, 0], [-2, 7]])
        self.count = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self.count = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        assert action in self.action_space, action
        self.count += 1
        return self.observation_space.sample(), 1.0, self.count == 8, False, {}


def test_any_space_is_served_as_the_environment_has_it(tmp_path: Path) -> None:
    policy, env = load(tmp_path, Shop), Shop()
    (obs, _), actions = env.reset(seed=0), []
    for _ in range(8):
        action, _ = policy.predict(obs, deterministic=False)
        actions.append(action)
        obs, *_ = env.step(action)
    assert (np.ptp(actions, axis=0) > 0).any()
    batch = tuple(np.stack([part, part]) for part in obs)
    both, _ = policy.predict(batch)
    assert both.shape == (2, 2, 2)
    assert (both == policy.predict(obs)[0]).all()
    legal = np.ones(11, bool)
    legal[2:5] = False  # the flags of the second choice
    with pytest.raises(podium.ConfigError, match=r"observation 0 has no legal action for choice 1"):
        policy.predict(obs, mask=legal)
    with pytest.raises(podium.ConfigError, match=r"\[\[4, -1\]\]: must be within \[1, -1\] to \[2, 1\]"):
        policy.predict((4, np.array([4, -1]), obs[2]))


def test_rows_that_begin_an_episode_forget_and_the_others_do_not(tmp_path: Path) -> None:
    policy = load(tmp_path, "podium:Memory-v0", network__memory="gru", network__memory_size=4)
    cues, blanks = np.float32([[1, 0], [0, 1], [1, 0]]), np.zeros((3, 2), np.float32)
    _, memory = policy.predict(cues)
    _, mixed = policy.predict(blanks, memory, episode_start=[False, True, False])
    _, kept = policy.predict(blanks, memory)
    _, fresh = policy.predict(blanks)
    mixed, kept, fresh = map(np.asarray, (mixed, kept, fresh))
    assert np.allclose(mixed[[0, 2]], kept[[0, 2]])
    assert np.allclose(mixed[1], fresh[1])
    assert not np.allclose(kept[1], fresh[1])
    _, all_anew = policy.predict(blanks, memory, episode_start=True)
    assert np.allclose(all_anew, fresh)
    with pytest.raises(podium.ConfigError, match=r"episode_start of shape \(2,\): must be one bool, or 3"):
        policy.predict(blanks, memory, episode_start=[True, False])


def test_a_policy_is_loaded_where_its_environment_is_gone(tmp_path: Path) -> None:
    run = podium.train("ppo", lambda: Shop(), total_steps=64, set=tiny(), root=tmp_path, track=(), progress=False)
    policy = podium.load(run.path)  # by its path, the function is not known
    obs, _ = Shop().reset(seed=0)
    assert Shop().action_space.contains(policy.predict(obs)[0])
    with pytest.raises(podium.ConfigError, match=r"was a function of a program.*env="):
        podium.evaluate(policy, episodes=1)
    assert podium.evaluate(policy, env=Shop, episodes=2).returns == [8.0, 8.0]
    assert podium.evaluate(run.path, env=Shop, episodes=1).returns == [8.0]
    assert podium.evaluate(podium.load(run.path, env=Shop), episodes=1).returns == [8.0]
    with pytest.raises(podium.ConfigError, match=r"env = CartPole-v1: is .*; the policy was trained on"):
        podium.evaluate(policy, env="CartPole-v1", episodes=1)


def test_an_evaluation_is_greedy_or_draws_its_actions(cartpole: Policy) -> None:
    greedy, same = (podium.evaluate(cartpole, episodes=4, seed=1).returns for _ in range(2))
    drawn = podium.evaluate(cartpole, episodes=4, seed=1, deterministic=False).returns
    assert greedy == same != drawn
    with pytest.raises(podium.ConfigError, match="episodes = 0: must be at least 1"):
        podium.evaluate(cartpole, episodes=0)
