"""Tree quantities against independent oracles; general-sum games, bad input, properties."""

from dataclasses import dataclass

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sepo_jax.games import (
    CHANCE,
    KUHN,
    LEDUC,
    Chance,
    Decision,
    Leaf,
    best_response,
    best_response_values,
    cfr,
    compile_game,
    expected_values,
    exploitability,
    from_matrix,
    gains,
    matrix,
    nash_conv,
    normal_form,
    tree,
)
from sepo_jax.games.kuhn import KuhnState, equilibrium_policy

SEEDS = (2, 3, 5, 7, 8, 10, 11, 14)  # odd seeds are general-sum
SMALL_SEEDS = (3, 5, 8, 11, 14)  # few enough pure policies to write out


# Identities and independent oracles.


@pytest.mark.parametrize("seed", SEEDS)
def test_random_games_agree_with_recursion_over_histories(oracle, random_games, seed):
    root, game = random_games[seed]
    for policy in oracle.random_policies(game, 2, seed, pure=0.3):
        np.testing.assert_allclose(
            expected_values(game, policy), oracle.expected(root, game, policy), atol=1e-5
        )
        best = [oracle.best_value(root, game, policy, player) for player in (0, 1)]
        np.testing.assert_allclose(best_response_values(game, policy), best, atol=1e-5)
        np.testing.assert_allclose(gains(game, policy), oracle.gains(root, game, policy), atol=1e-5)
        assert (np.asarray(gains(game, policy)) >= 0).all()


# F02: gains are never negative and equal brute force over pure policies.
@pytest.mark.parametrize("seed", SMALL_SEEDS)
def test_best_responses_equal_brute_force(oracle, random_games, seed):
    root, game = random_games[seed]
    (policy,) = oracle.random_policies(game, 1, seed)
    brute = [oracle.brute_force_best(root, game, policy, player) for player in (0, 1)]
    np.testing.assert_allclose(best_response_values(game, policy), brute, atol=1e-5)


# F02: two histories that print alike, with different continuations.
def test_histories_that_print_alike_are_kept_apart(oracle):
    class Board(Decision):
        def __str__(self):
            return "the same board"

        __repr__ = __str__

    first = Board(0, "x", (Board(1, "y", (Leaf((4, -4)), Leaf((0, 0)))), Leaf((1, -1))))
    second = Board(0, "x", (Board(1, "z", (Leaf((-6, 6)), Leaf((1, -1)))), Leaf((2, -2))))
    root = Chance(((0.5, first), (0.5, second)))
    game = compile_game(root)
    for policy in oracle.random_policies(game, 5, pure=0.3):
        brute = [oracle.brute_force_best(root, game, policy, player) for player in (0, 1)]
        np.testing.assert_allclose(best_response_values(game, policy), brute, atol=1e-6)
        assert (np.asarray(gains(game, policy)) >= 0).all()


@pytest.mark.parametrize("game", [KUHN, LEDUC], ids=["kuhn", "leduc"])
def test_gains_are_best_values_minus_expected_values(oracle, game):
    policy = oracle.random_policies(game, 6, pure=0.2)
    difference = best_response_values(game, policy) - expected_values(game, policy)
    np.testing.assert_allclose(gains(game, policy), difference, atol=2e-5)
    np.testing.assert_allclose(nash_conv(game, policy), gains(game, policy).sum(-1), atol=2e-5)
    conv = nash_conv(game, policy)
    np.testing.assert_allclose(exploitability(game, policy) * 2, conv, rtol=1e-6)


def test_kuhn_agrees_with_recursion(oracle):
    for policy in oracle.random_policies(KUHN, 5, pure=0.3):
        np.testing.assert_allclose(
            gains(KUHN, policy), oracle.gains(KuhnState(), KUHN, policy), atol=1e-6
        )


def test_best_response_reaches_the_best_value(oracle, random_games):
    for game in (KUHN, random_games[5][1], random_games[10][1]):
        policy = oracle.random_policies(game, 3, pure=0.3)
        response = np.asarray(best_response(game, policy))
        assert set(np.unique(response)) <= {0.0, 1.0}
        np.testing.assert_array_equal(response.sum(-1), 1)
        assert not response[:, ~game.legal_mask].any()
        for player in (0, 1):
            own = (game.infoset_players == player)[:, None]
            mixed = np.where(own, response, policy)
            np.testing.assert_allclose(
                expected_values(game, mixed)[..., player],
                best_response_values(game, policy)[..., player],
                atol=1e-5,
            )


def test_best_response_where_the_opponent_never_goes_is_the_first_legal_action():
    inner = Decision(0, "unreached", (Leaf((0, 0)), Leaf((9, -9))))
    game = compile_game(Decision(1, "gate", (Leaf((0, 0)), inner)))
    policy = np.array([[1.0, 0.0], [0.5, 0.5]])
    assert best_response(game, policy)[game.index("unreached")].tolist() == [1, 0]


def test_best_response_to_uniform_kuhn_by_hand():
    # Against uniform play: bet J and Q first (half of the hands fold), check K to let the second
    # player bet; after check-bet call with Q and K; after a check bet all; call with Q and K.
    response = best_response(KUHN, KUHN.uniform_policy())
    bets = {name for name, row in zip(KUHN.infoset_names, response, strict=True) if row[1] == 1}
    assert bets == {"J", "Q", "Jp", "Qp", "Kp", "Qb", "Kb", "Qpb", "Kpb"}


# F21: swapping the seats of a profile of a symmetric game negates the zero-sum value.
def test_swapping_seats(oracle):
    rps = [[0, -1, 1], [1, 0, -1], [-1, 1, 0]]
    game = from_matrix(rps)
    for policy in oracle.random_policies(game, 3):
        swapped = policy[::-1]
        np.testing.assert_allclose(
            expected_values(game, swapped), -expected_values(game, policy), atol=1e-6
        )
        np.testing.assert_allclose(gains(game, swapped), gains(game, policy)[::-1], atol=1e-6)


def test_normal_form_of_kuhn():
    first, second = normal_form(KUHN)
    assert first.shape == second.shape == (64, 64)
    np.testing.assert_allclose(first + second, 0, atol=1e-12)
    # Uniform behaviour is uniform over pure policies: value 1/8.
    np.testing.assert_allclose(first.mean(), 1 / 8, atol=1e-12)
    with pytest.raises(ValueError, match="pure policies"):
        normal_form(LEDUC)


@pytest.mark.parametrize("seed", SMALL_SEEDS)
def test_normal_form_gains(oracle, random_games, seed):
    game = random_games[seed][1]
    matrices = normal_form(game)
    shares = [np.full(size, 1 / size) for size in matrices[0].shape]
    np.testing.assert_allclose(
        gains(game, game.uniform_policy()), matrix.bimatrix_gains(*matrices, *shares), atol=1e-5
    )


# General-sum and constant-sum games.


# F05: per-player gains for the prisoner's dilemma, no exploitability.
def test_general_sum_games():
    game = from_matrix([[5, 0], [10, 1]], [[5, 10], [0, 1]], "prisoners_dilemma")
    profiles = np.array([[[1, 0], [1, 0]], [[0, 1], [0, 1]], [[0.5, 0.5], [0.5, 0.5]]])
    np.testing.assert_allclose(gains(game, profiles), [[5, 5], [0, 0], [1.5, 1.5]], atol=1e-6)
    np.testing.assert_allclose(nash_conv(game, profiles), [10, 0, 3], atol=1e-6)
    assert not game.zero_sum and game.payoff_sum is None
    with pytest.raises(ValueError, match=r"prisoners_dilemma is general-sum.*gains"):
        exploitability(game, profiles)


def test_constant_sum_games():
    shifted = np.array([[1, 0, 2], [2, 1, 0], [0, 2, 1]])  # rock, paper, scissors plus 1
    game = from_matrix(shifted, 2 - shifted)
    assert game.payoff_sum == 2 and not game.zero_sum
    rock = np.array([[1, 0, 0], [1, 0, 0]])
    np.testing.assert_allclose(expected_values(game, rock), [1, 1])
    np.testing.assert_allclose(nash_conv(game, rock), 2)
    np.testing.assert_allclose(exploitability(game, rock), 1)


@dataclass(frozen=True)
class Repeated:
    """Prisoner's dilemma of 5, 0, 10, 1; a further round with 0.875, four rounds at most."""

    moves: tuple[int, ...] = ()
    payoffs: tuple[int, int] = (0, 0)
    rolling: bool = False
    over: bool = False

    def is_terminal(self):
        return self.over

    def current_player(self):
        return CHANCE if self.rolling else len(self.moves) % 2

    def legal_actions(self):
        return (0, 1)

    def chance_outcomes(self):
        return [(0, 0.875), (1, 0.125)]

    def child(self, action):
        if self.rolling:
            last = action == 1 or len(self.moves) == 8
            return Repeated(self.moves, self.payoffs, over=last)
        moves = (*self.moves, action)
        if len(moves) % 2:
            return Repeated(moves, self.payoffs)
        row, col = moves[-2:]
        first, second = ((5, 5), (0, 10)), ((10, 0), (1, 1))
        gain = (first, second)[row][col]
        total = tuple(a + b for a, b in zip(self.payoffs, gain, strict=True))
        return Repeated(moves, total, rolling=True)

    def information_state(self):
        finished = self.moves[: len(self.moves) // 2 * 2]
        return f"player {self.current_player()}: {finished}"

    def returns(self):
        return self.payoffs


def test_repeated_prisoners_dilemma():
    # Uniform play earns 4 a round and round k is played with 0.875^k (cases 4.2 has six rounds:
    # 4 (1 - 0.875^6) / 0.125 = 17.6385498). Defecting always gains (10 + 1) / 2 - 4 = 1.5 a round.
    game = compile_game(Repeated(), "repeated_prisoners_dilemma")
    rounds = (1 - 0.875**4) / 0.125
    np.testing.assert_allclose(
        expected_values(game, game.uniform_policy()), [4 * rounds] * 2, rtol=1e-5
    )
    np.testing.assert_allclose(gains(game, game.uniform_policy()), [1.5 * rounds] * 2, rtol=1e-5)


# F16: Not-trust with Abuse >= 1/2 is an equilibrium, with Honor = 1 the buyer gains 1.
@pytest.mark.parametrize(("abuse", "gain"), [(0.5, 0), (0.75, 0), (1, 0), (0, 1), (0.25, 0.5)])
def test_trust_game(abuse, gain):
    seller = Decision(1, "seller", (Leaf((1, 1)), Leaf((-1, 2))))
    game = compile_game(Decision(0, "buyer", (Leaf((0, 0)), seller)))
    policy = np.array([[1, 0], [1 - abuse, abuse]])
    np.testing.assert_allclose(gains(game, policy), [gain, 0], atol=1e-6)


# Bad input.


# F01: one player's rows alone, or rows of zeros, are no profile.
def test_missing_player_is_refused():
    policy = equilibrium_policy(1 / 5)
    own = KUHN.infoset_players == 0
    with pytest.raises(ValueError, match=r"\[6, 2\].*12 infosets, 2 actions.*missing"):
        nash_conv(KUHN, policy[own])
    with pytest.raises(ValueError, match="Player 1 has no policy at all"):
        nash_conv(KUHN, np.where(own[:, None], policy, 0))


@pytest.mark.parametrize("shape", [(2,), (12, 3), (5, 2, 12)])
def test_wrong_shape_names_both_shapes(shape):
    with pytest.raises(ValueError, match=rf"{list(shape)!r}".replace("[", r"\[") + ".*12 infosets"):
        gains(KUHN, np.ones(shape))
    with pytest.raises(ValueError, match="12 infosets"):
        jax.jit(lambda table: gains(KUHN, table))(np.ones(shape))


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ([np.nan, 1], "NaN"),
        ([np.inf, 0], "NaN or infinity"),
        ([1.5, -0.5], "negative"),
        ([0.5, 0.4], "does not sum to 1"),
        ([0.55, 0.5], "does not sum to 1"),
        ([0, 0], "does not sum to 1"),
    ],
)
def test_bad_rows_are_named(row, fault):
    policies = np.stack([KUHN.uniform_policy()] * 3)
    policies[2, KUHN.index("Kpb")] = row
    for function in (expected_values, best_response, nash_conv, exploitability):
        with pytest.raises(ValueError, match=f"member 2.*'Kpb' of player 0.*{fault}"):
            function(KUHN, policies)


def test_mass_on_illegal_actions_is_refused():
    policy = LEDUC.uniform_policy()
    policy[0] = 1 / 3
    with pytest.raises(ValueError, match=r"illegal action.*legal actions \[1, 2\]"):
        gains(LEDUC, policy)


# Properties.


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 10**6), sharpness=st.sampled_from([0.0, 0.3, 0.8]))
def test_gains_are_never_negative(oracle, seed, sharpness):
    policies = oracle.random_policies(KUHN, 4, seed, pure=sharpness)
    assert (np.asarray(gains(KUHN, policies)) >= 0).all()
    assert (np.asarray(nash_conv(KUHN, policies)) >= -1e-6).all()
    # Nobody can gain more than the range of Kuhn's payoffs.
    assert (np.asarray(gains(KUHN, policies)) <= 4).all()


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 10**6))
def test_mixing_realization_plans_is_convex_in_nash_conv(oracle, seed):
    # NashConv of a zero-sum game is convex in the pair of realization plans.
    one, other = oracle.random_policies(KUHN, 2, seed)
    reach = [tree._passes(KUHN, table[:, :, None], np)[0] for table in (one, other)]
    mixed = np.zeros((12, 2))
    for player, form in enumerate(KUHN.forms):
        plan = (reach[0][player] + reach[1][player])[1:, 0].reshape(-1, 2)
        mixed[form.infosets] = plan / plan.sum(axis=1, keepdims=True)
    pair = nash_conv(KUHN, np.stack([one, other]))
    assert float(nash_conv(KUHN, mixed)) <= float(pair.mean()) + 1e-5


# Large payoffs.


@pytest.mark.parametrize("offset", [1e7, -1e9, 1e12])
def test_an_offset_of_all_payoffs_changes_no_gain(offset):
    # Rock against even play: nothing to gain for the first player, 1 (paper) for the second.
    payoffs = np.array([[0, -1, 1], [1, 0, -1], [-1, 1, 0.0]])
    policy = np.array([[1, 0, 0], [1 / 3] * 3])
    constant_sum = from_matrix(offset + payoffs, 2 - payoffs)
    assert constant_sum.payoff_sum == offset + 2
    general = from_matrix(offset + payoffs, np.diag([0, 0, 5.0]) - payoffs)
    for game in (constant_sum, general):
        np.testing.assert_allclose(nash_conv(game, policy), 1, atol=1e-6)
        np.testing.assert_allclose(gains(game, policy), [0, 1], atol=1e-6)
        np.testing.assert_allclose(expected_values(game, policy)[0], offset, rtol=1e-6)
        np.testing.assert_allclose(best_response_values(game, policy)[0], offset, rtol=1e-6)
        np.testing.assert_array_equal(normal_form(game)[0], offset + payoffs)


@pytest.mark.parametrize("size", [3e38, 1e40])
def test_payoffs_that_could_overflow_are_refused(size):
    game, policy = from_matrix(np.diag([size, -size])), np.array([[0, 1.0], [1, 0]])
    for function in (nash_conv, gains, expected_values, jax.jit(nash_conv, static_argnums=0)):
        with pytest.raises(ValueError, match=r"payoffs of magnitude.*float32"):
            function(game, policy)
    with pytest.raises(ValueError, match=r"payoffs of magnitude.*float32"):
        cfr(game, 1)
    with jax.enable_x64(True):
        np.testing.assert_allclose(nash_conv(game, policy), 2 * size)


def test_policies_of_other_kinds_are_refused():
    with pytest.raises(ValueError, match="policy of type complex"):
        nash_conv(KUHN, KUHN.uniform_policy() + 0j)
    assert nash_conv(from_matrix(np.eye(2)), [[1, 0], [1, 0]]) == 1
