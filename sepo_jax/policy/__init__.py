"""Language-model policies: decoder, caches, sampling, tokenizer, chat, checkpoints."""

from sepo_jax.policy.cache import Cache, fork_slots, reset_slots
from sepo_jax.policy.config import ModelConfig, RopeScaling
from sepo_jax.policy.policy import Policy, TokenScores, token_scores

__all__ = [
    "Cache",
    "ModelConfig",
    "Policy",
    "RopeScaling",
    "TokenScores",
    "fork_slots",
    "reset_slots",
    "token_scores",
]
