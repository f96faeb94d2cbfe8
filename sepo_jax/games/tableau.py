"""The linear program of a zero-sum game as a condensed simplex tableau: start and read-out.

With B = payoffs + 1 on real cells and 0 on padding: max Σv, B v <= 1, v >= 0; the value of B is
1 / Σv, col = v / Σv, and row is the dual solution likewise. The games are the last axis. `simplex`
and `device_solver` differ in how they pivot from `start` to an optimum; both hand the optimal
tableau to `read_out`.
"""

from typing import NamedTuple

import jax
import numpy as np

from sepo_jax.games.normalised import bounds

GOLDEN = 0.618033988749895


class Tolerances(NamedTuple):
    """What counts as zero in one float type.

    Attributes:
      cost: a column may enter when its reduced cost is below minus this.
      pivot: smallest entry that is pivoted on.
      perturbation: of the second right-hand side.
      unique_margin: margins of unique optima are clear of this, others are at rounding level.
    """

    cost: float
    pivot: float
    perturbation: float
    unique_margin: float


TOLERANCES = {
    "float64": Tolerances(cost=1e-11, pivot=1e-11, perturbation=1e-11, unique_margin=1e-9),
    "float32": Tolerances(cost=1e-6, pivot=1e-5, perturbation=1e-6, unique_margin=1e-3),
}


class Tableau(NamedTuple):
    """Tableaus of G games.

    Rows are basic variables and the objective, columns nonbasic variables and two right-hand sides:
    the true one, and a slightly perturbed one that decides the pivots and so prevents cycling.
    Variable j < n is v_j, variable n + i the slack of row i.

    Attributes:
      table: [m + 1, n + 2, G].
      basic, nonbasic: int32[m, G], int32[n, G], the variables' numbers.
    """

    table: np.ndarray | jax.Array
    basic: np.ndarray | jax.Array
    nonbasic: np.ndarray | jax.Array


def positive(payoffs, rows, cols):
    """B [m, n, G]: normalised payoffs plus 1 on real cells, 0 on padding."""
    return payoffs + (rows[:, None] & cols[None]).astype(payoffs.dtype)


def right_sides(m: int, perturbation: float, dtype) -> np.ndarray:
    """The true right-hand side and the perturbed one, [m, 2]."""
    fractions = np.modf(GOLDEN * np.arange(1, m + 1))[0]
    sides = np.stack([np.ones(m), 1 + perturbation * (1 + fractions)], axis=1)
    return sides.astype(dtype)


def start(payoffs, rows, cols, tolerances: Tolerances, xp) -> Tableau:
    """The tableau at v = 0, where all slacks are basic."""
    m, n, count = payoffs.shape
    sides = right_sides(m, tolerances.perturbation, payoffs.dtype)[:, :, None]
    upper = [positive(payoffs, rows, cols), xp.broadcast_to(sides, (m, 2, count))]
    objective = xp.concatenate([-cols.astype(payoffs.dtype), xp.zeros((2, count), payoffs.dtype)])
    table = xp.concatenate([xp.concatenate(upper, axis=1), objective[None]])
    labels = np.arange(n + m, dtype=np.int32)[:, None]
    return Tableau(
        table, xp.broadcast_to(labels[n:], (m, count)), xp.broadcast_to(labels[:n], (n, count))
    )


def read_out(tableau: Tableau, payoffs, rows, cols, tolerances: Tolerances, xp) -> tuple:
    """Strategies, values and uniqueness from optimal tableaus.

    Of four candidates for y (both right-hand sides, as read and after one step of iterative
    refinement) and two for x, those that bound the value best are taken.

    Args:
      tableau: after the last pivot.
      payoffs, rows, cols: as in `NormalisedGames`.
      tolerances: of the payoffs' float type.
      xp: numpy or jax.numpy.

    Returns:
      row [m, G], col [n, G], value [G] between the two bounds, unique bool[G].
    """
    hold = _hold(xp)
    matrix = hold(positive(payoffs, rows, cols))
    sides = right_sides(len(rows), tolerances.perturbation, payoffs.dtype)
    best_row = best_col = None
    u = _dual(tableau, hold, xp)
    for weights in (u, _refined_dual(tableau, matrix, u, hold, xp)):
        row = hold(strategy(weights, rows, xp))
        lower, _ = bounds(payoffs, rows, cols, row, xp.zeros_like(payoffs[0]), xp)
        best_row = _better(best_row, (lower, row), xp)
    for side in (0, 1):
        v = _primal(tableau, tableau.table[:-1, len(cols) + side], hold, xp)
        for weights in (v, _refined_primal(tableau, matrix, v, sides[:, side], hold, xp)):
            col = hold(strategy(weights, cols, xp))
            _, upper = bounds(payoffs, rows, cols, xp.zeros_like(payoffs[:, 0]), col, xp)
            best_col = _better(best_col, (-upper, col), xp)
    value = (best_row[0] - best_col[0]) / 2
    unique = _margin(tableau, cols, xp) > tolerances.unique_margin
    return best_row[1], best_col[1], value, unique


def strategy(weights, valid, xp=np):
    """Weights [k, G] made probabilities; uniform over real actions where all are 0."""
    weights = xp.where(valid, xp.maximum(weights, 0), 0)
    total = weights.sum(axis=0, keepdims=True)
    real = valid.astype(weights.dtype)
    uniform = real / xp.maximum(real.sum(axis=0, keepdims=True), 1)
    return xp.where(total > 0, weights / xp.where(total > 0, total, 1), uniform)


def _hold(xp):
    """Keeps XLA from computing an intermediate result once for each of its uses."""
    return (lambda array: array) if xp is np else jax.lax.optimization_barrier


def _better(best, other, xp):
    """The (score [G], strategy [k, G]) of the higher score, the first one where they tie."""
    if best is None:
        return other
    wins = other[0] > best[0]
    return xp.where(wins, other[0], best[0]), xp.where(wins[None], other[1], best[1])


def _placed(labels, values, first: int, count: int, xp):
    """values [k, G] put where labels [k, G] say, [count, G]; labels count from `first`."""
    wanted = np.arange(first, first + count, dtype=np.int32)[None, :, None]
    return xp.where(labels[:, None] == wanted, values[:, None], 0).sum(axis=0)


def _looked_up(labels, values, first: int, xp):
    """values [count, G] read at labels [k, G], [k, G]; 0 at labels of other variables."""
    there = np.arange(first, first + len(values), dtype=np.int32)[:, None, None]
    return xp.where(labels[None] == there, values[:, None], 0).sum(axis=0)


def _primal(tableau: Tableau, values, hold, xp):
    """v [n, G] from the values [m, G] of the basic variables."""
    return hold(_placed(tableau.basic, values, 0, len(tableau.nonbasic), xp))


def _dual(tableau: Tableau, hold, xp):
    """u [m, G] from the reduced costs."""
    m, n = len(tableau.basic), len(tableau.nonbasic)
    return hold(_placed(tableau.nonbasic, tableau.table[m, :n], n, m, xp))


def _refined_primal(tableau: Tableau, matrix, v, side, hold, xp):
    """One step of iterative refinement: the tableau holds the inverse of the basis."""
    m, n = matrix.shape[:2]
    residual = hold(side[:, None] - (matrix * v[None]).sum(axis=1))
    step = hold(_looked_up(tableau.nonbasic, residual, n, xp))
    step = hold((tableau.table[:m, :n] * step[None]).sum(axis=1))
    return hold(v + _placed(tableau.basic, step, 0, n, xp))


def _refined_dual(tableau: Tableau, matrix, u, hold, xp):
    """The same for u."""
    m, n = matrix.shape[:2]
    residual = hold(1 - (matrix * u[:, None]).sum(axis=0))
    step = hold(_looked_up(tableau.basic, residual, 0, xp))
    step = hold((tableau.table[:m, :n] * step[:, None]).sum(axis=0))
    return hold(u + _placed(tableau.nonbasic, step, n, m, xp))


def _margin(tableau: Tableau, cols, xp):
    """Smallest basic value or reduced cost [G]; positive only where both optima are unique."""
    m, n = len(tableau.basic), len(tableau.nonbasic)
    padding = _looked_up(tableau.nonbasic, (~cols).astype(np.int32), 0, xp) > 0
    cost = xp.where(padding, xp.inf, tableau.table[m, :n])
    return xp.minimum(cost.min(axis=0), tableau.table[:m, n].min(axis=0))
