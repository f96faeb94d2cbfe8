"""What the events of teams were: an audit of every joint decision of a rollout, and figures."""

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..sandbox.episodes import Action, EpisodeResult
from ..sandbox.protocol import Membership


class EventRecord(NamedTuple):
    """One joint decision, as it was sampled.

    Attributes:
      episode: place among the results.
      turn: of the episode.
      kind: of event.
      state: key of the state before, in which all members were asked.
      members: (role, index) of each member, in the order of seats.
      expected: how many members the event announces; 0 for outputs that no transition consumes.
      tokens: sampled tokens of each member.
    """

    episode: int
    turn: int
    kind: str
    state: str
    members: tuple[tuple[str, int], ...]
    expected: int
    tokens: tuple[int, ...]

    @property
    def complete(self) -> bool:
        """Whether it has all the members it announces; private outputs announce none."""
        return self.expected in (0, len(self.members))


def event_audit(results: Sequence[EpisodeResult]) -> list[EventRecord]:
    """Every joint decision of team episodes that did not fail, in order; of others nothing.

    Raises:
      ValueError: answers of one turn that are not members of one event.
    """
    found = []
    for index, result in enumerate(results):
        if result.status == "failed":
            continue
        turns: dict[int, list[Action]] = defaultdict(list)
        for action in result.actions:
            if action.prompt.membership is not None:
                turns[action.turn].append(action)
        for turn, actions in sorted(turns.items()):
            found.append(_record(index, turn, actions))
    return found


def _record(index: int, turn: int, actions: Sequence[Action]) -> EventRecord:
    shares = [_shared(action.prompt.membership) for action in actions]
    if len(set(shares)) > 1:
        raise ValueError(
            f"turn {turn} of episode {index} mixes members of several events: {sorted(set(shares))}"
        )
    kind, state, expected = shares[0]
    members = [action.prompt.membership for action in actions]
    return EventRecord(
        episode=index,
        turn=turn,
        kind=kind,
        state=state,
        members=tuple((one.role, one.member) for one in members),
        expected=expected,
        tokens=tuple(len(action.tokens) for action in actions),
    )


def _shared(membership: Membership) -> tuple[str, str, int]:
    return membership.kind, membership.state, membership.size


def team_metrics(results: Sequence[EpisodeResult]) -> dict[str, float]:
    """Figures of the events of a rollout; empty where no team played.

    Returns:
      team/events: events an episode. team/active_set: mean size of an event, and
      team/active_set_<kind> that of each kind. team/tokens: sampled tokens an episode, of private
      outputs too, and team/tokens_<role> those of each role.
    """
    records = event_audit(results)
    if not records:
        return {}
    episodes = sum(result.status != "failed" for result in results)
    sizes: dict[str, list[int]] = defaultdict(list)
    tokens: dict[str, int] = defaultdict(int)
    for record in records:
        if record.expected:
            sizes[record.kind].append(len(record.members))
        for (role, _), count in zip(record.members, record.tokens, strict=True):
            tokens[role] += count
    every = [size for each in sizes.values() for size in each]
    figures = {"team/events": len(every) / episodes}
    if every:
        figures["team/active_set"] = float(np.mean(every))
    figures |= {f"team/active_set_{kind}": float(np.mean(sizes[kind])) for kind in sorted(sizes)}
    figures["team/tokens"] = sum(tokens.values()) / episodes
    return figures | {f"team/tokens_{role}": tokens[role] / episodes for role in sorted(tokens)}
