"""Small policies and a tokenizer that the tests of this folder share."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sepo_jax.policy import ModelConfig, Policy, train_tokenizer
from sepo_jax.policy.formats.weights import parameter_shapes

TEXTS = [
    "You play Kuhn poker with three cards: J, Q and K. Reply with one word.",
    "Your card is J. Nobody has acted. Reply PASS or BET.",
    "Your card is Q. The other player bet. Reply FOLD or CALL.",
] * 3


@pytest.fixture(scope="session")
def tokenizer():
    return train_tokenizer(TEXTS, 320)


@pytest.fixture(scope="session")
def config(tokenizer):
    return ModelConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        intermediate_size=48,
    )


@pytest.fixture(scope="session")
def policy(config, tokenizer):
    return Policy(config, tokenizer)


@pytest.fixture(scope="session")
def make_params():
    """A function (config, seed) -> random parameters with uneven norms and nonzero biases.

    Drawn by NumPy, which compiles nothing; wide enough for peaked, uneven distributions.
    """

    def build(config, seed=0):
        generator = np.random.default_rng(seed)

        def draw(path, leaf):
            spread = {"kernel": 0.25, "embedding": 0.4}.get(path[-1].key, 0.2)
            mean = 1.0 if path[-1].key == "scale" else 0.0
            return jnp.asarray(generator.normal(mean, spread, leaf.shape).astype(leaf.dtype))

        return jax.tree_util.tree_map_with_path(draw, parameter_shapes(config))

    return build


@pytest.fixture(scope="session")
def params(config, make_params):
    """Parameters of `policy`."""
    return make_params(config)


@pytest.fixture(scope="session")
def draw_tokens():
    """A function (shape, seed) -> int32 token ids below 200."""

    def build(shape, seed=0):
        return jnp.asarray(np.random.default_rng(seed).integers(0, 200, shape, dtype=np.int32))

    return build


@pytest.fixture(scope="session")
def plain_row():
    """A function from tokens [B, T] to the arguments of `log_probs`, all tokens but the first."""

    def build(tokens):
        batch, length = tokens.shape
        positions = np.tile(np.arange(length, dtype=np.int32), (batch, 1))
        segment = np.zeros((batch, length), np.int32)
        return tokens, positions, segment, None, positions[:, :-1], tokens[:, 1:]

    return build


@pytest.fixture(scope="session")
def score():
    """`policy.log_probs`, jitted: (policy, params, *row, temperature) -> TokenScores."""

    def run(policy, params, *row, temperature=1.0):
        return policy.log_probs(params, *row, temperature=temperature)

    return jax.jit(run, static_argnums=0)


@pytest.fixture(scope="session")
def successor(make_params):
    """A policy over 8 ids and its parameters with P(next = token + 1 mod 8) = 0.9 exactly.

    Attention and feed-forward add nothing, the embedding is one-hot, and the output projection
    gives the successor the logit c; softmax: e^c / (e^c + 7) = 0.9 => c = log(63).
    """
    config = ModelConfig(
        vocab_size=8,
        hidden_size=8,
        num_layers=1,
        num_heads=2,
        num_kv_heads=1,
        intermediate_size=8,
        tie_embeddings=False,
        rms_norm_epsilon=1e-12,
    )
    policy = Policy(config, end_ids=(0,))
    params = make_params(config)
    params["norm"]["scale"] = jnp.ones(8)
    for name in ("o_proj", "down_proj"):
        part = params["layers"]["full"][name]
        part["kernel"] = jnp.zeros_like(part["kernel"])
    params["embed"]["embedding"] = jnp.eye(8)
    # RMS of a one-hot vector of 8 is 1 / sqrt(8), so the norm multiplies it by sqrt(8).
    kernel = jnp.roll(jnp.eye(8), 1, axis=1) * jnp.log(63.0) / jnp.sqrt(8.0)
    params["lm_head"]["kernel"] = kernel
    return policy, params
