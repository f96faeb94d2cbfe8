"""Legal-action decoding and exact action probabilities against brute force."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sepo_jax.policy import (
    ActionTrie,
    Policy,
    Sampling,
    action_log_probs,
    fold_index,
    render,
    sample_tokens,
    token_key,
)
from sepo_jax.policy.constrained import _score, action_tokens

ACTIONS = ("PASS", "BET", "BET 10", "FOLD")


@pytest.fixture(scope="module")
def prompts(tokenizer):
    texts = ("Card J.", "Your card is Q. Reply FOLD or CALL.", "K")
    return [render(tokenizer, [{"role": "user", "content": text}]) for text in texts]


def test_trie_by_hand(tokenizer):
    """One action is a prefix of another: after it, the end token or the longer one may follow."""
    trie = ActionTrie(tokenizer, ACTIONS)
    end = tokenizer.eos_token_id
    spelled = [action_tokens(tokenizer, action) for action in ACTIONS]
    firsts = {tokens[0] for tokens in spelled}
    assert set(np.flatnonzero(trie.allowed([]))) == firsts
    bet, longer = spelled[1], spelled[2]
    assert longer[: len(bet)] == bet
    assert set(np.flatnonzero(trie.allowed(bet))) == {end, longer[len(bet)]}
    for action, tokens in zip(ACTIONS, trie.sequences, strict=True):
        assert tokens[-1] == end and trie.action(tokens) == action
        assert trie.action(tokens[:-1]) is None
    assert trie.step(trie.START, end) == -1 and trie.step(-1, end) == -1
    assert trie.mask.any(axis=1).all(), "no state without a legal token"
    with pytest.raises(ValueError, match="begin none of the actions"):
        trie.allowed([end])


def test_constrained_samples_never_leave_the_list(policy, params, tokenizer, prompts):
    """64 slots sampled under the trie end in a legal action each, with its exact probability.

    P(sampled) under the constraint is the product of the reported per-token probabilities.
    """
    trie = ActionTrie(tokenizer, ACTIONS, end_ids=policy.end_ids)
    slots, limit = 64, max(map(len, trie.sequences))
    table, mask = jnp.asarray(trie.table), jnp.asarray(trie.mask)
    keys = token_key(0, 0, 0, jnp.arange(slots))

    @jax.jit
    def roll_out(params, prompt):
        def body(carry, index):
            cache, logits, state = carry
            token_keys = fold_index(keys, jnp.full((slots,), index))
            drawn = sample_tokens(token_keys, logits, Sampling(), mask[state])
            cache, logits = policy.decode_step(params, cache, drawn.token, jnp.ones(slots, bool))
            return (cache, logits, table[state, drawn.token]), (drawn.token, drawn.logp)

        cache = policy.init_cache(slots, len(prompts[0]) + limit)
        tiled = jnp.tile(prompt[None], (slots, 1))
        cache, logits = policy.prefill(params, cache, tiled, jnp.full((slots,), prompt.size))
        start = jnp.full((slots,), trie.START)
        (_, _, state), drawn = jax.lax.scan(body, (cache, logits, start), jnp.arange(limit))
        return state, *drawn

    state, tokens, logp = roll_out(params, jnp.array(prompts[0]))
    chosen = trie.finished[state]
    assert (chosen >= 0).all()
    for slot in range(slots):
        length = len(trie.sequences[chosen[slot]])
        assert tuple(np.asarray(tokens[:length, slot])) == trie.sequences[chosen[slot]]
        assert np.isfinite(logp[:length, slot]).all()
        # After the end only the end may follow: probability 1 when it is the only end id.
        np.testing.assert_allclose(logp[length:, slot], 0.0, atol=1e-6)


def brute_force(policy, params, score, prompt, action, temperature=1.0):
    """The reply alone in a row, end ids summed one by one."""
    tokens = [*prompt, *action_tokens(policy.tokenizer, action)]
    total = []
    for end in policy.end_ids:
        row = np.full((1, 48), 199, np.int32)
        row[0, : len(tokens) + 1] = [*tokens, end]
        positions = np.arange(48, dtype=np.int32)[None]
        segment = np.zeros((1, 48), np.int32)
        scores = score(
            policy,
            params,
            row,
            positions,
            segment,
            None,
            positions[:, :-1],
            row[:, 1:],
            temperature=temperature,
        )
        total.append(np.asarray(scores.logp, np.float64)[0, len(prompt) - 1 : len(tokens)].sum())
    return np.log(np.exp(total).sum())


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_action_log_probs_equal_brute_force(policy, params, score, prompts, temperature):
    """Packed rows of all actions equal one row per reply; two end ids are summed."""
    policy = dataclasses.replace(policy, end_ids=(1, 7))
    result = action_log_probs(policy, params, prompts, ACTIONS, temperature=temperature, rows=2)
    assert result.shape == (3, 4)
    for row, prompt in enumerate(prompts):
        for column, action in enumerate(ACTIONS):
            expected = brute_force(policy, params, score, prompt, action, temperature)
            np.testing.assert_allclose(result[row, column], expected, atol=2e-5)


def test_own_actions_per_prompt(policy, params, prompts):
    """Ragged lists are filled with NaN and otherwise equal the common list's numbers."""
    common = action_log_probs(policy, params, prompts, ACTIONS)
    lists = [("BET", "PASS"), ("FOLD",), ACTIONS]
    result = action_log_probs(policy, params, prompts, lists)
    np.testing.assert_allclose(result[0, :2], common[0, [1, 0]], atol=1e-5)
    np.testing.assert_allclose(result[1, 0], common[1, 3], atol=1e-5)
    np.testing.assert_allclose(result[2], common[2], atol=1e-5)
    assert np.isnan(result[0, 2:]).all() and np.isnan(result[1, 1:]).all()


def test_probabilities_of_the_successor_rule(successor, tokenizer):
    """P(0 | prompt ending in 7) etc. by hand: reply "2 3" after 1 is 0.9 ^ 2, then the end id.

    End id 0 after 3 has probability 0.1 / 7.
    """

    class Digits:
        eos_token_id = 0

        def __len__(self):
            return 8

        def encode(self, text, add_special_tokens=False):
            return [int(digit) for digit in text]

    policy, params = successor
    policy = dataclasses.replace(policy, tokenizer=Digits())
    result = action_log_probs(policy, params, [[5, 6, 1], [6]], ["23", "7"])
    expected = [[0.9**2 * 0.1 / 7, 0.1 / 7 * 0.9], [0.1 / 7 * 0.9 * 0.1 / 7, 0.9**2]]
    np.testing.assert_allclose(np.exp(result), expected, rtol=1e-4)


def test_few_programs_for_many_lengths(policy, params):
    """Prompt lengths 1 to 50 are rounded up to multiples of 32: at most 3 compilations. # H01"""
    before = _score._cache_size()
    for length in range(1, 51, 7):
        action_log_probs(policy, params, [[5] * length], ["PASS", "BET"], rows=1)
    first = _score._cache_size() - before
    assert first <= 3
    for length in range(2, 51, 7):
        action_log_probs(policy, params, [[6] * length], ["PASS", "BET"], rows=1)
    assert _score._cache_size() - before == first


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        ([], "empty"),
        (["PASS", "PASS"], "same tokens"),
        (["PASS", ""], "no token"),
        (["PASS", "BET<|end|>"], "end token"),
    ],
)
def test_refuses_bad_action_lists(policy, params, tokenizer, prompts, actions, message):
    with pytest.raises(ValueError, match=message):
        ActionTrie(tokenizer, actions)
    with pytest.raises(ValueError, match=message):
        action_log_probs(policy, params, prompts[:1], [actions])


def test_refuses_bad_prompts(policy, params, prompts):
    with pytest.raises(ValueError, match="none empty"):
        action_log_probs(policy, params, [[]], ACTIONS)
    with pytest.raises(ValueError, match="3 prompts but 2 lists"):
        action_log_probs(policy, params, prompts, [ACTIONS, ACTIONS])
    with pytest.raises(ValueError, match="string 'PASS'"):
        action_log_probs(policy, params, prompts, "PASS")
    with pytest.raises(ValueError, match="no end ids"):
        action_log_probs(Policy(policy.config), params, prompts, ACTIONS)
