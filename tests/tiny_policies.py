"""A random decoder of one narrow layer, for tests of what surrounds a policy."""

import jax

from sepo_jax.policy import ModelConfig, load, train_tokenizer


def tiny_policy(texts, vocab_size, max_positions=512):
    """(policy, params) with a tokenizer trained on these texts."""
    tokenizer = train_tokenizer(texts, vocab_size)
    config = ModelConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        num_layers=1,
        num_heads=2,
        num_kv_heads=1,
        intermediate_size=32,
        max_positions=max_positions,
    )
    return load(config, tokenizer=tokenizer, key=jax.random.key(0))
