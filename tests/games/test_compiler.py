"""Compiling: what the arrays hold, and every kind of game that is refused."""

import numpy as np
import pytest

from sepo_jax.games import (
    KUHN,
    Chance,
    Decision,
    Leaf,
    compile_game,
    expected_values,
    from_matrix,
    gains,
)


def leaf(value):
    return Leaf((value, -value))


def test_arrays_of_a_small_game():
    reply = [Decision(1, "seen " + move, (leaf(1), leaf(2), leaf(3))) for move in "ab"]
    game = compile_game(Chance(((0.25, Decision(0, "start", reply)), (0.75, leaf(8)))), "small")
    assert game.name == "small"
    assert game.infoset_names == ("start", "seen a", "seen b")
    assert game.infoset_players.tolist() == [0, 1, 1]
    assert game.legal_mask.tolist() == [[True, True, False], [True] * 3, [True] * 3]
    assert (game.num_infosets, game.num_actions, game.num_histories) == (3, 3, 11)
    assert game.zero_sum and game.payoff_sum == 0
    assert game.index("seen a") == 1
    # Uniform replies pay 2: 1/4 * 2 + 3/4 * 8.
    np.testing.assert_allclose(expected_values(game, game.uniform_policy()), [6.5, -6.5], rtol=1e-6)
    assert "3 information sets" in repr(game)


def test_games_are_told_apart_by_identity_and_hashable():
    assert hash(KUHN) == hash(KUHN)
    assert KUHN == KUHN


def test_unknown_information_set_names_the_nearest():
    with pytest.raises(ValueError, match="Jpb"):
        KUHN.index("Jpbb")


def test_game_without_decisions():
    game = compile_game(Chance(((0.5, leaf(1)), (0.5, leaf(3)))))
    policy = game.uniform_policy()
    assert policy.shape == (0, 1)
    np.testing.assert_allclose(expected_values(game, policy), [2, -2])
    np.testing.assert_allclose(gains(game, policy), [0, 0])


def test_game_of_one_player():
    game = compile_game(Decision(1, "only", (leaf(1), leaf(3))))
    np.testing.assert_allclose(gains(game, game.uniform_policy()), [0, 1])


def test_payoff_sum():
    def sum_of(*pairs):
        return compile_game(Decision(0, "x", [Leaf(pair) for pair in pairs])).payoff_sum

    assert sum_of((1, -1), (2, -2)) == 0
    assert sum_of((1, 1), (0, 2)) == 2
    assert sum_of((1, 1), (0, 0)) is None
    assert sum_of((0.1, -0.1), (0.1 + 0.2, -0.3)) == 0  # up to rounding


# Gambit #547 asks for a report of how perfect recall is violated.
def test_forgotten_own_action_is_refused():
    later = [Decision(0, "later", (leaf(k), leaf(-k))) for k in (1, 2)]
    with pytest.raises(
        ValueError, match=r"'later'.*own action 0 at 'first'.*own action 1 at 'first'"
    ):
        compile_game(Decision(0, "first", later))


def test_forgotten_turn_is_refused():
    early = Decision(0, "same", (leaf(1), leaf(2)))
    late = Decision(0, "before", (Decision(0, "same", (leaf(3), leaf(4))), leaf(0)))
    with pytest.raises(ValueError, match=r"'same'.*no own action.*own action 0 at 'before'"):
        compile_game(Chance(((0.5, Decision(1, "other", (early, early))), (0.5, late))))


def test_absent_mindedness_is_refused():
    with pytest.raises(ValueError, match=r"'exit'.*twice on one path"):
        compile_game(Decision(0, "exit", (leaf(0), Decision(0, "exit", (leaf(4), leaf(1))))))


def test_different_legal_actions_are_refused():
    wide, narrow = Decision(0, "x", (leaf(0),) * 3), Decision(0, "x", (leaf(0),) * 2)
    with pytest.raises(ValueError, match=r"'x' has legal actions \[0, 1, 2\].*\[0, 1\].*\[1\]"):
        compile_game(Chance(((0.5, wide), (0.5, narrow))))


def test_name_shared_by_players_is_refused():
    with pytest.raises(ValueError, match="'x' is used by player 0 and by player 1"):
        compile_game(Decision(0, "x", (Decision(1, "x", (leaf(0), leaf(1))), leaf(2))))


@pytest.mark.parametrize("player", [2, -2, 7])
def test_other_players_are_refused(player):
    with pytest.raises(ValueError, match=f"player {player} is to move"):
        compile_game(Decision(player, "x", (leaf(0),)))


@pytest.mark.parametrize("weights", [(0.5, 0.4), (1.5, -0.5), (float("nan"), 0.5), (0.6, 0.6)])
def test_bad_chance_weights_are_refused(weights):
    with pytest.raises(ValueError, match=r"chance weights.*sum to"):
        compile_game(Decision(0, "x", (Chance([(w, leaf(0)) for w in weights]), leaf(1))))


@pytest.mark.parametrize("payoffs", [(1.0,), (1.0, 2.0, 3.0), (float("nan"), 0.0), (0.0, np.inf)])
def test_bad_returns_are_refused(payoffs):
    with pytest.raises(ValueError, match="two finite numbers"):
        compile_game(Decision(0, "x", (Leaf(payoffs), leaf(1))))


def test_decision_without_actions_is_refused():
    with pytest.raises(ValueError, match="at least one is needed"):
        compile_game(Decision(0, "x", ()))


def test_too_large_or_endless_games_are_refused():
    class Endless(Decision):
        def child(self, action):
            return Chance(((1.0, self),))

        def information_state(self):
            return "x"

    with pytest.raises(ValueError, match="max_histories=50"):
        compile_game(Chance([(1 / 64, leaf(0))] * 64), max_histories=50)
    with pytest.raises(ValueError, match=r"twice on one path|max_histories"):
        compile_game(Endless(0, "x", (leaf(0),)), max_histories=50)


@pytest.mark.parametrize("unit", [1e-10, 1.0, 1e10])
def test_payoff_sum_does_not_depend_on_the_unit(unit):
    dilemma = np.array([[5, 0], [10, 1.0]]) * unit
    assert from_matrix(dilemma, dilemma.T).payoff_sum is None
    np.testing.assert_allclose(from_matrix(dilemma, 3 * unit - dilemma).payoff_sum, 3 * unit)
    assert from_matrix(dilemma).zero_sum


def test_a_small_variation_of_the_sum_beside_a_large_offset_is_seen():
    assert from_matrix(1e7 + np.array([[0, 0.005]]), np.array([[0, 0.0]])).payoff_sum is None
    assert from_matrix(1e7 + np.array([[0, 0.1]]), np.array([[0.3, 0.2]])).payoff_sum is not None
