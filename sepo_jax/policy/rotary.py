"""Rotary positions: angles of every kind of layer, and the turn of queries and keys."""

import jax
import jax.numpy as jnp

from sepo_jax.policy.config import ModelConfig


def frequencies(config: ModelConfig, kind: str) -> jax.Array:
    """Angle a position adds to each turned pair, radians, float32 [n], in layers of `kind`.

    theta^(-2 i / size), scaled as `RopeScaling` says in full layers. With n below half the head
    the entries after the first 2 n are left alone. Source: Su et al., RoFormer, section 3.4.
    """
    head = config.head_size(kind)
    theta, scaling, size = config.rope_theta, config.rope_scaling, head
    if _turns_locally(config, kind):
        theta, scaling = config.local_rope_theta, None
        turned = head // 2
    elif scaling is not None and scaling.kind == "proportional":
        turned = int(config.rotary_fraction * head // 2)
    else:
        size = int(head * config.rotary_fraction)
        turned = -(-size // 2)
    exponent = jnp.arange(turned, dtype=jnp.float32) * 2 / size
    frequency = theta**-exponent
    if scaling is None:
        return frequency
    frequency = scaling.scaled(frequency, theta, size)
    if scaling.kind == "proportional":  # pairs lie half a head apart, most of them at rest
        frequency = jnp.pad(frequency, (0, head // 2 - turned))
    return frequency


def rotary_tables(
    config: ModelConfig, positions: jax.Array, kind: str = "full"
) -> tuple[jax.Array, jax.Array]:
    """Cosines and sines of the rotary angles, float32 [..., n], for positions [...]."""
    frequency = frequencies(config, kind)
    shape = (1,) * positions.ndim + frequency.shape
    angles = positions[..., None].astype(jnp.float32) * frequency.reshape(shape)
    scaling = None if _turns_locally(config, kind) else config.rope_scaling
    size = 1.0 if scaling is None else scaling.magnitude
    return size * jnp.cos(angles), size * jnp.sin(angles)


def rotate(heads: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    """Turns pairs (i, i + n) of the first 2 n entries of `heads` [B, T, heads, D].

    Args:
      cos, sin: float32 [B, T, n], n <= D / 2; entries from 2 n on stay as they are.
    """
    turned = 2 * cos.shape[-1]
    first, second = jnp.split(heads[..., :turned].astype(jnp.float32), 2, axis=-1)
    cos, sin = cos[:, :, None, :], sin[:, :, None, :]
    parts = [first * cos - second * sin, second * cos + first * sin]
    parts = [part.astype(heads.dtype) for part in parts]
    if turned < heads.shape[-1]:
        parts.append(heads[..., turned:])
    return jnp.concatenate(parts, axis=-1)


def _turns_locally(config: ModelConfig, kind: str) -> bool:
    """Whether layers of `kind` have a theta of their own, which no scaling touches."""
    return kind.startswith("sliding") and config.local_rope_theta is not None
