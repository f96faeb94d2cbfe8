"""Leduc poker: known values, suits merged or not."""

from fractions import Fraction

import numpy as np
import pytest

from sepo_jax.games import LEDUC, expected_values, exploitability, gains, nash_conv
from sepo_jax.games.leduc import LeducState, leduc

MERGED = leduc(merge_suits=True)


def test_sizes():
    assert (LEDUC.num_infosets, LEDUC.num_actions, LEDUC.num_histories) == (936, 3, 9457)
    assert MERGED.num_infosets == 288
    assert LEDUC.zero_sum and MERGED.zero_sum


def test_betting_rules():
    deal = LeducState().child(0).child(5)  # Js against Kh
    assert deal.legal_actions() == (1, 2)
    raised_twice = deal.child(2).child(2)
    assert raised_twice.legal_actions() == (0, 1)
    # Ante 1, raise to 3, raise to 5, fold: the first player loses 3.
    assert raised_twice.child(0).returns() == (-3, 3)
    public = raised_twice.child(1)
    assert public.current_player() == -1 and len(public.chance_outcomes()) == 4
    showdown = public.child(1).child(2).child(1)  # public Jh: the first player has a pair
    assert showdown.is_terminal() and showdown.returns() == (9, -9)  # 5 chips and a raise of 4
    assert deal.child(1).child(1).child(4).child(1).child(1).returns() == (-1, 1)
    assert public.child(1).child(2).information_state() == "Kh:rrc/Jh:r"


# F03: 1709/360 (a published 4.7 and the card-peeking 5.30 are wrong); value and gains of cases 4.2.
@pytest.mark.parametrize("game", [LEDUC, MERGED], ids=["936", "288"])
def test_uniform(game):
    policy = game.uniform_policy()
    np.testing.assert_allclose(expected_values(game, policy)[0], -5 / 64, atol=2e-6)
    np.testing.assert_allclose(gains(game, policy), [693 / 320, 1487 / 576], rtol=1e-6)
    np.testing.assert_allclose(nash_conv(game, policy), 1709 / 360, rtol=1e-6)
    np.testing.assert_allclose(exploitability(game, policy), 2.37361, atol=1e-5)


def test_known_gains_add_up():
    assert Fraction(693, 320) + Fraction(1487, 576) == Fraction(1709, 360)


def test_peeking_would_give_another_number(oracle):
    root = LeducState(merge_suits=True)
    peeking = oracle.gains(root, MERGED, MERGED.uniform_policy().astype(float), peek=True).sum()
    assert abs(peeking - 5.30) < 0.005


def test_fold_or_else_check_first():
    # The first legal action everywhere: fold when one can, else check. NashConv 2 (cases 4.2).
    policy = np.eye(3)[LEDUC.legal_mask.argmax(axis=1)]
    np.testing.assert_allclose(nash_conv(LEDUC, policy), 2, atol=1e-6)


def test_suits_do_not_matter_to_players_who_ignore_them(oracle):
    merged = oracle.random_policies(MERGED, 4, seed=1)
    ranks = [name.replace("s", "").replace("h", "") for name in LEDUC.infoset_names]
    policy = merged[:, [MERGED.index(name) for name in ranks]]
    np.testing.assert_allclose(gains(LEDUC, policy), gains(MERGED, merged), atol=1e-5)
    np.testing.assert_allclose(
        expected_values(LEDUC, policy), expected_values(MERGED, merged), atol=1e-5
    )
