"""Decoding with kept keys and values: one slot per running sequence.

All functions are pure and meant for the inside of `jit`; keep the cache in the carry of a loop (or
donate it), so that it is updated in place. Layers are unrolled here: a decode step is small, and a
scan would copy the cache of every layer.

In the shape descriptions S is slots, R rows of a call, W tokens per row, P capacity, K key/value
heads, D head size, V vocabulary.
"""

import math

import chex
import jax
import jax.numpy as jnp

from sepo_jax.policy.config import DTYPES, ModelConfig
from sepo_jax.policy.decoder import Decoder, DecoderLayer, rotary_tables


@chex.dataclass(frozen=True)
class Cache:
    """Keys and values of every slot, one array a layer.

    Attributes:
      keys: per layer [S, K, D, P]; values: per layer [S, K, P, D] (the fastest pair of layouts for
        scores and mixing on CPU).
      lengths: int32 [S], tokens that each slot holds.
    """

    keys: tuple[jax.Array, ...]
    values: tuple[jax.Array, ...]
    lengths: jax.Array

    @property
    def num_slots(self) -> int:
        """Sequences held side by side."""
        return self.lengths.shape[0]

    @property
    def capacity(self) -> int:
        """Tokens that fit in one slot."""
        return self.keys[0].shape[3]


def init_cache(config: ModelConfig, num_slots: int, capacity: int) -> Cache:
    """Empty slots, each for `capacity` tokens."""
    if num_slots < 1 or capacity < 1:
        raise ValueError(
            f"a cache needs at least 1 slot and 1 position; given {num_slots}, {capacity}"
        )
    heads, size, dtype = config.num_kv_heads, config.head_dim, DTYPES[config.cache_dtype]
    layers = range(config.num_layers)
    return Cache(
        keys=tuple(jnp.zeros((num_slots, heads, size, capacity), dtype) for _ in layers),
        values=tuple(jnp.zeros((num_slots, heads, capacity, size), dtype) for _ in layers),
        lengths=jnp.zeros((num_slots,), jnp.int32),
    )


def reset_slots(cache: Cache, mask: jax.Array) -> Cache:
    """Empties the slots where bool `mask` [S] is true (their contents become unreachable)."""
    chex.assert_equal_shape([mask, cache.lengths])
    return cache.replace(lengths=jnp.where(mask, 0, cache.lengths))


def fork_slots(
    cache: Cache,
    source: jax.Array,
    lengths: jax.Array | None = None,
    slots: jax.Array | None = None,
) -> Cache:
    """Slot `slots[r]` becomes a copy of slot `source[r]`, cut to `lengths[r]` tokens where given.

    Copies are made from the cache as it was before the call, so permutations are fine. Lengths
    above the source's are cut to it.

    Args:
      source: int32 [R]. lengths: int32 [R] or None for whole slots.
      slots: int32 [R], distinct; entries of S and above are skipped. None means row r is slot r
        (R = S), where `source` = arange(S) leaves everything as it is.
    """
    chex.assert_rank(source, 1)
    if slots is None:
        chex.assert_equal_shape([source, cache.lengths])
    copied = jax.tree.map(lambda array: jnp.take(array, source, axis=0, mode="clip"), cache)
    if lengths is not None:
        kept = jnp.minimum(lengths, copied.lengths).astype(jnp.int32)
        copied = copied.replace(lengths=kept)
    if slots is None:
        return copied
    return jax.tree.map(lambda old, new: old.at[slots].set(new, mode="drop"), cache, copied)


def fuse(config: ModelConfig, params) -> dict:
    """The parameters in decoding form: layers apart, q/k/v and gate/up kernels side by side.

    Optional (`append` fuses on the fly when it gets the training form); do it once outside a decode
    loop, after each update. Kernels are cast to the compute dtype. Fusing twice changes nothing.
    """
    if isinstance(params["layers"], tuple):
        return params
    dtype = DTYPES[config.compute_dtype]

    def side_by_side(parts):
        return {
            name: jnp.concatenate([part[name] for part in parts], axis=-1).astype(dtype)
            for name in parts[0]
        }

    layers = params["layers"]
    joined = {
        name: layer if name.endswith("norm") else jax.tree.map(lambda x: x.astype(dtype), layer)
        for name, layer in layers.items()
        if name in ("o_proj", "down_proj") or name.endswith("norm")
    }
    joined["qkv_proj"] = side_by_side([layers[name] for name in ("q_proj", "k_proj", "v_proj")])
    joined["gate_up_proj"] = side_by_side([layers["gate_proj"], layers["up_proj"]])
    apart = tuple(
        jax.tree.map(lambda array, index=index: array[index], joined)
        for index in range(config.num_layers)
    )
    return {**params, "layers": apart}


def append(config: ModelConfig, params, cache: Cache, tokens, lengths, slots=None):
    """Appends `lengths[r]` tokens to slot `slots[r]` and scores what comes after the last of them.

    Args:
      params: training form, or decoding form of `fuse`.
      tokens: int32 [R, W], real tokens first. lengths: int32 [R], 0 leaves the slot as it was.
      slots: int32 [R], distinct among rows of positive length, entries of S and above are skipped;
        None means row r is slot r (R = S).

    Returns:
      The new cache and float32 logits [R, V] after each row's last real token. Rows of length 0 get
      finite numbers without meaning. A slot that would pass its capacity gets NaN logits and its
      length is set to the capacity: reserve room before, or look for NaN.
    """
    chex.assert_rank([tokens, lengths], [2, 1])
    rows, width = tokens.shape
    if slots is None and rows != cache.num_slots:
        raise ValueError(
            f"tokens have {rows} rows and the cache {cache.num_slots} slots: give one row a slot, "
            "or name the slots of the rows"
        )
    params = fuse(config, params)
    if slots is None:
        slots, present = jnp.arange(rows), lambda array: array
    else:
        present = lambda array: jnp.take(array, slots, axis=0, mode="clip")  # noqa: E731
    start = present(cache.lengths)
    offsets = jnp.arange(width)[None]
    positions = start[:, None] + offsets
    real = offsets < lengths[:, None]
    # Columns past a row's end aim outside the cache, where the scatter drops them.
    columns = jnp.where(real, positions, cache.capacity)

    outer = {name: part for name, part in params.items() if name != "layers"}
    decoder, layer = Decoder(config), DecoderLayer(config, fused=True)
    hidden = decoder.apply({"params": outer}, tokens, method="embed_tokens")
    cos, sin = rotary_tables(config, positions)
    all_keys, all_values = [], []
    for weights, keys, values in zip(params["layers"], cache.keys, cache.values, strict=True):
        variables = {"params": weights}
        query, key, value = layer.apply(variables, hidden, cos, sin, method="attention_inputs")
        keys = _write(keys, key, (slots[:, None], slice(None), slice(None), columns))
        values = _write(values, value, (slots[:, None], slice(None), columns))
        mixed = _attend_cached(query, present(keys), present(values), positions, config)
        hidden = layer.apply(variables, hidden, mixed, method="attention_output")
        all_keys.append(keys)
        all_values.append(values)

    last = jnp.maximum(lengths - 1, 0)[:, None, None]
    hidden = jnp.take_along_axis(hidden, last, axis=1)[:, 0]
    overflow = (start + lengths > cache.capacity)[:, None]
    hidden = jnp.where(overflow, jnp.nan, hidden)
    normal = decoder.apply({"params": outer}, hidden, method="final_norm")
    logits = decoder.apply({"params": outer}, normal, method="logits")
    grown = cache.lengths.at[slots].add(lengths, mode="drop")
    grown = jnp.minimum(grown, cache.capacity)
    return Cache(keys=tuple(all_keys), values=tuple(all_values), lengths=grown), logits


def _write(stored, fresh, where):
    return stored.at[where].set(fresh.astype(stored.dtype), mode="drop")


def _attend_cached(queries, keys, values, positions, config: ModelConfig):
    """Attention of queries [R, W, Q, D] at `positions` to keys [R, K, D, P]; [R, W, Q * D]."""
    rows, width, heads, size = queries.shape
    shared, capacity = keys.shape[1], keys.shape[3]
    grouped = queries.reshape(rows, width, shared, heads // shared, size)
    # [R, K, W * G, D] x [R, K, D, P]: one plain product per slot and key/value head.
    grouped = jnp.moveaxis(grouped, 2, 1).reshape(rows, shared, -1, size)
    scores = jnp.einsum(
        "rkqd,rkdp->rkqp",
        grouped.astype(keys.dtype),
        keys,
        precision=config.precision,
        preferred_element_type=jnp.float32,
    ) / math.sqrt(size)
    seen = jnp.arange(capacity)[None, None] <= positions[:, :, None]
    seen = jnp.repeat(seen, heads // shared, axis=1)[:, None]
    scores = jnp.where(seen, scores, jnp.finfo(jnp.float32).min)
    weights = jax.nn.softmax(scores, axis=-1).astype(values.dtype)
    mixed = jnp.einsum("rkqp,rkpd->rkqd", weights, values, precision=config.precision)
    mixed = mixed.reshape(rows, shared, width, heads // shared, size)
    return jnp.moveaxis(mixed, 1, 2).reshape(rows, width, heads * size)
