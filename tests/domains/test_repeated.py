"""What repeated games share: rounds, views, replies that name no move, errors, text, players."""

import copy
import random

import pytest
from domains.doors import WORDS, Doors, Spy, Stays, Wavers, play

from sepo_jax.domains import (
    EpisodeFailed,
    EpisodeFinished,
    PastRound,
    RepeatedGame,
    Round,
    Situation,
    Strategy,
    TablePolicy,
)
from sepo_jax.domains.repeated import ChanceRefused

# Rounds


@pytest.mark.parametrize(("rounds", "expected"), [(None, 3), (1, 1), (7, 7)])
def test_an_episode_has_as_many_rounds_as_asked(rounds, expected):
    game = Doors(rounds=rounds)
    episode = game.new_episode("Stays", 0)
    for number in range(expected):
        assert not episode.done and episode.view().round == number
        assert f"Round {number + 1} of {expected}." in episode.messages()[1]["content"]
        episode.step("LEFT")
    assert episode.done and game.rounds == len(episode.rounds) == expected
    assert [decision.round for decision in episode.decisions] == list(range(expected))
    for ask in (episode.view, episode.messages, episode.legal_actions, lambda: episode.step("")):
        with pytest.raises(EpisodeFinished, match=f"over after {expected} rounds"):
            ask()


def test_a_round_pays_what_the_game_says():
    episode = Doors().new_episode(Spy(0, 1, 2), 4)
    for word in WORDS:
        episode.step(word)
    assert [int(result.own) for result in episode.rounds] == [0, 1, 2]
    assert [result.opponent for result in episode.rounds] == [0, 1, 2]
    assert [result.harmful for result in episode.rounds] == [1, 0, 0]
    assert [result.externality for result in episode.rounds] == [1, 1, 1]


def test_chance_is_that_of_seed_and_round_whatever_is_played():
    def tenths(seed, word, opponent):
        episode = play(Doors(rounds=20).new_episode(opponent, seed), word)
        return [round(result.own % 1, 6) for result in episode.rounds]

    assert tenths(1, "LEFT", "Stays") == tenths(1, "RIGHT", "Wavers")
    assert tenths(1, "LEFT", "Stays") != tenths(2, "LEFT", "Stays")
    assert len(set(tenths(1, "LEFT", "Stays"))) > 4  # the rounds draw apart


# Views


def test_views_hide_the_other_players_secret_and_move():
    views = {}
    for word in WORDS:
        episode = Doors(rounds=2).new_episode(Spy(2, 1), 9)
        own, other = episode.situation.data
        agent = episode.view()
        episode.step(word)
        (opponent,) = episode._opponent.views
        views[word] = opponent
        assert (agent.private, agent.seat) == (f"Your digit: {own}.", 0)
        assert (opponent.private, opponent.seat) == (f"Your digit: {other}.", 1)
        assert agent.history == opponent.history != ""
        assert agent.past == opponent.past == ()
        assert own != other and f"digit: {other}" not in str((agent, episode.decisions))
        assert f"digit: {own}" not in str(opponent)
    assert views["LEFT"] == views["STAY"] == views["RIGHT"]


def test_the_past_of_both_is_the_same_from_either_side():
    episode = Doors(rounds=3).new_episode(Spy(2, 1, 0), 9)
    secrets = []
    for word in ("LEFT", "RIGHT"):
        secrets.append(episode.situation.private)
        episode.step(word)
    own_past = episode.view().past
    episode.step("STAY")
    other_past = episode._opponent.views[-1].past
    pays = [(result.own, result.opponent) for result in episode.rounds]
    assert own_past == (
        PastRound("LEFT", "RIGHT", *pays[0], secrets[0][0]),
        PastRound("RIGHT", "STAY", *pays[1], secrets[1][0]),
    )
    assert other_past == (
        PastRound("RIGHT", "LEFT", *pays[0][::-1], secrets[0][1]),
        PastRound("STAY", "RIGHT", *pays[1][::-1], secrets[1][1]),
    )


# Replies that name no move


@pytest.mark.parametrize("text", ["", "LEFT or RIGHT", "not LEFT", "UP"])
def test_a_fallback_plays_the_move_of_the_game(text):
    class StaysByDefault(Doors):
        def fallback(self, legal):
            return legal.index("STAY")

    for game, action in ((Doors(), 0), (StaysByDefault(), 1)):
        episode = game.new_episode("Stays", 0)
        episode.step(text)
        (decision,) = episode.decisions
        assert (decision.action, decision.valid, decision.text) == (action, False, text)
        assert episode.view().past[0].own == WORDS[action]
        assert int(episode.rounds[0].own) == action


def test_a_forfeit_gives_the_round_away():
    opponent = Spy(2, 2)
    episode = Doors(rounds=2, on_invalid="forfeit").new_episode(opponent, 0)
    episode.step("?")
    assert episode.rounds == [Round(-5.0, 2.0, harmful=1.0, externality=1.0)]
    (decision,) = episode.decisions
    assert (decision.action, decision.valid) == (None, False)
    # The opponent moved, and learns that nothing was played against it.
    (past,) = episode.view().past
    assert (past.own, past.other, past.own_payoff, past.other_payoff) == ("", "RIGHT", -5, 2)
    assert "Your moves: none.\nOpponent's moves: RIGHT." in episode.messages()[1]["content"]
    assert episode.observation.endswith("| -/RIGHT=-5/2")
    episode.step("LEFT")
    (past,) = episode._opponent.views[-1].past
    assert (past.own, past.other, past.own_payoff, past.other_payoff) == ("RIGHT", "", 2, -5)
    assert episode.done and episode.record()["decisions"][0]["action"] is None


def test_a_game_may_say_what_a_forfeit_counts_for():
    class Strict(Doors):
        def forfeited(self, situation, other):
            return Round(-9.0, 1.0, harmful=1.0)

    episode = Strict(on_invalid="forfeit").new_episode("Stays", 0)
    episode.step("")
    assert episode.rounds == [Round(-9.0, 1.0, harmful=1.0)]
    assert episode.view().past[0].own_payoff == -9


# Errors in mid-move


class Illegal(Strategy):
    """Names a move that the game does not have."""

    def choose(self, view):
        return "UP"


def failing(method):
    """A game of which a method raises, from the second round on where it knows the round."""

    def fail(self, *arguments):
        if method == "situation" and arguments[-1] == 0:
            return Doors.situation(self, *arguments)
        raise KeyError("lost")

    return type("Failing", (Doors,), {method: fail})


@pytest.mark.parametrize(
    ("game", "opponent", "error", "message"),
    [
        (Doors, Spy(3), ValueError, r"opponent Spy played 3; allowed: 0 \(LEFT\), 1 \(STAY\)"),
        (Doors, Spy(-1), ValueError, "opponent Spy played -1"),
        (Doors, Spy("LEFT"), ValueError, "opponent Spy played 'LEFT'"),
        (Doors, Spy(None), ValueError, "opponent Spy played None"),
        (Doors, Spy(KeyError("lost")), KeyError, "lost"),
        (Doors, Illegal(), ValueError, "Illegal chose 'UP'; allowed: LEFT, STAY, RIGHT"),
        (Doors, TablePolicy({}), ValueError, "unknown row"),
        (failing("payoffs"), Stays, KeyError, "lost"),
        (failing("score"), Stays, KeyError, "lost"),
        (failing("situation"), Stays, KeyError, "lost"),
    ],
)
def test_an_error_in_mid_move_leaves_the_episode_failed(game, opponent, error, message):
    episode = game().new_episode(opponent, 5)
    with pytest.raises(error, match=message):
        episode.step("LEFT")
    before = (list(episode.decisions), list(episode.rounds), episode.done)
    asks = (episode.view, episode.messages, episode.legal_actions, lambda: episode.observation)
    for ask in (*asks, lambda: episode.step("LEFT")):
        with pytest.raises(EpisodeFailed, match="seed 5"):
            ask()
    assert before == (episode.decisions, episode.rounds, episode.done)
    with pytest.raises(ValueError, match="leaves no record"):
        episode.record()
    assert episode.reset(5).view().round == 0 and not episode.rounds


def test_a_forfeit_fails_with_the_opponent_too():
    episode = Doors(on_invalid="forfeit").new_episode(Spy(7), 0)
    with pytest.raises(ValueError, match="Spy played 7"):
        episode.step("?")
    with pytest.raises(EpisodeFailed):
        episode.step("LEFT")
    assert episode.rounds == []


# Text


def test_the_prompt_is_rules_and_what_happened():
    episode = Doors().new_episode(Spy(2, 1), 6)
    for word in ("LEFT", "RIGHT"):
        episode.step(word)
    first, second = episode.rounds
    system, user = episode.messages()
    assert system == {"role": "system", "content": "Choose a door."}
    assert user["role"] == "user"
    assert user["content"].split("\n") == [
        "Round 3 of 3.",
        "Your moves: LEFT, RIGHT.",
        "Opponent's moves: RIGHT, STAY.",
        f"Your score: {first.own + second.own:g}. Opponent's score: 3.",
        episode.situation.public,
        episode.situation.private[0],
        "Choose LEFT, STAY or RIGHT.",
    ]


@pytest.mark.parametrize(
    ("words", "question"),
    [(("A",), "Choose A."), (("A", "B"), "Choose A or B."), (WORDS, "Choose LEFT, STAY or RIGHT.")],
)
def test_the_question_names_every_move(words, question):
    class Named(Doors):
        def situation(self, seed, number):
            return Situation(words)

    episode = Named().new_episode(Spy(), 0)
    assert episode.messages()[1]["content"] == f"Round 1 of 3.\n{question}"
    assert episode.legal_actions() == words


def test_observations_tell_apart_whatever_differs():
    def after(*replies, seed=0, rounds=3, opponent="Stays"):
        episode = Doors(rounds=rounds, on_invalid="forfeit").new_episode(opponent, seed)
        for text in replies:
            episode.step(text)
        return episode.observation

    different = [
        after(),
        after(seed=1),
        after(rounds=4),
        after("LEFT"),
        after("RIGHT"),
        after("?"),
        after("LEFT", opponent=Spy(2)),
        after("LEFT", "RIGHT"),
        after("RIGHT", "LEFT"),
    ]
    assert len(set(different)) == len(different)
    assert after("LEFT") == after("LEFT") == after("Hm.\nleft", opponent=Spy(1))


def test_reasons_stand_on_one_line():
    for (_, reply), word in zip(
        Doors().expert_traces(20, 0, rationale=True), Doors().expert_traces(20, 0), strict=True
    ):
        assert reply.split("\n")[1] == word[1] in WORDS
        assert word[1] in reply.split("\n")[0]


# Players


def test_a_random_strategy_draws_from_its_distribution():
    player, drawn = Wavers(), []
    player.reset(random.Random(0))
    view = Doors().new_episode("Stays", 0).view()
    for _ in range(2000):
        drawn.append(player.act(view))
    assert set(drawn) == {0, 2}
    # Five standard deviations of a mean of 2000 draws at 1/4.
    assert abs(drawn.count(0) / 2000 - 0.25) < 5 * (0.25 * 0.75 / 2000) ** 0.5
    assert player.name == "Wavers"


def test_a_certain_strategy_has_all_of_its_distribution_on_one_move():
    view = Doors().new_episode("Stays", 0).view()
    assert Stays().distribution(view) == {"STAY": 1.0}
    kept = Stays()
    kept.reset(random.Random(3))
    kept.distribution(view)
    assert kept.rng.random() == random.Random(3).random()


def test_a_strategy_says_what_it_does_not_tell():
    class Guesses(Strategy):
        def choose(self, view):
            return self.rng.choice(view.legal_actions)

    class Empty(Strategy):
        pass

    view = Doors().new_episode("Stays", 0).view()
    with pytest.raises(ChanceRefused, match="Guesses are random and it gives no `distribution`"):
        Guesses().distribution(view)
    with pytest.raises(NotImplementedError, match="Empty gives neither"):
        Empty().act(view)


def test_episodes_share_the_game_and_no_opponent():
    shared = Spy(1, 2, 0)
    game = Doors()
    one, two = game.new_episode(shared, 0), game.new_episode(shared, 0)
    play(two)
    assert not hasattr(shared, "views") and one._opponent.views == []
    one.step("LEFT")
    fork = copy.deepcopy(one)
    assert fork._domain is one._domain is game
    play(fork)
    assert len(one.rounds) == len(one._opponent.views) == 1
    assert play(one).rounds == fork.rounds


def test_reset_repeats_a_seed_and_moves_on_without_one():
    episode = play(Doors().new_episode("Wavers", 2))
    first = episode.record()
    assert play(episode.reset(2)).record() == first
    second = play(episode.reset()).record()
    assert second["seed"] != 2 and second["rounds"] != first["rounds"]


# Bad input


def test_a_game_without_its_rules_names_what_is_missing():
    class Unfinished(RepeatedGame):
        default_rounds = 1

        def rules(self):
            return ""

    with pytest.raises(TypeError, match=r"payoffs.*score.*situation"):
        Unfinished()


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Doors(rounds=0), "rounds must be at least 1, not 0"),
        (lambda: Doors(rounds=2.0), "rounds must be an integer"),
        (lambda: Doors(on_invalid="fallbak"), "Did you mean 'fallback'"),
        (lambda: Doors().new_episode("Stay", 0), "Did you mean 'Stays'"),
        (lambda: Doors().new_episode(7, 0), "an opponent is a name"),
        (lambda: Doors().new_episode("Stays", -1), "seed must be at least 0"),
        (lambda: Doors().new_episode("Stays", None), "seed must be an integer"),
        (lambda: Doors().new_episode("Stays", 0, seat=2), "seat must be 0, 1 or None"),
        (lambda: Doors().new_episode("Stays", 0, seat="0"), "seat must be 0, 1 or None"),
        (lambda: Doors().expert_traces(1.5, 0), "num_decisions must be an integer"),
    ],
)
def test_bad_input_is_refused_by_name(build, message):
    with pytest.raises(ValueError, match=message):
        build()


@pytest.mark.parametrize("seat", [0, 1, None])
def test_a_seat_changes_nothing(seat):
    assert (
        play(Doors().new_episode("Wavers", 0, seat=seat)).record()
        == play(Doors().new_episode("Wavers", 0)).record()
    )
