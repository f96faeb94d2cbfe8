"""Matrix games: against plain numpy, masks, invariances, gradients, bad input."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matrix_games import (
    RPS,
    exact_residual,
    moved_games,
    plain_gains,
    random_game,
    rounding,
)

from sepo_jax.games import matrix
from sepo_jax.games.matrix import bimatrix_gains, nash_conv

SHAPES = [(1, 1), (2, 2), (3, 5), (5, 3), (16, 16), (17, 4)]


# Identities.


@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (17, 4)])
def test_against_plain_numpy(shape):
    payoffs, rows, cols = random_game(shape, 1, (7,))
    other = random_game(shape, 2, (7,))[0]
    for a, b, x, y, gains, conv, value in zip(
        *(payoffs, other, rows, cols),
        bimatrix_gains(payoffs, other, rows, cols),
        nash_conv(payoffs, rows, cols),
        matrix.expected_value(payoffs, rows, cols),
        strict=True,
    ):
        np.testing.assert_allclose(gains, plain_gains(a, b, x, y), atol=1e-6)
        np.testing.assert_allclose(conv, (a @ y).max() - (x @ a).min(), atol=1e-6)
        np.testing.assert_allclose(value, x @ a @ y, atol=1e-6)


def test_nash_conv_is_the_sum_of_gains():
    payoffs, rows, cols = random_game((4, 6), 3, (2, 3))
    np.testing.assert_allclose(
        nash_conv(payoffs, rows, cols),
        bimatrix_gains(payoffs, -payoffs, rows, cols).sum(-1),
        atol=1e-6,
    )


@pytest.mark.parametrize("shape", [(2, 3), (15, 1)])  # padded to below and above 16
def test_masks_never_leak(shape):
    payoffs, row, col = random_game(shape, 4)
    wide = np.full((shape[0] + 2, shape[1] + 3), np.nan)
    wide[: shape[0], : shape[1]] = payoffs
    masks = (np.arange(shape[0] + 2) < shape[0], np.arange(shape[1] + 3) < shape[1])
    for junk in (np.nan, 1e30, -7.0):
        wide[shape[0] :], wide[:, shape[1] :] = junk, junk
        padded = np.append(row, [junk] * 2), np.append(col, [junk] * 3)
        np.testing.assert_allclose(
            nash_conv(wide, *padded, *masks), nash_conv(payoffs, row, col), atol=1e-6
        )
        np.testing.assert_allclose(
            bimatrix_gains(wide, -wide, *padded, *masks),
            bimatrix_gains(payoffs, -payoffs, row, col),
            atol=1e-6,
        )
        gradients = jax.grad(lambda a, x, y: nash_conv(a, x, y, *masks), (0, 1, 2))(wide, *padded)
        assert all(np.isfinite(gradient).all() for gradient in gradients)
        assert (np.asarray(gradients[0])[~np.outer(*masks)] == 0).all()


def test_masks_of_each_game():
    # One game of 2x2 and one of 3x3 in one batch.
    payoffs = np.stack([np.pad([[4.0, 1], [1, 2]], ((0, 1), (0, 1))), RPS])
    masks = np.array([[1, 1, 0], [1, 1, 1]], bool)
    rows = np.array([[0.25, 0.75, 0], [0.5, 0.25, 0.25]])
    np.testing.assert_allclose(nash_conv(payoffs, rows, rows, masks, masks), [0, 0.5], atol=1e-6)


def test_leading_axes_broadcast():
    payoffs, rows, cols = random_game((3, 4), 5, (6,))
    one = payoffs[0]
    looped = jnp.stack([nash_conv(one, x, y) for x, y in zip(rows, cols, strict=True)])
    np.testing.assert_allclose(nash_conv(one, rows, cols), looped, atol=1e-7)
    grid = nash_conv(payoffs[:, None], rows[:, None], cols[None])
    assert grid.shape == (6, 6)
    np.testing.assert_allclose(grid[2, 4], nash_conv(payoffs[2], rows[2], cols[4]), atol=1e-7)


def test_batched_equals_vmapped_and_jitted():
    payoffs, rows, cols = (array.astype(np.float32) for array in random_game((5, 5), 6, (8,)))
    batched = nash_conv(payoffs, rows, cols)
    np.testing.assert_allclose(jax.vmap(nash_conv)(payoffs, rows, cols), batched, atol=1e-6)
    np.testing.assert_allclose(jax.jit(nash_conv)(payoffs, rows, cols), batched, atol=1e-6)
    order = np.random.default_rng(0).permutation(8)
    permuted = nash_conv(payoffs[order], rows[order], cols[order])
    np.testing.assert_allclose(permuted, np.asarray(batched)[order], atol=1e-7)


def test_float64_under_x64():
    payoffs, row, col = random_game((5, 5), 7)
    assert nash_conv(payoffs, row, col).dtype == jnp.float32
    with jax.enable_x64(True):
        value = nash_conv(payoffs, row, col)
        assert value.dtype == jnp.float64
        np.testing.assert_allclose(value, (payoffs @ col).max() - (row @ payoffs).min(), rtol=1e-14)


# Gradients.


def test_gradient_in_closed_form():
    # With unique best responses i and j: d/dA = e_i yᵀ - x e_jᵀ, d/dx = -A e_j, d/dy = Aᵀ e_i.
    payoffs, row, col = random_game((3, 4), 8)
    i, j = int((payoffs @ col).argmax()), int((row @ payoffs).argmin())
    by_payoffs, by_row, by_col = jax.grad(nash_conv, (0, 1, 2))(payoffs, row, col)
    known = np.outer(np.eye(3)[i], col) - np.outer(row, np.eye(4)[j])
    np.testing.assert_allclose(by_payoffs, known, atol=1e-6)
    np.testing.assert_allclose(by_row, -payoffs[:, j], atol=1e-6)
    np.testing.assert_allclose(by_col, payoffs[i], atol=1e-6)


# Properties (papers 4.3: NashConv is 2-Lipschitz in the payoffs).


@settings(deadline=None, max_examples=50)
@given(seed=st.integers(0, 10**6), shape=st.sampled_from(SHAPES[:4]))
def test_nash_conv_is_lipschitz_in_payoffs(seed, shape):
    payoffs, row, col = random_game(shape, seed)
    other = payoffs + random_game(shape, seed + 1)[0] * 0.1
    change = abs(float(nash_conv(payoffs, row, col)) - float(nash_conv(other, row, col)))
    assert change <= 2 * np.abs(payoffs - other).max() + 1e-6


@settings(deadline=None, max_examples=50)
@given(seed=st.integers(0, 10**6), shape=st.sampled_from(SHAPES[:4]))
def test_gains_are_never_negative_and_seats_swap(seed, shape):
    payoffs, row, col = random_game(shape, seed)
    other = random_game(shape, seed + 1)[0]
    gains = np.asarray(bimatrix_gains(payoffs, other, row, col))
    assert (gains >= 0).all()
    swapped = bimatrix_gains(other.T, payoffs.T, col, row)
    np.testing.assert_allclose(swapped, gains[::-1], atol=1e-6)
    # F21: swapping seats negates the zero-sum value and leaves NashConv alone.
    np.testing.assert_allclose(
        matrix.expected_value(-payoffs.T, col, row),
        -matrix.expected_value(payoffs, row, col),
        atol=1e-6,
    )
    np.testing.assert_allclose(
        nash_conv(-payoffs.T, col, row), nash_conv(payoffs, row, col), atol=1e-6
    )


@settings(deadline=None, max_examples=150)
@given(moved_games())
def test_any_scale_and_offset(game):
    """NashConv of s A + c, as rounded: that of exact fractions; and s times that of A."""
    table, moved, row, col = game
    spread = np.ptp(moved)
    found = float(nash_conv(moved, row, col))
    assert found == pytest.approx(exact_residual(moved, row, col) * spread, abs=3e-6 * spread)
    gains = np.asarray(bimatrix_gains(moved, -moved, row, col))
    assert (gains >= 0).all() and gains.sum() == pytest.approx(found, abs=3e-6 * spread)
    assert float(matrix.exploitability(moved, row, col)) == pytest.approx(found / 2, rel=1e-6)
    if (loose := rounding(table, moved)) < 0.1:
        assert found / spread == pytest.approx(exact_residual(table, row, col), abs=loose + 3e-6)


# F05 and F21 whatever the unit: neither an offset nor other games of a batch hide a difference.
@pytest.mark.parametrize(
    ("scale", "offset"), [(1, 0), (1e-9, 0), (1e12, 0), (1e-4, 1e6), (1e-3, -1e6), (1, 1e12)]
)
def test_sums_and_seats_are_compared_in_units_of_the_game(scale, offset):
    dilemma = np.array([[5, 0], [10, 1]])
    first, second = scale * dilemma + offset, scale * dilemma.T + offset
    matrix.require_symmetric(first, second)
    with pytest.raises(ValueError, match="general-sum"):
        matrix.constant_sum(first, second)
    with pytest.raises(ValueError, match="not symmetric"):
        matrix.require_symmetric(first, offset - scale * dilemma)
    rock = scale * RPS + offset
    matrix.require_symmetric(rock, 2 * offset - rock)
    assert matrix.constant_sum(rock, offset / 2 - rock) == pytest.approx(offset / 2, abs=1e-3)
    if offset == 0:
        huge, small = 1e15 * RPS * scale, scale * np.pad(dilemma, (0, 1))
        with pytest.raises(ValueError, match=r"not symmetric: at row 0, column 0"):
            matrix.require_symmetric(np.stack([huge, small]))
        with pytest.raises(ValueError, match="general-sum"):
            matrix.constant_sum(np.stack([huge, small]), np.stack([-huge, small.T]))


def test_padding_is_no_part_of_the_comparison():
    mask = np.array([True, True, True, False])
    padded = np.pad(RPS + 1e6, (0, 1), constant_values=np.nan)
    matrix.require_symmetric(padded, 2e6 - padded, mask)
    padded[0, 1] += 1e-3
    with pytest.raises(ValueError, match="row 1, column 0"):
        matrix.require_symmetric(padded, np.pad(1e6 - RPS, (0, 1)), mask)


# Bad input.


@pytest.mark.parametrize(
    ("payoffs", "row", "col"), [((3, 3), (2,), (3,)), ((3, 3), (3,), (4,)), ((3,), (3,), (3,))]
)
def test_shapes_that_do_not_fit_are_named(payoffs, row, col):
    with pytest.raises(ValueError, match=f"payoffs .*{payoffs[0]}.*row .*{row[0]}.*col .*{col[0]}"):
        nash_conv(np.zeros(payoffs), np.ones(row) / row[0], np.ones(col) / col[0])
    with pytest.raises(ValueError, match="do not fit"):
        jax.jit(nash_conv)(np.zeros(payoffs), np.ones(row), np.ones(col))


def test_batches_and_masks_that_do_not_fit():
    payoffs, rows, cols = random_game((3, 3), 0, (4,))
    with pytest.raises(ValueError, match="do not fit"):
        nash_conv(payoffs, rows[:3], cols)
    with pytest.raises(ValueError, match="do not fit"):
        nash_conv(payoffs, rows, cols, np.ones(2, bool))
    with pytest.raises(ValueError, match="row_mask leaves a game without any action"):
        nash_conv(payoffs, rows, cols, np.zeros(3, bool))


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ([0.5, 0.5, np.nan], "NaN"),
        ([0.5, 0.6, -0.1], "negative"),
        ([0.5, 0.4, 0.0], "does not sum to 1"),
        ([1.0, 1.0, 1.0], "does not sum to 1"),
    ],
)
def test_bad_strategies_are_named(row, fault):
    even = np.full(3, 1 / 3)
    with pytest.raises(ValueError, match=f"row strategy.*{fault}"):
        nash_conv(RPS, np.array(row), even)
    with pytest.raises(ValueError, match=rf"col strategy \(batch member \[1\]\).*{fault}"):
        bimatrix_gains(RPS, RPS.T, even, np.stack([even, np.array(row)]))


@pytest.mark.filterwarnings("ignore:overflow")
def test_bad_payoffs_are_named():
    even = np.full(3, 1 / 3)
    with pytest.raises(ValueError, match=r"payoffs.*NaN or infinity"):
        nash_conv(np.where(np.eye(3) > 0, np.nan, RPS), even, even)
    with pytest.raises(ValueError, match=r"magnitude 1e\+200.*float32"):
        nash_conv(RPS * 1e200, even, even)


# F21: symmetry is verified, never assumed.
def test_symmetry():
    matrix.require_symmetric(RPS)
    matrix.require_symmetric([[5, 0], [10, 1]], [[5, 10], [0, 1]])
    with pytest.raises(ValueError, match="not symmetric"):
        matrix.require_symmetric([[4, 1], [1, 2]])
    with pytest.raises(ValueError, match="not symmetric"):
        matrix.require_symmetric([[3, 0], [0, 2]], [[2, 0], [0, 3]])
    with pytest.raises(ValueError, match="square"):
        matrix.require_symmetric(np.zeros((2, 3)))


# Numbers of every kind and size.


def test_large_integers_keep_their_value():
    first = [1, 0]
    for payoffs in (10**12 * np.eye(2, dtype=np.int64), [[10**12, 0], [0, 10**12]]):
        np.testing.assert_allclose(nash_conv(payoffs, first, first), 1e12, rtol=1e-6)
    assert float(nash_conv(np.eye(2, dtype=bool), first, first)) == 1


@pytest.mark.parametrize("payoffs", [np.eye(2) * 1j, jnp.eye(2) * 1j, [[10**30, 0], [0, 0]]])
def test_other_kinds_of_payoffs_are_refused(payoffs):
    with pytest.raises(ValueError, match=r"payoffs of type \w+; give real numbers"):
        nash_conv(payoffs, [1, 0], [1, 0])
    with pytest.raises(ValueError, match="payoffs of type"):
        matrix.check_profile(payoffs, [1, 0], [1, 0])


def test_complex_strategies_are_refused():
    with pytest.raises(ValueError, match="row of type complex128"):
        nash_conv(np.eye(2), np.array([1, 0j]), [1, 0])


@pytest.mark.parametrize("offset", [1e7, -1e9, 1e12])
def test_an_offset_of_all_payoffs_changes_no_gain(offset):
    # Rock against even play: nothing to gain for the row player, 1 (paper) for the column player.
    # 1e9 + 1 is no float32: only a shift before the cast can be right.
    row, col = [1, 0, 0], np.full(3, 1 / 3)
    np.testing.assert_allclose(nash_conv(offset + RPS, row, col), 1, atol=1e-6)
    gains = bimatrix_gains(offset + RPS, 5 - RPS - offset, row, col)
    np.testing.assert_allclose(gains, [0, 1], atol=1e-6)
    # Padding takes no part in the shift.
    padded = np.pad(offset + RPS, ((0, 1), (0, 2)), constant_values=np.nan)
    masks = np.arange(4) < 3, np.arange(5) < 3
    value = nash_conv(padded, [1, 0, 0, 0], np.pad(col, (0, 2)), *masks)
    np.testing.assert_allclose(value, 1, atol=1e-6)


def test_small_payoffs_beside_large_ones_keep_their_digits():
    # The column player's first action would cost 1e9; a shift to the middle would drown the 0.3.
    value = nash_conv(np.array([[0, 0], [1e9, 0.3]]), [1, 0], [0, 1])
    np.testing.assert_allclose(value, 0.3, rtol=1e-6)


@pytest.mark.parametrize("kind", [np.asarray, jnp.asarray])
def test_payoffs_that_could_overflow_are_refused(kind):
    # 3e38 is a float32, the NashConv 6e38 of this profile is not.
    payoffs = kind(np.diag(np.array([3e38, -3e38], np.float32)))
    for function in (nash_conv, matrix.expected_value):
        with pytest.raises(ValueError, match=r"magnitude 3e\+38.*float32"):
            function(payoffs, [0, 1], [1, 0])
    assert np.isfinite(nash_conv(payoffs / 4, [0, 1], [1, 0]))
    # Padding is not looked at.
    padded = kind(np.array([[1, 3e38]], np.float32))
    assert nash_conv(padded, [1], [1, 0], col_mask=[True, False]) == 0


@pytest.mark.parametrize("shape", [(0, 0), (0, 2), (2, 0)])
def test_games_without_cells_are_refused(shape):
    with pytest.raises(ValueError, match="at least 1"):
        nash_conv(np.zeros(shape), np.ones(shape[0]), np.ones(shape[1]))
