"""Credit of a branching rollout straight from its definition, without forests."""

import numpy as np

from sepo_jax.rollout.branching import trees


def leave_one_out(values):
    return [value - (sum(values) - value) / (len(values) - 1) for value in values]


def by_hand(rollout):
    """Advantage and weight of every own action of every episode, from returns alone."""
    played = [result for result in rollout.results if result.failure is None]
    earned = {r: sum(paid.get(0, 0.0) for paid in r.rewards) for r in played}
    found = {}
    for tree in trees(rollout.results):
        trunk, after = rollout.results[tree.trunk], {}
        points = [
            (point.turn, kept)
            for point in tree.points
            if (kept := [f for n in point.forks if (f := rollout.results[n]).failure is None])
        ]
        value = earned[trunk]
        for turn, forks in points[::-1]:
            after[turn] = leave_one_out([value, *(earned[fork] for fork in forks)])
            value = np.mean([value, *(earned[fork] for fork in forks)])
        advantage, weight = None, 1.0
        for action in trunk.actions:
            for turn, forks in points:
                if turn == action.turn:
                    advantage, weight = after[turn][0], weight / (len(forks) + 1)
                    for fork, each in zip(forks, after[turn][1:], strict=True):
                        found |= dict.fromkeys(fork.actions[turn:], (each, weight))
            found[action] = advantage, weight
    return found
