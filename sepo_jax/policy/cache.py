"""Decoding with kept keys and values: one slot per running sequence.

All functions are pure and meant for the inside of `jit`; keep the cache in the carry of a loop (or
donate it), so that it is updated in place. Layers are unrolled here: a decode step is small, and a
scan would copy the cache of every layer.

In the shape descriptions S is slots, R rows of a call, W tokens per row, H hidden size, V
vocabulary.
"""

from collections.abc import Callable
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from sepo_jax.policy import decoder, segments
from sepo_jax.policy.config import DTYPES, ModelConfig
from sepo_jax.policy.decoder import Ends, query_scale
from sepo_jax.policy.decoding_form import fuse
from sepo_jax.policy.delta_net import DeltaState, init_delta_state
from sepo_jax.policy.layers import DecoderLayer
from sepo_jax.policy.rotary import rotary_tables
from sepo_jax.policy.segments import Segments, init_segments
from sepo_jax.policy.sharding import SLOTS, beside_weights, constrain


@chex.dataclass(frozen=True)
class Cache:
    """What every slot keeps of its tokens.

    Attributes:
      keys, values: the segments of each layer with keys of its own, see `segments.py`.
      states: of each linear layer, rows are slots.
      lengths: int32 [S], tokens that each slot holds.
    """

    keys: tuple[Segments, ...]
    values: tuple[Segments, ...]
    states: tuple[DeltaState, ...]
    lengths: jax.Array

    @property
    def num_slots(self) -> int:
        """Sequences held side by side."""
        return self.lengths.shape[0]

    @property
    def capacity(self) -> int:
        """Tokens that fit in one slot."""
        return segments.starts(self.keys[0])[-1]


def init_cache(config: ModelConfig, num_slots: int, capacity: int) -> Cache:
    """Empty slots, each for `capacity` tokens; from a block on, rounded up to whole blocks."""
    if num_slots < 1 or capacity < 1:
        raise ValueError(
            f"a cache needs at least 1 slot and 1 position; given {num_slots}, {capacity}"
        )
    dtype = DTYPES[config.cache_dtype]
    layers = [
        init_segments(num_slots, config.kv_heads(kind), config.head_size(kind), capacity, dtype)
        for kind in config.layer_kinds
        if kind in ("full", "sliding")
    ]
    return Cache(
        keys=tuple(keys for keys, _ in layers),
        values=tuple(values for _, values in layers),
        states=tuple(
            init_delta_state(config, num_slots) for _ in range(config.layer_kinds.count("linear"))
        ),
        lengths=jnp.zeros((num_slots,), jnp.int32),
    )


def lay_out(cache: Cache, place: Callable = constrain) -> Cache:
    """The cache as a mesh keeps it, slots apart and their heads; `place` puts an array there."""
    by_head = lambda array: place(array, SLOTS, "tensor")  # noqa: E731
    states = [
        DeltaState(conv=place(each.conv, SLOTS), recurrent=by_head(each.recurrent))
        for each in cache.states
    ]
    return Cache(
        keys=jax.tree.map(by_head, cache.keys),
        values=jax.tree.map(by_head, cache.values),
        states=tuple(states),
        lengths=place(cache.lengths),
    )


def reset_slots(cache: Cache, mask: jax.Array) -> Cache:
    """Empties the slots where bool `mask` [S] is true."""
    chex.assert_equal_shape([mask, cache.lengths])

    def clear(state):
        return jnp.where(mask.reshape(-1, *(1,) * (state.ndim - 1)), 0, state)

    # Keys and values become unreachable by the length alone; a running state does not.
    states = jax.tree.map(clear, cache.states)
    return cache.replace(states=states, lengths=jnp.where(mask, 0, cache.lengths))


def fork_slots(cache: Cache, forks: jax.Array, count: jax.Array) -> Cache:
    """Copies slots, one after the other: the target becomes the beginning of the source.

    A recurrent policy's slot must be copied whole: its state is that after the last token and
    cannot be taken back.

    Args:
      forks: int32 [F, 3], (source, target, length) each; a length of -1, or above the source's,
        means all of it.
      count: int32 [], forks to carry out, the first ones.
    """
    chex.assert_shape(forks, (None, 3))

    def note_length(index, carry):
        lengths, kept = carry
        source, target, length = forks[index]
        length = jnp.where(length < 0, lengths[source], jnp.minimum(length, lengths[source]))
        return lengths.at[target].set(length), kept.at[index].set(length)

    start = cache.lengths, jnp.zeros(len(forks), jnp.int32)
    lengths, kept = jax.lax.fori_loop(0, count, note_length, start)
    layers = (*cache.keys, *cache.values)
    copied = []
    for index, start in enumerate(segments.starts(cache.keys[0])[:-1]):
        # Only the forks that reach into a segment copy it, in their order.
        order = jnp.argsort(kept <= start, stable=True)
        parts = tuple(layer[index] for layer in layers)
        copied.append(_copy_slots(parts, forks[order], jnp.sum(kept > start)))
    layers = tuple(zip(*copied, strict=True))
    return Cache(
        keys=layers[: len(cache.keys)],
        values=layers[len(cache.keys) :],
        states=_copy_slots(cache.states, forks, count),
        lengths=lengths,
    )


def _copy_slots(parts, forks, count):
    """Row `source` of every array put into row `target`, by the first `count` forks."""

    def one(index, parts):
        def copy(array):
            # A slice of one slot would gather all slots of a mesh.
            row = jnp.take(array, forks[index, :1], axis=0, mode="clip")
            return jax.lax.dynamic_update_slice_in_dim(array, row, forks[index, 1], axis=0)

        return jax.tree.map(copy, parts)

    return jax.lax.fori_loop(0, count, one, parts)


def append(
    config: ModelConfig, params, cache: Cache, tokens, lengths, slots=None, reach=None
) -> Cache:
    """Appends `lengths[r]` tokens to slot `slots[r]`.

    Args:
      params: training form, or decoding form of `fuse`.
      tokens: int32 [R, W], real tokens first. lengths: int32 [R], 0 leaves the slot as it was.
      slots: int32 [R], distinct among rows of positive length, entries of S and above are skipped;
        None means row r is slot r (R = S).
      reach: static; attention reads the first `reach` positions of the cache only, up to the end
        of their segment, which must hold every token of the slots in use, the appended ones
        included. None reads all. A slot that would pass it is treated like one that passes the
        capacity.

    Returns:
      The new cache. A slot that would pass its capacity has its length set to the capacity, so that
      the next `append_and_score` there gives NaN: reserve room before.
    """
    return _append(config, params, cache, tokens, lengths, slots, reach)[0]


def append_and_score(
    config: ModelConfig, params, cache: Cache, tokens, lengths, slots=None, reach=None
) -> tuple[Cache, jax.Array]:
    """Appends as `append`, and scores what comes after the last token of each row.

    Returns:
      The new cache and float32 logits [R, V] after each row's last real token. Rows of length 0 get
      finite numbers without meaning. A slot that would pass its capacity gets NaN logits and its
      length is set to the capacity: reserve room before, or look for NaN.
    """
    cache, hidden = _append(config, params, cache, tokens, lengths, slots, reach)
    scores = decoder.logits(config, params, decoder.final_norm(config, params, hidden))
    # Scored where the vocabulary's shares are, sampled where the slots are.
    return cache, constrain(constrain(scores, SLOTS[:1], SLOTS[1]), SLOTS)


def _append(config, params, cache: Cache, tokens, lengths, slots, reach):
    """The new cache, and states [R, H] after the last real token of each row, NaN if too long."""
    chex.assert_rank([tokens, lengths], [2, 1])
    rows, width = tokens.shape
    if slots is None and rows != cache.num_slots:
        raise ValueError(
            f"tokens have {rows} rows and the cache {cache.num_slots} slots: give one row a slot, "
            "or name the slots of the rows"
        )
    params = fuse(config, params)
    at = _places(config, cache, slots, lengths, rows, width, reach)
    hidden, extra = Ends(config).apply({"params": params}, tokens, method="inputs")
    hidden = constrain(hidden, at.split[:1])
    # Segments out of reach are neither read nor written.
    keys = [layer[: at.segments] for layer in cache.keys]
    values = [layer[: at.segments] for layer in cache.values]
    states = list(cache.states)
    with beside_weights(at.split[:1]):
        for layer, kind in enumerate(config.layer_kinds):
            module, weights = DecoderLayer(config, kind, fused=True), params["layers"][layer]
            module = module.bind({"params": weights})
            if kind == "linear":
                row = config.place(layer)[1]
                update, states[row] = _linear_update(module, hidden, states[row], at)
            else:
                row = config.cache_row(layer)
                update, keys[row], values[row] = _attention_update(
                    module, hidden, keys[row], values[row], at
                )
            given = None if extra is None else extra[layer]
            hidden = constrain(module.combine(hidden, update, given), at.split[:1])

    last = jnp.maximum(lengths - 1, 0)[:, None, None]
    hidden = jnp.take_along_axis(hidden, last, axis=1)[:, 0]
    overflow = (lengths > 0) & (at.positions[:, 0] + lengths > at.reach)
    hidden = jnp.where(overflow[:, None], jnp.nan, hidden)
    grown = cache.lengths.at[at.slots[:, 0]].add(lengths, mode="drop")
    full = jnp.zeros_like(grown).at[at.slots[:, 0]].max(overflow * cache.capacity, mode="drop")
    grown = jnp.minimum(jnp.maximum(grown, full), cache.capacity)
    rest = [[layer[at.segments :] for layer in layers] for layers in (cache.keys, cache.values)]
    cache = Cache(
        keys=tuple(near + far for near, far in zip(keys, rest[0], strict=True)),
        values=tuple(near + far for near, far in zip(values, rest[1], strict=True)),
        states=tuple(states),
        lengths=grown,
    )
    return lay_out(cache), hidden


class _Places(NamedTuple):
    """Where the rows of an `append` lie in the cache.

    Attributes:
      slots: int32 [R, 1]. positions: int32 [R, W]. real: bool [R, W].
      columns: int32 [R, W], outside the cache for columns past a row's end.
      tables: rotary tables by layer type.
      reach: positions that a slot may fill. segments: how many of a layer's hold them.
      of_rows: from an array over slots to the rows' entries.
      split: axes of a mesh that the rows are split over, none where they may be any slots.
    """

    slots: jax.Array
    positions: jax.Array
    real: jax.Array
    columns: jax.Array
    tables: dict
    reach: int
    segments: int
    of_rows: Callable
    split: tuple[str, ...]

    def by_slot(self, heads: jax.Array) -> jax.Array:
        """Rows [R, W, heads or their numbers, ...] where the keys of their slots are."""
        return constrain(heads, self.split, None, "tensor")


def _places(config, cache, slots, lengths, rows: int, width: int, reach) -> _Places:
    split = SLOTS if slots is None else ()
    if slots is None:
        slots, of_rows = jnp.arange(rows), lambda array: array
    else:
        of_rows = lambda array: jnp.take(array, slots, axis=0, mode="clip")  # noqa: E731
    reach = cache.capacity if reach is None else min(reach, cache.capacity)
    offsets = jnp.arange(width)[None]
    positions = of_rows(cache.lengths)[:, None] + offsets
    real = offsets < lengths[:, None]
    types = {kind.removesuffix("_shared") for kind in config.layer_kinds} - {"linear"}
    return _Places(
        slots=slots[:, None],
        positions=positions,
        real=real,
        # The scatter drops what aims outside the cache.
        columns=jnp.where(real, positions, cache.capacity),
        tables={name: rotary_tables(config, positions, name) for name in types},
        reach=reach,
        segments=sum(start < reach for start in segments.starts(cache.keys[0])),
        of_rows=of_rows,
        split=split,
    )


def _attention_update(module, hidden, keys, values, at: _Places):
    """The update of an attention layer, and the keys and values of all slots after it."""
    config, kind = module.config, module.kind
    name = kind.removesuffix("_shared")
    query, key, value, gate = module.attention_inputs(hidden, *at.tables[name])
    if key is not None:
        key, value = at.by_slot(key), at.by_slot(value)
        keys, values = segments.write(keys, values, key, value, at.slots, at.columns)
    mixed = segments.attend(
        at.by_slot(query),
        keys,
        values,
        at.of_rows,
        at.positions,
        scale=query_scale(config, kind),
        window=config.sliding_window if name == "sliding" else None,
        precision=config.precision,
    )
    return module.attention_output(at.by_slot(mixed), gate), keys, values


def _linear_update(module, hidden, state, at: _Places):
    """The update of a linear layer, and the states of all slots after it."""
    before = jax.tree.map(at.of_rows, state)
    update, after = module.delta(hidden, at.real, before)
    # A row without tokens may name a slot that another row fills: the scatter drops it.
    target = jnp.where(at.real[:, 0], at.slots[:, 0], state.conv.shape[0])

    def put(old, new):
        if at.split:  # rows are slots, and one without tokens has its state unchanged
            return new.astype(old.dtype)
        return old.at[target].set(new.astype(old.dtype), mode="drop")

    return update, jax.tree.map(put, state, after)
