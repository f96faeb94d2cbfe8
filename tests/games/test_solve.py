"""Zero-sum solver: known games, degenerate families, invariances, exact arithmetic, bad input."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sepo_jax.games import matrix, solve, solve_exact, solve_zero_sum

THIRD, T = 1 / 3, 2 / 3
F1_SCORES = [
    [1, 0, 0, 0, 0, 0, 0, 0],
    [0, 1, 0, T, 0, T, 0, 0.5],
    [0, 0, 1, T, 0, 0, T, 0.5],
    [0, T, T, 1, 0, 0.5, 0.5, 0.8],
    [0, 0, 0, 0, 1, T, T, 0.5],
    [0, T, 0, 0.5, T, 1, 0.5, 0.8],
    [0, 0, T, 0.5, T, 0.5, 1, 0.8],
    [0, 0.5, 0.5, 0.8, 0.5, 0.8, 0.8, 1],
]
TRIPLE = [0, 0, -0.08474, 0, 0.058824, 0.044776]
GAMBIT_222 = [
    TRIPLE,
    TRIPLE,
    [0.084746, 0.084746, 0, 0.084746, 0.142857, 0.12903],
    TRIPLE,
    [-0.06569, -0.06569, -0.1496, -0.06569, -0.00689, -0.0209],
    [-0.0229, -0.0229, -0.10743, -0.0229, 0.03597, 0.02189],
]
NASHPY_66 = [
    [-4.74849287, -1.41955836, -1.41955836, -2.46551608],
    [-100, -0.80877032, -0.80877032, -1.42923881],
    [-3.99960399, -1.41955836, -1.41955836, -1.42923881],
    [-2.46551608, -0.80877032, -0.80877032, -2.46551608],
]
NASHPY_41 = [[0, -1, 1, 1], [1, 0, -1, -1], [-1, 1, 0, -1], [-1, 1, 1, 0]]
NASHPY_39 = [[0, 1, 0, -1], [-1, 0, 1, 1], [0, -1, 0, 1], [1, -1, -1, 0]]
NASHPY_231 = [
    [0, -1, -1, -1, 1, -1],
    [1, 0, 1, -1, -1, -1],
    [1, -1, 0, -1, -1, 1],
    [1, 1, 1, 0, -1, -1],
    [-1, 1, 1, 1, 0, -1],
    [1, 1, -1, 1, 1, 0],
]
RPS = [[0, -1, 1], [1, 0, -1], [-1, 1, 0]]
AVERAGING = [[0, 234, 34, -270], [-234, 0, -38, -464], [-34, 38, 0, -270], [270, 464, 270, 0]]


def nashpy_60(z):
    return [[-100, 0, 0, -100], [0, 0, 0, -100], [-100, 0, 0, 0], [0, 0, 0, z]]


# Every zero-sum entry of cases 4.1: payoffs, value, row and column strategy (None: many optima).
KNOWN = {
    "rock paper scissors": (RPS, 0, [THIRD] * 3, [THIRD] * 3),
    "biased rock paper scissors": (
        [[0, -0.25, 0.5], [0.25, 0, -0.05], [-0.5, 0.05, 0]],
        0,
        [1 / 16, 10 / 16, 5 / 16],
        [1 / 16, 10 / 16, 5 / 16],
    ),
    "saddle": ([[2, 1, 5], [-3, -4, -2]], 1, [1, 0], [0, 1, 0]),
    "jacobian 1833": ([[4, 1], [1, 2]], 7 / 4, [1 / 4, 3 / 4], [1 / 4, 3 / 4]),
    "textbook": ([[2, -3], [-3, 4]], -1 / 12, [7 / 12, 5 / 12], [7 / 12, 5 / 12]),
    # F06: degenerate games.
    "Nashpy 41": (NASHPY_41, 0, None, None),
    "Nashpy 39": (NASHPY_39, 0, None, None),
    "Nashpy 231": (NASHPY_231, 0, [0, 0, THIRD, 0, THIRD, THIRD], [0, 0, THIRD, 0, THIRD, THIRD]),
    # F08: one entry moves, the value moves with it.
    "Nashpy 60, -50": (nashpy_60(-50), -100 / 3, [0, 0, THIRD, T], [THIRD, 0, 0, T]),
    "Nashpy 60, -100/3": (nashpy_60(-100 / 3), -25, [0, 0, 1 / 4, 3 / 4], [1 / 4, 0, 0, 3 / 4]),
    # F09: very unequal payoffs and ties.
    "Nashpy 66": (NASHPY_66, -2.46551608, [0, 0, 0, 1], None),
    "Nashpy 76": (F1_SCORES, THIRD, [THIRD, 0, 0, 0, 0, 0, 0, T], None),
    "gambit 222": (GAMBIT_222, 0, [0, 0, 1, 0, 0, 0], [0, 0, 1, 0, 0, 0]),
    "duplicate row": ([[1, -1], [1, -1], [-1, 1]], 0, None, [1 / 2, 1 / 2]),
    "Nash averaging": ([[0, -1, -1], [1, 0, -1], [1, 1, 0]], 0, [0, 0, 1], [0, 0, 1]),
    "Nash averaging, large": (AVERAGING, 0, [0, 0, 0, 1], [0, 0, 0, 1]),
    # F10: trivial games.
    "one zero": ([[0]], 0, [1], [1]),
    "one cell": ([[-7]], -7, [1], [1]),
    "zeros": (np.zeros((3, 4)), 0, None, None),
    "zeros 2x2": (np.zeros((2, 2)), 0, None, None),
    "sevens": (np.full((2, 2), 7), 7, None, None),
    "one row": ([[3, 1, 2]], 1, [1], [0, 1, 0]),
    "one column": ([[3], [5], [2]], 5, [0, 1, 0], [1]),
    "identity": (np.eye(16), 1 / 16, [1 / 16] * 16, [1 / 16] * 16),
}


def check(payoffs, equilibrium, tolerance=1e-12):
    """Certificate, recomputed here: right lengths, non-negative, sums of 1, NashConv about 0."""
    payoffs = np.asarray(payoffs, float)
    row, col = equilibrium.row, equilibrium.col
    assert row.shape == payoffs.shape[:-1] and col.shape == payoffs.shape[:-2] + payoffs.shape[-1:]
    for strategy in (row, col):
        assert (strategy >= 0).all()
        np.testing.assert_allclose(strategy.sum(-1), 1, atol=1e-12)
    spread = np.ptp(payoffs, axis=(-2, -1))
    upper = np.einsum("...ij,...j->...i", payoffs, col).max(-1)
    lower = np.einsum("...ij,...i->...j", payoffs, row).min(-1)
    scale = np.where(spread > 0, spread, 1) + 1e-4 * np.abs(payoffs).max(axis=(-2, -1))
    assert (upper - lower <= tolerance * scale).all()
    assert (equilibrium.relative_nash_conv <= tolerance).all()
    assert (equilibrium.nash_conv >= 0).all()


@pytest.mark.parametrize("method", solve.METHODS)
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


def families(shape, count, seed=0):
    """Degenerate and badly scaled games."""
    rng = np.random.default_rng(seed)
    m, n = shape

    def uniform(*size):
        return rng.uniform(-1, 1, (count, *size))

    def duplicated():
        games = uniform(m, n)
        games[:, m // 2 :] = games[:, : m - m // 2]
        games[:, :, n // 2 :] = games[:, :, : n - n // 2]
        return games

    square = np.triu(uniform(min(m, n), min(m, n)), 1)
    yield "generic", uniform(m, n).round(2)
    yield "ternary", rng.integers(-1, 2, (count, m, n))
    yield "integers", rng.integers(0, 6, (count, m, n))
    yield "sparse", rng.random((count, m, n)) < 0.15
    yield "antisymmetric", square - np.swapaxes(square, 1, 2)
    yield "tournament", np.sign(square) - np.sign(np.swapaxes(square, 1, 2))
    yield "duplicates", duplicated()
    for gap in (1e-12, 1e-9, 1e-6):
        yield f"near duplicates {gap}", duplicated() + gap * uniform(m, n)
    yield "twelve decades", 10 ** rng.uniform(-6, 6, (count, m, n)) * np.sign(uniform(m, n))
    yield "diagonal decades", np.eye(m, n) * 10 ** rng.uniform(-6, 6, (count, 1, n))
    yield "rank one", uniform(m, 1) * uniform(1, n)
    yield "constant rows", np.broadcast_to(uniform(m, 1), (count, m, n))
    yield "Hilbert", np.broadcast_to(1 / (1 + np.add.outer(range(m), range(n))), (count, m, n))


@pytest.mark.parametrize("shape", [(5, 5), (4, 16), (16, 16)])
def test_degenerate_families(shape):
    for name, games in families(shape, 60):
        equilibrium = solve_zero_sum(games)
        worst = equilibrium.relative_nash_conv.max()
        assert worst <= 1e-9, (name, worst)
        # The exact solver is a last resort, not what carries the batch.
        assert equilibrium.exact.mean() <= (0.05 if "near" in name else 0), name
        check(games, equilibrium, 1e-9)


def test_failed_certificates_go_to_the_exact_solver():
    games = np.random.default_rng(0).uniform(-1, 1, (20, 5, 5))
    equilibrium = solve_zero_sum(games, tolerance=0)
    assert equilibrium.exact.any()
    check(games, equilibrium, 1e-15)


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
    monkeypatch.setattr(solve, "CHUNK_ELEMENTS", 7 * 42)
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
    thirds = solve_exact([[Fraction(1, 3), 0], [0, Fraction(2, 3)]])
    assert thirds.value == Fraction(2, 9)


@pytest.mark.parametrize("payoffs", [[[float("nan")]], [[float("inf")]], [[1, 2], [3]], [], [[]]])
def test_exact_solver_refuses(payoffs):
    with pytest.raises(ValueError, match=r"NaN|rows of lengths"):
        solve_exact(payoffs)


# Constant-sum and symmetric games, bad input.


# F05: a constant-sum game is handled, a general-sum one has no value.
def test_constant_sum_and_general_sum():
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
    shifted = np.array(RPS) + 1
    assert solve_zero_sum(shifted, col_payoffs=2 - shifted, symmetric=True).value == pytest.approx(
        1
    )
    with pytest.raises(ValueError, match="not symmetric"):
        solve_zero_sum([[4, 1], [1, 2]], symmetric=True)


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


def test_symmetric_games_have_equal_masks():
    rows, cols = [False, True, False], [True, False, True]
    with pytest.raises(ValueError, match="row_mask and col_mask differ"):
        solve_zero_sum(np.zeros((3, 3)), rows, cols, symmetric=True)
    solution = solve_zero_sum(np.zeros((3, 3)), rows, rows, symmetric=True)
    assert solution.col.tolist() == [0, 1, 0]
