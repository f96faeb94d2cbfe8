"""Log-ratios of two policies and the one exponential that turns them into ratios.

Shapes: `...` leading axes, `T` tokens, `Q` sequences, `S` members (action segments), `E` events.
"""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from sepo_jax.names import check_option

SET_SCALES = ("sum", "mean", "sqrt", "length")
"""How `set_log_ratio` combines the log-ratios of members."""
MAX_LOG_RATIO = 20.0
"""Bound on the input of every exponential of a log-ratio, in nats; exp(20) is about 4.9e8."""


def masked_log_ratio(logp: chex.Array, behavior_logp: chex.Array, mask: chex.Array) -> chex.Array:
    """Log-ratio of the trained policy to the one that sampled, 0 where masked.

    `log_ratio[t] = logp[t] - behavior_logp[t]`. Masked inputs are replaced before the subtraction,
    so NaN or infinity in a masked slot reaches neither the value nor the gradient, while NaN at a
    counted token stays visible.

    Args:
      logp: log-probabilities under the trained policy, nats, `[...]`.
      behavior_logp: log-probabilities recorded when sampling, `[...]`.
      mask: True where a token counts, bool `[...]`.

    Returns:
      float32 `[...]`.
    """
    chex.assert_equal_shape([logp, behavior_logp, mask])
    chex.assert_type(mask, bool)
    logp = jnp.where(mask, _float32(logp), 0.0)
    behavior_logp = jnp.where(mask, _float32(behavior_logp), 0.0)
    return logp - behavior_logp


def guarded_ratio(log_ratio: chex.Array) -> chex.Array:
    """`exp(log_ratio)` in float32 with the input bounded to +-`MAX_LOG_RATIO`.

    The only exponential of a log-ratio in the package. float32 overflows above 88.7, and infinity
    times an advantage of 0 is NaN; the bound keeps value and gradient finite. Beyond the bound the
    value is constant and the gradient 0. NaN passes through.

    Args:
      log_ratio: `[...]`, any float type.

    Returns:
      float32 `[...]`.
    """
    return jnp.exp(jnp.clip(_float32(log_ratio), -MAX_LOG_RATIO, MAX_LOG_RATIO))


def sequence_log_ratio(
    log_ratio: chex.Array,
    membership: chex.Array,
    mask: chex.Array,
    normalize: str = "sum",
) -> chex.Array:
    """Log-ratio of whole sequences from those of their tokens.

    `sum`: `L[q] = sum_t membership[t, q] * log_ratio[t]`, the log-ratio of the sequence's
    probability (RLOO, arXiv 2402.14740; SRPO members, arXiv 2609.08452).
    `mean`: divided by the sequence's number of counted tokens, so that `exp(L)` is the geometric
    mean of the token ratios (GSPO, arXiv 2507.18071).

    On a tree a token lies on every path through it, hence a membership matrix instead of ids.

    Args:
      log_ratio: per-token log-ratio, `[..., T]`, 0 or anything where masked.
      membership: True where token t belongs to sequence q, bool `[..., T, Q]`.
      mask: True where a token counts, bool `[..., T]`.
      normalize: `"sum"` or `"mean"`.

    Returns:
      float32 `[..., Q]`; 0 for a sequence without counted tokens.

    Raises:
      ValueError: unknown `normalize`.
    """
    check_option("normalize", normalize, ("sum", "mean"))
    chex.assert_equal_shape([log_ratio, mask])
    chex.assert_equal_shape_prefix([log_ratio, membership], log_ratio.ndim)
    chex.assert_rank(membership, log_ratio.ndim + 1)
    chex.assert_type([mask, membership], bool)
    belongs = membership & mask[..., None]
    # where and sum rather than a matrix product: a NaN stays in its own sequence, and no
    # accelerator rounds the terms to bfloat16.
    total = jnp.where(belongs, _float32(log_ratio)[..., None], 0.0).sum(-2)
    if normalize == "sum":
        return total
    return total / jnp.maximum(belongs.sum(-2), 1)


class SetLogRatio(NamedTuple):
    """Log-ratios of events (sets of outputs consumed by one transition).

    Attributes:
      log_ratio: float32 `[E]`, 0 where the event is not complete.
      complete: bool `[E]`, the event has all the members it announces, and at least one.
    """

    log_ratio: chex.Array
    complete: chex.Array


def set_log_ratio(
    member_log_ratio: chex.Array,
    event: chex.Array,
    num_events: int,
    event_size: chex.Array,
    mask: chex.Array,
    *,
    scale: str = "sqrt",
    lengths: chex.Array | None = None,
) -> SetLogRatio:
    """Log-ratio of a set of simultaneous outputs from those of its members.

    `L[e] = sum_j l[e, j] / K^a` with K the number of members and a = 1/2 (`sqrt`), 0 (`sum`, the
    log-ratio of the joint action) or 1 (`mean`). With `sqrt` the variance of L does not depend on
    K for independent members; K = 1 is the sequence-level ratio for each of these.
    SRPO, arXiv 2609.08452, the setwise ratio.

    `length` is `sqrt` over the members' means over tokens: `L[e] = sum_j (l[e, j] / n[e, j]) /
    sqrt(K)` with n their lengths, so that L depends on neither; K = 1 is the geometric mean of
    GSPO, arXiv 2507.18071.

    An event that misses a member is no sample of its joint action: it is dropped whole.

    Args:
      member_log_ratio: log-ratio of each member's sequence, `[S]`.
      event: event of each member, int32 `[S]`, in [0, num_events); -1 for none.
      num_events: static bound E of the event ids.
      event_size: number of members the event must have, int32 `[S]`, equal within an event.
      mask: True where a member is present, bool `[S]`.
      scale: of `SET_SCALES`.
      lengths: counted tokens of each member, `[S]`; needed by `length` and not read otherwise.

    Returns:
      `SetLogRatio`, arrays `[E]`.

    Raises:
      ValueError: unknown `scale`, or `length` without lengths.
    """
    exponent = {"sum": 0.0, "mean": 1.0}.get(check_option("scale", scale, SET_SCALES), 0.5)
    chex.assert_rank(member_log_ratio, 1)
    if scale == "length":
        if lengths is None:
            raise ValueError("scale='length' divides by lengths: give the tokens of each member")
        chex.assert_equal_shape([member_log_ratio, lengths])
        member_log_ratio = _float32(member_log_ratio) / jnp.maximum(_float32(lengths), 1.0)
    chex.assert_equal_shape([member_log_ratio, event, event_size, mask])
    chex.assert_type([event, event_size, mask], [int, int, bool])
    present = mask & (event >= 0)
    # An id past the end is dropped by the scatter; a negative one would wrap around.
    slot = jnp.where(present, event, num_events)

    def total(values):
        return jax.ops.segment_sum(jnp.where(present, values, 0), slot, num_events)

    found = total(jnp.ones_like(event))
    complete = (found > 0) & (total(event_size != jnp.append(found, 0)[slot]) == 0)
    log_ratio = total(_float32(member_log_ratio)) / jnp.maximum(found, 1) ** exponent
    return SetLogRatio(jnp.where(complete, log_ratio, 0.0), complete)


def _float32(values: chex.Array) -> chex.Array:
    return jnp.asarray(values, jnp.float32)
