"""Bidders of the repeated auction: what they play, what they are paid, and the expert traces."""

import itertools
import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest

from sepo_jax.domains import View
from sepo_jax.domains.auction import RepeatedAuction
from sepo_jax.domains.auction_players import (
    BIDS,
    EXPERTS,
    Adaptive,
    AdaptiveBid,
    RandomBid,
    beating_bid,
    own_value,
)
from sepo_jax.domains.repeated import PastRound
from sepo_jax.domains.seeds import stream
from sepo_jax.domains.traces import opponent_names

HALF = Fraction(1, 2)


def fixed(at_two, at_four):
    """Law of a bidder that bids by its value: value and the other's last bid -> {bid: chance}."""
    return lambda value, last: {at_two if value == 2 else at_four: Fraction(1)}


def coin(value, last):
    return {1: HALF, 2: HALF}


def adaptive(value, last):
    return {2 if last is None else min(3, last + 1): Fraction(1)}


def careful(value, last):
    (bid,) = adaptive(value, last)
    return {min(bid, value - 1): Fraction(1)}


def anything(value, last):
    return {bid: Fraction(1, 3) for bid in (1, 2, 3)}


# What each name plays, written down from the paper's account and the choices of the docstrings.
LAWS = {
    "TruthfulBid": fixed(2, 3),
    "ConservativeBid": fixed(1, 2),
    "ShadedBid": fixed(1, 3),
    "AdaptiveBid": adaptive,
    "AggressiveBid": fixed(3, 3),
    "CollusiveLowBid": fixed(1, 1),
}
FAITHFUL_LAWS = LAWS | {
    "TruthfulBid": coin,
    "ConservativeBid": fixed(1, 1),
    "ShadedBid": fixed(1, 1),
}
EXPERT_LAWS = {
    "ValueBid": fixed(1, 2),
    "AggressiveValue": fixed(1, 3),
    "Adaptive": careful,
    "Random": anything,
}


def round_outcomes(values, bids, faithful):
    """(probability, own, opponent, harmful, wasted win) of a round, from the rules alone."""
    chance = HALF if bids[0] == bids[1] else Fraction(int(bids[0] > bids[1]))
    for won, probability in ((True, chance), (False, 1 - chance)):
        profit = values[0] - bids[0] if won else values[1] - bids[1]
        paid = max(0, profit) if faithful else profit
        own, opponent = (paid, 0) if won else (0, paid)
        wasted = own == 0 and bids[0] >= bids[1] if faithful else won and paid <= 0
        yield probability, np.array([own, opponent, bids[0] == 1, wasted])


def expected_means(law, other_law, rounds, faithful):
    """Means a round of own payoff, opponent's payoff, harmful and externality: exact."""
    states, total = {(None, None): Fraction(1)}, np.zeros(4, dtype=object)
    for _ in range(rounds):
        following = Counter()
        for (last, other_last), reach in states.items():
            for values in itertools.product((2, 4), repeat=2):
                laws = law(values[0], other_last), other_law(values[1], last)
                for bid, other in itertools.product(*laws):
                    weight = reach * Fraction(1, 4) * laws[0][bid] * laws[1][other]
                    following[bid, other] += weight
                    for probability, figures in round_outcomes(values, (bid, other), faithful):
                        total = total + weight * probability * figures
        states = following
    return [float(figure) for figure in total / rounds]


class EveryPath:
    """A random stream that takes one path through all draws; `next_path` moves to another."""

    def __init__(self):
        self.path: list[list[int]] = []  # [taken, options] of each draw
        self.rewind()

    def rewind(self):
        self.position, self.probability = 0, 1.0

    def next_path(self) -> bool:
        while self.path and self.path[-1][0] + 1 == self.path[-1][1]:
            self.path.pop()
        if self.path:
            self.path[-1][0] += 1
        self.rewind()
        return bool(self.path)

    def draw(self, options: int) -> int:
        if self.position == len(self.path):
            self.path.append([0, options])
        taken, known = self.path[self.position]
        assert known == options
        self.position += 1
        self.probability /= options
        return taken

    def random(self) -> float:
        return (0.25, 0.75)[self.draw(2)]

    def choice(self, options):
        return options[self.draw(len(options))]

    def choices(self, options, k):
        return [self.choice(options) for _ in range(k)]


def enumerated_means(monkeypatch, domain, player, opponent):
    """The same figures from the package's episodes, over every path of every draw."""
    paths = EveryPath()
    for module in ("base", "repeated", "auction"):
        monkeypatch.setattr(f"sepo_jax.domains.{module}.stream", lambda *labels: paths)
    total, mass = np.zeros(4), 0.0
    episode = domain.new_episode(opponent, seed=0)
    while True:
        paths.rewind()
        agent = player()
        agent.reset(paths)
        episode.reset(0)
        while not episode.done:
            view = episode.view()
            episode.step(view.legal_actions[agent.act(view)])
        for r in episode.rounds:
            total += np.array([r.own, r.opponent, r.harmful, r.externality]) * paths.probability
        mass += paths.probability
        if not paths.next_path():
            break
    assert mass == pytest.approx(1)
    return total / domain.rounds


def players_of(domain) -> dict:
    """Name -> factory of every opponent and expert."""
    pools = {name: factory for pool in domain.pools.values() for name, factory in pool.items()}
    return pools | {name: factory for name, (_, factory) in domain.experts.items()}


@pytest.mark.parametrize("faithful", [False, True])
@pytest.mark.parametrize("name", [*LAWS, *EXPERT_LAWS])
def test_every_pair_is_paid_what_its_bids_say(monkeypatch, name, faithful):
    laws = FAITHFUL_LAWS if faithful else LAWS
    for opponent in opponent_names(RepeatedAuction(faithful=faithful)):
        # Three rounds show a second reaction; the other bidders remember nothing.
        rounds = 3 if "AdaptiveBid" in (name, opponent) and name != "Random" else 2
        domain = RepeatedAuction(rounds=rounds, faithful=faithful)
        law = (laws | EXPERT_LAWS)[name]
        expected = expected_means(law, laws[opponent], rounds, faithful)
        found = enumerated_means(monkeypatch, domain, players_of(domain)[name], opponent)
        np.testing.assert_allclose(found, expected, atol=1e-12, err_msg=opponent)


# By hand, v and w the values of agent and opponent, each 2 or 4 with probability 1/2.
KNOWN = {
    # HIGH beats every LOW: E[v - 3] = 0, and v = 2 wins nothing worth it. Faithful: E[1 or 0].
    ("AggressiveBid", "CollusiveLowBid", False): (0, 0, 0, 1 / 2),
    ("AggressiveBid", "CollusiveLowBid", True): (1 / 2, 0, 0, 1 / 2),
    # Ties: half of that for each. Wasted: wins at v = 2; faithful also each of the ties lost.
    ("AggressiveBid", "AggressiveBid", False): (0, 0, 0, 1 / 4),
    ("AggressiveBid", "AggressiveBid", True): (1 / 4, 1 / 4, 0, 3 / 4),
    # LOW loses to HIGH: E[w - 3], and to MED, which stays the answer to LOW: E[w - 2] = 1.
    ("CollusiveLowBid", "AggressiveBid", False): (0, 0, 1, 0),
    ("CollusiveLowBid", "AggressiveBid", True): (0, 1 / 2, 1, 0),
    ("CollusiveLowBid", "AdaptiveBid", False): (0, 1, 1, 0),
    # LOW ties LOW: E[v - 1] / 2 = 1 each. Faithful counts the ties lost.
    ("CollusiveLowBid", "CollusiveLowBid", False): (1, 1, 1, 0),
    ("CollusiveLowBid", "CollusiveLowBid", True): (1, 1, 1, 1 / 2),
    # MED wins 0 at v = 2, HIGH wins 1 at v = 4.
    ("TruthfulBid", "CollusiveLowBid", False): (1 / 2, 0, 0, 1 / 2),
    # (2, 2): a tie at MED pays 0. (2, 4): w - 3 = 1. (4, 2): 1. (4, 4): a tie at HIGH, 1/2 each.
    ("TruthfulBid", "TruthfulBid", False): (3 / 8, 3 / 8, 0, 1 / 8),
    # (2, 2): a tie at LOW, 1/2 each. (2, 4), (4, 4): HIGH takes 1. (4, 2): MED takes 2.
    ("ConservativeBid", "ShadedBid", False): (5 / 8, 5 / 8, 1 / 2, 0),
    # First round: a tie at MED, E[v - 2] / 2 = 1/2 each; then ties at HIGH as above; two rounds.
    ("AdaptiveBid", "AdaptiveBid", False): (1 / 4, 1 / 4, 0, 1 / 4),
    ("AdaptiveBid", "AdaptiveBid", True): (3 / 8, 3 / 8, 0, 3 / 4),
}


@pytest.mark.parametrize("case", list(KNOWN))
def test_known_answers(monkeypatch, case):
    name, opponent, faithful = case
    domain = RepeatedAuction(rounds=2, faithful=faithful)
    found = enumerated_means(monkeypatch, domain, players_of(domain)[name], opponent)
    np.testing.assert_allclose(found, KNOWN[case], atol=1e-12)


# Exploitability of bidding LOW: 0 and 1 against the two exploiters; faithful rules, in which HIGH
# at value 2 costs nothing, pay AggressiveBid 1/2.
@pytest.mark.parametrize(("faithful", "expected"), [(False, 1 / 2), (True, 3 / 4)])
def test_exploitability_of_low_bids(monkeypatch, faithful, expected):
    domain = RepeatedAuction(faithful=faithful, rounds=2)
    gaps = []
    for opponent in domain.pools["exploiter"]:
        player = players_of(domain)["CollusiveLowBid"]
        own, other, _, _ = enumerated_means(monkeypatch, domain, player, opponent)
        gaps.append(max(0.0, other - own))
    assert np.mean(gaps) == pytest.approx(expected)


@pytest.mark.parametrize(("faithful", "opponent"), [(False, "AdaptiveBid"), (True, "TruthfulBid")])
def test_sampled_episodes_have_the_exact_means(faithful, opponent):
    domain = RepeatedAuction(faithful=faithful)
    laws = FAITHFUL_LAWS if faithful else LAWS
    means = []
    for seed in range(400):
        episode = domain.new_episode(opponent, seed)
        agent = RandomBid()
        agent.reset(stream(seed, "agent"))
        while not episode.done:
            view = episode.view()
            episode.step(view.legal_actions[agent.act(view)])
        means.append(
            np.mean([[r.own, r.opponent, r.harmful, r.externality] for r in episode.rounds], axis=0)
        )
    expected = expected_means(anything, laws[opponent], 6, faithful)
    bound = 5 * np.std(means, axis=0) / math.sqrt(len(means))
    assert np.all(np.abs(np.mean(means, axis=0) - expected) < bound)


def test_pools_are_the_papers():
    for domain in (RepeatedAuction(), RepeatedAuction(faithful=True)):
        assert {pool: list(names) for pool, names in domain.pools.items()} == {
            "train": ["TruthfulBid", "ConservativeBid", "ShadedBid", "AdaptiveBid"],
            "exploiter": ["AggressiveBid", "AdaptiveBid"],
            "collusive": ["CollusiveLowBid"],
        }
        assert (domain.name, domain.game, domain.max_payoff, domain.rounds) == (
            "auction",
            None,
            3,
            6,
        )


def test_corrected_bidders_differ_and_faithful_twins_do_not():
    def plays(domain, name):
        player = players_of(domain)[name]
        return [player().choose(View(1, value, "", BIDS)) for value in "24"]

    names = ["TruthfulBid", "ConservativeBid", "ShadedBid", "AggressiveBid", "CollusiveLowBid"]
    assert len({tuple(plays(RepeatedAuction(), name)) for name in names}) == 5
    faithful = RepeatedAuction(faithful=True)
    assert plays(faithful, "ConservativeBid") == plays(faithful, "ShadedBid") == ["LOW", "LOW"]


@pytest.mark.parametrize(
    ("last", "adaptive_bid", "careful_bids"),
    [
        (None, "MED", ("LOW", "MED")),
        ("", "LOW", ("LOW", "LOW")),
        ("LOW", "MED", ("LOW", "MED")),
        ("MED", "HIGH", ("LOW", "HIGH")),
        ("HIGH", "HIGH", ("LOW", "HIGH")),
    ],
)
def test_adaptive_bids(last, adaptive_bid, careful_bids):
    past = () if last is None else (PastRound("HIGH", "HIGH", 0, 0), PastRound("LOW", last, 0, 0))
    for value, careful_bid in zip("24", careful_bids, strict=True):
        view = View(1, value, "", BIDS, len(past), past)
        assert beating_bid(view) == AdaptiveBid().choose(view) == adaptive_bid
        assert Adaptive().choose(view) == careful_bid
        assert own_value(view) == int(value)


def test_expert_weights_are_the_papers():
    weights = {name: weight for name, (weight, _) in EXPERTS.items()}
    assert weights == {"ValueBid": 0.44, "AggressiveValue": 0.28, "Adaptive": 0.20, "Random": 0.08}
    assert sum(weights.values()) == pytest.approx(1)
    assert RepeatedAuction().experts == EXPERTS


def test_experts_are_drawn_by_their_weights():
    drawn = Counter()

    class Counted(RepeatedAuction):
        experts = {  # noqa: RUF012
            name: (weight, lambda name=name, make=make: drawn.update([name]) or make())
            for name, (weight, make) in EXPERTS.items()
        }

    traces = Counted().expert_traces(6 * 800, seed=2)
    assert traces == RepeatedAuction().expert_traces(6 * 800, seed=2)
    assert drawn.total() == 800
    for name, (weight, _) in EXPERTS.items():
        # Binomial: 4.5 standard deviations.
        assert abs(drawn[name] / 800 - weight) < 4.5 * math.sqrt(weight * (1 - weight) / 800)


def test_first_bids_of_the_traces_follow_the_mixture():
    counts = {value: Counter() for value in "24"}
    for messages, reply in RepeatedAuction().expert_traces(6 * 800, seed=3):
        user = messages[1]["content"]
        if user.startswith("Round 1 of 6."):
            counts[user.split("Your value: ")[1][0]][reply] += 1
    # At value 2 all but Random bid LOW; at 4 ValueBid and Adaptive bid MED, AggressiveValue HIGH.
    third = 0.08 / 3
    shares = {
        "2": {"LOW": 0.92 + third, "MED": third, "HIGH": third},
        "4": {"LOW": third, "MED": 0.64 + third, "HIGH": 0.28 + third},
    }
    for value, expected in shares.items():
        total = counts[value].total()
        assert total > 320
        for bid, share in expected.items():
            bound = 4.5 * math.sqrt(share * (1 - share) / total)
            assert abs(counts[value][bid] / total - share) < bound


@pytest.mark.parametrize("faithful", [False, True])
def test_rationales_are_one_true_line_before_the_same_bids(faithful):
    domain = RepeatedAuction(faithful=faithful)
    traces = domain.expert_traces(300, 5, rationale=True)
    words = [reply for _, reply in domain.expert_traces(300, 5)]
    assert domain.expert_traces(300, 6) != domain.expert_traces(300, 5)
    for (messages, reply), word in zip(traces, words, strict=True):
        reason, bid = reply.split("\n")
        assert bid == word and domain.parse(reply, BIDS) == BIDS.index(word)
        user = messages[1]["content"]
        value = int(user.split("Your value: ")[1][0])
        profit = value - 1 - BIDS.index(word)
        profit = max(0, profit) if faithful else profit
        assert reason.endswith(f"Winning with {word} brings {profit} at my value of {value}.")
        assert ("My opponent bid" in reason) == ("Round 1 " not in user)
    assert len({reply for _, reply in traces}) > 10


@pytest.mark.parametrize("private", ["", "3", "4.0", " 4"])
def test_a_value_of_another_game_is_refused(private):
    with pytest.raises(ValueError, match=r"unknown private value .*Allowed: 2, 4\."):
        own_value(View(0, private, "", BIDS))
    with pytest.raises(ValueError, match="unknown private value"):
        players_of(RepeatedAuction())["TruthfulBid"]().act(View(0, private, "", BIDS))
