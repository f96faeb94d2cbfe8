"""Kuhn poker: rules, information sets, and the table of profiles with known values."""

import numpy as np
import pytest

from sepo_jax.games import KUHN, expected_values, exploitability, gains, nash_conv
from sepo_jax.games.kuhn import BET, PASS, KuhnState, equilibrium_policy


def first_player(name):
    return KUHN.infoset_players[KUHN.index(name)] == 0


def profile(first, second):
    """Rows of player 0 from one table, rows of player 1 from another."""
    return np.where((KUHN.infoset_players == 0)[:, None], first, second)


def constant(action):
    return np.eye(2)[np.full(12, action)]


def histories(state=None):
    state = KuhnState() if state is None else state
    if state.is_terminal():
        yield state
    elif state.cards is None:
        for deal, _ in state.chance_outcomes():
            yield from histories(state.child(deal))
    else:
        for action in state.legal_actions():
            yield from histories(state.child(action))


# B07: every terminal history of every deal, with payoffs written out independently of the rules.
def test_terminal_histories_and_payoffs():
    ends = list(histories())
    assert len(ends) == 6 * 5
    assert KUHN.num_histories == 1 + 6 * 9  # root; per deal "", p, b, pp, pb, bp, bb, pbp, pbb
    for state in ends:
        high = 1 if state.cards[0] > state.cards[1] else -1
        payoff = {"pp": high, "bp": 1, "pbp": -1, "bb": 2 * high, "pbb": 2 * high}[state.actions]
        assert state.returns() == (payoff, -payoff)


# B08: 12 information sets with 12 names, each made of the own card and the public actions only.
def test_information_sets():
    names = {card + past for card in "JQK" for past in ("", "pb", "p", "b")}
    assert len(KUHN.infoset_names) == 12 and set(KUHN.infoset_names) == names
    assert all(first_player(name) == (len(name) % 2 == 1) for name in names)
    seen = {}
    for deal in range(6):
        start = KuhnState().child(deal)
        for past in ("", "pb", "p", "b"):
            state = start
            for letter in past:
                state = state.child("pb".index(letter))
            card = state.cards[state.current_player()]
            seen.setdefault(state.information_state(), set()).add((card, past))
    assert all(len(contents) == 1 for contents in seen.values())


def test_level_order_of_information_sets():
    assert KUHN.infoset_names[:3] == ("J", "Q", "K")
    assert set(KUHN.infoset_names[9:]) == {"Jpb", "Qpb", "Kpb"}


EQUILIBRIUM = equilibrium_policy(1 / 5)
UNIFORM = np.full((12, 2), 0.5)
# Profile, value to the first player, gains (cases 4.2; uniform derived there as 11/12 in all).
PROFILES = {
    "uniform": (UNIFORM, 1 / 8, (3 / 8, 13 / 24)),
    "always pass": (constant(PASS), 0, (1, 1)),
    "always bet": (constant(BET), 0, (1 / 3, 1 / 3)),
    "equilibrium": (EQUILIBRIUM, -1 / 18, (0, 0)),
    "equilibrium against uniform": (profile(EQUILIBRIUM, UNIFORM), 11 / 90, (17 / 45, 8 / 45)),
}


# F03, F20, F22, B07: known values; a proxy that returns 0 for "always bet" would fail here.
@pytest.mark.parametrize("name", PROFILES)
def test_known_profiles(name):
    policy, value, known_gains = PROFILES[name]
    np.testing.assert_allclose(expected_values(KUHN, policy), [value, -value], atol=1e-6)
    np.testing.assert_allclose(gains(KUHN, policy), known_gains, atol=1e-6)
    np.testing.assert_allclose(nash_conv(KUHN, policy), sum(known_gains), atol=1e-6)
    np.testing.assert_allclose(exploitability(KUHN, policy), sum(known_gains) / 2, atol=1e-6)


# F03: what the same profiles give when the best response sees the opponent's card.
@pytest.mark.parametrize(
    ("name", "wrong"),
    [("uniform", 1), ("always pass", 2), ("always bet", 1), ("equilibrium", 5 / 9)],
)
def test_peeking_would_give_another_number(oracle, name, wrong):
    policy = PROFILES[name][0]
    peeking = oracle.gains(KuhnState(), KUHN, policy, peek=True).sum()
    np.testing.assert_allclose(peeking, wrong, atol=1e-9)


@pytest.mark.parametrize("alpha", [0, 0.1, 1 / 5, 0.3, 1 / 3])
def test_family_of_equilibria(alpha):
    policy = equilibrium_policy(alpha)
    np.testing.assert_allclose(expected_values(KUHN, policy)[0], -1 / 18, atol=1e-6)
    np.testing.assert_allclose(gains(KUHN, policy), 0, atol=1e-7)


@pytest.mark.parametrize("alpha", [-0.01, 0.34, float("nan")])
def test_alpha_outside_the_family_is_refused(alpha):
    with pytest.raises(ValueError, match="alpha"):
        equilibrium_policy(alpha)


def test_a_call_of_one_third_with_the_queen_is_no_equilibrium_at_alpha_one_third():
    # Calling with Q at 1/3 in place of 1/3 + alpha = 2/3 lets the second player bluff.
    policy = equilibrium_policy(1 / 3)
    policy[KUHN.index("Qpb")] = [2 / 3, 1 / 3]
    assert float(gains(KUHN, policy)[1]) > 0.01
