"""Matrix games and their gains in plain numpy, for the tests of `games.matrix`."""

import numpy as np

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
