"""Matrix games and their gains in plain numpy, for the tests of `games.matrix`."""

from fractions import Fraction

import numpy as np
from hypothesis import strategies as st

RPS = np.array([[0, -1, 1], [1, 0, -1], [-1, 1, 0]])


def random_game(shape, seed, batch=()):
    """Payoffs in +-1 [*batch, m, n] and a mixed strategy of each player."""
    rng = np.random.default_rng(seed)
    m, n = shape
    payoffs = rng.uniform(-1, 1, (*batch, m, n))
    return payoffs, rng.dirichlet(np.ones(m), batch), rng.dirichlet(np.ones(n), batch)


def plain_gains(first, second, row, col):
    """What a best response would gain each player of one game, [2]."""
    value = (row @ first @ col, row @ second @ col)
    return np.array([(first @ col).max() - value[0], (row @ second).max() - value[1]])


# Every scale and offset that payoffs are held to: s A + c, c far above s included. Rounding then
# makes another game of A; what is measured of the rounded game is still exact.
SCALES = st.floats(-9, 12).map(lambda exponent: 10.0**exponent)
OFFSETS = st.one_of(st.just(0.0), st.floats(-1e6, 1e6))
SMALL_SHAPES = st.sampled_from([(1, 1), (2, 2), (3, 3), (1, 4), (4, 2)])


@st.composite
def moved_games(draw):
    """(A, s A + c in floats, row, col): payoffs in hundredths, as the benchmark has them."""
    table, row, col = random_game(draw(SMALL_SHAPES), draw(st.integers(0, 2**31)))
    table = table.round(2)
    return table, draw(SCALES) * table + draw(OFFSETS), row, col


def exact_residual(table, row, col):
    """(max_i (A y)_i - min_j (x A)_j) / (max A - min A) in fractions, 0 for a constant game."""
    cells = [[Fraction(cell) for cell in line] for line in np.asarray(table).tolist()]
    x, y = ([Fraction(p) / sum(map(Fraction, each)) for p in each] for each in (row, col))
    flat = [cell for line in cells for cell in line]
    if max(flat) == min(flat):
        return 0.0
    upper = max(sum(a * p for a, p in zip(line, y, strict=True)) for line in cells)
    columns = zip(*cells, strict=True)
    lower = min(sum(a * p for a, p in zip(line, x, strict=True)) for line in columns)
    return float((upper - lower) / (max(flat) - min(flat)))


def rounding(table, moved):
    """How far a residual or a relative value of `moved` may be from that of `table`, because its
    payoffs are rounded: four times the largest rounding, relative to the range; inf where that
    leaves nothing of the game."""
    spread = np.ptp(moved)
    return 4 * np.spacing(np.abs(moved).max()) / spread if spread else np.inf
