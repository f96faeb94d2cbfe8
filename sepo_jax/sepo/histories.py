"""Repeated games with simultaneous moves as trees of joint histories, for exact figures.

A context of the agent is all that both players have moved so far. With A moves there are A^(2t)
contexts before round t (from 0): 21,845 in eight rounds of the prisoner's dilemma, 538,084 in four
rounds of split bargaining. Contexts that the enumerated policies never reach are left out.

This holds for games whose rounds are the same in every episode, known to both players, and whose
moves alone decide the payoffs; `history_game` refuses others.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from sepo_jax.domains.base import Table, View
from sepo_jax.domains.repeated import (
    ChanceRefused,
    NoChance,
    PastRound,
    RepeatedGame,
    Situation,
    Strategy,
)
from sepo_jax.names import unknown

# Episodes whose rounds are compared: a game that draws its rounds shows it in some of them.
_COMPARED_SEEDS = range(8)
_SUM_TOLERANCE = 1e-6


@dataclass(frozen=True, eq=False)
class HistoryGame:
    """What moves of a repeated game count for.

    Attributes:
      domain: the game.
      situations: what each round is about [rounds].
      own, opponent: float64 [rounds, A, A], payoffs by the agent's and the opponent's move.
      harmful, externality: likewise, what the penalties of SEPO count.
    """

    domain: RepeatedGame
    situations: tuple[Situation, ...]
    own: np.ndarray
    opponent: np.ndarray
    harmful: np.ndarray
    externality: np.ndarray

    @property
    def rounds(self) -> int:
        """Rounds of an episode."""
        return len(self.situations)

    @property
    def num_actions(self) -> int:
        """A, moves in every round."""
        return self.own.shape[1]

    @property
    def num_contexts(self) -> int:
        """Contexts of the agent in the whole tree: the sum of A^(2t) over the rounds."""
        return sum(self.num_actions ** (2 * number) for number in range(self.rounds))

    def root(self) -> "Contexts":
        """The one context before the first round."""
        return Contexts(self, np.zeros((1, 0, 2), np.int16))

    @cached_property
    def remembered(self) -> tuple[list, list]:
        """What the agent and the opponent remember, each [round][agent's move][opponent's]."""
        size = range(self.num_actions)

        def past(number: int, first: int, second: int, player: int) -> PastRound:
            situation = self.situations[number]
            words = (situation.actions[first], situation.actions[second])
            pay = (self.own[number, first, second], self.opponent[number, first, second])
            step = 1 if player == 0 else -1
            own_pay, other_pay = (float(value) for value in pay[::step])
            return PastRound(*words[::step], own_pay, other_pay, situation.private[player])

        agent, opponent = (
            [
                [[past(number, first, second, player) for second in size] for first in size]
                for number in range(self.rounds)
            ]
            for player in (0, 1)
        )
        return agent, opponent


@dataclass(frozen=True, eq=False)
class Contexts:
    """Joint histories of one length.

    Attributes:
      game: of which game.
      moves: int16 [n, rounds played, 2], indices of the agent's and of the opponent's moves.
    """

    game: HistoryGame
    moves: np.ndarray

    def __len__(self) -> int:
        return len(self.moves)

    @property
    def round(self) -> int:
        """Index of the round that is to be played, from 0."""
        return self.moves.shape[1]

    def after(self, rows: np.ndarray, own: np.ndarray, other: np.ndarray) -> "Contexts":
        """The contexts `rows`, each one round later."""
        played = np.stack([own, other], axis=-1).astype(np.int16)
        return Contexts(self.game, np.concatenate([self.moves[rows], played[:, None]], axis=1))

    def codes(self) -> np.ndarray:
        """Place of each context among all A^(2t), int64 [n]; the first round counts the most."""
        size = self.game.num_actions
        code = np.zeros(len(self), np.int64)
        for own, other in np.moveaxis(self.moves.astype(np.int64), (1, 2), (0, 1)):
            code = code * size**2 + own * size + other
        return code

    def views(self, player: int = 0) -> list[View]:
        """What the agent (0) or the opponent (1) sees at each context."""
        situation = self.game.situations[self.round]
        known = (situation.private[player], situation.public, situation.actions, self.round)
        rounds = self.game.remembered[player][: self.round]
        return [
            View(
                player,
                *known,
                tuple(past[own][other] for past, (own, other) in zip(rounds, moves, strict=True)),
            )
            for moves in self.moves.tolist()
        ]


HistoryPolicy = Callable[[Contexts], np.ndarray]
"""Contexts [n] -> probabilities of the agent's moves [n, A]."""

PolicyLike = Table | Sequence[np.ndarray] | Strategy | HistoryPolicy
"""What `as_policy` accepts."""


def history_game(domain: RepeatedGame) -> HistoryGame:
    """The rounds of a repeated game as arrays.

    Raises:
      ValueError: not a repeated game, or one in which something other than the moves counts:
        rounds drawn by seed (private values, say), payoffs with chance, another number of moves
        in another round.
    """
    if not isinstance(domain, RepeatedGame):
        raise ValueError(
            f"{getattr(domain, 'name', domain)!r} is no repeated game with simultaneous moves, so "
            "it has no joint histories"
        )
    situations = tuple(domain.situation(0, number) for number in range(domain.rounds))
    for seed in _COMPARED_SEEDS:
        if tuple(domain.situation(seed, number) for number in range(domain.rounds)) != situations:
            raise ValueError(
                f"rounds of {domain.name} differ from episode to episode, so a joint history is "
                "not all that counts; sample its episodes instead"
            )
    if len({len(situation.actions) for situation in situations}) > 1:
        raise ValueError(f"the number of moves of {domain.name} changes from round to round")
    try:
        rounds = [_scored(domain, situation) for situation in situations]
    except ChanceRefused:
        raise ValueError(
            f"payoffs of {domain.name} are drawn at random, so a joint history is not all that "
            "counts; sample its episodes instead"
        ) from None
    return HistoryGame(domain, situations, *np.moveaxis(np.array(rounds), -1, 0))


def _scored(domain: RepeatedGame, situation: Situation) -> list:
    """Own, opponent's payoff, harm and externality of every pair of moves, [A, A, 4]."""

    def score(own: str, other: str) -> tuple[float, float, float, float]:
        payoffs = domain.payoffs(situation, own, other, NoChance())
        result = domain.score(situation, own, other, payoffs)
        return result.own, result.opponent, result.harmful, result.externality

    words = situation.actions
    return [[score(own, other) for other in words] for own in words]


def as_policy(game: HistoryGame, policy: PolicyLike) -> HistoryPolicy:
    """A policy of the agent as a function of contexts whose answers are checked.

    Args:
      game: the game.
      policy: one of
        a table: `domain.observation(view)` -> probabilities of the moves;
        a list with an array [A^(2t), A] for each round t, rows in the order of `Contexts.codes`;
        a `Strategy` (its `distribution` is read);
        a function of `Contexts`.

    Raises:
      ValueError: none of these; when called, a context without a row, or rows that are no
        distributions over the game's moves.
    """
    if isinstance(policy, Mapping):
        ask = _of_table(policy)
    elif isinstance(policy, (list, tuple)):
        ask = _of_arrays(policy)
    elif hasattr(policy, "distribution"):
        ask = lambda contexts: move_probabilities(policy, contexts, seat=0)  # noqa: E731
    elif callable(policy):
        ask = policy
    else:
        raise ValueError(
            f"a policy of {game.domain.name} is a table by observation, a list of arrays by "
            f"round, a Strategy or a function of Contexts, not {policy!r}"
        )

    def checked(contexts: Contexts) -> np.ndarray:
        rows = np.asarray(ask(contexts), np.float64)
        expected = (len(contexts), game.num_actions)
        if rows.shape != expected:
            raise ValueError(
                f"the policy gave probabilities of shape {list(rows.shape)} for round "
                f"{contexts.round + 1} of {game.domain.name}; expected {list(expected)}"
            )
        # Written so that NaN fails too.
        good = (rows >= 0).all(axis=1) & (np.abs(rows.sum(axis=1) - 1) <= _SUM_TOLERANCE)
        if not good.all():
            place = int(np.flatnonzero(~good)[0])
            raise ValueError(
                f"the policy's row of round {contexts.round + 1} after the moves "
                f"{contexts.moves[place].tolist()} is {rows[place].tolist()}; it must be "
                "probabilities that sum to 1"
            )
        return rows / rows.sum(axis=1, keepdims=True)

    return checked


def memory_one(first: Sequence[float], replies: np.ndarray) -> HistoryPolicy:
    """A policy that sees the last round only.

    Args:
      first: probabilities of the first move [A].
      replies: [A, A, A], probabilities of a move by the agent's and the opponent's last ones.
    """
    opening, table = np.asarray(first, np.float64), np.asarray(replies, np.float64)
    if opening.ndim != 1 or table.shape != (len(opening),) * 3:
        raise ValueError(
            f"first and replies have the shapes {list(opening.shape)} and {list(table.shape)}; "
            "expected [A] and [A, A, A]"
        )

    def probabilities(contexts: Contexts) -> np.ndarray:
        if contexts.round == 0:
            return np.tile(opening, (len(contexts), 1))
        return table[contexts.moves[:, -1, 0], contexts.moves[:, -1, 1]]

    return probabilities


def _of_table(table: Table) -> HistoryPolicy:
    def probabilities(contexts: Contexts) -> np.ndarray:
        names = [contexts.game.domain.observation(view) for view in contexts.views()]
        absent = [name for name in names if name not in table]
        if absent:
            raise unknown("row of the policy", absent[0], table)
        return np.array([table[name] for name in names], np.float64)

    return probabilities


def _of_arrays(arrays: Sequence[np.ndarray]) -> HistoryPolicy:
    def probabilities(contexts: Contexts) -> np.ndarray:
        expected = (contexts.game.num_actions ** (2 * contexts.round), contexts.game.num_actions)
        found = [np.shape(rows) for rows in arrays]
        if contexts.round >= len(arrays) or found[contexts.round] != expected:
            raise ValueError(
                f"the policy has arrays of shapes {[list(shape) for shape in found]}; round "
                f"{contexts.round + 1} of {contexts.game.domain.name} needs {list(expected)}"
            )
        return np.asarray(arrays[contexts.round])[contexts.codes()]

    return probabilities


def move_probabilities(player: Strategy, contexts: Contexts, seat: int = 1) -> np.ndarray:
    """Probabilities of a strategy's moves, float64 [n, A].

    Args:
      player: its `distribution` is read.
      contexts: where it moves.
      seat: 0 where it sits in the agent's place, 1 in the opponent's.

    Raises:
      ValueError: it has no `distribution`, or one with moves that are not allowed, or that are no
        probabilities.
    """
    if not hasattr(player, "distribution"):
        raise ValueError(
            f"{getattr(player, 'name', player)!r} gives no `distribution` of its moves, so nothing "
            "can be enumerated against it; derive it from domains.repeated.Strategy"
        )
    actions = contexts.game.situations[contexts.round].actions
    columns = {word: column for column, word in enumerate(actions)}
    rows = np.zeros((len(contexts), len(actions)))
    for row, view in zip(rows, contexts.views(seat), strict=True):
        for word, probability in player.distribution(view).items():
            if word not in columns:
                raise unknown(f"move of {player.name}", word, actions)
            row[columns[word]] = probability
    if not ((rows >= 0).all() and (np.abs(rows.sum(axis=1) - 1) <= _SUM_TOLERANCE).all()):
        raise ValueError(f"the distributions of {player.name} must be probabilities that sum to 1")
    return rows


class Matches(NamedTuple):
    """Every way a match can go.

    Attributes:
      moves: int16 [n, rounds, 2], of the agent and the opponent.
      probability: float64 [n].
    """

    moves: np.ndarray
    probability: np.ndarray


def all_matches(
    game: HistoryGame, policy: HistoryPolicy, opponent: Strategy, max_matches: int = 1_000_000
) -> Matches:
    """Every match of positive probability between a policy and an opponent.

    Args:
      game: the game.
      policy: of the agent, see `as_policy`.
      opponent: a strategy; all its randomness must be in its `distribution`.
      max_matches: most matches enumerated.

    Raises:
      ValueError: more matches than that; see also `move_probabilities`.
    """
    contexts, weight = game.root(), np.ones(1)
    for _ in range(game.rounds):
        replies = move_probabilities(opponent, contexts)
        joint = policy(contexts)[:, :, None] * replies[:, None, :]
        kept = np.nonzero(joint)
        if len(kept[0]) > max_matches:
            raise ValueError(
                f"{game.domain.name} against {opponent.name} can go more than {max_matches} ways "
                f"({len(kept[0])} after round {contexts.round + 1} of {game.rounds}); sample "
                "episodes instead, or raise max_matches"
            )
        weight = weight[kept[0]] * joint[kept]
        contexts = contexts.after(*kept)
    return Matches(contexts.moves, weight)
