"""Events of teams: who is asked what, in one joint decision. `domains.teams` says what belongs to
one."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sepo_jax.domains.base import Message

Member = tuple[str, int]
"""Who is asked: a role, and which of its members, from 0."""
Replies = Mapping[Member, str]
Answer = Callable[[str, Member, Sequence[Message]], str]
"""Kind of event, who is asked, what the context shows by then -> reply."""


@dataclasses.dataclass(frozen=True)
class Ask:
    """What one member is asked; made by `ask`.

    Attributes:
      messages: [system, user] or [user] of a fresh context; of one that continues, what follows its
        last reply.
      continues: whether they follow the member's last reply in the same context.
      legal_actions: canonical replies, empty where they are not listed.
      observation: key of what the member sees; "" for one that tells all messages apart.
    """

    messages: tuple[Message, ...]
    continues: bool = False
    legal_actions: tuple[str, ...] = ()
    observation: str = ""


@dataclasses.dataclass(frozen=True)
class Event:
    """What a workflow yields; made by `event` or `private`.

    Attributes:
      kind: short name; events of one kind and role are compared with each other within a task.
      asks: what each member is asked.
      committed: whether the outputs are consumed by a transition; if not they belong to no event.
      reward: what the team has earned since the last event; the rest is paid at the end.

    Raises:
      ValueError: a kind without a name, nobody is asked, something that is no message, or a reward
        that is no finite number.
    """

    kind: str
    asks: Mapping[Member, Ask]
    committed: bool = True
    reward: float = 0.0

    def __post_init__(self):
        if not isinstance(self.kind, str) or not self.kind:
            raise ValueError(f"the kind of an event is a short name, not {self.kind!r}")
        object.__setattr__(self, "asks", _asks(self.kind, self.asks))
        object.__setattr__(self, "reward", finite_reward(f"event {self.kind!r} pays", self.reward))


def system(text: str) -> Message:
    """A message that says what the role is."""
    return {"role": "system", "content": text}


def user(text: str) -> Message:
    """A message that asks."""
    return {"role": "user", "content": text}


def ask(
    messages: Sequence[Message],
    *,
    continues: bool = False,
    legal_actions: Sequence[str] = (),
    observation: str = "",
) -> Ask:
    """What a member is asked; see `Ask`."""
    return Ask(tuple(messages), continues, tuple(legal_actions), observation)


def event(
    kind: str, asks: Mapping[Member, Ask | Sequence[Message]], *, reward: float = 0.0
) -> Event:
    """A joint decision of the members asked; bare messages open a fresh context. Errors of
    `Event`."""
    return Event(kind, asks, True, reward)


def private(
    kind: str, asks: Mapping[Member, Ask | Sequence[Message]], *, reward: float = 0.0
) -> Event:
    """Outputs that no transition consumes, such as drafts for an aggregator; errors of `Event`."""
    return Event(kind, asks, False, reward)


def _asks(kind: str, asks: Any) -> dict[Member, Ask]:
    if not isinstance(asks, Mapping):
        raise ValueError(f"event {kind!r} asks {{(role, index): messages}}, not {repr(asks)[:80]}")
    if not asks:
        raise ValueError(f"event {kind!r} asks nobody; leave an event out where its set is empty")
    made = {}
    for member, asked in asks.items():
        one = ask(asked) if isinstance(asked, Sequence) else asked
        if not (isinstance(one, Ask) and one.messages and all(map(_is_message, one.messages))):
            raise ValueError(
                f"event {kind!r} asks {member} with {repr(asked)[:80]}; give messages, such as "
                '[user("...")], or ask(messages, ...)'
            )
        # Copies: a workflow may go on writing on the messages that it asked with.
        said = tuple(dict(message) for message in one.messages)
        made[member] = dataclasses.replace(one, messages=said)
    return made


def _is_message(value: Any) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(value.get(name), str) for name in ("role", "content")
    )


def finite_reward(what: str, value: Any) -> float:
    """A reward as a number; ValueError, which says what is rewarded, where it is no finite one."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(
            f"{what} {repr(value)[:80]}, and a reward is a finite number; raise an error where it "
            "is to be missing"
        )
    return number
