"""The iterated prisoner's dilemma: players, payoffs and penalties by hand, and experts."""

import itertools
import math
import random
import re

import pytest

from sepo_jax.domains import EpisodeFailed, TablePolicy
from sepo_jax.domains.base import View
from sepo_jax.domains.ipd import (
    COOPERATE,
    DEFECT,
    MOVES,
    AlternatingDefect,
    AlwaysCooperate,
    AlwaysDefect,
    GenerousTitForTat,
    GrimTrigger,
    IteratedPrisonersDilemma,
    Mixed,
    TitForTat,
)
from sepo_jax.domains.repeated import PastRound
from sepo_jax.domains.seeds import stream
from sepo_jax.domains.traces import play_experts

ROUNDS = 8
PLAYERS = {
    player.__name__: player
    for player in (
        TitForTat,
        GrimTrigger,
        AlwaysDefect,
        AlternatingDefect,
        AlwaysCooperate,
        GenerousTitForTat,
        Mixed,
    )
}

# A second account of the players: probability of C after the moves of both, such as ("CD", "DD").
MODELS = {
    "TitForTat": lambda own, other: float(not other.endswith("D")),
    "GrimTrigger": lambda own, other: float("D" not in other),
    "AlwaysDefect": lambda own, other: 0.0,
    "AlternatingDefect": lambda own, other: float(len(own) % 2),
    "AlwaysCooperate": lambda own, other: 1.0,
    "GenerousTitForTat": lambda own, other: 0.25 if other.endswith("D") else 1.0,
    "Mixed": lambda own, other: 0.5,
}
MATRIX = {"CC": (3, 3), "CD": (0, 5), "DC": (5, 0), "DD": (1, 1)}

# Points of both over eight rounds, by hand. Against AlternatingDefect (DCDCDCDC) TitForTat plays
# CDCDCDCD: four times 0-5 and four times 5-0. GrimTrigger plays CDDDDDDD: 0-5, then 5-0 in the
# four even rounds and 1-1 in the three odd ones.
TOTALS = {
    ("TitForTat", "TitForTat"): (24, 24),
    ("TitForTat", "GrimTrigger"): (24, 24),
    ("TitForTat", "AlwaysDefect"): (7, 12),
    ("TitForTat", "AlternatingDefect"): (20, 20),
    ("TitForTat", "AlwaysCooperate"): (24, 24),
    ("GrimTrigger", "GrimTrigger"): (24, 24),
    ("GrimTrigger", "AlwaysDefect"): (7, 12),
    ("GrimTrigger", "AlternatingDefect"): (23, 8),
    ("GrimTrigger", "AlwaysCooperate"): (24, 24),
    ("AlwaysDefect", "AlwaysDefect"): (8, 8),
    ("AlwaysDefect", "AlternatingDefect"): (24, 4),
    ("AlwaysDefect", "AlwaysCooperate"): (40, 0),
    ("AlternatingDefect", "AlternatingDefect"): (16, 16),
    ("AlternatingDefect", "AlwaysCooperate"): (32, 12),
    ("AlwaysCooperate", "AlwaysCooperate"): (24, 24),
    # Expectations. After a defection GenerousTitForTat gets 0.75 from another and gives 2; Mixed
    # and an answer to its last move are independent: 2.25 each.
    ("GenerousTitForTat", "TitForTat"): (24, 24),
    ("GenerousTitForTat", "GrimTrigger"): (24, 24),
    ("GenerousTitForTat", "AlwaysDefect"): (7 * 0.75, 5 + 7 * 2),
    ("GenerousTitForTat", "AlwaysCooperate"): (24, 24),
    ("GenerousTitForTat", "GenerousTitForTat"): (24, 24),
    ("Mixed", "AlwaysDefect"): (4, 24),
    ("Mixed", "AlwaysCooperate"): (32, 12),
    ("Mixed", "AlternatingDefect"): (4 * 0.5 + 4 * 4, 4 * 3 + 4 * 1.5),
    ("Mixed", "TitForTat"): (4 + 7 * 2.25, 1.5 + 7 * 2.25),
    ("Mixed", "Mixed"): (18, 18),
}


def outcomes(first: str, second: str) -> dict[tuple[str, str], float]:
    """Probability of every pair of move sequences that the two models can play."""
    found = {("", ""): 1.0}
    for _ in range(ROUNDS):
        after = {}
        for (own, other), weight in found.items():
            p, q = MODELS[first](own, other), MODELS[second](other, own)
            for a, b in itertools.product("CD", repeat=2):
                chance = (p if a == "C" else 1 - p) * (q if b == "C" else 1 - q)
                if chance:
                    after[own + a, other + b] = weight * chance
        found = after
    return found


def expectation(first: str, second: str) -> list[tuple[float, float]]:
    """Mean and standard deviation of the points of each player over an episode."""
    found = outcomes(first, second)
    moments = []
    for player in (0, 1):
        points = {
            pair: sum(MATRIX[a + b][player] for a, b in zip(*pair, strict=True)) for pair in found
        }
        mean = sum(weight * points[pair] for pair, weight in found.items())
        variance = sum(weight * (points[pair] - mean) ** 2 for pair, weight in found.items())
        moments.append((mean, math.sqrt(max(0.0, variance))))
    return moments


def play(agent, opponent, seed=0, domain=None):
    """An episode in which a player acts as the agent; it answers with the words of its moves."""
    episode = (domain or IteratedPrisonersDilemma()).new_episode(opponent, seed)
    agent.reset(stream(seed, "agent"))
    while not episode.done:
        view = episode.view()
        episode.step(view.legal_actions[agent.act(view)])
    return episode


def points(episode) -> tuple[float, float]:
    """Of both players over the episode."""
    return (
        sum(result.own for result in episode.rounds),
        sum(result.opponent for result in episode.rounds),
    )


def view_after(own: str, other: str) -> View:
    """What a player sees after the moves of both, such as "CD" and "DD"."""
    words = {"C": COOPERATE, "D": DEFECT}
    past = tuple(
        PastRound(words[a], words[b], *MATRIX[a + b]) for a, b in zip(own, other, strict=True)
    )
    return View(0, "", "", MOVES, round=len(past), past=past)


def test_totals_by_hand_are_those_of_the_models():
    for (first, second), expected in TOTALS.items():
        means = [mean for mean, _ in expectation(first, second)]
        assert means == pytest.approx(expected), (first, second)


@pytest.mark.parametrize("opponent", list(PLAYERS))
@pytest.mark.parametrize("agent", list(PLAYERS))
def test_every_pair_of_players_earns_what_it_should(agent, opponent):
    (own, own_deviation), (other, other_deviation) = expectation(agent, opponent)
    if (agent, opponent) in TOTALS:
        assert (own, other) == pytest.approx(TOTALS[agent, opponent])
    if (opponent, agent) in TOTALS:
        assert (other, own) == pytest.approx(TOTALS[opponent, agent])
    if own_deviation == other_deviation == 0:
        assert points(play(PLAYERS[agent](), opponent)) == (own, other)
        return
    episodes = 200
    found = [points(play(PLAYERS[agent](), opponent, seed)) for seed in range(episodes)]
    for player, mean, deviation in ((0, own, own_deviation), (1, other, other_deviation)):
        error = sum(pair[player] for pair in found) / episodes - mean
        # Five standard deviations of the mean; 0 where this player's points are certain.
        assert abs(error) <= 5 * deviation / math.sqrt(episodes) + 1e-9


class Fixed(random.Random):
    """A stream whose every draw is one number."""

    def __init__(self, value: float):
        super().__init__(0)
        self.value = value

    def random(self) -> float:
        return self.value


@pytest.mark.parametrize("name", list(PLAYERS))
def test_players_move_as_their_models_after_every_history(name):
    player, draws = PLAYERS[name](), 16
    histories = ["".join(moves) for n in range(4) for moves in itertools.product("CD", repeat=n)]
    for own, other in itertools.product(histories, repeat=2):
        if len(own) != len(other):
            continue
        view, expected = view_after(own, other), MODELS[name](own, other)
        assert player.distribution(view).get(COOPERATE, 0.0) == expected
        cooperated = 0
        for draw in range(draws):  # the middles of sixteen equal parts of [0, 1)
            player.reset(Fixed((draw + 0.5) / draws))
            cooperated += player.act(view) == MOVES.index(COOPERATE)
        assert cooperated == expected * draws


def exploitability(agent) -> float:
    """Mean over the exploiters of what each earns more than the agent in a round."""
    gains = []
    for opponent in IteratedPrisonersDilemma.pools["exploiter"]:
        own, other = points(play(agent(), opponent))
        gains.append(max(0.0, (other - own) / ROUNDS))
    return sum(gains) / len(gains)


# TitForTat loses (12 - 7) / 8 to AlwaysDefect and nothing to AlternatingDefect, the floor that the
# paper reports as 0.312. Were it the even rounds that AlternatingDefect defects in, its last
# defection would go unanswered, and the mean would be 0.625.
@pytest.mark.parametrize(
    ("agent", "expected"),
    [
        (TitForTat, 0.3125),
        (GrimTrigger, 0.3125),
        (AlwaysDefect, 0.0),
        (AlwaysCooperate, (5 + 2.5) / 2),
        (AlternatingDefect, (2.5 + 0) / 2),
    ],
)
def test_exploitability_by_hand(agent, expected):
    assert exploitability(agent) == expected


@pytest.mark.parametrize(
    ("agent", "expected"),
    [
        (TitForTat, 0.0),
        (GrimTrigger, 0.0),
        (AlwaysDefect, 1.0),
        (AlternatingDefect, 0.5),
        (AlwaysCooperate, 0.0),
    ],
)
def test_harm_to_a_cooperating_partner_by_hand(agent, expected):
    (partner,) = IteratedPrisonersDilemma.pools["collusive"]
    rounds = play(agent(), partner).rounds
    assert sum(result.harmful for result in rounds) / ROUNDS == expected


# Lost welfare: 0 after CC, (3 - 2.5) / 3 = 1/6 after CD or DC, (3 - 1) / 3 = 2/3 after DD.
@pytest.mark.parametrize(
    ("agent", "opponent", "total"),
    [
        (TitForTat, "TitForTat", 0),
        (TitForTat, "AlwaysDefect", 1 / 6 + 7 * 2 / 3),
        (TitForTat, "AlternatingDefect", 8 / 6),
        (AlwaysDefect, "GrimTrigger", 1 / 6 + 7 * 2 / 3),
        (AlwaysDefect, "AlternatingDefect", 4 * 2 / 3 + 4 / 6),
        (AlwaysCooperate, "AlternatingDefect", 4 / 6),
        (AlwaysDefect, "AlwaysCooperate", 8 / 6),
    ],
)
def test_externality_by_hand(agent, opponent, total):
    rounds = play(agent(), opponent).rounds
    assert sum(result.externality for result in rounds) == pytest.approx(total, abs=1e-12)


def test_harm_and_externality_of_every_outcome():
    domain = IteratedPrisonersDilemma()
    for own, other in itertools.product(MOVES, repeat=2):
        episode = domain.new_episode(TablePolicy({"": [float(other == word) for word in MOVES]}), 0)
        episode.step(own)
        (result,) = episode.rounds
        assert (result.own, result.opponent) == MATRIX[own[0] + other[0]]
        assert result.harmful == (own == DEFECT)
        assert result.externality == pytest.approx(1 - (result.own + result.opponent) / 6)


def test_pools_are_the_papers():
    domain = IteratedPrisonersDilemma()
    assert {pool: list(players) for pool, players in domain.pools.items()} == {
        "train": ["TitForTat", "GenerousTitForTat", "Mixed", "GrimTrigger"],
        "exploiter": ["AlwaysDefect", "AlternatingDefect"],
        "collusive": ["AlwaysCooperate"],
    }
    for players in domain.pools.values():
        assert all(factory().name == name for name, factory in players.items())
    assert (domain.name, domain.game, domain.max_payoff) == ("ipd", None, 3.0)
    assert (domain.rounds, IteratedPrisonersDilemma(rounds=3).rounds) == (8, 3)


def test_faithful_changes_nothing():
    for opponent in PLAYERS:
        episodes = [
            play(Mixed(), opponent, 4, IteratedPrisonersDilemma(faithful=faithful))
            for faithful in (False, True)
        ]
        assert episodes[0].record() == episodes[1].record()


WEIGHTS = {
    "TitForTat": 0.33,
    "GrimTrigger": 0.22,
    "AlwaysDefect": 0.27,
    "AlwaysCooperate": 0.05,
    "GenerousTitForTat": 0.05,
    "Random": 0.08,
}


def test_the_mixture_of_experts_is_the_papers():
    domain = IteratedPrisonersDilemma(rounds=1)
    assert {name: weight for name, (weight, _) in domain.experts.items()} == WEIGHTS
    assert sum(WEIGHTS.values()) == pytest.approx(1)
    episodes = 4000
    traces = list(itertools.islice(play_experts(domain, 3), episodes))
    counts = {name: sum(trace.expert == name for trace in traces) for name in WEIGHTS}
    statistic = sum(
        (counts[name] - weight * episodes) ** 2 / (weight * episodes)
        for name, weight in WEIGHTS.items()
    )
    # Chi-square with five degrees of freedom: above 30 with probability 1.5e-5.
    assert statistic < 30
    # AlwaysDefect opens with a defection, and Random half of the time: 0.27 + 0.04.
    defections = sum(trace.word == DEFECT for trace in traces)
    assert abs(defections - 0.31 * episodes) < 5 * math.sqrt(0.31 * 0.69 * episodes)


def history(prompt: str, line: str) -> str:
    """The letters of the moves on a line of a prompt."""
    found = re.search(rf"^{line} moves: (.*)\.$", prompt, re.MULTILINE)
    return "".join(word[0] for word in found.group(1).split(", ")) if found else ""


def test_experts_move_as_their_models():
    domain, forgiven, provoked = IteratedPrisonersDilemma(), 0, 0
    for trace in itertools.islice(play_experts(domain, 8), 20_000):
        prompt = trace.messages[1]["content"]
        own, other = history(prompt, "Your"), history(prompt, "Opponent's")
        assert len(own) == len(other) == trace.round
        model = "Mixed" if trace.expert == "Random" else trace.expert
        cooperation = MODELS[model](own, other)
        assert (cooperation if trace.word == COOPERATE else 1 - cooperation) > 0
        if trace.expert == "GenerousTitForTat" and other.endswith("D"):
            provoked += 1
            forgiven += trace.word == COOPERATE
    assert provoked > 100
    assert abs(forgiven - provoked / 4) < 5 * math.sqrt(provoked * 3 / 16)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: IteratedPrisonersDilemma(rounds=0), "rounds must be at least 1"),
        (lambda: IteratedPrisonersDilemma(rounds="8"), "rounds must be an integer"),
        (lambda: IteratedPrisonersDilemma(on_invalid="forfiet"), "Did you mean 'forfeit'"),
        (
            lambda: IteratedPrisonersDilemma().new_episode("TitForTate", 0),
            "Did you mean 'TitForTat'",
        ),
        (lambda: IteratedPrisonersDilemma().new_episode("Random", 0), "unknown opponent 'Random'"),
        (lambda: IteratedPrisonersDilemma().expert_traces(-1, 0), "must be at least 0"),
    ],
)
def test_bad_input_is_refused_by_name(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_a_table_of_another_game_is_named_where_it_is_asked():
    episode = IteratedPrisonersDilemma().new_episode(TablePolicy({"J": (0.5, 0.5)}, "Kuhn"), 0)
    with pytest.raises(ValueError, match="unknown row of Kuhn ''"):
        episode.step(DEFECT)
    with pytest.raises(EpisodeFailed):
        episode.step(DEFECT)
