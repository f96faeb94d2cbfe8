"""Teams: a workflow over roles is a small Python function that yields events.

An event is one joint decision: the outputs of all its members are sampled from the same state, each
in its own context, and one transition consumes them together. The function gets the replies of all
members at once and goes on; what it returns ends the episode:

    class Sums:
        name = "sums"
        roles = {"solver": 3, "verifier": 1}       # role -> most members; they are the seats

        def workflow(self, task, seed):
            asked = ask([system("Reply with the sum."), user(task["question"])])
            drafts = yield event("solve", {("solver", i): asked for i in range(3)})
            listed = "; ".join(drafts[member] for member in sorted(drafts))
            verdict = yield event("verify", {("verifier", 0): [user(f"{listed}. Which is right?")]})
            right = verdict["verifier", 0] == task["answer"]
            return float(right), {"right": right}  # reward of the team, record in JSON values

        ...                                        # and the rest of `tasks.TaskDomain`

What belongs to an event is the minimal set of outputs that one transition consumes
(SRPO, arXiv 2609.08452):

- Proposals that join what later roles are shown are members, chosen in the end or not.
- Outputs that become known one after the other are events one after the other.
- Drafts that only an aggregator sees, and whose own output alone counts, are no members: yield
  `private(...)` for them, then an event of one.
- Retrieved documents, verdicts of programs and the like are what later messages say, never members.
- A routed set is whatever the router's reply names: a workflow reads it and asks those.

A workflow is a function of the task, the seed and the replies, nothing else: no global random
numbers, clocks or counters (`domains.base.stream(seed, ...)` gives random numbers). So an episode
pickles as its replies, and a copy runs the workflow again over them. What a workflow raises fails
its episode, which is then masked and counted: raise where a reward is to be missing.
"""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from sepo_jax.domains.base import EpisodeFinished, Message, check_integer
from sepo_jax.names import check_option

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
    """

    kind: str
    asks: Mapping[Member, Ask]
    committed: bool = True
    reward: float = 0.0


Workflow = Generator[Event, Replies, tuple[float, Any]]


class TeamDomain(Protocol):
    """A `domains.tasks.TaskDomain` that a team plays: `workflow` in place of `new_episode`.

    Attributes:
      name: short name in configs and reports.
      roles: role -> most members of it that are ever asked. Every member is a seat.
      most_outputs: how many outputs an episode has at most; optional, what dry runs take their
        sizes from.
    """

    name: str
    roles: Mapping[str, int]

    def workflow(self, task: Any, seed: int) -> Workflow:
        """A generator of events that returns (reward, record); see the module."""


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
    """A joint decision of the members asked; bare messages open a fresh context.

    Raises:
      ValueError: nobody is asked, or something that is no message.
    """
    return Event(kind, _asks(kind, asks), True, float(reward))


def private(
    kind: str, asks: Mapping[Member, Ask | Sequence[Message]], *, reward: float = 0.0
) -> Event:
    """Outputs that no transition consumes, such as drafts for an aggregator; errors of `event`."""
    return Event(kind, _asks(kind, asks), False, float(reward))


def _asks(kind: str, asks: Mapping[Member, Ask | Sequence[Message]]) -> dict[Member, Ask]:
    if not asks:
        raise ValueError(f"event {kind!r} asks nobody; leave an event out where its set is empty")
    made = {}
    for member, asked in asks.items():
        made[member] = one = asked if isinstance(asked, Ask) else ask(asked)
        if not one.messages or not all(isinstance(each, Mapping) for each in one.messages):
            raise ValueError(
                f"event {kind!r} asks {member} with {repr(asked)[:80]}; give messages, such as "
                '[user("...")], or ask(messages, ...)'
            )
    return made


def seats(domain: TeamDomain) -> list[Member]:
    """The member at each seat: roles in the order of the domain, each with all its members."""
    return [
        (role, index)
        for role, most in domain.roles.items()
        for index in range(check_integer(f"roles[{role!r}]", most, minimum=1))
    ]


def is_team(domain: Any) -> bool:
    """Whether a domain is played by a workflow over roles."""
    return hasattr(domain, "workflow")


class TeamEpisode:
    """A workflow under way.

    It pickles as task, seed and replies, with the pending event; a copy runs the workflow again
    when it is first needed.

    Attributes:
      pending: the event to be answered, None when over.
      paid: what the team earned since the event before.
      state: key of the state that the pending event is asked in; equal for equal task, seed and
        replies.
    """

    def __init__(self, domain: TeamDomain, task: Any, seed: int):
        self._domain, self._task, self._seed = domain, task, check_integer("seed", seed, minimum=0)
        self._members = seats(domain)
        self._replies: list[dict[Member, str]] = []
        self._sets: list[tuple[str, int]] = []  # of each event so far: kind, size
        self._contexts: set[Member] = set()
        self._record: Any = None
        self._running: Workflow | None = domain.workflow(task, seed)
        self.state = digest(task, seed)
        self.pending: Event | None = None
        self.paid = 0.0
        self._go_on(None)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_running": None}

    @property
    def done(self) -> bool:
        """Whether the workflow has returned."""
        return self.pending is None

    def step(self, replies: Replies) -> float:
        """Gives the workflow the replies of all members that it asked; what the team earned.

        Raises:
          EpisodeFinished: it is over.
          ValueError: others reply than were asked; or the workflow does not repeat itself, asks a
            role or member that the domain does not have, continues a context that does not exist,
            or returns something else than (reward, record).
        """
        if self.pending is None:
            raise EpisodeFinished("the workflow has returned; start another episode")
        if set(replies) != set(self.pending.asks):
            asked = sorted(self.pending.asks)
            raise ValueError(f"event {self.pending.kind!r} asks {asked}, not {sorted(replies)}")
        if self._running is None:
            self._running = self._again()
        self._replies.append({member: replies[member] for member in self.pending.asks})
        told = [[*member, replies[member]] for member in sorted(replies)]
        self.state = digest(self.state, self.pending.kind, told)
        self._go_on(self._replies[-1])
        return self.paid

    def record(self) -> dict[str, Any]:
        """The workflow's record, and of its events: "event_kinds", "event_sizes", "calls" (outputs
        in all, private ones too), "active_set" (mean size of an event).

        Raises:
          ValueError: it is not over.
        """
        if self.pending is not None:
            raise ValueError(f"event {self.pending.kind!r} is not answered: there is no record yet")
        own = self._record if isinstance(self._record, Mapping) else {"result": self._record}
        sizes = [size for _, size in self._sets]
        return {
            **own,
            "event_kinds": [kind for kind, _ in self._sets],
            "event_sizes": sizes,
            "calls": sum(map(len, self._replies)),
            "active_set": sum(sizes) / max(len(sizes), 1),
        }

    def _go_on(self, replies: Replies | None) -> None:
        """Runs the workflow to its next event, or its end."""
        try:
            found = self._running.send(replies)
        except StopIteration as end:
            self.pending, self._running = None, None
            self.paid, self._record = _outcome(end.value)
            return
        self._check(found)
        if found.committed:
            self._sets.append((found.kind, len(found.asks)))
        self._contexts |= set(found.asks)
        self.pending, self.paid = found, found.reward

    def _again(self) -> Workflow:
        """The workflow after the replies so far."""
        running = self._domain.workflow(self._task, self._seed)
        found = next(running)
        for replies in self._replies:
            found = running.send(replies)
        if found != self.pending:
            raise ValueError(
                f"the workflow of {self._domain.name!r} does not repeat itself: after the same "
                f"{len(self._replies)} replies it asks something else; let it depend on the task, "
                "the seed and the replies alone"
            )
        return running

    def _check(self, found: Event) -> None:
        if not isinstance(found, Event):
            raise ValueError(f"a workflow yields event(...), not {repr(found)[:80]}")
        for member, asked in found.asks.items():
            if not (isinstance(member, tuple) and len(member) == 2):
                raise ValueError(f"a member is (role, index), not {member!r}")
            check_option(f"role of event {found.kind!r}", member[0], self._domain.roles)
            if member not in self._members:
                raise ValueError(
                    f"event {found.kind!r} asks {member}, but the domain's roles say that "
                    f"{member[0]!r} has {self._domain.roles[member[0]]} members; raise that number"
                )
            if asked.continues and member not in self._contexts:
                raise ValueError(
                    f"event {found.kind!r} continues a context of {member}, who was asked nothing "
                    "before: begin with continues=False"
                )


def _outcome(value: Any) -> tuple[float, Any]:
    if not (isinstance(value, tuple) and len(value) == 2):
        raise ValueError(f"a workflow returns (reward, record), not {repr(value)[:80]}")
    return float(value[0]), value[1]


def digest(*parts: Any) -> str:
    """A key of JSON values; equal ones have equal keys in every process.

    Raises:
      ValueError: something that is no JSON value.
    """
    try:
        text = json.dumps(parts, sort_keys=True)
    except TypeError as error:
        raise ValueError(f"tasks and replies are JSON values: {error}") from error
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


def observation_of(asked: Ask, member: Member, state: str) -> str:
    """Key of what a member sees: its own, else one of role and messages, and of the state before
    where the context continues."""
    if asked.observation:
        return asked.observation
    shown = [dict(message) for message in asked.messages]
    return digest(member[0], state if asked.continues else "", shown)


class Transcript(NamedTuple):
    """A workflow played to its end.

    Attributes:
      events: what was asked and replied, in order.
      reward: of the team, all that it was paid.
      record: as `TeamEpisode.record`.
    """

    events: list[tuple[Event, dict[Member, str]]]
    reward: float
    record: dict[str, Any]

    def decisions(self) -> list[tuple[list[Message], str]]:
        """Every reply behind all messages of its context so far, as `expert_traces` gives them."""
        return [(said, reply) for _, _, said, reply in self.conversations()]

    def conversations(self) -> list[tuple[str, Member, list[Message], str]]:
        """(kind, member, all messages of the context so far, reply) of every output."""
        found = []
        contexts: dict[Member, list[Message]] = {}
        for asked, replies in self.events:
            for member, reply in replies.items():
                said = _shown(contexts, member, asked.asks[member])
                found.append((asked.kind, member, said, reply))
                contexts[member] = [*said, {"role": "assistant", "content": reply}]
        return found


def play_workflow(domain: TeamDomain, task: Any, seed: int, answer: Answer) -> Transcript:
    """Plays a workflow with scripted members, such as experts, to its end.

    Args:
      domain, task, seed: what is played.
      answer: called for each member of an event, with the kind of event, the member and all
        messages of its context; its reply.

    Raises:
      ValueError: as of `TeamEpisode`.
    """
    episode = TeamEpisode(domain, task, seed)
    contexts: dict[Member, list[Message]] = {}
    events, reward = [], episode.paid
    while episode.pending is not None:
        asked, replies = episode.pending, {}
        for member, one in asked.asks.items():
            said = _shown(contexts, member, one)
            replies[member] = answer(asked.kind, member, said)
            contexts[member] = [*said, {"role": "assistant", "content": replies[member]}]
        events.append((asked, replies))
        reward += episode.step(replies)
    return Transcript(events, reward, episode.record())


def _shown(contexts: Mapping[Member, list[Message]], member: Member, asked: Ask) -> list[Message]:
    return [*(contexts[member] if asked.continues else ()), *asked.messages]


def team_figures(records: Sequence[Any]) -> dict[str, float]:
    """Means over episodes that left a record: "active_set", "events", "calls"; empty without any.
    For a domain's `figures`."""
    left = [record for record in records if record is not None]
    if not left:
        return {}
    sums = {
        "active_set": sum(record["active_set"] for record in left),
        "events": sum(len(record["event_sizes"]) for record in left),
        "calls": sum(record["calls"] for record in left),
    }
    return {name: value / len(left) for name, value in sums.items()}
