"""What an environment, a pool of them and their caller say to one another.

An environment is plain Python that lives in a sandbox and speaks text. It may have several seats:
a turn asks some of them (one: sequential moves; several: simultaneous ones), and goes on when all
of these have answered. What it answers crosses processes as JSON, so that nothing a sandbox sends
is ever unpickled by the process that trains.
"""

import dataclasses
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

Message = Mapping[str, str]
"""One chat message: {"role": "system" | "user" | "assistant", "content": text}."""


class SandboxError(RuntimeError):
    """Something went wrong in or around a sandbox."""


class SnapshotRefused(SandboxError):
    """An environment cannot be snapshotted here, or a snapshot does not give back its state."""


class TooManyFailures(SandboxError):
    """More episodes failed than the configured share, or no worker is left."""


class BadAnswer(SandboxError):
    """An environment answered something that is no `Turn`."""


@dataclass(frozen=True)
class Membership:
    """Which joint decision of a team an answer is part of; all seats of a turn share one.

    Attributes:
      kind: what is decided; decisions of one kind may be compared.
      role, member: who answers: a role, and the place among its members.
      size: how many answers the decision consists of; 0 for answers that no transition consumes.
      state: key of the state before, in which all members are asked.
    """

    kind: str
    role: str
    member: int
    size: int
    state: str = ""


@dataclass(frozen=True)
class Prompt:
    """What one seat is asked.

    Attributes:
      messages: chat messages, each {"role", "content"}.
      continues: whether the messages follow the seat's last reply in the same context; otherwise
        the seat gets a fresh context of these messages alone.
      tokens: token ids in place of messages, for policies that speak no text.
      legal_actions: canonical replies, empty where they are not listed.
      observation: key of what the seat sees; equal keys mean equal situations.
      membership: the joint decision that the answer is part of; None where the seats of a turn are
        all there is to say.
    """

    messages: tuple[Message, ...] = ()
    continues: bool = False
    tokens: tuple[int, ...] = ()
    legal_actions: tuple[str, ...] = ()
    observation: str = ""
    membership: Membership | None = None


@dataclass(frozen=True)
class Turn:
    """What an environment shows after a reset, a step or a restore.

    Attributes:
      prompts: by seat, those that must act before the next turn; empty exactly when done.
      rewards: by seat, what it earned since the last turn; 0 for seats left out.
      done: whether the episode is over.
      record: a JSON value that the episode leaves at its end (rounds, decisions, a test report).
    """

    prompts: Mapping[int, Prompt] = field(default_factory=dict)
    rewards: Mapping[int, float] = field(default_factory=dict)
    done: bool = False
    record: Any = None

    def to_json(self) -> str:
        """The turn as JSON text; raises BadAnswer for what JSON or the rules of a turn refuse."""
        check_turn(self)
        prompts = {
            str(seat): {
                "messages": [dict(message) for message in prompt.messages],
                "continues": prompt.continues,
                "tokens": [int(token) for token in prompt.tokens],
                "legal_actions": list(prompt.legal_actions),
                "observation": prompt.observation,
                "membership": prompt.membership and dataclasses.asdict(prompt.membership),
            }
            for seat, prompt in self.prompts.items()
        }
        rewards = {str(seat): float(reward) for seat, reward in self.rewards.items()}
        fields = {"prompts": prompts, "rewards": rewards, "done": self.done, "record": self.record}
        try:
            return json.dumps(fields, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise BadAnswer(f"a turn must hold JSON values: {error}") from error

    @staticmethod
    def from_json(text: str) -> "Turn":
        """The turn that `to_json` wrote; raises BadAnswer for anything else."""
        try:
            fields = json.loads(text)
            prompts = {
                int(seat): Prompt(
                    messages=tuple(
                        {"role": message["role"], "content": message["content"]}
                        for message in prompt["messages"]
                    ),
                    continues=prompt["continues"],
                    tokens=tuple(prompt["tokens"]),
                    legal_actions=tuple(prompt["legal_actions"]),
                    observation=prompt["observation"],
                    membership=prompt["membership"] and Membership(**prompt["membership"]),
                )
                for seat, prompt in fields["prompts"].items()
            }
            rewards = {int(seat): float(value) for seat, value in fields["rewards"].items()}
            turn = Turn(prompts, rewards, fields["done"], fields["record"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise BadAnswer(f"not a turn: {type(error).__name__}: {error}") from error
        check_turn(turn)
        return turn


def check_turn(turn: Turn) -> None:
    """Raises BadAnswer for a turn that breaks the rules of `Turn` or `Prompt`."""
    if not isinstance(turn, Turn):
        raise BadAnswer(f"an environment must answer a Turn, not {type(turn).__name__}")
    if not isinstance(turn.done, bool) or turn.done == bool(turn.prompts):
        raise BadAnswer(
            f"a turn asks seats or is done: done={turn.done!r} with {len(turn.prompts)} prompts"
        )
    for seat, reward in turn.rewards.items():
        if not math.isfinite(reward):
            raise BadAnswer(f"the reward of seat {seat} is {reward}; it must be a finite number")
    for seat, prompt in turn.prompts.items():
        if not isinstance(seat, int) or seat < 0:
            raise BadAnswer(f"a seat is a whole number from 0, not {seat!r}")
        if bool(prompt.messages) == bool(prompt.tokens):
            raise BadAnswer(f"the prompt of seat {seat} needs messages or tokens, and not both")
        texts = [message[name] for message in prompt.messages for name in ("role", "content")]
        texts += [prompt.observation, *prompt.legal_actions]
        whole = all(isinstance(token, int) and token >= 0 for token in prompt.tokens)
        if not whole or not all(isinstance(text, str) for text in texts):
            raise BadAnswer(f"the prompt of seat {seat} holds something that is no text or token")
    _check_memberships([prompt.membership for prompt in turn.prompts.values()])


def _check_memberships(found: Sequence[Membership | None]) -> None:
    """Raises BadAnswer where the seats of a turn are not the members of one joint decision."""
    if all(one is None for one in found):
        return
    if None in found:
        raise BadAnswer("some prompts of a turn belong to a joint decision and others do not")
    for one in found:
        texts, numbers = (one.kind, one.role, one.state), (one.member, one.size)
        if not all(isinstance(text, str) for text in texts) or not all(
            isinstance(number, int) and number >= 0 for number in numbers
        ):
            raise BadAnswer(f"a membership holds texts and numbers from 0, not {one}")
    if len({(one.kind, one.size, one.state) for one in found}) > 1:
        raise BadAnswer(f"members of one decision differ in kind, size or state: {found}")
    if len({(one.role, one.member) for one in found}) < len(found):
        raise BadAnswer(f"a member is asked twice in one decision: {found}")
    if found[0].size not in (0, len(found)):
        raise BadAnswer(
            f"decision {found[0].kind!r} has {found[0].size} members and asks {len(found)}; all of "
            "them are asked in one turn"
        )


class Environment(Protocol):
    """An environment in a sandbox. One object serves one episode at a time, and many in turn."""

    def reset(self, task: Any, seed: int) -> Turn:
        """Starts an episode; the same task and seed give the same one in every process."""

    def step(self, actions: Mapping[int, str]) -> Turn:
        """Plays the reply of each seat that the last turn asked."""

    def snapshot(self) -> bytes:
        """The state of the running episode; raises SnapshotRefused where there is no such thing."""

    def restore(self, state: bytes) -> Turn:
        """Goes on from a snapshot, of this or another process; the turn pending there."""

    def close(self) -> None:
        """Gives back what the environment holds."""


EnvironmentFactory = Callable[[Path], Environment]
"""Makes an environment; gets an empty directory of its own. Must pickle for other processes."""


@dataclass(frozen=True)
class Call:
    """Something asked of an environment.

    Attributes:
      number: unique among all calls of a pool.
      episode: names the environment that serves it, from its reset or restore to its close.
      kind: "reset", "step", "snapshot", "restore" or "close"; a close is not answered.
      payload: (task, seed) of a reset, {seat: text} of a step, bytes of a restore.
    """

    number: int
    episode: int
    kind: str
    payload: Any = None


@dataclass(frozen=True)
class Failure:
    """Why a call has no result.

    Attributes:
      kind: "worker_died", "timeout", "raised", "bad_answer", "refused" (a snapshot), or "lost" (the
        worker died of another episode's call, and this one could not be replayed).
      message: what happened, with the sandbox's own words.
    """

    kind: str
    message: str


@dataclass(frozen=True)
class Answer:
    """The result of a call: exactly one of `turn`, `state` (of a snapshot) and `failure`.

    `arrived` is the time of its making on the monotonic clock, in seconds.
    """

    number: int
    episode: int
    turn: Turn | None = None
    state: bytes | None = None
    failure: Failure | None = None
    arrived: float = field(default_factory=time.monotonic, compare=False)


class Pool(Protocol):
    """Environments somewhere: in this process, in worker processes, in Ray actors.

    Every call but a close is answered exactly once, in any order, whatever happens to the worker.
    All methods may be called from any thread.

    Attributes:
      counters: calls, restarts, deaths, timeouts, raised, bad_answers, ignored_answers (late or
        duplicate), replayed (episodes moved to another worker), constructed (environments made).
    """

    counters: dict[str, int]

    def submit(self, call: Call) -> None:
        """Hands in a call and returns at once; raises TooManyFailures when no worker is left."""

    def take(self) -> list[Answer]:
        """All answers that have arrived since the last take; never waits."""

    def wait(self, seconds: float) -> bool:
        """Waits until an answer is there to take; False when none came in time."""

    def close(self) -> None:
        """Ends all workers and removes their files; again is fine."""
