"""Repeated games as joint histories: contexts are what episodes show, policies in every form."""

import itertools
import random

import numpy as np
import pytest

from sepo_jax.domains import Kuhn
from sepo_jax.domains.auction import RepeatedAuction
from sepo_jax.domains.ipd import (
    GenerousTitForTat,
    GrimTrigger,
    IteratedPrisonersDilemma,
    Mixed,
    TitForTat,
)
from sepo_jax.domains.negotiation_v1 import SplitBargaining
from sepo_jax.domains.negotiation_v2 import ItemNegotiation
from sepo_jax.domains.repeated import ChanceRefused, Situation, Strategy
from sepo_jax.sepo.histories import (
    all_matches,
    as_policy,
    history_game,
    memory_one,
    move_probabilities,
)

SHORT = IteratedPrisonersDilemma(rounds=3)


class Recorder(Strategy):
    """Plays given moves and keeps the views it was shown."""

    def __init__(self, moves):
        self.moves, self.views = moves, []

    def choose(self, view):
        self.views.append(view)
        return view.legal_actions[self.moves[view.round]]


def contexts_after(game, moves):
    """The one context after (agent's, opponent's) moves."""
    contexts = game.root()
    for own, other in moves:
        contexts = contexts.after(np.array([0]), np.array([own]), np.array([other]))
    return contexts


# Everything else rests on this: a context shows both players what an episode shows them, so its
# prompt is the episode's.
@pytest.mark.parametrize("domain", [IteratedPrisonersDilemma(), SplitBargaining()])
def test_views_of_contexts_are_those_of_episodes(domain):
    game = history_game(domain)
    generator = random.Random(0)
    for seed in range(20):
        moves = [
            (generator.randrange(game.num_actions), generator.randrange(game.num_actions))
            for _ in range(domain.rounds)
        ]
        recorder = Recorder([other for _, other in moves])
        episode = domain.new_episode(lambda kept=recorder: kept, seed)
        shown = episode._opponent
        for number, (own, _) in enumerate(moves):
            contexts = contexts_after(game, moves[:number])
            assert contexts.views() == [episode.view()]
            assert domain.messages(contexts.views()[0]) == episode.messages()
            episode.step(episode.legal_actions()[own])
            assert contexts.views(player=1) == [shown.views[-1]]
        for number, (own, other) in enumerate(moves):
            result = episode.rounds[number]
            assert (result.own, result.opponent, result.harmful, result.externality) == (
                game.own[number, own, other],
                game.opponent[number, own, other],
                game.harmful[number, own, other],
                game.externality[number, own, other],
            )


def test_numbers_of_contexts():
    assert history_game(IteratedPrisonersDilemma()).num_contexts == 21_845 == (4**8 - 1) // 3
    assert history_game(SplitBargaining()).num_contexts == 538_084 == 1 + 81 + 81**2 + 81**3


def test_codes_count_all_histories_in_order():
    game = history_game(SHORT)
    moves = list(itertools.product(itertools.product(range(2), repeat=2), repeat=2))
    codes = [int(contexts_after(game, pair).codes()[0]) for pair in moves]
    assert codes == list(range(16))
    # The first round counts most, the agent's move before the opponent's.
    assert contexts_after(game, [(1, 0), (0, 1)]).codes() == [2 * 4 + 1]


def probabilities_everywhere(policy, domain=SHORT):
    """A policy's rows at all contexts, round by round."""
    game = history_game(domain)
    ask, contexts, rows = as_policy(game, policy), game.root(), []
    for _ in range(domain.rounds):
        rows.append(ask(contexts))
        every = np.nonzero(np.ones((len(contexts), game.num_actions, game.num_actions)))
        contexts = contexts.after(*every)
    return rows


# One policy written four ways: cooperate with 0.9 first, then by both last moves.
def test_all_forms_of_a_policy_are_one():
    replies = np.array([[0.8, 0.3], [0.6, 0.1]])
    function = memory_one([0.9, 0.1], np.stack([replies, 1 - replies], axis=-1))
    rows = probabilities_everywhere(function)
    assert [row.shape for row in rows] == [(1, 2), (4, 2), (16, 2)]
    np.testing.assert_allclose(rows[2][:, 0].reshape(4, 4), np.tile(replies.ravel(), (4, 1)))

    class Written(Strategy):
        def distribution(self, view):
            if not view.past:
                return {"COOPERATE": 0.9, "DEFECT": 0.1}
            last = [int(word == "DEFECT") for word in (view.past[-1].own, view.past[-1].other)]
            share = replies[last[0], last[1]]
            return {"DEFECT": 1 - share, "COOPERATE": share}

    game = history_game(SHORT)
    contexts, table = game.root(), {}
    for row in rows:
        table |= {
            SHORT.observation(view): tuple(values)
            for view, values in zip(contexts.views(), row, strict=True)
        }
        contexts = contexts.after(*np.nonzero(np.ones((len(contexts), 2, 2))))
    assert len(table) == game.num_contexts == 21
    for form in (Written(), rows, table):
        for found, expected in zip(probabilities_everywhere(form), rows, strict=True):
            np.testing.assert_allclose(found, expected, atol=1e-15)


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (7, "a table by observation, a list of arrays by round, a Strategy or a function"),
        ([np.ones((2, 2)) / 2], r"shapes \[\[2, 2\]\]; round 1 of ipd needs \[1, 2\]"),
        ([np.ones((1, 2)) / 2], r"shapes \[\[1, 2\]\]; round 2 of ipd needs \[4, 2\]"),
        ({"1/3": (0.5, 0.5)}, "row of the policy '1/3"),
        (lambda contexts: np.ones((len(contexts), 3)) / 3, r"shape \[1, 3\] for round 1 of ipd"),
        (lambda contexts: np.full((len(contexts), 2), 0.6), "must be probabilities that sum to 1"),
        (lambda contexts: np.full((len(contexts), 2), np.nan), "after the moves .* is .nan, nan"),
        (lambda contexts: np.tile([1.5, -0.5], (len(contexts), 1)), "must be probabilities"),
    ],
)
def test_bad_policies_are_refused(policy, message):
    with pytest.raises(ValueError, match=message):
        probabilities_everywhere(policy)


def test_memory_one_checks_shapes():
    with pytest.raises(ValueError, match=r"shapes \[2\] and \[2, 2\]; expected \[A\] and \[A, A"):
        memory_one([0.5, 0.5], np.ones((2, 2)))


class Pairwise(IteratedPrisonersDilemma):
    """A third move in the second round."""

    def situation(self, seed, number):
        return Situation(("COOPERATE", "DEFECT", "WAIT")[: 3 if number == 1 else 2])


class Lottery(IteratedPrisonersDilemma):
    """Payoffs by a coin."""

    def payoffs(self, situation, own, other, rng):
        return (3.0, 0.0) if rng.random() < 0.5 else (0.0, 3.0)


@pytest.mark.parametrize(
    ("domain", "message"),
    [
        (Kuhn(), "'kuhn' is no repeated game with simultaneous moves"),
        (RepeatedAuction(), "rounds of auction differ from episode to episode"),
        (ItemNegotiation(), "rounds of negotiation_v2 differ from episode to episode"),
        (Pairwise(), "the number of moves of ipd changes"),
        (Lottery(), "payoffs of ipd are drawn at random"),
    ],
)
def test_games_in_which_more_than_moves_counts_are_refused(domain, message):
    with pytest.raises(ValueError, match=message):
        history_game(domain)


# An independent enumeration: every pair of move sequences, probabilities from the strategies'
# rules written anew.
def test_matches_of_generous_against_mixed():
    game = history_game(SHORT)
    found = all_matches(game, as_policy(game, Mixed()), GenerousTitForTat())
    expected = {}
    for own in itertools.product((0, 1), repeat=3):
        for other in itertools.product((0, 1), repeat=3):
            share = 0.5**3
            for number in range(3):
                provoked = number > 0 and own[number - 1] == 1
                share *= (0.25, 0.75)[other[number]] if provoked else float(other[number] == 0)
            if share:
                expected[tuple(zip(own, other, strict=True))] = share
    matches = [tuple(map(tuple, moves)) for moves in found.moves.tolist()]
    assert dict(zip(matches, found.probability, strict=True)) == pytest.approx(expected)
    assert len(matches) == len(expected)


def test_too_many_matches_are_refused():
    game = history_game(SHORT)
    uniform = as_policy(game, Mixed())
    assert len(all_matches(game, uniform, Mixed(), max_matches=64).moves) == 64
    with pytest.raises(ValueError, match=r"more than 63 ways \(64 after round 3 of 3\)"):
        all_matches(game, uniform, Mixed(), max_matches=63)


def test_opponents_that_cannot_be_enumerated_are_refused():
    root = history_game(SHORT).root()

    class Hidden(Strategy):
        def choose(self, view):
            return self.rng.choice(view.legal_actions)

    class Wrong(Strategy):
        def distribution(self, view):
            return {"COOPERAT": 1.0}

    class Short(Strategy):
        def distribution(self, view):
            return {"COOPERATE": 0.5}

    with pytest.raises(ChanceRefused, match="Hidden are random and it gives no `distribution`"):
        move_probabilities(Hidden(), root)
    with pytest.raises(ValueError, match="move of Wrong 'COOPERAT'"):
        move_probabilities(Wrong(), root)
    with pytest.raises(ValueError, match="distributions of Short must be probabilities"):
        move_probabilities(Short(), root)
    with pytest.raises(ValueError, match="gives no `distribution` of its moves"):
        move_probabilities(object(), root)


# The two halves of `Strategy`: one follows from the other.
def test_a_strategys_distribution_and_its_draws_agree():
    game = history_game(IteratedPrisonersDilemma(rounds=2))
    view = contexts_after(game, [(1, 0)]).views(player=1)[0]
    player = GenerousTitForTat()
    player.reset(random.Random(0))
    count = 20_000
    defections = sum(player.choose(view) == "DEFECT" for _ in range(count))
    assert abs(defections / count - 0.75) < 5 * (0.75 * 0.25 / count) ** 0.5
    assert TitForTat().distribution(view) == {"DEFECT": 1.0}
    kept = GrimTrigger()
    kept.reset(stream := random.Random(3))
    assert kept.distribution(view) == {"DEFECT": 1.0} and kept.rng is stream
    with pytest.raises(NotImplementedError, match="Strategy gives neither choose nor distribution"):
        Strategy().distribution(view)
