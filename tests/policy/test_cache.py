"""Prefill and decode agree with scoring whole rows; slots are filled, forked, emptied."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sepo_jax.policy import (
    Sampling,
    fold_index,
    fork_slots,
    reset_slots,
    sample_tokens,
    token_key,
    token_scores,
)

LENGTH = 12


@pytest.fixture(scope="module")
def prefill():
    return jax.jit(lambda policy, *rest: policy.prefill(*rest), static_argnums=0)


@pytest.fixture(scope="module")
def step():
    return jax.jit(lambda policy, *rest: policy.decode_step(*rest), static_argnums=0)


@pytest.fixture(scope="module")
def whole(policy, params, score, draw_tokens, plain_row):
    """Tokens [3, LENGTH] and their log-probabilities scored as whole rows [3, LENGTH - 1]."""
    tokens = draw_tokens((3, LENGTH))
    return tokens, score(policy, params, *plain_row(tokens)).logp


def test_step_by_step_equals_whole_rows(policy, params, whole, prefill, step):
    """Prompts of 5, 3 and 4 tokens, then one token at a time, slots out of step with each other."""
    tokens, expected = whole
    lengths = np.array([5, 3, 4])
    cache = policy.init_cache(3, LENGTH)
    padded = np.where(np.arange(6)[None] < lengths[:, None], tokens[:, :6], 199)
    cache, logits = prefill(policy, params, cache, padded, lengths)
    at = lengths.copy()
    for turn in range(2 * LENGTH):
        active = (at < LENGTH) & (np.arange(3) != turn % 3)
        following = tokens[np.arange(3), np.minimum(at, LENGTH - 1)]
        logp = token_scores(logits, following)[0]
        for slot in np.flatnonzero(active):
            np.testing.assert_allclose(logp[slot], expected[slot, at[slot] - 1], atol=1e-5)
        before = logits
        cache, logits = step(policy, params, cache, following, jnp.asarray(active))
        logits = jnp.where(active[:, None], logits, before)
        at += active
        np.testing.assert_array_equal(cache.lengths, at)
    assert (at == LENGTH).all()


def test_prefill_in_pieces_and_chosen_slots(policy, params, whole, prefill):
    """Appending twice equals appending once; named slots in any order; other slots untouched."""
    tokens, _ = whole
    empty = policy.init_cache(3, LENGTH)
    one, expected = prefill(policy, params, empty, tokens[:, :8], np.array([8, 8, 8]))
    two, _ = prefill(policy, params, empty, tokens[:, :8], np.array([3, 0, 5]))
    rest = np.zeros((3, 8), np.int32)
    rest[0, :5], rest[1], rest[2, :3] = tokens[0, 3:8], tokens[1, :8], tokens[2, 5:8]
    two, logits = prefill(policy, params, two, rest, np.array([5, 8, 3]))
    np.testing.assert_allclose(logits, expected, atol=2e-5)
    np.testing.assert_array_equal(two.lengths, one.lengths)
    # Rows 2 and 0 go to slots 2 and 0; the third row aims past the slots and is skipped.
    slots, rows = np.array([2, 0, 3]), tokens[np.array([2, 0, 1])]
    three, logits = prefill(policy, params, empty, rows[:, :8], np.array([8, 8, 8]), slots)
    np.testing.assert_allclose(logits[:2], expected[np.array([2, 0])], atol=2e-5)
    np.testing.assert_array_equal(three.lengths, [8, 0, 8])
    assert all((keys[1] == 0).all() for keys in jax.tree.leaves(three.keys))
    with pytest.raises(ValueError, match="2 rows and the cache 3 slots"):
        policy.prefill(params, empty, tokens[:2], np.array([8, 8]))


def test_fork_and_reset(policy, params, whole, prefill, step):
    """A fork at token 4 of another slot continues as if it had read those tokens itself."""
    tokens, _ = whole
    cache = policy.init_cache(3, LENGTH)
    cache, _ = prefill(policy, params, cache, tokens[:, :8], np.array([8, 8, 8]))
    forked = fork_slots(cache, jnp.array([[0, 2, 99], [1, 0, -1], [1, 1, 4], [2, 1, -1]]), 3)
    np.testing.assert_array_equal(forked.lengths, [8, 4, 8])
    following = jnp.array([5, 6, 7])
    _, logits = step(policy, params, forked, following, jnp.ones(3, bool))
    direct = reset_slots(cache, jnp.array([True, True, False]))
    np.testing.assert_array_equal(direct.lengths, [0, 0, 8])
    prompt = jnp.stack([tokens[1], tokens[1], tokens[0]])[:, :8]
    direct = reset_slots(direct, jnp.ones(3, bool))
    direct, _ = prefill(policy, params, direct, prompt, np.array([8, 4, 8]))
    _, expected = step(policy, params, direct, following, jnp.ones(3, bool))
    np.testing.assert_allclose(logits, expected, atol=2e-5)


def test_fused_form_is_the_same_model(policy, params, whole, prefill):
    tokens, _ = whole
    cache = policy.init_cache(3, LENGTH)
    fused = policy.fuse(params)
    assert policy.fuse(fused) is fused
    plain = prefill(policy, params, cache, tokens[:, :8], np.array([8, 8, 8]))[1]
    other = prefill(policy, fused, cache, tokens[:, :8], np.array([8, 8, 8]))[1]
    np.testing.assert_allclose(plain, other, atol=1e-5)


def test_overflow_is_loud_and_stays_in_its_slot(policy, params, whole, step):
    """A full slot gives NaN instead of a plausible number; its neighbours go on."""
    tokens, _ = whole
    cache = policy.init_cache(3, LENGTH).replace(lengths=jnp.array([LENGTH, 2, 0]))
    cache, logits = step(policy, params, cache, tokens[:, 0], jnp.ones(3, bool))
    assert np.isnan(logits[0]).all() and np.isfinite(logits[1:]).all()
    np.testing.assert_array_equal(cache.lengths, [LENGTH, 3, 1])
    with pytest.raises(ValueError, match="at least 1 slot"):
        policy.init_cache(0, 4)


def test_a_row_without_tokens_leaves_its_slot_whatever_the_reach(policy, params, whole, prefill):
    """Idle slots may hold more than `reach`; a row of length 0 may name a slot that overflows."""
    tokens, _ = whole
    cache = policy.init_cache(3, LENGTH).replace(lengths=jnp.array([10, 2, 3]))
    idle, logits = prefill_to(policy, params, cache, tokens[:, :2], np.array([0, 2, 2]), None, 5)
    np.testing.assert_array_equal(idle.lengths, [10, 4, 5])
    assert np.isfinite(logits).all()
    for slots in ([1, 1, 2], [2, 1, 1]):
        lengths = np.where(np.arange(3) == slots.index(1), 2, 0)
        passed, logits = prefill_to(
            policy, params, cache, tokens[:, :2], lengths, np.array(slots), 3
        )
        np.testing.assert_array_equal(passed.lengths, [10, LENGTH, 3])
        np.testing.assert_array_equal(np.isnan(logits).all(axis=1), lengths > 0)


def test_decoding_form_is_in_the_compute_dtype(policy, params):
    """Or every token would cast the whole output projection once more."""
    half = dataclasses.replace(policy.config, compute_dtype="bfloat16", tie_embeddings=False)
    params = {**params, "lm_head": {"kernel": params["embed"]["embedding"].T}}
    fused = dataclasses.replace(policy, config=half).fuse(params)
    for leaf in (fused["embed"]["embedding"], fused["lm_head"]["kernel"]):
        assert leaf.dtype == jnp.bfloat16
    assert policy.fuse(params)["embed"]["embedding"] is params["embed"]["embedding"]


prefill_to = jax.jit(
    lambda policy, params, cache, tokens, lengths, slots, reach: policy.prefill(
        params, cache, tokens, lengths, slots, reach
    ),
    static_argnums=(0, 6),
)


def _roll_out(policy, params, prompt, temperature, num_tokens):
    """Samples `num_tokens` after `prompt` [S, P]; tokens, log-probabilities and entropies."""
    slots, width = prompt.shape
    sampling = Sampling(temperature=temperature)
    keys = token_key(0, 0, 0, jnp.arange(slots))

    def body(carry, index):
        cache, logits = carry
        token_keys = fold_index(keys, jnp.full((slots,), index))
        drawn = sample_tokens(token_keys, logits, sampling)
        carry = policy.decode_step(params, cache, drawn.token, jnp.ones(slots, bool))
        return carry, drawn

    cache = policy.init_cache(slots, width + num_tokens)
    carry = policy.prefill(params, cache, prompt, jnp.full((slots,), width))
    _, drawn = jax.lax.scan(body, carry, jnp.arange(num_tokens))
    return jax.tree.map(lambda array: jnp.moveaxis(array, 0, 1), drawn)


_sample = jax.jit(_roll_out, static_argnums=(0, 3, 4))


@pytest.mark.parametrize("temperature", [0.6, 1e-4])
def test_sampler_and_trainer_agree(policy, params, draw_tokens, plain_row, score, temperature):
    """An unchanged policy has ratio 1 at any temperature; cold sampling stays finite. # A10, A11

    At 1e-4 a rounding error of logits counts ten thousand times, so only finiteness is asked for.
    """
    prompt = draw_tokens((8, 5))
    drawn = _sample(policy, params, prompt, temperature, 8)
    row = plain_row(np.concatenate([prompt, drawn.token], axis=1))
    scores = score(policy, params, *row, temperature=temperature)
    logp, entropy = scores.logp[:, 4:], scores.entropy[:, 4:]
    assert np.isfinite(drawn.logp).all() and np.isfinite(logp).all()
    assert np.isfinite(drawn.entropy).all() and (drawn.entropy > -1e-6).all()
    if temperature > 0.1:
        np.testing.assert_allclose(np.exp(logp - drawn.logp), 1.0, atol=1e-5)
        np.testing.assert_allclose(drawn.entropy, entropy, atol=2e-5)
        assert len({tuple(row) for row in np.asarray(drawn.token)}) == 8


def test_wrong_temperature_would_show(policy, params, draw_tokens, plain_row, score):
    """The comparison above can fail: scored at 1, what 0.6 drew has ratios off 1. # A10"""
    prompt = draw_tokens((8, 5))
    drawn = _sample(policy, params, prompt, 0.6, 8)
    row = plain_row(np.concatenate([prompt, drawn.token], axis=1))
    scores = score(policy, params, *row, temperature=1.0)
    assert np.abs(np.exp(scores.logp[:, 4:] - drawn.logp) - 1).max() > 0.1


def test_half_precision_gap_is_small_and_seen(policy, params, draw_tokens, plain_row, score):
    """Sampling in bfloat16, scoring in float32: a finite gap, larger than rounding. # A11"""
    half = dataclasses.replace(policy.config, compute_dtype="bfloat16", cache_dtype="bfloat16")
    half = dataclasses.replace(policy, config=half)
    prompt = draw_tokens((8, 5))
    drawn = _sample(half, params, prompt, 1.0, 8)
    row = plain_row(np.concatenate([prompt, drawn.token], axis=1))
    gap = np.abs(score(policy, params, *row).logp[:, 4:] - drawn.logp)
    assert 1e-5 < gap.max() < 0.5
