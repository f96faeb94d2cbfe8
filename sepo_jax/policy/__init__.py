"""Language-model policies: decoder, caches, sampling, tokenizer, chat, checkpoints."""

from sepo_jax.policy.cache import Cache, fork_slots, reset_slots
from sepo_jax.policy.config import ModelConfig, RopeScaling
from sepo_jax.policy.policy import Policy
from sepo_jax.policy.sampling import (
    Sampled,
    Sampling,
    sample_tokens,
    token_key,
    token_uniform,
)
from sepo_jax.policy.scores import TokenScores, token_scores

__all__ = [
    "Cache",
    "ModelConfig",
    "Policy",
    "RopeScaling",
    "Sampled",
    "Sampling",
    "TokenScores",
    "fork_slots",
    "reset_slots",
    "sample_tokens",
    "token_key",
    "token_scores",
    "token_uniform",
]
