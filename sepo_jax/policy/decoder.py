"""The decoder as Flax modules: norms, rotary attention with shared key/value heads, gated layers.

A layer is cut at its attention: `attention_inputs` gives queries, keys and values,
`attention_output` takes what attention mixed. Training puts a masked product over the row between
them (`attend`), decoding puts a cache there (`cache.py`); the weights and the arithmetic around it
exist once.

In the shape descriptions, B is rows, T tokens, H hidden size, Q query heads, K key/value heads and
D head size.
"""

import math

import jax
import jax.numpy as jnp
from flax import linen as nn

from sepo_jax.policy.config import DTYPES, ModelConfig


def rotary_tables(config: ModelConfig, positions: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Cosines and sines of the rotary angles, float32 [..., D / 2], for positions [...].

    angle_i = position * theta^(-2 i / D), frequencies scaled as `RopeScaling` says.
    Source: Su et al., RoFormer, section 3.4; Llama 3.1 for the scaling.
    """
    half = config.head_dim // 2
    exponent = jnp.arange(half, dtype=jnp.float32) / half
    frequency = config.rope_theta**-exponent
    if (scaling := config.rope_scaling) is not None:
        turns = scaling.original_max_positions * frequency / (2 * math.pi)
        low, high = scaling.low_freq_factor, scaling.high_freq_factor
        keep = jnp.clip((turns - low) / (high - low), 0.0, 1.0)
        frequency = frequency * (keep + (1 - keep) / scaling.factor)
    shape = (1,) * positions.ndim + (half,)
    angles = positions[..., None].astype(jnp.float32) * frequency.reshape(shape)
    return jnp.cos(angles), jnp.sin(angles)


def rotate(heads: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    """Turns pairs (i, i + D/2) of `heads` [B, T, heads, D] by the angles of [B, T, D/2] tables."""
    first, second = jnp.split(heads.astype(jnp.float32), 2, axis=-1)
    cos, sin = cos[:, :, None, :], sin[:, :, None, :]
    turned = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return turned.astype(heads.dtype)


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


def attend(queries, keys, values, mask, precision) -> jax.Array:
    """Softmax attention over a row with shared key/value heads; [B, T, Q, D] -> [B, T, Q * D].

    Args:
      queries: [B, T, Q, D]; keys, values: [B, T, K, D]; mask: bool [B, T, T].
      precision: of the two products; scores and softmax are float32.
    """
    batch, length, heads, size = queries.shape
    shared = keys.shape[2]
    group = heads // shared
    # Query heads that share a key head stand below each other: one product per key head.
    rows = queries.reshape(batch, length, shared, group, size)
    rows = rows.transpose(0, 2, 3, 1, 4).reshape(batch, shared, group * length, size)
    scores = jnp.matmul(
        rows,
        keys.transpose(0, 2, 3, 1),
        precision=precision,
        preferred_element_type=jnp.float32,
    ).reshape(batch, shared, group, length, length)
    bias = jnp.where(mask, 0.0, jnp.finfo(jnp.float32).min / 2)
    scores = scores / math.sqrt(size) + bias[:, None, None]
    peak = jax.lax.stop_gradient(jnp.max(scores, axis=-1, keepdims=True))
    weights = jnp.exp(scores - peak)
    # Dividing after the product touches D numbers a query instead of T.
    total = jnp.sum(weights, axis=-1, keepdims=True)
    weights = weights.astype(values.dtype).reshape(batch, shared, group * length, length)
    mixed = jnp.matmul(
        weights,
        values.transpose(0, 2, 1, 3),
        precision=precision,
        preferred_element_type=jnp.float32,
    )
    mixed = mixed.reshape(batch, shared, group, length, size) / total
    return mixed.transpose(0, 3, 1, 2, 4).reshape(batch, length, heads * size)


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + epsilon) * scale, in float32. Source: Zhang and Sennrich 2019, eq. 4."""

    config: ModelConfig

    @nn.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        config = self.config
        scale = self.param(
            "scale", nn.initializers.ones, inputs.shape[-1:], DTYPES[config.param_dtype]
        )
        wide = inputs.astype(jnp.float32)
        mean_square = jnp.mean(jnp.square(wide), axis=-1, keepdims=True)
        normal = wide * jax.lax.rsqrt(mean_square + config.rms_norm_epsilon)
        scale = scale.astype(jnp.float32).reshape((1,) * (inputs.ndim - 1) + (-1,))
        return (normal * scale).astype(DTYPES[config.compute_dtype])


def dense(config: ModelConfig, features: int, use_bias: bool = False, scale: float = 1.0):
    """A linear map of the model's dtypes, initialised with variance scale / fan-in."""
    return nn.Dense(
        features,
        use_bias=use_bias,
        dtype=DTYPES[config.compute_dtype],
        param_dtype=DTYPES[config.param_dtype],
        precision=config.precision,
        kernel_init=nn.initializers.variance_scaling(scale, "fan_in", "normal"),
    )


class DecoderLayer(nn.Module):
    """One pre-norm layer: h + attention(norm(h)), then h + feed_forward(norm(h)).

    `fused` expects the query, key and value kernels (and the gate and up kernels) side by side in
    one array, as `cache.fuse` lays them out: fewer and larger products while decoding.
    """

    config: ModelConfig
    fused: bool = False

    def setup(self):
        config = self.config
        query_size = config.num_heads * config.head_dim
        key_size = config.num_kv_heads * config.head_dim
        bias = config.attention_bias
        shrink = 1 / (2 * config.num_layers)  # the sum over layers keeps unit scale at the start
        self.attention_norm = RMSNorm(config)
        self.feed_forward_norm = RMSNorm(config)
        if self.fused:
            self.qkv_proj = dense(config, query_size + 2 * key_size, bias)
            self.gate_up_proj = dense(config, 2 * config.intermediate_size)
        else:
            self.q_proj = dense(config, query_size, bias)
            self.k_proj = dense(config, key_size, bias)
            self.v_proj = dense(config, key_size, bias)
            self.gate_proj = dense(config, config.intermediate_size)
            self.up_proj = dense(config, config.intermediate_size)
        self.o_proj = dense(config, config.hidden_size, bias, shrink)
        self.down_proj = dense(config, config.hidden_size, scale=shrink)

    def __call__(self, hidden, cos, sin, mask):
        """The layer over whole rows [B, T, H]; the second result is the scan's empty output."""
        queries, keys, values = self.attention_inputs(hidden, cos, sin)
        mixed = attend(queries, keys, values, mask, self.config.precision)
        return self.attention_output(hidden, mixed), None

    def attention_inputs(self, hidden, cos, sin):
        """Rotated queries [B, T, Q, D], rotated keys and values [B, T, K, D] of `hidden`."""
        config = self.config
        normal = self.attention_norm(hidden)
        if self.fused:
            query_size = config.num_heads * config.head_dim
            key_size = config.num_kv_heads * config.head_dim
            parts = jnp.split(self.qkv_proj(normal), [query_size, query_size + key_size], axis=-1)
        else:
            parts = [self.q_proj(normal), self.k_proj(normal), self.v_proj(normal)]
        queries, keys, values = (
            part.reshape(*part.shape[:-1], -1, config.head_dim) for part in parts
        )
        return rotate(queries, cos, sin), rotate(keys, cos, sin), values

    def attention_output(self, hidden, mixed):
        """The rest of the layer, given what attention mixed ([B, T, Q * D])."""
        hidden = hidden + self.o_proj(mixed.astype(hidden.dtype))
        normal = self.feed_forward_norm(hidden)
        if self.fused:
            gate, up = jnp.split(self.gate_up_proj(normal), 2, axis=-1)
        else:
            gate, up = self.gate_proj(normal), self.up_proj(normal)
        return hidden + self.down_proj(nn.silu(gate) * up)


class VocabularyKernel(nn.Module):
    """The output projection [H, V] of a model that does not tie it to the embedding."""

    config: ModelConfig

    @nn.compact
    def __call__(self) -> jax.Array:
        config = self.config
        shape = (config.hidden_size, config.vocab_size)
        normal = nn.initializers.normal(0.02)
        return self.param("kernel", normal, shape, DTYPES[config.param_dtype])


class Decoder(nn.Module):
    """Embedding, scanned layers, final norm, vocabulary projection and optional value head.

    Parameters: {"embed": {"embedding" [V, H]}, "layers": {projection: {"kernel" [layers, in, out]},
    norm: {"scale" [layers, H]}}, "norm": {"scale"}, "lm_head": {"kernel" [H, V]} when not tied,
    "value_head": {"kernel", "bias"} when asked for}.
    """

    config: ModelConfig

    def setup(self):
        config = self.config
        dtypes = {"param_dtype": DTYPES[config.param_dtype]}
        self.embed = nn.Embed(
            config.vocab_size,
            config.hidden_size,
            dtype=DTYPES[config.compute_dtype],
            embedding_init=nn.initializers.normal(0.02),
            **dtypes,
        )
        layer = nn.remat(DecoderLayer, prevent_cse=False) if config.remat else DecoderLayer
        self.layers = nn.scan(
            layer,
            variable_axes={"params": 0},
            split_rngs={"params": True},
            in_axes=(nn.broadcast, nn.broadcast, nn.broadcast),
            length=config.num_layers,
        )(config)
        self.norm = RMSNorm(config)
        if not config.tie_embeddings:
            self.lm_head = VocabularyKernel(config)
        if config.value_head:
            zeros = nn.initializers.zeros
            self.value_head = nn.Dense(1, dtype=jnp.float32, kernel_init=zeros, **dtypes)

    def __call__(self, tokens):
        """Touches every parameter once; used to initialise them."""
        length = tokens.shape[1]
        positions = jnp.arange(length)[None]
        mask = forest_mask(jnp.zeros((1, length), jnp.int32), None)
        hidden = self.final_norm(self.hidden_states(tokens, positions, mask))
        return self.logits(hidden), self.values(hidden)

    def embed_tokens(self, tokens):
        """Rows of the embedding, [..., H] in the compute dtype."""
        return self.embed(tokens)

    def hidden_states(self, tokens, positions, mask):
        """States after the last layer, before the final norm: [B, T, H]."""
        cos, sin = rotary_tables(self.config, positions)
        hidden, _ = self.layers(self.embed(tokens), cos, sin, mask)
        return hidden

    def final_norm(self, hidden):
        """The norm between the last layer and the heads."""
        return self.norm(hidden)

    def logits(self, normal):
        """Vocabulary logits, float32 [..., V], of normed states [..., H]."""
        config = self.config
        if config.tie_embeddings:
            kernel, axis = self.embed.embedding, 1
        else:
            kernel, axis = self.lm_head(), 0
        contract = (((normal.ndim - 1,), (axis,)), ((), ()))
        return jax.lax.dot_general(
            normal,
            kernel.astype(normal.dtype),
            contract,
            precision=config.precision,
            preferred_element_type=jnp.float32,
        )

    def values(self, normal):
        """State values, float32 [...], of normed states; None without a value head."""
        if not self.config.value_head:
            return None
        return self.value_head(normal.astype(jnp.float32))[..., 0]
