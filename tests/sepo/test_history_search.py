"""Searched opponents: a lower bound, without the bias of having chosen the luckiest."""

import itertools

import numpy as np
import pytest

from sepo_jax.domains.ipd import (
    AlwaysCooperate,
    GenerousTitForTat,
    GrimTrigger,
    IteratedPrisonersDilemma,
    Mixed,
    TitForTat,
)
from sepo_jax.domains.negotiation_v1 import SplitBargaining
from sepo_jax.domains.negotiation_v1 import TitForTat as Leftover
from sepo_jax.sepo import SepoWeights
from sepo_jax.sepo.exact import exact_episodes, exact_terms
from sepo_jax.sepo.histories import as_policy, history_game, memory_one
from sepo_jax.sepo.history_response import best_exploiter
from sepo_jax.sepo.history_search import (
    SearchSettings,
    family,
    sampled_means,
    search_exploiter,
)

IPD = IteratedPrisonersDilemma()
QUICK = SearchSettings(episodes=200, starts=1, generations=4, mutants=4)


def forgetful(seed):
    """A random policy that sees the last round only."""
    generator = np.random.default_rng(seed)
    return memory_one(generator.dirichlet([1, 1]), generator.dirichlet([0.5, 0.5], (2, 2)))


def exact_gap(domain, policy, opponent):
    """Gap a round that an opponent takes, by enumeration."""
    terms = exact_terms(domain, policy, SepoWeights(0, 0, 0), {"exploiter": {"Searched": opponent}})
    return terms["exploit_pool_advantage/Searched"]


POLICIES = {
    "TitForTat": TitForTat(),
    "GrimTrigger": GrimTrigger(),
    "GenerousTitForTat": GenerousTitForTat(),
    "Mixed": Mixed(),
    "forgetful 0": forgetful(0),
    "forgetful 1": forgetful(1),
}


# What is found is an opponent like any other, so its own mean is at most the best response's; the
# estimate is of that mean.
@pytest.mark.parametrize("policy", POLICIES.values(), ids=list(POLICIES))
def test_a_searched_opponent_takes_at_most_the_exact_value(policy):
    exact = best_exploiter(IPD, policy)
    found = best_exploiter(IPD, policy, max_contexts=1, search=QUICK)
    assert exact.exact and not found.exact
    truth = exact_gap(IPD, policy, found.opponent)
    assert truth <= exact.value + 1e-12
    spread = (found.high - found.low) / 2 / 1.96
    assert abs(found.value - truth) <= 5 * spread + 1e-12
    assert found.num_contexts <= 21_845
    # And it finds much: the simple opponents include the best against most of these.
    assert truth >= exact.value - 0.1


# Against policies without chance a round of play is certain: the bound is a single number, and
# here the best.
@pytest.mark.parametrize(
    ("policy", "objective", "total"),
    [
        (AlwaysCooperate(), "gap", 40),
        (TitForTat(), "gap", 5),
        (TitForTat(), "opponent", 26),
        (GrimTrigger(), "opponent", 26),
    ],
)
def test_simple_policies_are_met_by_the_best(policy, objective, total):
    found = best_exploiter(IPD, policy, objective, max_contexts=1, search=QUICK)
    assert found.value * 8 == found.low * 8 == found.high * 8 == total


# Split bargaining: a demand of 9 in every round makes Leftover demand 1 from the second on.
def test_bargaining_by_hand():
    found = best_exploiter(SplitBargaining(), Leftover(), max_contexts=1, search=QUICK)
    assert found.value == (0 + 8 + 8 + 8) / 4
    # An agent that repeats a demand drawn in the first round is met by what that leaves.
    first = np.full(9, 1 / 9)
    replies = np.tile(np.eye(9)[:, None], (1, 9, 1))
    policy = memory_one(first, replies)
    found = best_exploiter(SplitBargaining(), policy, "opponent", max_contexts=1, search=QUICK)
    exact = best_exploiter(SplitBargaining(), policy, "opponent")
    assert found.opponent.name.endswith("then best reply")
    assert found.high > exact.value  # first round: demand 5 wins 5 with 5 / 9; then mean 5
    assert exact.value == pytest.approx((25 / 9 + 3 * 5) / 4)


# The point of fresh episodes. All opponents take the same from an agent whose payoffs are a coin
# of its own, so the truth is known and the best of the choosing episodes is the luckiest.
def test_the_estimate_is_not_of_the_episodes_that_chose():
    domain = IteratedPrisonersDilemma(rounds=1)
    game = history_game(domain)
    policy = as_policy(game, Mixed())
    payoff = np.zeros((1, 2, 2))
    payoff[0] = [[-1, 1], [1, -1]]  # matching pennies: every opponent's mean is 0
    errors, chosen = [], []
    for seed in range(300):
        settings = SearchSettings(episodes=10, starts=0, generations=0, seed=seed)
        errors.append(search_exploiter(game, policy, payoff, settings).value)
        draws = np.random.default_rng(seed).random((10, 1))
        means = sampled_means(game, policy, list(family(game, payoff)), payoff, draws)
        chosen.append(means.mean(axis=1).max())
    deviation = 1 / np.sqrt(10 * 300)
    assert abs(np.mean(errors)) < 5 * deviation
    assert np.mean(chosen) > 10 * deviation  # E |mean of ten coins| = 0.246


def test_intervals_cover_the_truth_as_often_as_they_say():
    domain = IteratedPrisonersDilemma(rounds=2)
    policy = forgetful(2)
    covered = []
    for seed in range(200):
        settings = SearchSettings(episodes=100, starts=0, generations=0, seed=seed)
        found = best_exploiter(domain, policy, max_contexts=1, search=settings)
        truth = exact_gap(domain, policy, found.opponent)
        covered.append(found.low <= truth <= found.high)
    # 190 of 200 expected, standard deviation 3.1; below 175 are 5 deviations. More than 199 would
    # be 3 deviations of intervals that are too wide.
    assert 175 <= sum(covered) <= 199


# A climb finds what the family lacks: an opponent that remembers two rounds. Three rounds of coins;
# in the fourth the agent cooperates with 0.9 if the opponent's third move was the agent's first,
# else with 0.1. Defecting always gets 3 in each round. To remember gets 0.9 x 5 + 0.1 x 1 = 4.6 in
# the fourth, and costs 1.5 in the third every other time: 9 - 0.75 + 4.6.
def test_climbing_finds_an_opponent_with_a_longer_memory():
    domain = IteratedPrisonersDilemma(rounds=4)

    def tests_memory(contexts):
        share = np.full(len(contexts), 0.5)
        if contexts.round == 3:
            share = np.where(contexts.moves[:, 2, 1] == contexts.moves[:, 0, 0], 0.9, 0.1)
        return np.stack([share, 1 - share], axis=-1)

    def found(generations):
        settings = SearchSettings(200, 3, generations, mutants=8, seed=1)
        opponent = best_exploiter(
            domain, tests_memory, "opponent", max_contexts=1, search=settings
        ).opponent
        arrays, _ = exact_episodes(domain, tests_memory, {"train": {"it": opponent}}, pools=[])
        return float(arrays.weight @ arrays.opponent.sum(axis=1)), opponent.name

    assert best_exploiter(domain, tests_memory, "opponent").value * 4 == pytest.approx(12.85)
    assert found(0) == (pytest.approx(12), "always DEFECT")
    climbed, name = found(20)
    assert climbed == pytest.approx(12.85) and name.startswith("climbed from")


def test_the_family_is_what_it_says():
    game = history_game(IPD)
    machines = list(family(game, game.opponent - game.own))
    # Two moves: all 32 strategies that remember one round. Three of the four whose first move is
    # their last play like the fourth: 13 ways to play from each first move.
    memory = [machine for machine in machines if machine.name.startswith("memory one")]
    assert len(memory) == 32
    assert len({tuple(map(machine.choose, VIEWS)) for machine in memory}) == 26
    # Eight rounds: every sequence of moves.
    sequences = {
        tuple(machine.outputs) for machine in machines if machine.name.startswith("sequence")
    }
    assert sequences == set(itertools.product((0, 1), repeat=8))
    bargaining = history_game(SplitBargaining())
    names = [machine.name for machine in family(bargaining, bargaining.opponent)]
    for name in ("always 9", "5, then copy", "7, then best reply", "sequence 9 1"):
        assert name in names
    assert "5, 9 in the last 1" in names and len(names) == len(set(names))


def _views():
    game = history_game(IteratedPrisonersDilemma(rounds=3))
    contexts, views = game.root(), []
    for _ in range(3):
        views += contexts.views(player=1)
        contexts = contexts.after(*np.nonzero(np.ones((len(contexts), 2, 2))))
    return views


VIEWS = _views()


def test_a_seed_fixes_the_search_and_the_policy_is_asked_once_a_context():
    asked = []

    def policy(contexts):
        asked.extend(moves.tobytes() for moves in contexts.moves)
        return forgetful(4)(contexts)

    runs = [best_exploiter(IPD, policy, max_contexts=1, search=QUICK) for _ in range(2)]
    assert runs[0].value == runs[1].value and runs[0].opponent.name == runs[1].opponent.name
    half = len(asked) // 2
    assert asked[:half] == asked[half:]
    # The root once more by each exact attempt that was refused.
    assert len(set(asked[1:half])) == half - 1 == runs[0].num_contexts
    other = SearchSettings(episodes=200, starts=1, generations=4, mutants=4, seed=1)
    assert best_exploiter(IPD, policy, max_contexts=1, search=other).value != runs[0].value


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"episodes": 1}, "episodes must be at least 2, not 1"),
        ({"mutants": 0}, "mutants must be at least 1"),
        ({"generations": -1}, "generations must be at least 0"),
        ({"seed": 0.5}, "seed must be an integer"),
    ],
)
def test_bad_settings_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        SearchSettings(**change)


def test_within_the_limit_the_value_is_exact_though_a_search_was_allowed():
    assert best_exploiter(IPD, TitForTat(), search=True).exact
