"""Language-model policies: decoder, caches, sampling, tokenizer, chat, checkpoints."""

from sepo_jax.policy.cache import Cache, fork_slots, reset_slots
from sepo_jax.policy.chat import TemplateNotExtending, completion_mask, extend, render
from sepo_jax.policy.config import ModelConfig, RopeScaling
from sepo_jax.policy.constrained import ActionTrie, action_log_probs
from sepo_jax.policy.hugging_face import load, save_hf
from sepo_jax.policy.policy import Policy
from sepo_jax.policy.sampling import (
    Sampled,
    Sampling,
    sample_tokens,
    token_key,
    token_uniform,
)
from sepo_jax.policy.scores import TokenScores, token_scores
from sepo_jax.policy.tokenizer import end_token_ids, load_tokenizer, train_tokenizer

__all__ = [
    "ActionTrie",
    "Cache",
    "ModelConfig",
    "Policy",
    "RopeScaling",
    "Sampled",
    "Sampling",
    "TemplateNotExtending",
    "TokenScores",
    "action_log_probs",
    "completion_mask",
    "end_token_ids",
    "extend",
    "fork_slots",
    "load",
    "load_tokenizer",
    "render",
    "reset_slots",
    "sample_tokens",
    "save_hf",
    "token_key",
    "token_scores",
    "token_uniform",
    "train_tokenizer",
]
