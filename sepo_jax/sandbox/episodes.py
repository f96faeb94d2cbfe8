"""Episodes as the host queue plays them: what is asked for, what was sampled, how it ended."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from sepo_jax.sandbox.protocol import Failure, Message, Prompt, Turn
from sepo_jax.sandbox.slots import Context, action_arrays

STATUSES = ("finished", "turn_limit", "token_limit", "context_full", "failed")


@dataclass(frozen=True)
class EpisodeRequest:
    """An episode to play.

    Attributes:
      task, seed: handed to the environment's reset.
      group, member: with the seed and step of the rollout they fix every sampled token; members of
        a group are compared with one another.
      state: a snapshot to go on from, in place of a reset. It has no contexts, so the prompts
        pending there must not continue one.
    """

    task: Any
    seed: int
    group: int = 0
    member: int = 0
    state: bytes | None = None


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
class EpisodeResult:
    """How an episode went.

    Attributes:
      request: what was asked for.
      status: "finished", or cut by "turn_limit", "token_limit" or "context_full", or "failed": then
        nothing of it counts.
      actions: in order of turns, then seats.
      rewards: by seat, of the start (index 0) and after each turn.
      record: what the environment left at the end, None where it was cut.
      failure: why it failed.
    """

    request: EpisodeRequest
    status: str
    actions: tuple[Action, ...]
    rewards: tuple[Mapping[int, float], ...]
    record: Any = None
    failure: Failure | None = None


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


class Conversation:
    """One context of one seat: its tokens, and the messages they stand for."""

    def __init__(
        self, number: int, seat: int, codec: Codec, prompt: Prompt, owner: "RunningEpisode"
    ):
        self.number, self.seat, self.codec = number, seat, codec
        self.messages = list(prompt.messages)
        self.prompt = prompt
        ids = list(codec.start(prompt))
        if not ids:
            raise ValueError(f"the prompt of seat {seat} has no token: {prompt}")
        self.given = ids
        self.context = Context((owner, self), list(ids), owner.request.group)

    def follow(self, prompt: Prompt) -> None:
        """Appends the next prompt after the reply."""
        ended = self.context.ids[-1] in self.codec.end_ids
        self.given = list(self.codec.follow(self.messages, prompt, ended))
        self.messages += prompt.messages
        self.prompt = prompt
        self.context.ids += self.given

    def finish(self, turn: int) -> Action:
        """The action that has just ended; its reply joins the messages."""
        tokens, logp, entropy = action_arrays(self.context)
        text = self.codec.text(self.context.tokens)
        if self.prompt.messages:
            self.messages.append({"role": "assistant", "content": text})
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


class RunningEpisode:
    """An episode between its request and its result.

    Attributes:
      index: its place among the requests. device: where its contexts lie. handle: its name in the
        pool. call: number of the call it waits for, 0 for none.
      turn: number of the turn being answered, -1 before the first.
      awaited: seats that have not answered yet.
    """

    def __init__(self, index: int, request: EpisodeRequest, device: int, handle: int):
        self.index, self.request, self.device, self.handle = index, request, device, handle
        self.call = 0
        self.turn = -1
        self.reserved = False
        self.is_coming = True  # until it has its first context
        self.pending: Turn | None = None  # arrived before its slots were reserved
        self.awaited: set[int] = set()
        self.conversations: dict[int, Conversation] = {}
        self.actions: list[Action] = []
        self.rewards: list[Mapping[int, float]] = []
        self.contexts = 0

    @property
    def sampled(self) -> int:
        """Tokens sampled so far."""
        return sum(len(action.tokens) for action in self.actions)

    def replies(self) -> dict[int, str]:
        """What each seat answered in this turn."""
        return {action.seat: action.text for action in self.actions if action.turn == self.turn}

    def result(self, status: str, record: Any = None, failure: Failure | None = None):
        """The result, actions in order of turns and seats."""
        ordered = sorted(self.actions, key=lambda action: (action.turn, action.seat))
        return EpisodeResult(
            self.request, status, tuple(ordered), tuple(self.rewards), record, failure
        )
