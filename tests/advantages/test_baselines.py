"""Comparison within groups: known numbers, exact zeros, missing rewards, ids in any order."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sepo_jax import advantages

NAN = float("nan")
# Under jit, because a compiled baseline is what every test calls many times.
BASELINES = {
    "mean": jax.jit(advantages.group_mean),
    "population": jax.jit(functools.partial(advantages.group_mean, scale="population")),
    "sample": jax.jit(functools.partial(advantages.group_mean, scale="sample")),
    "leave_one_out": jax.jit(advantages.leave_one_out),
}


def units(returns, group=None, mask=None):
    returns = jnp.array(returns, jnp.float32)
    group = jnp.zeros(returns.shape, jnp.int32) if group is None else jnp.array(group, jnp.int32)
    mask = jnp.ones(returns.shape, bool) if mask is None else jnp.array(mask, bool)
    return returns, group, mask


@pytest.mark.parametrize("name", BASELINES)
def test_advantages_of_a_group_add_up_to_zero(name):
    advantage = BASELINES[name](*units([0.3, 1.7, -2.0, 5.5, 5.5], [0, 0, 0, 1, 1]))
    np.testing.assert_allclose(advantage[:3].sum(), 0, atol=1e-6)
    np.testing.assert_array_equal(advantage[3:], [0, 0])


@pytest.mark.parametrize("name", BASELINES)
def test_a_constant_added_to_every_return_cancels(name):
    # Exactly, because these values and their sums are float32 numbers.
    returns, group, mask = units([0.25, 1.5, -2.0, 3.0])
    one, other = BASELINES[name](returns, group, mask), BASELINES[name](returns + 8, group, mask)
    np.testing.assert_array_equal(one, other)


def test_leave_one_out_is_the_return_minus_the_mean_of_the_others():
    returns, group, mask = units([1.0, 4.0, -2.0, 0.5], [0, 0, 0, 1])
    want = [1 - 1, 4 - (-0.5), -2 - 2.5, 0]
    np.testing.assert_allclose(
        advantages.leave_one_out(returns, group, mask), want, rtol=1e-6, atol=1e-6
    )


@pytest.mark.parametrize(
    ("name", "high", "low"),
    [
        # Rewards 1, 1, 1, 0, 0, 0, 0, 0; mean .375, sample std .517549, population std .484123.
        ("mean", 0.625, -0.375),
        ("leave_one_out", 0.714286, -0.428571),
        ("sample", 1.207612, -0.724567),
        ("population", 1.290992, -0.774595),
    ],
)
def test_numbers_of_a_binary_group(name, high, low):
    arguments = units([1, 1, 1, 0, 0, 0, 0, 0])
    if name in ("sample", "population"):  # the published digits have epsilon 1e-6
        got = advantages.group_mean(*arguments, scale=name, epsilon=1e-6)
    else:
        got = BASELINES[name](*arguments)
    np.testing.assert_allclose(got, [high] * 3 + [low] * 5, atol=6e-7)


@pytest.mark.parametrize(
    ("returns", "group", "expected"),
    [
        ([1, 2, 3, 4, 5, 6], [0, 0, 0, 1, 1, 1], [-1.5, 0, 1.5, -1.5, 0, 1.5]),
        ([1, 2], [0, 1], [0, 0]),
        ([1, 2], [0, 0], [-1, 1]),
    ],
)
def test_leave_one_out_numbers(returns, group, expected):
    np.testing.assert_array_equal(BASELINES["leave_one_out"](*units(returns, group)), expected)


def test_small_spreads_keep_their_digits():
    # Half the gap over the sample std (gap / sqrt 2) plus 1e-6, with a gap of 1.0014e-5 in float32:
    # 5.007e-6 / (7.081e-6 + 1e-6) = .6196, around 1 and around 2 alike.
    arguments = units([1, 1.00001, 2, 2.00001], [0, 0, 1, 1])
    got = advantages.group_mean(*arguments, scale="sample", epsilon=1e-6)
    np.testing.assert_allclose(got, [-0.6196, 0.6196] * 2, atol=1e-4)


@pytest.mark.parametrize("name", BASELINES)
@pytest.mark.parametrize("value", [0.1, 0.3, 0.35, 0.95, 1 / 3])
@pytest.mark.parametrize("size", [1, 3, 7])
def test_equal_returns_give_exactly_zero(name, value, size):  # A01
    arguments = units([value] * size)
    np.testing.assert_array_equal(BASELINES[name](*arguments), np.zeros(size))
    if name == "leave_one_out":  # fused or not
        np.testing.assert_array_equal(advantages.leave_one_out(*arguments), np.zeros(size))


@pytest.mark.parametrize("scale", ["population", "sample"])
def test_equal_returns_give_exactly_zero_without_an_epsilon(scale):
    # A centred residue of -7.5e-9 divided by a std as small would be of the order of 1.
    got = advantages.group_mean(*units([0.1] * 7), scale=scale, epsilon=0.0)
    np.testing.assert_array_equal(got, np.zeros(7))


@pytest.mark.parametrize("name", BASELINES)
def test_missing_returns_mask_their_own_unit_only(name):  # A04
    baseline = BASELINES[name]
    got = baseline(*units([1, NAN, 0, 1]))
    np.testing.assert_array_equal(got[jnp.array([0, 2, 3])], baseline(*units([1, 0, 1])))
    assert got[1] == 0
    np.testing.assert_array_equal(baseline(*units([NAN, NAN, NAN, 1])), np.zeros(4))
    np.testing.assert_array_equal(baseline(*units([NAN] * 4)), np.zeros(4))


@pytest.mark.parametrize("name", BASELINES)
@pytest.mark.parametrize("value", [1e9, NAN, float("inf")])
def test_masked_and_ungrouped_units_change_nothing(name, value):
    baseline = BASELINES[name]
    alone = baseline(*units([1, 2, 4]))
    masked = baseline(*units([1, 2, 4, value], mask=[1, 1, 1, 0]))
    ungrouped = baseline(*units([1, 2, 4, value], group=[3, 3, 3, -1]))
    np.testing.assert_array_equal(masked, [*alone, 0])
    np.testing.assert_array_equal(ungrouped, [*alone, 0])


@pytest.mark.parametrize("name", BASELINES)
@settings(deadline=None, max_examples=20)
@given(order=st.permutations(range(6)), ids=st.permutations([0, 17]))
def test_order_of_units_and_names_of_groups_do_not_matter(name, order, ids):  # A17
    returns = jnp.array([0.5, 1.0, 3.0, -1.0, -1.5, 7.0])
    group = jnp.array([ids[0]] * 3 + [ids[1]] * 3)
    mask, order = jnp.ones(6, bool), jnp.array(order)
    straight = BASELINES[name](returns, group, mask)
    moved = BASELINES[name](returns[order], group[order], mask)
    np.testing.assert_allclose(moved, straight[order], atol=1e-6)


def test_batch_normalisation_leaves_flat_groups_without_signal():  # A02
    returns, group, mask = units([1, 1, 1, 1, 0, 1, 0, 1], [0, 0, 0, 0, 1, 1, 1, 1])
    centred = advantages.group_mean(returns, group, mask)
    got = advantages.normalize_batch(centred, mask)
    # 0 four times and +-0.5 twice each: population variance 1/8.
    want = np.array([0, 0, 0, 0, -1, 1, -1, 1]) * 0.5 / np.sqrt(1 / 8)
    np.testing.assert_allclose(got, want, rtol=1e-6)
    np.testing.assert_array_equal(got[:4], np.zeros(4))


def test_batch_normalisation_whitens_when_asked():
    values, mask = jnp.array([1.0, 2.0, 6.0, NAN]), jnp.array([1, 1, 1, 0], bool)
    got = advantages.normalize_batch(values, mask, center=True)
    np.testing.assert_allclose([got[:3].mean(), got[:3].std()], [0, 1], atol=1e-6)
    assert got[3] == 0
    flat = advantages.normalize_batch(jnp.full(3, 0.1), jnp.ones(3, bool), center=True)
    np.testing.assert_array_equal(flat, np.zeros(3))


@pytest.mark.parametrize("name", BASELINES)
def test_baselines_map_over_a_leading_axis_under_jit(name):
    returns, group, mask = units([1, 2, NAN, 4], [0, 0, 1, 0])
    stacked = [jnp.stack([x, x]) for x in (returns, group, mask)]
    mapped = jax.vmap(BASELINES[name])(*stacked)
    np.testing.assert_allclose(mapped[1], BASELINES[name](returns, group, mask), rtol=1e-6)


def test_baselines_take_bfloat16():
    returns, group, mask = units([1, 2, 4])
    got = advantages.group_mean(returns.astype(jnp.bfloat16), group, mask)
    assert got.dtype == jnp.float32
    np.testing.assert_allclose(got, [-4 / 3, -1 / 3, 5 / 3], rtol=1e-6)


def test_unknown_scale_is_named():
    with pytest.raises(ValueError, match=r"scale 'populaton'. Did you mean 'population'"):
        advantages.group_mean(*units([1, 2]), scale="populaton")
