"""Rewards of rounds on the decisions of a forest, and what is compared with what."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..forest import Forest
from ..names import check_option
from ..rollout import decision_segments

# What is compared: single decisions, or whole episodes.
OF_ROUNDS = ("round", "deal_round")
OF_DECISIONS = ("prompt", *OF_ROUNDS)
# Groups that an initial state has for itself; the others are of all episodes against an opponent.
OF_DEALS = ("deal", "deal_round")
GROUPINGS = (*OF_DECISIONS, "deal", "opponent")
RETURNS = ("to_go", "immediate")


def check_comparison(group_by: str, returns: str) -> None:
    """ValueError for an unknown `sepo.group_by` or `sepo.returns`, or two that do not agree."""
    check_option("sepo.group_by", group_by, GROUPINGS)
    check_option("sepo.returns", returns, RETURNS)
    if returns != "to_go" and group_by not in OF_DECISIONS:
        raise ValueError(
            f"sepo.returns={returns!r} is what a decision earns, but sepo.group_by={group_by!r} "
            f"compares whole episodes; group by {' or '.join(OF_DECISIONS)}"
        )


def reward_decisions(forest: Forest, episodes: Sequence[Any], rewards: np.ndarray) -> Forest:
    """Writes the rewards of rounds into the forest, each on the last decision of its round.

    Args:
      forest: of `rollout.play`.
      episodes: the played episodes.
      rewards: float [at least episodes, rounds].
    """
    decisions = [(e, d) for e, episode in enumerate(episodes) for d in episode.decisions]
    reward = forest.reward.copy()
    last = {(e, d.round): i for i, (e, d) in enumerate(decisions)}
    for i, (segment, (e, d)) in enumerate(zip(decision_segments(forest), decisions, strict=True)):
        reward[segment] = rewards[e, d.round] if last[e, d.round] == i else 0.0
    return forest.replace(reward=reward)


def samples_of_decisions(
    forest: Forest,
    episodes: Sequence[Any],
    *,
    group_by: str = "prompt",
    returns: str = "to_go",
) -> Forest:
    """Makes every decision a trajectory of its own, with a reward and a group of its own.

    A decision earns the rewards of its round and of all later ones ("to_go"), or of its round alone
    ("immediate"); nothing earned before counts. Its baseline may depend on all that the agent saw,
    and on other episodes:

        "prompt"  it is compared with the other samples of its prompt in its group.
        "round"   it is compared with the decisions of the same turn of the other episodes of its
                  group; in a game of one decision a round, that is the same round. No group holds
                  two decisions of an episode: no baseline depends on what it is subtracted from.
        "deal_round"  the same, where a group is of one initial state.

    Args:
      forest: of `rollout.play`, with rewards; decisions of an episode in order. For rounds each
        prompt is a root of its own (`share_prompts=False`), since a group holds whole trees.
      episodes: the played episodes.
    """
    actions = decision_segments(forest)
    rounds = [decision.round for played in episodes for decision in played.decisions]
    reward, episode, trunk = (
        getattr(forest, name).copy() for name in ("reward", "episode", "trunk")
    )
    for place in range(len(actions) - 2, -1, -1):
        here, after = actions[place : place + 2]
        counts = returns == "to_go" or rounds[place] == rounds[place + 1]
        if counts and forest.episode[here] == forest.episode[after]:
            reward[here] += reward[after]
    episode[actions] = trunk[actions] = np.arange(len(actions))
    group = forest.tree()
    if group_by in OF_ROUNDS:
        turn = np.zeros_like(forest.turn)
        turn[forest.parent[actions]] = turn[actions] = forest.turn[actions]
        _, group = np.unique(np.stack([forest.group, turn]), axis=1, return_inverse=True)
        group = group.reshape(-1).astype(np.int32)
    return forest.replace(reward=reward, episode=episode, trunk=trunk, group=group)


def spread_of_groups(forest: Forest) -> tuple[int, int, np.ndarray]:
    """Groups in which all episodes earn the same, all groups, and which decisions are in groups
    where they do not, bool [decisions]. An episode that lacks a reward (NaN) is left out."""
    actions = decision_segments(forest)
    _, first, of_episode = np.unique(
        forest.episode[actions], return_index=True, return_inverse=True
    )
    earned = np.bincount(of_episode, forest.reward[actions]).astype(np.float32)
    _, group = np.unique(forest.group[actions][first], return_inverse=True)
    count = int(group.max(initial=-1)) + 1
    low, high = np.full(count, np.inf, np.float32), np.full(count, -np.inf, np.float32)
    known = ~np.isnan(earned)
    np.minimum.at(low, group[known], earned[known])
    np.maximum.at(high, group[known], earned[known])
    spread = high > low
    return int((~spread).sum()), count, spread[group][of_episode]
