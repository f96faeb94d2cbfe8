"""One layer of a decoder as Flax modules: norms, projections, attention, gated feed-forward part.

A layer is cut at its attention: `attention_inputs` gives queries, keys and values,
`attention_output` takes what attention mixed, `combine` adds it and runs the rest. Training puts a
masked product over the row between them (`attend`), decoding puts a cache there (`cache.py`); the
weights and the arithmetic around it exist once.

In the shape descriptions, B is rows, T tokens, H hidden size, Q query heads, K key/value heads and
D head size.
"""

from functools import partial

import jax
import jax.numpy as jnp
from flax import linen as nn

from sepo_jax.policy.config import DTYPES, ModelConfig
from sepo_jax.policy.delta_net import DeltaMixer
from sepo_jax.policy.linear import Linear, RMSNorm
from sepo_jax.policy.rotary import rotate

ACTIVATION_FUNCTIONS = {
    "silu": nn.silu,
    "gelu_tanh": lambda inputs: nn.gelu(inputs, approximate=True),
}


@partial(jax.checkpoint, static_argnums=(4, 5), prevent_cse=False)
def attend(queries, keys, values, mask, scale: float, precision) -> jax.Array:
    """Softmax attention over a row with shared key/value heads; [B, T, Q, D] -> [B, T, Q * D].

    The backward pass forms the scores again, so that no [T, T] numbers are kept for it.

    Args:
      queries: [B, T, Q, D]; keys, values: [B, T, K, D]; mask: bool [B, T, T].
      scale: multiplies the products of queries and keys.
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
    scores = scores * scale + bias[:, None, None]
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


class DecoderLayer(nn.Module):
    """One layer: h + mixer(norm(h)), then h + feed_forward(norm(h)), and what the family adds.

    Attributes:
      config: of the whole decoder.
      kind: one of `config.layer_kinds`.
      fused: expects the query, key and value kernels (and the gate and up kernels) side by side in
        one array, as `decoding_form.fuse` lays them out: fewer and larger products while decoding.
    """

    config: ModelConfig
    kind: str = "full"
    fused: bool = False

    def setup(self):
        config, kind = self.config, self.kind
        shrink = 1 / (2 * config.num_layers)  # the sum over layers keeps unit scale at the start
        self.attention_norm = RMSNorm(config)
        self.feed_forward_norm = RMSNorm(config)
        if kind == "linear":
            self.mixer = DeltaMixer(config)
            nn.share_scope(self, self.mixer)
        else:
            self._set_up_attention(shrink)
        if config.post_norms:
            self.post_attention_norm = RMSNorm(config)
            self.post_feed_forward_norm = RMSNorm(config)
        width = config.feed_forward_size(kind)
        if self.fused:
            self.gate_up_proj = Linear(config, 2 * width)
        else:
            self.gate_proj = Linear(config, width)
            self.up_proj = Linear(config, width)
        self.down_proj = Linear(config, config.hidden_size, init_scale=shrink)
        if config.per_layer_embedding_size:
            self.per_layer_gate = Linear(config, config.per_layer_embedding_size)
            self.per_layer_projection = Linear(config, config.hidden_size, init_scale=shrink)
            self.per_layer_norm = RMSNorm(config)
        if config.layer_scalar:
            self.layer_scalar = Scalar(config)

    def _set_up_attention(self, shrink: float):
        config, kind = self.config, self.kind
        self.query_size = config.num_heads * config.head_size(kind)
        self.key_size = config.kv_heads(kind) * config.head_size(kind)
        self.has_own_keys = not kind.endswith("_shared")
        bias = config.attention_bias
        # With a gate, queries and gates alternate head by head.
        out = self.query_size * (2 if config.attention_gate else 1)
        if self.fused and self.has_own_keys:
            self.qkv_proj = Linear(config, out + 2 * self.key_size, bias)
        else:
            self.q_proj = Linear(config, out, bias)
            if self.has_own_keys:
                self.k_proj = Linear(config, self.key_size, bias)
                self.v_proj = Linear(config, self.key_size, bias)
        if config.query_key_norm:
            self.q_norm = RMSNorm(config)
            if self.has_own_keys:
                self.k_norm = RMSNorm(config)
        if config.value_norm and self.has_own_keys:
            self.v_norm = RMSNorm(config, has_scale=False)
        self.o_proj = Linear(config, config.hidden_size, config.output_bias, shrink)

    def attention_inputs(self, hidden, cos, sin):
        """What attention needs of `hidden` [B, T, H].

        Returns:
          Rotated queries [B, T, Q, D]; rotated keys and values [B, T, K, D], both None in a layer
          that shares them; gate [B, T, Q * D] or None.
        """
        config = self.config
        size = config.head_size(self.kind)
        normal = self.attention_norm(hidden)
        if self.fused and self.has_own_keys:
            width = self.qkv_proj.features - 2 * self.key_size
            parts = jnp.split(self.qkv_proj(normal), [width, width + self.key_size], axis=-1)
        else:
            parts = [self.q_proj(normal)]
            if self.has_own_keys:
                parts += [self.k_proj(normal), self.v_proj(normal)]
        heads = [part.reshape(*part.shape[:-1], -1, size) for part in parts]
        gate = None
        if config.attention_gate:
            pairs = parts[0].reshape(*parts[0].shape[:-1], -1, 2, size)
            heads[0] = pairs[..., 0, :]
            gate = pairs[..., 1, :].reshape(*pairs.shape[:-3], self.query_size)
        queries, keys, values = (*heads, None, None)[:3]
        if config.query_key_norm:
            queries = self.q_norm(queries)
            keys = self.k_norm(keys) if self.has_own_keys else None
        if config.value_norm and self.has_own_keys:
            values = self.v_norm(values)
        keys = rotate(keys, cos, sin) if self.has_own_keys else None
        return rotate(queries, cos, sin), keys, values, gate

    def attention_output(self, mixed, gate):
        """The update [B, T, H] of what attention mixed [B, T, Q * D], and gated if it is."""
        if gate is not None:
            mixed = mixed * nn.sigmoid(gate.astype(jnp.float32))
        return self.o_proj(mixed)

    def delta(self, hidden, real, state):
        """The update [B, T, H] of a linear layer and its state after the row; see `DeltaMixer`."""
        return self.mixer(self.attention_norm(hidden), real, state)

    def combine(self, hidden, update, per_layer_input=None):
        """The layer's output [B, T, H], given the update of its attention or delta rule.

        Args:
          per_layer_input: [B, T, E], this layer's share of the per-layer embeddings, or None.
        """
        config = self.config
        activation = ACTIVATION_FUNCTIONS[config.activation]
        if config.post_norms:
            update = self.post_attention_norm(update)
        hidden = hidden + update
        normal = self.feed_forward_norm(hidden)
        if self.fused:
            gate, up = jnp.split(self.gate_up_proj(normal), 2, axis=-1)
        else:
            gate, up = self.gate_proj(normal), self.up_proj(normal)
        update = self.down_proj(activation(gate) * up)
        if config.post_norms:
            update = self.post_feed_forward_norm(update)
        hidden = hidden + update
        if per_layer_input is not None:
            gate = activation(self.per_layer_gate(hidden))
            hidden = hidden + self.per_layer_norm(self.per_layer_projection(gate * per_layer_input))
        return hidden * self.layer_scalar() if config.layer_scalar else hidden

    def touch(self, hidden):
        """Uses every parameter once on `hidden` [B, T, H]; how they are initialised."""
        config, kind = self.config, self.kind
        if kind == "linear":
            update, _ = self.delta(hidden, jnp.ones(hidden.shape[:2], bool), None)
        else:
            size = config.head_size(kind) // 2
            turn = jnp.ones((*hidden.shape[:2], size))
            queries, _, _, gate = self.attention_inputs(hidden, turn, turn)
            update = self.attention_output(queries.reshape(*hidden.shape[:2], -1), gate)
        size = config.per_layer_embedding_size
        inputs = jnp.zeros((*hidden.shape[:2], size), hidden.dtype) if size else None
        return self.combine(hidden, update, inputs)


class Scalar(nn.Module):
    """A stored factor, 1 at the start; in the compute dtype."""

    config: ModelConfig

    @nn.compact
    def __call__(self) -> jax.Array:
        dtypes = self.config.param_dtype, self.config.compute_dtype
        scale = self.param("scale", nn.initializers.ones, (1,), DTYPES[dtypes[0]])
        return scale.astype(DTYPES[dtypes[1]])[0]
