"""NashConv and best-response gains of batches of matrix games.

Shapes: `...` leading batch axes (broadcast against each other), m rows, n columns. `payoffs` are
the row player's; in zero-sum games the column player receives the negative. Masks are True on real
actions; payoffs and probabilities outside them are never read, so padding may hold anything, NaN
included.

Everything can be jitted, vmapped and differentiated. Outside jit the inputs are checked first
(`check_profile`); inside only their shapes can be. Computation is float32, and float64 for float64
inputs where JAX has x64 enabled.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from sepo_jax.games.arrays import (
    ROUNDING,
    as_float,
    as_numbers,
    check_magnitude,
    float_type,
    largest_allowed,
)

SUM_TOLERANCE = 1e-5
CONSTANT_TOLERANCE = 1e-9  # relative to the payoff range of the game
# Sums written out term by term, all of shape [...], run at memory speed on CPU and at full
# precision everywhere; larger games go to one einsum.
MAX_UNROLLED = 16


def nash_conv(payoffs, row, col, row_mask=None, col_mask=None) -> jax.Array:
    """max_i (A y)_i - min_j (xᵀ A)_j: the sum of both best-response gains of a zero-sum game.

    0 exactly at an equilibrium, up to rounding: in float32 about 1e-7 of the largest payoff
    magnitude. A constant added to all payoffs changes nothing but that magnitude; it is taken out
    first, in float64, where payoffs are no JAX arrays and nothing is traced.

    Args:
      payoffs: A, [..., m, n].
      row: x, [..., m], non-negative, sums to 1.
      col: y, [..., n], likewise.
      row_mask, col_mask: bool[..., m], bool[..., n]; None means that every action is real.

    Returns:
      [...], in units of the payoffs, not halved.

    Raises:
      ValueError: shapes that do not fit (all are named), no cells, NaN, negative probabilities,
        sums that are not 1, entries that are no real numbers, payoffs above a quarter of the float
        range (divide them by a constant).
    """
    arrays = _prepare(payoffs, row, col, row_mask, col_mask, shifted=True)
    return _best_response_values(*arrays).sum(axis=-1)


def exploitability(
    payoffs, row, col, row_mask=None, col_mask=None, *, col_payoffs=None
) -> jax.Array:
    """NashConv / 2 of a zero-sum or constant-sum game, [...].

    Args and errors as in `nash_conv`. Give `col_payoffs` where the column player's payoffs are not
    just the negative of `payoffs`: they are checked to add up to a constant.

    Raises:
      ValueError: general-sum payoffs; use `bimatrix_gains` there.
    """
    if col_payoffs is not None:
        constant_sum(payoffs, col_payoffs, row_mask, col_mask)
    return nash_conv(payoffs, row, col, row_mask, col_mask) / 2


def best_response_values(payoffs, row, col, row_mask=None, col_mask=None) -> jax.Array:
    """Best-response payoff of each player of a zero-sum game: (max_i (A y)_i, -min_j (xᵀ A)_j).

    Args and errors as in `nash_conv`. Returns [..., 2].
    """
    arrays = _prepare(payoffs, row, col, row_mask, col_mask)
    return _best_response_values(*arrays)


def expected_value(payoffs, row, col, row_mask=None, col_mask=None) -> jax.Array:
    """The row player's expected payoff xᵀ A y, [...]. Args and errors as in `nash_conv`."""
    return _expected_value(*_prepare(payoffs, row, col, row_mask, col_mask))


def bimatrix_gains(row_payoffs, col_payoffs, row, col, row_mask=None, col_mask=None) -> jax.Array:
    """Best-response gain of each player of a general-sum game, [..., 2], each >= 0.

    The row player gains Σ_i x_i (max_k (A y)_k - (A y)_i), the column player likewise with xᵀ B:
    sums of non-negative terms, so small gains keep their digits. Both are 0 exactly at a Nash
    equilibrium.

    Args:
      row_payoffs, col_payoffs: A and B, [..., m, n].
      row, col, row_mask, col_mask: as in `nash_conv`.

    Raises:
      ValueError: as `nash_conv`.
    """
    first = _prepare(row_payoffs, row, col, row_mask, col_mask, shifted=True)
    second = _prepare(col_payoffs, row, col, row_mask, col_mask, shifted=True)
    return _bimatrix_gains(first[0], *second)


def constant_sum(row_payoffs, col_payoffs, row_mask=None, col_mask=None) -> np.ndarray:
    """What the two players' payoffs add up to in each game, float64[...].

    A constant-sum game has the equilibria, values and NashConv of the zero-sum game `row_payoffs`;
    the column player's payoff is the constant minus the row player's.

    Raises:
      ValueError: the sum varies over cells: the game is general-sum, where neither a game value nor
        exploitability is defined.
    """
    first, second = np.asarray(row_payoffs, np.float64), np.asarray(col_payoffs, np.float64)
    if first.shape != second.shape or first.ndim < 2:
        raise ValueError(
            f"row payoffs of shape {list(first.shape)} and column payoffs of shape "
            f"{list(second.shape)}; both must be [..., m, n]"
        )
    valid = _valid_cells(first.shape, row_mask, col_mask)
    low, high = _ends(first + second, valid)
    equal = high - low <= _negligible(first, second, valid)
    if not equal.all():
        game = np.unravel_index(np.argmin(equal), equal.shape)
        raise ValueError(
            f"general-sum game: the payoffs of the two players add up to {low[game]} to "
            f"{high[game]}, not to a constant; a value and exploitability need a constant sum. "
            "Use bimatrix_gains(row_payoffs, col_payoffs, row, col) for each player's gain."
        )
    return (low + high) / 2


def require_symmetric(row_payoffs, col_payoffs=None, mask=None) -> None:
    """Refuses a game whose two seats are not alike.

    Args:
      row_payoffs: A, [..., n, n]; col_payoffs: B, or None for the zero-sum game B = -A.
      mask: bool[..., n], True on the real actions of either seat.

    Raises:
      ValueError: not square, or B differs from the transpose of A in some cell, which is named.
    """
    first = np.asarray(row_payoffs, np.float64)
    second = -first if col_payoffs is None else np.asarray(col_payoffs, np.float64)
    if first.ndim < 2 or first.shape[-1] != first.shape[-2] or first.shape != second.shape:
        raise ValueError(
            f"a symmetric game is square; payoffs have shapes {list(first.shape)} and "
            f"{list(second.shape)}"
        )
    valid = _valid_cells(first.shape, mask, mask)
    gap = np.where(valid, np.abs(np.swapaxes(first, -1, -2) - second), 0)
    equal = gap <= _negligible(first, second, valid)[..., None, None]
    if not equal.all():
        place = np.unravel_index(np.argmin(equal), equal.shape)
        i, j = (int(index) for index in place[-2:])
        swapped = np.broadcast_to(np.swapaxes(first, -1, -2), equal.shape)[place]
        raise ValueError(
            f"the game is not symmetric: at row {i}, column {j} the column player gets "
            f"{np.broadcast_to(second, equal.shape)[place]}, the row player gets {swapped} with "
            "the seats swapped. Keep the two seats apart."
        )


def check_profile(payoffs, row, col, row_mask=None, col_mask=None) -> None:
    """Refuses what is not a profile of mixed strategies for the payoffs; runs on the host.

    Raises:
      ValueError: shapes that do not fit (all are named), a player without real actions, NaN or
        infinity in real cells, negative probabilities, sums other than 1.
    """
    _common_shape(payoffs, row, col, row_mask, col_mask)
    table = np.asarray(as_numbers("payoffs", payoffs), np.float64)
    cells = _valid_cells(table.shape, row_mask, col_mask)
    if not np.isfinite(np.where(cells, table, 0)).all():
        raise ValueError(f"payoffs of shape {list(table.shape)} hold NaN or infinity")
    for name, strategy, mask in (("row", row, row_mask), ("col", col, col_mask)):
        strategy = np.asarray(as_numbers(name, strategy), np.float64)
        valid = np.asarray(True if mask is None else mask, bool)
        if not np.broadcast_to(valid, np.broadcast_shapes(valid.shape, (1,))).any(-1).all():
            raise ValueError(f"{name}_mask leaves a game without any action")
        strategy, valid = np.broadcast_arrays(strategy, valid)
        real = np.where(valid, strategy, 0)
        off = np.abs(real.sum(-1) - 1)
        for fault, bad in (
            ("holds NaN or infinity", ~np.isfinite(real).all(-1)),
            ("has a negative entry", (real < 0).any(-1)),
            ("does not sum to 1 over real actions", ~(off <= SUM_TOLERANCE)),
        ):
            if bad.any():
                where = tuple(int(index) for index in np.argwhere(bad)[0])
                place = f" (batch member {list(where)})" if where else ""
                raise ValueError(
                    f"{name} strategy{place} {fault}: {real[where].tolist()}, "
                    f"sum {real[where].sum()}"
                )


def _valid_cells(shape, row_mask, col_mask) -> np.ndarray:
    rows = np.ones(shape[-2], bool) if row_mask is None else np.asarray(row_mask, bool)
    cols = np.ones(shape[-1], bool) if col_mask is None else np.asarray(col_mask, bool)
    return rows[..., :, None] & cols[..., None, :]


def _ends(table, valid) -> tuple[np.ndarray, np.ndarray]:
    """Lowest and highest valid entry of each game [...]."""
    low = np.where(valid, table, np.inf).min(axis=(-2, -1))
    return low, np.where(valid, table, -np.inf).max(axis=(-2, -1))


def _negligible(first, second, valid) -> np.ndarray:
    """Largest difference of payoffs [...] that is none, game by game: neither an offset of all
    payoffs nor large payoffs of other games of a batch hide a difference."""
    ends = [_ends(table, valid) for table in (first, second)]
    # The difference of two ends could overflow.
    ranges = (CONSTANT_TOLERANCE * high - CONSTANT_TOLERANCE * low for low, high in ends)
    largest = np.abs(np.stack([end for pair in ends for end in pair])).max(axis=0)
    return np.maximum(*ranges) + ROUNDING * largest


def _common_shape(payoffs, row, col, row_mask, col_mask) -> tuple[int, ...]:
    """Broadcast leading axes, after checking that all shapes fit."""
    shape, row_shape, col_shape = np.shape(payoffs), np.shape(row), np.shape(col)
    masks = [None if mask is None else np.shape(mask) for mask in (row_mask, col_mask)]
    fits = (
        len(shape) >= 2
        and 0 not in shape[-2:]
        and row_shape[-1:] == shape[-2:-1]
        and col_shape[-1:] == shape[-1:]
    )
    fits &= masks[0] is None or masks[0][-1:] == shape[-2:-1]
    fits &= masks[1] is None or masks[1][-1:] == shape[-1:]
    if fits:
        leads = [shape[:-2], row_shape[:-1], col_shape[:-1]]
        leads += [mask[:-1] for mask in masks if mask is not None]
        try:
            return np.broadcast_shapes(*leads)
        except ValueError:
            pass
    text = [None if mask is None else list(mask) for mask in masks]
    raise ValueError(
        f"payoffs {list(shape)}, row {list(row_shape)}, col {list(col_shape)}, row_mask "
        f"{text[0]}, col_mask {text[1]} do not fit; expected [..., m, n], [..., m], [..., n], "
        "[..., m], [..., n] with m and n at least 1"
    )


def _prepare(payoffs, row, col, row_mask, col_mask, *, shifted: bool = False) -> tuple:
    """Arrays of one float type and of common leading axes; checked when they are concrete.

    Args:
      shifted: the result does not change when a constant is added to a game's payoffs.
    """
    given = (payoffs, row, col, row_mask, col_mask)
    lead = _common_shape(*given)
    names = ("payoffs", "row", "col")
    numbers = [as_numbers(name, array) for name, array in zip(names, given, strict=False)]
    dtype = float_type(*numbers)
    traced = any(isinstance(array, jax.core.Tracer) for array in given)
    if shifted and not traced and isinstance(numbers[0], np.ndarray):
        numbers[0] = _near_zero(numbers[0], row_mask, col_mask, dtype)
    arrays = [
        jnp.broadcast_to(as_float(array, dtype), lead + array.shape[array.ndim - rank :])
        for array, rank in zip(numbers, (2, 1, 1), strict=True)
    ]
    for mask in (row_mask, col_mask):
        if mask is not None:
            mask = jnp.asarray(mask, bool)
            mask = jnp.broadcast_to(mask, lead + mask.shape[-1:])
        arrays.append(mask)
    if not traced and not bool(_is_profile(*arrays)):
        check_profile(*given)
        table = np.asarray(payoffs, np.float64)
        cells = np.where(_valid_cells(table.shape, row_mask, col_mask), table, 0)
        check_magnitude(np.abs(cells).max(initial=0), dtype)
    return tuple(arrays)


def _near_zero(payoffs, row_mask, col_mask, dtype) -> np.ndarray:
    """Payoffs of each game minus the number of their range that is nearest to 0, float64.

    No payoff grows, so nothing is lost where small and large payoffs meet.
    """
    table = np.asarray(payoffs, np.float64)
    cells = _valid_cells(table.shape, row_mask, col_mask)
    low = np.where(cells, table, np.inf).min(axis=(-2, -1), keepdims=True)
    high = np.where(cells, table, -np.inf).max(axis=(-2, -1), keepdims=True)
    finite = np.isfinite(low) & np.isfinite(high)
    check_magnitude(np.where(finite, np.maximum(-low, high), 0).max(initial=0), dtype)
    return table - np.where(finite, np.clip(0, low, high), 0)


@jax.jit
def _is_profile(payoffs, row, col, row_mask, col_mask):
    payoffs, row, col = _without_padding(payoffs, row, col, row_mask, col_mask)
    # Written so that NaN fails; an empty mask fails the sum.
    good = (jnp.abs(payoffs) <= largest_allowed(payoffs.dtype)).all()
    for strategy in (row, col):
        size = strategy.shape[-1]
        small = size <= MAX_UNROLLED
        total = _total([strategy[..., k] for k in range(size)] if small else strategy)
        good &= (strategy >= 0).all() & (jnp.abs(total - 1) <= SUM_TOLERANCE).all()
    return good


def _without_padding(payoffs, row, col, row_mask, col_mask) -> tuple:
    if row_mask is not None:
        payoffs = jnp.where(row_mask[..., :, None], payoffs, 0)
        row = jnp.where(row_mask, row, 0)
    if col_mask is not None:
        payoffs = jnp.where(col_mask[..., None, :], payoffs, 0)
        col = jnp.where(col_mask, col, 0)
    return payoffs, row, col


# Values of all own actions: a list of arrays [...] where sums are written out, else one [..., k].
_Values = list[jax.Array] | jax.Array


def _row_values(payoffs, col) -> _Values:
    """(A y)_i for every row."""
    m, n = payoffs.shape[-2:]
    if max(m, n) > MAX_UNROLLED:
        return jnp.einsum("...ij,...j->...i", payoffs, col, precision=jax.lax.Precision.HIGHEST)
    return [_total([payoffs[..., i, j] * col[..., j] for j in range(n)]) for i in range(m)]


def _col_values(payoffs, row) -> _Values:
    """(xᵀ A)_j for every column."""
    m, n = payoffs.shape[-2:]
    if max(m, n) > MAX_UNROLLED:
        return jnp.einsum("...ij,...i->...j", payoffs, row, precision=jax.lax.Precision.HIGHEST)
    return [_total([payoffs[..., i, j] * row[..., i] for i in range(m)]) for j in range(n)]


def _total(values: _Values) -> jax.Array:
    return functools.reduce(jnp.add, values) if isinstance(values, list) else values.sum(axis=-1)


def _largest(values: _Values, mask) -> jax.Array:
    """Maximum over real actions."""
    if not isinstance(values, list):
        return (values if mask is None else jnp.where(mask, values, -jnp.inf)).max(axis=-1)
    if mask is not None:
        values = [jnp.where(mask[..., k], value, -jnp.inf) for k, value in enumerate(values)]
    return functools.reduce(jnp.maximum, values)


def _smallest(values: _Values, mask) -> jax.Array:
    negative = [-value for value in values] if isinstance(values, list) else -values
    return -_largest(negative, mask)


def _mean(strategy, values: _Values) -> jax.Array:
    """Σ_k strategy_k values_k."""
    if not isinstance(values, list):
        return (strategy * values).sum(axis=-1)
    return _total([strategy[..., k] * value for k, value in enumerate(values)])


@jax.jit
def _best_response_values(payoffs, row, col, row_mask, col_mask):
    payoffs, row, col = _without_padding(payoffs, row, col, row_mask, col_mask)
    upper = _largest(_row_values(payoffs, col), row_mask)
    lower = _smallest(_col_values(payoffs, row), col_mask)
    return jnp.stack([upper, -lower], axis=-1)


@jax.jit
def _expected_value(payoffs, row, col, row_mask, col_mask):
    payoffs, row, col = _without_padding(payoffs, row, col, row_mask, col_mask)
    return _mean(row, _row_values(payoffs, col))


@jax.jit
def _bimatrix_gains(row_payoffs, col_payoffs, row, col, row_mask, col_mask):
    row_payoffs, *_ = _without_padding(row_payoffs, row, col, row_mask, col_mask)
    col_payoffs, row, col = _without_padding(col_payoffs, row, col, row_mask, col_mask)
    gains = []
    for values, own, mask in (
        (_row_values(row_payoffs, col), row, row_mask),
        (_col_values(col_payoffs, row), col, col_mask),
    ):
        best = _largest(values, mask)
        if isinstance(values, list):
            gains.append(_mean(own, [best - value for value in values]))
        else:
            gains.append(_mean(own, best[..., None] - values))
    return jnp.stack(gains, axis=-1)
