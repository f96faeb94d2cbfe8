"""What episodes and their turns earned, read off a forest (host side, float64, NaN = missing)."""

import dataclasses
import itertools

import numpy as np

from sepo_jax.forest.data import Forest


@dataclasses.dataclass(frozen=True, eq=False)
class PathActions:
    """Every action segment of every leaf path: P pairs, paths in order of `leaves()`, root first.

    Attributes:
      leaf: number of the leaf path, int64 [P].
      segment: the action segment, int64 [P].
      episode: rewards of the leaf's whole episode, float64 [L].
      to_go: discounted rewards of the episode from the segment's turn on, float64 [P].
      immediate: rewards of the segment's turn, float64 [P].
    """

    leaf: np.ndarray
    segment: np.ndarray
    episode: np.ndarray
    to_go: np.ndarray
    immediate: np.ndarray

    def over_segments(
        self, values: np.ndarray, weight: np.ndarray, num_segments: int
    ) -> np.ndarray:
        """Weighted mean of `values` [P] over the paths through each segment, float64 [N].

        Pairs whose value is NaN are left out; NaN where nothing is left.
        """
        weight = np.where(np.isnan(values), 0.0, weight)
        total = np.bincount(self.segment, weight, num_segments)
        summed = np.bincount(self.segment, np.nan_to_num(values) * weight, num_segments)
        with np.errstate(invalid="ignore"):
            return np.where(total > 0, summed / total, np.nan)


def path_actions(
    forest: Forest, *, reward: np.ndarray | None = None, gamma: float = 1.0
) -> PathActions:
    """Returns of episodes and turns.

    An episode earns the sum of the rewards of all its segments, each once, over all its contexts.
    With `turn(x)` the turn of the nearest action at or above x, an action segment s earns

        to_go(s) = sum over x of gamma^(turn(x) - turn(s)) * reward(x),   turn(x) >= turn(s)

    over the segments x of its episode that are not above s; `immediate(s)` is the part with
    `turn(x) = turn(s)`. A reward that another agent's segment carries thus reaches this one too.

    Args:
      forest: the data.
      reward: in place of `forest.reward`, [N].
      gamma: discount per turn.
    """
    reward = np.asarray(forest.reward if reward is None else reward, np.float64)
    turn = _turns(forest)
    leaves = forest.leaves()
    paths = [forest.path(int(leaf)) for leaf in leaves]
    episode = np.zeros(len(leaves))
    to_go, immediate = [[] for _ in leaves], [[] for _ in leaves]
    for members in _by_episode(forest.episode[leaves]):
        segments = sorted({segment for number in members for segment in paths[number]})
        episode[members] = sum(reward[segments].tolist())
        turns, place = np.unique(turn[segments], return_inverse=True)
        earned = np.bincount(place, reward[segments], len(turns))
        later = np.zeros(len(turns))
        for k in range(len(turns) - 2, -1, -1):
            later[k] = gamma ** (turns[k + 1] - turns[k]) * (earned[k + 1] + later[k + 1])
        number_of_turn = {value: k for k, value in enumerate(turns.tolist())}
        for number in members:
            before = dict.fromkeys(number_of_turn, 0.0)
            for segment in paths[number]:
                here = turn[segment]
                if forest.is_action[segment]:
                    k = number_of_turn[here]
                    now = earned[k] - before[here]
                    immediate[number].append(now)
                    to_go[number].append(now + later[k])
                before[here] += reward[segment]
    pairs = [[segment for segment in path if forest.is_action[segment]] for path in paths]
    return PathActions(
        leaf=np.repeat(np.arange(len(leaves)), [len(pair) for pair in pairs]),
        segment=np.array(list(itertools.chain(*pairs)), np.int64),
        episode=episode,
        to_go=np.array(list(itertools.chain(*to_go)), np.float64),
        immediate=np.array(list(itertools.chain(*immediate)), np.float64),
    )


def _turns(forest: Forest) -> np.ndarray:
    """Turn of the nearest action at or above each segment; below all turns where there is none."""
    turn = np.full(forest.num_segments, forest.turn.min(initial=0) - 1, np.int64)
    for segment, parent in enumerate(forest.parent):
        if forest.is_action[segment]:
            turn[segment] = forest.turn[segment]
        elif parent >= 0:
            turn[segment] = turn[parent]
    return turn


def _by_episode(episode: np.ndarray) -> list[np.ndarray]:
    order = np.argsort(episode, kind="stable")
    cuts = np.flatnonzero(np.diff(episode[order])) + 1
    return np.split(order, cuts) if len(order) else []
