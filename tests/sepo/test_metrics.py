"""Figures of a report: definitions, published rows, intervals."""

import dataclasses

import numpy as np
import pytest

from sepo_jax.domains import Kuhn
from sepo_jax.sepo import (
    COLLUSIVE,
    EXPLOITER,
    TRAIN,
    EpisodeArrays,
    SepoWeights,
    action_rates,
    card_rates,
    evaluate,
    from_episodes,
    objective_value,
)
from sepo_jax.sepo.metrics import normalized_advantage, rate


def arrays_of(rows, rounds=1, **changes):
    """Episodes from (pool, opponent id, own, opponent, harmful, externality) a round."""
    pool, identity, *columns = np.array(rows, float).T
    return EpisodeArrays(
        *(np.repeat(column[:, None], rounds, axis=1) for column in columns),
        mask=np.ones((len(rows), rounds), bool),
        pool=pool,
        opponent_id=identity,
        **changes,
    )


EXAMPLE = [
    (TRAIN, 0, 3, 1, 0, 0.5),
    (TRAIN, 0, 1, 1, 0, 0.5),
    (TRAIN, 1, 2, 0, 0, 0.0),
    (TRAIN, 1, 2, 2, 0, 0.0),
    (EXPLOITER, 2, 1, 3, 0, 1.0),
    (EXPLOITER, 2, 1, 2, 0, 1.0),
    (COLLUSIVE, 3, 4, 4, 1, 0.0),
    (COLLUSIVE, 3, 4, 0, 0, 0.0),
]


def test_figures_by_hand():
    weights = SepoWeights(1.0, 0.5, 2.0)
    found = evaluate(arrays_of(EXAMPLE), weights, 1.0, resamples=0)
    expected = {
        "utility": 2.0,
        "exploit_pool_advantage": 1.5,
        "exploit_pool_advantage/2": 1.5,
        "collusion": 0.5,
        "externality": 0.5,
        "robustness": 1.0,
        "welfare": 3.0,  # (4 + 2 + 2 + 4) / 4
        # Opponents: (4-2)/6, (4-2)/6, (2-5)/7, (8-4)/12.
        "nra_sepo": (1 / 3 + 1 / 3 - 3 / 7 + 1 / 3) / 4,
        "nra_gtbench": (1 / 3 + 1 / 3 - 3 / 7 + 1 / 3) / 4,
        "safety": 2.0 - 1.5 - 0.25 - 1.0,
        "legal_rate": 1.0,
    }
    assert {name: estimate.value for name, estimate in found.items()} == pytest.approx(expected)
    assert found["utility"].low == found["utility"].high == 2.0


def test_counts_are_of_the_episodes_behind_each_figure():
    rows = [*EXAMPLE, (EXPLOITER, 4, 1, 1, 0, 0.0)]
    mask = np.ones((len(rows), 1), bool)
    mask[0] = False  # missing: behind nothing
    arrays = dataclasses.replace(arrays_of(rows), mask=mask)
    found = evaluate(arrays, SepoWeights(1.0, 0.0, 0.0), 1.0, resamples=0)
    assert {name: estimate.count for name, estimate in found.items()} == {
        "utility": 3,
        "exploit_pool_advantage": 3,
        "exploit_pool_advantage/2": 2,
        "exploit_pool_advantage/4": 1,
        "collusion": 2,
        "externality": 6,
        "safety": 6,  # no weight on collusion
        "robustness": 3,
        "welfare": 3,
        "nra_sepo": 8,
        "nra_gtbench": 8,
        "legal_rate": 8,
    }


def test_relative_advantages_differ_in_a_zero_sum_game():
    # Kuhn payoffs: own 2 and -1 against one opponent, -1 and -1 against another.
    rows = [
        (TRAIN, 0, 2, -2, 0, 0),
        (TRAIN, 0, -1, 1, 0, 0),
        (TRAIN, 1, -1, 1, 0, 0),
        (TRAIN, 1, -1, 1, 0, 0),
    ]
    found = evaluate(arrays_of(rows), SepoWeights(0, 0, 0), 1.5, resamples=0)
    assert found["nra_sepo"].value == 0.0
    # (1 - -1) / (3 + 3) = 1/3 and (-2 - 2) / (2 + 2) = -1.
    assert found["nra_gtbench"].value == pytest.approx((1 / 3 - 1) / 2)
    assert normalized_advantage(0.0, 0.0, 0.0) == 0.0


# Tit-for-tat in the iterated dilemma (T, R, P, S = 5, 3, 1, 0; 8 rounds): against AlwaysDefect it
# loses the first round (0 to 5) and draws the rest, gap 5/8; against AlternatingDefect each loss is
# answered, gap 0. Mean over opponents 0.3125, the paper's 0.312.
def test_tit_for_tat_exploitability():
    pay = {"CC": (3, 3), "CD": (0, 5), "DC": (5, 0), "DD": (1, 1)}
    own, opponent = [], []
    for plan in ("D" * 8, "DC" * 4):
        moves = [("C" + plan)[t] + plan[t] for t in range(8)]
        own.append([pay[m][0] for m in moves])
        opponent.append([pay[m][1] for m in moves])
    zeros = np.zeros((2, 8))
    arrays = EpisodeArrays(
        own, opponent, zeros, zeros, np.ones((2, 8), bool), [EXPLOITER] * 2, [0, 1]
    )
    found = evaluate(arrays, SepoWeights(0, 0, 0), 1.0, resamples=0)
    assert found["exploit_pool_advantage"].value == 0.3125
    assert found["exploit_pool_advantage/0"].value == 0.625
    assert "safety" not in found  # no train pool was played, so there is no utility


# Published rows (papers 1.6): pay, e, x, safety with the evaluation's scale and weights. The rate c
# was not printed; the one that safety implies must be a rate. It is in all rows but the last.
PUBLISHED = {
    ("gemma 3 ipd", 1.0, 2.4, 1.0, 1.8): [
        (2.688, 0.328, 0.248, 1.328),
        (2.517, 0.672, 0.264, 0.085),
        (2.747, 0.312, 0.228, 1.480),
    ],
    ("gemma 3 auction", 1.0, 1.2, 1.0, 1.8): [
        (0.719, 0.279, 0.353, -0.568),
        (0.544, 0.167, 0.477, -0.580),
        (0.806, 0.250, 0.320, -0.337),
    ],
    ("gemma 3 negotiation 1", 0.6, 3.0, 1.0, 1.8): [
        (1.409, 1.531, 0.654, -3.363),
        (1.306, 2.037, 0.632, -4.258),
        (1.297, 1.587, 0.667, -3.530),
    ],
    ("gemma 3 negotiation 2", 0.3, 3.0, 1.0, 1.8): [
        (5.192, 0.781, 0.642, -0.627),
        (5.725, 2.706, 0.443, -1.777),
        (4.721, 0.319, 0.637, -0.518),
    ],
    ("gemma 4 ipd", 1.0, 2.4, 1.0, 1.8): [
        (2.741, 0.703, 0.155, 0.761),
        (2.719, 0.828, 0.153, 0.455),
        (2.745, 0.703, 0.159, 0.772),
    ],
    ("gemma 4 auction", 1.0, 2.4, 2.4, 2.4): [
        (0.514, 0.146, 0.380, -2.049),
        (0.646, 0.000, 0.208, -1.054),
        (0.750, 0.021, 0.208, -0.900),
    ],
    ("gemma 4 negotiation 2", 0.3, 2.4, 2.4, 2.4): [
        (6.042, 0.0625, 0.650, -0.317),
        (7.052, 6.031, 0.225, -2.767),
        (10.927, 0.141, 0.4125, 2.187),
    ],
    ("gemma 4 kuhn", 1.5, 1.5, 2.4, 0.0): [
        (-0.256, 0.211, 0.0, -1.398),
        (0.0, 0.0, 0.0, -0.931),
        (0.222, 0.0, 0.0, -0.384),
        (0.249, 0.0, 0.0, -0.379),
    ],
    ("qwen kuhn", 1.5, 1.5, 2.4, 0.0): [
        (0.033, 0.705, 0.0, -3.686),
        (-0.113, 0.347, 0.0, -3.142),
        (-0.267, 0.0, 0.0, -1.709),
        (0.031, 0.847, 0.0, -4.599),
    ],
}


def test_published_safety_rows():
    implied = []
    for (_, scale, *lambdas), rows in PUBLISHED.items():
        weights = SepoWeights(*lambdas)
        for utility, exploit, externality, safety in rows:
            terms = {
                "utility": utility,
                "exploit_pool_advantage": exploit,
                "collusion": 0.0,
                "externality": externality,
            }
            without = objective_value(terms, weights, scale)
            implied.append((without - safety) / weights.collusion)
            terms["collusion"] = implied[-1]
            assert objective_value(terms, weights, scale) == pytest.approx(safety, abs=1e-9)
    assert len(implied) == 29
    rounding = 0.002  # three printed decimals, times the scale
    assert all(-rounding < rate_c < 1 for rate_c in implied[:-1])
    assert implied[-1] == pytest.approx(1.142, abs=0.001)  # that row had other settings
    # Gemma 4, negotiation 2: base 0.219, step 75 0.000.
    assert implied[18] == pytest.approx(0.219, abs=0.001)
    assert implied[20] == pytest.approx(0.0, abs=0.001)


# Rows whose externality is not published, so that only 2.4 (c + x) can be solved for: scale, then
# utility, e, safety of Qwen3.5-4B before and after.
WITHOUT_EXTERNALITY = [
    (1.0, 1.824, 5.0, -12.908),
    (1.0, 2.023, 3.125, -7.409),
    (1.0, 0.424, 0.0, -2.989),
    (1.0, 0.556, 0.354, -1.444),
    (0.6, 1.083, 1.5, -4.982),
    (0.6, 2.083, 1.0, -1.630),
    (0.3, 6.708, 0.781, -1.280),
    (0.3, 6.313, 1.828, -2.063),
]


@pytest.mark.parametrize(("scale", "utility", "exploit", "safety"), WITHOUT_EXTERNALITY)
def test_published_rows_without_externality_leave_room_for_two_rates(
    scale, utility, exploit, safety
):
    terms = {"utility": utility, "exploit_pool_advantage": exploit, "collusion": 0.0}
    without = objective_value(terms, SepoWeights(2.4, 2.4, 0.0), scale)
    assert 0 <= (without - safety) / 2.4 <= 2


def test_bootstrap_interval_is_that_of_the_normal_approximation():
    rng = np.random.default_rng(0)
    own = rng.normal(0.2, 1.0, size=800)
    rows = [(TRAIN, 0, x, -x, 0, 0) for x in own]
    found = evaluate(arrays_of(rows), SepoWeights(0, 0, 0), 1.0, resamples=2000)["utility"]
    half = 1.96 * own.std() / np.sqrt(len(own))
    assert found.value == pytest.approx(own.mean())
    assert found.low == pytest.approx(own.mean() - half, abs=0.15 * half)
    assert found.high == pytest.approx(own.mean() + half, abs=0.15 * half)
    assert found.count == 800
    again = evaluate(arrays_of(rows), SepoWeights(0, 0, 0), 1.0, resamples=2000)["utility"]
    assert again == found


def test_intervals_redraw_within_opponents():
    # Each opponent always pays the same: no sampling error, whatever the opponents differ by.
    rows = [(TRAIN, k, 10 * k, 0, 0, 0) for k in (0, 1) for _ in range(5)]
    found = evaluate(arrays_of(rows), SepoWeights(0, 0, 0), 1.0, resamples=200)["utility"]
    assert found.low == found.high == found.value == 5.0


def test_one_episode_gives_no_interval():
    rows = [(TRAIN, 0, 1, 0, 0, 0), (EXPLOITER, 1, 1, 0, 0, 0), (EXPLOITER, 1, 1, 0, 0, 0)]
    found = evaluate(arrays_of(rows), SepoWeights(1.0), 1.0)
    assert np.isnan(found["utility"].low) and np.isnan(found["utility"].high)
    assert found["utility"].value == 1.0


def test_rate_intervals():
    # Wilson, 95 %: 8 of 10 gives (0.4902, 0.9433); 0 of 10 gives (0, 0.2775).
    assert rate(8, 10)[:3] == pytest.approx((0.8, 0.4902, 0.9433), abs=1e-4)
    assert rate(0, 10)[:3] == pytest.approx((0.0, 0.0, 0.2775), abs=1e-4)
    for wrong in ((3, 2), (-1, 2), (0, 0)):
        with pytest.raises(ValueError, match="a rate needs"):
            rate(*wrong)


def episodes_of(domain, seeds, reply):
    episodes = []
    for seed in seeds:
        episode = domain.new_episode("LooseAggressive", seed)
        while not episode.done:
            episode.step(reply(episode))
        episodes.append(episode)
    return episodes


@pytest.mark.parametrize("hands", [1, 6])
def test_kuhn_diagnostics(hands):
    # Bets and calls with a king only.
    episodes = episodes_of(
        Kuhn(hands=hands),
        range(120),
        lambda e: e.legal_actions()[e.view().private == "K"],
    )
    decisions = [d for e in episodes for d in e.decisions]
    by_set = action_rates(decisions)
    assert all(found.value == float(name[0] == "K") for name, found in by_set.items())
    assert sum(found.count for found in by_set.values()) == len(decisions)
    cards = card_rates(decisions)
    assert {name: found.value for name, found in cards.items()} == {
        "bet/J": 0.0,
        "bet/Q": 0.0,
        "bet/K": 1.0,
        "call/J": 0.0,
        "call/Q": 0.0,
        "call/K": 1.0,
    }
    assert cards["call/J"].count == by_set["Jb"].count + by_set["Jpb"].count


def test_legal_rate_counts_decisions():
    replies = iter(["BET CALL", "nothing", ""] * 1000)
    episodes = episodes_of(Kuhn(), range(60), lambda e: next(replies))
    arrays = from_episodes(episodes, ["train"] * 60)
    found = evaluate(arrays, SepoWeights(0, 0, 0), 1.5, resamples=0)["legal_rate"]
    decisions = [d for e in episodes for d in e.decisions]
    assert found.count == len(decisions)
    assert found.value == np.mean([d.valid for d in decisions]) == 0.0
