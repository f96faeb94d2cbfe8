"""Leduc poker: six cards (J, Q, K in two suits), ante 1, two betting rounds, a public card between.

Raises are 2 in the first round and 4 in the second, at most two a round (Southey et al., "Bayes'
bluff: opponent modelling in poker", UAI 2005). A pair with the public card wins, else the higher
rank. Actions: 0 = fold (only facing a raise), 1 = call or check, 2 = raise. Information sets are
"own card:first round" and "own card:first round/public card:second round", with cards such as "Js"
and rounds written in f, c, r. The value to the first player is -0.085606424078.
"""

import functools
from dataclasses import dataclass

from sepo_jax.games.compiler import CHANCE, TreeGame, compile_game

FOLD, CALL, RAISE = 0, 1, 2
RANKS, SUITS = "JQK", "sh"
NUM_CARDS = len(RANKS) * len(SUITS)
ANTE, RAISE_SIZES, MAX_RAISES = 1.0, (2.0, 4.0), 2


def _spent(player: int, rounds: tuple[str, ...]) -> float:
    """Chips `player` has put in; the first player opens both rounds."""
    bets = [ANTE, ANTE]
    for size, actions in zip(RAISE_SIZES, rounds, strict=False):
        for turn, action in enumerate(actions):
            if action in "cr":
                bets[turn % 2] = bets[1 - turn % 2] + (size if action == "r" else 0.0)
    return bets[player]


def _closed(actions: str) -> bool:
    """True when a betting round is over without a fold: a check behind, or a call of a raise."""
    return len(actions) > 1 and actions[-1] == "c"


@dataclass(frozen=True)
class LeducState:
    """A history: cards 2 * rank + suit (both players', then the public one) and actions.

    With `merge_suits` information sets name ranks only: 288 of them in place of 936, and the same
    game for players who ignore suits, which cannot cost them anything.
    """

    cards: tuple[int, ...] = ()
    rounds: tuple[str, ...] = ("",)
    merge_suits: bool = False

    def is_terminal(self) -> bool:
        return self.rounds[-1].endswith("f") or (len(self.rounds) == 2 and _closed(self.rounds[1]))

    def current_player(self) -> int:
        if len(self.cards) < 2 or (len(self.cards) == 2 and _closed(self.rounds[0])):
            return CHANCE
        return len(self.rounds[-1]) % 2

    def legal_actions(self) -> tuple[int, ...]:
        actions = self.rounds[-1]
        fold = (FOLD,) if actions.endswith("r") else ()
        return (*fold, CALL, RAISE) if actions.count("r") < MAX_RAISES else (*fold, CALL)

    def chance_outcomes(self) -> list[tuple[int, float]]:
        left = [card for card in range(NUM_CARDS) if card not in self.cards]
        return [(card, 1 / len(left)) for card in left]

    def child(self, action: int) -> "LeducState":
        if self.current_player() == CHANCE:
            rounds = (*self.rounds, "") if len(self.cards) == 2 else self.rounds
            return LeducState((*self.cards, action), rounds, self.merge_suits)
        rounds = (*self.rounds[:-1], self.rounds[-1] + "fcr"[action])
        return LeducState(self.cards, rounds, self.merge_suits)

    def information_state(self) -> str:
        seen = [self.cards[self.current_player()], *self.cards[2:]]
        return "/".join(
            f"{self._card(card)}:{actions}" for card, actions in zip(seen, self.rounds, strict=True)
        )

    def _card(self, card: int) -> str:
        rank = RANKS[card // 2]
        return rank if self.merge_suits else rank + SUITS[card % 2]

    def returns(self) -> tuple[float, float]:
        actions = self.rounds[-1]
        if actions.endswith("f"):
            loser = (len(actions) - 1) % 2
        else:
            strength = [(card // 2 == self.cards[2] // 2, card // 2) for card in self.cards[:2]]
            if strength[0] == strength[1]:
                return (0.0, 0.0)
            loser = int(strength[1] < strength[0])
        stake = _spent(loser, self.rounds)
        return (-stake, stake) if loser == 0 else (stake, -stake)


@functools.cache
def leduc(*, merge_suits: bool = False) -> TreeGame:
    """Compiled Leduc poker (about 0.1 s, then kept); `merge_suits` as in `LeducState`."""
    return compile_game(LeducState(merge_suits=merge_suits), "leduc_poker")


def __getattr__(name: str) -> TreeGame:
    # LEDUC is compiled on first use so that importing the package stays quick.
    if name == "LEDUC":
        return leduc()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
