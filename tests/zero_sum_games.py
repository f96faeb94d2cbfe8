"""Zero-sum games with known solutions, hard families, and a certificate in plain numpy."""

import numpy as np

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


def families(shape, count, seed=0):
    """(name, games [count, m, n]) of degenerate and badly scaled games."""
    rng = np.random.default_rng(seed)
    m, n = shape

    def uniform(*size):
        return rng.uniform(-1, 1, (count, *size))

    def duplicated():
        games = uniform(m, n)
        games[:, m // 2 :] = games[:, : m - m // 2]
        games[:, :, n // 2 :] = games[:, :, : n - n // 2]
        return games

    def everywhere(table):
        return np.broadcast_to(table, (count, m, n))

    # Antisymmetric up to the shorter side; further rows or columns are drawn.
    square = np.triu(uniform(max(m, n), max(m, n)), 1)
    square = (square - np.swapaxes(square, 1, 2))[:, :m, :n]
    places = np.add.outer(np.linspace(0, 1, m), -np.linspace(0, 1, n))
    ring = np.subtract.outer(np.arange(m), np.arange(n)) % n
    yield "generic", uniform(m, n).round(2)
    yield "ternary", rng.integers(-1, 2, (count, m, n))
    yield "binary", rng.integers(0, 2, (count, m, n))
    yield "integers", rng.integers(0, 6, (count, m, n))
    yield "sparse", rng.random((count, m, n)) < 0.15
    yield "antisymmetric", square
    yield "tournament", np.sign(square)
    yield "duplicates", duplicated()
    for gap in (1e-12, 1e-9, 1e-6):
        yield f"near duplicates {gap}", duplicated() + gap * uniform(m, n)
    yield "identity", everywhere(np.eye(m, n))
    yield "log-random, 6 decades", 10 ** rng.uniform(-3, 3, (count, m, n))
    yield "twelve decades", 10 ** rng.uniform(-6, 6, (count, m, n)) * np.sign(uniform(m, n))
    yield "diagonal decades", np.eye(m, n) * 10 ** rng.uniform(-6, 6, (count, 1, n))
    yield "rank one", uniform(m, 1) * uniform(1, n)
    yield "rank two", uniform(m, 1) * uniform(1, n) + uniform(m, 1) * uniform(1, n)
    yield "constant", np.broadcast_to(uniform(1, 1), (count, m, n))
    yield "zero", np.zeros((count, m, n))
    yield "constant rows", np.broadcast_to(uniform(m, 1), (count, m, n))
    yield "Hilbert", everywhere(1 / (1 + np.add.outer(range(m), range(n))))
    yield "smooth kernel", np.exp(-((places * rng.uniform(0.1, 5, (count, 1, 1))) ** 2))
    yield "smooth wave", np.cos(places * rng.uniform(0.1, 5, (count, 1, 1)))
    yield "circulant", uniform(n)[:, ring]


def ragged(games, size, junk=np.nan):
    """Games of all sizes in one array [G, size, size] with `junk` around them, and both masks."""
    table = np.full((len(games), size, size), junk, float)
    rows, cols = np.zeros((2, len(games), size), bool)
    for index, game in enumerate(games):
        m, n = np.shape(game)
        table[index, :m, :n] = game
        rows[index, :m], cols[index, :n] = True, True
    return table, rows, cols
