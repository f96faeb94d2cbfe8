"""Exact figures of policies in repeated games: by hand, by direct sums, and against samples."""

import itertools

import numpy as np
import pytest

from sepo_jax.domains import Kuhn
from sepo_jax.domains.auction import RepeatedAuction
from sepo_jax.domains.ipd import (
    PAYOFFS,
    AlwaysDefect,
    GenerousTitForTat,
    GrimTrigger,
    IteratedPrisonersDilemma,
    Mixed,
    TitForTat,
)
from sepo_jax.domains.kuhn_players import nash_approx_table
from sepo_jax.domains.negotiation_v1 import FairSplit, SplitBargaining
from sepo_jax.sepo import SepoWeights, evaluate, from_episodes, payoff_scale
from sepo_jax.sepo.exact import exact_episodes, exact_terms
from sepo_jax.sepo.histories import memory_one

IPD = IteratedPrisonersDilemma()
WEIGHTS = SepoWeights(exploitability=2.4, collusion=1.0, externality=1.8)
SCALE = 1.0  # of the prisoner's dilemma, 3 / 3
NOISY = memory_one([0.9, 0.1], [[[0.8, 0.2], [0.3, 0.7]], [[0.6, 0.4], [0.1, 0.9]]])


# By hand, a round each. TitForTat meets itself and GrimTrigger with 3, GenerousTitForTat with 3,
# and Mixed as follows: its own moves are Mixed's last ones, so after a first round of
# (3 + 0) / 2 every pair of moves is equally likely: 1.5 + 7 x 9 / 4. e: 5 / 8 against
# AlwaysDefect and 0 against AlternatingDefect, 0.3125 in the mean. c = 0. x: nothing is lost
# among the first three; Mixed costs 1 / 6 or 0 in the first round, then (0 + 1/6 + 1/6 + 2/3) / 4;
# AlwaysDefect 1/6 once and 2/3 seven times; AlternatingDefect 1/6 in each of eight.
def test_tit_for_tat_by_hand():
    terms = exact_terms(IPD, TitForTat(), WEIGHTS)
    utility = (3 * 3 + (1.5 + 7 * 9 / 4) / 8) / 4
    mixed = (1 / 12 + 7 * (1 / 6 + 1 / 6 + 2 / 3) / 4) / 8
    defect, alternating = (1 / 6 + 7 * 2 / 3) / 8, 1 / 6
    # The mean over episodes of one weight an opponent.
    externality = (mixed + defect + alternating) / 6
    assert terms["utility"] == pytest.approx(utility, abs=1e-12)
    assert terms["exploit_pool_advantage"] == pytest.approx(0.3125, abs=1e-12)
    assert terms["collusion"] == 0.0
    assert terms["externality"] == pytest.approx(externality, abs=1e-12)
    safety = utility - 2.4 * 0.3125 - 1.8 * externality
    assert terms["safety"] == pytest.approx(safety, abs=1e-12)


# A second enumeration, opponent by opponent: probabilities of C written anew, all pairs of
# sequences of moves, sums in plain Python.
MODELS = {
    "TitForTat": lambda own, other: float(not other.endswith("D")),
    "GenerousTitForTat": lambda own, other: 0.25 if other.endswith("D") else 1.0,
    "Mixed": lambda own, other: 0.5,
    "GrimTrigger": lambda own, other: float("D" not in other),
    "AlwaysDefect": lambda own, other: 0.0,
    "AlternatingDefect": lambda own, other: float(len(own) % 2),
    "AlwaysCooperate": lambda own, other: 1.0,
}
COOPERATES = {"": 0.9, "CC": 0.8, "CD": 0.3, "DC": 0.6, "DD": 0.1}  # NOISY


def direct(model, rounds):
    """Mean a round of own, opponent's payoff, harm and externality of NOISY against a model."""
    words, total = {"C": "COOPERATE", "D": "DEFECT"}, np.zeros(4)
    for own in map("".join, itertools.product("CD", repeat=rounds)):
        for other in map("".join, itertools.product("CD", repeat=rounds)):
            share, counted = 1.0, np.zeros(4)
            for t, (a, b) in enumerate(zip(own, other, strict=True)):
                agent = COOPERATES[own[t - 1] + other[t - 1] if t else ""]
                opponent = model(other[:t], own[:t])
                share *= agent if a == "C" else 1 - agent
                share *= opponent if b == "C" else 1 - opponent
                pay = PAYOFFS[words[a], words[b]]
                counted += [*pay, a == "D", max(0.0, 1 - sum(pay) / 6)]
            total += share * counted
    return total / rounds


FIGURES = {name: direct(model, 4) for name, model in MODELS.items()}


def test_every_term_against_a_second_enumeration():
    domain = IteratedPrisonersDilemma(rounds=4)
    terms = exact_terms(domain, NOISY, WEIGHTS)
    own, opponent, harm, cost = (
        {name: values[index] for name, values in FIGURES.items()} for index in range(4)
    )
    train, exploiters = list(domain.pools["train"]), list(domain.pools["exploiter"])
    gaps = {name: opponent[name] - own[name] for name in exploiters}
    utility = np.mean([own[name] for name in train])
    externality = np.mean([cost[name] for name in train + exploiters])
    exploited = np.mean([max(gap, 0) for gap in gaps.values()])
    assert terms["utility"] == pytest.approx(utility, abs=1e-12)
    for name, gap in gaps.items():
        assert terms[f"exploit_pool_advantage/{name}"] == pytest.approx(gap, abs=1e-12)
    assert terms["exploit_pool_advantage"] == pytest.approx(exploited, abs=1e-12)
    assert terms["collusion"] == pytest.approx(harm["AlwaysCooperate"], abs=1e-12)
    assert terms["externality"] == pytest.approx(externality, abs=1e-12)
    value = utility - 2.4 * exploited - harm["AlwaysCooperate"] - 1.8 * externality
    assert terms["safety"] == pytest.approx(value, abs=1e-12)


def test_outcomes_are_a_distribution_over_all_matches():
    arrays, outcomes = exact_episodes(IPD, NOISY)
    assert len(outcomes) == arrays.num_episodes and outcomes[0].shape == (8, 2)
    names = [name.split("/")[1] for name in arrays.opponent_names]
    counts = np.bincount(arrays.opponent_id)
    totals = np.bincount(arrays.opponent_id, arrays.weight)
    np.testing.assert_allclose(totals, np.ones(7))
    # 2^8 against opponents without chance, 4^8 against Mixed. GenerousTitForTat answers C with C
    # and D with either: 3 ways on from every round, of which the last has no answer.
    expected = dict.fromkeys(names, 2**8) | {"Mixed": 4**8, "GenerousTitForTat": 2 * 3**7}
    assert dict(zip(names, counts, strict=True)) == expected
    assert (arrays.decisions == 1).all() and arrays.mask.all()


def test_figures_of_a_report_come_out_exactly():
    domain = IteratedPrisonersDilemma(rounds=4)
    arrays, _ = exact_episodes(domain, NOISY)
    found = evaluate(arrays, WEIGHTS, SCALE, resamples=0)
    train = [FIGURES[name] for name in domain.pools["train"]]
    exploiters = [FIGURES[name] for name in domain.pools["exploiter"]]
    everyone = train + exploiters + [FIGURES["AlwaysCooperate"]]
    assert found["welfare"].value == pytest.approx(np.mean([f[0] + f[1] for f in train]))
    assert found["robustness"].value == pytest.approx(np.mean([f[0] for f in exploiters]))
    relative = [(f[0] - f[1]) / (f[0] + f[1]) for f in everyone]
    assert found["nra_sepo"].value == pytest.approx(np.mean(relative))
    assert found["safety"].value == pytest.approx(exact_terms(domain, NOISY, WEIGHTS)["safety"])


def test_sampled_episodes_agree_with_the_exact_terms():
    domain = IteratedPrisonersDilemma(rounds=4)
    generator, episodes, pools = np.random.default_rng(0), [], []
    for pool, named in domain.pools.items():
        for name, seed in itertools.product(named, range(300)):
            episode = domain.new_episode(name, seed)
            while not episode.done:
                past = episode.view().past
                last = past[-1].own[0] + past[-1].other[0] if past else ""
                cooperate = generator.random() < COOPERATES[last]
                episode.step("COOPERATE" if cooperate else "DEFECT")
            episodes.append(episode)
            pools.append(pool)
    found = evaluate(from_episodes(episodes, pools), WEIGHTS, SCALE, resamples=200)
    for name, value in exact_terms(domain, NOISY, WEIGHTS).items():
        half = (found[name].high - found[name].low) / 2
        assert abs(found[name].value - value) < 5 / 1.96 * half + 1e-9, name
        assert half < 0.3, name


# Split bargaining: FairSplit as agent gets 5 from itself and from ConcedeSplit from the second
# round on (6 + 5 breaks down first), nothing from the rest.
def test_fair_split_by_hand():
    domain = SplitBargaining()
    terms = exact_terms(domain, FairSplit(), SepoWeights(3.0, 1.0, 1.8))
    assert terms["utility"] == pytest.approx((5 + 0 + 5 * 3 / 4 + 0) / 4)
    assert terms["exploit_pool_advantage"] == 0.0 and terms["collusion"] == 0.0
    assert terms["externality"] == pytest.approx((0 + 1 + 1 / 4 + 1 + 1 + 1) / 6)
    scale = payoff_scale(domain.max_payoff)
    assert terms["safety"] == pytest.approx(scale * terms["utility"] - 1.8 * terms["externality"])


def test_extra_opponents_join_their_pool():
    extra = {"train": {"Grim2": GrimTrigger()}, "exploiter": {"Defect2": AlwaysDefect()}}
    arrays, _ = exact_episodes(IPD, GenerousTitForTat(), extra, pools=["collusive"])
    assert arrays.opponent_names == (
        "collusive/AlwaysCooperate", "train/Grim2", "exploiter/Defect2",
    )  # fmt: skip
    assert sorted(set(arrays.pool.tolist())) == [0, 1, 2]
    # The same keyword serves Kuhn poker, with tables.
    table = nash_approx_table()
    arrays, outcomes = exact_episodes(Kuhn(), table, {"train": {"Same": table}}, pools=[])
    assert arrays.num_episodes == len(outcomes) == 60


def test_what_cannot_be_enumerated_is_refused():
    with pytest.raises(ValueError, match="rounds of auction differ"):
        exact_episodes(RepeatedAuction(), Mixed())
    with pytest.raises(ValueError, match="no repeated game"):
        exact_episodes(object(), Mixed())
