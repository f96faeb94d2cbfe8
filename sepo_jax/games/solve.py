"""Equilibria of zero-sum matrix games in batches, each with a certificate.

Condensed-tableau simplex on many games at once, in numpy or in JAX; a game whose certificate fails
is solved again in exact arithmetic (`exact`), so nothing uncertified is ever returned. The answer
is one vertex of the optimal set, the same for the same payoffs and method every time. Where there
are many, other profiles are judged by NashConv, never by distance to this one (see
`Equilibrium.unique`).
"""

from dataclasses import dataclass

import numpy as np

from sepo_jax.games import device_solver, matrix, simplex
from sepo_jax.games.arrays import as_numbers, as_tables
from sepo_jax.games.exact import solve_exact
from sepo_jax.games.normalised import NormalisedGames
from sepo_jax.names import check_option

METHODS = ("simplex", "device", "exact")
TOLERANCES = {"float64": 1e-9, "float32": 1e-5}  # by dtype: largest accepted relative NashConv
# Tableau entries worked on at once: they stay in cache; a device call has a cost of its own.
CHUNK_ELEMENTS = {"simplex": 2**17, "device": 2**19, "exact": 2**17}


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
    dtype: str = "float64",
    tolerance: float | None = None,
) -> Equilibrium:
    """Solves zero-sum (or constant-sum) matrix games; the row player maximises `payoffs`.

    Args:
      payoffs: [..., m, n], the row player's.
      row_mask, col_mask: bool[..., m], bool[..., n], True on real actions; padding is never read.
      col_payoffs: the column player's payoffs where they are not just the negative: checked to
        add up to a constant with `payoffs`, which alone then decide equilibria and value.
      symmetric: both players get the row player's strategy, after a check that seats are alike.
      method: "simplex" (numpy floats, nothing to compile), "device" (the same in JAX: several times
        faster on large batches of up to 16x16, compiled once a size), both with exact arithmetic
        only where the certificate fails; or "exact".
      dtype: "float64", or "float32" with "device": strategies to about 1e-6.
      tolerance: largest relative NashConv that is accepted from floats; None means 1e-9 in float64
        and 1e-5 in float32.

    Returns:
      `Equilibrium`; every game has one, trivial games included.

    Raises:
      ValueError: shapes that do not fit, entries that are no real numbers, NaN or infinity in a
        real cell, a player without actions, general-sum payoffs, a game that is not symmetric
        though `symmetric` says so, an unknown method or dtype, a negative or infinite tolerance,
        float32 with another method than "device".
    """
    check_option("method", method, METHODS)
    check_option("dtype", dtype, TOLERANCES)
    if dtype != "float64" and method != "device":
        raise ValueError(f'method {method!r} works in float64; dtype {dtype!r} needs "device"')
    tolerance = TOLERANCES[dtype] if tolerance is None else tolerance
    if not 0 <= tolerance < np.inf:
        raise ValueError(f"tolerance={tolerance}; give a share of the payoff range, 0 or more")
    table, rows, cols = _checked(payoffs, row_mask, col_mask)
    if col_payoffs is not None:
        matrix.constant_sum(payoffs, col_payoffs, row_mask, col_mask)
    if symmetric:
        if rows.shape == cols.shape and (rows != cols).any():
            raise ValueError(
                "row_mask and col_mask differ; the seats of a symmetric game have the same actions"
            )
        other = None if col_payoffs is None else np.broadcast_to(col_payoffs, table.shape)
        matrix.require_symmetric(table, other, rows)
    lead, (m, n) = table.shape[:-2], table.shape[-2:]
    table, rows, cols = table.reshape(-1, m, n), rows.reshape(-1, m), cols.reshape(-1, n)
    parts = []
    fitting = CHUNK_ELEMENTS[method] // ((m + 1) * (n + 2))
    size = 1 << max(0, fitting.bit_length() - 1)
    for start in range(0, max(1, table.shape[0]), size):
        chunk = slice(start, start + size)
        games = NormalisedGames.of(table[chunk], rows[chunk], cols[chunk])
        parts.append(_solve_chunk(games, method, dtype, tolerance, symmetric))
    fields = [np.concatenate(field) for field in zip(*parts, strict=True)]
    return Equilibrium(*(field.reshape(lead + field.shape[1:]) for field in fields))


def _checked(payoffs, row_mask, col_mask) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Payoffs and full masks with common leading axes."""
    table = as_tables(payoffs)
    masks = []
    for name, mask, axis in (("row_mask", row_mask, -2), ("col_mask", col_mask, -1)):
        mask = np.ones(table.shape[axis], bool) if mask is None else mask
        mask = np.asarray(as_numbers(name, mask), bool)
        if mask.shape[-1:] != (table.shape[axis],):
            raise ValueError(
                f"{name} of shape {list(mask.shape)} for payoffs of shape {list(table.shape)}; "
                f"expected [..., {table.shape[axis]}]"
            )
        if not mask.any(axis=-1).all():
            raise ValueError(f"{name} leaves a game without any action")
        masks.append(mask)
    leads = [table.shape[:-2], *(mask.shape[:-1] for mask in masks)]
    try:
        lead = np.broadcast_shapes(*leads)
    except ValueError:
        raise ValueError(
            f"leading axes of payoffs {list(leads[0])}, row_mask {list(leads[1])} and col_mask "
            f"{list(leads[2])} do not fit; give masks for one game, or for each of the payoffs'"
        ) from None
    table = np.broadcast_to(table, lead + table.shape[-2:])
    rows, cols = (np.broadcast_to(mask, lead + mask.shape[-1:]) for mask in masks)
    if not np.isfinite(np.where(rows[..., :, None] & cols[..., None, :], table, 0)).all():
        raise ValueError(f"payoffs of shape {list(table.shape)} hold NaN or infinity")
    return table, rows, cols


def _solve_chunk(
    games: NormalisedGames, method: str, dtype: str, tolerance: float, symmetric: bool
) -> tuple[np.ndarray, ...]:
    """Fields of `Equilibrium` for one chunk."""
    m, n, count = games.payoffs.shape
    if method == "exact":
        row, col, value = np.zeros((m, count)), np.zeros((n, count)), np.zeros(count)
        unique, accepted = np.zeros(count, bool), np.zeros(count, bool)
        lower, upper = np.zeros(count), np.zeros(count)
    else:
        found = simplex.solve(games) if method == "simplex" else device_solver.solve(games, dtype)
        row, col, value, unique = found
        col = row if symmetric else col
        lower, upper = games.bounds(row, col)
        value = np.clip(value, np.minimum(lower, upper), np.maximum(lower, upper))
        accepted = upper - lower <= tolerance  # NaN fails
    value = games.original_value(value)
    failed = np.flatnonzero(~accepted)
    for g in failed:
        rows, cols = games.rows[:, g], games.cols[:, g]
        solution = solve_exact(games.original[g][np.ix_(rows, cols)].tolist())
        row[:, g], col[:, g] = 0, 0
        row[rows, g] = np.array(solution.row, np.float64)
        col[cols, g] = row[rows, g] if symmetric else np.array(solution.col, np.float64)
        value[g], unique[g] = float(solution.value), solution.unique
    if failed.size:
        lower, upper = games.bounds(row, col)
    gap = upper - lower
    if not (np.abs(gap) <= max(tolerance, 1e-12)).all():
        raise ArithmeticError(f"no certified equilibrium: relative NashConv {gap.max()}")
    gap = np.maximum(gap, 0)
    relative = np.where(games.spread > 0, gap, 0.0)
    return row.T, col.T, value, games.original_gap(gap), relative, unique, ~accepted
