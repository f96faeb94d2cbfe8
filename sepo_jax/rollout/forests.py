"""Episodes as a forest of segments: who sampled what, after which tokens, in which event."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..forest import Forest, ForestBuilder, observation_hash
from ..sandbox.episodes import Action, EpisodeResult


def build_forest(
    results: Sequence[EpisodeResult], share_prompts: bool = True, *, policy_version: int = 0
) -> Forest:
    """The sampled segments of episodes, in the order of episodes, turns and seats.

    Every context is a path: its prompt, then actions with what was given between them. `episode` is
    the place among the results, `agent` the seat, `turn` that of the episode, `observation` a hash
    of what the seat was shown. Actions of one turn share an event. An action earns what its seat
    was paid from then until its next one. A failed episode leaves nothing, and the last actions of
    one that was cut are truncated.

    In an episode of a team (`sandbox.protocol.Membership`) `agent` is the role, `event_type` the
    kind of event, both by `name_id`, and `event_size` what the event announces; answers that no
    transition consumes are in no event. The names are in the forest's metadata.

    An episode that goes on from a snapshot of another has its past in common with that one, where
    that one is among the results before it: shared segments stand there once, under the episode
    that sampled them, and so does what was given before the first action of its own. Its return is
    the sum of the rewards along its path, as that of any other. Its `trunk` is the place of that
    one, however early it branched off; any other episode is its own.

    Args:
      results: of `play`.
      share_prompts: one root for all contexts of a group and agent that begin with the same prompt,
        so that its tokens are computed once in the update; else a root for every context.
      policy_version: how often the policy had been updated.

    Raises:
      ValueError: an action that episodes share and are paid differently for, as happens where a
        seat acts before a branch and not at it.
    """
    layout = _Layout(share_prompts, policy_version, names_of(results))
    for index, result in enumerate(results):
        if result.status != "failed":
            layout.add(index, result)
    return layout.builder.build()


def name_id(name: str) -> int:
    """The number that stands for a role or a kind of event, the same in every forest."""
    return observation_hash(name) & 0x7FFFFFFF


def names_of(results: Sequence[EpisodeResult]) -> dict[str, dict[str, int]]:
    """{"roles": name -> number, "event_types": name -> number} of team episodes; else empty."""
    found = [action.prompt.membership for result in results for action in result.actions]
    found = [membership for membership in found if membership is not None]
    if not found:
        return {}
    names = {"roles": {one.role for one in found}, "event_types": {one.kind for one in found}}
    return {key: {name: name_id(name) for name in sorted(each)} for key, each in names.items()}


class _Layout:
    """Segments of the episodes so far."""

    def __init__(self, share_prompts: bool, policy_version: int, metadata: Mapping[str, Any]):
        self.builder = ForestBuilder(metadata)
        self._share_prompts, self._policy_version = share_prompts, policy_version
        self._given: dict[Any, int] = {}  # segments of what was given, by what is above, and tokens
        self._placed: dict[Action, tuple[int, float]] = {}  # segment and what it earned
        self._trunks: dict[Action, int] = {}
        self._events = 0

    def add(self, index: int, result: EpisodeResult) -> None:
        """Adds an episode."""
        past = result.request.past
        shared = set(past.taken) if past else set()
        trunk = self._trunks.get(past.asked[0], index) if past else index
        self._trunks |= dict.fromkeys(result.actions, trunk)
        sizes = Counter(action.turn for action in result.actions)
        last_turn = max(sizes, default=0)
        above: dict[int, int] = {}  # last segment of each context
        for action, reward in zip(result.actions, _earned(result), strict=True):
            if action in shared and action in self._placed:
                above[action.context], earned = self._placed[action]
                if earned != reward:
                    raise ValueError(
                        f"episode {index} earned {reward} with its action at turn {action.turn}, "
                        f"and the episode that it branched from {earned}: branch where every seat "
                        "that has acted acts again, or give each an episode of its own"
                    )
                continue
            cut = result.status != "finished" and action.turn == last_turn
            above[action.context] = self.builder.add(
                action.tokens,
                self._parent(action, above.get(action.context), index, result.request.group),
                is_action=True,
                behavior_logp=action.logp,
                entropy=action.entropy,
                reward=reward,
                episode=index,
                trunk=trunk,
                turn=action.turn,
                observation=observation_hash(action.prompt.observation),
                policy_version=self._policy_version,
                **self._event(action, sizes[action.turn]),
                truncated=action.truncated or cut,
            )
            self._placed[action] = above[action.context], reward
        self._events += last_turn + 1

    def _event(self, action: Action, acting: int) -> dict[str, int]:
        """The event fields of an action, at whose turn so many seats acted."""
        membership = action.prompt.membership
        event = self._events + action.turn
        if membership is None:
            return {"agent": action.seat, "event": event, "event_size": acting}
        who = {"agent": _agent(action)}
        if not membership.size:
            return who
        kind = name_id(membership.kind)
        return who | {"event": event, "event_type": kind, "event_size": membership.size}

    def _parent(self, action: Action, above: int | None, index: int, group: int) -> int:
        """The segment that an action follows: what was given before it, if anything was."""
        if above is not None and not len(action.given):
            return above
        key: Any = (above, action.given.tobytes())
        if above is None:
            whose = (group, _agent(action), *key)
            key = whose if self._share_prompts else (index, action.context)
        if key not in self._given:
            place = {"group": group} if above is None else {"parent": above}
            self._given[key] = self.builder.add(action.given, agent=_agent(action), **place)
        return self._given[key]


def _agent(action: Action) -> int:
    membership = action.prompt.membership
    return action.seat if membership is None else name_id(membership.role)


def _earned(result: EpisodeResult) -> list[float]:
    """What each action earned: all that its seat was paid until its next action, or the end."""
    earned, until = [], {}
    for action in reversed(result.actions):
        paid = result.rewards[action.turn + 1 : until.get(action.seat)]
        until[action.seat] = action.turn + 1
        earned.append(sum(reward.get(action.seat, 0.0) for reward in paid))
    return earned[::-1]


def decision_segments(forest: Forest) -> np.ndarray:
    """int32 [decisions], the action segments of a forest in the order of `build_forest`."""
    return np.flatnonzero(forest.is_action).astype(np.int32)
