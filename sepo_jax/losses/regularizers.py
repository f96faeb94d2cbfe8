"""Divergence to a reference, entropy, and the loss of a value head; one number per unit."""

import chex
import jax
import jax.numpy as jnp

from sepo_jax.losses.ratios import MAX_LOG_RATIO, guarded_ratio
from sepo_jax.names import check_option

KL_KINDS = ("k1", "k2", "k3", "k1_clamped", "unbiased")


def kl_estimate(logp: chex.Array, reference_logp: chex.Array, kind: str = "k3") -> chex.Array:
    """Estimate of KL(policy || reference) from one sample of the policy.

    With `d = logp - reference_logp` of what was sampled. "Gradient" is the expected gradient of
    the estimate used as a loss term on samples of the policy itself, next to the gradient of
    KL(policy || reference):

    | kind | estimate | value | gradient |
    |---|---|---|---|
    | k1 | d | unbiased, any sign | 0: no regularisation at all; use it inside the reward |
    | k2 | d^2 / 2 | biased | unbiased |
    | k3 | exp(-d) - 1 + d | unbiased, >= 0 | that of KL(reference || policy) instead |
    | k1_clamped | max(d, 0) | biased upwards | biased |
    | unbiased | value of k3, gradient of k2 | unbiased, >= 0 | unbiased |

    Inside the reward, where the estimate is a constant, k1 gives the exact gradient of
    KL(policy || reference) and the others do not.
    k1 to k3: Schulman 2020, "Approximating KL divergence"; k3 in GRPO, arXiv 2402.03300, eq. 4;
    k1_clamped in SEPO, arXiv 2605.30854.

    The exponent of k3 is bounded at `MAX_LOG_RATIO` (d < -20): there the value is constant, about
    4.9e8, and the gradient 0 rather than one of the wrong sign.

    Args:
      logp: log-probability under the policy, nats, `[...]`, differentiated.
      reference_logp: log-probability under the reference, `[...]`, constant.
      kind: one of `KL_KINDS`.

    Returns:
      float32 `[...]`, nats. NaN stays visible: replace masked slots first.

    Raises:
      ValueError: unknown `kind`.
    """
    check_option("KL estimate", kind, KL_KINDS)
    chex.assert_equal_shape([logp, reference_logp])
    reference = jax.lax.stop_gradient(jnp.asarray(reference_logp, jnp.float32))
    difference = jnp.asarray(logp, jnp.float32) - reference
    if kind == "k1":
        return difference
    if kind == "k1_clamped":
        return jnp.maximum(difference, 0.0)
    k2 = 0.5 * jnp.square(difference)
    if kind == "k2":
        return k2
    k3 = guarded_ratio(-difference) - 1.0 + jnp.maximum(difference, -MAX_LOG_RATIO)
    if kind == "k3":
        return k3
    return jax.lax.stop_gradient(k3 - k2) + k2


def entropy_from_logits(logits: chex.Array, legal_mask: chex.Array | None = None) -> chex.Array:
    """Shannon entropy `-sum_v p[v] log p[v]` of `p = softmax(logits)` over the legal entries.

    Entries that are illegal or -inf have probability 0 and add 0; they are replaced before the
    logarithm, so the gradient is finite as well (and 0 at these entries). NaN stays visible.

    Args:
      logits: `[..., V]`, any float type.
      legal_mask: bool `[..., V]`; None for all legal.

    Returns:
      float32 `[...]`, nats; 0 for a row with at most one legal entry.
    """
    legal = ~jnp.isneginf(logits)
    if legal_mask is not None:
        chex.assert_equal_shape([logits, legal_mask])
        chex.assert_type(legal_mask, bool)
        legal &= legal_mask
    # A row without any legal entry is evaluated as if all were, and its result dropped.
    some = legal.any(-1)
    legal |= ~some[..., None]
    finite = jnp.where(legal & some[..., None], jnp.asarray(logits, jnp.float32), 0.0)
    logp = finite - jax.nn.logsumexp(finite, axis=-1, where=legal, keepdims=True)
    logp = jnp.where(legal, logp, 0.0)
    return jnp.where(some, -(jnp.exp(logp) * logp).sum(-1), 0.0)


def value_loss(
    value: chex.Array,
    old_value: chex.Array,
    target: chex.Array,
    clip: float | None = None,
) -> chex.Array:
    """Half squared error of a value head, optionally with PPO's pessimistic clip.

    `loss = 1/2 max((v - target)^2, (old + clip(v - old, -c, c) - target)^2)`; without a clip
    `1/2 (v - target)^2`, whose gradient is `v - target`. The clip is that of the PPO reference
    implementation (arXiv 1707.06347; Engstrom et al., arXiv 2005.12729, section 3).

    Args:
      value: predictions, `[...]`, differentiated.
      old_value: predictions when the data were sampled, `[...]`, constant.
      target: returns, `[...]`, constant.
      clip: largest move c from `old_value`, above 0; None for no clip.

    Returns:
      float32 `[...]`, squared units of the return.

    Raises:
      ValueError: `clip` not above 0.
    """
    if clip is not None and clip <= 0:
        raise ValueError(f"clip is {clip}, expected a largest move above 0, or None.")
    chex.assert_equal_shape([value, old_value, target])
    value = jnp.asarray(value, jnp.float32)
    old_value, target = jax.lax.stop_gradient(
        (jnp.asarray(old_value, jnp.float32), jnp.asarray(target, jnp.float32))
    )
    loss = jnp.square(value - target)
    if clip is not None:
        near = old_value + jnp.clip(value - old_value, -clip, clip)
        loss = jnp.maximum(loss, jnp.square(near - target))
    return 0.5 * loss
