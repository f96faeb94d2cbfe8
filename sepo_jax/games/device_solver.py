"""Simplex on many zero-sum games at once in JAX; see `tableau` for the linear program.

The same steps as `simplex`, with one-hot picks in place of indexing: every game of a chunk makes
every pivot, and games that are done stay as they are. On a CPU a chunk is as many tableaus as the
first-level cache holds; accelerators take thousands at once.
"""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from sepo_jax.games import tableau
from sepo_jax.games.normalised import NormalisedGames
from sepo_jax.games.tableau import Tableau, Tolerances

CACHE_BYTES = 32 * 1024
SMALLEST_CHUNK, LARGEST_CHUNK = 8, 4096  # games; 8 float64 fill a vector register
_hold = jax.lax.optimization_barrier  # fused into the pivot, picks are computed for every entry


def solve(games: NormalisedGames, dtype: str = "float64") -> tuple[np.ndarray, ...]:
    """Row and column strategies [m, G], [n, G], normalised values [G] and uniqueness [G].

    Args:
      games: G of them; compiled for each m, n, dtype, and power of two that G fits in.
      dtype: "float64" or "float32", of the arithmetic; the results are float64.
    """
    with jax.enable_x64(dtype == "float64"):
        payoffs = games.payoffs.astype(dtype)
        count = payoffs.shape[-1]
        chunk = _chunk_size(*payoffs.shape[:2], payoffs.dtype.itemsize)
        # Few sizes are compiled: added games have no cells and are done at once.
        number = 1 << max(0, math.ceil(count / chunk) - 1).bit_length()
        extra = number * chunk - count
        payoffs, rows, cols = (
            np.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, extra)])
            for array in (payoffs, games.rows, games.cols)
        )
        found = _solve(payoffs, rows, cols, tableau.TOLERANCES[dtype], chunk)
        row, col, value, unique = (np.array(array)[..., :count] for array in found)
    row, col, value = (array.astype(np.float64) for array in (row, col, value))
    # Float32 strategies sum to 1 within 1e-7 only.
    return tableau.strategy(row, games.rows), tableau.strategy(col, games.cols), value, unique


def _chunk_size(m: int, n: int, itemsize: int) -> int:
    if jax.default_backend() != "cpu":
        return LARGEST_CHUNK
    fitting = CACHE_BYTES // ((m + 1) * (n + 2) * itemsize)
    return max(SMALLEST_CHUNK, 1 << max(0, fitting.bit_length() - 1))


@partial(jax.jit, static_argnums=(3, 4))
def _solve(payoffs, rows, cols, tolerances: Tolerances, chunk: int):
    def chunked(array):  # [..., G] -> [G / chunk, ..., chunk]
        return jnp.moveaxis(array.reshape(*array.shape[:-1], -1, chunk), -2, 0)

    def run(arrays):
        optimal = _optimise(tableau.start(*arrays, tolerances, jnp), tolerances)
        return tableau.read_out(optimal, *arrays, tolerances, jnp)

    found = jax.lax.map(run, tuple(chunked(array) for array in (payoffs, rows, cols)))
    found = (jnp.moveaxis(array, 0, -2) for array in found)
    return tuple(array.reshape(*array.shape[:-2], -1) for array in found)


def _optimise(first: Tableau, tolerances: Tolerances) -> Tableau:
    """Pivots every game to its optimum."""
    limit = 8 * (len(first.basic) + len(first.nonbasic))

    def proceed(state):
        _, _, running, pivots = state
        return running.any() & (pivots < limit)

    def advance(state):
        current, column, running, pivots = state
        current = _pivot(current, column, running, tolerances)
        return current, *_entering(current.table, tolerances), pivots + 1

    state = first, *_entering(first.table, tolerances), 0
    return jax.lax.while_loop(proceed, advance, state)[0]


def _entering(table, tolerances: Tolerances) -> tuple[jax.Array, jax.Array]:
    """Column of greatest improvement int32[C], and which games still have a negative cost."""
    block, cost = table[:-1, :-2], table[-1, :-2]
    inverse = _hold(1 / jnp.maximum(table[:-1, -1], 1e-30))
    rate = jnp.where(block > tolerances.pivot, block * inverse[:, None], 0).max(axis=0)
    eligible = (cost < -tolerances.cost) & (rate > 0)
    gain = _hold(jnp.where(eligible, -cost / jnp.where(eligible, rate, 1), -1))
    return _hold((jnp.argmax(gain, axis=0).astype(jnp.int32), gain.max(axis=0) >= 0))


def _pivot(current: Tableau, column, running, tolerances: Tolerances) -> Tableau:
    """One pivot of every running game; the ratio test takes the perturbed right-hand side."""
    table, basic, nonbasic = current
    m, n = len(basic), len(nonbasic)
    at_column = _one_hot(column, n + 2)
    factor = _hold(jnp.where(at_column[None], table, 0).sum(axis=1))
    allowed = factor[:m] > tolerances.pivot
    right = jnp.maximum(table[:m, n + 1], 0)
    ratio = _hold(jnp.where(allowed, right / jnp.where(allowed, factor[:m], 1), jnp.inf))
    row = _hold(jnp.argmin(ratio, axis=0).astype(jnp.int32))
    at_row = _one_hot(row, m + 1)
    pivot = jnp.where(at_row, factor, 0).sum(axis=0)
    inverse = _hold(1 / jnp.where(running, pivot, 1))
    pivot_row = _hold(jnp.where(at_row[:, None], table, 0).sum(axis=0))
    new_row = jnp.where(at_column, inverse[None], pivot_row * inverse[None])
    new_row = _hold(jnp.where(running[None], new_row, 0))
    factor = _hold(jnp.where(at_row, -1, factor))
    replaced = running[None, None] & (at_row[:, None] | at_column[None])
    table = jnp.where(replaced, 0, table) - factor[:, None] * new_row[None]
    leaving = jnp.where(at_row[:m], basic, 0).sum(axis=0, dtype=jnp.int32)
    entering = jnp.where(at_column[:n], nonbasic, 0).sum(axis=0, dtype=jnp.int32)
    basic = jnp.where(at_row[:m] & running[None], entering[None], basic)
    nonbasic = jnp.where(at_column[:n] & running[None], leaving[None], nonbasic)
    return Tableau(table, basic, nonbasic)


def _one_hot(index, size: int) -> jax.Array:
    """bool[size, C], True at index [C]."""
    return np.arange(size, dtype=np.int32)[:, None] == index[None]
