"""Surrogates: value and gradient against closed forms, on both sides of every clip."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sepo_jax import losses

SURROGATES = {
    "clipped": losses.clipped_surrogate,
    "clip_higher": functools.partial(losses.clipped_surrogate, clip_high=0.28),
    "dual_clip": functools.partial(losses.clipped_surrogate, dual_clip=3.0),
    "unclipped": functools.partial(losses.clipped_surrogate, clip_low=None, clip_high=None),
    "no_room": functools.partial(losses.clipped_surrogate, clip_low=0.0, clip_high=0.0),
    "on_policy": losses.on_policy_surrogate,
    "cispo": losses.cispo_surrogate,
    "cispo_two_sided": functools.partial(losses.cispo_surrogate, clip_low=0.2),
}


def value_and_gradient(surrogate, log_ratio, advantage):
    arguments = jnp.asarray(log_ratio, jnp.float32), jnp.asarray(advantage, jnp.float32)
    return jax.value_and_grad(lambda x, a: surrogate(x, a).sum())(*arguments)


@pytest.mark.parametrize("name", SURROGATES)
@pytest.mark.parametrize("advantage", [-2.0, 0.0, 0.5])
def test_on_policy_every_surrogate_has_the_policy_gradient(name, advantage):
    # At ratio 1 all of them are -A * grad logp, the clip of distance 0 included.
    _, gradient = value_and_gradient(SURROGATES[name], 0.0, advantage)
    assert gradient == -advantage


# Ratio, advantage, loss, gradient with respect to the log-ratio (-rho A, or 0 where it binds),
# for the interval [0.8, 1.2].
CLIPPED = [
    (1.1, 2.0, -2.2, -2.2),  # inside
    (1.1, -2.0, 2.2, 2.2),
    (1.5, 2.0, -2.4, 0.0),  # above: binds for A > 0 ...
    (1.5, -2.0, 3.0, 3.0),  # ... and not for A < 0
    (0.5, 2.0, -1.0, -1.0),  # below: does not bind for A > 0 ...
    (0.5, -2.0, 1.6, 0.0),  # ... but for A < 0
    (1.5, 0.0, 0.0, 0.0),
]


@pytest.mark.parametrize(("ratio", "advantage", "loss", "gradient"), CLIPPED)
def test_clipped_surrogate_on_each_side_of_the_clip(ratio, advantage, loss, gradient):
    got = value_and_gradient(losses.clipped_surrogate, np.log(ratio), advantage)
    np.testing.assert_allclose(got, (loss, gradient), rtol=1e-5, atol=1e-7)
    # Exactly the textbook form, min of the two products.
    clipped = np.clip(ratio, 0.8, 1.2)
    np.testing.assert_allclose(loss, -min(ratio * advantage, clipped * advantage), atol=1e-12)
    stopped = losses.clip_fraction(jnp.log(ratio), jnp.float32(advantage))
    assert stopped == float(gradient == 0 and advantage != 0)


def test_clip_higher_moves_the_upper_bound_only():
    surrogate = SURROGATES["clip_higher"]
    np.testing.assert_allclose(
        value_and_gradient(surrogate, np.log(1.25), 1.0), (-1.25, -1.25), rtol=1e-6
    )
    np.testing.assert_allclose(value_and_gradient(surrogate, np.log(1.3), 1.0), (-1.28, 0.0))
    np.testing.assert_allclose(
        value_and_gradient(surrogate, np.log(0.7), -1.0), (0.8, 0.0), rtol=1e-6
    )


@pytest.mark.parametrize("ratio", [0.1, 1.0, 7.0])
@pytest.mark.parametrize("advantage", [1.5, -1.5])
def test_without_a_clip_the_loss_is_the_plain_product(ratio, advantage):
    expected = -ratio * advantage
    got = value_and_gradient(SURROGATES["unclipped"], np.log(ratio), advantage)
    np.testing.assert_allclose(got, (expected, expected), rtol=1e-6)


def test_dual_clip_bounds_a_runaway_ratio_of_a_discouraged_token():
    dual = SURROGATES["dual_clip"]
    np.testing.assert_allclose(value_and_gradient(dual, np.log(10.0), -2.0), (6.0, 0.0), rtol=1e-6)
    np.testing.assert_allclose(value_and_gradient(dual, np.log(2.0), -2.0), (4.0, 4.0), rtol=1e-6)
    np.testing.assert_allclose(value_and_gradient(dual, np.log(0.5), -2.0), (1.6, 0.0), rtol=1e-6)
    np.testing.assert_allclose(value_and_gradient(dual, np.log(10.0), 2.0), (-2.4, 0.0), rtol=1e-6)


@pytest.mark.parametrize("ratio", [0.5, 1.1, 1.5])
@pytest.mark.parametrize("advantage", [2.0, -2.0])
def test_cispo_bounds_the_weight_and_keeps_the_gradient(ratio, advantage):
    for name, low in (("cispo", 0.0), ("cispo_two_sided", 0.8)):
        weight = np.clip(ratio, low, 1.2)
        expected = -weight * advantage * np.log(ratio), -weight * advantage
        got = value_and_gradient(SURROGATES[name], np.log(ratio), advantage)
        np.testing.assert_allclose(got, expected, rtol=1e-5)


def test_on_policy_surrogate_is_the_negative_log_likelihood_at_advantage_one():
    np.testing.assert_array_equal(
        value_and_gradient(losses.on_policy_surrogate, -3.5, 1.0), (3.5, -1)
    )


@pytest.mark.parametrize("name", SURROGATES)
def test_advantages_carry_no_gradient(name):
    gradient = jax.grad(lambda a: SURROGATES[name](jnp.float32(0.1), a))(jnp.float32(1.0))
    assert gradient == 0


@pytest.mark.parametrize("name", SURROGATES)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("gap", [-100.0, 100.0])
@pytest.mark.parametrize("advantage", [0.0, 1.0, -1.0])
def test_extreme_log_ratios_stay_finite(name, dtype, gap, advantage):  # A07
    mask = jnp.ones(1, bool)
    behavior = jnp.array([0.0], dtype)

    def loss(logp):
        log_ratio = losses.masked_log_ratio(logp, behavior, mask)
        return SURROGATES[name](log_ratio, jnp.array([advantage], dtype))[0]

    value, gradient = jax.value_and_grad(loss)(jnp.array([gap], dtype))
    assert value.dtype == jnp.float32
    assert jnp.isfinite(value) and jnp.isfinite(gradient).all()
    if advantage == 0:
        assert value == 0 and gradient[0] == 0


@pytest.mark.parametrize("name", SURROGATES)
def test_nan_stays_visible(name):  # A07
    assert jnp.isnan(SURROGATES[name](jnp.float32(jnp.nan), jnp.float32(1.0)))
    assert jnp.isnan(SURROGATES[name](jnp.float32(0.1), jnp.float32(jnp.nan)))


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.floats(-3, 3, width=32), min_size=8, max_size=8),
    st.lists(st.sampled_from([-1.5, 0.0, 1.0]), min_size=8, max_size=8),
)
def test_clip_fraction_counts_exactly_the_stopped_gradients(log_ratio, advantage):
    log_ratio, advantage = jnp.array(log_ratio), jnp.array(advantage)
    gradient = jax.grad(lambda x: losses.clipped_surrogate(x, advantage).sum())(log_ratio)
    stopped = losses.clip_fraction(log_ratio, advantage)
    np.testing.assert_array_equal(stopped == 1, (gradient == 0) & (advantage != 0))


@pytest.mark.parametrize("name", SURROGATES)
def test_surrogates_are_elementwise(name):
    log_ratio = jnp.linspace(-1, 1, 6).reshape(2, 3)
    advantage = jnp.array([[1.0, -1.0, 0.5], [-2.0, 0.0, 3.0]])
    whole = SURROGATES[name](log_ratio, advantage)
    mapped = jax.jit(jax.vmap(jax.vmap(SURROGATES[name])))(log_ratio, advantage)
    np.testing.assert_allclose(whole, mapped, rtol=1e-6)


def test_off_policy_mask_numbers():
    # Threshold 1; the gap is behaviour minus trained, mean per token; padding holds +-10000.
    mask = jnp.array([[1, 1, 0]] * 3, bool)
    behavior = jnp.array([[-1.0, -1, 10000], [-1, -1, -10000], [-1, -1, 10000]])
    logp = jnp.array([[-3.0, -3, -10000], [-1.5, -1.5, 10000], [-3, -3, 10000]])
    log_ratio = losses.masked_log_ratio(logp, behavior, mask)
    whole = losses.sequence_log_ratio(log_ratio, jnp.ones((3, 3, 1), bool), mask, "mean")[:, 0]
    keep = losses.off_policy_mask(whole, jnp.array([1.0, -1.0, -1.0]), threshold=1.0)
    np.testing.assert_array_equal(keep, [True, True, False])


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_importance_weight_is_a_constant_between_zero_and_its_cap(dtype):  # A11
    trainer = jnp.array([-1.0, -0.5, -200.0, 0.0], dtype)
    sampler = jnp.array([-1.0, -1.0, 0.0, -200.0], dtype)
    weight = losses.truncated_importance_weight(trainer, sampler, cap=2.0)
    np.testing.assert_allclose(weight, [1, np.exp(0.5), 0, 2], atol=1e-8, rtol=1e-6)
    gradient = jax.grad(lambda x: losses.truncated_importance_weight(x, sampler, cap=2.0).sum())(
        trainer
    )
    assert not gradient.any()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: losses.clipped_surrogate(x, x, clip_low=-0.2), "clip_low is -0.2"),
        (lambda x: losses.cispo_surrogate(x, x, clip_high=-1), "clip_high is -1"),
        (lambda x: losses.clipped_surrogate(x, x, dual_clip=0.9), "dual_clip is 0.9"),
        (lambda x: losses.on_policy_surrogate(x, x, clip_high=0.2), "no ratio to clip"),
        (lambda x: losses.truncated_importance_weight(x, x, cap=0), "cap is 0"),
    ],
)
def test_bad_options_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call(jnp.zeros(3))


@pytest.mark.parametrize("name", SURROGATES)
def test_shapes_must_agree(name):
    with pytest.raises(AssertionError):
        SURROGATES[name](jnp.zeros((2, 3)), jnp.zeros(3))
