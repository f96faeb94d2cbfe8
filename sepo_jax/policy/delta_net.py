"""The linear layer's token mixer: gated delta-net, as in Qwen3.5.

Projections, a short convolution, the gated delta rule, a gated norm and an output projection. The
arithmetic over tokens is in `delta_rule.py`. Source: Yang et al., Gated Delta Networks
(arXiv 2412.06464), section 3.4.

In the shape descriptions, B is rows, T tokens, H hidden size, V value heads, Dk and Dv the sizes of
key and value heads, C the channels of queries, keys and values together.
"""

import math

import chex
import jax
import jax.numpy as jnp
from flax import linen as nn

from sepo_jax.policy.config import DTYPES, ModelConfig
from sepo_jax.policy.delta_rule import causal_convolution, gated_delta_rule
from sepo_jax.policy.linear import Linear


@chex.dataclass(frozen=True)
class DeltaState:
    """What a linear layer keeps of the past, whatever its length.

    Attributes:
      conv: float32 [B, width - 1, C], last inputs of the convolution.
      recurrent: float32 [B, V, Dk, Dv], the memories.
    """

    conv: jax.Array
    recurrent: jax.Array


def init_delta_state(config: ModelConfig, rows: int) -> DeltaState:
    """The state of one linear layer before the first token of `rows` rows: zeros."""
    heads = config.linear_value_heads
    sizes = config.linear_key_head_dim, config.linear_value_head_dim
    channels = 2 * config.linear_key_heads * sizes[0] + heads * sizes[1]
    # Float32 in every model: rounding what is added to thousands of times would drift.
    return DeltaState(
        conv=jnp.zeros((rows, config.linear_conv_width - 1, channels), jnp.float32),
        recurrent=jnp.zeros((rows, heads, *sizes), jnp.float32),
    )


class DeltaMixer(nn.Module):
    """Token mixing of a linear layer, from normed states to the update of the residual stream.

    Parameters: in_proj_qkv [H, C], in_proj_z [H, V * Dv], in_proj_b and in_proj_a [H, V], out_proj
    [V * Dv, H] (`Linear`, so adapters apply); conv {"kernel" [width, C]}; delta {"a_log" [V],
    "dt_bias" [V]}; delta_norm {"scale" [Dv]}. C is queries, keys, values in this order. A parent
    that wants them flat among its own calls `nn.share_scope(self, self.mixer)` in its setup.
    """

    config: ModelConfig

    def setup(self):
        config = self.config
        key_size = config.linear_key_heads * config.linear_key_head_dim
        value_size = config.linear_value_heads * config.linear_value_head_dim
        self.in_proj_qkv = Linear(config, 2 * key_size + value_size)
        self.in_proj_z = Linear(config, value_size)
        self.in_proj_b = Linear(config, config.linear_value_heads)
        self.in_proj_a = Linear(config, config.linear_value_heads)
        self.conv = _Taps(config)
        self.delta = _LogDecay(config)
        self.delta_norm = _GatedNorm(config)
        self.out_proj = Linear(config, config.hidden_size, init_scale=1 / (2 * config.num_layers))

    def __call__(
        self, normal: jax.Array, real: jax.Array, state: DeltaState | None = None
    ) -> tuple[jax.Array, DeltaState]:
        """Mixes whole rows, or appends a few tokens to a state.

        Args:
          normal: [B, T, H]. real: bool [B, T], adjacent columns as `causal_convolution` takes them
            (a decode step has the real tokens first); a row may be all padding.
          state: before the first real column; None at the start of the sequence.

        Returns:
          The update [B, T, H] (columns of padding: finite, without meaning) and the state after the
          last real column, unchanged for rows that are all padding.
        """
        config = self.config
        chex.assert_rank([normal, real], [3, 2])
        chex.assert_equal_shape_prefix([normal, real], 2)
        if state is None:
            state = init_delta_state(config, normal.shape[0])
        normal = jnp.where(real[..., None], normal, 0)
        mixed, conv = causal_convolution(self.in_proj_qkv(normal), self.conv(), state.conv, real)
        key_size = config.linear_key_heads * config.linear_key_head_dim
        parts = jnp.split(mixed, [key_size, 2 * key_size], axis=-1)
        sizes = (config.linear_key_head_dim,) * 2 + (config.linear_value_head_dim,)
        query, key, value = (
            part.reshape(*part.shape[:2], -1, size) for part, size in zip(parts, sizes, strict=True)
        )
        beta = jax.nn.sigmoid(self.in_proj_b(normal).astype(jnp.float32))
        log_decay = self.delta(self.in_proj_a(normal))
        # Padding neither decays nor corrects the memory.
        beta, log_decay = (jnp.where(real[..., None], x, 0.0) for x in (beta, log_decay))
        output, recurrent = gated_delta_rule(query, key, value, log_decay, beta, state.recurrent)
        output = self.delta_norm(output, self.in_proj_z(normal).reshape(output.shape))
        update = self.out_proj(output.reshape(*output.shape[:2], -1))
        return update, DeltaState(conv=conv, recurrent=recurrent)


class _Taps(nn.Module):
    """The convolution's kernel [width, C]."""

    config: ModelConfig

    @nn.compact
    def __call__(self) -> jax.Array:
        config = self.config
        keys = 2 * config.linear_key_heads * config.linear_key_head_dim
        channels = keys + config.linear_value_heads * config.linear_value_head_dim
        draw = nn.initializers.normal(config.linear_conv_width**-0.5)
        shape = (config.linear_conv_width, channels)
        return self.param("kernel", draw, shape, DTYPES[config.param_dtype])


class _LogDecay(nn.Module):
    """-exp(a_log) softplus(inputs + dt_bias), float32 [B, T, V].

    Starts with rates in [1, 16] and steps in [0.001, 0.1], both spread over heads: memories of
    about one to a thousand tokens. Source: Dao and Gu, Mamba-2 (arXiv 2405.21060).
    """

    config: ModelConfig

    @nn.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        def draw_rate(key, shape, dtype):
            return jnp.log(jax.random.uniform(key, shape, minval=1.0, maxval=16.0)).astype(dtype)

        def draw_step(key, shape, dtype):
            span = (math.log(0.001), math.log(0.1))
            step = jnp.exp(jax.random.uniform(key, shape, minval=span[0], maxval=span[1]))
            return jnp.log(jnp.expm1(step)).astype(dtype)  # the inverse of softplus

        shape, dtype = inputs.shape[-1:], DTYPES[self.config.param_dtype]
        a_log = self.param("a_log", draw_rate, shape, dtype).astype(jnp.float32)
        dt_bias = self.param("dt_bias", draw_step, shape, dtype).astype(jnp.float32)
        step = jax.nn.softplus(inputs.astype(jnp.float32) + dt_bias[None, None])
        return -jnp.exp(a_log)[None, None] * step


class _GatedNorm(nn.Module):
    """x / sqrt(mean(x^2) + epsilon) * scale * silu(gate) over the last axis, in float32."""

    config: ModelConfig

    @nn.compact
    def __call__(self, inputs: jax.Array, gate: jax.Array) -> jax.Array:
        config = self.config
        shape, stored = inputs.shape[-1:], DTYPES[config.param_dtype]
        scale = self.param("scale", nn.initializers.ones, shape, stored).astype(jnp.float32)
        wide = inputs.astype(jnp.float32)
        mean_square = jnp.mean(jnp.square(wide), axis=-1, keepdims=True)
        normal = wide * jax.lax.rsqrt(mean_square + config.rms_norm_epsilon)
        gated = normal * scale[None, None, None] * jax.nn.silu(gate.astype(jnp.float32))
        return gated.astype(DTYPES[config.compute_dtype])
