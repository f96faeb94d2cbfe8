"""The environment of a team: every member of a workflow's roles is a seat."""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sepo_jax.domains.teams import TeamDomain, TeamEpisode, observation_of, seats
from sepo_jax.sandbox.base import BaseEnvironment
from sepo_jax.sandbox.protocol import EnvironmentFactory, Membership, Prompt, Turn
from sepo_jax.sandbox.snapshots import content_hash


class TeamEnvironment(BaseEnvironment):
    """Plays the workflow of a domain (`domains.teams`): each turn is one event.

    Seats are numbered as `domains.teams.seats` lists them. What the team earns is paid to the first
    seat of the event before, so that the reward of an event stands at one of its members, once.

    Snapshots hold task, seed and replies and name the domain: one with other settings refuses them.
    """

    def __init__(self, domain: TeamDomain):
        self.domain = domain
        self.name = f"team of {domain.name}"
        self._members = seats(domain)

    @functools.cached_property
    def version(self) -> str:
        """Hash of the domain's settings."""
        return content_hash(self.domain)

    def shared(self) -> Mapping[str, Any]:
        """The domain, which never changes."""
        return {"domain": self.domain}

    def start(self, task: Any, seed: int) -> Turn:
        """Runs the workflow to its first event; what the workflow raises passes through."""
        self.state = TeamEpisode(self.domain, task, seed)
        return self._turn_after(self.state.paid, 0)

    def play(self, actions: Mapping[int, str]) -> Turn:
        """Gives the workflow the replies of an event."""
        paid = self.state.step({self._members[seat]: text for seat, text in actions.items()})
        return self._turn_after(paid, min(actions))

    def _turn_after(self, paid: float, seat: int) -> Turn:
        """The pending event, and what was paid to a seat of the one before."""
        episode, event = self.state, self.state.pending
        rewards = {seat: paid} if paid else {}
        if event is None:
            return Turn(rewards=rewards, done=True, record=episode.record())
        prompts = {}
        for (role, index), asked in event.asks.items():
            prompts[self._members.index((role, index))] = Prompt(
                messages=asked.messages,
                continues=asked.continues,
                legal_actions=asked.legal_actions,
                observation=observation_of(asked, (role, index), episode.state),
                membership=Membership(
                    kind=event.kind,
                    role=role,
                    member=index,
                    size=len(event.asks) if event.committed else 0,
                    state=episode.state,
                ),
            )
        return Turn(prompts, rewards)


def team_environments(domain: TeamDomain) -> EnvironmentFactory:
    """A factory of a team's environments; those of one process share the domain."""
    return functools.partial(_team_environment, domain)


def _team_environment(domain: TeamDomain, scratch: Path) -> TeamEnvironment:
    return TeamEnvironment(domain)
