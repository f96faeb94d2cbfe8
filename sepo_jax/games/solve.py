"""Equilibria of zero-sum matrix games in batches, each with a certificate.

Condensed-tableau simplex in numpy float64 on many games at once; a game whose certificate fails is
solved again in exact arithmetic (`exact`), so nothing uncertified is ever returned. The answer is
one vertex of the optimal set, the same for the same payoffs every time. Where there are many, other
profiles are judged by NashConv, never by distance to this one (see `Equilibrium.unique`).
"""

from dataclasses import dataclass

import numpy as np

from sepo_jax.games import matrix
from sepo_jax.games.exact import solve_exact
from sepo_jax.names import check_option

METHODS = ("simplex", "exact")
CHUNK_ELEMENTS = 2**17  # tableau entries worked on at once: they stay in cache
COST_TOLERANCE = PIVOT_TOLERANCE = PERTURBATION = 1e-11
UNIQUE_MARGIN = 1e-9  # margins of unique optima are clear of this, others are at rounding level
GOLDEN = 0.618033988749895


@dataclass(frozen=True)
class Equilibrium:
    """One equilibrium of each game, numpy float64 with the leading axes of the payoffs.

    Attributes:
      row, col: strategies [..., m], [..., n]; exactly 0 on padding.
      value: the row player's payoff, [...].
      nash_conv: verified NashConv of (row, col), [...], in units of the payoffs.
      relative_nash_conv: the same divided by the game's payoff range (0 for constant games).
      unique: bool[...]; True only where both players' optimal strategies are certified unique.
      exact: bool[...]; True where the exact solver had the last word.
    """

    row: np.ndarray
    col: np.ndarray
    value: np.ndarray
    nash_conv: np.ndarray
    relative_nash_conv: np.ndarray
    unique: np.ndarray
    exact: np.ndarray


def solve_zero_sum(
    payoffs,
    row_mask=None,
    col_mask=None,
    *,
    col_payoffs=None,
    symmetric: bool = False,
    method: str = "simplex",
    tolerance: float = 1e-9,
) -> Equilibrium:
    """Solves zero-sum (or constant-sum) matrix games; the row player maximises `payoffs`.

    Args:
      payoffs: [..., m, n], the row player's.
      row_mask, col_mask: bool[..., m], bool[..., n], True on real actions; padding is never read.
      col_payoffs: the column player's payoffs where they are not just the negative: checked to
        add up to a constant with `payoffs`, which alone then decide equilibria and value.
      symmetric: both players get the row player's strategy, after a check that seats are alike.
      method: "simplex" (floats, exact arithmetic only where the certificate fails) or "exact".
      tolerance: largest relative NashConv that is accepted from floats.

    Returns:
      `Equilibrium`; every game has one, trivial games included.

    Raises:
      ValueError: shapes that do not fit, NaN or infinity in a real cell, a player without actions,
        general-sum payoffs, a game that is not symmetric though `symmetric` says so.
    """
    check_option("method", method, METHODS)
    table, rows, cols = _checked(payoffs, row_mask, col_mask)
    if col_payoffs is not None:
        matrix.constant_sum(payoffs, col_payoffs, row_mask, col_mask)
    if symmetric:
        if rows.shape == cols.shape and (rows != cols).any():
            raise ValueError(
                "row_mask and col_mask differ; the seats of a symmetric game have the same actions"
            )
        valid = rows[..., :, None] & cols[..., None, :]
        other = -table if col_payoffs is None else np.asarray(col_payoffs, np.float64)
        matrix.require_symmetric(np.where(valid, table, 0), np.where(valid, other, 0))
    lead, (m, n) = table.shape[:-2], table.shape[-2:]
    table, rows, cols = table.reshape(-1, m, n), rows.reshape(-1, m), cols.reshape(-1, n)
    parts = []
    size = max(1, CHUNK_ELEMENTS // ((m + 1) * (n + 2)))
    for start in range(0, max(1, table.shape[0]), size):
        chunk = slice(start, start + size)
        games = _Games.normalised(table[chunk], rows[chunk], cols[chunk])
        parts.append(_solve_chunk(games, method, tolerance, symmetric))
    fields = [np.concatenate(field) for field in zip(*parts, strict=True)]
    return Equilibrium(*(field.reshape(lead + field.shape[1:]) for field in fields))


def _checked(payoffs, row_mask, col_mask) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Payoffs and full masks with common leading axes."""
    table = np.asarray(payoffs, np.float64)
    if table.ndim < 2 or 0 in table.shape[-2:]:
        raise ValueError(
            f"payoffs of shape {list(table.shape)}; expected [..., m, n], m and n >= 1"
        )
    masks = []
    for name, mask, axis in (("row_mask", row_mask, -2), ("col_mask", col_mask, -1)):
        mask = np.ones(table.shape[axis], bool) if mask is None else np.asarray(mask, bool)
        if mask.shape[-1:] != (table.shape[axis],):
            raise ValueError(
                f"{name} of shape {list(mask.shape)} for payoffs of shape {list(table.shape)}; "
                f"expected [..., {table.shape[axis]}]"
            )
        if not mask.any(axis=-1).all():
            raise ValueError(f"{name} leaves a game without any action")
        masks.append(mask)
    lead = np.broadcast_shapes(table.shape[:-2], masks[0].shape[:-1], masks[1].shape[:-1])
    table = np.broadcast_to(table, lead + table.shape[-2:])
    rows, cols = (np.broadcast_to(mask, lead + mask.shape[-1:]) for mask in masks)
    if not np.isfinite(np.where(rows[..., :, None] & cols[..., None, :], table, 0)).all():
        raise ValueError(f"payoffs of shape {list(table.shape)} hold NaN or infinity")
    return table, rows, cols


@dataclass(frozen=True)
class _Games:
    """G games with payoffs moved to [0, 1]: original = 2^exponent (low + spread * payoffs).

    The power of two comes first and is exact, so strategies do not depend on the unit of payoffs,
    and neither denormal numbers nor an overflowing range can spoil the rest.
    """

    original: np.ndarray
    payoffs: np.ndarray
    rows: np.ndarray
    cols: np.ndarray
    exponent: np.ndarray
    low: np.ndarray
    spread: np.ndarray

    @classmethod
    def normalised(cls, table, rows, cols) -> "_Games":
        valid = rows[:, :, None] & cols[:, None, :]
        original = np.where(valid, table, 0)
        exponent = np.frexp(np.abs(original).max(axis=(1, 2)))[1]
        scaled = np.ldexp(original, -exponent[:, None, None])
        low = np.where(valid, scaled, np.inf).min(axis=(1, 2))
        spread = np.where(valid, scaled, -np.inf).max(axis=(1, 2)) - low
        divisor = np.where(spread > 0, spread, 1)[:, None, None]
        payoffs = np.where(valid, (scaled - low[:, None, None]) / divisor, 0)
        return cls(original, payoffs, rows, cols, exponent, low, spread)

    def bounds(self, row, col, which=slice(None)) -> tuple[np.ndarray, np.ndarray]:
        """min_j xᵀA and max_i A y of the normalised payoffs: any (x, y) brackets the value so."""
        upper = np.einsum("gij,gj->gi", self.payoffs[which], col)
        lower = np.einsum("gij,gi->gj", self.payoffs[which], row)
        upper = np.where(self.rows[which], upper, -np.inf).max(axis=1)
        return np.where(self.cols[which], lower, np.inf).min(axis=1), upper


def _solve_chunk(games: _Games, method: str, tolerance: float, symmetric: bool) -> tuple:
    """Fields of `Equilibrium` for one chunk."""
    count, m, n = games.payoffs.shape
    if method == "simplex":
        row, col, value, unique = _simplex(games)
        col = row if symmetric else col
        lower, upper = games.bounds(row, col)
        value = np.clip(value, np.minimum(lower, upper), np.maximum(lower, upper))
        accepted = upper - lower <= tolerance  # NaN fails
    else:
        row, col, value = np.zeros((count, m)), np.zeros((count, n)), np.zeros(count)
        unique, accepted = np.zeros(count, bool), np.zeros(count, bool)
        lower, upper = np.zeros(count), np.zeros(count)
    value = np.ldexp(games.low + games.spread * value, games.exponent)
    for g in np.flatnonzero(~accepted):
        solution = solve_exact(games.original[g][np.ix_(games.rows[g], games.cols[g])].tolist())
        row[g], col[g] = 0, 0
        row[g, games.rows[g]] = np.array(solution.row, np.float64)
        col[g, games.cols[g]] = (
            row[g, games.rows[g]] if symmetric else np.array(solution.col, float)
        )
        value[g], unique[g] = float(solution.value), solution.unique
        lower[g : g + 1], upper[g : g + 1] = games.bounds(row[[g]], col[[g]], [g])
    gap = upper - lower
    if not (np.abs(gap) <= max(tolerance, 1e-12)).all():
        raise ArithmeticError(f"no certified equilibrium: relative NashConv {gap.max()}")
    gap = np.maximum(gap, 0)
    nash_conv = np.ldexp(gap * games.spread, games.exponent)
    return row, col, value, nash_conv, np.where(games.spread > 0, gap, 0.0), unique, ~accepted


def _simplex(games: _Games) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Row and column strategies, normalised values and uniqueness of all games.

    With B = payoffs + 1 on real cells and 0 on padding: max Σv, B v <= 1, v >= 0; the value of B is
    1 / Σv, col = v / Σv, and row is the dual solution likewise.
    """
    positive = games.payoffs + (games.rows[:, :, None] & games.cols[:, None, :])
    tableau = _Tableau.start(positive, games.cols)
    tableau.optimise()
    primal = [tableau.primal(k) for k in (0, 1)]
    primal += [tableau.refined_primal(positive, v, k) for k, v in enumerate(primal)]
    dual = [tableau.dual()]
    dual.append(tableau.refined_dual(positive, dual[0]))
    cols = np.stack([_strategy(v, games.cols) for v in primal])
    rows = np.stack([_strategy(u, games.rows) for u in dual])
    uppers = np.stack([games.bounds(rows[0], col)[1] for col in cols])
    lowers = np.stack([games.bounds(row, cols[0])[0] for row in rows])
    member = np.arange(len(positive))
    col = cols[uppers.argmin(axis=0), member]
    row = rows[lowers.argmax(axis=0), member]
    value = (uppers.min(axis=0) + lowers.max(axis=0)) / 2
    return row, col, value, tableau.margin(games.cols) > UNIQUE_MARGIN


def _strategy(weights: np.ndarray, valid: np.ndarray) -> np.ndarray:
    """Weights [G, k] made probabilities; uniform over real actions where all are 0."""
    weights = np.where(valid, np.maximum(weights, 0), 0)
    total = weights.sum(axis=1, keepdims=True)
    uniform = valid / valid.sum(axis=1, keepdims=True)
    return np.where(total > 0, weights / np.where(total > 0, total, 1), uniform)


class _Tableau:
    """Condensed simplex tableaus [G, m + 1, n + 2] of many games.

    Rows are basic variables and the objective, columns nonbasic variables and two right-hand sides:
    the true one, and a slightly perturbed one that decides the pivots and so prevents cycling.
    Variable j < n is v_j, variable n + i the slack of row i.
    """

    def __init__(self, table: np.ndarray, basic: np.ndarray, nonbasic: np.ndarray):
        self.table, self.basic, self.nonbasic = table, basic, nonbasic
        self.m, self.n = basic.shape[1], nonbasic.shape[1]

    @classmethod
    def start(cls, positive: np.ndarray, cols: np.ndarray) -> "_Tableau":
        count, m, n = positive.shape
        table = np.zeros((count, m + 1, n + 2))
        table[:, :m, :n] = positive
        table[:, m, :n] = -1.0 * cols
        table[:, :m, n:] = cls._right_sides(m).T
        basic = np.tile(np.arange(n, n + m), (count, 1))
        return cls(table, basic, np.tile(np.arange(n), (count, 1)))

    @staticmethod
    def _right_sides(m: int) -> np.ndarray:
        fractions = np.modf(GOLDEN * np.arange(1, m + 1))[0]
        return np.stack([np.ones(m), 1 + PERTURBATION * (1 + fractions)])

    def optimise(self) -> None:
        """Pivots every game to its optimum; games that are done leave the working set."""
        active = np.arange(len(self.table))
        table, basic, nonbasic = self.table.copy(), self.basic.copy(), self.nonbasic.copy()
        for _ in range(8 * (self.m + self.n) + 1):
            column, running = self._entering(table)
            if not running.all():
                done = ~running
                self.table[active[done]] = table[done]
                self.basic[active[done]] = basic[done]
                self.nonbasic[active[done]] = nonbasic[done]
                active, column = active[running], column[running]
                table, basic, nonbasic = table[running], basic[running], nonbasic[running]
            if not active.size:
                return
            self._pivot(table, basic, nonbasic, column)
        # Games still running are left where they are: their certificate will fail.

    def _entering(self, table) -> tuple[np.ndarray, np.ndarray]:
        """Column of greatest improvement, and which games still have a negative reduced cost.

        Stopping looks at reduced costs only: an improvement can round to zero at a vertex that is
        not optimal.
        """
        m, n = self.m, self.n
        cost = table[:, m, :n]
        inverse = 1 / np.maximum(table[:, :m, n + 1], 1e-30)
        block = table[:, :m, :n]
        rate = np.where(block > PIVOT_TOLERANCE, block * inverse[:, :, None], 0).max(axis=1)
        eligible = (cost < -COST_TOLERANCE) & (rate > 0)
        gain = np.where(eligible, -cost / np.where(eligible, rate, 1), -1)
        column = gain.argmax(axis=1)
        return column, np.take_along_axis(gain, column[:, None], axis=1)[:, 0] >= 0

    def _pivot(self, table, basic, nonbasic, column) -> None:
        m, n = self.m, self.n
        game = np.arange(len(table))
        factor = table[game, :, column]
        entries = factor[:, :m]
        allowed = entries > PIVOT_TOLERANCE
        right = np.maximum(table[:, :m, n + 1], 0)
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

    def _by_label(self, labels: np.ndarray, values: np.ndarray) -> np.ndarray:
        full = np.zeros((len(values), self.m + self.n))
        np.put_along_axis(full, labels, values, axis=1)
        return full

    def primal(self, side: int) -> np.ndarray:
        """v [G, n] for right-hand side 0 (true) or 1 (perturbed)."""
        return self._by_label(self.basic, self.table[:, : self.m, self.n + side])[:, : self.n]

    def dual(self) -> np.ndarray:
        """u [G, m]."""
        return self._by_label(self.nonbasic, self.table[:, self.m, : self.n])[:, self.n :]

    def refined_primal(self, positive, v, side: int) -> np.ndarray:
        """One step of iterative refinement: the tableau holds the inverse of the basis."""
        residual = self._right_sides(self.m)[side] - np.einsum("gij,gj->gi", positive, v)
        slack = np.concatenate([np.zeros_like(v), residual], axis=1)
        step = np.take_along_axis(slack, self.nonbasic, axis=1)
        step = np.einsum("gij,gj->gi", self.table[:, : self.m, : self.n], step)
        return v + self._by_label(self.basic, step)[:, : self.n]

    def refined_dual(self, positive, u) -> np.ndarray:
        """The same for u."""
        residual = 1 - np.einsum("gij,gi->gj", positive, u)
        cost = np.concatenate([residual, np.zeros_like(u)], axis=1)
        step = np.take_along_axis(cost, self.basic, axis=1)
        step = np.einsum("gij,gi->gj", self.table[:, : self.m, : self.n], step)
        return u + self._by_label(self.nonbasic, step)[:, self.n :]

    def margin(self, cols: np.ndarray) -> np.ndarray:
        """Smallest basic value or reduced cost [G]; positive only where both optima are unique."""
        padding = np.concatenate([~cols, np.zeros(self.basic.shape, bool)], axis=1)
        padding = np.take_along_axis(padding, self.nonbasic, axis=1)
        cost = np.where(padding, np.inf, self.table[:, self.m, : self.n])
        return np.minimum(cost.min(axis=1), self.table[:, : self.m, self.n].min(axis=1))
