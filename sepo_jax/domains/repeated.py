"""Games of several rounds in which both players move at once; what all of them share.

A game says what a round is about (`situation`), what moves pay (`payoffs`), what the penalties of
SEPO count (`score`), and how it reads in text; episodes, histories, views and expert traces are
here. `domains.ipd` is the shortest example.
"""

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sepo_jax.domains.arguments import check_integer
from sepo_jax.domains.base import (
    ON_INVALID,
    Episode,
    Message,
    Opponent,
    OpponentLike,
    Round,
    View,
    check_action,
    resolve_opponent,
)
from sepo_jax.domains.parsing import parse_word
from sepo_jax.domains.seeds import stream
from sepo_jax.domains.traces import expert_traces
from sepo_jax.names import check_option


@dataclass(frozen=True)
class Situation:
    """What a round is about.

    Attributes:
      actions: words of the moves; both players have the same.
      public: what both know, as text.
      private: what the agent and the opponent each know alone, as text.
      data: the same in the game's own types, for its rules.
    """

    actions: tuple[str, ...]
    public: str = ""
    private: tuple[str, str] = ("", "")
    data: Any = None


@dataclass(frozen=True)
class PastRound:
    """What one player remembers of a round.

    Attributes:
      own, other: words of both moves; the agent's is "" where its reply forfeited the round.
      own_payoff, other_payoff: of the two players.
      private: what the player alone knew.
    """

    own: str
    other: str
    own_payoff: float
    other_payoff: float
    private: str = ""


def scores(view: View) -> tuple[float, float]:
    """Payoffs of the player and of the other one, summed over the rounds that a view shows."""
    own = sum(past.own_payoff for past in view.past)
    return own, sum(past.other_payoff for past in view.past)


class RepeatedEpisode(Episode):
    """One match of a `RepeatedGame` against one opponent."""

    def __init__(self, domain: "RepeatedGame", opponent: Opponent, name: str, seed: int):
        super().__init__(opponent, name, seed, domain.on_invalid)
        self._domain = domain
        self.reset(seed)

    @property
    def situation(self) -> Situation:
        """Of the round being played (at the end: of the last one); hidden from both players."""
        return self._situation

    @property
    def observation(self) -> str:
        """Round, what is known, and the history: equal keys mean equal prompts."""
        return self._domain.observation(self.view())

    def view(self) -> View:
        """What the agent may see at the pending decision."""
        self._check_pending()
        return self._view(0)

    def messages(self) -> list[Message]:
        """Prompt of the pending decision: rules, then the situation."""
        self._check_pending()
        return self._domain.messages(self._view(0))

    def _view(self, player: int) -> View:
        return View(
            seat=player,
            private=self._situation.private[player],
            history=self._situation.public,
            legal_actions=self._situation.actions,
            round=len(self.rounds),
            past=tuple(self._past[player]),
        )

    def _start(self) -> None:
        self._past: tuple[list[PastRound], list[PastRound]] = ([], [])
        self._situation = self._domain.situation(self.seed, 0)

    def _parse(self, text: str, legal: Sequence[str]) -> int | None:
        return self._domain.parse(text, legal)

    def _fallback(self, legal: Sequence[str]) -> int:
        return self._domain.fallback(legal)

    def _apply(self, action: int) -> None:
        self._play(self._situation.actions[action])

    def _forfeit(self) -> None:
        self._play("")

    def _play(self, own: str) -> None:
        """Plays a round; `own` is "" where it is forfeited."""
        situation, number = self._situation, len(self.rounds)
        view = self._view(1)
        choice = check_action(
            f"opponent {self.opponent_name}", self._opponent.act(view), view.legal_actions
        )
        other = situation.actions[choice]
        if own:
            rng = stream(self.seed, "payoffs", number)
            payoffs = self._domain.payoffs(situation, own, other, rng)
            result = self._domain.score(situation, own, other, payoffs)
        else:
            result = self._domain.forfeited(situation, other)
        self.rounds.append(result)
        pay = (float(result.own), float(result.opponent))
        self._past[0].append(PastRound(own, other, *pay, situation.private[0]))
        self._past[1].append(PastRound(other, own, *pay[::-1], situation.private[1]))
        self.done = len(self.rounds) == self._domain.rounds
        if not self.done:
            self._situation = self._domain.situation(self.seed, len(self.rounds))


class RepeatedGame(ABC):
    """Base of repeated games with simultaneous moves (see `domains.base.Domain`).

    A game sets the class attributes, fills `pools` and `experts`, and implements the abstract
    methods; the others may be overridden. It never changes after construction.

    Args:
      rounds: rounds of an episode; None for the game's own number.
      faithful: keep what the authors' code does where the corrected rules differ; the game's
        docstring names each difference.
      on_invalid: what an unparsable reply does: "fallback" plays `fallback(legal)`, "forfeit" gives
        the round away: `worst_payoff` to the agent, `best_payoff` to the opponent, harm 1 and
        `worst_externality`, so that no legal move is worse.

    Attributes:
      name: in configs and reports.
      game: always None: there is no compiled tree of this size.
      max_payoff: scale of the payoffs.
      worst_payoff: least payoff of a round.
      best_payoff: what a forfeited round pays the opponent; None for `max_payoff`.
      worst_externality: most that a round can cost others.
      default_rounds: the paper's number of rounds.
    """

    name: str
    game: str | None = None
    max_payoff: float
    worst_payoff: float = 0.0
    best_payoff: float | None = None
    worst_externality: float = 1.0
    default_rounds: int
    pools: dict[str, dict[str, Callable[[], Opponent]]]
    experts: dict[str, tuple[float, Callable[[], Opponent]]]

    def __init__(
        self, rounds: int | None = None, faithful: bool = False, on_invalid: str = "fallback"
    ):
        for name in ("name", "max_payoff", "default_rounds"):
            if not hasattr(self, name):
                raise ValueError(f"{type(self).__name__} lacks {name}; set it in the class")
        self.rounds = self.default_rounds if rounds is None else check_integer("rounds", rounds, 1)
        self.faithful = bool(faithful)
        self.on_invalid = check_option("on_invalid", on_invalid, ON_INVALID)

    def __deepcopy__(self, memo: dict) -> "RepeatedGame":
        # Never changes after construction, so copies of an episode may share it.
        return self

    def new_episode(
        self, opponent: OpponentLike, seed: int, seat: int | None = None
    ) -> RepeatedEpisode:
        """A started episode.

        Args:
          opponent: a name of any pool, a factory, or an opponent (copied).
          seed: fixes all chance of the game and the opponent's choices.
          seat: 0, 1 or None; it changes nothing, since both move at once.
        """
        if seat is not None and not (hasattr(seat, "__index__") and seat in (0, 1)):
            raise ValueError(f"seat must be 0, 1 or None, not {seat!r}")
        name, player = resolve_opponent(opponent, self.pools)
        return RepeatedEpisode(self, player, name, check_integer("seed", seed, 0))

    def expert_traces(
        self, num_decisions: int, seed: int, *, rationale: bool = False
    ) -> list[tuple[list[Message], str]]:
        """Expert decisions for supervised fine-tuning; see `domains.traces.expert_traces`."""
        return expert_traces(self, num_decisions, seed, reason=self.reason if rationale else None)

    def messages(self, view: View) -> list[Message]:
        """The prompt of a decision."""
        return [
            {"role": "system", "content": self.rules()},
            {"role": "user", "content": self.describe(view)},
        ]

    def observation(self, view: View) -> str:
        """Key of a decision; equal keys must mean equal prompts, and the reverse."""
        past = " ".join(
            f"{r.own or '-'}/{r.other}={r.own_payoff:g}/{r.other_payoff:g}" for r in view.past
        )
        known = " ".join(part for part in (view.history, view.private) if part)
        return " | ".join((f"{view.round + 1}/{self.rounds}", known, past))

    def fallback(self, legal: Sequence[str]) -> int:
        """Index of the move that an unparsable reply plays."""
        return 0

    def forfeited(self, situation: Situation, other: str) -> Round:
        """What a round counts for whose move the agent did not name."""
        best = self.max_payoff if self.best_payoff is None else self.best_payoff
        return Round(self.worst_payoff, best, harmful=1.0, externality=self.worst_externality)

    @abstractmethod
    def situation(self, seed: int, number: int) -> Situation:
        """What round `number` (from 0) of the episode of `seed` is about."""

    @abstractmethod
    def payoffs(
        self, situation: Situation, own: str, other: str, rng: random.Random
    ) -> tuple[float, float]:
        """Payoffs of the agent and of the opponent; chance is drawn from `rng`."""

    @abstractmethod
    def score(
        self, situation: Situation, own: str, other: str, payoffs: tuple[float, float]
    ) -> Round:
        """What a played round counts for: payoffs, harm to a partner, externality."""

    @abstractmethod
    def rules(self) -> str:
        """The system message: rules, aim, and how to answer."""

    def describe(self, view: View) -> str:
        """The user message: round, history, scores, what is known, and the question.

        Rounds are shown by their moves and by the scores of both players over all of them. A game
        that shows other things has an `observation` to match.
        """
        lines = [f"Round {view.round + 1} of {self.rounds}."]
        if view.past:
            own, other = scores(view)
            lines += [
                "Your moves: " + ", ".join(past.own or "none" for past in view.past) + ".",
                "Opponent's moves: " + ", ".join(past.other for past in view.past) + ".",
                f"Your score: {own:g}. Opponent's score: {other:g}.",
            ]
        lines += [known for known in (view.history, view.private) if known]
        return "\n".join([*lines, f"Choose {_alternatives(view.legal_actions)}."])

    def reason(self, view: View, word: str) -> str:
        """One short line of reasoning that goes with a move."""
        return f"I choose {word} in round {view.round + 1}."

    def parse(self, text: str, legal: Sequence[str]) -> int | None:
        """Index in `legal` of the move that the last non-empty line of `text` names, or None.

        Moves that are no single upper-case words need a parser of their own.
        """
        return parse_word(text, legal)


class ChanceRefused(ValueError):
    """Something drew at random where its outcome must be certain."""


class NoChance(random.Random):
    """A random stream that refuses every draw."""

    def random(self) -> float:
        raise ChanceRefused("a draw from a stream without chance")

    def getrandbits(self, count: int, /) -> int:
        raise ChanceRefused("a draw from a stream without chance")


def _alternatives(words: Sequence[str]) -> str:
    """The words as a choice: "A", "A or B", "A, B or C"."""
    return " or ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


class Strategy:
    """An opponent or expert whose move is a function of its view.

    A subclass gives `choose` when its move is certain, `distribution` when it is random; then its
    payoffs can be enumerated as well as sampled.

    Attributes:
      rng: the stream of the episode, set by `reset`.
    """

    rng: random.Random

    @property
    def name(self) -> str:
        """Shown in reports: the name of the class."""
        return type(self).__name__

    def reset(self, rng: random.Random) -> None:
        """Starts an episode."""
        self.rng = rng

    def act(self, view: View) -> int:
        """Index of the chosen move; ValueError when `choose` names none that is allowed."""
        word = self.choose(view)
        if word not in view.legal_actions:
            raise ValueError(
                f"{self.name} chose {word!r}; allowed: {', '.join(view.legal_actions)}"
            )
        return view.legal_actions.index(word)

    def choose(self, view: View) -> str:
        """Word of the chosen move; without a subclass's own, drawn from `distribution`."""
        if type(self).distribution is Strategy.distribution:
            raise NotImplementedError(f"{self.name} gives neither choose nor distribution")
        words, weights = zip(*self.distribution(view).items(), strict=True)
        return self.rng.choices(words, weights)[0]

    def distribution(self, view: View) -> dict[str, float]:
        """Word of each move that may be chosen -> its probability.

        Without a subclass's own, all of it is on what `choose` names.

        Raises:
          ChanceRefused: `choose` draws at random, so that it does not tell the probabilities.
        """
        kept = vars(self).pop("rng", None)
        self.rng = NoChance()
        try:
            return {self.choose(view): 1.0}
        except ChanceRefused:
            raise ChanceRefused(
                f"the moves of {self.name} are random and it gives no `distribution`, so nothing "
                "can be enumerated against it"
            ) from None
        finally:
            del self.rng
            if kept is not None:
                self.rng = kept
