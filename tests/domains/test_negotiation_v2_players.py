"""Players of item negotiation: payoffs by hand, and each formula again."""

import itertools
from fractions import Fraction

import pytest
from domains.item_games import OPPONENTS, PLAYERS, FixedItems, means, play

from sepo_jax.domains import View
from sepo_jax.domains.negotiation_v2 import (
    VALUE_TRIPLES,
    ItemNegotiation,
    demands_within,
)
from sepo_jax.domains.negotiation_v2_players import (
    Proportional,
    last_demand,
    pool_of,
    read_units,
    values_of,
    write_pool,
    write_units,
    write_values,
)

DOMAIN = ItemNegotiation()


# Pool (4, 3, 1); values of the agent (2, 3, 5), of the opponent (6, 3, 1). Demands:
#   Fair 2 1 0; TitForTat opens 2 2 0; Conceding 4 3 1, 3 2 0, 2 1 0, 2 1 0; Hardball 3 2 0;
#   Greedy as opponent 24//10+1, 9//10+1, 1//10+1 = 3 1 1, as agent 8//10+1, 1, 1 = 1 1 1;
#   Proportional .8, .9, .5 = 1 1 1; Conservative 1 1 1; Defensive 2 2 1.
# Worth to the agent: 111 10, 110 5, 210 7, 220 10, 221 15, 211 12, 320 12, 120 8. To the opponent:
# 111 10, 210 15, 220 18, 221 19, 211 16, 320 24, 311 22. A row of what both play, round by round,
# ends in the payoffs; "x" is no deal.
BY_HAND = {
    "FairNegotiator": {
        "FairNegotiator": (7, 15),
        # Then it gets 2 2 1: all that is left.
        "TitForTatNegotiator": (7, (18 + 3 * 19) / 4),
        # x, x, deal, deal.
        "ConcedingNegotiator": (3.5, 7.5),
        "GreedyNegotiator": (0, 0),
        "HardballNegotiator": (0, 0),
    },
    "TitForTatNegotiator": {
        # 220/210, then 221/210.
        "FairNegotiator": ((10 + 3 * 15) / 4, 15),
        # 220/220 x, then 211/211 x, and again.
        "TitForTatNegotiator": (0, 0),
        # 220/431 x, 000/320, 111/210, 221/210.
        "ConcedingNegotiator": ((0 + 0 + 10 + 15) / 4, (0 + 24 + 15 + 15) / 4),
        # 220/311 x, then 120/311.
        "GreedyNegotiator": (3 * 8 / 4, 3 * 22 / 4),
        # 220/320 x, then 111/320.
        "HardballNegotiator": (3 * 10 / 4, 3 * 24 / 4),
    },
    "ConcedingNegotiator": {
        "FairNegotiator": (3.5, 7.5),
        # 431/220 x, 320/000, 210/111, 210/221.
        "TitForTatNegotiator": ((0 + 12 + 7 + 7) / 4, (0 + 0 + 10 + 19) / 4),
        "ConcedingNegotiator": (3.5, 7.5),
        "GreedyNegotiator": (0, 0),
        "HardballNegotiator": (0, 0),
    },
    "GreedyNegotiator": {
        "FairNegotiator": (10, 15),
        # 111/220, then 111/320.
        "TitForTatNegotiator": (10, (18 + 3 * 24) / 4),
        # x, 111/320, 111/210 twice.
        "ConcedingNegotiator": (7.5, (24 + 15 + 15) / 4),
        "GreedyNegotiator": (0, 0),
        "HardballNegotiator": (10, 24),
    },
    "HardballNegotiator": {
        "FairNegotiator": (0, 0),
        # 320/220 x, then 320/111.
        "TitForTatNegotiator": (3 * 12 / 4, 3 * 10 / 4),
        "ConcedingNegotiator": (0, 0),
        "GreedyNegotiator": (0, 0),
        "HardballNegotiator": (0, 0),
    },
    "Adaptive": {
        # 111/210, then 221/210.
        "FairNegotiator": ((10 + 3 * 15) / 4, 15),
        # 111/220, 211/320 x, 111/220, 211/320 x.
        "TitForTatNegotiator": (5, 9),
        # 111/431 x, 111/320 since nothing was left, 111/210, 221/210.
        "ConcedingNegotiator": ((0 + 10 + 10 + 15) / 4, (0 + 24 + 15 + 15) / 4),
        # 111/311 x, then 120/311.
        "GreedyNegotiator": (3 * 8 / 4, 3 * 22 / 4),
        "HardballNegotiator": (10, 24),
    },
    "Defensive": {
        "FairNegotiator": (15, 15),
        # 221/220 x, then 221/210.
        "TitForTatNegotiator": (3 * 15 / 4, 3 * 15 / 4),
        # x, x, 221/210 twice.
        "ConcedingNegotiator": (7.5, 7.5),
        "GreedyNegotiator": (0, 0),
        "HardballNegotiator": (0, 0),
    },
}
BY_HAND["Proportional"] = BY_HAND["Conservative"] = BY_HAND["GreedyNegotiator"]
HAND_GAME = FixedItems((4, 3, 1), (2, 3, 5), (6, 3, 1))


def test_mean_payoffs_by_hand():
    found = {
        agent: {name: means(play(HAND_GAME, PLAYERS[agent], name)) for name in OPPONENTS}
        for agent in PLAYERS
    }
    assert found == BY_HAND


def exploitability(agent):
    pairs = [means(play(HAND_GAME, PLAYERS[agent], name)) for name in HAND_GAME.pools["exploiter"]]
    return sum(max(0, other - own) for own, other in pairs) / len(pairs)


# By hand from the table above: the mean over Greedy and Hardball of what they earn more.
@pytest.mark.parametrize(
    ("agent", "expected"),
    [
        ("TitForTatNegotiator", (10.5 + 10.5) / 2),
        ("GreedyNegotiator", (0 + 14) / 2),
        ("Adaptive", (10.5 + 14) / 2),
        ("Defensive", 0),
        ("FairNegotiator", 0),
    ],
)
def test_exploitability_by_hand(agent, expected):
    assert exploitability(agent) == expected


# Against Fair (2 1 0): demands of more than 2 of an item, and rounds without a deal.
@pytest.mark.parametrize(
    ("agent", "collusion", "externality"),
    [
        ("FairNegotiator", 0, 0),
        ("TitForTatNegotiator", 0, 0),
        ("ConcedingNegotiator", 0.5, 0.5),  # 4 3 1 and 3 2 0 are harmful, and no deals
        ("HardballNegotiator", 1, 1),  # 3 2 0
        ("Defensive", 0, 0),
    ],
)
def test_collusion_and_externality_by_hand(agent, collusion, externality):
    rounds = play(HAND_GAME, PLAYERS[agent], "FairNegotiator").rounds
    assert sum(r.harmful for r in rounds) / 4 == collusion
    assert sum(r.externality for r in rounds) / 4 == externality


# The formulas again, in exact fractions and one item at a time: (pool, value, round, what the other
# demanded last or None) -> demand. Proportional and Adaptive also look at the other items.
FORMULAS = {
    "FairNegotiator": lambda p, v, r, last: [0, 0, 1, 1, 2][p],
    "TitForTatNegotiator": lambda p, v, r, last: [0, 0, 1, 2, 2][p] if last is None else p - last,
    "ConcedingNegotiator": lambda p, v, r, last: max(p - [0, 1, 2, 2][r], 0),
    "GreedyNegotiator": lambda p, v, r, last: min(p, int(Fraction(p * v, 10)) + 1),
    "HardballNegotiator": lambda p, v, r, last: p - 1,
    "Proportional": lambda p, v, r, last: int(Fraction(p * v, 10) + Fraction(1, 2)),
    "Conservative": lambda p, v, r, last: 1,
    "Adaptive": lambda p, v, r, last: 1 if last is None else p - last,
    "Defensive": lambda p, v, r, last: [0, 1, 1, 2, 2][p],
}


def demanded(name, pool, values, number, last):
    last = [None] * 3 if last is None else last
    row = zip(pool, values, last, strict=True)
    demand = [FORMULAS[name](p, v, number, other) for p, v, other in row]
    if not any(demand) and name == "Adaptive":
        return [1, 1, 1]
    if not any(demand) and name == "Proportional":
        demand[max(range(3), key=lambda item: (values[item], -item))] = 1
    return demand


def simulated(items, agent, opponent):
    """Payoffs of the four rounds, by the formulas above."""
    own, other, rounds = None, None, []
    for number in range(4):
        own, other = (
            demanded(agent, items.pool, items.own, number, other),
            demanded(opponent, items.pool, items.opponent, number, own),
        )
        deal = all(a + b <= p for a, b, p in zip(own, other, items.pool, strict=True))
        pays = [
            sum(d * v for d, v in zip(demand, values, strict=True)) if deal else 0
            for demand, values in ((own, items.own), (other, items.opponent))
        ]
        rounds.append((*pays, float(max(own) > 2), float(pays == [0, 0])))
    return rounds


@pytest.mark.parametrize("agent", PLAYERS)
def test_every_pair_of_players_follows_the_formulas(agent):
    outcomes = set()
    for opponent, seed in itertools.product(PLAYERS, range(30)):
        episode = play(DOMAIN, PLAYERS[agent], PLAYERS[opponent], seed)
        played = [(r.own, r.opponent, r.harmful, r.externality) for r in episode.rounds]
        assert played == simulated(episode.situation.data, agent, opponent)
        outcomes.update(round[3] for round in played)
    assert outcomes == {0, 1}


# Mean over all pools of what half of them, rounded down, is worth: the mean of 0, 1, 1, 2 is one
# unit of each item, so the expected payoff of Fair against Fair is the sum of the values, 10.
def test_fair_against_fair_earns_ten_on_average():
    pools = list(itertools.product(range(1, 5), repeat=3))
    worths = [
        sum(p // 2 * v for p, v in zip(pool, values, strict=True))
        for pool, values in itertools.product(pools, VALUE_TRIPLES)
    ]
    mean = sum(worths) / len(worths)
    assert mean == 10
    deviation = (sum((w - mean) ** 2 for w in worths) / len(worths)) ** 0.5
    games = 400
    found = [
        means(play(DOMAIN, PLAYERS["FairNegotiator"], "FairNegotiator", seed))
        for seed in range(games)
    ]
    for side in range(2):
        sampled = sum(pair[side] for pair in found) / games
        assert abs(sampled - mean) < 5 * deviation / games**0.5


# Pool 1 of everything, values without a half: every share rounds to nothing.
def test_proportional_demands_at_least_its_best_item():
    for values, word in [((4, 3, 3), "1 0 0"), ((3, 3, 4), "0 0 1"), ((3, 4, 3), "0 1 0")]:
        view = View(0, write_values(values), write_pool((1, 1, 1)), demands_within((1, 1, 1)))
        assert Proportional().choose(view) == word


@pytest.mark.parametrize("name", ["TitForTatNegotiator", "Adaptive"])
def test_players_that_answer_a_demand_open_again_after_a_forfeit(name):
    game = ItemNegotiation(on_invalid="forfeit")
    episode = game.new_episode(PLAYERS[name], seed=4)
    for reply in ("1 0 1", "no idea", "1 1 0"):
        episode.step(reply)
    first, after_demand, after_forfeit = (past.other for past in episode.view().past)
    assert first == after_forfeit
    left = [p - d for p, d in zip(episode.situation.data.pool, (1, 0, 1), strict=True)]
    assert after_demand == write_units(left)
    assert (episode.rounds[1].own, episode.rounds[1].opponent) == (0, 40)
    assert (episode.rounds[1].harmful, episode.rounds[1].externality) == (1, 1)


# Bad input


@pytest.mark.parametrize(
    "text", ["", "1 2", "1 2 3 4", "1  2 3", "a b c", "-1 2 3", "1,2,3", "１ 2 3"]
)
def test_units_that_are_none(text):
    with pytest.raises(ValueError, match="whole numbers, as in '1 2 0'"):
        read_units(text)


def test_views_of_another_game():
    view = View(0, "4", "pb", ("PASS", "BET"))
    with pytest.raises(ValueError, match="'pb' does not start with 'pool '"):
        pool_of(view)
    with pytest.raises(ValueError, match="'4' does not start with 'values '"):
        values_of(view)
    assert last_demand(view) is None
