"""How NashConv and solutions follow the payoffs: one is Lipschitz, the other jumps."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from sepo_jax.games import solve_zero_sum
from sepo_jax.games.matrix import nash_conv

NASTY = st.one_of(
    st.floats(-1e12, 1e12),
    st.sampled_from([0.0, -0.0, 1e-300, -1e-300, 1e-9, 1.0, -1.0, 1e6, 1e6 + 1e-9, -1e12]),
)


def in_float64(payoffs, row, col):
    with jax.enable_x64(True):
        return np.asarray(nash_conv(payoffs, row, col))


@pytest.mark.parametrize("shape", [(2, 2), (3, 3), (5, 4)])
def test_nash_conv_is_2_lipschitz_on_many_games(shape):
    rng = np.random.default_rng(0)
    m, n = shape
    count = 100_000
    payoffs = rng.uniform(-1, 1, (count, m, n))
    # From tiny changes to unrelated games; strategies from even to nearly pure.
    size = 10 ** rng.uniform(-6, 0.3, (count, 1, 1))
    other = payoffs + size * np.sign(rng.uniform(-1, 1, (count, m, n)))
    row, col = (rng.dirichlet(np.full(k, 0.3), count) for k in (m, n))
    change = np.abs(in_float64(payoffs, row, col) - in_float64(other, row, col))
    bound = 2 * np.abs(payoffs - other).max(axis=(1, 2))
    assert (change <= bound + 1e-14).all()
    assert (change / bound).max() > 0.9  # the constant is no larger than it has to be


def test_no_smaller_constant_will_do():
    # Both pure best responses gain 1 after a change of 1: rows (0, -1) and (1, 0), first actions.
    changed = in_float64(np.array([[0.0, -1.0], [1.0, 0.0]]), [1, 0], [1, 0])
    assert changed - in_float64(np.zeros((2, 2)), [1, 0], [1, 0]) == 2


@settings(deadline=None, max_examples=200)
@given(
    first=arrays(np.float64, (3, 3), elements=NASTY),
    second=arrays(np.float64, (3, 3), elements=NASTY),
    weights=arrays(np.float64, (2, 3), elements=st.sampled_from([0.0, 1e-300, 1e-12, 0.1, 1.0])),
    near=st.booleans(),
)
def test_nash_conv_is_2_lipschitz_on_nasty_games(first, second, weights, near):
    if near:
        second = first * (1 + 1e-12)
    weights = weights + (weights.sum(axis=1, keepdims=True) == 0)
    row, col = weights / weights.sum(axis=1, keepdims=True)
    change = abs(in_float64(first, row, col) - in_float64(second, row, col))
    # What float64 rounds off sums of three payoffs.
    rounding = 1e-14 * max(np.abs(first).max(), np.abs(second).max())
    assert change <= 2 * np.abs(first - second).max() + rounding


@pytest.mark.parametrize("method", ["simplex", "device", "exact"])
@pytest.mark.parametrize("size", [1e-1, 1e-6, 1e-12])
def test_vertices_jump_where_nash_conv_does_not(size, method):
    # [[e, 0], [0, 0]]: above 0 only the second column is optimal, the first one loses e. Below 0
    # every column is, and the linear program ends at the first.
    above = np.array([[size, 0.0], [0.0, 0.0]])
    positive, negative = (solve_zero_sum(game, method=method) for game in (above, -above))
    assert positive.col.tolist() == [0, 1] and negative.col.tolist() == [1, 0]
    # Values and NashConv move by no more than the payoffs.
    assert positive.value == negative.value == 0
    crossed = in_float64(above, negative.row, negative.col)
    assert 0 < crossed <= 2 * np.abs(above - -above).max()


@pytest.mark.parametrize("method", ["simplex", "device", "exact"])
@pytest.mark.parametrize("size", [1e-1, 1e-6, 1e-12])
def test_no_solver_can_avoid_every_jump(size, method):
    # [[0, 0], [e, e]]: the second row alone is optimal above 0, the first row alone below.
    above = np.array([[0.0, 0.0], [size, size]])
    assert solve_zero_sum(above, method=method).row.tolist() == [0, 1]
    assert solve_zero_sum(-above, method=method).row.tolist() == [1, 0]
