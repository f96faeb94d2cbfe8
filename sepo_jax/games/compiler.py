"""From game rules to arrays: walks every history once and keeps only the sequence form.

The rules are any object with the methods of `State`. A *sequence* of a player is the list of its
own (information set, action) choices along a history; under perfect recall the last one names it.
All that best responses and expected values need is, for every pair of sequences, the sum over
terminal histories of chance weight times payoff (von Stengel, "Efficient computation of behavior
strategies", Games and Economic Behavior 14, 1996).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from sepo_jax.games.arrays import ROUNDING
from sepo_jax.games.sequence import PlayerForm, player_form
from sepo_jax.names import unknown

CHANCE = -1  # `State.current_player` at a chance node
NUM_PLAYERS = 2
CHANCE_TOLERANCE = 1e-9
PAYOFF_SUM_TOLERANCE = 1e-9  # relative to `TreeGame.payoff_scale`


class State(Protocol):
    """What a game must offer to be compiled. States never change: `child` returns another one."""

    def is_terminal(self) -> bool: ...

    def current_player(self) -> int:
        """0, 1, or CHANCE (-1)."""

    def legal_actions(self) -> Sequence[int]:
        """Column numbers of the policy table, at least one, at a decision."""

    def chance_outcomes(self) -> Sequence[tuple[int, float]]:
        """(outcome, probability) pairs at a chance node; the probabilities sum to 1."""

    def child(self, action: int) -> "State":
        """The state after an action or a chance outcome."""

    def information_state(self) -> str:
        """Name of the information set of the player to move: all that this player has seen."""

    def returns(self) -> Sequence[float]:
        """Payoff of each player at a terminal state."""


@dataclass(frozen=True, eq=False, repr=False)
class TreeGame:
    """A compiled two-player game.

    Policies are tables [..., infosets, actions] with rows in the order of `infoset_names`; a column
    is an action as `State.legal_actions` numbers it.

    Attributes:
      name: name of the game.
      infoset_names: information sets in the order of their first visit, level by level.
      infoset_players: int[infosets], who decides there.
      legal_mask: bool[infosets, actions].
      payoff_sum: what the two payoffs add up to at every terminal history, or None when it varies.
      payoff_ranges: (lowest, highest) payoff of each player.
      num_histories: nodes of the tree, root and terminal ones included.
      forms: sequence form of each player, see `sequence.PlayerForm`, of payoffs minus `offsets`.
    """

    name: str
    infoset_names: tuple[str, ...]
    infoset_players: np.ndarray
    legal_mask: np.ndarray
    payoff_sum: float | None
    payoff_ranges: tuple[tuple[float, float], tuple[float, float]]
    num_histories: int
    forms: tuple[PlayerForm, PlayerForm]

    def __repr__(self) -> str:
        return (
            f"TreeGame({self.name}: {self.num_infosets} information sets, {self.num_actions} "
            f"actions, {self.num_histories} histories, payoff sum {self.payoff_sum})"
        )

    @property
    def num_infosets(self) -> int:
        return self.legal_mask.shape[0]

    @property
    def num_actions(self) -> int:
        return self.legal_mask.shape[1]

    @property
    def zero_sum(self) -> bool:
        """True where the payoffs add up to 0 at every terminal history."""
        return self.payoff_sum == 0.0

    @property
    def offsets(self) -> tuple[float, float]:
        """Constant that `forms` leave out of each player's payoffs; it shifts values, not gains.

        It is the number of the payoff range that is nearest to 0, so no payoff grows and small
        differences between large payoffs keep their digits.
        """
        first, second = (min(max(low, 0.0), high) for low, high in self.payoff_ranges)
        return first, second

    @property
    def payoff_scale(self) -> float:
        """Largest magnitude of a payoff minus its player's offset."""
        ranges = zip(self.payoff_ranges, self.offsets, strict=True)
        return max(max(high - offset, offset - low) for (low, high), offset in ranges)

    @property
    def largest_payoff(self) -> float:
        """Largest magnitude of a payoff."""
        return max(max(-low, high) for low, high in self.payoff_ranges)

    def index(self, infoset: str) -> int:
        """Row of an information set in policy tables; ValueError for a name the game lacks."""
        try:
            return self.infoset_names.index(infoset)
        except ValueError:
            raise unknown(f"information set of {self.name}", infoset, self.infoset_names) from None

    def uniform_policy(self) -> np.ndarray:
        """Equal probability on every legal action, float32[infosets, actions]."""
        counts = self.legal_mask.sum(axis=1, keepdims=True)
        return (self.legal_mask / np.maximum(counts, 1)).astype(np.float32)


@dataclass(frozen=True)
class _Infoset:
    index: int
    player: int
    actions: tuple[int, ...]
    parent: tuple[int, int] | None  # last own (infoset index, action) before this one
    depth: int  # own decisions before this one


class _Compiler:
    """Level-order walk that collects information sets and the payoff of every pair of sequences."""

    def __init__(self, name: str, max_histories: int):
        self.name = name
        self.max_histories = max_histories
        self.infosets: dict[str, _Infoset] = {}
        self.names: list[str] = []
        self.terminals: list[tuple[tuple, float, float, float]] = []
        self.num_histories = 0

    def walk(self, root: State) -> None:
        # A history is (state, chance weight, last own sequence of each player, path for messages).
        level = [(root, 1.0, (None, None), None)]
        while level:
            self.num_histories += len(level)
            if self.num_histories > self.max_histories:
                raise ValueError(
                    f"{self.name} has more than max_histories={self.max_histories} histories; "
                    "raise the limit if the game is finite and fits in memory"
                )
            following = []
            for history in level:
                following.extend(self._expand(*history))
            level = following

    def _expand(self, state, weight, last, path) -> list[tuple]:
        if state.is_terminal():
            self._add_terminal(state, weight, last, path)
            return []
        player = state.current_player()
        if player == CHANCE:
            outcomes = self._checked_outcomes(state, path)
            return [(state.child(o), weight * p, last, (path, o)) for o, p in outcomes]
        if player not in (0, 1):
            raise ValueError(
                f"{self.name}: player {player} is to move after {_describe_path(path)}; "
                "a game is compiled for players 0 and 1 and chance (-1) only"
            )
        infoset = self._find_infoset(state, player, last[player], path)
        children = []
        for action in infoset.actions:
            sequences = list(last)
            sequences[player] = (infoset.index, action)
            children.append((state.child(action), weight, tuple(sequences), (path, action)))
        return children

    def _find_infoset(self, state, player, parent, path) -> _Infoset:
        name = str(state.information_state())
        actions = tuple(int(action) for action in state.legal_actions())
        known = self.infosets.get(name)
        if known is None:
            if not actions or min(actions) < 0 or len(set(actions)) < len(actions):
                raise ValueError(
                    f"{self.name}: legal actions {list(actions)} at information set {name!r}; "
                    "at least one is needed, all different and not negative"
                )
            depth = 0 if parent is None else self.infosets[self.names[parent[0]]].depth + 1
            known = _Infoset(len(self.names), player, actions, parent, depth)
            self.infosets[name] = known
            self.names.append(name)
            return known
        if known.player != player:
            raise ValueError(
                f"{self.name}: information set {name!r} is used by player {known.player} and by "
                f"player {player}; put the player into the name"
            )
        if set(known.actions) != set(actions):
            raise ValueError(
                f"{self.name}: information set {name!r} has legal actions {sorted(known.actions)} "
                f"in one history and {sorted(actions)} after {_describe_path(path)}; they must be "
                "the same"
            )
        if known.parent != parent:
            raise ValueError(self._recall_message(name, known, parent))
        return known

    def _recall_message(self, name, known, parent) -> str:
        if parent is not None and parent[0] == known.index:
            how = "it is met twice on one path, so the player forgets having acted there"
        else:
            how = (
                f"one history reaches it after {self._describe(known.parent)}, another after "
                f"{self._describe(parent)}, so the player forgets its own past"
            )
        return (
            f"{self.name} has no perfect recall: information set {name!r} of player "
            f"{known.player}: {how}. Give these histories different information states."
        )

    def _describe(self, sequence) -> str:
        if sequence is None:
            return "no own action"
        return f"own action {sequence[1]} at {self.names[sequence[0]]!r}"

    def _checked_outcomes(self, state, path) -> list[tuple[int, float]]:
        outcomes = [(int(outcome), float(p)) for outcome, p in state.chance_outcomes()]
        total = math.fsum(p for _, p in outcomes)
        # Written so that NaN fails.
        if not (abs(total - 1.0) <= CHANCE_TOLERANCE and all(p >= 0.0 for _, p in outcomes)):
            raise ValueError(
                f"{self.name}: chance weights {[p for _, p in outcomes]} after "
                f"{_describe_path(path)} sum to {total}; they must be non-negative and sum to 1"
            )
        return outcomes

    def _add_terminal(self, state, weight, last, path) -> None:
        returns = [float(value) for value in state.returns()]
        if len(returns) != NUM_PLAYERS or not all(map(math.isfinite, returns)):
            raise ValueError(
                f"{self.name}: returns {returns} after {_describe_path(path)}; "
                f"two finite numbers are needed, one a player"
            )
        self.terminals.append((last, weight, *returns))

    def payoff_ranges(self) -> tuple[tuple[float, float], tuple[float, float]]:
        columns = [[terminal[2 + player] for terminal in self.terminals] for player in (0, 1)]
        first, second = ((min(column), max(column)) for column in columns)
        return first, second

    def payoff_sum(self, scale: float, largest: float) -> float | None:
        """The constant that both payoffs add up to, or None."""
        sums = [first + second for *_, first, second in self.terminals]
        low, high = min(sums), max(sums)
        tolerance = PAYOFF_SUM_TOLERANCE * scale + ROUNDING * largest
        # Written so that NaN, from sums that overflow, means general-sum.
        if not high - low <= tolerance:
            return None
        total = (low + high) / 2
        return 0.0 if abs(total) <= tolerance else total

    def payoffs(self, offsets: tuple[float, float]) -> dict[tuple, list[float]]:
        """Payoffs minus offsets, and 1, of every pair of sequences: chance-weighted sums."""
        result: dict[tuple, list[float]] = {}
        for last, weight, first, second in self.terminals:
            entry = result.setdefault(last, [0.0, 0.0, 0.0])
            entry[0] += weight * (first - offsets[0])
            entry[1] += weight * (second - offsets[1])
            entry[2] += weight
        return result


def compile_game(
    root: State, name: str | None = None, *, max_histories: int = 5_000_000
) -> TreeGame:
    """Compiles the game that starts at `root` for exact evaluation.

    Args:
      root: a state with the methods of `State`: two players, chance, finite, perfect recall.
      name: name of the game; the root's class name when left out.
      max_histories: a larger tree is refused, which also stops endless games.

    Raises:
      ValueError: no perfect recall (the information set and the two pasts are named), legal actions
        that differ inside an information set, one name used by both players, a player other than 0
        and 1, chance weights that are negative or do not sum to 1, returns that are not two finite
        numbers, more histories than allowed.
    """
    compiler = _Compiler(name or type(root).__name__, max_histories)
    compiler.walk(root)
    infosets = [compiler.infosets[key] for key in compiler.names]
    num_actions = 1 + max((max(infoset.actions) for infoset in infosets), default=0)
    legal_mask = np.zeros((len(infosets), num_actions), bool)
    for infoset in infosets:
        legal_mask[infoset.index, list(infoset.actions)] = True
    players = np.array([infoset.player for infoset in infosets], np.int32)
    parents: list[Any] = [infoset.parent for infoset in infosets]
    depths = np.array([infoset.depth for infoset in infosets], np.int32)
    game = TreeGame(
        name=compiler.name,
        infoset_names=tuple(compiler.names),
        infoset_players=players,
        legal_mask=legal_mask,
        payoff_sum=None,
        payoff_ranges=compiler.payoff_ranges(),
        num_histories=compiler.num_histories,
        forms=(),
    )
    payoffs = compiler.payoffs(game.offsets)
    forms = tuple(
        player_form(player, players, parents, depths, legal_mask, payoffs)
        for player in range(NUM_PLAYERS)
    )
    payoff_sum = compiler.payoff_sum(game.payoff_scale, game.largest_payoff)
    return replace(game, payoff_sum=payoff_sum, forms=forms)


def _describe_path(path) -> str:
    actions: list[int] = []
    while path is not None:
        path, action = path
        actions.append(action)
    return f"history {actions[::-1]}" if actions else "the start"
