"""Small games written out by hand: trees of three kinds of node, and matrix games as trees.

    seller = Decision(1, "seller", (Leaf((1, 1)), Leaf((-1, 2))))
    game = compile_game(Decision(0, "buyer", (Leaf((0, 0)), seller)), "trust")

Nodes of one information set carry the same name; a player never sees what the name does not tell.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sepo_jax.games.compiler import CHANCE, TreeGame, compile_game


@dataclass(frozen=True)
class Leaf:
    """The end of a game, with the payoff of each player."""

    payoffs: tuple[float, float]

    def is_terminal(self) -> bool:
        return True

    def returns(self) -> tuple[float, float]:
        return self.payoffs


@dataclass(frozen=True)
class Decision:
    """`player` chooses one of the children, not knowing more than `infoset` says."""

    player: int
    infoset: str
    children: Sequence["Node"]

    def is_terminal(self) -> bool:
        return False

    def current_player(self) -> int:
        return self.player

    def legal_actions(self) -> range:
        return range(len(self.children))

    def child(self, action: int) -> "Node":
        return self.children[action]

    def information_state(self) -> str:
        return self.infoset


@dataclass(frozen=True)
class Chance:
    """A random move: children with their probabilities."""

    outcomes: Sequence[tuple[float, "Node"]]

    def is_terminal(self) -> bool:
        return False

    def current_player(self) -> int:
        return CHANCE

    def chance_outcomes(self) -> list[tuple[int, float]]:
        return [(index, probability) for index, (probability, _) in enumerate(self.outcomes)]

    def child(self, action: int) -> "Node":
        return self.outcomes[action][1]


Node = Leaf | Decision | Chance


def from_matrix(row_payoffs, col_payoffs=None, name: str = "matrix_game") -> TreeGame:
    """A matrix game as a tree game with information sets "row" and "column".

    Args:
      row_payoffs: [m, n]; col_payoffs: [m, n], or None for the zero-sum game.

    Raises:
      ValueError: not two matrices of the same shape (both are named).
    """
    first = np.asarray(row_payoffs, np.float64)
    second = -first if col_payoffs is None else np.asarray(col_payoffs, np.float64)
    if first.ndim != 2 or first.shape != second.shape:
        raise ValueError(
            f"payoffs of shapes {list(first.shape)} and {list(second.shape)}; expected one [m, n]"
        )
    replies = [
        Decision(1, "column", [Leaf((a, b)) for a, b in zip(*pair, strict=True)])
        for pair in zip(first.tolist(), second.tolist(), strict=True)
    ]
    return compile_game(Decision(0, "row", replies), name)
