"""Zero-sum solver: known games, invariances, exact arithmetic, bad input."""

from fractions import Fraction

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matrix_games import exact_residual, moved_games, rounding
from zero_sum_games import KNOWN, NASHPY_39, RPS, THIRD, check, nashpy_60

from sepo_jax.games import generate, matrix, solve, solve_exact, solve_zero_sum


@pytest.mark.parametrize("method", ["simplex", "exact"])
@pytest.mark.parametrize("name", KNOWN)
def test_known_games(name, method):
    payoffs, value, row, col = KNOWN[name]
    equilibrium = solve_zero_sum(payoffs, method=method)
    check(payoffs, equilibrium)
    scale = max(1, np.abs(payoffs).max())
    np.testing.assert_allclose(equilibrium.value, value, atol=1e-9 * scale)
    for found, known in ((equilibrium.row, row), (equilibrium.col, col)):
        if known is not None:
            np.testing.assert_allclose(found, known, atol=1e-9)
    assert bool(equilibrium.exact) == (method == "exact")


def test_duplicated_rows_share_their_probability():
    assert solve_zero_sum(KNOWN["duplicate row"][0]).row[:2].sum() == pytest.approx(1 / 2)


@pytest.mark.parametrize("name", ["Nashpy 41", "Nashpy 39"])
def test_listed_solutions_of_degenerate_games_have_no_gain(name):
    listed = {
        "Nashpy 41": [THIRD, THIRD, 0, THIRD],
        "Nashpy 39": [1 / 2, 0, 1 / 2, 0],
    }[name]
    np.testing.assert_allclose(matrix.nash_conv(KNOWN[name][0], listed, listed), 0, atol=1e-6)


# F08: the value is continuous in the entry.
def test_value_is_continuous_in_a_payoff():
    entries = np.linspace(-50, -30, 41)
    games = np.stack([np.array(nashpy_60(z), float) for z in entries])
    values = solve_zero_sum(games).value
    assert np.abs(np.diff(values)).max() <= np.diff(entries).max()
    np.testing.assert_allclose(solve_zero_sum(nashpy_60(-33.3333333)).value, -25, atol=1e-6)


# Dominance (OpenSpiel lp_solver_test): row 0 is strictly dominated by a mix of the others exactly
# when the game "other rows minus row 0" has a positive value; the mix is the row strategy.
def test_dominance_by_solving_a_game():
    plain = solve_zero_sum([[2 - 1, 0 - 1], [0 - 1, 2 - 1]])
    np.testing.assert_allclose(plain.value, 0, atol=1e-12)
    tilted = solve_zero_sum([[2.1 - 1, 0 - 1], [0 - 1, 2 - 1]])
    assert tilted.value > 0.02
    np.testing.assert_allclose(tilted.row, [20 / 41, 21 / 41], atol=1e-12)  # 0.49 and 0.51


# Invariances.


def test_batches_equal_single_games_and_keep_their_shape():
    games = np.random.default_rng(1).uniform(-1, 1, (2, 3, 4, 5))
    batch = solve_zero_sum(games)
    assert batch.row.shape == (2, 3, 4) and batch.col.shape == (2, 3, 5)
    assert batch.value.shape == batch.unique.shape == (2, 3)
    single = solve_zero_sum(games[1, 2])
    np.testing.assert_array_equal(batch.row[1, 2], single.row)
    np.testing.assert_allclose(batch.value[1, 2], single.value, rtol=1e-15)


def test_chunk_size_does_not_matter(monkeypatch):
    games = np.random.default_rng(2).uniform(-1, 1, (50, 5, 5))
    whole = solve_zero_sum(games)
    monkeypatch.setitem(solve.CHUNK_ELEMENTS, "simplex", 4 * 42)
    np.testing.assert_array_equal(solve_zero_sum(games).row, whole.row)


def test_empty_batch():
    assert solve_zero_sum(np.zeros((0, 3, 3))).row.shape == (0, 3)


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 10**6), exponent=st.integers(-60, 60))
def test_powers_of_two_leave_strategies_bit_for_bit_alike(seed, exponent):
    games = np.random.default_rng(seed).uniform(-1, 1, (4, 4, 3))
    one, other = solve_zero_sum(games), solve_zero_sum(np.ldexp(games, exponent))
    np.testing.assert_array_equal(one.row, other.row)
    np.testing.assert_array_equal(one.col, other.col)
    np.testing.assert_array_equal(np.ldexp(one.value, exponent), other.value)


@pytest.mark.parametrize("scale", [1e-310, 1e-300, 1e-9, 1e12, 1e300, 1e308])
def test_extreme_scales(scale):
    equilibrium = solve_zero_sum(np.array([[4.0, 1.0], [1.0, 2.0]]) / 4 * scale)
    np.testing.assert_allclose(equilibrium.row, [1 / 4, 3 / 4], atol=1e-9)
    np.testing.assert_allclose(equilibrium.value, 7 / 16 * scale, rtol=1e-9)
    wide = solve_zero_sum(np.array([[1.0, -1.0], [-1.0, 1.0]]) * scale)
    np.testing.assert_allclose(wide.col, [1 / 2, 1 / 2])
    assert np.isfinite(wide.nash_conv)


@pytest.mark.parametrize("offset", [1e6, 1e12, -1e12])
def test_offsets(offset):
    equilibrium = solve_zero_sum(np.array([[4.0, 1.0], [1.0, 2.0]]) + offset)
    np.testing.assert_allclose(equilibrium.row, [1 / 4, 3 / 4], atol=1e-12)
    np.testing.assert_allclose(equilibrium.value - offset, 7 / 4, atol=abs(offset) * 1e-15)


@settings(deadline=None, max_examples=150)
@given(moved_games())
def test_any_scale_and_offset(game):
    """The value is that of exact arithmetic on the rounded payoffs; the strategies solve them, and
    up to rounding the game without scale and offset."""
    table, moved, *_ = game
    solution = solve_zero_sum(moved)
    spread, loose = np.ptp(moved), rounding(table, moved)
    exact = solve_exact([[Fraction(cell) for cell in row] for row in moved.tolist()])
    error = float(Fraction(float(solution.value)) - exact.value)
    assert abs(error) <= 1e-12 * spread + np.spacing(np.abs(moved).max())
    assert exact_residual(moved, solution.row, solution.col) <= 1e-12
    assert solution.relative_nash_conv <= 1e-12
    if loose < 0.1:
        assert exact_residual(table, solution.row, solution.col) <= 1e-12 + 2 * loose


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 10**6))
def test_seat_swap_negates_values_and_relabelling_keeps_them(seed):
    rng = np.random.default_rng(seed)
    games = rng.integers(-2, 3, (5, 4, 3)).astype(float)
    value = solve_zero_sum(games).value
    swapped = solve_zero_sum(-np.swapaxes(games, 1, 2))
    np.testing.assert_allclose(swapped.value, -value, atol=1e-12)
    relabelled = games[:, rng.permutation(4)][:, :, rng.permutation(3)]
    np.testing.assert_allclose(solve_zero_sum(relabelled).value, value, atol=1e-12)


def test_padding_is_never_read():
    rng = np.random.default_rng(3)
    games = rng.uniform(-1, 1, (40, 6, 6))
    sizes = rng.integers(1, 7, (40, 2))
    rows, cols = (np.arange(6) < sizes[:, [axis]] for axis in (0, 1))
    valid = rows[:, :, None] & cols[:, None, :]
    for junk in (np.nan, 1e30, -7.0):
        padded = solve_zero_sum(np.where(valid, games, junk), rows, cols)
        assert (padded.row[~rows] == 0).all() and (padded.col[~cols] == 0).all()
        assert padded.relative_nash_conv.max() <= 1e-12
        for k in range(40):
            alone = solve_zero_sum(games[k, : sizes[k, 0], : sizes[k, 1]])
            np.testing.assert_allclose(padded.value[k], alone.value, atol=1e-12)


def test_result_is_an_equilibrium_of_the_jax_kernel():
    games = np.random.default_rng(4).uniform(-1, 1, (30, 5, 5))
    equilibrium = solve_zero_sum(games)
    np.testing.assert_allclose(
        matrix.nash_conv(games, equilibrium.row, equilibrium.col), 0, atol=1e-6
    )


# Uniqueness.


def test_uniqueness_certificates():
    unique = {name: bool(solve_zero_sum(KNOWN[name][0]).unique) for name in KNOWN}
    assert unique["rock paper scissors"] and unique["textbook"] and unique["one cell"]
    assert not unique["zeros"] and not unique["duplicate row"] and not unique["sevens"]
    games = np.random.default_rng(5).integers(-1, 2, (200, 3, 3))
    floats, exact = solve_zero_sum(games), solve_zero_sum(games, method="exact")
    np.testing.assert_array_equal(floats.unique, exact.unique)
    assert 0 < floats.unique.mean() < 1


# Exact arithmetic.


def test_exact_solver_agrees_with_floats():
    games = np.random.default_rng(6).integers(-9, 10, (300, 4, 5))
    floats = solve_zero_sum(games)
    for payoffs, value in zip(games.tolist(), floats.value, strict=True):
        assert float(solve_exact(payoffs).value) == pytest.approx(value, abs=1e-12)


@settings(deadline=None, max_examples=50)
@given(seed=st.integers(0, 10**6), shape=st.sampled_from([(1, 1), (2, 3), (5, 5), (7, 4)]))
def test_exact_nash_conv_is_zero(seed, shape):
    payoffs = np.random.default_rng(seed).integers(-3, 4, shape).tolist()
    solution = solve_exact(payoffs)
    upper = max(sum(a * y for a, y in zip(row, solution.col, strict=True)) for row in payoffs)
    columns = zip(*payoffs, strict=True)
    lower = min(sum(a * x for a, x in zip(col, solution.row, strict=True)) for col in columns)
    assert upper == lower == solution.value
    assert sum(solution.row) == sum(solution.col) == 1
    assert min(solution.row + solution.col) >= 0


def test_exact_fractions():
    solution = solve_exact([[2, -3], [-3, 4]])
    assert solution.value == Fraction(-1, 12) and solution.unique
    assert solution.row == solution.col == (Fraction(7, 12), Fraction(5, 12))
    for kind in (np.float16, np.float32, np.int64):
        assert solve_exact(np.array([[-2, 3], [3, -4]], kind)).value == Fraction(1, 12)
    thirds = solve_exact([[Fraction(1, 3), 0], [0, Fraction(2, 3)]])
    assert thirds.value == Fraction(2, 9)


@pytest.mark.parametrize(
    "payoffs",
    [[[float("nan")]], [[float("inf")]], [[1, 2], [3]], [], [[]], [[None]], [["1/3"]], 5, [5]],
)
def test_exact_solver_refuses(payoffs):
    with pytest.raises(ValueError, match=r"NaN|rows of lengths|must be rows of numbers"):
        solve_exact(payoffs)


# Constant-sum and symmetric games, bad input.


# F05: a constant-sum game is handled, a general-sum one has no value.
def test_constant_sum_and_general_sum():
    dilemma = np.array([[5, 0], [10, 1]]) * 1e-4
    with pytest.raises(ValueError, match="general-sum"):
        solve_zero_sum(dilemma + 1e6, col_payoffs=dilemma.T + 1e6)
    shifted = np.array(RPS) + 1
    equilibrium = solve_zero_sum(shifted, col_payoffs=2 - shifted)
    np.testing.assert_allclose(equilibrium.value, 1, atol=1e-12)
    np.testing.assert_allclose(equilibrium.row, [THIRD] * 3, atol=1e-12)
    with pytest.raises(ValueError, match="general-sum"):
        solve_zero_sum([[5, 0], [10, 1]], col_payoffs=[[5, 10], [0, 1]])


# F21: one strategy for both seats only where the seats are alike.
def test_symmetric_games():
    equilibrium = solve_zero_sum(NASHPY_39, symmetric=True)
    np.testing.assert_array_equal(equilibrium.row, equilibrium.col)
    check(NASHPY_39, equilibrium)
    # Padding is no part of the comparison.
    rock, mask = np.pad(np.array(RPS) + 1e6, (0, 1), constant_values=np.nan), np.arange(4) < 3
    padded = solve_zero_sum(rock, mask, mask, col_payoffs=2e6 - rock, symmetric=True)
    np.testing.assert_allclose(padded.col, [THIRD] * 3 + [0], atol=1e-9)
    shifted = np.array(RPS) + 1
    assert solve_zero_sum(shifted, col_payoffs=2 - shifted, symmetric=True).value == pytest.approx(
        1
    )
    with pytest.raises(ValueError, match="not symmetric"):
        solve_zero_sum([[4, 1], [1, 2]], symmetric=True)
    # Nor is a seat assumed where another game of the batch is large, or an offset hides the seats.
    with pytest.raises(ValueError, match="not symmetric"):
        solve_zero_sum([np.array(RPS) * 1e12, np.diag([4, 1, 2])], symmetric=True)
    hidden = np.diag([4e-4, 1e-4])
    with pytest.raises(ValueError, match="not symmetric"):
        solve_zero_sum(1e6 + hidden, col_payoffs=1e6 - hidden, symmetric=True)


def test_bad_input():
    with pytest.raises(ValueError, match="NaN or infinity"):
        solve_zero_sum([[1, np.nan], [0, 1]])
    with pytest.raises(ValueError, match=r"\[3\]"):
        solve_zero_sum(np.zeros(3))
    with pytest.raises(ValueError, match=r"\[0, 3\]"):
        solve_zero_sum(np.zeros((0, 3)))
    with pytest.raises(ValueError, match=r"row_mask of shape \[3\].*\[2, 2\]"):
        solve_zero_sum(np.zeros((2, 2)), np.ones(3, bool))
    with pytest.raises(ValueError, match="col_mask leaves a game without any action"):
        solve_zero_sum(np.zeros((2, 2)), None, np.zeros(2, bool))
    with pytest.raises(ValueError, match="simplex"):
        solve_zero_sum(np.zeros((2, 2)), method="simplx")
    with pytest.raises(ValueError, match=r"payoffs \[3\], row_mask \[2\] and col_mask \[\]"):
        solve_zero_sum(np.zeros((3, 2, 2)), np.ones((2, 2), bool))
    for tolerance in (-1.0, np.nan, np.inf):
        with pytest.raises(ValueError, match=f"tolerance={tolerance}; give a share"):
            solve_zero_sum(np.eye(2), tolerance=tolerance)


@pytest.mark.parametrize(
    ("payoffs", "message"),
    [
        (np.eye(2) * 1j, "payoffs of type complex128; give real numbers"),
        ([["1", "2"]], "payoffs of type <U1"),
        ([[None, 1]], "payoffs of type object"),
        ([[1, 2], [3]], "payoffs of rows that do not fit into one array"),
    ],
)
def test_what_is_no_real_number_is_refused(payoffs, message):
    with pytest.raises(ValueError, match=message):
        solve_zero_sum(payoffs)
    with pytest.raises(ValueError, match=message):
        generate.permute(jax.random.key(0), payoffs)


def test_masks_of_words_are_refused():
    with pytest.raises(ValueError, match="row_mask of type <U5"):
        solve_zero_sum(np.eye(2), ["False", "True"])


def test_symmetric_games_have_equal_masks():
    rows, cols = [False, True, False], [True, False, True]
    with pytest.raises(ValueError, match="row_mask and col_mask differ"):
        solve_zero_sum(np.zeros((3, 3)), rows, cols, symmetric=True)
    solution = solve_zero_sum(np.zeros((3, 3)), rows, rows, symmetric=True)
    assert solution.col.tolist() == [0, 1, 0]
