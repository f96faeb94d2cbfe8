"""Losses on arrays: ratios, surrogates, regularizers, and the reductions that end them."""

from sepo_jax.losses.ratios import (
    MAX_LOG_RATIO,
    SET_SCALES,
    SetLogRatio,
    guarded_ratio,
    masked_log_ratio,
    sequence_log_ratio,
    set_log_ratio,
)
from sepo_jax.losses.reductions import (
    Mean,
    constant_length,
    count_sequences,
    event_mean,
    masked_sum,
    sequence_mean,
    sequence_sum_mean,
    token_mean,
)
from sepo_jax.losses.regularizers import KL_KINDS, entropy_from_logits, kl_estimate, value_loss
from sepo_jax.losses.surrogates import (
    cispo_surrogate,
    clip_fraction,
    clip_ratio,
    clipped_surrogate,
    off_policy_mask,
    on_policy_surrogate,
    truncated_importance_weight,
)

__all__ = [
    "KL_KINDS",
    "MAX_LOG_RATIO",
    "SET_SCALES",
    "Mean",
    "SetLogRatio",
    "cispo_surrogate",
    "clip_fraction",
    "clip_ratio",
    "clipped_surrogate",
    "constant_length",
    "count_sequences",
    "entropy_from_logits",
    "event_mean",
    "guarded_ratio",
    "kl_estimate",
    "masked_log_ratio",
    "masked_sum",
    "off_policy_mask",
    "on_policy_surrogate",
    "sequence_log_ratio",
    "sequence_mean",
    "sequence_sum_mean",
    "set_log_ratio",
    "token_mean",
    "truncated_importance_weight",
    "value_loss",
]
