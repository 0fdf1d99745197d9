"""Policies and ensembles of critics: batched products give what each tower alone gives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podium.core.config import NetworkConfig
from podium.core.errors import ConfigError
from podium.core.specs import Array, Box, EnvSpec
from podium.networks import actor_critic
from podium.networks.critics import make_critics, make_policy

SPEC = EnvSpec(Array((3,)), Box((2,), (-1.0, -1.0), (1.0, 1.0)))
CONFIG = NetworkConfig((8, 4), "relu")
OBS = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
ACTION = np.random.default_rng(1).uniform(-1, 1, (2, 5)).astype(np.float32)


def test_an_ensemble_is_its_members_each_by_itself():
    critics = make_critics(CONFIG, SPEC, towers=3)
    params = jax.jit(critics.init)(jax.random.key(0))
    values = critics.apply(params, OBS, ACTION)
    assert values.shape == (3, 5)
    np.testing.assert_allclose(critics.apply_first(params, OBS, ACTION), values[0], rtol=1e-5, atol=1e-6)
    alone = make_critics(CONFIG, SPEC, towers=1)
    for tower in range(3):
        own = jax.tree.map(lambda x, tower=tower: x[tower : tower + 1], params)
        np.testing.assert_allclose(alone.apply(own, OBS, ACTION)[0], values[tower], rtol=1e-5, atol=1e-6)
        x = np.concatenate([OBS.T, ACTION])
        towers = jax.tree.map(np.asarray, own["towers"])
        for name in ("hidden_0", "hidden_1"):
            x = np.maximum(towers[name]["kernel"][0] @ x + towers[name]["bias"][0], 0)
        by_hand = towers["head"]["kernel"][0] @ x + towers["head"]["bias"][0]
        np.testing.assert_allclose(values[tower], by_hand[0], rtol=1e-5, atol=1e-6)


def test_members_start_apart_each_with_orthogonal_layers():
    params = jax.jit(make_critics(CONFIG, SPEC, towers=2).init)(jax.random.key(0))
    kernel = np.asarray(params["towers"]["hidden_1"]["kernel"])
    assert not np.allclose(kernel[0], kernel[1])
    for tower in kernel:
        np.testing.assert_allclose(tower @ tower.T, 2 * np.eye(4), atol=1e-5)


def test_a_members_loss_reaches_no_other_member():
    critics = make_critics(CONFIG, SPEC, towers=2)
    params = jax.jit(critics.init)(jax.random.key(0))
    gradient = jax.grad(lambda params: jnp.sum(critics.apply(params, OBS, ACTION)[1]))(params)
    assert all(np.all(g[0] == 0) and np.any(g[1] != 0) for g in jax.tree.leaves(gradient))


def test_an_action_is_seen_by_every_member():
    critics = make_critics(CONFIG, SPEC, towers=2)
    params = jax.jit(critics.init)(jax.random.key(0))
    slope = jax.jacobian(lambda action: critics.apply(params, OBS, action))(jnp.asarray(ACTION))
    # [tower, row, k, row']: a row's value depends on its own action, and on no other's.
    for row in range(5):
        assert np.all(np.any(slope[:, row, :, row] != 0, axis=-1))
        assert np.all(np.delete(slope[:, row], row, axis=2) == 0)


def test_dicts_and_images_are_encoded():
    spec = EnvSpec({"camera": Array((4, 4, 1), "uint8"), "joints": Array((3,))}, SPEC.action)
    obs = {"camera": np.full((5, 4, 4, 1), 100, np.uint8), "joints": OBS}
    policy, critics = make_policy(CONFIG, spec, 4), make_critics(CONFIG, spec, towers=2)
    assert policy.apply(jax.jit(policy.init)(jax.random.key(0)), obs).shape == (4, 5)
    params = jax.jit(critics.init)(jax.random.key(0))
    assert critics.apply(params, obs, ACTION).shape == (2, 5)
    other = critics.apply(params, obs | {"camera": np.full((5, 4, 4, 1), 200, np.uint8)}, ACTION)
    assert not np.allclose(other, critics.apply(params, obs, ACTION))


@pytest.mark.parametrize(("vision", "convolutions"), [("shallow", 2), ("nature", 3), ("resnet", 15)])
def test_policy_and_critics_see_by_the_convolutions_that_were_asked_for(vision, convolutions):
    config, spec = NetworkConfig((8,), vision=vision), EnvSpec(Array((36, 36, 1), "uint8"), SPEC.action)
    for init in (make_policy(config, spec, 4).init, make_critics(config, spec, towers=2).init):
        encoder = jax.eval_shape(init, jax.random.key(0))["encoder"]
        kernels = [leaf for path, leaf in jax.tree.leaves_with_path(encoder) if "kernel" in str(path)]
        assert sum(leaf.ndim == 4 for leaf in kernels) == convolutions


def test_a_policy_starts_near_the_middle():
    policy = make_policy(CONFIG, SPEC, 2)
    outputs = policy.apply(jax.jit(policy.init)(jax.random.key(0)), OBS)
    assert outputs.shape == (2, 5)
    assert np.all(np.abs(outputs) < 0.2)


def make_own(config, spec, num_outputs):
    return actor_critic.make(NetworkConfig((4,)), spec, num_outputs)


def make_own_with_memory(config, spec, num_outputs):
    return actor_critic.make(NetworkConfig((4,), memory="gru"), spec, num_outputs)


def test_the_users_own_network_can_be_the_policy():
    policy = make_policy(NetworkConfig(factory="test_critics:make_own"), SPEC, 2)
    params = jax.jit(policy.init)(jax.random.key(0))
    expected = make_own(None, SPEC, 2).apply(params, (), OBS[None], np.zeros((1, 5), bool))[0][0]
    np.testing.assert_allclose(policy.apply(params, OBS), expected.T, rtol=1e-6)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (NetworkConfig(memory="lstm"), "network.memory = 'lstm'"),
        (NetworkConfig(factory="test_critics:make_own_with_memory"), "has memory"),
    ],
)
def test_memory_is_refused_in_one_line(config, says):
    with pytest.raises(ConfigError, match=says) as refused:
        make_policy(config, SPEC, 2)
    assert "\n" not in str(refused.value)


def test_critics_may_have_widths_of_their_own():
    config = NetworkConfig((8,), value_hidden=(16, 4))
    critics = jax.eval_shape(make_critics(config, SPEC, towers=2).init, jax.random.key(0))["towers"]
    assert [critics[name]["bias"].shape for name in ("hidden_0", "hidden_1")] == [(2, 16, 1), (2, 4, 1)]
    policy = jax.eval_shape(make_policy(config, SPEC, 2).init, jax.random.key(0))["tower"]
    assert [layer["bias"].shape for layer in policy["hidden"].values()] == [(8, 1)]
