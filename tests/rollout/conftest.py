"""The small policies of the tests of `policy`, and one that plays Kuhn poker."""

import jax
import pytest
from policy import conftest

from sepo_jax.domains import Kuhn
from sepo_jax.policy import ModelConfig, Policy, train_tokenizer

tokenizer, config, policy = conftest.tokenizer, conftest.config, conftest.policy
make_params, params, successor = conftest.make_params, conftest.params, conftest.successor


@pytest.fixture(scope="session")
def agent():
    """A policy of one layer with a tokenizer of Kuhn poker, and its parameters."""
    texts = [m["content"] for prompt, _ in Kuhn(hands=2).expert_traces(20, 0) for m in prompt]
    sizes = ModelConfig(
        vocab_size=320, hidden_size=16, num_layers=1, num_heads=2, num_kv_heads=1,
        intermediate_size=32,
    )  # fmt: skip
    made = Policy(sizes, train_tokenizer([*texts, "PASS", "BET", "FOLD", "CALL"], 320))
    return made, made.init(jax.random.key(0))
