"""The two smallest parts of every layer: a linear map that may carry an adapter, and a norm."""

from functools import partial

import jax
import jax.numpy as jnp
from flax import linen as nn

from sepo_jax.policy.config import DTYPES, ModelConfig


class Linear(nn.Module):
    """x W + b, and with adapter leaves beside the kernel also scale (x A) B.

    Parameters: "kernel" [in, features], "bias" [features] when asked for. Never created here:
    `lora_a` [in, R rank] and `lora_b` [R rank, features], R adapters side by side, which
    `lora.attach` puts there; `lora_choice`, the adapter of each row, which `lora.choose` puts there
    where R > 1; and "transposed" [features, in], which stands for the kernel in the decoding form
    of `decoding_form.fuse`.

    Attributes:
      config: gives dtypes, precision and the adapter's scale.
      features: size of the output.
      use_bias: whether there is a bias.
      init_scale: variance of a fresh kernel times fan-in.
    """

    config: ModelConfig
    features: int
    use_bias: bool = False
    init_scale: float = 1.0

    @nn.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        config = self.config
        stored, computed = DTYPES[config.param_dtype], DTYPES[config.compute_dtype]
        inputs = inputs.astype(computed)

        def times(rows, matrix):
            return jnp.matmul(rows, matrix.astype(computed), precision=config.precision)

        # One axis of rows: the products of the backward pass are then plain products as well.
        lead = inputs.shape[:-1]
        inputs = inputs.reshape(-1, inputs.shape[-1])
        if self.has_variable("params", "transposed"):
            kernel = self.get_variable("params", "transposed")
            result = rows_times(inputs, kernel, config.precision).astype(computed)
        else:
            draw = nn.initializers.variance_scaling(self.init_scale, "fan_in", "normal")
            kernel = self.param("kernel", draw, (inputs.shape[-1], self.features), stored)
            result = times(inputs, kernel)
        if self.has_variable("params", "lora_a"):
            if config.lora is None:
                raise ValueError(
                    "the parameters carry an adapter, but config.lora is None: it gives the "
                    "adapter's scale; load with lora=LoraConfig(...), or detach the adapter"
                )
            low = self._of_chosen(times(inputs, self.get_variable("params", "lora_a")))
            adapted = times(low, self.get_variable("params", "lora_b"))
            result = result + jnp.asarray(config.lora.scale, computed) * adapted
        if self.use_bias:
            bias = self.param("bias", nn.initializers.zeros, (self.features,), stored)
            result = result + bias.astype(computed)[None]
        return result.reshape(*lead, self.features)

    def _of_chosen(self, low: jax.Array) -> jax.Array:
        """x A [N, R rank] with the columns of all adapters but each row's own set to 0."""
        lora = self.config.lora
        # In decoding form projections lie side by side, and so do their ranks.
        fused = self.has_variable("params", "transposed")
        if not fused and low.shape[-1] != lora.rank * lora.adapters:
            raise ValueError(
                f"the parameters carry adapters of {low.shape[-1]} columns, but config.lora says "
                f"{lora.adapters} of rank {lora.rank}; `lora.apart` takes several adapters apart"
            )
        if lora.adapters == 1:
            return low
        if not self.has_variable("params", "lora_choice"):
            raise ValueError(
                f"the parameters carry the adapters of {lora.adapters} agents: score with "
                "log_probs(..., agent=batch.agent), or take them apart with `lora.apart`"
            )
        choice = self.get_variable("params", "lora_choice").reshape(-1, 1)
        owner = jnp.arange(low.shape[-1])[None] // lora.rank
        return jnp.where(owner == choice, low, 0)


def rows_times(rows: jax.Array, transposed: jax.Array, precision) -> jax.Array:
    """Products of rows [N, in] and a matrix given as [F, in]; float32 [N, F]."""
    product = partial(
        jax.lax.dot_general,
        dimension_numbers=(((1,), (1,)), ((), ())),
        precision=precision,
        preferred_element_type=jnp.float32,
    )
    barrier = jax.lax.optimization_barrier

    def on_cpu(rows, transposed):
        # Kernels repack their right factor at every call: the few rows, not the matrix. Barriers
        # keep the compiler from turning the product round, and from products that return bfloat16,
        # which are an order of magnitude slower there.
        return barrier(product(*barrier((transposed, rows)))).T

    return jax.lax.platform_dependent(rows, transposed, cpu=on_cpu, default=product)


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + epsilon) * (offset + scale), over the last axis, in float32.

    Source: Zhang and Sennrich 2019, eq. 4; Gemma and Qwen3.5 store the scale less one.

    Attributes:
      config: gives epsilon, offset and dtypes.
      has_scale: whether there is a stored scale; without one the factor is 1.
    """

    config: ModelConfig
    has_scale: bool = True

    @nn.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        config = self.config
        wide = inputs.astype(jnp.float32)
        mean_square = jnp.mean(jnp.square(wide), axis=-1, keepdims=True)
        normal = wide * jax.lax.rsqrt(mean_square + config.rms_norm_epsilon)
        if self.has_scale:
            start = nn.initializers.constant(1.0 - config.norm_offset)
            scale = self.param("scale", start, inputs.shape[-1:], DTYPES[config.param_dtype])
            scale = config.norm_offset + scale.astype(jnp.float32)
            normal = normal * scale.reshape((1,) * (inputs.ndim - 1) + (-1,))
        return normal.astype(DTYPES[config.compute_dtype])
