"""Opponents of repeated games that are finite machines: what best responses and searches yield."""

from collections.abc import Sequence

import numpy as np

from sepo_jax.domains.base import View
from sepo_jax.domains.repeated import Strategy
from sepo_jax.names import unknown


class Automaton(Strategy):
    """A deterministic opponent: each state has a move, the agent's reply leads to the next state.

    Args:
      actions: words of the moves.
      outputs: index of the move of each state [states].
      transitions: next state [states, moves + 1] by the agent's move; the last column is for
        a round that the agent forfeited.
      start: state of the first round.
      name: shown in reports.

    Raises:
      ValueError: arrays that are no such machine.
    """

    def __init__(
        self,
        actions: Sequence[str],
        outputs: np.ndarray,
        transitions: np.ndarray,
        start: int = 0,
        name: str = "Automaton",
    ):
        self.actions = tuple(actions)
        self.outputs, self.transitions = np.asarray(outputs), np.asarray(transitions)
        self.start, self._name = int(start), name
        states, moves = len(self.outputs), len(self.actions)
        if self.transitions.shape != (states, moves + 1):
            raise ValueError(
                f"transitions have shape {list(self.transitions.shape)}; expected "
                f"{[states, moves + 1]}: a row a state, a column a move and one for a forfeit"
            )
        for what, values, count in (
            ("outputs", self.outputs, moves),
            ("transitions", self.transitions, states),
            ("start", np.array(self.start), states),
        ):
            whole = np.issubdtype(values.dtype, np.integer)
            if not (whole and (values >= 0).all() and (values < count).all()):
                raise ValueError(f"{what} of {name} must be integers from 0 to {count - 1}")

    @property
    def name(self) -> str:
        """The name it was given."""
        return self._name

    def choose(self, view: View) -> str:
        """The move of the state that the agent's moves so far lead to."""
        state = self.start
        for past in view.past:
            if past.other and past.other not in self.actions:
                raise unknown(f"move against {self.name}", past.other, self.actions)
            # "" stands for a forfeited round, and -1 for its column.
            column = self.actions.index(past.other) if past.other else -1
            state = self.transitions[state, column]
        return self.actions[self.outputs[state]]


def memory_one_machine(
    actions: Sequence[str], replies: np.ndarray, start: int, name: str
) -> Automaton:
    """A machine whose move depends on the last round only; it stays where the agent forfeits.

    Args:
      actions: words of the moves.
      replies: int [A, A], its move by its own last move and the agent's.
      start: its first move.
      name: shown in reports.
    """
    stay = np.arange(len(actions))[:, None]
    return Automaton(actions, stay[:, 0], np.hstack([replies, stay]), start, name)


def sequence_machine(actions: Sequence[str], moves: Sequence[int], name: str) -> Automaton:
    """A machine that plays `moves` over and over, whatever the agent does."""
    following = (np.arange(len(moves)) + 1) % len(moves)
    columns = np.tile(following[:, None], (1, len(actions) + 1))
    return Automaton(actions, np.array(moves), columns, 0, name)
