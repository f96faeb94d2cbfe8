"""Log-probability and entropy of tokens, one formula for sampler and trainer."""

import chex
import jax
import jax.numpy as jnp


@chex.dataclass(frozen=True)
class TokenScores:
    """What a policy says of given tokens; float32 [B, A] each.

    Attributes:
      logp: log-probability of each target. entropy: of the whole next-token distribution, nats.
      value: state value before the target; None without a value head.
    """

    logp: jax.Array
    entropy: jax.Array
    value: jax.Array | None


def token_scores(logits, target, temperature=1.0) -> tuple[jax.Array, jax.Array]:
    """Log-probability of `target` [...] and entropy under softmax(logits / temperature).

    logp = z_t - log sum exp z and H = log sum exp z - sum p z, z = (logits - max) / temperature.
    Entries of -inf (forbidden tokens) have probability 0, add nothing to the entropy and leave
    every gradient finite: the product p z never sees them.
    """
    peak = jax.lax.stop_gradient(jnp.max(logits, axis=-1, keepdims=True))
    allowed = logits > -jnp.inf
    scaled = (jnp.where(allowed, logits, peak) - peak) / temperature
    weights = jnp.where(allowed, jnp.exp(scaled), 0.0)
    total = jnp.sum(weights, axis=-1)
    log_total = jnp.log(total)
    entropy = log_total - jnp.sum(weights * scaled, axis=-1) / total
    chosen = jnp.take_along_axis(scaled, target[..., None], axis=-1)[..., 0]
    legal = jnp.take_along_axis(allowed, target[..., None], axis=-1)[..., 0]
    return jnp.where(legal, chosen - log_total, -jnp.inf), entropy
