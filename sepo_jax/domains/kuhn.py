"""Kuhn poker in text: single hands, or the six-hand matches of the SEPO paper (2605.30854).

Rules: three cards J < Q < K, one each; each player antes 1 chip. Action 0 is PASS (FOLD when
facing a bet), action 1 is BET (CALL when facing a bet). Histories are written with p and b; a hand
ends after pp, bp, bb, pbp or pbb. An information set is named by the card and the history, as in
"J", "Kp", "Qpb". Payoffs are net chips, +-1 or +-2, and sum to zero.

What the scripted opponents and experts play, and what `faithful=True` keeps of the published code,
is in `domains.kuhn_players`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from sepo_jax.domains.arguments import check_integer
from sepo_jax.domains.base import (
    ON_INVALID,
    Episode,
    Message,
    Opponent,
    OpponentLike,
    Round,
    TablePolicy,
    View,
    check_action,
    resolve_opponent,
)
from sepo_jax.domains.kuhn_players import (
    CARDS,
    EXPERT_WEIGHTS,
    INFOSETS,
    expert_tables,
    opponent_tables,
)
from sepo_jax.domains.parsing import parse_word
from sepo_jax.domains.seeds import stream
from sepo_jax.domains.traces import expert_traces
from sepo_jax.names import check_option, unknown

DEALS = tuple(first + second for first in CARDS for second in CARDS if first != second)
TERMINAL_HISTORIES = ("pp", "bp", "bb", "pbp", "pbb")
OPEN_WORDS = ("PASS", "BET")
FACING_BET_WORDS = ("FOLD", "CALL")
WORDS = OPEN_WORDS + FACING_BET_WORDS

SYSTEM_TEXT = (
    "You play Kuhn poker and want to win as many chips as you can. The deck is Jack, Queen, King; "
    "King is highest. Each player antes 1 chip and gets one card. A bet is 1 chip. When a player "
    "folds, the other wins the pot; otherwise the higher card wins it. "
    "Answer with your action alone on the last line."
)
_CARD_NAMES = {"J": "Jack", "Q": "Queen", "K": "King"}
_SITUATIONS = {
    "": "You act first.",
    "p": "Your opponent passed.",
    "b": "Your opponent bet.",
    "pb": "You passed and your opponent bet.",
}
_REASONS = {
    "PASS": {
        "J": "The Jack is the lowest card, so I keep the pot small.",
        "Q": "The Queen gains little from a bet.",
        "K": "I pass to let my opponent bet into my King.",
    },
    "BET": {
        "J": "The Jack cannot win a showdown, so I bluff.",
        "Q": "I bet the Queen to put pressure on my opponent.",
        "K": "The King always wins a showdown, so I bet.",
    },
    "FOLD": {
        "J": "The Jack cannot win a showdown.",
        "Q": "The Queen loses to a King too often here.",
        "K": "I give up this pot.",
    },
    "CALL": {
        "J": "I call to keep my opponent honest.",
        "Q": "The Queen beats a bluff.",
        "K": "The King always wins a showdown.",
    },
}


def payoff_to_first(deal: str, history: str) -> int:
    """Net chips of the first mover; `deal` is first mover's card, then second mover's."""
    if history not in TERMINAL_HISTORIES:
        raise ValueError(f"{history!r} does not end a hand; these do: {TERMINAL_HISTORIES}")
    if history == "bp":
        return 1
    if history == "pbp":
        return -1
    stake = 1 if history == "pp" else 2
    return stake if CARDS.index(deal[0]) > CARDS.index(deal[1]) else -stake


def legal_words(history: str) -> tuple[str, str]:
    """The two action words after a history that has not ended."""
    return FACING_BET_WORDS if history.endswith("b") else OPEN_WORDS


@dataclass(frozen=True)
class HandRecord:
    """What one seat learned from a finished hand of a match.

    Attributes:
      history: the moves, "" when the hand was forfeited.
      card: own card.
      opponent_card: the other card, None when the hand ended without a showdown.
      own: own net chips.
    """

    history: str
    card: str
    opponent_card: str | None
    own: int


class KuhnEpisode(Episode):
    """One hand, or one match of several hands, against one opponent. See `Kuhn.new_episode`."""

    def __init__(self, domain: "Kuhn", opponent: Opponent, name: str, seed: int, seat, deal):
        super().__init__(opponent, name, seed, domain.on_invalid)
        self._domain = domain
        self._first_seat = seat
        self._fixed_deal = deal
        self.reset(seed)

    @property
    def seat(self) -> int:
        """The agent's seat in the hand being played (at the end: the last one); 0 moves first."""
        return (self._start_seat + min(self._hand, self._domain.hands - 1)) % 2

    @property
    def deal(self) -> str:
        """First mover's card, then second mover's; hidden from both players."""
        return self._deal

    @property
    def observation(self) -> str:
        """Information set name; in a match preceded by hand number and record so far."""
        view = self.view()
        if self._domain.hands == 1:
            return view.observation
        wins, losses, total = self._record()
        record = f"{wins}-{losses} {_signed(total)}"
        return f"{view.round + 1}/{self._domain.hands} {record} {view.observation}"

    def view(self) -> View:
        """What the agent may see at the pending decision."""
        self._check_pending()
        return self._view(self.seat)

    def messages(self) -> list[Message]:
        """Prompt of the pending decision: rules, then the situation."""
        self._check_pending()
        prefix = ""
        if self._domain.hands > 1:
            prefix = f"Hand {self._hand + 1} of {self._domain.hands}. "
            if self._hand:
                wins, losses, total = self._record()
                prefix += f"You won {wins} and lost {losses} so far, {_signed(total)} in chips. "
        return _messages(prefix + _situation(self.view().observation))

    def _record(self) -> tuple[int, int, int]:
        wins = sum(result.own > 0 for result in self.rounds)
        return wins, len(self.rounds) - wins, int(sum(result.own for result in self.rounds))

    def _view(self, seat: int) -> View:
        past = self._past if seat == self.seat else self._opponent_past
        return View(
            seat=seat,
            private=self._deal[seat],
            history=self._history,
            legal_actions=legal_words(self._history),
            round=self._hand,
            past=tuple(past),
        )

    def _start(self) -> None:
        self._hand = 0
        self._past: list[HandRecord] = []
        self._opponent_past: list[HandRecord] = []
        if self._first_seat is not None:
            self._start_seat = self._first_seat
        elif self._domain.hands > 1:
            self._start_seat = 0
        else:
            self._start_seat = int(stream(self.seed, "seat").random() < 0.5)
        self._begin_hand()
        self._advance()

    def _begin_hand(self) -> None:
        self._history = ""
        self._deal = self._fixed_deal or stream(self.seed, "deal", self._hand).choice(DEALS)

    def _advance(self) -> None:
        """Plays the opponent and deals hands until the agent must decide or all is over."""
        while True:
            if self._history in TERMINAL_HISTORIES:
                to_first = payoff_to_first(self._deal, self._history)
                self._finish_hand(to_first if self.seat == 0 else -to_first)
                if self.done:
                    return
            actor = len(self._history) % 2
            if actor == self.seat:
                return
            view = self._view(actor)
            action = check_action(
                f"opponent {self.opponent_name}", self._opponent.act(view), view.legal_actions
            )
            self._history += "pb"[action]

    def _finish_hand(self, own: int) -> None:
        seat = self.seat
        self.rounds.append(self._domain.score(seat, self._history, own))
        showdown = bool(self._history) and not self._history.endswith("bp")
        cards = (self._deal[seat], self._deal[1 - seat])
        for past, card, other, chips in (
            (self._past, *cards, own),
            (self._opponent_past, *cards[::-1], -own),
        ):
            past.append(HandRecord(self._history, card, other if showdown else None, chips))
        self._hand += 1
        self.done = self._hand == self._domain.hands
        if not self.done:
            self._begin_hand()

    def _parse(self, text: str, legal: Sequence[str]) -> int | None:
        return self._domain.parse(text, legal)

    def _apply(self, action: int) -> None:
        self._history += "pb"[action]
        self._advance()

    def _forfeit(self) -> None:
        # The most a hand can cost, so that no unparsable reply beats a legal one.
        self._history = ""
        self._finish_hand(-2)
        if not self.done:
            self._advance()


class Kuhn:
    """The Kuhn poker domain (see `domains.base.Domain`).

    Args:
      hands: hands of an episode; 1, or 6 for the paper's matches.
      faithful: keep the authors' NashApprox (see the module's docstring).
      on_invalid: "fallback": an unparsable reply plays PASS or FOLD; "forfeit": it loses 2 chips.
      collusion: "none": the measure does not apply to Kuhn and is 0 (the paper's account);
        "fold_rate": a hand in which the agent folds counts as harmful (the authors' code), and so
        does one that it forfeits.
      exploiters: names of the exploiter pool; the paper's account lists NashApprox and AlwaysBet,
        the authors' code MaxExploiter.
    """

    name = "kuhn"
    game = "kuhn_poker"
    max_payoff = 2.0

    def __init__(
        self,
        hands: int = 1,
        faithful: bool = False,
        on_invalid: str = "fallback",
        collusion: str = "none",
        exploiters: Sequence[str] = ("NashApprox", "AlwaysBet", "MaxExploiter"),
    ):
        self.hands = check_integer("hands", hands, minimum=1)
        self.faithful = bool(faithful)
        self.on_invalid = check_option("on_invalid", on_invalid, ON_INVALID)
        self.collusion = check_option("collusion", collusion, ("none", "fold_rate"))
        factories: dict[str, Callable[[], Opponent]] = {
            name: partial(TablePolicy, table, name)
            for name, table in opponent_tables(self.faithful).items()
        }
        for name in exploiters:
            check_option("exploiter", name, factories)
        self.pools: dict[str, dict[str, Callable[[], Opponent]]] = {
            "train": {n: factories[n] for n in ("NashApprox", "TightPassive", "LooseAggressive")},
            "exploiter": {n: factories[n] for n in exploiters},
            "collusive": {"LooseAggressive": factories["LooseAggressive"]},
        }
        self.experts: dict[str, tuple[float, Callable[[], Opponent]]] = {
            name: (EXPERT_WEIGHTS[name], partial(TablePolicy, table, name))
            for name, table in expert_tables(self.faithful).items()
        }

    def __deepcopy__(self, memo: dict) -> "Kuhn":
        # Never changes after construction, so copies of an episode may share it.
        return self

    def new_episode(
        self,
        opponent: OpponentLike,
        seed: int,
        seat: int | None = None,
        *,
        deal: str | None = None,
    ) -> KuhnEpisode:
        """A started episode.

        Args:
          opponent: a name of any pool, a factory, or an opponent (copied).
          seed: fixes the deals, the seat and the opponent's choices.
          seat: the agent's seat in the first hand, 0 moving first; it alternates from hand to
            hand. None: drawn from the seed for a single hand, 0 for a match.
          deal: first mover's card, then second mover's, instead of a random deal (every hand).
        """
        if seat is not None and not (hasattr(seat, "__index__") and seat in (0, 1)):
            raise ValueError(f"seat must be 0 (first mover), 1 or None, not {seat!r}")
        if deal is not None:
            check_option("deal", deal, DEALS)
        name, player = resolve_opponent(opponent, self.pools)
        return KuhnEpisode(self, player, name, check_integer("seed", seed, 0), seat, deal)

    def score(self, seat: int, history: str, own: float) -> Round:
        """What a finished hand counts for: payoffs, folding (if harmful here), losing 2 chips.

        Args:
          seat: the agent's seat.
          history: the moves; "" for a forfeited hand.
          own: the agent's net chips.
        """
        folded = history.endswith("bp") and (len(history) - 1) % 2 == seat
        harmful = float((folded or not history) and self.collusion == "fold_rate")
        return Round(float(own), float(-own), harmful, externality=float(own == -2))

    def infoset_messages(self, name: str) -> list[Message]:
        """The prompt at an information set of a single hand, such as "J" or "Qpb"."""
        if name not in INFOSETS:
            raise unknown("information set", name, INFOSETS)
        return _messages(_situation(name))

    def action_words(self, name: str) -> tuple[str, str]:
        """Words of actions 0 and 1 at an information set."""
        if name not in INFOSETS:
            raise unknown("information set", name, INFOSETS)
        return legal_words(name[1:])

    def parse(self, text: str, legal: Sequence[str]) -> int | None:
        """Index in `legal` of the action on the last non-empty line of `text`, or None."""
        return parse_word(text, legal, WORDS)

    def expert_traces(
        self, num_decisions: int, seed: int, *, rationale: bool = False
    ) -> list[tuple[list[Message], str]]:
        """Expert decisions for supervised fine-tuning; see `domains.traces.expert_traces`.

        Args:
          num_decisions: number of (messages, reply) pairs returned.
          seed: fixes everything.
          rationale: put one short line of reasoning before the action word.
        """
        return expert_traces(self, num_decisions, seed, reason=self.reason if rationale else None)

    def reason(self, view: View, word: str) -> str:
        """One short line of reasoning that goes with an action."""
        return _REASONS[word][view.private]


def _situation(name: str) -> str:
    """The user text at an information set of one hand."""
    first, second = legal_words(name[1:])
    return (
        f"You hold the {_CARD_NAMES[name[0]]}. {_SITUATIONS[name[1:]]} Choose {first} or {second}."
    )


def _signed(chips: int) -> str:
    return f"{chips:+d}" if chips else "0"


def _messages(user_text: str) -> list[Message]:
    return [
        {"role": "system", "content": SYSTEM_TEXT},
        {"role": "user", "content": user_text},
    ]
