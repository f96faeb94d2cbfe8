"""Best responses in repeated games: by hand, against brute force, and in played episodes."""

import copy
import itertools
import math
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sepo_jax.domains.ipd import (
    PAYOFFS,
    AlternatingDefect,
    AlwaysCooperate,
    AlwaysDefect,
    GenerousTitForTat,
    GrimTrigger,
    IteratedPrisonersDilemma,
    Mixed,
    TitForTat,
)
from sepo_jax.domains.negotiation_v1 import ConstantDemand, SplitBargaining
from sepo_jax.sepo import SepoWeights
from sepo_jax.sepo.automata import Automaton
from sepo_jax.sepo.exact import exact_terms
from sepo_jax.sepo.history_response import TooManyContexts, best_exploiter

IPD = IteratedPrisonersDilemma()
BARGAINING = SplitBargaining()


def random_arrays(domain, seed, concentration=1.0):
    """A random row of probabilities for every context, by round."""
    generator, size = np.random.default_rng(seed), len(domain.situation(0, 0).actions)
    share = np.full(size, concentration)
    return [generator.dirichlet(share, size ** (2 * number)) for number in range(domain.rounds)]


# Eight rounds by hand. Gap: the first defection takes 5 from TitForTat and GrimTrigger, which then
# defend themselves (what TitForTat gives back costs the 5 again); GenerousTitForTat gives 5 in the
# first round and 5 with probability 1/4 in each of the other seven. Payoff: all three are best kept
# cooperating and betrayed at the end, 7 x 3 + 5 = 26; to defect earlier pays GenerousTitForTat's
# opponent 2 more at once and costs 0.75 x 3 in the next round. AlternatingDefect cooperates in four
# rounds whatever happens: 4 x 5 there, and 4 x 1 in the others.
@pytest.mark.parametrize(
    ("policy", "gap", "payoff"),
    [
        (AlwaysCooperate, 40, 40),
        (AlwaysDefect, 0, 8),
        (TitForTat, 5, 26),
        (GrimTrigger, 5, 26),
        (GenerousTitForTat, 5 + 7 * 5 / 4, 26),
        (Mixed, 8 * 5 / 2, 8 * 3),
        (AlternatingDefect, 20, 24),
    ],
)
def test_scripted_policies_by_hand(policy, gap, payoff):
    for objective, total in (("gap", gap), ("opponent", payoff)):
        found = best_exploiter(IPD, policy(), objective)
        assert found.value * 8 == pytest.approx(total, abs=1e-12)
        assert found.exact and found.low == found.high == found.value


# A policy without chance reaches 2^t contexts before round t, since only the opponent's moves
# differ; one that may always do both reaches all.
def test_contexts_that_a_policy_never_reaches_are_left_out():
    assert best_exploiter(IPD, TitForTat()).num_contexts == 2**8 - 1
    assert best_exploiter(IPD, Mixed()).num_contexts == 21_845
    asked = []

    def stubborn(contexts):
        asked.append(len(contexts))
        return np.tile([0.0, 1.0], (len(contexts), 1))

    found = best_exploiter(IPD, stubborn)
    assert asked == [2**number for number in range(8)]
    assert sum(asked) == found.num_contexts


def plans(rounds):
    """Every plan of an opponent: a move for each sequence of the agent's moves so far (its own
    follow from those), as functions of that sequence."""
    keys = [key for number in range(rounds) for key in itertools.product((0, 1), repeat=number)]
    for moves in itertools.product((0, 1), repeat=len(keys)):
        yield dict(zip(keys, moves, strict=True))


def expected_by_hand(plan, arrays, objective):
    """Mean a round of a plan against arrays of probabilities, written without any numpy."""
    words, total = ("COOPERATE", "DEFECT"), 0.0
    rounds = len(arrays)
    for moves in itertools.product((0, 1), repeat=rounds):
        share, code, points = 1.0, 0, 0.0
        for number, own in enumerate(moves):
            other = plan[moves[:number]]
            share *= arrays[number][code][own]
            agent, opponent = PAYOFFS[words[own], words[other]]
            points += opponent - agent if objective == "gap" else opponent
            code = 4 * code + 2 * own + other
        total += share * points
    return total / rounds


@pytest.mark.parametrize("objective", ["gap", "opponent"])
@pytest.mark.parametrize("rounds", [2, 3])
def test_backward_induction_is_the_best_of_all_plans(rounds, objective):
    domain = IteratedPrisonersDilemma(rounds=rounds)
    for seed in range(4):
        arrays = random_arrays(domain, seed, 0.5)
        if seed > 1:  # some contexts are certain, so parts of the tree are left out
            arrays = [
                np.where(rows.min(1, keepdims=True) < 0.2, rows > 0.5, rows) for rows in arrays
            ]
        best = max(expected_by_hand(plan, arrays, objective) for plan in plans(rounds))
        assert best_exploiter(domain, arrays, objective).value == pytest.approx(best, abs=1e-12)


# No other opponent takes more, and the returned one takes what was said: both by enumeration.
@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 2**32 - 1), rounds=st.integers(1, 4))
def test_the_opponent_takes_its_value_and_no_other_more(seed, rounds):
    domain = IteratedPrisonersDilemma(rounds=rounds)
    arrays = random_arrays(domain, seed, 0.3)
    found = best_exploiter(domain, arrays)
    extra = {"exploiter": {found.opponent.name: found.opponent, "GrimTrigger": GrimTrigger()}}
    terms = exact_terms(domain, arrays, SepoWeights(0, 0, 0), extra)
    gaps = {k.split("/")[1]: v for k, v in terms.items() if k.startswith("exploit") and "/" in k}
    assert gaps.pop("BestResponse") == pytest.approx(found.value, abs=1e-12)
    assert gaps.keys() == {"AlwaysDefect", "AlternatingDefect", "GrimTrigger"}
    assert max(gaps.values()) <= found.value + 1e-12


class Demand(ConstantDemand):
    """A demand given at construction."""

    def __init__(self, demand):
        self.demand = demand


# Against a constant demand d the best is what it leaves, 10 - d, in every round. The gap is then
# 10 - 2 d, and a breakdown (gap 0) is as good or better from d = 5 on.
@pytest.mark.parametrize("demand", range(1, 10))
def test_constant_demands_are_answered_by_what_they_leave(demand):
    found = best_exploiter(BARGAINING, Demand(demand), "opponent")
    assert found.value == 10 - demand
    episode = BARGAINING.new_episode(found.opponent, 0)
    while not episode.done:
        episode.step(str(demand))
    assert [result.opponent for result in episode.rounds] == [10 - demand] * 4
    gap = best_exploiter(BARGAINING, Demand(demand))
    assert gap.value == max(10 - 2 * demand, 0)
    if demand < 5:
        assert np.unique(gap.opponent.outputs[:-1]) == [9 - demand]  # index of the word 10 - d


@pytest.mark.parametrize("objective", ["gap", "opponent"])
def test_one_round_of_bargaining_by_brute_force(objective):
    domain = SplitBargaining(rounds=1)
    for seed in range(5):
        (row,) = random_arrays(domain, seed, 0.5)
        values = []
        for other in range(1, 10):
            deals = [(own, row[0, own - 1]) for own in range(1, 10) if own + other <= 10]
            values.append(sum(p * (other - own * (objective == "gap")) for own, p in deals))
        found = best_exploiter(domain, [row], objective)
        assert found.value == pytest.approx(max(values), abs=1e-12)
        assert found.opponent.outputs[0] == np.argmax(values)


# Two rounds of bargaining, every context of which has a row of its own: the second round by
# hand is a maximum in each context, the first then one of nine.
def test_two_rounds_of_bargaining_by_brute_force():
    domain = SplitBargaining(rounds=2)
    first, second = random_arrays(domain, 3, 0.3)

    def take(own, other):
        return float(other - own) if own + other <= 10 else 0.0

    demands = range(1, 10)
    values = []
    for other in demands:
        total = 0.0
        for own in demands:
            row = second[9 * (own - 1) + other - 1]
            later = max(sum(row[a - 1] * take(a, b) for a in demands) for b in demands)
            total += first[0, own - 1] * (take(own, other) + later)
        values.append(total)
    assert best_exploiter(domain, [first, second]).value == pytest.approx(max(values) / 2)


def played(domain, policy, opponent, count):
    """Gap a round of sampled episodes of arrays of probabilities, [count]."""
    generator, gaps = np.random.default_rng(1), []
    size = len(domain.situation(0, 0).actions)
    for seed in range(count):
        episode, code = domain.new_episode(opponent, seed), 0
        while not episode.done:
            row = policy[len(episode.rounds)][code]
            own = generator.choice(size, p=row)
            words = episode.legal_actions()
            episode.step(words[own])
            other = words.index(episode._past[0][-1].other)
            code = code * size**2 + own * size + other
        gaps.append(np.mean([result.opponent - result.own for result in episode.rounds]))
    return np.array(gaps)


@pytest.mark.parametrize(
    ("domain", "seed"), [(IPD, 0), (SplitBargaining(rounds=3), 1)], ids=["ipd", "negotiation_v1"]
)
def test_sampled_episodes_agree_with_the_exact_value(domain, seed):
    policy = random_arrays(domain, seed, 0.3)
    found = best_exploiter(domain, policy)
    gaps = played(domain, policy, found.opponent, 600)
    assert abs(gaps.mean() - found.value) < 5 * gaps.std(ddof=1) / math.sqrt(len(gaps))
    # It takes much more than the mean opponent does, so the agreement says something.
    assert found.value > 0.5


# A policy in 538,084 contexts: refused by default with the number, solved when it is allowed.
def test_too_many_contexts_are_refused_with_their_number():
    asked = []

    def uniform(contexts):
        asked.append(len(contexts))
        return np.full((len(contexts), 9), 1 / 9)

    with pytest.raises(TooManyContexts, match=r"538084 contexts in 4 rounds; .* 538084 of them"):
        best_exploiter(BARGAINING, uniform)
    assert asked == [1, 81, 6561]  # the last round, which is the bulk, was never asked for
    found = best_exploiter(BARGAINING, uniform, max_contexts=538_084)
    # A demand b is met with probability (10 - b) / 9, and then the agent has (11 - b) / 2 on
    # average: the gap (10 - b) (3 b - 11) / 18 is greatest at b = 7, 30 / 18.
    assert found.value == pytest.approx(5 / 3) and found.num_contexts == 538_084
    with pytest.raises(TooManyContexts, match="reaches 21 of them by round 3, max_contexts is 20"):
        best_exploiter(IPD, Mixed(), max_contexts=20)


# Where the policy has probability 0, and after a forfeit, the opponent is cautious: it defects,
# and demands the half that cannot leave it behind.
@pytest.mark.parametrize(
    ("domain", "policy", "expected"), [(IPD, TitForTat(), "DEFECT"), (BARGAINING, Demand(2), "5")]
)
def test_off_the_policys_path_the_opponent_is_cautious(domain, policy, expected):
    domain = type(domain)(on_invalid="forfeit")
    opponent = best_exploiter(domain, policy, "gap").opponent
    for reply in ("no move", "9" if domain.name == "negotiation_v1" else "DEFECT"):
        episode = domain.new_episode(opponent, 0)
        while not episode.done:
            episode.step(reply)
        assert {past.other for past in episode._past[0][1:]} == {expected}


def test_opponents_are_small_and_survive_copies():
    found = best_exploiter(IPD, Mixed()).opponent
    assert len(found.outputs) == 2**8  # a state a history of the agent's moves, and one more
    view = IPD.new_episode(found, 0).view()
    for twin in (copy.deepcopy(found), pickle.loads(pickle.dumps(found))):
        assert twin.choose(view) == found.choose(view) and twin.name == "BestResponse"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"outputs": [0, 2]}, "outputs of Automaton must be integers from 0 to 1"),
        ({"outputs": [0.0, 1.0]}, "outputs of Automaton must be integers"),
        ({"start": 2}, "start of Automaton must be integers from 0 to 1"),
        ({"transitions": [[0, 1, 2], [0, 0, 0]]}, "transitions of Automaton must be integers"),
        ({"transitions": [[0, 1], [0, 0]]}, r"shape \[2, 2\]; expected \[2, 3\]"),
    ],
)
def test_arrays_that_are_no_machine_are_refused(change, message):
    good = {"actions": ("a", "b"), "outputs": [0, 1], "transitions": [[0, 1, 0], [1, 0, 0]]}
    Automaton(**good)
    with pytest.raises(ValueError, match=message):
        Automaton(**{**good, **change})


def test_bad_calls_are_refused():
    with pytest.raises(ValueError, match="objective 'gaps'"):
        best_exploiter(IPD, Mixed(), "gaps")
    with pytest.raises(ValueError, match="max_contexts must be at least 1"):
        best_exploiter(IPD, Mixed(), max_contexts=0)
    machine = best_exploiter(IPD, Mixed()).opponent
    episode = BARGAINING.new_episode(machine, 0)
    with pytest.raises(ValueError, match=r"BestResponse chose 'DEFECT'; allowed: 1"):
        episode.step("5")
