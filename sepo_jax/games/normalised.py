"""Zero-sum games brought to one scale, and the certificate that judges every solver's answer.

Inside the solvers the games of a batch are the last axis: [m, n, G] payoffs, [m, G] and [n, G]
masks and strategies. All steps then run over long contiguous rows, in numpy and in JAX alike.
"""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class NormalisedGames:
    """G games with payoffs moved to [0, 1]: original = 2^exponent (low + spread * payoffs).

    The power of two comes first and is exact, so strategies do not depend on the unit of payoffs,
    and neither denormal numbers nor an overflowing range can spoil the rest.

    Attributes:
      original: [G, m, n], as given; padding holds anything.
      payoffs: [m, n, G], 0 on padding.
      rows, cols: bool[m, G], bool[n, G], True on real actions.
      exponent, low, spread: [G]; spread is 0 in constant games, whose payoffs are all 0.
    """

    original: np.ndarray
    payoffs: np.ndarray
    rows: np.ndarray
    cols: np.ndarray
    exponent: np.ndarray
    low: np.ndarray
    spread: np.ndarray

    @classmethod
    def of(cls, table: np.ndarray, rows: np.ndarray, cols: np.ndarray) -> "NormalisedGames":
        """From float64[G, m, n], finite on real cells, and masks bool[G, m], bool[G, n]."""
        last = np.array(np.moveaxis(table, 0, -1), order="C")  # a copy: it is written to
        rows, cols = np.ascontiguousarray(rows.T), np.ascontiguousarray(cols.T)
        valid = rows[:, None] & cols[None]
        last[~valid] = 0
        exponent = np.frexp(np.abs(last).max(axis=(0, 1)))[1]
        scaled = np.ldexp(last, -exponent)
        low = np.where(valid, scaled, np.inf).min(axis=(0, 1))
        spread = np.where(valid, scaled, -np.inf).max(axis=(0, 1)) - low
        scaled -= low
        scaled /= np.where(spread > 0, spread, 1)
        scaled[~valid] = 0
        return cls(table, scaled, rows, cols, exponent, low, spread)

    def bounds(self, row: np.ndarray, col: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """`bounds` of these games, in their own normalised units."""
        return bounds(self.payoffs, self.rows, self.cols, row, col)

    def original_value(self, value: np.ndarray) -> np.ndarray:
        """Values [G] in the payoffs' own units."""
        return np.ldexp(self.low + self.spread * value, self.exponent)

    def original_gap(self, gap: np.ndarray) -> np.ndarray:
        """Differences of values [G] in the payoffs' own units."""
        return np.ldexp(self.spread * gap, self.exponent)


def bounds(payoffs, rows, cols, row, col, xp=np) -> tuple:
    """min_j (xᵀA)_j and max_i (A y)_i over real actions: any (x, y) brackets the value so.

    Args:
      payoffs, rows, cols: [m, n, G], bool[m, G], bool[n, G], as in `NormalisedGames`.
      row, col: x [m, G] and y [n, G], 0 on padding.
      xp: numpy or jax.numpy.

    Returns:
      (lower, upper), each [G].
    """
    upper = (payoffs * col[None]).sum(axis=1)
    lower = (payoffs * row[:, None]).sum(axis=0)
    upper = xp.where(rows, upper, -xp.inf).max(axis=0)
    return xp.where(cols, lower, xp.inf).min(axis=0), upper
