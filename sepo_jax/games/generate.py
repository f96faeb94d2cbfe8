"""Random zero-sum matrix games in batches, ways to change them, and disjoint splits.

Every function takes a JAX key first and is deterministic in it; results are numpy float64, for all
games of a batch at once. Numbers are drawn on the host by Philox 4x64 (Salmon et al., SC 2011) from
the bits of the key: no shape is compiled, and a key gives the same games under every version of JAX
and numpy. The row player maximises. `NAMED` holds well-known games.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import numpy as np

from sepo_jax.games.arrays import as_tables
from sepo_jax.games.named_games import NAMED, NamedGame

__all__ = [
    "NAMED",
    "NamedGame",
    "Padded",
    "content_hash",
    "dense",
    "pad_dominated",
    "pad_random",
    "permute",
    "perturb",
    "split",
]

SHARE_TOLERANCE = 1e-9  # of a sum of shares
# Of differences in padded games, beside the range of the game and beside a rounding of its payoffs.
SHARE_SEEN, ROUNDINGS_SEEN = 1e-7, 1e5
MIX = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)  # multipliers of the mixing function of SplitMix64
STEP = 0x9E3779B97F4A7C15  # 2^64 / golden ratio, its increment


@dataclass(frozen=True)
class Padded:
    """Games embedded in larger ones.

    Attributes:
      payoffs: [..., m, n].
      row_index, col_index: [..., m0], [..., n0], where each action of the core went.
      scale, offset: [...]; padded payoff = scale * core payoff + offset on the core's cells.
    """

    payoffs: np.ndarray
    row_index: np.ndarray
    col_index: np.ndarray
    scale: np.ndarray
    offset: np.ndarray


def dense(
    key: jax.Array,
    count: int,
    m: int,
    n: int,
    *,
    low: float = -1.0,
    high: float = 1.0,
    decimals: int | None = 2,
) -> np.ndarray:
    """Payoffs i.i.d. uniform on [low, high], float64[count, m, n].

    Args:
      decimals: entries are rounded to so many, after which the two ends of the interval are half as
        likely as other numbers; None leaves them alone.

    Raises:
      ValueError: m or n below 1, a negative count, an interval that holds no numbers.
    """
    if count < 0 or m < 1 or n < 1:
        raise ValueError(
            f"count={count}, m={m}, n={n}; give a count of 0 or more, and m and n of 1 or more"
        )
    return _entries(_draws(key), (count, m, n), low, high, decimals)


def pad_dominated(
    key: jax.Array, payoffs, m: int, n: int, *, gap: tuple[float, float] = (0.1, 0.5)
) -> Padded:
    """Embeds each game in an m x n game with the same equilibria.

    An added column is a column of the core plus an amount in every cell: worse for the column
    player, who minimises. Then an added row is a row of the widened table minus such amounts. So
    rows, and after them columns, are strictly dominated: no equilibrium plays them. Rows and
    columns are then permuted, and payoffs scaled to the range of the core, so that neither place
    nor size tells what was added.

    Values follow the cells: padded value = scale * core value + offset, and the row player's
    strategy on `row_index` is that of the core (the column player's likewise). Rounding the result
    keeps all added actions dominated as long as scale * gap[0] is more than its step, but then the
    core is that of the rounded cells. The range of a constant game cannot be kept: such games have
    scale 1 and offset 0.

    Args:
      payoffs: [..., m0, n0], finite.
      m, n: at least m0 and n0.
      gap: smallest and largest amount, both above 0, in units of the payoffs; the default
        suits ranges of about 1.

    Raises:
      ValueError: sizes below the core's, amounts that are not above 0, NaN or infinity; amounts so
        far from the payoffs' own unit that one of the two is lost beside the other.
    """
    core = _finite(payoffs)
    m0, n0, lead = _core_sizes(core, m, n)
    smallest, largest = gap
    if not 0 < smallest <= largest < np.inf:
        raise ValueError(f"gap={gap}; give (smallest, largest) with 0 < smallest <= largest")
    draws = _draws(key)
    source = _choices(draws, (*lead, 1, n - n0), n0)
    wide = np.take_along_axis(core, np.broadcast_to(source, (*lead, m0, n - n0)), axis=-1)
    wide = wide + _uniform(draws, wide.shape, smallest, largest)
    wide = np.concatenate([core, wide], axis=-1)
    source = _choices(draws, (*lead, m - m0, 1), m0)
    tall = np.take_along_axis(wide, np.broadcast_to(source, (*lead, m - m0, n)), axis=-2)
    tall = tall - _uniform(draws, tall.shape, smallest, largest)
    table = np.concatenate([wide, tall], axis=-2)
    scale, offset = _to_range_of(core, table)
    _check_unit(core, table, gap)
    table = scale[..., None, None] * table + offset[..., None, None]
    return _placed(draws, table, m0, n0, scale, offset)


def pad_random(
    key: jax.Array,
    payoffs,
    m: int,
    n: int,
    *,
    low: float = -1.0,
    high: float = 1.0,
    decimals: int | None = 2,
) -> Padded:
    """Embeds each game in an m x n game whose other cells are as in `dense`, permuted likewise.

    Nothing is claimed about equilibria: this is the control of `pad_dominated`. Scale is 1 and
    offset 0.

    Raises:
      ValueError: as `dense` and `pad_dominated`.
    """
    core = _finite(payoffs)
    m0, n0, lead = _core_sizes(core, m, n)
    draws = _draws(key)
    table = _entries(draws, (*lead, m, n), low, high, decimals)
    table[..., :m0, :n0] = core
    return _placed(draws, table, m0, n0, np.ones(lead), np.zeros(lead))


def perturb(key: jax.Array, payoffs, size: float) -> np.ndarray:
    """Payoffs plus i.i.d. uniform noise on [-size, size]: no NashConv changes by over 2 size.

    Raises:
      ValueError: a negative or infinite size, NaN or infinity in the payoffs.
    """
    table = _finite(payoffs)
    if not 0 <= size < np.inf:
        raise ValueError(f"size={size}; noise needs a finite size of 0 or more")
    return table + _uniform(_draws(key), table.shape, -size, size)


def permute(key: jax.Array, payoffs) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The same games with rows and columns in random orders, drawn for each game.

    Returns:
      payoffs [..., m, n], row permutation [..., m] and column permutation [..., n]: row i of the
      result is row `row_permutation[i]` of the input.
    """
    table = _finite(payoffs)
    draws = _draws(key)
    rows = _orders(draws, table.shape[:-1])
    cols = _orders(draws, (*table.shape[:-2], table.shape[-1]))
    return _reordered(table, rows, cols), rows, cols


def content_hash(payoffs) -> str:
    """16 hexadecimal digits that name one game [m, n] by its size and its payoffs as float64.

    Equal games have equal names, whatever the number type, and -0.0 is 0. Action names and
    permutations are not looked through.

    Raises:
      ValueError: no single game, NaN or infinity.
    """
    table = _finite(payoffs)
    if table.ndim != 2:
        raise ValueError(f"payoffs of shape {list(table.shape)}; one game [m, n] has one hash")
    return f"{int(_hashes(table[None])[0]):016x}"


def split(payoffs, shares: Sequence[float], *, seed: int) -> list[np.ndarray]:
    """Sorts games into parts by `content_hash`, so that no game is in two of them.

    A game's part depends on its own payoffs, the shares and the seed alone: copies stay together,
    and games that are added later move no other game. Shares hold on average over games.

    Args:
      payoffs: [count, m, n].
      shares: of the parts, not negative, sum 1.
      seed: other seeds give independent splits.

    Returns:
      Indices of each part's games, ascending.

    Raises:
      ValueError: another shape, NaN or infinity, shares that are negative or do not sum to 1.
    """
    table = _finite(payoffs)
    if table.ndim != 3:
        raise ValueError(f"payoffs of shape {list(table.shape)}; expected [count, m, n]")
    parts = np.asarray(shares, np.float64)
    if parts.ndim != 1 or not parts.size or not (parts >= 0).all():
        raise ValueError(f"shares={shares}; give one share a part, none below 0")
    if not abs(parts.sum() - 1) <= SHARE_TOLERANCE:
        raise ValueError(f"shares={shares} sum to {parts.sum()}; they must sum to 1")
    salt = _mixed(np.array([seed % 2**64], np.uint64))
    place = (_mixed(_hashes(table) ^ salt) >> np.uint64(11)) * 2.0**-53  # uniform on [0, 1)
    part = np.searchsorted(np.cumsum(parts)[:-1], place, side="right")
    return [np.flatnonzero(part == k) for k in range(parts.size)]


def _draws(key: jax.Array) -> np.random.Philox:
    """The stream of one key; a function draws all that it needs from it, in a fixed order."""
    try:
        words = np.asarray(jax.random.key_data(key))
    except (TypeError, AttributeError):
        raise ValueError(f"{key!r} is no key; give one such as jax.random.key(0)") from None
    if words.ndim != 1:
        raise ValueError(f"keys of shape {list(words.shape[:-1])}; give a single key")
    return np.random.Philox(key=sum(int(word) << 32 * place for place, word in enumerate(words)))


def _uniform(
    draws: np.random.Philox, shape: tuple[int, ...], low: float, high: float
) -> np.ndarray:
    """The next numbers of a stream, uniform on [low, high)."""
    # Numpy keeps the raw stream of a bit generator for ever, but not what `Generator` makes of it.
    unit = (draws.random_raw(shape) >> np.uint64(11)) * 2.0**-53
    return low + (high - low) * unit


def _entries(draws, shape, low: float, high: float, decimals: int | None) -> np.ndarray:
    """What `dense` describes, writable."""
    if not (-np.inf < low < high < np.inf and float(high) - float(low) < np.inf):
        raise ValueError(
            f"low={low}, high={high}; give two finite numbers, low below high, with a finite "
            "difference"
        )
    table = _uniform(draws, shape, low, high)
    if decimals is not None:
        table = np.round(table, decimals) + 0.0  # no -0.0
    return table


def _choices(draws: np.random.Philox, shape: tuple[int, ...], number: int) -> np.ndarray:
    """Numbers 0 to number - 1, all equally likely."""
    return np.minimum(_uniform(draws, shape, 0, number).astype(int), number - 1)


def _orders(draws: np.random.Philox, shape: tuple[int, ...]) -> np.ndarray:
    """Random permutations along the last axis."""
    return np.argsort(_uniform(draws, shape, 0, 1), axis=-1, kind="stable")


def _reordered(table: np.ndarray, rows: np.ndarray, cols: np.ndarray) -> np.ndarray:
    table = np.take_along_axis(table, rows[..., :, None], axis=-2)
    return np.take_along_axis(table, cols[..., None, :], axis=-1)


def _placed(draws: np.random.Philox, table, m0: int, n0: int, scale, offset) -> Padded:
    """A table with its core in the first rows and columns, permuted."""
    rows = _orders(draws, table.shape[:-1])
    cols = _orders(draws, (*table.shape[:-2], table.shape[-1]))
    # The inverse of a permutation says where each row went.
    where = [np.argsort(order, axis=-1) for order in (rows, cols)]
    payoffs = _reordered(table, rows, cols)
    return Padded(payoffs, where[0][..., :m0], where[1][..., :n0], scale, offset)


def _to_range_of(core: np.ndarray, table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scale and offset [...] that take the lowest and highest payoff of `table` to those of `core`;
    1 and 0 where the core is constant."""
    cells = (-2, -1)
    spread = np.ptp(core, axis=cells)
    wide = np.ptp(table, axis=cells)
    scale = np.where(spread > 0, spread / np.where(wide > 0, wide, 1), 1.0)
    offset = core.min(axis=cells) - scale * table.min(axis=cells)
    return scale, np.where(spread > 0, offset, 0.0)


def _check_unit(core: np.ndarray, table: np.ndarray, gap: tuple[float, float]) -> None:
    """Refuses `gap` where not both it and the core's own differences are seen in `table`."""
    if core.shape == table.shape:
        return
    cells = (-2, -1)
    spread, wide = np.ptp(core, axis=cells), np.ptp(table, axis=cells)
    # A constant core has no differences to lose.
    least = np.minimum(np.where(spread > 0, spread, np.inf), gap[0])
    seen = np.maximum(SHARE_SEEN * wide, ROUNDINGS_SEEN * np.spacing(np.abs(table).max(axis=cells)))
    lost = ~(least >= seen)
    if lost.any():
        game = np.unravel_index(np.argmax(lost), lost.shape)
        raise ValueError(
            f"gap={gap} beside payoffs from {core[game].min():.6g} to {core[game].max():.6g}: one "
            "is too small to be seen beside the other; give gap in units of the payoffs, such as "
            "0.05 and 0.25 of their range, or take an offset off the payoffs"
        )


def _finite(payoffs) -> np.ndarray:
    table = as_tables(payoffs)
    if not np.isfinite(table).all():
        raise ValueError(f"payoffs of shape {list(table.shape)} hold NaN or infinity")
    return table


def _core_sizes(core: np.ndarray, m: int, n: int) -> tuple[int, int, tuple[int, ...]]:
    """Rows and columns of the core, and the leading axes."""
    m0, n0 = core.shape[-2:]
    if m < m0 or n < n0:
        raise ValueError(f"games of {m0}x{n0} cannot be padded to {m}x{n}; give at least {m0}x{n0}")
    return m0, n0, core.shape[:-2]


def _mixed(words: np.ndarray) -> np.ndarray:
    """The mixing function of SplitMix64: every bit of uint64[...] decides over every other."""
    words = (words + np.uint64(STEP)).astype(np.uint64)
    for shift, factor in zip((30, 27), MIX, strict=True):
        words = (words ^ (words >> np.uint64(shift))) * np.uint64(factor)
    return words ^ (words >> np.uint64(31))


def _hashes(table: np.ndarray) -> np.ndarray:
    """uint64[...] of games [..., m, n], by size and payoffs."""
    m, n = table.shape[-2:]
    words = np.ascontiguousarray(table + 0.0).view(np.uint64)  # -0.0 + 0.0 is 0.0
    result = _mixed(np.full(table.shape[:-2], (m << 32) + n, np.uint64))
    for i in range(m):
        for j in range(n):
            result = _mixed(result ^ words[..., i, j])
    return result
