"""Matrix games with known NashConv, gains and equilibria (cases 4.1)."""

import itertools

import numpy as np
import pytest
from matrix_games import RPS, plain_gains, random_game

from sepo_jax.games import matrix, solve_zero_sum
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
    "chicken, other payoffs": (
        [[0, 7], [2, 6]],
        [[0, 2], [7, 6]],
        [((1, 0), (0, 1)), ((0, 1), (1, 0)), ((1 / 3, 2 / 3), (1 / 3, 2 / 3))],
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


def vertices(table):
    """Vertices other than 0 of {x >= 0, table x <= 1}, as strategies; payoffs are above 0."""
    size = table.shape[1]
    left = np.vstack([table, -np.eye(size)])
    right = np.append(np.ones(len(table)), np.zeros(size))
    for chosen in map(list, itertools.combinations(range(len(left)), size)):
        if abs(np.linalg.det(left[chosen])) < 1e-9:
            continue
        x = np.linalg.solve(left[chosen], right[chosen])
        if x.max() > 1e-9 and (left @ x <= right + 1e-9).all():
            yield (x / x.sum()).round(9)


# F11 (Nashpy #82): eight equilibria. Equilibria that mix no others are pairs of vertices of the two
# best-response polytopes, so trying all pairs finds them; a constant keeps the payoffs above 0.
def test_the_checker_finds_all_eight_equilibria():
    first, second, listed, _ = GAMES["Nashpy 82"]
    rows = np.unique(list(vertices((second + 7).T)), axis=0)
    cols = np.unique(list(vertices(first + 7)), axis=0)
    gains = np.asarray(bimatrix_gains(first, second, rows[:, None], cols[None])).sum(-1)
    found = [(rows[i], cols[j]) for i, j in zip(*np.nonzero(gains < 1e-5), strict=True)]
    assert len(found) == 8 and gains[gains >= 1e-5].min() > 1e-2
    for x, y in listed:
        assert any(np.allclose(x, a) and np.allclose(y, b) for a, b in found)


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_coordination_has_an_equilibrium_for_every_set_of_actions(n):
    """2^n - 1 of them (gambit test_nash)."""
    assert len(support_enumeration(np.eye(n), np.eye(n))) == 2**n - 1


def test_nash_averaging_rates_strategies_against_the_equilibrium():
    table = np.array([[0, -1, -1], [1, 0, -1], [1, 1, 0]])
    np.testing.assert_allclose(table @ solve_zero_sum(table).col, [-1, -1, 0], atol=1e-12)


# A correlated equilibrium is followed: given what a player is told, the other's conditional mix
# leaves nothing to gain. Of all, (C, C) 1/2 and the off-diagonals 1/4 have the largest sum, 10.5.
@pytest.mark.parametrize(
    ("both_swerve", "welfare", "gain"),
    [(0.5, 10.5, 0), (0.6, 10.8, 0.25)],  # told C: the other is at D with .2 / .8; 7 * .75 - 5
)
def test_recommendations_of_a_correlated_equilibrium_are_followed(both_swerve, welfare, gain):
    first, second, *_ = map(np.array, GAMES["chicken, other payoffs"][:2])
    weights = np.array([[0, (1 - both_swerve) / 2], [(1 - both_swerve) / 2, both_swerve]])
    assert (weights * (first + second)).sum() == pytest.approx(welfare)
    told = np.eye(2)
    row_gains = bimatrix_gains(first, second, told, weights / weights.sum(1, keepdims=True))[:, 0]
    given = (weights / weights.sum(0)).T
    col_gains = bimatrix_gains(first, second, given, told)[:, 1]
    np.testing.assert_allclose([max(row_gains), max(col_gains)], gain, atol=1e-6)


def test_all_zero_game():
    _, rows, cols = random_game((2, 2), 0, (5,))
    np.testing.assert_array_equal(bimatrix_gains(np.zeros((2, 2)), np.zeros((2, 2)), rows, cols), 0)
