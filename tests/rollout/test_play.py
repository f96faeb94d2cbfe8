"""Rollouts: what is sampled depends on (seed, step, group, member, token) and on nothing else."""

import jax
import numpy as np
import pytest

from sepo_jax.domains import Kuhn
from sepo_jax.forest import equal, pack
from sepo_jax.policy import ModelConfig, Policy, Sampling, train_tokenizer
from sepo_jax.rollout import (
    EngineOptions,
    Request,
    admit,
    decision_segments,
    decode,
    play,
    run_requests,
)


@pytest.fixture(scope="module")
def agent():
    domain = Kuhn(hands=2)
    texts = [m["content"] for prompt, _ in domain.expert_traces(20, 0) for m in prompt]
    tokenizer = train_tokenizer([*texts, "PASS", "BET", "FOLD", "CALL"], 320)
    config = ModelConfig(
        vocab_size=320, hidden_size=16, num_layers=1, num_heads=2, num_kv_heads=1,
        intermediate_size=32,
    )  # fmt: skip
    policy = Policy(config, tokenizer)
    return policy, policy.init(jax.random.key(0))


def episodes(count=6):
    domain = Kuhn(hands=2)
    return [domain.new_episode("NashApprox", seed=seed // 2) for seed in range(count)]


def rollout(agent, count=6, **options):
    options = {"seed": 3, "slots": 4, "groups": [i // 2 for i in range(count)]} | options
    played = episodes(count)
    return play(*agent, played, **options), played


def test_one_action_segment_for_each_decision_with_the_sampled_tokens(agent):
    policy, _ = agent
    forest, played = rollout(agent)
    decisions = [d for episode in played for d in episode.decisions]
    segments = decision_segments(forest)
    assert len(segments) == len(decisions)
    for segment, decision in zip(segments, decisions, strict=True):
        tokens = forest.segment_tokens(segment)
        assert policy.tokenizer.decode(tokens, skip_special_tokens=True) == decision.text
        assert forest.turn[segment] == decision.round
    assert all(episode.done for episode in played)


@pytest.mark.parametrize(
    "options", [{"slots": 1}, {"slots": 64}, {"exchange_interval": 1}, {"exchange_interval": 7}]
)
def test_slots_and_exchange_interval_change_no_token(agent, options):
    base, _ = rollout(agent)
    other, _ = rollout(agent, **options)
    np.testing.assert_array_equal(base.tokens, other.tokens)
    np.testing.assert_array_equal(base.parent, other.parent)
    np.testing.assert_allclose(base.behavior_logp, other.behavior_logp, atol=1e-5)
    np.testing.assert_allclose(base.entropy, other.entropy, atol=1e-5)


def test_the_same_seed_repeats_bit_for_bit(agent):
    assert equal(rollout(agent)[0], rollout(agent)[0])


def test_seed_and_step_change_the_samples(agent):  # C10
    base, _ = rollout(agent)
    for options in ({"seed": 4}, {"step": 1}):
        other, _ = rollout(agent, **options)
        assert not np.array_equal(base.tokens, other.tokens)


def test_members_of_a_group_draw_their_own_samples(agent):  # C10
    policy, params = agent
    prompt = tuple(policy.tokenizer.encode("Choose", add_special_tokens=False))
    seen = []
    requests = [Request(prompt, group=g, member=m) for g in range(2) for m in range(8)]
    run_requests(
        policy, params, requests,
        lambda request, completion: seen.append(tuple(completion.tokens)) or [],
        EngineOptions(slots=16, max_action_tokens=8), seed=0,
    )  # fmt: skip
    assert len(set(seen)) == 16


def test_recorded_log_probabilities_are_the_trainers(agent):  # A10, A11
    policy, params = agent
    for temperature in (1.0, 0.6):
        forest, _ = rollout(agent, sampling=Sampling(temperature=temperature))
        batch = pack(forest, row_length=512)
        scores = policy.log_probs(
            params, batch.tokens, batch.positions, batch.segment, batch.ancestors,
            batch.source, batch.target, temperature=temperature,
        )  # fmt: skip
        real = np.asarray(batch.action_mask)
        ratio = np.exp(np.asarray(scores.logp) - np.asarray(batch.behavior_logp))[real]
        np.testing.assert_allclose(ratio, 1.0, atol=1e-5)
        entropy = np.asarray(scores.entropy)[real]
        np.testing.assert_allclose(entropy, forest.entropy[batch.token_index[real]], atol=1e-4)


def test_shared_prompts_change_no_action(agent):
    shared, _ = rollout(agent)
    apart, _ = rollout(agent, share_prompts=False)
    for forest in (shared, apart):
        forest.validate()
    left = [shared.segment_tokens(s) for s in decision_segments(shared)]
    right = [apart.segment_tokens(s) for s in decision_segments(apart)]
    assert all(np.array_equal(a, b) for a, b in zip(left, right, strict=True))
    assert shared.num_tokens < apart.num_tokens


def test_an_action_stops_at_its_first_end_token_or_at_the_limit(agent):  # B01
    policy, _ = agent
    forest, _ = rollout(agent, count=40, groups=None, max_action_tokens=3, seed=11)
    for segment in decision_segments(forest):
        tokens = list(forest.segment_tokens(segment))
        ended = tokens[-1] in policy.end_ids
        assert forest.truncated[segment] == (not ended)
        assert not any(token in policy.end_ids for token in tokens[:-1])
        assert ended or len(tokens) == 3


@pytest.mark.slow
def test_compilations_are_bounded_by_the_buckets(agent):  # H01
    policy, params = agent

    def complete(length):
        requests = [Request(tuple(range(1, length + 1)), group=0, member=0)]
        options = EngineOptions(slots=2, max_action_tokens=2)
        run_requests(policy, params, requests, lambda *_: [], options, seed=0)

    before = admit._cache_size(), decode._cache_size()
    for length in range(1, 51):
        complete(length)
    first = admit._cache_size(), decode._cache_size()
    # Widths 16, 24, 32, 48, 64, and capacities 24, 32, 48, 64 that hold them.
    assert first[0] - before[0] <= 8
    assert first[1] - before[1] <= 4
    for length in range(1, 51):
        complete(length)
    assert (admit._cache_size(), decode._cache_size()) == first


def test_bad_input(agent):
    policy, params = agent
    with pytest.raises(ValueError, match="3 groups for 6 episodes"):
        play(policy, params, episodes(), seed=0, groups=[0, 1, 2])
    with pytest.raises(ValueError, match="slots must be at least 1"):
        play(policy, params, episodes(), seed=0, slots=0)
    with pytest.raises(ValueError, match="empty prompt"):
        run_requests(policy, params, [Request((), 0, 0)], lambda *_: [], EngineOptions(), seed=0)
    for token in (-1, 320):
        wrong = [Request((1, token), 4, 0)]
        with pytest.raises(ValueError, match=f"group 4 has token id {token} .* ids 0 to 319"):
            run_requests(policy, params, wrong, lambda *_: [], EngineOptions(), seed=0)
    small = Policy(
        ModelConfig(vocab_size=320, hidden_size=16, num_heads=2, max_positions=16),
        policy.tokenizer,
    )
    with pytest.raises(ValueError, match="exceed the policy's 16 positions"):
        play(small, params, episodes(), seed=0)


def test_no_episode_gives_an_empty_forest(agent):
    assert play(*agent, [], seed=0).num_segments == 0
