"""Statistics of groups: exact zero spread, missing rewards, ids in any order."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sepo_jax import advantages

NAN = float("nan")


def units(returns, group=None, mask=None):
    returns = jnp.array(returns, jnp.float32)
    group = jnp.zeros(returns.shape, jnp.int32) if group is None else jnp.array(group, jnp.int32)
    mask = jnp.ones(returns.shape, bool) if mask is None else jnp.array(mask, bool)
    return returns, group, mask


def test_statistics_of_a_known_group():
    # 1, 1, 1 and five 0: mean 3/8; population variance (3/8)(5/8) = 15/64, sample 15/56.
    statistics = advantages.group_statistics(*units([1, 1, 1, 0, 0, 0, 0, 0]))
    deviation = np.array([0.625] * 3 + [-0.375] * 5)
    expected = (8, 0.375, deviation, np.sqrt(15 / 64), np.sqrt(15 / 56), 1.0)
    for got, want in zip(statistics, expected, strict=True):
        np.testing.assert_allclose(got, np.broadcast_to(want, 8), rtol=1e-6)


@settings(deadline=None, max_examples=30)
@given(
    returns=st.lists(
        st.one_of(st.floats(-100, 100, width=32), st.just(NAN)), min_size=8, max_size=8
    ),
    group=st.lists(st.sampled_from([-1, 0, 5, 2**31 - 1]), min_size=8, max_size=8),
    mask=st.lists(st.booleans(), min_size=8, max_size=8),
)
def test_statistics_agree_with_numpy(returns, group, mask):
    statistics = advantages.group_statistics(*units(returns, group, mask))
    for unit in range(8):
        members = [
            r
            for r, g, m in zip(returns, group, mask, strict=True)
            if m and g >= 0 and g == group[unit] and not np.isnan(r)
        ]
        got = [field[unit] for field in statistics]
        if not members:
            assert not any(got)
            continue
        counts = mask[unit] and not np.isnan(returns[unit])
        deviation = returns[unit] - np.mean(members) if counts else 0.0
        sample = np.std(members, ddof=1) if len(members) > 1 else 0.0
        spread = max(members) - min(members)
        want = [len(members), np.mean(members), deviation, np.std(members), sample, spread]
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("value", [0.0, 0.1, 0.3, 0.35, 0.95, 1 / 3, -7.7, 1e6 / 3, 1e-12 / 3])
@pytest.mark.parametrize("size", [1, 3, 7])
def test_equal_returns_have_exactly_no_spread(value, size):
    statistics = advantages.group_statistics(*units([value] * size))
    assert not statistics.spread.any()
    assert not statistics.std_population.any() and not statistics.std_sample.any()
    np.testing.assert_array_equal(statistics.mean, np.full(size, value, np.float32))


@pytest.mark.parametrize("size", [1e-30, 0.3, 1.0, 1e30, 1.5e38])
def test_returns_of_any_size_have_finite_deviations(size):
    # size, 0, -size: mean 0, population std size * sqrt(2/3), sample std size. The square of 1e30
    # is beyond float32.
    statistics = advantages.group_statistics(*units([size, 0, -size]))
    np.testing.assert_allclose(statistics.mean, np.zeros(3), atol=1e-7 * size)
    np.testing.assert_allclose(statistics.std_population, [size * np.sqrt(2 / 3)] * 3, rtol=1e-6)
    np.testing.assert_allclose(statistics.std_sample, [size] * 3, rtol=1e-6)


def test_no_spread_is_decided_by_each_group_alone():  # A02
    returns, group, mask = units([1, 1, 1, 1, 0, 1, 0, 1], [3, 3, 3, 3, 9, 9, 9, 9])
    share = advantages.no_spread_fraction(returns, group, mask)
    assert share == (1.0, 2.0) and share.value == 0.5


def test_flat_group_built_from_parts_is_reported():  # A01
    parts = np.array([[1, 2], [2, 1], [1, 2], [2, 1]], np.float32)
    returns, group, mask = units(parts.sum(1))
    assert advantages.no_spread_fraction(returns, group, mask).value == 1.0
    np.testing.assert_array_equal(advantages.group_mean(returns, group, mask), np.zeros(4))


def test_fractions_of_two_batches_add_up():
    one = advantages.no_spread_fraction(*units([1, 1, 0, 1], [0, 0, 1, 1]))
    other = advantages.no_spread_fraction(*units([2, 2, 2, 3, 3, 3, 5], [0, 0, 0, 1, 1, 1, 1]))
    assert (one + other).value == 2 / 4


def test_groups_without_counted_members_are_not_groups():
    returns, group, mask = units(
        [NAN, NAN, 1, 1, 0, 1, 7], [0, 0, 1, 1, 2, 2, -1], [1, 1, 1, 1, 0, 0, 1]
    )
    assert advantages.no_spread_fraction(returns, group, mask) == (1.0, 1.0)
    empty = advantages.no_spread_fraction(returns, group, jnp.zeros(7, bool))
    assert empty.count == 0 and empty.value == 0


def test_groups_of_one_are_counted():  # A17
    # Group 4 has a second member, but its reward is missing.
    returns, group, mask = units([1, 2, 3, NAN, 5, 6], [7, 0, 4, 4, 0, -1])
    assert advantages.small_groups(returns, group, mask) == 2


@pytest.mark.parametrize("scale", advantages.SCALES)
def test_gradient_through_the_statistics_of_equal_returns_is_finite(scale):  # A22
    _, group, mask = units([0.1] * 4)

    def total(returns):
        return (advantages.group_mean(returns, group, mask, scale=scale) ** 2).sum()

    assert not jax.grad(total)(jnp.full(4, 0.1)).any()


def test_gradient_of_the_statistics_against_closed_form():
    # d mean / d r = 1/n; d std / d r_i = (r_i - mean) / (n std).
    returns, group, mask = units([1.0, 2.0, 4.0, NAN])
    statistics = advantages.group_statistics(returns, group, mask)

    def first(field):
        return jax.grad(lambda r: getattr(advantages.group_statistics(r, group, mask), field)[0])

    np.testing.assert_allclose(first("mean")(returns), [1 / 3] * 3 + [0], rtol=1e-6)
    want = (np.array([1.0, 2.0, 4.0]) - 7 / 3) / (3 * statistics.std_population[0])
    np.testing.assert_allclose(first("std_population")(returns), [*want, 0], rtol=1e-5)


def test_statistics_map_over_a_leading_axis():
    returns, group, mask = units([1, 2, NAN, 4], [0, 1, 1, 0])
    stacked = jax.vmap(advantages.group_statistics)(
        jnp.stack([returns, 2 * returns]), jnp.stack([group, 1 - group]), jnp.stack([mask, mask])
    )
    single = advantages.group_statistics(returns, group, mask)
    np.testing.assert_array_equal(stacked.mean, [single.mean, 2 * single.mean])
    np.testing.assert_array_equal(stacked.count[1], [2, 1, 1, 2])


def test_bad_input_is_refused():
    returns, group, mask = units([1, 2])
    with pytest.raises(AssertionError):
        advantages.group_statistics(returns[None], group[None], mask[None])
    with pytest.raises(AssertionError):
        advantages.group_statistics(returns, group.astype(jnp.float32), mask)
    with pytest.raises(AssertionError):
        advantages.group_statistics(returns, group, mask.astype(jnp.float32))
    with pytest.raises(AssertionError):
        advantages.group_statistics(returns, group[:1], mask)
