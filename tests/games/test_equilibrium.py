"""Equilibria of tree games: linear program, CFR, CFR+, and the check behind them."""

import numpy as np
import pytest

from sepo_jax.games import (
    KUHN,
    LEDUC,
    Chance,
    Decision,
    Leaf,
    cfr,
    cfr_plus,
    check_equilibrium,
    compile_game,
    expected_values,
    exploitability,
    from_matrix,
    nash_conv,
    normal_form,
    solve_sequence_form,
    solve_zero_sum,
    tree,
)
from sepo_jax.games.kuhn import equilibrium_policy
from sepo_jax.games.leduc import leduc


def leaf(value):
    return Leaf((value, -value))


def stoc94():
    """The tree of cases 4.2, from the STOC 1994 paper on the sequence form: value 13."""
    after_r = [Decision(0, "L or R", (leaf(a), leaf(b))) for a, b in ((10, 15), (20, -5))]
    hidden = [Decision(1, "s or t", (leaf(a), leaf(b))) for a, b in ((20, 50), (30, 15))]
    branches = (
        (0.2, Decision(0, "l or r", (leaf(5), Decision(1, "after r", after_r)))),
        (0.2, Decision(0, "c or d", (leaf(10), leaf(20)))),
        (0.2, Decision(0, "c or d", hidden)),
        (0.4, leaf(5)),
    )
    return compile_game(Chance(branches), "stoc94")


def stripped_down_poker():
    """Ante 1; the first player, who sees king or queen, raises or folds; the second may meet."""
    cards = {
        card: Decision(0, card, (Decision(1, "raised", (leaf(2 * sign), leaf(1))), leaf(-1)))
        for card, sign in (("king", 1), ("queen", -1))
    }
    return compile_game(
        Chance(((0.5, cards["king"]), (0.5, cards["queen"]))), "stripped_down_poker"
    )


def table(game, rows):
    return np.array([rows[name] for name in game.infoset_names], float)


# F12: value -1/18, NashConv 0, a full distribution everywhere, uniform where the plan never goes.
def test_kuhn():
    solution = solve_sequence_form(KUHN)
    np.testing.assert_allclose(solution.values, [-1 / 18, 1 / 18], atol=1e-12)
    assert 0 <= solution.nash_conv < 1e-8
    np.testing.assert_allclose(solution.policy.sum(axis=1), 1, atol=1e-12)
    assert (solution.policy >= 0).all()
    np.testing.assert_allclose(nash_conv(KUHN, solution.policy), 0, atol=1e-6)
    np.testing.assert_allclose(expected_values(KUHN, solution.policy)[0], -1 / 18, atol=1e-6)


def test_unreached_information_sets_are_uniform():
    later = Decision(0, "after a blunder", (leaf(0), leaf(1), leaf(2)))
    game = compile_game(Decision(0, "start", (leaf(5), Decision(1, "reply", (later, leaf(-3))))))
    policy = solve_sequence_form(game).policy
    np.testing.assert_allclose(policy[game.index("after a blunder")], 1 / 3)
    np.testing.assert_allclose(policy[game.index("start")], [1, 0, 0])


def test_leduc():
    # Value from OpenSpiel's sequence_form_lp_test (cases 4.2); merging suits cannot change it.
    for game in (LEDUC, leduc(merge_suits=True)):
        solution = solve_sequence_form(game)
        np.testing.assert_allclose(solution.values[0], -0.085606424078, atol=1e-9)
        assert solution.nash_conv < 1e-8


# F14: the published tree and its solution; one wrong probability is reported with the gain.
def test_stoc94_tree():
    game = stoc94()
    solution = solve_sequence_form(game)
    np.testing.assert_allclose(solution.values[0], 13, atol=1e-9)
    known = {"l or r": [0, 1], "L or R": [2 / 3, 1 / 3], "c or d": [1 / 3, 2 / 3]}
    known |= {"after r": [5 / 6, 1 / 6], "s or t": [5 / 9, 4 / 9]}
    np.testing.assert_allclose(solution.policy, table(game, known), atol=1e-9)
    corrupted = table(game, known)
    corrupted[game.index("s or t")] += [0.05, -0.05]
    # d instead of c then gains 0.2 (2/3 of the weight already on d): c pays 30 + 0.05 * -30,
    # d pays 15 more times 0.05; the difference 45 * 0.05 weighs 0.2 * 1/3 = 0.15.
    with pytest.raises(ArithmeticError, match=r"gain 0\.15 for player 0.*0 for player 1"):
        check_equilibrium(game, corrupted)


def test_stripped_down_poker():
    game = stripped_down_poker()
    solution = solve_sequence_form(game)
    np.testing.assert_allclose(solution.values[0], 1 / 3, atol=1e-9)
    known = table(game, {"king": [1, 0], "queen": [1 / 3, 2 / 3], "raised": [2 / 3, 1 / 3]})
    np.testing.assert_allclose(solution.policy, known, atol=1e-9)
    # In strategic form: raise always, raise with the king only, with the queen only, never.
    matrix_solution = solve_zero_sum(normal_form(game)[0])
    np.testing.assert_allclose(matrix_solution.row, [1 / 3, 2 / 3, 0, 0], atol=1e-12)
    np.testing.assert_allclose(matrix_solution.col, [2 / 3, 1 / 3], atol=1e-12)


def test_normal_form_value_of_kuhn():
    matrices = normal_form(KUHN)
    np.testing.assert_allclose(solve_zero_sum(matrices[0]).value, -1 / 18, atol=1e-12)
    # F21: Kuhn's seats are not alike.
    with pytest.raises(ValueError, match="not symmetric"):
        solve_zero_sum(matrices[0], col_payoffs=matrices[1], symmetric=True)


@pytest.mark.parametrize("seed", range(0, 24, 2))
def test_random_zero_sum_games(oracle, seed):
    root = oracle.RandomState(seed)
    game = compile_game(root)
    solution = solve_sequence_form(game)
    assert solution.nash_conv < 1e-8
    assert oracle.gains(root, game, solution.policy).max() < 1e-8
    sizes = [len(np.unique(game.infoset_names)), game.num_infosets]
    assert sizes[0] == sizes[1] and solution.policy.shape == game.legal_mask.shape


def test_matrix_games_agree_with_the_matrix_solver():
    payoffs = np.random.default_rng(0).uniform(-1, 1, (5, 4))
    solution = solve_sequence_form(from_matrix(payoffs))
    np.testing.assert_allclose(solution.values[0], solve_zero_sum(payoffs).value, atol=1e-9)
    shifted = from_matrix(payoffs, 3 - payoffs)
    values = solve_sequence_form(shifted).values
    np.testing.assert_allclose(values, [solution.values[0], 3 - solution.values[0]], atol=1e-9)


# F05, F16: general-sum games are checked, not solved.
def test_general_sum_games():
    seller = Decision(1, "seller", (Leaf((1, 1)), Leaf((-1, 2))))
    game = compile_game(Decision(0, "buyer", (Leaf((0, 0)), seller)), "trust")
    with pytest.raises(ValueError, match="trust is general-sum"):
        solve_sequence_form(game)
    assert check_equilibrium(game, [[1, 0], [0.5, 0.5]]).nash_conv == 0
    with pytest.raises(ArithmeticError, match="gain 1 for player 0"):
        check_equilibrium(game, [[1, 0], [1, 0]])
    with pytest.raises(ValueError, match="does not sum to 1"):
        check_equilibrium(game, [[1, 0], [0, 0]])


def test_wrong_plans_never_leave_the_solver(monkeypatch):
    from sepo_jax.games import equilibrium

    plan = equilibrium._optimal_plan

    def corrupted(game, player):
        return np.where(np.arange(13) == 0, 1, 0.3) if player == 0 else plan(game, player)

    monkeypatch.setattr(equilibrium, "_optimal_plan", corrupted)
    with pytest.raises(ArithmeticError, match="not an equilibrium of kuhn_poker"):
        solve_sequence_form(KUHN)


# CFR.


def test_cfr_on_kuhn_after_known_steps():
    # open_spiel #1287: both players update at once and step t averages the policies after updates
    # 1 to t + 1, which is the average that leaves the first (uniform) policy out.
    known = {0: 0.6667, 1: 0.5833, 2: 0.4815, 4: 0.2796, 8: 0.2045}
    for step, value in known.items():
        policy, _ = cfr(KUHN, step + 2, alternating=False, delay=1)
        np.testing.assert_allclose(nash_conv(KUHN, policy), value, atol=5e-5)


def test_first_average_is_the_uniform_policy():
    policy, state = cfr(KUHN, 1)
    np.testing.assert_allclose(policy, KUHN.uniform_policy())
    assert int(state.iteration) == 1


# open_spiel PR #197: exploitability of the average after iterations 0 and 100 of alternating CFR.
def test_cfr_on_leduc():
    policy, state = cfr(LEDUC, 1)
    np.testing.assert_allclose(exploitability(LEDUC, policy), 2.37361, atol=1e-5)
    policy, _ = cfr(LEDUC, 100, state=state)
    np.testing.assert_allclose(exploitability(LEDUC, policy), 0.0939493, atol=2e-4)


def test_cfr_plus_converges_and_continues():
    policy, _ = cfr_plus(KUHN, 400)
    assert float(nash_conv(KUHN, policy)) < 0.01
    np.testing.assert_allclose(expected_values(KUHN, policy)[0], -1 / 18, atol=1e-3)
    _, state = cfr_plus(KUHN, 150)
    continued, _ = cfr_plus(KUHN, 250, state=state)
    np.testing.assert_allclose(continued, policy, atol=1e-6)


def test_cfr_regrets_against_brute_force(oracle):
    # After one step from uniform play the regrets are counterfactual values of deviating once.
    from sepo_jax.games.kuhn import KuhnState

    _, state = cfr(KUHN, 1, alternating=False)
    uniform = np.full((12, 2), 0.5)
    base = oracle.expected(KuhnState(), KUHN, uniform)
    for row in range(12):
        player = KUHN.infoset_players[row]
        own_reach = 0.5 if len(KUHN.infoset_names[row]) == 3 else 1.0
        for action in (0, 1):
            deviation = uniform.copy()
            deviation[row] = np.eye(2)[action]
            change = oracle.expected(KuhnState(), KUHN, deviation)[player] - base[player]
            np.testing.assert_allclose(state.regrets[row, action], change / own_reach, atol=1e-6)


def test_cfr_keeps_off_illegal_actions():
    policy, _ = cfr_plus(leduc(merge_suits=True), 20)
    tree.check_policy(leduc(merge_suits=True), policy)


def test_bad_options():
    with pytest.raises(ValueError, match="linear"):
        cfr(KUHN, 5, average="liner")
    with pytest.raises(ValueError, match="nothing to average"):
        cfr(KUHN, 3, delay=3)


def test_family_member_passes_the_check():
    assert check_equilibrium(KUHN, equilibrium_policy(0.2)).nash_conv < 1e-12


@pytest.mark.parametrize("unit", [1e-30, 1e-9, 1e9, 1e40])
def test_the_unit_of_payoffs_does_not_matter(unit):
    payoffs = np.random.default_rng(0).normal(size=(5, 5))
    solution = solve_sequence_form(from_matrix(payoffs * unit))
    np.testing.assert_allclose(solution.nash_conv / unit, 0, atol=1e-9)
    np.testing.assert_allclose(solution.values[0] / unit, solve_zero_sum(payoffs).value, atol=1e-9)


def test_an_offset_is_no_excuse_for_a_wrong_profile(monkeypatch):
    # 0.02 of gain is small beside payoffs of 1e7, but not beside what is at stake.
    from sepo_jax.games import equilibrium

    monkeypatch.setattr(equilibrium, "_optimal_plan", lambda *_: np.array([1, 0.34, 0.33, 0.33]))
    game = from_matrix(1e7 + np.array([[0, -1, 1], [1, 0, -1], [-1, 1, 0.0]]))
    with pytest.raises(ArithmeticError, match="not an equilibrium"):
        solve_sequence_form(game)


def test_all_zero_tree():
    assert solve_sequence_form(from_matrix(np.zeros((2, 3)))).nash_conv == 0


@pytest.mark.parametrize("player", [0, 1])
def test_players_without_decisions(player):
    game = compile_game(Decision(player, "only", [Leaf((1, -1)), Leaf((2, -2))]))
    for solver in (cfr, cfr_plus):
        policy, _ = solver(game, 1000)
        assert policy[0, 1 - player] > 0.99
    assert solve_sequence_form(game).policy.tolist() == [np.eye(2)[1 - player].tolist()]
    assert cfr(compile_game(Leaf((1, -1))), 3)[0].shape == (0, 1)
