"""Matrix games with known NashConv, gains and equilibria (cases 4.1)."""

import itertools

import numpy as np
import pytest
from matrix_games import RPS, plain_gains, random_game

from sepo_jax.games import matrix
from sepo_jax.games.matrix import bimatrix_gains, exploitability, nash_conv


def support_enumeration(first, second):
    """All equilibria with supports of equal size: every equilibrium of a nondegenerate game."""
    found = []
    sizes = range(1, min(first.shape) + 1)
    for rows, cols in itertools.chain.from_iterable(
        itertools.product(
            itertools.combinations(range(first.shape[0]), size),
            itertools.combinations(range(first.shape[1]), size),
        )
        for size in sizes
    ):
        col = indifferent(first[np.ix_(rows, cols)])
        row = indifferent(second[np.ix_(rows, cols)].T)
        if row is None or col is None:
            continue
        x, y = np.zeros(first.shape[0]), np.zeros(first.shape[1])
        x[list(rows)], y[list(cols)] = row, col
        if plain_gains(first, second, x, y).max() < 1e-9:
            found.append((x, y))
    return found


def indifferent(square):
    """Positive weights that make all rows of `square` pay the same, or None."""
    size = len(square)
    system = np.block([[square, -np.ones((size, 1))], [np.ones((1, size)), np.zeros((1, 1))]])
    if abs(np.linalg.det(system)) < 1e-12:
        return None
    weights = np.linalg.solve(system, np.eye(size + 1)[size])[:size]
    return weights if (weights > 1e-12).all() else None


def test_rock_paper_scissors():
    rock, even, tilted = np.eye(3)[0], np.full(3, 1 / 3), np.array([0.5, 0.25, 0.25])
    # Rock against rock: each player gains 1 by playing paper.
    np.testing.assert_allclose(nash_conv(RPS, rock, rock), 2)
    # Rock against uniform: the column player gains 1, the row player nothing.
    np.testing.assert_allclose(matrix.best_response_values(RPS, rock, even), [0, 1], atol=1e-7)
    np.testing.assert_allclose(bimatrix_gains(RPS, -RPS, rock, even), [0, 1], atol=1e-7)
    np.testing.assert_allclose(nash_conv(RPS, tilted, tilted), 0.5, atol=1e-7)
    np.testing.assert_allclose(exploitability(RPS, tilted, tilted), 0.25, atol=1e-7)
    np.testing.assert_allclose(nash_conv(RPS, even, even), 0, atol=1e-7)


# F05: gains of the prisoner's dilemma, refusal of zero-sum quantities, constant sums by shift.
def test_prisoners_dilemma():
    first = np.array([[5, 0], [10, 1]])
    rows = np.array([[1, 0], [0, 1], [0.5, 0.5]])
    known = [[5, 5], [0, 0], [1.5, 1.5]]
    np.testing.assert_allclose(bimatrix_gains(first, first.T, rows, rows), known, atol=1e-6)
    with pytest.raises(ValueError, match=r"general-sum.*bimatrix_gains"):
        exploitability(first, rows[0], rows[0], col_payoffs=first.T)


def test_constant_sum_games_equal_their_zero_sum_shift():
    payoffs, row, col = random_game((3, 4), 0)
    assert matrix.constant_sum(payoffs, 2 - payoffs) == pytest.approx(2)
    np.testing.assert_allclose(
        exploitability(payoffs, row, col, col_payoffs=2 - payoffs),
        bimatrix_gains(payoffs - 1, 1 - payoffs, row, col).sum() / 2,
        atol=1e-6,
    )


# F09 (Nashpy #35): row 2 with any column mix is an equilibrium; row 3, column 3 is far from one.
def test_very_unequal_payoffs():
    payoffs = np.array([[-1, -1, -1], [0, 0, 0], [-1, -1, -10000]])
    columns = np.random.default_rng(0).dirichlet(np.ones(3), 5)
    rows = np.broadcast_to(np.eye(3)[1], (5, 3))
    np.testing.assert_allclose(bimatrix_gains(payoffs, payoffs, rows, columns), 0, atol=1e-7)
    np.testing.assert_allclose(
        bimatrix_gains(payoffs, payoffs, np.eye(3)[2], np.eye(3)[2]), [10000, 9999]
    )


# F11 (Nashpy #222): a continuum of equilibria, p in [0, 2/7] against column 1; the checker decides.
@pytest.mark.parametrize(("p", "gain"), [(0, 0), (0.1, 0), (2 / 7, 0), (0.29, 0.03)])
def test_end_of_a_continuum(p, gain):
    first, second = np.array([[-3, 3], [-3, 5]]), np.array([[2, 7], [4, 2]])
    total = bimatrix_gains(first, second, np.array([p, 1 - p]), np.eye(2)[0]).sum()
    np.testing.assert_allclose(total, gain, atol=1e-6)


# Bimatrix games of cases 4.1: name, A, B, equilibria given there, how many there are in all.
GAMES = {
    "Nashpy 64": (
        [[3, 3], [2, 5], [0, 6]],
        [[3, 2], [2, 6], [3, 1]],
        [
            ((1, 0, 0), (1, 0)),
            ((4 / 5, 1 / 5, 0), (2 / 3, 1 / 3)),
            ((0, 1 / 3, 2 / 3), (1 / 3, 2 / 3)),
        ],
        3,
    ),
    "Nashpy degenerate": (
        [[3, 3], [2, 5], [0, 6]],
        [[3, 3], [2, 6], [3, 1]],
        [((1, 0, 0), (1, 0)), ((0, 1 / 3, 2 / 3), (1 / 3, 2 / 3))],
        None,
    ),
    # F11: eight equilibria of two players who minimise.
    "Nashpy 82": (
        -np.array([[0, 0, 6, 0, 0], [0, 0, 3, 2, 1], [4, 3, 0, 0, 1]]),
        -np.array([[3, 0, 2, 1, 0], [0, 2, 0, 0, 4], [4, 0, 2, 4, 4]]),
        [
            ((1 / 3, 1 / 2, 1 / 6), (0, 4 / 9, 2 / 9, 1 / 3, 0)),
            ((0, 1, 0), (3 / 8, 0, 1 / 4, 3 / 8, 0)),
        ],
        None,
    ),
    "Nashpy 4x3": (
        [[160, 205, 44], [175, 180, 45], [201, 204, 50], [120, 207, 49]],
        [[2, 2, 2], [1, 0, 0], [3, 4, 1], [4, 1, 2]],
        [((0, 0, 3 / 4, 1 / 4), (1 / 28, 27 / 28, 0))],
        1,
    ),
    "two pure, one mixed": (
        [[1, 0], [-2, 3]],
        [[3, 2], [-1, 0]],
        [((1, 0), (1, 0)), ((0, 1), (0, 1)), ((1 / 2, 1 / 2), (1 / 2, 1 / 2))],
        3,
    ),
    "coordination": (
        [[2, 1], [0, 2]],
        [[2, 0], [1, 2]],
        [((1, 0), (1, 0)), ((0, 1), (0, 1)), ((1 / 3, 2 / 3), (1 / 3, 2 / 3))],
        3,
    ),
    "prisoner's dilemma": ([[5, 0], [10, 1]], [[5, 10], [0, 1]], [((0, 1), (0, 1))], 1),
    "stag hunt": (
        [[2, 0], [1, 1]],
        [[2, 1], [0, 1]],
        [((1, 0), (1, 0)), ((0, 1), (0, 1)), ((1 / 2, 1 / 2), (1 / 2, 1 / 2))],
        3,
    ),
    "chicken": ([[0, 4], [1, 3]], [[0, 1], [4, 3]], [((1 / 2, 1 / 2), (1 / 2, 1 / 2))], 3),
    "battle of the sexes": (
        [[3, 0], [0, 2]],
        [[2, 0], [0, 3]],
        [((3 / 5, 2 / 5), (2 / 5, 3 / 5)), ((1, 0), (1, 0)), ((0, 1), (0, 1))],
        3,
    ),
    "Shapley": (
        [[0, 0, 1], [1, 0, 0], [0, 1, 0]],
        [[0, 1, 0], [0, 0, 1], [1, 0, 0]],
        [((1 / 3,) * 3, (1 / 3,) * 3)],
        1,
    ),
    "identity 3": (np.eye(3), np.eye(3), [((1 / 3,) * 3, (1 / 3,) * 3)], 7),
}


@pytest.mark.parametrize("name", GAMES)
def test_known_equilibria_have_no_gain(name):
    first, second, equilibria, count = GAMES[name]
    first, second = np.array(first, float), np.array(second, float)
    scale = max(np.abs(first).max(), np.abs(second).max())
    enumerated = support_enumeration(first, second)
    if count is not None:
        assert len(enumerated) == count
    for row, col in [*equilibria, *enumerated]:
        gains = bimatrix_gains(first, second, np.array(row, float), np.array(col, float))
        np.testing.assert_allclose(gains, 0, atol=2e-6 * scale)
    # Other profiles do gain: the check can fail.
    _, rows, cols = random_game(first.shape, 0, (5,))
    assert (np.asarray(bimatrix_gains(first, second, rows, cols)).sum(-1) > 1e-3).all()


def test_all_zero_game():
    _, rows, cols = random_game((2, 2), 0, (5,))
    np.testing.assert_array_equal(bimatrix_gains(np.zeros((2, 2)), np.zeros((2, 2)), rows, cols), 0)
