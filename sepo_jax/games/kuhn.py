"""Kuhn poker: three cards, ante 1, one bet of 1 (Kuhn, "A simplified two-person poker", 1950).

Actions: 0 = pass (check or fold), 1 = bet (or call). Information sets are the own card and the
actions so far: "J", "Q", "K" and "Jpb", ... for the first player, "Jp", "Jb", ... for the second.
The value to the first player is -1/18.
"""

from dataclasses import dataclass

import numpy as np

from sepo_jax.games.compiler import CHANCE, TreeGame, compile_game

CARDS = "JQK"
PASS, BET = 0, 1
_DEALS = [(first, second) for first in range(3) for second in range(3) if first != second]
_TERMINAL = ("pp", "bp", "bb", "pbp", "pbb")


@dataclass(frozen=True)
class KuhnState:
    """A history: the deal (first player's card, second's; None before it), actions as p and b."""

    cards: tuple[int, int] | None = None
    actions: str = ""

    def is_terminal(self) -> bool:
        return self.actions in _TERMINAL

    def current_player(self) -> int:
        return CHANCE if self.cards is None else len(self.actions) % 2

    def legal_actions(self) -> tuple[int, int]:
        return (PASS, BET)

    def chance_outcomes(self) -> list[tuple[int, float]]:
        return [(deal, 1 / len(_DEALS)) for deal in range(len(_DEALS))]

    def child(self, action: int) -> "KuhnState":
        if self.cards is None:
            return KuhnState(_DEALS[action])
        return KuhnState(self.cards, self.actions + "pb"[action])

    def information_state(self) -> str:
        return CARDS[self.cards[self.current_player()]] + self.actions

    def returns(self) -> tuple[float, float]:
        if self.actions.endswith("bp"):  # the last bet was not called
            winner, stake = (0, 1.0) if self.actions == "bp" else (1, 1.0)
        else:
            winner = 0 if self.cards[0] > self.cards[1] else 1
            stake = 2.0 if self.actions.endswith("bb") else 1.0
        return (stake, -stake) if winner == 0 else (-stake, stake)


KUHN: TreeGame = compile_game(KuhnState(), "kuhn_poker")


def equilibrium_policy(alpha: float) -> np.ndarray:
    """The equilibrium of Kuhn's family in which the first player bets a Jack with weight alpha.

    The first player bets J with alpha, never Q, K with 3 alpha, and after check-bet calls with J
    never, Q with 1/3 + alpha, K always. The second player has one equilibrium strategy: after a
    check it bets J with 1/3, Q never, K always; it calls with J never, Q with 1/3, K always.

    Args:
      alpha: in [0, 1/3].

    Returns:
      float64[12, 2] in the order of `KUHN.infoset_names`; NashConv 0.

    Raises:
      ValueError: alpha outside [0, 1/3].
    """
    if not 0 <= alpha <= 1 / 3:
        raise ValueError(f"alpha={alpha}; Kuhn's equilibria have alpha in [0, 1/3]")
    bet = {"J": alpha, "Q": 0, "K": 3 * alpha, "Jpb": 0, "Qpb": alpha + 1 / 3, "Kpb": 1}
    bet |= {"Jp": 1 / 3, "Qp": 0, "Kp": 1, "Jb": 0, "Qb": 1 / 3, "Kb": 1}
    return np.array([[1 - bet[name], bet[name]] for name in KUHN.infoset_names])
