"""Distributions: probabilities that sum to 1, entropies and divergences that integrate, samples that fit."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from podium.core import specs
from podium.core.errors import ConfigError
from podium.ops.distributions import Categorical, DiagonalGaussian, MultiCategorical, TanhGaussian, make, num_outputs

LOW, HIGH = (-2.0,), (3.0,)
close = partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)


def keys(*shape, seed=0):
    return jax.random.split(jax.random.key(seed), shape)


def one_of_each(lead):
    """Each kind of distribution with the given leading axes, and the shape of its actions."""
    rng = np.random.default_rng(0)

    def outputs(k):
        return jnp.asarray(rng.normal(size=(*lead, k)), jnp.float32)

    low, high = (-1.0, 0.0, -2.0, -1.0, -1.0, 5.0), (1.0, 1.0, 3.0, 1.0, 0.5, 9.0)
    return {
        "categorical": (Categorical(outputs(4)), ()),
        "masked": (Categorical(outputs(4), jnp.asarray(rng.random((*lead, 4)) < 0.5).at[..., 2].set(True)), ()),
        "multi": (MultiCategorical(outputs(9), (2, 4, 3)), (3,)),
        "gaussian": (DiagonalGaussian(outputs(6), outputs(6), (2, 3)), (2, 3)),
        "shared std": (DiagonalGaussian(outputs(6), jnp.full(6, -0.5)), (6,)),
        "tanh": (TanhGaussian(outputs(6), 0.3 * outputs(6) - 1, low, high, (2, 3)), (2, 3)),
    }


every_kind = pytest.mark.parametrize("kind", one_of_each(()))


# What all have in common


@every_kind
@pytest.mark.parametrize("lead", [(), (5,), (3, 2)])
def test_any_leading_axes(kind, lead):
    distribution, shape = one_of_each(lead)[kind]

    @jax.jit
    def everything(d, key):
        action = d.sample(key)
        return action, d.mode(), d.log_prob(action), d.entropy(), d.kl(d)

    action, mode, log_prob, entropy, kl = everything(distribution, keys(*lead))
    assert action.shape == mode.shape == (*lead, *shape)
    assert log_prob.shape == entropy.shape == kl.shape == lead
    close(kl, np.zeros(lead))


@every_kind
def test_a_rows_action_does_not_depend_on_its_batch(kind):
    distribution, _ = one_of_each((6,))[kind]
    sample = jax.jit(lambda d, key: d.sample(key))
    whole = sample(distribution, keys(6))
    part = jax.tree.map(lambda x: x[np.array([4, 1])] if x.ndim > 1 else x, distribution)
    close(sample(part, keys(6)[np.array([4, 1])]), whole[np.array([4, 1])])


@every_kind
def test_entropy_is_the_mean_of_minus_log_prob(kind):
    distribution, _ = one_of_each(())[kind]
    repeated = jax.tree.map(lambda x: jnp.broadcast_to(x, (20_000, *x.shape)), distribution)
    log_prob = jax.jit(lambda d, key: d.log_prob(d.sample(key)))(repeated, keys(20_000))
    standard_error = np.std(log_prob) / np.sqrt(20_000)
    assert abs(np.mean(log_prob) + distribution.entropy()) < 4 * standard_error


@every_kind
def test_kl_is_the_mean_difference_of_log_probs(kind):
    p, _ = one_of_each(())[kind]
    q = jax.tree.map(lambda x: x if x.dtype == bool else 0.7 * x + 0.2, p)
    repeated = jax.tree.map(lambda x: jnp.broadcast_to(x, (20_000, *x.shape)), (p, q))
    difference = jax.jit(lambda p, q, a: p.log_prob(a) - q.log_prob(a))(*repeated, repeated[0].sample(keys(20_000)))
    assert abs(np.mean(difference) - p.kl(q)) < 4 * np.std(difference) / np.sqrt(20_000)
    assert p.kl(q) > 0


@every_kind
def test_gradients_are_finite_and_right(kind):
    distribution, _ = one_of_each((3,))[kind]
    action = distribution.sample(keys(3))

    def loss(floats):
        d = jax.tree.map(lambda x, f: x if f is None else f, distribution, floats, is_leaf=lambda x: x is None)
        return jnp.sum(d.log_prob(action) + d.entropy() + d.kl(distribution))

    floats = jax.tree.map(lambda x: None if x.dtype == bool else x, distribution)
    loss = jax.jit(loss)
    gradient = jax.jit(jax.grad(loss))(floats)
    for leaf in jax.tree.leaves(gradient):
        assert np.all(np.isfinite(leaf))
    step = jax.tree.map(lambda g: 1e-3 * g / jnp.sqrt(sum(jnp.sum(x**2) for x in jax.tree.leaves(gradient))), gradient)
    ahead, behind = (loss(jax.tree.map(lambda x, s, side=side: x + side * s, floats, step)) for side in (1, -1))
    slope = (ahead - behind) / 2e-3
    close(slope, np.sqrt(sum(np.sum(np.square(x)) for x in jax.tree.leaves(gradient))), rtol=2e-2)


# Categorical


def test_categorical_agrees_with_scipy():
    logits = jnp.array([0.3, -1.0, 2.0])
    probs = np.exp(logits) / np.sum(np.exp(logits))
    close(jnp.exp(Categorical(jnp.tile(logits, (3, 1))).log_prob(jnp.arange(3))), probs)
    close(Categorical(logits).entropy(), scipy.stats.entropy(probs))
    close(Categorical(logits).kl(Categorical(jnp.zeros(3))), scipy.stats.entropy(probs, np.ones(3) / 3))
    assert Categorical(logits).mode() == 2


def test_categorical_samples_come_as_often_as_they_should():
    probs = np.array([0.1, 0.6, 0.0, 0.3])
    logits = jnp.tile(jnp.log(jnp.array([0.1, 0.6, 1.0, 0.3])), (50_000, 1))
    samples = Categorical(logits, jnp.array([True, True, False, True])).sample(keys(50_000))
    counts = np.bincount(samples, minlength=4)
    assert counts[2] == 0
    assert scipy.stats.chisquare(counts[[0, 1, 3]], 50_000 * probs[[0, 1, 3]]).pvalue > 1e-3


def test_illegal_actions_have_probability_exactly_0():
    mask = jnp.array([False, True, False, True])
    d = Categorical(jnp.array([50.0, 0.0, -50.0, 1.0]), mask)
    probs = jnp.exp(Categorical(jnp.tile(d.logits, (4, 1)), mask).log_prob(jnp.arange(4)))
    assert probs[0] == probs[2] == 0.0
    close(probs.sum(), 1.0)
    close(d.entropy(), scipy.stats.entropy(np.asarray(probs)[[1, 3]]))
    assert d.mode() == 3


def test_illegal_actions_are_never_sampled():
    rng = np.random.default_rng(0)
    logits, mask = jnp.asarray(rng.normal(size=(20_000, 37)) * 5), jnp.asarray(rng.random((20_000, 37)) < 0.3)
    mask = mask.at[:, 5].set(True)
    samples = jax.jit(lambda d, key: d.sample(key))(Categorical(logits, mask), keys(20_000))
    assert np.all(np.take_along_axis(mask, samples[:, None], axis=1))


def test_one_legal_action_is_certain():
    d = Categorical(jnp.array([[3.0, -40.0, 9.0]]), jnp.array([[False, True, False]]))
    assert d.sample(keys(1)) == d.mode() == 1
    assert d.entropy() == d.log_prob(jnp.array([1])) == 0.0
    gradient = jax.grad(lambda logits: Categorical(logits, d.mask).entropy().sum())(d.logits)
    np.testing.assert_array_equal(gradient, 0)


def test_no_legal_action_gives_finite_numbers():
    # The reset row of a finished game: its action is ignored, but NaN would spread from it.
    d = Categorical(jnp.array([3.0, -40.0, 9.0]), jnp.zeros(3, bool))
    close(d.entropy(), np.log(3))
    multi = MultiCategorical(jnp.arange(5.0), (3, 2), jnp.zeros(5, bool))
    close(multi.entropy(), np.log(6))
    rows = jax.tree.map(lambda x: jnp.broadcast_to(x, (1000, *x.shape)), multi)
    assert np.all(np.asarray(rows.sample(keys(1000))) < [3, 2])


def test_large_logits_do_not_overflow():
    d = Categorical(jnp.array([1e4, -1e4, 0.0]))
    assert d.entropy() == 0.0
    assert np.all(np.isfinite(jax.grad(lambda x: Categorical(x).log_prob(jnp.array(1)))(d.logits)))


# MultiCategorical


def test_multi_categorical_is_independent_categoricals():
    rng = np.random.default_rng(1)
    logits, other = (jnp.asarray(rng.normal(size=(2, 9)), jnp.float32) for _ in range(2))
    mask = jnp.ones((2, 9), bool).at[0, 3].set(False)
    d, q = MultiCategorical(logits, (2, 4, 3), mask), MultiCategorical(other, (2, 4, 3), mask)
    edges = [slice(0, 2), slice(2, 6), slice(6, 9)]
    parts = [Categorical(logits[:, e], mask[:, e]) for e in edges]
    action = jnp.array([[1, 3, 0], [0, 1, 2]])
    close(d.log_prob(action), sum(part.log_prob(action[:, i]) for i, part in enumerate(parts)))
    close(d.entropy(), sum(part.entropy() for part in parts))
    close(d.kl(q), sum(part.kl(Categorical(other[:, e], mask[:, e])) for part, e in zip(parts, edges, strict=True)))
    np.testing.assert_array_equal(d.mode(), np.stack([part.mode() for part in parts], axis=-1))


def test_multi_categorical_probabilities_sum_to_1_and_samples_follow_them():
    nvec = (2, 3)
    logits = jnp.array([0.5, -0.5, 1.0, 0.0, -1.0])
    actions = jnp.array([(i, j) for i in range(2) for j in range(3)])
    probs = np.exp(np.float64(MultiCategorical(jnp.tile(logits, (6, 1)), nvec).log_prob(actions)))
    close(probs.sum(), 1.0)
    samples = np.asarray(MultiCategorical(jnp.tile(logits, (30_000, 1)), nvec).sample(keys(30_000)))
    counts = np.bincount(samples[:, 0] * 3 + samples[:, 1], minlength=6)
    assert scipy.stats.chisquare(counts, 30_000 * probs / probs.sum()).pvalue > 1e-3


# DiagonalGaussian


def test_gaussian_agrees_with_scipy():
    mean, std, x = np.array([0.5, -3.0]), np.array([0.1, 20.0]), np.array([0.55, 4.0])
    d = DiagonalGaussian(jnp.asarray(mean), jnp.log(jnp.asarray(std)))
    close(d.log_prob(jnp.asarray(x)), scipy.stats.norm(mean, std).logpdf(x).sum())
    close(d.entropy(), scipy.stats.norm(mean, std).entropy().sum())
    close(d.mode(), mean)


def test_gaussian_samples_fit():
    d = DiagonalGaussian(jnp.full((10_000, 1), 2.0), jnp.log(jnp.array([3.0])))
    assert scipy.stats.kstest(np.asarray(d.sample(keys(10_000)))[:, 0], scipy.stats.norm(2, 3).cdf).pvalue > 1e-3


def test_gaussian_kl_keeps_its_digits_where_both_are_nearly_equal():
    p, q = (DiagonalGaussian(jnp.zeros(1), jnp.full(1, x)) for x in (0.0, 1e-3))
    close(p.kl(q), 0.5 * np.expm1(-2e-3) + 1e-3, rtol=1e-3, atol=0)


# TanhGaussian


def tanh_gaussian(mean, std, points=None):
    shape = (1,) if points is None else (points, 1)
    return TanhGaussian(jnp.full(shape, float(mean)), jnp.full(shape, float(np.log(std))), LOW, HIGH)


def exact_log_prob(u, mean, std):
    """At the action that u is squashed to, in float64."""
    slope = np.log(5.0 / 2) + 2 * (np.log(2) - np.logaddexp(u, -u))
    return scipy.stats.norm(mean, std).logpdf(u) - slope


@pytest.mark.parametrize(("mean", "std"), [(0, 0.5), (1.0, 0.3), (-2.0, 0.7), (0.3, 1.0)])
def test_tanh_gaussian_integrates_to_1_and_to_its_entropy(mean, std):
    edges = np.linspace(-2, 3, 200_001)
    middles = (edges[1:] + edges[:-1]) / 2
    log_prob = np.asarray(tanh_gaussian(mean, std, 200_000).log_prob(middles[:, None]), np.float64)
    density = np.exp(log_prob) * (edges[1] - edges[0])
    close(density.sum(), 1.0, rtol=1e-4)
    close(-np.sum(density * log_prob), tanh_gaussian(mean, std).entropy(), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("mean", "std", "error"), [(0, 1e-4, 1e-5), (1.5, 0.5, 1e-5), (-6, 1, 1e-5), (0, 2, 1e-5), (1, np.exp(2), 2e-2)]
)
def test_tanh_gaussian_entropy_is_as_exact_as_promised(mean, std, error):
    z = np.linspace(-12, 12, 200_001)
    weight = scipy.stats.norm.pdf(z) * (z[1] - z[0])
    exact = -np.sum(weight * exact_log_prob(mean + std * z, mean, std))
    assert abs(tanh_gaussian(mean, std).entropy() - exact) < error


def test_tanh_gaussian_log_prob_is_exact_inside_and_near_the_bounds():
    u = np.linspace(-6, 6, 49)
    action = np.float32(0.5 + 2.5 * np.tanh(u))
    recovered = np.arctanh(np.clip((action.astype(np.float64) - 0.5) / 2.5, -1 + 1e-12, 1 - 1e-12))
    d = tanh_gaussian(0.2, 1.5, len(u))
    close(d.log_prob(jnp.asarray(action)[:, None]), exact_log_prob(recovered, 0.2, 1.5), rtol=1e-4)
    close(d.log_prob(jnp.asarray(action)[:, None]), exact_log_prob(u, 0.2, 1.5), rtol=0, atol=2e-2)


def test_tanh_gaussian_next_to_a_bound_at_0_loses_nothing():
    u = np.linspace(-8.5, 0, 30)
    d = TanhGaussian(jnp.full((30, 1), -5.0), jnp.zeros((30, 1)), (0.0,), (1.0,))
    action = np.float32(1 / (1 + np.exp(-2 * u)))
    exact = scipy.stats.norm(-5, 1).logpdf(u) - np.log(0.5) - 2 * (np.log(2) - np.logaddexp(u, -u))
    close(d.log_prob(action[:, None]), exact, rtol=1e-5, atol=1e-5)


def test_tanh_gaussian_on_its_bounds_is_finite_with_its_gradients():
    d = TanhGaussian(jnp.zeros((2, 1)), jnp.zeros((2, 1)), LOW, HIGH)
    bounds = jnp.array([[-2.0], [3.0]])
    assert np.all(np.isfinite(d.log_prob(bounds)))
    by_parameters = jax.grad(lambda d: d.log_prob(bounds).sum())(d)
    by_action = jax.grad(lambda action: d.log_prob(action).sum())(bounds)
    assert all(np.all(np.isfinite(x)) for x in jax.tree.leaves((by_parameters, by_action)))


def test_tanh_gaussian_samples_stay_in_bounds_and_fit():
    d = tanh_gaussian(0.4, 1.2, 10_000)
    samples = np.asarray(d.sample(keys(10_000)), np.float64)[:, 0]
    squashed = scipy.stats.norm(0.4, 1.2)
    assert scipy.stats.kstest(samples, lambda a: squashed.cdf(np.arctanh((a - 0.5) / 2.5))).pvalue > 1e-3
    wild = tanh_gaussian(0, 1e6, 1000).sample(keys(1000))
    assert np.all(wild >= -2)
    assert np.all(wild <= 3)


# From an action's spec


BOX = specs.Box((2, 3), (-1.0,) * 6, (2.0,) * 6)


def test_every_action_spec_has_its_distribution():
    assert num_outputs(specs.Discrete(5)) == num_outputs(specs.MultiDiscrete((3, 2))) == 5
    assert (num_outputs(BOX), num_outputs(BOX, std_by_network=True)) == (6, 12)
    assert isinstance(make(specs.Discrete(5), jnp.zeros((2, 5))), Categorical)
    assert isinstance(make(specs.MultiDiscrete((3, 2)), jnp.zeros((2, 5))), MultiCategorical)
    assert isinstance(make(BOX, jnp.zeros((2, 6)), jnp.zeros(6)), DiagonalGaussian)
    assert isinstance(make(BOX, jnp.zeros((2, 6)), jnp.zeros(6), squash=True), TanhGaussian)


def test_a_mask_reaches_the_distribution():
    mask = jnp.array([[False, True]])
    assert make(specs.Discrete(2), jnp.zeros((1, 2)), mask=mask).entropy() == 0.0
    assert make(specs.MultiDiscrete((1, 1)), jnp.zeros((1, 2)), mask=mask).entropy() == 0.0


def test_without_log_std_the_outputs_hold_it_within_limits():
    outputs = jnp.concatenate([jnp.ones((4, 6)), jnp.full((4, 6), 100.0)], axis=-1)
    d = make(BOX, outputs, squash=True)
    assert isinstance(d, TanhGaussian)
    close(d.mean, np.ones((4, 6)))
    close(d.log_std, np.full((4, 6), 2.0))


@pytest.mark.parametrize("squash", [False, True])
def test_box_actions_have_the_boxs_shape(squash):
    for shape in [(), (1,), (2, 3)]:
        box = specs.Box(shape, (-1.0,) * int(np.prod(shape)), (1.0,) * int(np.prod(shape)))
        d = make(box, jnp.zeros((7, 4, box.size)), jnp.zeros(box.size), squash=squash)
        action = d.sample(keys(7, 4))
        assert action.shape == d.mode().shape == (7, 4, *shape)
        assert d.log_prob(action).shape == d.entropy().shape == (7, 4)


def test_half_precision_outputs_give_full_precision_probabilities():
    d = make(specs.Discrete(3), jnp.zeros((1, 3), jnp.bfloat16))
    assert d.entropy().dtype == jnp.float32


def test_squashing_without_bounds_is_refused():
    box = specs.Box((1,), (0.0,), (float("inf"),))
    with pytest.raises(ConfigError, match="squash = True: the actions must have finite bounds"):
        make(box, jnp.zeros((1, 1)), jnp.zeros(1), squash=True)


def test_outputs_of_the_wrong_size_are_refused():
    with pytest.raises(ValueError, match="last axis must be 12"):
        make(BOX, jnp.zeros((1, 6)))
    with pytest.raises(ValueError, match="a mask of legal actions has no meaning"):
        make(BOX, jnp.zeros((1, 12)), mask=jnp.ones((1, 6), bool))
