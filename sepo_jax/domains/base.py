"""What every domain offers: episodes that speak text, opponents that see what their seat sees.

An episode is a plain Python object between a language model (the agent) and a scripted opponent.
It is deterministic given its seed, holds no global state, and can be deep-copied at any point:

    episode = domain.new_episode("NashApprox", seed=7)
    while not episode.done:
        episode.step(complete(episode.messages()))     # any text; unparsable replies are counted
    episode.rounds                                     # payoffs and penalties, round by round

Each decision has a fresh context of two messages, [system, user]; what the agent should remember
is written in the user message. An action is an index into `legal_actions()`, whose words are also
the canonical replies.
"""

import contextlib
import copy
import operator
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from sepo_jax.domains.arguments import check_integer
from sepo_jax.domains.seeds import derive_seed, stream
from sepo_jax.names import check_option, unknown

Message = dict[str, str]
"""One chat message: {"role": "system" | "user" | "assistant", "content": text}."""

ON_INVALID = ("fallback", "forfeit")


@dataclass(frozen=True)
class View:
    """What one seat may see when it acts.

    Attributes:
      seat: 0 when this seat moves first in the round, 1 when it moves second.
      private: private information (a card, a value), as text.
      history: public moves of the round so far, as text.
      legal_actions: words of the actions allowed here; an action is an index into them.
      round: index of the round, from 0.
      past: what this seat learned from each earlier round of the episode; domain-specific.
    """

    seat: int
    private: str
    history: str
    legal_actions: tuple[str, ...]
    round: int = 0
    past: tuple[Any, ...] = ()

    @property
    def observation(self) -> str:
        """Name of the information set of a single round: private information, then history."""
        return self.private + self.history


class Opponent(Protocol):
    """A scripted player. One instance serves one episode; its only randomness is `rng`."""

    def reset(self, rng: random.Random) -> None:
        """Starts an episode; every random choice of the episode is drawn from `rng`."""

    def act(self, view: View) -> int:
        """Index of the chosen action in `view.legal_actions`."""


Table = Mapping[str, Sequence[float]]
"""Name of an information set -> probability of each action there."""


class TablePolicy:
    """Plays a table of action probabilities; serves as opponent, as expert and as exploiter.

    Args:
      table: `View.observation` -> probabilities of the actions, in the order of
        `View.legal_actions`. Sets of a seat that the policy never plays may be absent.
      name: shown in reports.

    Raises:
      ValueError: a row is not a probability distribution.
    """

    def __init__(self, table: Table, name: str = "TablePolicy"):
        self.table = {key: tuple(float(value) for value in row) for key, row in table.items()}
        self.name = name
        for key, row in self.table.items():
            # Written so that NaN fails too.
            if not (row and min(row) >= 0 and abs(sum(row) - 1) <= 1e-6):
                raise ValueError(
                    f"row {key!r} of {name} must be probabilities that sum to 1, not {row}"
                )
        self._rng: random.Random | None = None

    def reset(self, rng: random.Random) -> None:
        """Starts an episode with its random stream."""
        self._rng = rng

    def act(self, view: View) -> int:
        """Draws an action from the row of what `view` shows."""
        if self._rng is None:
            raise ValueError(f"{self.name} was asked to act before reset(rng)")
        row = self.table.get(view.observation)
        if row is None:
            raise unknown(f"row of {self.name}", view.observation, self.table)
        if len(row) != len(view.legal_actions):
            raise ValueError(
                f"row {view.observation!r} of {self.name} has {len(row)} probabilities for the "
                f"actions {view.legal_actions}"
            )
        # One draw a decision, also where the row is deterministic: streams stay aligned. The
        # draw is below 1, so an action of probability 0 is never taken.
        draw, total = self._rng.random() * sum(row), 0.0
        for action, probability in enumerate(row):
            total += probability
            if draw < total:
                return action
        return max(range(len(row)), key=row.__getitem__)


OpponentLike = str | Opponent | Callable[[], Opponent]


@dataclass(frozen=True)
class Decision:
    """One decision of the agent.

    Attributes:
      turn: index of the decision in the episode, from 0.
      round: index of the round it belongs to.
      observation: key of what the agent saw; equal keys mean equal prompts.
      messages: the prompt.
      text: the reply as received.
      action: index of the action played, None when the reply forfeited the round.
      valid: whether the reply named a legal action.
    """

    turn: int
    round: int
    observation: str
    messages: tuple[Message, ...]
    text: str
    action: int | None
    valid: bool


@dataclass(frozen=True)
class Round:
    """Result of one round: payoffs of both seats, and what the penalties of SEPO count.

    Attributes:
      own, opponent: payoffs in the domain's units.
      harmful: 1 where the agent's move was harmful to a collusive partner, 0 elsewhere.
      externality: welfare cost of the round.
    """

    own: float
    opponent: float
    harmful: float = 0.0
    externality: float = 0.0


class EpisodeFinished(ValueError):
    """A move was offered to an episode that is over."""


class EpisodeFailed(ValueError):
    """A move was offered to an episode whose opponent or rules raised an error in mid-move."""


def check_action(name: str, action: object, legal: Sequence[str]) -> int:
    """Returns the index that player `name` played; ValueError when it is none into `legal`."""
    try:
        index = operator.index(action)  # type: ignore[arg-type]
    except TypeError:
        index = -1
    if not 0 <= index < len(legal):
        allowed = ", ".join(f"{i} ({word})" for i, word in enumerate(legal))
        raise ValueError(f"{name} played {action!r}; allowed: {allowed}")
    return index


def resolve_opponent(
    opponent: OpponentLike, pools: Mapping[str, Mapping[str, Callable[[], Opponent]]]
) -> tuple[str, Opponent]:
    """Name and a fresh instance of an opponent given by name, factory or instance.

    An instance is copied, so that two episodes never share an opponent's state.
    """
    if isinstance(opponent, str):
        known = {name: factory for pool in pools.values() for name, factory in pool.items()}
        if opponent not in known:
            raise unknown("opponent", opponent, known)
        return opponent, known[opponent]()
    if hasattr(opponent, "act") and not isinstance(opponent, type):
        return getattr(opponent, "name", type(opponent).__name__), copy.deepcopy(opponent)
    if callable(opponent):
        return resolve_opponent(opponent(), pools)
    raise ValueError(
        f"an opponent is a name, a factory or an object with reset and act, not {opponent!r}"
    )


class Episode:
    """Base of every episode: keeps decisions and rounds, checks moves, restarts by seed.

    A domain implements `_start`, `view`, `messages`, `_parse`, `_apply` and `_forfeit`.

    Args:
      opponent: a fresh opponent (see `resolve_opponent`).
      opponent_name: its name in reports.
      seed: fixes everything but the agent's replies.
      on_invalid: "fallback": an unparsable reply plays `_fallback`; "forfeit": it loses the round.
    """

    _failure: str | None = None

    def __init__(
        self, opponent: Opponent, opponent_name: str, seed: int, on_invalid: str = "fallback"
    ):
        self.on_invalid = check_option("on_invalid", on_invalid, ON_INVALID)
        self.opponent_name = opponent_name
        self._opponent = opponent
        self.seed = check_integer("seed", seed, minimum=0)

    def reset(self, seed: int | None = None) -> "Episode":
        """Starts again: the same seed repeats the episode, no seed gives the next one.

        The next episode has a seed derived from the present one, kept in `self.seed`, so that
        it can be repeated too. Returns the episode itself.
        """
        fresh = derive_seed(self.seed, "next") if seed is None else seed
        self.seed = check_integer("seed", fresh, minimum=0)
        self.done = False
        self.decisions: list[Decision] = []
        self.rounds: list[Round] = []
        self._failure = None
        with self._fails_on_error():
            self._opponent.reset(stream(self.seed, "opponent"))
            self._start()
        return self

    @property
    def observation(self) -> str:
        """Key of the pending decision: equal keys mean equal prompts, and the reverse."""
        return self.view().observation

    def legal_actions(self) -> tuple[str, ...]:
        """Words of the actions allowed at the pending decision; also the canonical replies."""
        return self.view().legal_actions

    def step(self, text: str) -> None:
        """Plays the agent's reply, then everything up to its next decision or the end.

        An error of the opponent or of the rules passes through and leaves the episode failed: it
        refuses every further move and view until it is reset.

        Raises:
          EpisodeFinished: the episode is over; nothing changes.
          EpisodeFailed: an earlier move ended in an error; nothing changes.
          ValueError: the opponent played something that is no legal action.
        """
        self._check_pending()
        action = self._parse(text, self.legal_actions())
        valid = action is not None
        if not valid and self.on_invalid == "fallback":
            action = self._fallback(self.legal_actions())
        self.decisions.append(
            Decision(
                turn=len(self.decisions),
                round=len(self.rounds),
                observation=self.observation,
                messages=tuple(self.messages()),
                text=text,
                action=action,
                valid=valid,
            )
        )
        with self._fails_on_error():
            if action is None:
                self._forfeit()
            else:
                self._apply(action)

    def record(self) -> dict[str, Any]:
        """What the finished episode leaves, in JSON values; `Played.from_record` reads it.

        Raises:
          ValueError: the episode is not over, or an error ended it.
        """
        if self._failure is not None or not self.done:
            how = f"failed with {self._failure}" if self._failure else "is not over"
            raise ValueError(f"the episode (seed {self.seed}) {how}, so it leaves no record")
        decisions = [vars(d) | {"messages": [dict(m) for m in d.messages]} for d in self.decisions]
        rounds = [{name: float(x) for name, x in vars(r).items()} for r in self.rounds]
        return {
            "seed": self.seed,
            "opponent_name": self.opponent_name,
            "decisions": decisions,
            "rounds": rounds,
        }

    @contextlib.contextmanager
    def _fails_on_error(self) -> Iterator[None]:
        """Marks the episode as failed when the body raises: its state is then of half a move."""
        try:
            yield
        except BaseException as error:
            self._failure = repr(error)
            raise

    def _check_pending(self) -> None:
        if self._failure is not None:
            raise EpisodeFailed(
                f"the episode (seed {self.seed}) against {self.opponent_name} failed with "
                f"{self._failure}; reset it or start another"
            )
        if self.done:
            raise EpisodeFinished(
                f"the episode is over after {len(self.rounds)} rounds; reset it or start another"
            )

    def view(self) -> View:
        """What the agent may see at the pending decision (EpisodeFinished after the end)."""
        raise NotImplementedError

    def messages(self) -> list[Message]:
        """Prompt of the pending decision, [system, user] (EpisodeFinished after the end)."""
        raise NotImplementedError

    def _start(self) -> None:
        raise NotImplementedError

    def _parse(self, text: str, legal: Sequence[str]) -> int | None:
        raise NotImplementedError

    def _fallback(self, legal: Sequence[str]) -> int:
        return 0

    def _apply(self, action: int) -> None:
        raise NotImplementedError

    def _forfeit(self) -> None:
        raise NotImplementedError


class Domain(Protocol):
    """A task: rules, prompts, parser, opponent pools and expert strategies.

    Attributes:
      name: short name in configs and reports.
      game: name of the compiled tree game with the same rules, None when there is none.
      max_payoff: scale of the payoffs; SEPO rescales by 3 / max_payoff.
      pools: "train", "exploiter", "collusive" -> opponent name -> factory.
      experts: expert name -> (weight, factory); weights sum to 1.
    """

    name: str
    game: str | None
    max_payoff: float
    pools: dict[str, dict[str, Callable[[], Opponent]]]
    experts: dict[str, tuple[float, Callable[[], Opponent]]]

    def new_episode(self, opponent: OpponentLike, seed: int, seat: int | None = None) -> Episode:
        """A started episode against one opponent."""

    def parse(self, text: str, legal: Sequence[str]) -> int | None:
        """Index in `legal` of the action that `text` names, None when it names none."""

    def expert_traces(
        self, num_decisions: int, seed: int, *, rationale: bool = False
    ) -> list[tuple[list[Message], str]]:
        """Prompts and expert replies for supervised fine-tuning."""
