"""Kept keys and values of one attention layer, in blocks and segments.

The positions of a slot lie in blocks. A product over a block has the same shape however many blocks
attention reads, so that reading more of them changes no bit of the result. Blocks lie in segments,
arrays of their own and each as long as all before it, so that attention to the beginning of the
slots takes whole arrays and copies no part of one.

In the shape descriptions S is slots, R rows of a call, W tokens per row, Q query heads, K key/value
heads, D head size, N blocks of a segment, B positions of a block.
"""

from collections.abc import Callable
from functools import partial
from itertools import accumulate

import jax
import jax.numpy as jnp

BLOCK = 128  # fills the lanes of an accelerator, and is a tile or two of a CPU's kernels
Segments = tuple[jax.Array, ...]


def block_counts(capacity: int) -> tuple[int, ...]:
    """Blocks of each segment of a slot with room for `capacity` tokens: 1, 1, 2, 4 and so on."""
    missing, counts = -(-capacity // BLOCK), []
    while missing:
        counts.append(min(missing, max(sum(counts), 1)))
        missing -= counts[-1]
    return tuple(counts)


def init_segments(
    num_slots: int, heads: int, size: int, capacity: int, dtype
) -> tuple[Segments, Segments]:
    """Empty keys [S, K, N, D, B] and values [S, K, N, B, D], a pair of tuples of segments.

    A capacity below a block is one block of that length; from there on it is rounded up to whole
    blocks.
    """
    block, counts = min(BLOCK, capacity), block_counts(capacity)
    lead = [(num_slots, heads, count) for count in counts]
    keys = tuple(jnp.zeros((*axes, size, block), dtype) for axes in lead)
    return keys, tuple(jnp.zeros((*axes, block, size), dtype) for axes in lead)


def starts(keys: Segments) -> tuple[int, ...]:
    """The first position of each segment, and the number of all positions."""
    return tuple(accumulate((part.shape[2] * part.shape[4] for part in keys), initial=0))


def write(
    keys: Segments, values: Segments, key: jax.Array, value: jax.Array, slots, positions
) -> tuple[Segments, Segments]:
    """The segments after `key` and `value` [R, W, K, D] were put in `slots` at `positions`.

    Args:
      slots: int32 [R, 1]. positions: int32 [R, W]. Pairs outside the segments are left out.
    """
    after_keys, after_values = [], []
    for start, stored_keys, stored_values in zip(starts(keys), keys, values, strict=False):
        count, block = stored_keys.shape[2], stored_keys.shape[4]
        # A scatter drops what aims behind the last block; a negative index would count from there.
        place = jnp.where(positions < start, count * block, positions - start)
        number, column = place // block, place % block
        chosen = stored_keys.at[slots, :, number, :, column]
        after_keys.append(chosen.set(key.astype(stored_keys.dtype), mode="drop"))
        chosen = stored_values.at[slots, :, number, column]
        after_values.append(chosen.set(value.astype(stored_values.dtype), mode="drop"))
    return tuple(after_keys), tuple(after_values)


def attend(
    queries: jax.Array,
    keys: Segments,
    values: Segments,
    of_rows: Callable[[jax.Array], jax.Array],
    positions: jax.Array,
    *,
    scale: float,
    window: int | None,
    precision,
) -> jax.Array:
    """Softmax attention of queries [R, W, Q, D] to all given segments; float32 [R, W, Q * D].

    Args:
      of_rows: from an array over slots to the rows' entries.
      positions: int32 [R, W], of the queries; each reads the positions up to its own.
      scale: multiplies the products of queries and keys.
      window: positions that a query reads at most, its own included; None for no limit.
      precision: of the products; scores and softmax are float32.
    """
    rows, width, heads, size = queries.shape
    shared = keys[0].shape[1]
    product = partial(jnp.einsum, precision=precision, preferred_element_type=jnp.float32)
    # Query heads of a key head stand below each other: [W * Q / K, D] x [D, B] for each block.
    queries = queries.reshape(rows, width, shared, heads // shared, size).astype(keys[0].dtype)
    queries = jnp.moveaxis(queries, 2, 1).reshape(rows, shared, 1, -1, size)
    position = jnp.repeat(positions, heads // shared, axis=1)[:, None, None, :, None]
    scores = []
    for start, part in zip(starts(keys), keys, strict=False):
        count, block = part.shape[2], part.shape[4]
        spread = jnp.broadcast_to(queries, (*queries.shape[:2], count, *queries.shape[3:]))
        column = start + jnp.arange(count * block).reshape(1, 1, count, 1, block)
        seen = column <= position
        if window is not None:
            seen = seen & (column > position - window)
        products = product("rknqd,rkndp->rknqp", spread, of_rows(part)) * scale
        scores.append(jnp.where(seen, products, jnp.finfo(jnp.float32).min))
    highest = (jnp.max(part, axis=(2, 4), keepdims=True) for part in scores)
    peak = jax.tree.reduce(jnp.maximum, list(highest))
    # Segment by segment and in order: those behind the last token add exact zeros.
    total, mixed = 0.0, 0.0
    for part, stored in zip(scores, values, strict=True):
        weights = jnp.exp(part - peak)
        total = total + jnp.sum(weights, axis=(2, 4))[..., None]
        weights = weights.astype(stored.dtype)
        mixed = mixed + jnp.sum(product("rknqp,rknpd->rknqd", weights, of_rows(stored)), axis=2)
    mixed = (mixed / total).reshape(rows, shared, width, heads // shared, size)
    return jnp.moveaxis(mixed, 1, 2).reshape(rows, width, heads * size)
