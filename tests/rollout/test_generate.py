"""Replies and their log-probabilities, text in and text out."""

import numpy as np
import pytest

from sepo_jax.policy import Policy, Sampling, render
from sepo_jax.rollout import EngineOptions, complete, generate, text_log_probs
from sepo_jax.rollout.generate import _scores, token_log_probs

pytestmark = pytest.mark.usefixtures("compile_fast")
CHAT = [{"role": "user", "content": "Your card is J. Reply PASS or BET."}]


def test_sampled_log_probabilities_are_those_of_the_text(policy, params):
    """What sampling reports is what scoring the same tokens gives."""
    prompts = [CHAT, "The other player bet. Reply FOLD or CALL, and say why."]
    replies = generate(policy, params, prompts, max_tokens=6, seed=3)
    for prompt, reply in zip(prompts, replies, strict=True):
        assert 1 <= len(reply.tokens) <= 6 and len(reply.logp) == len(reply.tokens)
        ids = (
            render(policy.tokenizer, prompt) if prompt is CHAT else policy.tokenizer.encode(prompt)
        )
        found = token_log_probs(policy, params, ids, reply.tokens)
        np.testing.assert_allclose(found, reply.logp, atol=1e-5)
    again = generate(policy, params, prompts, max_tokens=6, seed=3)
    assert [reply.text for reply in again] == [reply.text for reply in replies]
    other = generate(policy, params, prompts, max_tokens=6, seed=4)
    assert any((a.tokens.tolist() != b.tokens.tolist()) for a, b in zip(other, again, strict=True))
    # A reply does not depend on the others.
    swapped = generate(policy, params, [prompts[0], "Your card is Q."], max_tokens=6, seed=3)
    np.testing.assert_array_equal(swapped[0].tokens, replies[0].tokens)


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


def test_token_prompts_need_no_tokenizer_and_samples_differ(agent):
    policy, params = agent
    bare = Policy(policy.config, end_ids=policy.end_ids)
    options = EngineOptions(slots=16, capacity=32, max_action_tokens=8)
    prompts = [[5, 6, 7], np.array([8, 9], np.int32)]
    replies = complete(bare, params, prompts, options, samples=8, seed=0)
    assert [len(samples) for samples in replies] == [8, 8]
    drawn = {tuple(action.tokens.tolist()) for samples in replies for action in samples}
    assert len(drawn) == 16  # C10: members draw their own samples
    for prompt, samples in zip(prompts, replies, strict=True):
        for action in samples:
            found = token_log_probs(bare, params, prompt, action.tokens)
            np.testing.assert_allclose(found, action.logp, atol=1e-5)
    # A prompt's replies do not depend on how many are asked for.
    (first, *_) = complete(bare, params, prompts[:1], options, samples=3, seed=0)[0]
    np.testing.assert_array_equal(first.tokens, replies[0][0].tokens)


def test_few_programs_score_texts_of_many_lengths(policy, params):  # H01
    before = _scores._cache_size()
    for length in range(16, 24):
        token_log_probs(policy, params, range(2, 2 + length), [3])
    assert _scores._cache_size() - before <= 1


def test_bad_input(policy, params):
    assert generate(policy, params, []) == []
    for temperature in (0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="temperature must be positive"):
            text_log_probs(policy, params, CHAT, "BET", temperature=temperature)
    most = policy.config.max_positions
    with pytest.raises(ValueError, match=f"{most + 1} tokens and the policy {most} positions"):
        token_log_probs(policy, params, [2] * most, [3])
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
    options = EngineOptions(slots=2, capacity=12, max_action_tokens=4)
    for prompts in ([1, 2], ["12"], [[1.5]], [None]):
        with pytest.raises(ValueError, match="prompt 0 must be a list of token ids, got"):
            complete(policy, params, prompts, options, seed=0)
    for samples in (0, -1):
        with pytest.raises(ValueError, match="samples must be at least 1"):
            complete(policy, params, [[1]], options, samples=samples, seed=0)
    with pytest.raises(ValueError, match="prompt 1 has no token"):
        complete(policy, params, [[1], []], options, seed=0)
    for token in (-1, policy.config.vocab_size):
        with pytest.raises(ValueError, match=f"token id {token}; .* ids 0 to .*another tokenizer"):
            complete(policy, params, [[1, token]], options, seed=0)
    with pytest.raises(ValueError, match="has 12 tokens and a context holds 12"):
        complete(policy, params, [[1] * 12], options, seed=0)
