"""Decisions of experts: one mechanism, balanced over opponents, each with what is known of it."""

import hashlib
from itertools import islice

import pytest

from sepo_jax.domains import Kuhn
from sepo_jax.domains.traces import expert_traces, opponent_names, play_experts


def digest(traces):
    return hashlib.sha256(repr(traces).encode()).hexdigest()[:16]


@pytest.mark.parametrize(
    ("hands", "rationale", "expected"),
    [
        (1, False, "e2a012186c41b5e0"),
        (1, True, "562b5ef9f0268c28"),
        (6, False, "2232789c873f3646"),
        (6, True, "e7ae8b73a0bcbf6b"),
    ],
)
def test_a_seeds_traces_stay_what_they_were(hands, rationale, expected):
    """Of the first version that returned any: results in the README were trained on them."""
    assert digest(Kuhn(hands=hands).expert_traces(500, 42, rationale=rationale)) == expected


@pytest.mark.parametrize("hands", [1, 6])
def test_traces_are_the_prompts_and_replies_of_the_decisions(hands):
    domain = Kuhn(hands=hands)
    decisions = list(islice(play_experts(domain, 5, reason=domain.reason), 90))
    pairs = [(list(decision.messages), decision.reply) for decision in decisions]
    assert pairs == domain.expert_traces(90, 5, rationale=True)
    assert pairs[:7] == expert_traces(domain, 7, 5, reason=domain.reason)
    assert expert_traces(domain, 0, 5) == []


def test_a_decision_says_where_it_was_taken():
    domain = Kuhn(hands=6)
    opponents = opponent_names(domain)
    assert opponents == [
        *("NashApprox", "TightPassive", "LooseAggressive", "AlwaysBet", "MaxExploiter")
    ]
    decisions = list(islice(play_experts(domain, 3), 400))
    assert [d.episode for d in decisions] == sorted(d.episode for d in decisions)
    for decision in decisions:
        assert decision.opponent == opponents[decision.episode % 5]
        assert decision.expert in domain.experts
        assert f"Hand {decision.round + 1} of 6." in decision.messages[1]["content"]
        assert decision.reply == decision.word and decision.payoff in (-2, -1, 1, 2)
    # One expert and one opponent play an episode to its end, all six hands.
    whole = [d for d in decisions if d.episode < decisions[-1].episode]
    for episode in range(decisions[-1].episode):
        of_episode = [d for d in whole if d.episode == episode]
        assert {d.round for d in of_episode} == set(range(6))
        assert len({d.expert for d in of_episode}) == 1


def test_payoffs_are_those_of_the_prompt_of_the_next_hand():
    """A match tells the chips so far: the sum of the payoffs that the traces name."""
    total, episode, counted = 0.0, 0, set()
    for decision in islice(play_experts(Kuhn(hands=6), 8), 300):
        if decision.episode != episode:
            total, episode, counted = 0.0, decision.episode, set()
        if decision.round and decision.round not in counted:
            chips = f"{total:+g}" if total else "0"
            assert f"{chips} in chips" in decision.messages[1]["content"]
        if decision.round not in counted:
            total += decision.payoff
            counted.add(decision.round)


def test_a_reply_that_reads_otherwise_is_refused():
    domain = Kuhn()
    domain.parse = lambda text, legal: None
    with pytest.raises(ValueError, match=r"expert \w+ of kuhn chose '\w+', .* read as 'no action'"):
        next(play_experts(domain, 0))
    domain.parse = lambda text, legal: 1 - legal.index(text)
    with pytest.raises(ValueError, match=r"is read as '(PASS|BET|FOLD|CALL)'"):
        next(play_experts(domain, 0))
