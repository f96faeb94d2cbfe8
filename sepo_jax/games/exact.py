"""Exact equilibria of zero-sum matrix games in rational arithmetic, without any library.

A fraction-free simplex (Bareiss, "Sylvester's identity and multistep integer-preserving Gaussian
elimination", Mathematics of Computation 22, 1968): the tableau holds integers over one common
denominator, and every division in a pivot comes out even. It does thousands of 5x5
games a second: the last word on a game rather than a solver of large batches.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class ExactEquilibrium:
    """Optimal strategies and value of one game.

    Attributes:
      row, col: one probability an action, they sum to exactly 1.
      value: the row player's payoff.
      unique: True only where both optimal strategies are proved unique (the optimal vertex is not
        degenerate on either side).
    """

    row: tuple[Fraction, ...]
    col: tuple[Fraction, ...]
    value: Fraction
    unique: bool


def solve_exact(payoffs: Sequence[Sequence]) -> ExactEquilibrium:
    """Solves one zero-sum game exactly.

    The linear program is max Σv with B v <= 1, v >= 0, where B is the payoffs shifted to be at
    least 1; the game value of B is 1 / Σv, col = v / Σv, and row is the dual solution likewise.

    Args:
      payoffs: m rows of n finite numbers: int, Fraction, or float (taken as it is stored), or an
        array of them.

    Raises:
      ValueError: no cell, rows of unequal length, NaN or infinity, or what is no number.
    """
    matrix, denominator = _integers(payoffs)
    shift = min(map(min, matrix)) - 1
    m, n = len(matrix), len(matrix[0])
    tableau = [[entry - shift for entry in row] + [1] for row in matrix]
    tableau.append([-1] * n + [0])
    basic, nonbasic = list(range(n, n + m)), list(range(n))
    scale = _optimise(tableau, basic, nonbasic)
    total = tableau[m][n]
    row, col = [Fraction(0)] * m, [Fraction(0)] * n
    for i, label in enumerate(basic):
        if label < n:
            col[label] = Fraction(tableau[i][n], total)
    for j, label in enumerate(nonbasic):
        if label >= n:
            row[label - n] = Fraction(tableau[m][j], total)
    margins = [tableau[i][n] for i in range(m)] + tableau[m][:n]
    value = (Fraction(scale, total) + shift) / denominator
    return ExactEquilibrium(tuple(row), tuple(col), value, min(margins) > 0)


def _integers(payoffs) -> tuple[list[list[int]], int]:
    """The payoffs times their common denominator, and that denominator."""
    payoffs = payoffs.tolist() if hasattr(payoffs, "tolist") else payoffs
    try:
        rows = [list(row) for row in payoffs]
        if any(isinstance(entry, str) for row in rows for entry in row):
            raise TypeError("text")
        rows = [[Fraction(entry) for entry in row] for row in rows]
    except TypeError:
        raise ValueError(f"payoffs must be rows of numbers, not {repr(payoffs)[:200]}") from None
    except (ValueError, OverflowError) as error:
        raise ValueError("payoffs hold NaN or infinity") from error
    if not rows or not rows[0] or any(len(row) != len(rows[0]) for row in rows):
        raise ValueError(f"payoffs with rows of lengths {[len(row) for row in rows]}; need [m, n]")
    denominator = math.lcm(*(entry.denominator for row in rows for entry in row))
    return [[int(entry * denominator) for entry in row] for row in rows], denominator


def _optimise(tableau: list[list[int]], basic: list[int], nonbasic: list[int]) -> int:
    """Pivots to an optimal tableau in place; returns its common denominator."""
    m, n = len(basic), len(nonbasic)
    scale = 1
    # The largest-coefficient rule is quick; Bland's rule after it cannot cycle.
    pivots_before_bland = 50 * (m + n)
    for pivot_count in range(10**9):
        candidates = [j for j in range(n) if tableau[m][j] < 0]
        if not candidates:
            break
        if pivot_count < pivots_before_bland:
            c = min(candidates, key=lambda j: (tableau[m][j], nonbasic[j]))
        else:
            c = min(candidates, key=lambda j: nonbasic[j])
        r = _leaving_row(tableau, basic, c)
        scale = _pivot(tableau, r, c, scale)
        basic[r], nonbasic[c] = nonbasic[c], basic[r]
    return scale


def _leaving_row(tableau, basic, c) -> int:
    best = None
    for i, label in enumerate(basic):
        if tableau[i][c] <= 0:
            continue
        if best is None:
            best = i
            continue
        left = tableau[i][-1] * tableau[best][c]
        right = tableau[best][-1] * tableau[i][c]
        if left < right or (left == right and label < basic[best]):
            best = i
    return best  # never None: the feasible set is bounded, since all of B is positive


def _pivot(tableau, r, c, scale) -> int:
    """One step on entry (r, c); returns the next common denominator."""
    pivot_row, pivot = tableau[r], tableau[r][c]
    for i, row in enumerate(tableau):
        if i == r:
            continue
        factor = row[c]
        tableau[i] = [
            (entry * pivot - factor * other) // scale
            for entry, other in zip(row, pivot_row, strict=True)
        ]
        tableau[i][c] = -factor
    pivot_row[c] = scale
    return pivot
