"""Item negotiation: rules, corrected and faithful values, episodes."""

import copy
import itertools
import json
import pickle
import random
from collections import Counter

import pytest
from domains.item_games import OPPONENTS, FixedItems, play

from sepo_jax.domains import EpisodeFinished, Played
from sepo_jax.domains.negotiation_v2 import (
    VALUE_TRIPLES,
    ItemNegotiation,
    Items,
    demands_within,
)
from sepo_jax.domains.negotiation_v2_players import (
    Conservative,
    pool_of,
    read_units,
    values_of,
)
from sepo_jax.domains.repeated import Strategy

DOMAIN = ItemNegotiation()


class Watcher(Strategy):
    """Demands one of each and keeps the views it was shown."""

    def __init__(self):
        self.views = []

    def choose(self, view):
        self.views.append(view)
        return "1 1 1"


def test_attributes():
    assert (DOMAIN.name, DOMAIN.game, DOMAIN.max_payoff) == ("negotiation_v2", None, 10.0)
    assert DOMAIN.rounds == 4 and DOMAIN.worst_payoff == 0
    assert {role: list(pool) for role, pool in DOMAIN.pools.items()} == {
        "train": ["FairNegotiator", "TitForTatNegotiator", "ConcedingNegotiator"],
        "exploiter": ["GreedyNegotiator", "HardballNegotiator"],
        "collusive": ["FairNegotiator"],
    }


# Compositions of 10 into three positive parts: choose two of the nine gaps between ten units.
def test_value_triples():
    assert len(VALUE_TRIPLES) == len(set(VALUE_TRIPLES)) == 9 * 8 // 2
    assert all(sum(triple) == 10 and min(triple) >= 1 for triple in VALUE_TRIPLES)


# Chi-square over n cells with n - 1 degrees of freedom has mean n - 1 and variance 2(n - 1); the
# bound lies five standard deviations above the mean.
def assert_uniform(counts, cells):
    total = sum(counts.values())
    assert set(counts) == set(cells)
    expected = total / len(cells)
    statistic = sum((count - expected) ** 2 / expected for count in counts.values())
    assert statistic < len(cells) - 1 + 5 * (2 * (len(cells) - 1)) ** 0.5


def test_pools_and_values_are_uniform_and_independent():
    drawn = [DOMAIN.situation(seed, 0).data for seed in range(4000)]
    pools = list(itertools.product(range(1, 5), repeat=3))
    assert_uniform(Counter(items.pool for items in drawn), pools)
    assert_uniform(Counter(items.own for items in drawn), VALUE_TRIPLES)
    assert_uniform(Counter(items.opponent for items in drawn), VALUE_TRIPLES)
    # First values of both players: the same pairing as the product of their own frequencies.
    joint = Counter((items.own[0] > 2, items.opponent[0] > 2) for items in drawn)
    high = sum(triple[0] > 2 for triple in VALUE_TRIPLES) / 36
    for pair, count in joint.items():
        share = (high if pair[0] else 1 - high) * (high if pair[1] else 1 - high)
        assert abs(count - 4000 * share) < 5 * (4000 * share * (1 - share)) ** 0.5


@pytest.mark.parametrize("pool", [(1, 1, 1), (4, 4, 4), (2, 1, 3)])
def test_actions_are_all_demands_within_the_pool(pool):
    words = demands_within(pool)
    assert len(words) == (pool[0] + 1) * (pool[1] + 1) * (pool[2] + 1) <= 125
    assert set(words) == {
        f"{books} {hats} {balls}"
        for books, hats, balls in itertools.product(range(5), repeat=3)
        if books <= pool[0] and hats <= pool[1] and balls <= pool[2]
    }
    assert list(words) == sorted(words)


# Every pair of demands of a small pool, against the rule written out item by item.
def test_payoffs_of_all_pairs_of_demands():
    items = Items((2, 1, 2), (5, 1, 4), (2, 6, 2))
    situation = FixedItems(items.pool, items.own, items.opponent).situation(0, 0)
    deals = 0
    for own, other in itertools.product(situation.actions, repeat=2):
        (a, b, c), (d, e, f) = map(int, own.split()), map(int, other.split())
        deal = a + d <= 2 and b + e <= 1 and c + f <= 2
        deals += deal
        expected = (5 * a + b + 4 * c, 2 * d + 6 * e + 2 * f) if deal else (0, 0)
        payoffs = DOMAIN.payoffs(situation, own, other, random.Random(0))
        assert payoffs == expected
        scored = DOMAIN.score(situation, own, other, payoffs)
        assert (scored.own, scored.opponent) == expected
        assert scored.externality == (expected == (0, 0))
        assert scored.harmful == 0  # no pool of at most 2 allows harm
    # Pairs that fit one item: 6 of a pool of 2, 3 of a pool of 1.
    assert deals == 6 * 3 * 6


@pytest.mark.parametrize(
    ("word", "harmful"), [("2 2 2", 0), ("3 0 0", 1), ("0 0 3", 1), ("0 4 0", 1), ("0 0 0", 0)]
)
def test_more_than_two_of_an_item_is_harmful(word, harmful):
    situation = FixedItems((4, 4, 4), (3, 3, 4), (3, 3, 4)).situation(0, 0)
    assert DOMAIN.score(situation, word, "0 0 0", (1.0, 0.0)).harmful == harmful


# The scale of 10 is the worth of one of each; the worth of everything is four times that.
def test_a_demand_may_be_worth_more_than_the_scale():
    game = FixedItems((4, 4, 4), (3, 3, 4), (3, 3, 4))
    situation = game.situation(0, 0)
    assert game.payoffs(situation, "1 1 1", "0 0 0", random.Random(0)) == (10, 0)
    assert game.payoffs(situation, "4 4 4", "0 0 0", random.Random(0)) == (40, 0)


def test_demands_of_nothing_pay_nobody():
    situation = FixedItems((1, 1, 1), (3, 3, 4), (3, 3, 4)).situation(0, 0)
    payoffs = DOMAIN.payoffs(situation, "0 0 0", "0 0 0", random.Random(0))
    assert DOMAIN.score(situation, "0 0 0", "0 0 0", payoffs).externality == 1


# Corrected and faithful


def test_corrected_values_stay_and_pay():
    for seed in range(50):
        episode = DOMAIN.new_episode(Watcher(), seed)
        watcher, paid = episode._opponent, episode.situation.data
        while not episode.done:
            assert episode.situation.data == paid
            episode.step("1 1 1")
        for number, view in enumerate(watcher.views):
            assert (values_of(view), pool_of(view)) == (paid.opponent, paid.pool)
            assert (view.seat, view.round) == (1, number)


# Two independent draws of 36 triples are equal one time in 36.
def test_faithful_values_change_and_others_pay():
    game = ItemNegotiation(faithful=True)
    shown_and_paid, in_a_row = [], []
    for seed in range(500):
        situations = [game.situation(seed, number) for number in range(4)]
        paid = [situation.data.opponent for situation in situations]
        shown = [values_written(situation.private[1]) for situation in situations]
        shown_and_paid += [a == b for a, b in zip(shown, paid, strict=True)]
        in_a_row += [a == b for draws in (shown, paid) for a, b in itertools.pairwise(draws)]
        corrected = DOMAIN.situation(seed, 0)
        for situation in situations:
            assert situation.public == corrected.public
            assert situation.private[0] == corrected.private[0]
            assert (situation.data.pool, situation.data.own) == (
                corrected.data.pool,
                corrected.data.own,
            )
    for equal in (shown_and_paid, in_a_row):
        expected = len(equal) / 36
        assert abs(sum(equal) - expected) < 5 * expected**0.5 < expected


def values_written(text):
    return read_units(text.removeprefix("values "))


@pytest.mark.parametrize("faithful", [False, True])
def test_greedy_plays_from_the_values_that_pay_it_only_when_corrected(faithful):
    game, from_paid = ItemNegotiation(faithful=faithful), []
    for seed in range(60):
        episode = game.new_episode("GreedyNegotiator", seed)
        while not episode.done:
            items, shown = episode.situation.data, values_written(episode.situation.private[1])
            episode.step("0 0 0")
            demand = read_units(episode._past[0][-1].other)
            assert demand == greedy(items.pool, shown)
            pays = sum(d * v for d, v in zip(demand, items.opponent, strict=True))
            assert episode.rounds[-1].opponent == pays
            from_paid.append(demand == greedy(items.pool, items.opponent))
    if faithful:
        assert 0.05 < sum(from_paid) / len(from_paid) < 0.6
    else:
        assert all(from_paid)


def greedy(pool, values):
    return tuple(min(p, p * v // 10 + 1) for p, v in zip(pool, values, strict=True))


# Episodes


@pytest.mark.parametrize("name", OPPONENTS)
@pytest.mark.parametrize("faithful", [False, True])
def test_same_seed_same_episode(name, faithful):
    game = ItemNegotiation(faithful=faithful)
    replies = ["1 1 1", "0 0 1", "[1, 0, 1]", "what?"]
    runs = []
    for _ in range(2):
        episode = game.new_episode(name, seed=9)
        for reply in replies:
            episode.step(reply)
        runs.append(episode.record())
    assert runs[0] == runs[1]
    again = episode.reset(9)
    for reply in replies:
        again.step(reply)
    assert again.record() == runs[0]
    assert episode.reset().seed != 9


def test_seeds_give_different_items():
    assert len({DOMAIN.new_episode("FairNegotiator", seed).observation for seed in range(50)}) > 40


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda e: pickle.loads(pickle.dumps(e))])
def test_copies_continue_alike(clone):
    episode = DOMAIN.new_episode("TitForTatNegotiator", seed=2)
    episode.step("1 0 1")
    other = clone(episode)
    for reply in ("0 1 0", "1 1 1", "0 0 0"):
        assert other.messages() == episode.messages()
        episode.step(reply)
        other.step(reply)
    assert other.record() == episode.record()
    # A copy that plays on leaves the first one where it is.
    start = DOMAIN.new_episode("TitForTatNegotiator", seed=2)
    clone(start).step("1 1 1")
    assert not start.rounds and start.view().past == ()


def test_records_are_read_back():
    episode = play(DOMAIN, Conservative, "ConcedingNegotiator", seed=6)
    played = Played.from_record(json.loads(json.dumps(episode.record())))
    assert list(played.rounds) == episode.rounds
    assert [decision.text for decision in played.decisions] == ["1 1 1"] * 4
    assert list(played.decisions) == episode.decisions


def test_an_unparsable_reply_demands_one_of_each():
    for seed in range(20):
        episode = DOMAIN.new_episode("FairNegotiator", seed)
        episode.step("all of them")
        decision = episode.decisions[0]
        assert not decision.valid
        words = demands_within(episode.situation.data.pool)
        assert words[decision.action] == episode.view().past[0].own == "1 1 1"


def test_nothing_follows_the_last_round():
    episode = play(DOMAIN, Conservative, "FairNegotiator")
    with pytest.raises(EpisodeFinished):
        episode.step("1 1 1")


def test_the_number_of_rounds_is_free():
    assert len(play(ItemNegotiation(rounds=7), Conservative, "ConcedingNegotiator").rounds) == 7


# Bad input


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rounds": 0}, "rounds must be at least 1, not 0"),
        ({"rounds": 2.5}, "rounds must be an integer"),
        ({"on_invalid": "fallbak"}, "fallback"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        ItemNegotiation(**options)


def test_unknown_opponent():
    with pytest.raises(ValueError, match="GreedyNegotiator"):
        DOMAIN.new_episode("GreedyNegotiater", 0)


def test_a_demand_outside_the_pool_names_the_player():
    class Impossible(Strategy):
        def choose(self, view):
            return "5 0 0"

    episode = DOMAIN.new_episode(Impossible(), 0)
    with pytest.raises(ValueError, match="Impossible chose '5 0 0'"):
        episode.step("1 1 1")
