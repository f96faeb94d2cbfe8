"""Ratios: masked, guarded, of sequences, of sets."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sepo_jax import losses


def array(*values):
    return jnp.array(values, jnp.float32)


def test_ratio_of_a_policy_to_itself_is_exactly_one():
    logp = array(-0.1, -3.7, -90.0)
    log_ratio = losses.masked_log_ratio(logp, logp, jnp.ones(3, bool))
    np.testing.assert_array_equal(losses.guarded_ratio(log_ratio), np.ones(3))


@pytest.mark.parametrize("poison", [jnp.nan, jnp.inf, -jnp.inf, 1e4])
def test_masked_slots_reach_neither_value_nor_gradient(poison):  # A07, A22
    mask = jnp.array([True, False, True])
    behavior = array(-1.0, poison, -2.0)

    def total(logp):
        return losses.guarded_ratio(losses.masked_log_ratio(logp, behavior, mask)).sum()

    value, gradient = jax.value_and_grad(total)(array(-1.5, poison, -1.0))
    np.testing.assert_allclose(value, np.exp(-0.5) + 1 + np.exp(1.0), rtol=1e-6)
    np.testing.assert_allclose(gradient, [np.exp(-0.5), 0, np.exp(1.0)], rtol=1e-6)


def test_nan_at_a_counted_token_stays_visible():  # A07
    log_ratio = losses.masked_log_ratio(array(jnp.nan, -1), array(-1, -1), jnp.ones(2, bool))
    ratio = losses.guarded_ratio(log_ratio)
    assert jnp.isnan(ratio[0]) and ratio[1] == 1


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_guarded_ratio_is_bounded_on_its_input(dtype):  # A07
    inputs = jnp.array([-100, -20, -2, 0, 2, 20, 100], dtype)
    ratio = losses.guarded_ratio(inputs)
    assert ratio.dtype == jnp.float32
    np.testing.assert_allclose(ratio, np.exp([-20, -20, -2, 0, 2, 20, 20]), rtol=1e-6)
    gradient = jax.vmap(jax.grad(losses.guarded_ratio))(inputs).astype(jnp.float32)
    assert gradient[0] == 0 and gradient[-1] == 0
    np.testing.assert_allclose(gradient[2:5], np.exp([-2, 0, 2]), rtol=1e-2)


def test_sequence_ratio_numbers():
    # Log-ratios .2, -.1, .5: mean .2, exp(.2) = 1.221403; sum .6, exp(.6) = 1.822119.
    log_ratio = array(0.2, -0.1, 0.5, 7.0)
    membership, mask = jnp.ones((4, 1), bool), jnp.array([True, True, True, False])
    for normalize, expected in (("mean", 1.221403), ("sum", 1.822119)):
        whole = losses.sequence_log_ratio(log_ratio, membership, mask, normalize)
        np.testing.assert_allclose(losses.guarded_ratio(whole), [expected], rtol=1e-6)


def test_sequence_ratio_gradient_is_one_or_one_over_length():
    # Two paths share their first token; the last token is padding.
    membership = jnp.array([[1, 1], [1, 0], [0, 1], [0, 1], [1, 1]], bool)
    mask = jnp.array([1, 1, 1, 1, 0], bool)
    log_ratio = array(0.1, 0.2, 0.3, 0.4, jnp.nan)

    def path(index, normalize):
        return lambda x: losses.sequence_log_ratio(x, membership, mask, normalize)[index]

    np.testing.assert_array_equal(jax.grad(path(1, "sum"))(log_ratio), [1, 0, 1, 1, 0])
    third = np.float32(1 / 3)
    np.testing.assert_allclose(jax.grad(path(1, "mean"))(log_ratio), [third, 0, third, third, 0])


def test_sequence_without_tokens_is_zero_and_a_nan_stays_in_its_sequence():
    membership = jnp.array([[1, 0, 0], [0, 1, 0]], bool)
    result = losses.sequence_log_ratio(
        array(jnp.nan, 0.5), membership, jnp.ones(2, bool), normalize="mean"
    )
    np.testing.assert_array_equal(result, [np.nan, 0.5, 0])


def test_sequence_ratio_batches_as_vmap():
    log_ratio = jnp.arange(8, dtype=jnp.float32).reshape(2, 4)
    membership = (jnp.arange(24) % 3 > 0).reshape(2, 4, 3)
    mask = jnp.array([[1, 1, 1, 0], [1, 0, 1, 1]], bool)
    batched = losses.sequence_log_ratio(log_ratio, membership, mask)
    mapped = jax.vmap(losses.sequence_log_ratio)(log_ratio, membership, mask)
    np.testing.assert_array_equal(batched, mapped)


def members(*events):
    """Arrays for events given as (size announced, log-ratios present)."""
    event = [e for e, (_, values) in enumerate(events) for _ in values]
    size = [announced for announced, values in events for _ in values]
    values = [value for _, values in events for value in values]
    return array(*values), jnp.array(event), len(events), jnp.array(size)


def test_set_of_one_is_the_sequence_ratio_at_every_scale():
    log_ratio, event, num_events, size = members((1, [0.3]), (1, [-0.7]))
    for scale in ("sqrt", "sum", "mean"):
        result = losses.set_log_ratio(
            log_ratio, event, num_events, size, jnp.ones(2, bool), scale=scale
        )
        np.testing.assert_array_equal(result.log_ratio, log_ratio)
        assert result.complete.all()


def test_set_ratio_numbers():
    # .3 + .5 - .2 = .6 over three members: sum .6, mean .2, sqrt .6 / 1.7320508 = .3464102.
    arguments = members((3, [0.3, 0.5, -0.2]), (2, [1.0, 3.0]))
    mask = jnp.ones(5, bool)
    for scale, expected in (
        ("sum", [0.6, 4.0]),
        ("mean", [0.2, 2.0]),
        ("sqrt", [0.3464102, 2.8284271]),
    ):
        result = losses.set_log_ratio(*arguments, mask, scale=scale)
        np.testing.assert_allclose(result.log_ratio, expected, rtol=1e-6)


def test_missing_member_drops_the_event_whole():
    log_ratio, event, num_events, size = members((2, [0.3, 0.5]), (3, [0.1, 0.2]), (1, [9.0]))
    mask = jnp.array([1, 1, 1, 1, 0], bool)
    log_ratio = log_ratio.at[4].set(jnp.nan)

    def total(values):
        result = losses.set_log_ratio(values, event, num_events, size, mask)
        return result.log_ratio.sum(), result.complete

    (value, complete), gradient = jax.value_and_grad(total, has_aux=True)(log_ratio)
    np.testing.assert_array_equal(complete, [True, False, False])
    np.testing.assert_allclose(value, 0.8 / np.sqrt(2), rtol=1e-6)
    np.testing.assert_allclose(gradient, [np.sqrt(0.5)] * 2 + [0, 0, 0], rtol=1e-6)


def test_sizes_that_disagree_make_an_event_incomplete():
    event, size = jnp.array([0, 0]), jnp.array([1, 3])  # sums and means of the sizes would agree
    result = losses.set_log_ratio(array(0.1, 0.2), event, 1, size, jnp.ones(2, bool))
    assert not result.complete[0]


def test_members_of_no_event_are_ignored():
    event, size = jnp.array([-1, 0]), jnp.array([1, 1])
    result = losses.set_log_ratio(array(5.0, 0.25), event, 2, size, jnp.ones(2, bool))
    np.testing.assert_array_equal(result.log_ratio, [0.25, 0])
    np.testing.assert_array_equal(result.complete, [True, False])
    none = losses.set_log_ratio(array(5.0, 0.25), event - 1, 0, size, jnp.zeros(2, bool))
    assert none.log_ratio.shape == none.complete.shape == (0,)


@pytest.mark.parametrize("size", [1, 2, 5])
def test_sqrt_keeps_the_variance_of_independent_members(size):
    # Var(sum_j w l_j) = K w^2 Var(l): the squared weights, which are the gradient, add up to 1.
    arguments = (jnp.zeros(size, jnp.int32), 1, jnp.full(size, size), jnp.ones(size, bool))
    gradient = jax.grad(lambda x: losses.set_log_ratio(x, *arguments).log_ratio[0])(jnp.ones(size))
    np.testing.assert_allclose(jnp.sum(gradient**2), 1.0, rtol=1e-6)


def test_the_variance_of_a_set_of_independent_members_does_not_depend_on_its_size():
    # Members of 4 to 30 tokens with log-ratios of standard deviation 0.1 each: Var(l_j) = 0.17 on
    # average. 20,000 sets of each size; the interval is that of four standard errors, 4 Var
    # sqrt((kurtosis - 1) / n).
    rng, sets, variances = np.random.default_rng(0), 20_000, {}
    for size in (1, 3, 5):
        lengths = rng.integers(4, 31, (sets, size))
        members = rng.normal(0, 0.1 * np.sqrt(lengths)).astype(np.float32).reshape(-1)
        event = jnp.repeat(jnp.arange(sets), size)
        arguments = (event, sets, jnp.full(sets * size, size), jnp.ones(sets * size, bool))
        for scale in ("sqrt", "sum", "mean"):
            found = losses.set_log_ratio(jnp.array(members), *arguments, scale=scale)
            variances[scale, size] = np.var(np.asarray(found.log_ratio, np.float64))
    expected = 0.1**2 * 17  # of one member: the mean of 4 to 30 is 17
    # Members are normal given their lengths, so their kurtosis is 3 E[n^2] / E[n]^2, the largest.
    kurtosis = 3 * np.mean(np.arange(4, 31) ** 2) / 17**2
    for size in (1, 3, 5):
        for scale, factor in (("sqrt", 1.0), ("sum", size), ("mean", 1 / size)):
            error = 4 * np.sqrt((kurtosis - 1) / sets)
            assert abs(variances[scale, size] / (factor * expected) - 1) < error, (scale, size)


def test_lengths_normalise_members_before_the_set():
    arguments = members((2, [0.6, -0.2]), (1, [0.9]))
    lengths, mask = jnp.array([3, 1, 0]), jnp.ones(3, bool)
    found = losses.set_log_ratio(*arguments, mask, scale="length", lengths=lengths)
    # (0.6 / 3 - 0.2 / 1) / sqrt 2 = 0; without tokens a member is divided by 1.
    np.testing.assert_allclose(found.log_ratio, [0.0, 0.9], atol=1e-6)
    with pytest.raises(ValueError, match="give the tokens of each member"):
        losses.set_log_ratio(*arguments, mask, scale="length")


@pytest.mark.parametrize("advantage", [1.0, -0.5])
def test_event_loss_gradient_against_closed_form(advantage):
    # d loss / d l_j = -rho A / sqrt(K) where the clip does not bind.
    values, event, num_events, size = members((2, [0.05, 0.02]))

    def loss(values):
        whole = losses.set_log_ratio(values, event, num_events, size, jnp.ones(2, bool))
        return losses.clipped_surrogate(whole.log_ratio, array(advantage)).sum()

    expected = -advantage * np.exp(0.07 / np.sqrt(2)) / np.sqrt(2)
    np.testing.assert_allclose(jax.grad(loss)(values), [expected] * 2, rtol=1e-6)


@settings(deadline=None, max_examples=20)
@given(st.permutations(range(6)), st.lists(st.floats(-2, 2, width=32), min_size=6, max_size=6))
def test_order_of_members_does_not_matter(order, values):
    event, size = jnp.array([0, 0, 0, 1, 1, -1]), jnp.array([3, 3, 3, 2, 2, 1])
    mask, order = jnp.ones(6, bool), jnp.array(order)
    one = losses.set_log_ratio(array(*values), event, 2, size, mask)
    other = losses.set_log_ratio(array(*values)[order], event[order], 2, size[order], mask)
    np.testing.assert_allclose(one.log_ratio, other.log_ratio, atol=1e-6)


def test_unknown_options_are_named():
    with pytest.raises(ValueError, match=r"'means'.*'mean'"):
        losses.sequence_log_ratio(
            jnp.zeros(2), jnp.ones((2, 1), bool), jnp.ones(2, bool), normalize="means"
        )
    with pytest.raises(ValueError, match=r"scale 'squareroot'.*Allowed: length, mean, sqrt, sum"):
        losses.set_log_ratio(*members((1, [0.0])), jnp.ones(1, bool), scale="squareroot")


def test_wrong_shapes_and_types_are_refused():
    with pytest.raises(AssertionError):
        losses.masked_log_ratio(jnp.zeros(3), jnp.zeros(1), jnp.ones(3, bool))
    with pytest.raises(AssertionError):
        losses.masked_log_ratio(jnp.zeros(3), jnp.zeros(3), jnp.ones(3))
    with pytest.raises(AssertionError):
        losses.sequence_log_ratio(jnp.zeros(3), jnp.ones(3, bool), jnp.ones(3, bool))
