"""Policy-gradient surrogates: one number per unit, to be minimised, not reduced.

A unit is a token, a sequence or an event, whatever the log-ratio was made for. Every surrogate is
`(log_ratio, advantage, *, clip_low, clip_high) -> loss` on arrays of one shape `[...]`, float32
inside and out, so surrogates are interchangeable. Advantages carry no gradient. Masking is the
reduction's work; pass 0 as a masked unit's log-ratio (`ratios.masked_log_ratio`) and advantage.
"""

import chex
import jax
import jax.numpy as jnp

from sepo_jax.losses.ratios import guarded_ratio


def clip_ratio(ratio: chex.Array, clip_low: float | None, clip_high: float | None) -> chex.Array:
    """Bounds a ratio to `[1 - clip_low, 1 + clip_high]`; None leaves that side open.

    The one clip of the package: every surrogate and `clip_fraction` go through it.

    Args:
      ratio: float `[...]`.
      clip_low: distance of the lower bound from 1, at least 0, or None.
      clip_high: distance of the upper bound from 1, at least 0, or None.

    Returns:
      `[...]`; gradient 0 beyond a bound, 1 within and at it. NaN passes through.

    Raises:
      ValueError: a negative distance.
    """
    for name, distance in (("clip_low", clip_low), ("clip_high", clip_high)):
        if distance is not None and distance < 0:
            raise ValueError(
                f"{name} is {distance}, expected a distance from 1 of at least 0, or None for no"
                " bound on that side."
            )
    # where rather than jnp.clip: at a tie the gradient is whole, not split, so that even a distance
    # of 0 keeps the on-policy gradient.
    if clip_low is not None:
        ratio = jnp.where(ratio < 1.0 - clip_low, 1.0 - clip_low, ratio)
    if clip_high is not None:
        ratio = jnp.where(ratio > 1.0 + clip_high, 1.0 + clip_high, ratio)
    return ratio


def clipped_surrogate(
    log_ratio: chex.Array,
    advantage: chex.Array,
    *,
    clip_low: float | None = 0.2,
    clip_high: float | None = 0.2,
    dual_clip: float | None = None,
) -> chex.Array:
    """Pessimistic clipped surrogate of PPO.

    `loss = -min(rho * A, clip(rho, 1 - clip_low, 1 + clip_high) * A)`, `rho = exp(log_ratio)`:
    the ratio is bounded above where A > 0 and below where A < 0. PPO, arXiv 1707.06347, eq. 7;
    different distances are DAPO's clip-higher, arXiv 2503.14476. `dual_clip` also bounds the ratio
    above where A < 0 (arXiv 1912.09729, eq. 5), so that one runaway token cannot rule the batch.

    `d loss / d log_ratio = -rho * A` where no bound binds, 0 where one does.

    Args:
      log_ratio: `[...]`, differentiated.
      advantage: `[...]`, constant.
      clip_low: lower distance, None for no bound.
      clip_high: upper distance, None for no bound.
      dual_clip: upper bound of the ratio where A < 0, above 1; None for no bound.

    Returns:
      float32 `[...]`.

    Raises:
      ValueError: a negative distance, or `dual_clip` not above 1.
    """
    ratio, advantage = _ratio_and_advantage(log_ratio, advantage)
    if dual_clip is not None and dual_clip <= 1:
        raise ValueError(f"dual_clip is {dual_clip}, expected a bound above 1, or None.")
    upper = clip_ratio(ratio, None, clip_high)
    lower = clip_ratio(ratio, clip_low, None if dual_clip is None else dual_clip - 1.0)
    return -advantage * jnp.where(advantage >= 0, upper, lower)


def on_policy_surrogate(
    logp: chex.Array,
    advantage: chex.Array,
    *,
    clip_low: None = None,
    clip_high: None = None,
) -> chex.Array:
    """REINFORCE: `loss = -A * logp`, whose gradient is `-A * grad logp`.

    The first argument is the log-probability itself, not a log-ratio. With A = 1 it is the
    negative log-likelihood of supervised training. Williams 1992.

    Args:
      logp: log-probability of what was sampled, nats, `[...]`, differentiated.
      advantage: `[...]`, constant.
      clip_low: None; there is no ratio to clip.
      clip_high: None.

    Returns:
      float32 `[...]`.

    Raises:
      ValueError: a clip is given.
    """
    if clip_low is not None or clip_high is not None:
        raise ValueError(
            f"on_policy_surrogate got clip_low={clip_low} and clip_high={clip_high}, but it has no"
            " ratio to clip: set both to None or use clipped_surrogate."
        )
    chex.assert_equal_shape([logp, advantage])
    return -_constant(advantage) * jnp.asarray(logp, jnp.float32)


def cispo_surrogate(
    log_ratio: chex.Array,
    advantage: chex.Array,
    *,
    clip_low: float | None = None,
    clip_high: float | None = 0.2,
) -> chex.Array:
    """REINFORCE weighted by a clipped ratio that carries no gradient.

    `loss = -stop_gradient(clip(rho)) * A * log_ratio`, so
    `d loss / d log_ratio = -clip(rho) * A`: a clipped token keeps its gradient, only its weight is
    bounded. CISPO, arXiv 2506.13585, section 3.1. The log-ratio differs from logp by a constant,
    so the gradient with respect to the parameters is the paper's.

    Args:
      log_ratio: `[...]`, differentiated.
      advantage: `[...]`, constant.
      clip_low: lower distance of the weight, None for no bound.
      clip_high: upper distance of the weight, None for no bound.

    Returns:
      float32 `[...]`.

    Raises:
      ValueError: a negative distance.
    """
    ratio, advantage = _ratio_and_advantage(log_ratio, advantage)
    weight = jax.lax.stop_gradient(clip_ratio(ratio, clip_low, clip_high))
    return -weight * advantage * jnp.asarray(log_ratio, jnp.float32)


def clip_fraction(
    log_ratio: chex.Array,
    advantage: chex.Array,
    *,
    clip_low: float | None = 0.2,
    clip_high: float | None = 0.2,
) -> chex.Array:
    """1 where the PPO clip stops the gradient, 0 elsewhere; average it with a reduction.

    The upper bound stops a unit with A > 0, the lower one a unit with A < 0.

    Args:
      log_ratio: `[...]`.
      advantage: `[...]`.
      clip_low: as in `clipped_surrogate`.
      clip_high: as in `clipped_surrogate`.

    Returns:
      float32 `[...]`.
    """
    ratio, advantage = _ratio_and_advantage(log_ratio, advantage)
    above = (clip_ratio(ratio, None, clip_high) < ratio) & (advantage > 0)
    below = (clip_ratio(ratio, clip_low, None) > ratio) & (advantage < 0)
    return jnp.asarray(above | below, jnp.float32)


def off_policy_mask(
    log_ratio: chex.Array, advantage: chex.Array, *, threshold: float
) -> chex.Array:
    """Which sequences to keep: drops those to be discouraged that the policy has already left.

    `keep = (A >= 0) or (-log_ratio <= threshold)`, where the log-ratio is the sequence's mean per
    token (`sequence_log_ratio(..., normalize="mean")`, which ignores padding), so `-log_ratio`
    estimates the divergence from the behaviour policy. DeepSeek-V3.2, arXiv 2512.02556.

    Args:
      log_ratio: mean log-ratio of each sequence, nats per token, `[...]`.
      advantage: `[...]`.
      threshold: largest divergence of a sequence with A < 0, nats per token.

    Returns:
      bool `[...]`, True to keep. A NaN log-ratio with A < 0 is dropped; count the drops.
    """
    chex.assert_equal_shape([log_ratio, advantage])
    return (advantage >= 0) | (-jnp.asarray(log_ratio, jnp.float32) <= threshold)


def truncated_importance_weight(
    trainer_logp: chex.Array, sampler_logp: chex.Array, *, cap: float
) -> chex.Array:
    """Correction for a sampler that scores tokens differently from the trainer.

    `w = min(exp(trainer_logp - sampler_logp), cap)`, a constant in [0, cap] that multiplies the
    loss. Both scores belong to the weights that sampled; they differ by kernels and precision.
    Truncated importance sampling, Ionides 2008.

    Args:
      trainer_logp: log-probabilities recomputed by the trainer, nats, `[...]`.
      sampler_logp: log-probabilities reported by the sampler, `[...]`; replace masked slots first.
      cap: largest weight, above 0.

    Returns:
      float32 `[...]` without gradient.

    Raises:
      ValueError: `cap` not above 0.
    """
    if cap <= 0:
        raise ValueError(f"cap is {cap}, expected a largest weight above 0.")
    chex.assert_equal_shape([trainer_logp, sampler_logp])
    log_ratio = _constant(trainer_logp) - _constant(sampler_logp)
    return jnp.minimum(guarded_ratio(log_ratio), cap)


def _constant(values: chex.Array) -> chex.Array:
    return jax.lax.stop_gradient(jnp.asarray(values, jnp.float32))


def _ratio_and_advantage(log_ratio, advantage):
    chex.assert_equal_shape([log_ratio, advantage])
    return guarded_ratio(log_ratio), _constant(advantage)
