"""Language-model policies: decoder, caches, sampling, tokenizer, chat, checkpoints."""

from sepo_jax.policy.cache import Cache, fork_slots, reset_slots
from sepo_jax.policy.chat import TemplateNotExtending, completion_mask, extend, follow, render
from sepo_jax.policy.config import LoraConfig, ModelConfig
from sepo_jax.policy.constrained import ActionTrie, action_log_probs
from sepo_jax.policy.formats.hugging_face import load, save_hf
from sepo_jax.policy.formats.peft_files import load_peft, save_peft
from sepo_jax.policy.lora import attach, detach, init_adapter, merge
from sepo_jax.policy.models import MODELS
from sepo_jax.policy.policy import Policy
from sepo_jax.policy.rope_scaling import RopeScaling
from sepo_jax.policy.sampling import (
    Sampled,
    Sampling,
    fold_index,
    sample_tokens,
    token_key,
)
from sepo_jax.policy.scores import TokenScores, token_scores
from sepo_jax.policy.tokenizer import end_token_ids, load_tokenizer, train_tokenizer

__all__ = [
    "MODELS",
    "ActionTrie",
    "Cache",
    "LoraConfig",
    "ModelConfig",
    "Policy",
    "RopeScaling",
    "Sampled",
    "Sampling",
    "TemplateNotExtending",
    "TokenScores",
    "action_log_probs",
    "attach",
    "completion_mask",
    "detach",
    "end_token_ids",
    "extend",
    "fold_index",
    "follow",
    "fork_slots",
    "init_adapter",
    "load",
    "load_peft",
    "load_tokenizer",
    "merge",
    "render",
    "reset_slots",
    "sample_tokens",
    "save_hf",
    "save_peft",
    "token_key",
    "token_scores",
    "train_tokenizer",
]
