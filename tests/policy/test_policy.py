"""Log-probabilities at chosen positions: alignment, pieces, memory, entropy, value head."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sepo_jax.policy import ModelConfig, Policy, token_scores


def test_logp_belongs_to_its_token(successor, score, plain_row):
    """Successor rule P(t + 1 | t) = 0.9: every right step scores log 0.9, a wrong one log(0.1 / 7).

    Packing runs of lengths 3, 1, 4 into one row gives the numbers of separate rows. # B02
    """
    policy, params = successor
    tokens = jnp.array([[0, 1, 2, 3, 4, 6, 7, 0]])
    logp = score(policy, params, *plain_row(tokens)).logp[0]
    expected = np.full(7, np.log(0.9))
    expected[4] = np.log(0.1 / 7)  # 4 -> 6
    np.testing.assert_allclose(logp, expected, atol=1e-5)

    # Each run has one prompt token before it: columns p aaa p a p aaaa.
    tokens = jnp.array([[2, 3, 4, 5, 6, 7, 1, 2, 3, 4, 5]])
    segment = jnp.array([[0, 0, 0, 0, 1, 1, 2, 2, 2, 2, 2]])
    positions = jnp.array([[0, 1, 2, 3, 0, 1, 0, 1, 2, 3, 4]])
    source = jnp.array([[0, 1, 2, 4, 6, 7, 8, 9]])
    target = jnp.take_along_axis(tokens, source + 1, axis=1)
    packed = score(policy, params, tokens, positions, segment, None, source, target).logp[0]
    np.testing.assert_allclose(packed, np.log(0.9), atol=1e-5)


VARIANTS = {
    "whole": {},
    "pieces": {"logits_budget": 20 * 128},
    "layer": {"remat": "layer"},
    "dots": {"remat": "dots"},
}


@pytest.fixture(scope="module")
def critic(policy, make_params):
    """`policy` with a value head, and its parameters."""
    critic = Policy(dataclasses.replace(policy.config, value_head=True), policy.tokenizer)
    return critic, make_params(critic.config)


@pytest.fixture(scope="module")
def gradients(critic, draw_tokens, plain_row):
    """By variant of the config: gradient of a loss of all scores, and the scores."""
    row = plain_row(draw_tokens((2, 11)))
    weight = np.random.default_rng(0).normal(size=(2, 10)).astype(np.float32)
    policy, params = critic

    def loss(params, policy):
        scores = policy.log_probs(params, *row, temperature=0.7)
        return jnp.sum(weight * scores.logp + 0.3 * scores.entropy + scores.value), scores

    gradient = jax.jit(jax.grad(loss, has_aux=True), static_argnums=1)
    configs = {
        name: dataclasses.replace(policy.config, **change) for name, change in VARIANTS.items()
    }
    return {
        name: gradient(params, dataclasses.replace(policy, config=config))
        for name, config in configs.items()
    }


@pytest.mark.parametrize("variant", ["pieces", "layer", "dots"])
def test_memory_choices_change_nothing(gradients, variant):
    """Pieces of the vocabulary and recomputed layers: the same numbers."""
    slope, scores = gradients[variant]
    expected_slope, expected = gradients["whole"]
    for name in ("logp", "entropy", "value"):
        np.testing.assert_allclose(scores[name], expected[name], atol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), slope, expected_slope)


def test_value_head(critic, gradients, policy, draw_tokens, plain_row):
    """value = w . state + b at each source: its gradient in w and b gives it back; starts at 0."""
    slope, scores = gradients["whole"]
    _, params = critic
    assert scores.value.shape == (2, 10) and scores.value.dtype == jnp.float32
    head, slope_head = params["value_head"], slope["value_head"]
    np.testing.assert_allclose(slope_head["bias"], 20.0, rtol=1e-6)  # one for each target
    total = jnp.vdot(slope_head["kernel"], head["kernel"]) + 20 * head["bias"][0]
    np.testing.assert_allclose(total, scores.value.sum(), rtol=1e-4)
    fresh = critic[0].init(jax.random.key(0))["value_head"]
    assert not np.any(fresh["kernel"]) and not np.any(fresh["bias"])
    row = plain_row(draw_tokens((2, 11)))
    weights = {name: part for name, part in params.items() if name != "value_head"}
    assert jax.eval_shape(policy.log_probs, weights, *row).value is None


def test_memory_of_pieces(plain_row, draw_tokens, make_params):
    """B=2, L=256, V=32000: below a quarter of the plain path, same values and gradients. # H03"""
    config = ModelConfig(
        vocab_size=32_000,
        hidden_size=16,
        num_layers=1,
        num_heads=1,
        num_kv_heads=1,
        intermediate_size=16,
        logits_budget=2**20,
    )
    plain = dataclasses.replace(config, logits_budget=2**40)
    params = make_params(config)
    row = plain_row(draw_tokens((2, 256)))

    def loss(params, policy):
        scores = policy.log_probs(params, *row)
        return scores.logp.sum() + 0.1 * scores.entropy.sum()

    gradient = jax.jit(jax.value_and_grad(loss), static_argnums=1)
    programs = [gradient.lower(params, Policy(c)).compile() for c in (config, plain)]
    pieces, whole = (program.memory_analysis().temp_size_in_bytes for program in programs)
    assert whole > 2 * 255 * 32_000 * 4, "the plain path holds the logits, so this can fail"
    assert pieces < whole / 4, f"{pieces / 2**20:.1f} MiB against {whole / 2**20:.1f} MiB"
    (value, slope), (expected, expected_slope) = (program(params) for program in programs)
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4 * max(1.0, np.abs(b).max())),
        slope,
        expected_slope,
    )


def test_token_scores_closed_form():
    """d logp / dz = (onehot - p) / T and dH / dz = -p (log p + H) / T."""
    logits = np.random.default_rng(0).normal(size=(3, 7)).astype(np.float32)
    target, temperature = jnp.array([1, 6, 0]), 0.7
    z = logits / temperature
    p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    entropy = -(p * np.log(p)).sum(1)
    logp, found = token_scores(logits, target, temperature)
    np.testing.assert_allclose(logp, np.log(p)[np.arange(3), target], atol=1e-6)
    np.testing.assert_allclose(found, entropy, atol=1e-6)
    slope = jax.grad(lambda z: token_scores(z, target, temperature)[0].sum())(logits)
    np.testing.assert_allclose(slope, (np.eye(7)[target] - p) / temperature, atol=1e-5)
    slope = jax.grad(lambda z: token_scores(z, target, temperature)[1].sum())(logits)
    expected = -p * (np.log(p) + entropy[:, None]) / temperature
    np.testing.assert_allclose(slope, expected, atol=1e-5)


def test_forbidden_tokens_leave_gradients_finite():
    """-inf logits: entropy of what is left, zero gradient on what is not. # A22

    Left are logits 0 and log 3, p = 1/4 and 3/4, H = log 4 - 3/4 log 3 = 0.562335; then one token
    alone, H = 0.
    """
    inf = np.inf
    logits = jnp.array([[0.0, -inf, np.log(3.0)], [-inf, 2.0, -inf]])
    logp, entropy = token_scores(logits, jnp.array([2, 0]))
    np.testing.assert_allclose(entropy, [0.562335, 0.0], atol=1e-6)
    np.testing.assert_allclose(logp[0], np.log(0.75), atol=1e-6)
    assert logp[1] == -inf, "a forbidden target has probability 0"
    for part in (0, 1):
        slope = jax.grad(lambda z, part=part: token_scores(z, jnp.array([2, 1]))[part].sum())(
            logits
        )
        assert np.isfinite(slope).all()
        assert (np.asarray(slope)[np.isinf(logits)] == 0).all()


def test_shapes_are_checked(policy, params):
    tokens, wrong = jnp.zeros((2, 4), jnp.int32), jnp.zeros((2, 3), jnp.int32)
    with pytest.raises(AssertionError, match=r"\(2, 4\)"):
        policy.log_probs(params, tokens, wrong, tokens, None, wrong, wrong)
    with pytest.raises(AssertionError, match=r"\(2, 4\)"):
        policy.log_probs(params, tokens, tokens, tokens, None, wrong, tokens)


def test_every_id_of_the_tokenizer_has_a_row_in_every_table(config, tokenizer):
    """Gemma 4's per-layer table may be shorter than the vocabulary, but not than the tokenizer."""
    count = len(tokenizer)
    sizes = {"vocab_size": count + 1, "per_layer_embedding_size": 2}
    Policy(dataclasses.replace(config, **sizes, per_layer_vocab_size=count), tokenizer)
    short = dataclasses.replace(config, **sizes, per_layer_vocab_size=9)
    with pytest.raises(ValueError, match=f"{count} ids and the model per_layer_vocab_size=9: "):
        Policy(short, tokenizer)
    Policy(short)
    with pytest.raises(ValueError, match=f"{count} ids and the model vocab_size=9: "):
        Policy(dataclasses.replace(config, vocab_size=9), tokenizer)
