"""A decoder as pure functions of (config, params): embedding, layers, heads.

Parameters: {"embed": {"embedding" [V, H]}, "layers": {kind: {part: {"kernel" [layers of the kind,
in, out], ...}}}, "norm": {"scale" [H]}, "lm_head": {"kernel" [H, V]} when not tied, "value_head":
{"kernel", "bias"} when asked for}; with per-layer embeddings also "per_layer_embed",
"per_layer_projection" and "per_layer_norm". `ModelConfig.place` says where a layer lies.

Layers of one kind are stacked, and runs of layers are scanned: a repeated pattern (five sliding
layers and a full one, say) is compiled once.

In the shape descriptions, B is rows, T tokens, H hidden size, V vocabulary.
"""

from collections import Counter
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from sepo_jax.policy.config import DTYPES, ModelConfig
from sepo_jax.policy.layers import DecoderLayer, attend
from sepo_jax.policy.linear import Linear, RMSNorm, rows_times
from sepo_jax.policy.rotary import rotary_tables


class Ends(nn.Module):
    """What lies before and after the layers."""

    config: ModelConfig

    def setup(self):
        config = self.config
        self.embed = self._embedding(config.vocab_size, config.hidden_size)
        self.norm = RMSNorm(config)
        if config.per_layer_embedding_size:
            width = config.num_layers * config.per_layer_embedding_size
            self.per_layer_embed = self._embedding(config.per_layer_vocab_size, width)
            self.per_layer_projection = Linear(config, width)
            self.per_layer_norm = RMSNorm(config)
        if not config.tie_embeddings:
            self.lm_head = VocabularyKernel(config)
        if config.value_head:
            zeros = nn.initializers.zeros
            stored = DTYPES[config.param_dtype]
            self.value_head = nn.Dense(1, dtype=jnp.float32, kernel_init=zeros, param_dtype=stored)

    def _embedding(self, rows: int, width: int) -> nn.Embed:
        config = self.config
        return nn.Embed(
            rows,
            width,
            dtype=DTYPES[config.compute_dtype],
            param_dtype=DTYPES[config.param_dtype],
            embedding_init=nn.initializers.normal(config.initializer_range),
        )

    def __call__(self, tokens):
        """Touches every parameter once; used to initialise them."""
        hidden, _ = self.inputs(tokens)
        normal = self.final_norm(hidden)
        return normal @ self.vocabulary_kernel(), self.values(normal)

    def inputs(self, tokens):
        """What enters the layers for `tokens` [B, T].

        Returns:
          States [B, T, H], and every layer's own input [layers, B, T, E] (None without per-layer
          embeddings): (norm(projection of the state / sqrt(H)) + embedding sqrt(E)) / sqrt(2).
        """
        config = self.config
        dtype = DTYPES[config.compute_dtype]
        hidden = self.embed(tokens) * jnp.asarray(config.embedding_scale, dtype)
        size = config.per_layer_embedding_size
        if not size:
            return hidden, None
        shape = (*tokens.shape, config.num_layers, size)
        own = self.per_layer_embed(tokens).reshape(shape) * jnp.asarray(size**0.5, dtype)
        projected = self.per_layer_projection(hidden) * jnp.asarray(config.hidden_size**-0.5, dtype)
        projected = self.per_layer_norm(projected.reshape(shape))
        mixed = (projected + own) * jnp.asarray(0.5**0.5, dtype)
        return hidden, jnp.moveaxis(mixed, 2, 0)

    def final_norm(self, hidden):
        """The norm between the last layer and the heads."""
        return self.norm(hidden)

    def vocabulary_kernel(self):
        """The output projection as [H, V]."""
        return self.embed.embedding.T if self.config.tie_embeddings else self.lm_head()

    def values(self, normal):
        """State values, float32 [...], of normed states; None without a value head."""
        if not self.config.value_head:
            return None
        return self.value_head(normal.astype(jnp.float32))[..., 0]


class VocabularyKernel(nn.Module):
    """The output projection [H, V] of a model that does not tie it to the embedding."""

    config: ModelConfig

    @nn.compact
    def __call__(self) -> jax.Array:
        config = self.config
        shape = (config.hidden_size, config.vocab_size)
        normal = nn.initializers.normal(config.initializer_range)
        return self.param("kernel", normal, shape, DTYPES[config.param_dtype])


def init(config: ModelConfig, key: jax.Array) -> dict:
    """Fresh parameters."""
    ends, *keys = jax.random.split(key, 1 + len(config.kind_counts))
    params = dict(Ends(config).init(ends, jnp.zeros((1, 2), jnp.int32))["params"])
    hidden = jnp.zeros((1, 2, config.hidden_size), DTYPES[config.compute_dtype])

    def stack(key, kind, count):
        layer = DecoderLayer(config, kind)
        draw = lambda key: layer.init(key, hidden, method="touch")["params"]  # noqa: E731
        return jax.vmap(draw)(jax.random.split(key, count))

    counts = config.kind_counts.items()
    params["layers"] = {
        kind: stack(key, kind, count) for key, (kind, count) in zip(keys, counts, strict=True)
    }
    return params


def final_norm(config: ModelConfig, params, hidden) -> jax.Array:
    """The norm between the last layer and the heads."""
    return Ends(config).apply({"params": params}, hidden, method="final_norm")


def values(config: ModelConfig, params, normal) -> jax.Array | None:
    """State values, float32 [...], of normed states; None without a value head."""
    return Ends(config).apply({"params": params}, normal, method="values")


def vocabulary_kernel(config: ModelConfig, params) -> tuple[jax.Array, int]:
    """The output projection as it is stored, and the axis of it that runs over the vocabulary."""
    if config.tie_embeddings:
        return params["embed"]["embedding"], 0
    return params["lm_head"]["kernel"], 1


def logits(config: ModelConfig, params, normal) -> jax.Array:
    """Vocabulary logits, float32 [..., V], of normed states [..., H]."""
    kernel, vocabulary_axis = vocabulary_kernel(config, params)
    kernel = kernel.astype(normal.dtype)
    if vocabulary_axis:
        result = jnp.matmul(
            normal, kernel, precision=config.precision, preferred_element_type=jnp.float32
        )
    else:
        rows = normal.reshape(-1, normal.shape[-1])
        result = rows_times(rows, kernel, config.precision).reshape(*normal.shape[:-1], -1)
    cap = config.final_softcap
    return result if cap is None else cap * jnp.tanh(result / cap)


def forest_mask(segment: jax.Array, ancestors: jax.Array | None) -> jax.Array:
    """Who sees whom: bool [B, T, T], True where query column i may read key column j.

    j's segment is i's own or above it, and j <= i. Padding (segment -1) sees itself only, so no
    row of the softmax is empty.

    Args:
      segment: int32 [B, T], row-local, -1 on padding.
      ancestors: bool [B, S, S], [i, j] true when j is i or above i; None when no segment has a
        parent in the row (plain sequence packing).
    """
    length = segment.shape[-1]
    if ancestors is None:
        related = segment[:, :, None] == segment[:, None, :]
    else:
        inside = jnp.maximum(segment, 0)
        related = jax.vmap(lambda table, ids: table[ids][:, ids])(ancestors, inside)
    real = segment >= 0
    related = related & real[:, :, None] & real[:, None, :]
    causal = jnp.tril(jnp.ones((length, length), bool))
    return (related & causal[None]) | jnp.eye(length, dtype=bool)[None]


class Surroundings(NamedTuple):
    """What a row's layers read beside the states.

    Attributes:
      tables: (cosines, sines) by layer type. masks: bool [B, T, T] by layer type.
      real: bool [B, T], columns that are no padding.
    """

    tables: dict[str, tuple[jax.Array, jax.Array]]
    masks: dict[str, jax.Array]
    real: jax.Array


def surroundings(config: ModelConfig, positions, segment, ancestors) -> Surroundings:
    """Rotary tables and masks of the layer types a config has; arguments of `hidden_states`."""
    types = [name for name in dict.fromkeys(config.layer_types or ("full",)) if name != "linear"]
    masks = {}
    related = forest_mask(segment, ancestors)
    for name in types:
        masks[name] = related
        if name == "sliding":
            near = positions[:, :, None] - positions[:, None, :] < config.sliding_window
            masks[name] = related & near
    tables = {name: rotary_tables(config, positions, name) for name in types}
    return Surroundings(tables, masks, segment >= 0)


def query_scale(config: ModelConfig, kind: str) -> float:
    """What products of queries and keys are multiplied by."""
    return config.head_size(kind) ** -0.5 if config.query_scale is None else config.query_scale


def schedule(config: ModelConfig) -> tuple[tuple[tuple[str, ...], int], ...]:
    """The layers as (pattern of kinds, repeats), in order; each pattern is compiled once.

    From the first layer on: the pattern whose repeats cover most layers, the shortest of equals.
    """
    kinds, runs, start = config.layer_kinds, [], 0
    while start < len(kinds):
        rest = kinds[start:]
        best = (rest, 1)
        for period in range(1, len(rest) // 2 + 1):
            repeats = 1
            while rest[: period * (repeats + 1)] == rest[:period] * (repeats + 1):
                repeats += 1
            covered = best[1] * len(best[0]) if best[1] > 1 else 0
            if repeats > 1 and repeats * period > covered:
                best = (rest[:period], repeats)
        runs.append(best)
        start += len(best[0]) * best[1]
    return tuple(runs)


def hidden_states(config: ModelConfig, params, tokens, positions, segment, ancestors) -> jax.Array:
    """States after the last layer, before the final norm: [B, T, H].

    Args:
      tokens, positions, segment: int32 [B, T]; positions count along each token's own path,
        segment is -1 on padding.
      ancestors: bool [B, S, S] as in `forest_mask`, or None. A recurrent decoder reads rows of one
        path each and takes no notice of it.
    """
    around = surroundings(config, positions, segment, ancestors)
    hidden, extra = Ends(config).apply({"params": params}, tokens, method="inputs")
    shared = {}
    if config.num_kv_shared_layers:
        for name in around.masks:
            shape = (*tokens.shape, config.kv_heads(name), config.head_size(name))
            shared[name] = (jnp.zeros(shape, hidden.dtype),) * 2
    done, layer = Counter(), 0
    for pattern, repeats in schedule(config):
        counts = Counter(pattern)
        weights = {
            kind: _rows(params["layers"][kind], done[kind], repeats, count)
            for kind, count in counts.items()
        }
        inputs = None if extra is None else _rows(extra, layer, repeats, len(pattern))
        hidden, shared = _run(config, pattern, repeats, hidden, shared, (weights, inputs), around)
        done.update({kind: repeats * count for kind, count in counts.items()})
        layer += repeats * len(pattern)
    return hidden


def _rows(stack, start: int, repeats: int, count: int):
    """Rows start .. start + repeats * count of every array as [repeats, count, ...], with a count
    of 1 as [repeats, ...]: XLA copies a whole stack that gets an axis of length 1."""

    def cut(array):
        if array.shape[0] != repeats * count:
            array = jax.lax.slice_in_dim(array, start, start + repeats * count)
        return array if count == 1 else array.reshape(repeats, count, *array.shape[1:])

    return jax.tree.map(cut, stack)


def _row(stack, row: int, count: int):
    """Row `row` of what a step of the scan gets of `_rows`."""
    if count == 1:
        return stack
    return jax.tree.map(lambda array: jax.lax.index_in_dim(array, row, keepdims=False), stack)


def _all_but_views(primitive, *_, **__) -> bool:
    return primitive.name not in ("slice", "squeeze")


# What the backward pass finds, by `config.remat`.
_SAVED = {
    "none": _all_but_views,
    "layer": jax.checkpoint_policies.nothing_saveable,
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
}


def _run(config, pattern, repeats, hidden, shared, weights, around: Surroundings):
    """A pattern of layers, `repeats` times; (states, keys and values to share) after it."""
    # Keys and values that these layers only read stay out of the carry: it is kept for every step.
    own = not pattern[0].endswith("_shared")
    counts = Counter(pattern)

    def layer(kind, row, weights, hidden, shared, inputs):
        part = _row(weights, row, counts[kind])
        return whole_layer(config, kind, part, hidden, shared, inputs, around)

    step = layer
    if config.remat != "none" or len(pattern) > 1:
        # A layer of a longer pattern takes its weights out of the stack inside the checkpoint: what
        # is kept for the backward pass is then the stack itself, not a copy of every weight.
        step = jax.checkpoint(
            layer,
            static_argnums=(0, 1),
            prevent_cse=config.remat != "none" and repeats == 1,
            policy=_SAVED[config.remat],
        )

    def body(carry, parts):
        weights, inputs = parts
        hidden, carried = carry
        seen = Counter()
        for index, kind in enumerate(pattern):
            available = carried if own else shared
            given = _row(inputs, index, len(pattern))
            hidden, fresh = step(kind, seen[kind], weights[kind], hidden, available, given)
            seen[kind] += 1
            carried = {**carried, **fresh} if own else carried
        return (hidden, carried), None

    carry = (hidden, shared if own else {})
    (hidden, carried), _ = jax.lax.scan(body, carry, weights, length=repeats)
    return hidden, carried if own else shared


def whole_layer(config, kind, weights, hidden, shared, inputs, around: Surroundings):
    """One layer over whole rows.

    Returns:
      States [B, T, H], and {layer type: (keys, values)} where later layers share them, else {}.
    """
    module, variables = DecoderLayer(config, kind), {"params": weights}
    fresh = {}
    if kind == "linear":
        update, _ = module.apply(variables, hidden, around.real, None, method="delta")
    else:
        name = kind.removesuffix("_shared")
        queries, keys, mixed_in, gate = module.apply(
            variables, hidden, *around.tables[name], method="attention_inputs"
        )
        if keys is None:
            keys, mixed_in = shared[name]
        elif shared:
            fresh[name] = (keys, mixed_in)
        scale = query_scale(config, kind)
        mixed = attend(queries, keys, mixed_in, around.masks[name], scale, config.precision)
        update = module.apply(variables, mixed, gate, method="attention_output")
    hidden = module.apply(variables, hidden, update, inputs, method="combine")
    return hidden, fresh
