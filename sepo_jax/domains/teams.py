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
numbers, clocks or counters (`domains.seeds.stream(seed, ...)` gives random numbers). So an episode
pickles as its replies, and a copy runs the workflow again over them. What a workflow raises fails
its episode, which is then masked and counted: raise where a reward is to be missing.
"""

import hashlib
import json
import re
from collections.abc import Generator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from sepo_jax.domains.arguments import check_integer
from sepo_jax.domains.base import EpisodeFinished, Message
from sepo_jax.domains.team_events import (
    Answer,
    Ask,
    Event,
    Member,
    Replies,
    ask,
    event,
    finite_reward,
    private,
    system,
    user,
)
from sepo_jax.names import check_option

__all__ = [
    "MOST_OUTPUTS",
    "Answer",
    "Ask",
    "Event",
    "Member",
    "Replies",
    "TeamDomain",
    "TeamEpisode",
    "Transcript",
    "Workflow",
    "ask",
    "digest",
    "event",
    "is_team",
    "observation_of",
    "play_workflow",
    "private",
    "seats",
    "system",
    "team_figures",
    "user",
]

MOST_OUTPUTS = 10_000
"""Of an episode whose domain does not say how many it has at most; more are taken for endless. And
members of a team at most."""
_ROLE = re.compile(r"[\w-]+")

Workflow = Generator[Event, Replies, tuple[float, Any]]


class TeamDomain(Protocol):
    """A `domains.tasks.TaskDomain` that a team plays: `workflow` in place of `new_episode`.

    Attributes:
      name: short name in configs and reports.
      roles: role -> most members of it that are ever asked. Every member is a seat.
      most_outputs: how many outputs an episode has at most; optional, what dry runs take their
        sizes from. An episode that asks for more fails.
    """

    name: str
    roles: Mapping[str, int]

    def workflow(self, task: Any, seed: int) -> Workflow:
        """A generator of events that returns (reward, record); see the module."""


def seats(domain: TeamDomain) -> list[Member]:
    """The member at each seat: roles in the order of the domain, each with all its members.

    Raises:
      ValueError: no role, a name that could not name a file as well, or more than `MOST_OUTPUTS`
        members.
    """
    if not isinstance(domain.roles, Mapping) or not domain.roles:
        raise ValueError(
            f'roles of {domain.name!r} map names to numbers of members, such as {{"solver": 3}}, '
            f"not {domain.roles!r}"
        )
    for role in domain.roles:
        # Metrics and directories of adapters are named after it.
        if not (isinstance(role, str) and _ROLE.fullmatch(role)):
            raise ValueError(
                f"a role of {domain.name!r} is named {role!r}; a name is letters, digits, hyphens "
                "and underscores"
            )
    sizes = {
        role: check_integer(f"roles[{role!r}]", most, minimum=1)
        for role, most in domain.roles.items()
    }
    if sum(sizes.values()) > MOST_OUTPUTS:
        raise ValueError(
            f"the roles of {domain.name!r} have {sum(sizes.values())} members, and a team at most "
            f"{MOST_OUTPUTS}: {sizes}"
        )
    return [(role, index) for role, most in sizes.items() for index in range(most)]


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
        self._outputs = 0  # asked for so far
        self._contexts: set[Member] = set()
        self._record: Any = None
        self._running: Workflow | None = self._begun()
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
          ValueError: others reply than were asked, or no text; or the workflow does not repeat
            itself, asks a role or member that the domain does not have, continues a context that
            does not exist, asks for more outputs than an episode may have, or returns something
            else than (reward, record).
        """
        if self.pending is None:
            raise EpisodeFinished("the workflow has returned; start another episode")
        if set(replies) != set(self.pending.asks):
            asked = sorted(self.pending.asks)
            raise ValueError(f"event {self.pending.kind!r} asks {asked}, not {sorted(replies)}")
        for member, reply in replies.items():
            if not isinstance(reply, str):
                raise ValueError(f"a reply is text, and {member} replies {repr(reply)[:80]}")
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
            # A copy, which the workflow may change: the replies themselves are played again.
            found = self._running.send(None if replies is None else dict(replies))
        except StopIteration as end:
            self.pending, self._running = None, None
            self.paid, self._record = _outcome(end.value)
            return
        self._check(found)
        self._outputs += len(found.asks)
        self._check_end()
        if found.committed:
            self._sets.append((found.kind, len(found.asks)))
        self._contexts |= set(found.asks)
        self.pending, self.paid = found, found.reward

    def _begun(self) -> Workflow:
        running = self._domain.workflow(self._task, self._seed)
        if not isinstance(running, Generator):
            raise ValueError(
                f"the workflow of {self._domain.name!r} gives {repr(running)[:80]}; it is a "
                "function that yields event(...)"
            )
        return running

    def _again(self) -> Workflow:
        """The workflow after the replies so far."""
        running = self._begun()
        try:
            found = next(running)
            for replies in self._replies:
                found = running.send(dict(replies))
        except StopIteration:  # it ends where it went on before
            found = None
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
            if not (isinstance(member, tuple) and len(member) == 2 and type(member[1]) is int):
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

    def _check_end(self) -> None:
        most = getattr(self._domain, "most_outputs", MOST_OUTPUTS)
        if self._outputs > most:
            raise ValueError(
                f"the workflow of {self._domain.name!r} asks for more than {most} outputs in an "
                "episode; bound its rounds, or raise most_outputs of the domain"
            )


def _outcome(value: Any) -> tuple[float, Any]:
    if not (isinstance(value, tuple) and len(value) == 2):
        raise ValueError(f"a workflow returns (reward, record), not {repr(value)[:80]}")
    return finite_reward("the workflow earns", value[0]), value[1]


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
      ValueError: as of `TeamEpisode`, or a record that is no JSON value.
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
    record = episode.record()
    try:
        json.dumps(record, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"the record of a workflow is a JSON value: {error}") from error
    return Transcript(events, reward, record)


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
