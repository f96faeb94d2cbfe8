"""Simplex on many zero-sum games at once in numpy float64; see `tableau` for the linear program."""

import numpy as np

from sepo_jax.games import tableau
from sepo_jax.games.normalised import NormalisedGames
from sepo_jax.games.tableau import Tableau

TOLERANCES = tableau.TOLERANCES["float64"]


def solve(games: NormalisedGames) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Row and column strategies [m, G], [n, G], normalised values [G] and uniqueness [G]."""
    arrays = games.payoffs, games.rows, games.cols
    start = tableau.start(*arrays, TOLERANCES, np)
    # Picking one row, one column and the running games is quickest with the games first.
    first = [np.array(np.moveaxis(array, -1, 0), order="C") for array in start]
    _optimise(*first)
    optimal = Tableau(*(np.ascontiguousarray(np.moveaxis(array, 0, -1)) for array in first))
    return tableau.read_out(optimal, *arrays, TOLERANCES, np)


def _optimise(whole: np.ndarray, basis: np.ndarray, others: np.ndarray) -> None:
    """Pivots every game to its optimum in place; games that are done leave the working set.

    Args:
      whole, basis, others: the fields of `Tableau`, games first.
    """
    active = np.arange(len(whole))
    table, basic, nonbasic = whole.copy(), basis.copy(), others.copy()
    for _ in range(8 * (basis.shape[1] + others.shape[1]) + 1):
        column, running = _entering(table)
        if not running.all():
            done = ~running
            whole[active[done]] = table[done]
            basis[active[done]] = basic[done]
            others[active[done]] = nonbasic[done]
            active, column = active[running], column[running]
            table, basic, nonbasic = table[running], basic[running], nonbasic[running]
        if not active.size:
            return
        _pivot(table, basic, nonbasic, column)
    # Games still running are left where they are: their certificate will fail.


def _entering(table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Column of greatest improvement, and which games still have a negative reduced cost.

    Stopping looks at reduced costs only: an improvement can round to zero at a vertex that is not
    optimal.
    """
    block, cost = table[:, :-1, :-2], table[:, -1, :-2]
    inverse = 1 / np.maximum(table[:, :-1, -1], 1e-30)
    rate = np.where(block > TOLERANCES.pivot, block * inverse[:, :, None], 0).max(axis=1)
    eligible = (cost < -TOLERANCES.cost) & (rate > 0)
    gain = np.where(eligible, -cost / np.where(eligible, rate, 1), -1)
    column = gain.argmax(axis=1)
    return column, np.take_along_axis(gain, column[:, None], axis=1)[:, 0] >= 0


def _pivot(table: np.ndarray, basic: np.ndarray, nonbasic: np.ndarray, column: np.ndarray) -> None:
    """One pivot of every game in place; the ratio test takes the perturbed right-hand side."""
    game = np.arange(len(table))
    factor = table[game, :, column]
    entries = factor[:, :-1]
    allowed = entries > TOLERANCES.pivot
    right = np.maximum(table[:, :-1, -1], 0)
    ratio = np.where(allowed, right / np.where(allowed, entries, 1), np.inf)
    row = ratio.argmin(axis=1)
    pivot = factor[game, row][:, None]
    new_row = table[game, row] / pivot
    new_row[game, column] = 1 / pivot[:, 0]
    factor[game, row] = -1
    table[game, row] = 0
    table[game, :, column] = 0
    table -= factor[:, :, None] * new_row[:, None, :]
    leaving = basic[game, row].copy()
    basic[game, row] = nonbasic[game, column]
    nonbasic[game, column] = leaving
