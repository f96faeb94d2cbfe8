"""KL estimates against an exact categorical, entropy, value loss."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sepo_jax import losses

LOGITS = jnp.array([0.3, -0.8, 1.1])
REFERENCE = jax.nn.log_softmax(jnp.array([-0.5, 0.4, 0.2]))


def exact_kl(logits):
    logp = jax.nn.log_softmax(logits)
    return jnp.sum(jnp.exp(logp) * (logp - REFERENCE))


def reversed_kl(logits):
    return jnp.sum(jnp.exp(REFERENCE) * (REFERENCE - jax.nn.log_softmax(logits)))


def expectation(kind, logits=LOGITS):
    """Expected value and expected gradient of an estimate over the policy's own samples."""
    probabilities = jax.nn.softmax(LOGITS)

    def loss(logits):
        estimate = losses.kl_estimate(jax.nn.log_softmax(logits), REFERENCE, kind)
        return jnp.sum(probabilities * estimate)

    return jax.value_and_grad(loss)(logits)


@pytest.mark.parametrize(
    ("logp", "reference", "k1", "k2", "k3"),
    [
        # k3 = exp(-d) - 1 + d: exp(-1) = .367879, e - 2 = .718282, exp(9) - 10 = 8093.084.
        (-1.0, -2.0, 1.0, 0.5, 0.367879),
        (-2.0, -1.0, -1.0, 0.5, 0.718282),
        (-1.3, -1.3, 0.0, 0.0, 0.0),
        (-10.0, -1.0, -9.0, 40.5, 8093.084),
        (-1.0, -10.0, 9.0, 40.5, 8.000123),
    ],
)
def test_estimates_numbers(logp, reference, k1, k2, k3):  # A08, A21
    expected = {"k1": k1, "k2": k2, "k3": k3, "k1_clamped": max(k1, 0.0), "unbiased": k3}
    for kind in losses.KL_KINDS:
        got = losses.kl_estimate(jnp.float32(logp), jnp.float32(reference), kind)
        np.testing.assert_allclose(got, expected[kind], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("difference", [-2.0, -0.1, 0.7, 3.0])
def test_gradients_against_closed_form(difference):
    expected = {
        "k1": 1.0,
        "k2": difference,
        "k3": 1 - np.exp(-difference),
        "k1_clamped": float(difference > 0),
        "unbiased": difference,
    }
    for kind in losses.KL_KINDS:
        gradient = jax.grad(lambda x, kind=kind: losses.kl_estimate(x, jnp.float32(0.0), kind))
        np.testing.assert_allclose(gradient(difference), expected[kind], rtol=1e-6)


def test_reference_carries_no_gradient():
    for kind in losses.KL_KINDS:
        gradient = jax.grad(lambda x, kind=kind: losses.kl_estimate(jnp.float32(-1), x, kind))
        assert gradient(-0.3) == 0


def test_bias_of_values_by_enumeration():  # A21
    exact = exact_kl(LOGITS)
    for kind in ("k1", "k3", "unbiased"):
        np.testing.assert_allclose(expectation(kind)[0], exact, atol=1e-6)
    assert expectation("k1_clamped")[0] > exact + 0.01
    assert abs(expectation("k2")[0] - exact) > 0.01


def test_bias_of_gradients_by_enumeration():  # A21
    wanted = jax.grad(exact_kl)(LOGITS)
    for kind in ("k2", "unbiased"):
        np.testing.assert_allclose(expectation(kind)[1], wanted, atol=1e-6)
    np.testing.assert_allclose(expectation("k1")[1], np.zeros(3), atol=1e-6)
    np.testing.assert_allclose(expectation("k3")[1], jax.grad(reversed_kl)(LOGITS), atol=1e-6)
    for kind in ("k1", "k3", "k1_clamped"):
        assert np.abs(expectation(kind)[1] - wanted).max() > 0.01


def test_k1_in_the_reward_gives_the_exact_gradient():  # A21
    # In the reward the estimate is a constant: sum_a pi(a) k1(a) grad log pi(a).
    def in_reward(kind):
        def loss(logits):
            logp = jax.nn.log_softmax(logits)
            estimate = jax.lax.stop_gradient(losses.kl_estimate(logp, REFERENCE, kind))
            return jnp.sum(jax.nn.softmax(LOGITS) * estimate * logp)

        return jax.grad(loss)(LOGITS)

    wanted = jax.grad(exact_kl)(LOGITS)
    np.testing.assert_allclose(in_reward("k1"), wanted, atol=1e-6)
    assert np.abs(in_reward("k3") - wanted).max() > 0.01


@pytest.mark.parametrize("kind", losses.KL_KINDS)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize(("logp", "reference"), [(-200.0, -1.0), (-1.0, -200.0), (0.0, 0.0)])
def test_estimates_are_finite_float32_with_finite_gradient(kind, dtype, logp, reference):  # A08
    value, gradient = jax.value_and_grad(
        lambda x: losses.kl_estimate(x, jnp.array(reference, dtype), kind)
    )(jnp.array(logp, dtype))
    assert value.dtype == jnp.float32
    assert jnp.isfinite(value) and jnp.isfinite(gradient)


def test_k3_beyond_its_bound_is_constant_and_never_pushes_the_wrong_way():  # A08
    def gradient(logp):
        return jax.grad(lambda x: losses.kl_estimate(x, jnp.float32(0), "k3"))(logp)

    assert gradient(-19.0) < 0  # the policy is too low there: descent raises it
    assert gradient(-25.0) == 0
    np.testing.assert_allclose(gradient(25.0), 1.0)


def test_nan_stays_visible_in_estimates():
    for kind in losses.KL_KINDS:
        assert jnp.isnan(losses.kl_estimate(jnp.float32(jnp.nan), jnp.float32(0), kind))


def test_unknown_estimate_is_named():
    with pytest.raises(ValueError, match=r"'k4'.*Allowed: k1, k1_clamped, k2, k3, unbiased"):
        losses.kl_estimate(jnp.zeros(1), jnp.zeros(1), "k4")


@pytest.mark.parametrize("size", [1, 2, 7])
def test_entropy_of_the_uniform_policy_is_the_logarithm_of_its_size(size):
    np.testing.assert_allclose(
        losses.entropy_from_logits(jnp.full((size,), 3.0)), np.log(size), atol=1e-6
    )


def test_masked_entropy_is_that_of_the_legal_entries_alone():
    logits = jnp.array([1.0, jnp.inf, -0.5, jnp.nan, 2.0])
    legal = jnp.array([True, False, True, False, True])
    got, gradient = jax.value_and_grad(losses.entropy_from_logits)(logits, legal)
    sliced, expected = jax.value_and_grad(losses.entropy_from_logits)(logits[legal])
    np.testing.assert_allclose(got, sliced, rtol=1e-6)
    np.testing.assert_allclose(gradient[legal], expected, rtol=1e-5)
    assert not gradient[~legal].any()


def test_entropy_gradient_against_closed_form():
    # dH/dz_i = -p_i (log p_i + H).
    logp = jax.nn.log_softmax(LOGITS)
    entropy, gradient = jax.value_and_grad(losses.entropy_from_logits)(LOGITS)
    np.testing.assert_allclose(entropy, -jnp.sum(jnp.exp(logp) * logp), rtol=1e-6)
    np.testing.assert_allclose(gradient, -jnp.exp(logp) * (logp + entropy), atol=1e-6)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_entropy_and_gradient_are_finite_with_masked_actions(dtype):  # A22
    rows = jnp.array(
        [
            [0.5, -jnp.inf, 1.0],  # one action masked by its logit
            [-jnp.inf, 4.0, -jnp.inf],  # all but one
            [-jnp.inf, -jnp.inf, -jnp.inf],  # all
            [1e4, -1e4, 0.0],  # probabilities that underflow
        ],
        dtype,
    )
    for legal in (None, jnp.array([[True, True, False]] * 4), jnp.zeros((4, 3), bool)):
        entropy = losses.entropy_from_logits(rows, legal)
        gradient = jax.grad(lambda x, legal=legal: losses.entropy_from_logits(x, legal).sum())(rows)
        assert entropy.dtype == jnp.float32 and jnp.isfinite(entropy).all()
        assert jnp.isfinite(gradient).all()
        assert not entropy[1:].any()


def test_nan_among_the_legal_logits_stays_visible():
    assert jnp.isnan(losses.entropy_from_logits(jnp.array([0.0, jnp.nan])))


# Value, old value, target, clip, loss, gradient.
VALUE = [
    (3.0, 1.0, 2.0, None, 0.5, 1.0),  # half the square, gradient v - target
    (1.5, 1.4, 3.0, 0.2, 1.125, -1.5),  # inside the clip: the plain loss
    (2.5, 1.0, 2.0, 0.5, 0.125, 0.5),  # clipped to 1.5, of equal error: see below
    (3.0, 1.0, 4.0, 0.5, 3.125, 0.0),  # moved far towards the target: stopped at 1.5
    (3.0, 1.0, 1.2, 0.5, 1.62, 1.8),  # moved past the target: the plain loss brings it back
]


@pytest.mark.parametrize(("value", "old", "target", "clip", "loss", "gradient"), VALUE)
def test_value_loss_and_gradient_against_closed_form(value, old, target, clip, loss, gradient):
    got = jax.value_and_grad(
        lambda v: losses.value_loss(v, jnp.float32(old), jnp.float32(target), clip)
    )
    got_loss, got_gradient = got(value)
    np.testing.assert_allclose(got_loss, loss, rtol=1e-6)
    if (value, clip) == (2.5, 0.5):  # a tie of the maximum: half of each branch's gradient
        gradient = gradient / 2
    np.testing.assert_allclose(got_gradient, gradient, rtol=1e-6)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_value_loss_is_float32_and_finite_far_away(dtype):
    value, gradient = jax.value_and_grad(
        lambda v: losses.value_loss(v, jnp.array(0, dtype), jnp.array(-1e4, dtype), clip=0.2)
    )(jnp.array(1e4, dtype))
    assert value.dtype == jnp.float32 and jnp.isfinite(value) and jnp.isfinite(gradient)


def test_value_clip_must_be_positive():
    with pytest.raises(ValueError, match="clip is 0"):
        losses.value_loss(jnp.zeros(1), jnp.zeros(1), jnp.zeros(1), clip=0)


def test_shapes_must_agree():
    with pytest.raises(AssertionError):
        losses.kl_estimate(jnp.zeros((2, 1)), jnp.zeros(2))
    with pytest.raises(AssertionError):
        losses.value_loss(jnp.zeros(2), jnp.zeros(2), jnp.zeros(1))
    with pytest.raises(AssertionError):
        losses.entropy_from_logits(jnp.zeros((2, 3)), jnp.ones(3, bool))
