"""Both float solvers on hard families and on many random games: certified, finite, no failure."""

import numpy as np
import pytest
from zero_sum_games import check, families

from sepo_jax.games import solve_zero_sum

METHODS = ["simplex", "device"]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("shape", [(5, 5), (4, 16), (16, 16)])
def test_degenerate_families(shape, method):
    for name, games in families(shape, 60):
        equilibrium = solve_zero_sum(games, method=method)
        worst = equilibrium.relative_nash_conv.max()
        assert worst <= 1e-9, (name, worst)
        # The exact solver is a last resort, not what carries the batch.
        assert equilibrium.exact.mean() <= (0.05 if "near" in name else 0), name
        check(games, equilibrium, 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("size", range(1, 13))
def test_many_random_games(size, method):
    count = 2**17  # above 100,000
    games = np.random.default_rng(size).uniform(-1, 1, (count, size, size)).round(2)
    equilibrium = solve_zero_sum(games, method=method)
    assert not equilibrium.exact.any()  # no certificate failed
    check(games, equilibrium)
    assert all(np.isfinite(field).all() for field in vars(equilibrium).values())
    assert equilibrium.unique.mean() > 0.95


def test_failed_certificates_go_to_the_exact_solver():
    games = np.random.default_rng(0).uniform(-1, 1, (20, 5, 5))
    for method in METHODS:
        equilibrium = solve_zero_sum(games, method=method, tolerance=0)
        assert equilibrium.exact.any()
        check(games, equilibrium, 1e-15)
