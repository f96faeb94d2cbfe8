"""Replies and their log-probabilities, text in and text out."""

import numpy as np
import pytest

from sepo_jax.policy import Policy, Sampling, generate, render, text_log_probs
from sepo_jax.policy.generate import token_log_probs

CHAT = [{"role": "user", "content": "Your card is J. Reply PASS or BET."}]


def test_sampled_log_probabilities_are_those_of_the_text(policy, params):
    """What sampling reports is what scoring the same tokens gives."""
    replies = generate(policy, params, [CHAT, "Your card is Q."], max_tokens=6, seed=3)
    for prompt, reply in zip((CHAT, "Your card is Q."), replies, strict=True):
        assert 1 <= len(reply.tokens) <= 6 and len(reply.logp) == len(reply.tokens)
        ids = (
            render(policy.tokenizer, prompt) if prompt is CHAT else policy.tokenizer.encode(prompt)
        )
        found = token_log_probs(policy, params, ids, reply.tokens)
        np.testing.assert_allclose(found, reply.logp, atol=1e-5)


def test_rows_do_not_depend_on_each_other(policy, params):
    alone = generate(policy, params, [CHAT], max_tokens=5, sampling=Sampling(greedy=True))
    prompts = [CHAT, "The other player bet. Reply FOLD or CALL, and say why."]
    both = generate(policy, params, prompts, max_tokens=5, sampling=Sampling(greedy=True))
    np.testing.assert_array_equal(alone[0].tokens, both[0].tokens)
    again = generate(policy, params, prompts, max_tokens=5, sampling=Sampling(greedy=True))
    np.testing.assert_array_equal(both[1].tokens, again[1].tokens)


def test_an_end_token_ends_the_reply(successor):
    """P(next = token + 1 mod 8) = 0.9: greedy counts 4, 5, 6, 7, 0, and 0 is the end token."""
    policy, params = successor
    policy = Policy(policy.config, _Digits(), end_ids=(0,))
    (reply,) = generate(policy, params, ["23"], max_tokens=9, sampling=Sampling(greedy=True))
    assert reply.tokens.tolist() == [4, 5, 6, 7, 0] and reply.text == "4567"
    np.testing.assert_allclose(reply.logp, np.log(0.9), atol=1e-5)
    (cut,) = generate(policy, params, ["23"], max_tokens=2, sampling=Sampling(greedy=True))
    assert cut.tokens.tolist() == [4, 5] and cut.text == "45"
    np.testing.assert_allclose(text_log_probs(policy, params, "23", "4567"), np.log(0.9), atol=1e-5)


class _Digits:
    """Token n is the digit n."""

    eos_token_id, pad_token_id = 0, 0

    def __len__(self):
        return 8

    def encode(self, text, add_special_tokens=True):
        return [int(digit) for digit in text]

    def decode(self, ids, skip_special_tokens=True):
        return "".join(str(int(token)) for token in ids)


def test_bad_input(policy, params):
    assert generate(policy, params, []) == []
    with pytest.raises(ValueError, match="put a single one in a list"):
        generate(policy, params, CHAT)
    with pytest.raises(ValueError, match="put a single one in a list"):
        generate(policy, params, "Hello")
    with pytest.raises(ValueError, match="has no token"):
        generate(policy, params, [""])
    with pytest.raises(ValueError, match="positions"):
        generate(policy, params, [CHAT], max_tokens=5000)
    with pytest.raises(ValueError, match="no tokenizer"):
        generate(Policy(policy.config), params, ["x"])
