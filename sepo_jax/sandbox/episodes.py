"""Episodes as the host queue plays them: what is asked for, what was sampled, how it ended."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from sepo_jax.sandbox.protocol import Failure, Message, Prompt, Turn
from sepo_jax.sandbox.slots import Context, Mark, action_arrays

STATUSES = ("finished", "turn_limit", "token_limit", "context_full", "failed")


@dataclass(frozen=True, eq=False)
class Action:
    """What one seat answered to one prompt.

    Attributes:
      seat, turn: who and when; turns of an episode count from 0.
      context: number of the context within the episode. Actions of one context follow each other.
      given: int32 [g], tokens between the context's earlier tokens and this action.
      tokens: int32 [n], with the end token when there is one.
      logp, entropy: float32 [n], of the distribution each token was sampled from.
      text: the reply that the environment got.
      prompt: what was asked.
      truncated: whether a limit, not an end token, ended it.
    """

    seat: int
    turn: int
    context: int
    given: np.ndarray
    tokens: np.ndarray
    logp: np.ndarray
    entropy: np.ndarray
    text: str
    prompt: Prompt
    truncated: bool


@dataclass(frozen=True, eq=False)
class Past:
    """What an episode had behind it at one of its turns, for another that goes on from there.

    Attributes:
      turn: the turn that was pending.
      actions: up to those of that turn, in order of turns, then seats. Earlier ones are taken over
        with their contexts; those of the turn itself only tell what is asked there.
      rewards: by seat, of the start and after each turn, those that came with that turn the last.
    """

    turn: int
    actions: tuple[Action, ...]
    rewards: tuple[Mapping[int, float], ...]

    @property
    def taken(self) -> tuple[Action, ...]:
        """The actions that are taken over."""
        return tuple(action for action in self.actions if action.turn < self.turn)

    @property
    def asked(self) -> tuple[Action, ...]:
        """What the other episode answered in the pending turn."""
        return tuple(action for action in self.actions if action.turn == self.turn)

    def marks(self) -> tuple[Mark, ...]:
        """Marks (`slots.Context.mark`) of the beginnings that the next actions have."""
        marks = []
        for action in self.asked:
            ids: list[int] = []
            for earlier in self.taken:
                if earlier.context == action.context:
                    ids += [*earlier.given.tolist(), *earlier.tokens.tolist()]
            marks.append(Context(None, ids + action.given.tolist()).mark())
        return tuple(marks)


@dataclass(frozen=True)
class EpisodeRequest:
    """An episode to play.

    Attributes:
      task, seed: handed to the environment's reset.
      group, member: with the seed and step of the rollout they fix every sampled token; members of
        a group are compared with one another.
      state: a snapshot to go on from, in place of a reset.
      past: the contexts at that snapshot and what led there; without it, prompts pending there must
        not continue a context. `EpisodeResult.continuation` makes such a request.
      keep_snapshots: keep a snapshot of every state in which actions are taken.

    Raises:
      ValueError: a past without a snapshot.
    """

    task: Any
    seed: int
    group: int = 0
    member: int = 0
    state: bytes | None = field(default=None, repr=False)
    past: Past | None = field(default=None, repr=False)
    keep_snapshots: bool = False

    def __post_init__(self):
        if self.past is not None and self.state is None:
            raise ValueError(
                "an episode with a past goes on from a snapshot, and `state` is None: make the "
                "request with EpisodeResult.continuation"
            )


@dataclass(frozen=True, eq=False)
class EpisodeResult:
    """How an episode went.

    Attributes:
      request: what was asked for.
      status: "finished", or cut by "turn_limit", "token_limit" or "context_full", or "failed": then
        nothing of it counts.
      actions: in order of turns, then seats; those of its past, which are the same objects there,
        come first.
      rewards: by seat, of the start (index 0) and after each turn.
      record: what the environment left at the end, None where it was cut.
      failure: why it failed.
      snapshots: by turn, of the states in which the actions were taken, if they were to be kept.
    """

    request: EpisodeRequest
    status: str
    actions: tuple[Action, ...]
    rewards: tuple[Mapping[int, float], ...]
    record: Any = None
    failure: Failure | None = None
    snapshots: Mapping[int, bytes] = field(default_factory=dict, repr=False)

    def continuation(self, turn: int, member: int) -> EpisodeRequest:
        """The request of an episode that goes on from the state in which a turn's actions were
        taken, with fresh samples.

        Raises:
          ValueError: no snapshot of that turn.
        """
        actions = tuple(action for action in self.actions if action.turn <= turn)
        if turn not in self.snapshots or not actions or actions[-1].turn != turn:
            raise ValueError(
                f"the episode kept no state in which it acted at turn {turn}; it has snapshots of "
                f"turns {sorted(self.snapshots)}, and keeps them with keep_snapshots=True only"
            )
        return dataclasses.replace(
            self.request,
            member=member,
            state=self.snapshots[turn],
            past=Past(turn, actions, self.rewards[: turn + 1]),
            keep_snapshots=False,
        )


class Codec(Protocol):
    """Text of prompts to token ids, and sampled ids to text, for one policy.

    Attributes:
      end_ids: ids that end a reply.
    """

    end_ids: tuple[int, ...]

    def start(self, prompt: Prompt) -> Sequence[int]:
        """Ids of a fresh context, ready for the reply."""

    def follow(self, messages: Sequence[Message], prompt: Prompt, ended: bool) -> Sequence[int]:
        """Ids that lead from the last reply of `messages` to the next one.

        Args:
          messages: the conversation so far, ending with the reply; empty in a context of tokens.
          prompt: what follows; its tokens, if it has them, are taken as they are.
          ended: whether the reply ended with an end token.
        """

    def text(self, tokens: Sequence[int]) -> str:
        """Text of sampled ids, without special tokens."""


@dataclass(frozen=True)
class StopRules:
    """When an action or an episode is cut.

    Attributes:
      action_tokens: most tokens of an action.
      capacity: most tokens of a context, prompt and all.
      turns: most turns of an episode, 0 for no limit.
      episode_tokens: most sampled tokens of an episode, 0 for no limit.
    """

    action_tokens: int
    capacity: int
    turns: int = 0
    episode_tokens: int = 0

    def __post_init__(self):
        least_of = {"action_tokens": 1, "capacity": 2, "turns": 0, "episode_tokens": 0}
        for name, least in least_of.items():
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise ValueError(f"{name} must be a whole number from {least} on, got {value!r}")

    def limit(self, held: int, sampled: int, seats: int) -> tuple[int, str]:
        """Most tokens of the next action, and the status of an episode that has none left.

        Args:
          held: tokens of the context.
          sampled: tokens that the episode has sampled so far.
          seats: that act at once; each gets a share of what the episode may still sample.
        """
        limits = [(self.capacity - held, "context_full"), (self.action_tokens, "")]
        if self.episode_tokens:
            limits.append(((self.episode_tokens - sampled) // seats, "token_limit"))
        return min(limits)


class Conversation:
    """One context of one seat: its tokens, and the messages they stand for."""

    def __init__(self, number: int, seat: int, codec: Codec, owner: "RunningEpisode"):
        self.number, self.seat, self.codec = number, seat, codec
        self.messages: list[Message] = []
        self.prompt = Prompt()
        self.given: list[int] = []
        self.context = Context((owner, self), [], owner.request.group)

    def ask(self, prompt: Prompt) -> None:
        """Appends a prompt: the first, or one that follows the last reply.

        Raises:
          ValueError: a first prompt without any token.
        """
        ids = self.context.ids
        if ids:
            ended = ids[-1] in self.codec.end_ids
            self.given = list(self.codec.follow(self.messages, prompt, ended))
        else:
            self.given = list(self.codec.start(prompt))
            if not self.given:
                raise ValueError(f"the prompt of seat {self.seat} has no token: {prompt}")
        ids += self.given
        self.messages += prompt.messages
        self.prompt = prompt

    def recall(self, action: Action) -> None:
        """Appends a prompt and the reply to it, as they were."""
        self.context.ids += action.given.tolist()
        self.context.mark()
        self.context.ids += action.tokens.tolist()
        self.messages += action.prompt.messages
        self._note_reply(action.prompt, action.text)

    def finish(self, turn: int) -> Action:
        """The action that has just ended; its reply joins the messages."""
        tokens, logp, entropy = action_arrays(self.context)
        text = self.codec.text(self.context.tokens)
        self._note_reply(self.prompt, text)
        return Action(
            seat=self.seat,
            turn=turn,
            context=self.number,
            given=np.array(self.given, np.int32),
            tokens=tokens,
            logp=logp,
            entropy=entropy,
            text=text,
            prompt=self.prompt,
            truncated=int(tokens[-1]) not in self.codec.end_ids,
        )

    def _note_reply(self, prompt: Prompt, text: str) -> None:
        if prompt.messages:
            self.messages.append({"role": "assistant", "content": text})


class RunningEpisode:
    """An episode between its request and its result.

    Attributes:
      index: its place, see `results`.
      device: where its contexts lie. handle: its name in the pool. line: see `backlog`.
      call: number of the call it waits for, 0 for none.
      saving_since: when it asked for a snapshot that has not come yet, or None.
      turn: number of the turn being answered; before the first, one less than that.
      awaited: seats that have not answered yet.
    """

    def __init__(
        self, index: tuple[int, ...], request: EpisodeRequest, device: int, handle: int, line: Any
    ):
        self.index, self.request, self.device = index, request, device
        self.handle, self.line = handle, line
        self.call = 0
        self.saving_since: float | None = None
        self.reserved = False
        self.coming = coming(request)  # until it has its first context
        self.pending: Turn | None = None  # arrived before its slots were reserved
        self.awaited: set[int] = set()
        self.conversations: dict[int, Conversation] = {}
        self.snapshots: dict[int, bytes] = {}
        past = request.past
        self.turn = past.turn - 1 if past else -1
        self.actions: list[Action] = list(past.taken) if past else []
        self.rewards: list[Mapping[int, float]] = list(past.rewards[:-1]) if past else []
        self.contexts = 1 + max((action.context for action in self.actions), default=-1)

    @property
    def sampled(self) -> int:
        """Tokens sampled so far, those of its past among them."""
        return sum(len(action.tokens) for action in self.actions)

    @property
    def is_resuming(self) -> bool:
        """Whether the next turn is the one that was pending at the snapshot of its past."""
        past = self.request.past
        return past is not None and self.turn < past.turn

    def recall(self, codecs: Sequence[Codec]) -> None:
        """Takes up the contexts of its past, each after its last reply; a codec for each seat."""
        for action in self.actions:
            held = self.conversations.get(action.seat)
            if held is None or held.number != action.context:
                held = Conversation(action.context, action.seat, codecs[action.seat], self)
                self.conversations[action.seat] = held
            held.recall(action)

    def replies(self) -> dict[int, str]:
        """What each seat answered in this turn."""
        return {action.seat: action.text for action in self.actions if action.turn == self.turn}

    def result(self, status: str, record: Any = None, failure: Failure | None = None):
        """The result, actions in order of turns and seats."""
        ordered = sorted(self.actions, key=lambda action: (action.turn, action.seat))
        return EpisodeResult(
            self.request,
            status,
            tuple(ordered),
            tuple(self.rewards),
            record,
            failure,
            dict(self.snapshots),
        )


def coming(request: EpisodeRequest) -> tuple[Any, ...]:
    """What the first contexts of an episode begin like: the prompt of its group, or the marks of
    its past. Slots that hold it are spared until they have come."""
    return (request.group,) if request.past is None else request.past.marks()
