"""Groups of trees of rollouts in a tabular decision process: every outcome, or a sample of them.

A tree is a backbone with forks: the backbone is rolled to the end, branch points are chosen along
it, and from the state before the decision there further continuations are rolled to the end. A
group is the trees of one prompt. Each becomes a `forest.Forest` as the rollout engine makes it: an
observation is a given segment, a decision an action segment of one token, and what is forked
continues the same observation.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, combinations_with_replacement, product
from typing import Any, NamedTuple

import numpy as np

from ..domains.arguments import check_integer
from ..domains.decision_process import DecisionProcess, Path, paths_from, sample_paths
from ..forest import NO_EPISODE, NO_PARENT, NO_TRUNK, Forest, ForestBuilder

Selector = Callable[[Sequence[float]], Sequence[int]]
"""Entropies in nats of the policy at each decision of a backbone -> the decisions to fork."""


def nowhere(entropies: Sequence[float]) -> Sequence[int]:
    """No forks: the trees are independent rollouts."""
    return ()


def at_depths(*depths: int) -> Selector:
    """Forks at fixed decisions, from 0, where the backbone reaches them: looks at nothing."""
    return lambda entropies: [depth for depth in depths if depth < len(entropies)]


def highest_entropy(count: int) -> Selector:
    """Forks where the finished backbone was least certain, its last decision excluded; of equal
    ones the earliest. BPO, arXiv 2607.14171.

    Which decisions these are depends on what happened after them.
    """

    def select(entropies: Sequence[float]) -> list[int]:
        places = range(len(entropies) - 1)
        return sorted(sorted(places, key=lambda depth: (-entropies[depth], depth))[:count])

    return select


def above_entropy(threshold: float, count: int) -> Selector:
    """Forks at the first `count` decisions of entropy above a threshold: does not look ahead."""

    def select(entropies: Sequence[float]) -> list[int]:
        return [depth for depth, value in enumerate(entropies) if value > threshold][:count]

    return select


@dataclasses.dataclass(frozen=True)
class Design:
    """How a prompt is sampled. Without branch points: `trees` independent rollouts.

    Attributes:
      trees: trees per prompt.
      continuations: K, continuations of a branch point, the backbone's own among them.
      select: chooses branch points, by default none.
    """

    trees: int
    continuations: int = 2
    select: Selector = nowhere

    def __post_init__(self):
        check_integer("trees", self.trees, minimum=1)
        check_integer("continuations", self.continuations, minimum=2)


class Tree(NamedTuple):
    """A backbone from the start, and forks as (decision of the backbone that is forked, path)."""

    backbone: Path
    forks: tuple[tuple[int, Path], ...] = ()


class Group(NamedTuple):
    """The trees of a prompt, and how probable they are."""

    chance: float
    trees: tuple[Tree, ...]

    def paths(self) -> list[Path]:
        """What was played: of one tree after the other the backbone, then its forks, which begin
        where they branch off. One ends in each leaf."""
        return [
            path
            for tree in self.trees
            for path in (tree.backbone, *(fork for _, fork in tree.forks))
        ]

    def steps(self) -> int:
        """Decisions played in the environment; a snapshot saves those above a fork."""
        return sum(len(path.actions) for path in self.paths())


def enumerate_groups(process: DecisionProcess, policy: np.ndarray, design: Design) -> list[Group]:
    """Every outcome of sampling a prompt, with its probability.

    Trees of a group may be exchanged, and so may the forks of a branch point: one of the orders
    stands for all and has the probability of all.
    """
    policy = process.check_policy(policy)
    trees = []
    for state in np.flatnonzero(process.start).tolist():
        for backbone in paths_from(process, policy, state):
            choices = []
            for depth in _branch_points(process, policy, design, backbone):
                found = paths_from(process, policy, backbone.states[depth])
                continued = [(path.chance, (depth, path)) for path in found]
                choices.append(list(_multisets(continued, design.continuations - 1)))
            for forks in product(*choices):
                chance = process.start[state] * backbone.chance
                chance *= math.prod(probability for probability, _ in forks)
                members = tuple(chain(*(members for _, members in forks)))
                trees.append((float(chance), Tree(backbone, members)))
    return [Group(chance, members) for chance, members in _multisets(trees, design.trees)]


def sample_groups(
    process: DecisionProcess, policy: np.ndarray, design: Design, count: int, seed: int
) -> list[Group]:
    """`count` prompts sampled, each of chance 1 / count."""
    check_integer("count", count, minimum=1)
    policy = process.check_policy(policy)
    rng = np.random.default_rng(seed)
    number = count * design.trees
    start = rng.choice(len(process.start), number, p=process.start)
    backbones = sample_paths(process, policy, start, rng)
    places = [
        (tree, depth)
        for tree, backbone in enumerate(backbones)
        for depth in _branch_points(process, policy, design, backbone)
        for _ in range(design.continuations - 1)
    ]
    forks: list[list[tuple[int, Path]]] = [[] for _ in backbones]
    if places:
        states = np.array([backbones[tree].states[depth] for tree, depth in places])
        paths = sample_paths(process, policy, states, rng)
        for (tree, depth), path in zip(places, paths, strict=True):
            forks[tree].append((depth, path))
    trees = [Tree(backbone, tuple(f)) for backbone, f in zip(backbones, forks, strict=True)]
    return [
        Group(1 / count, tuple(trees[first : first + design.trees]))
        for first in range(0, number, design.trees)
    ]


def _branch_points(process, policy, design: Design, backbone: Path) -> Sequence[int]:
    entropies = _entropies(process, policy, backbone)
    depths = list(design.select(entropies))
    if len(set(depths)) < len(depths) or not set(depths) <= set(range(len(entropies))):
        raise ValueError(
            f"the selector chose decisions {depths} of a backbone of {len(entropies)}; each must "
            "be one of them, once"
        )
    return depths


def _entropies(process: DecisionProcess, policy: np.ndarray, backbone: Path) -> list[float]:
    rows = policy[process.observation[list(backbone.states)]]
    return (-(rows * np.log(np.where(rows > 0, rows, 1.0))).sum(axis=1)).tolist()


def _multisets(choices: Sequence[tuple[float, Any]], size: int) -> Iterator[tuple[float, tuple]]:
    """Every choice of `size` members with repetition, with the probability of all its orders."""
    for places in combinations_with_replacement(range(len(choices)), size):
        orders = math.factorial(size)
        for place in set(places):
            orders //= math.factorial(places.count(place))
        chance = orders * math.prod(choices[place][0] for place in places)
        yield chance, tuple(choices[place][1] for place in places)


class Block(NamedTuple):
    """Groups of one shape; n decisions of a group, those of a path in order.

    Attributes:
      index: which of the groups given these are, int [G].
      states, actions: of each decision, int [G, n].
      rewards: paid after each decision, float [G, n].
      template: the forest of one such group, whose actions, observations and rewards are the first
        one's.
      decision: action segment of each decision, int [n].
    """

    index: np.ndarray
    states: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    template: Forest
    decision: np.ndarray


def blocks(process: DecisionProcess, groups: Iterable[Group]) -> list[Block]:
    """Groups by their shape."""
    members: dict[tuple, list[int]] = {}
    groups = list(groups)
    for index, group in enumerate(groups):
        members.setdefault(_shape(group), []).append(index)
    found = []
    for index in members.values():
        columns = [[] for _ in range(3)]
        for number in index:
            for column, values in zip(columns, _decisions(groups[number]), strict=True):
                column.append(values)
        template, decision = _forest(process, groups[index[0]])
        states, actions, rewards = map(np.array, columns)
        found.append(Block(np.array(index), states, actions, rewards, template, decision))
    return found


def block_forest(process: DecisionProcess, block: Block, rows: np.ndarray) -> Forest:
    """One forest of some groups of a block, each a group of its own."""
    states, actions = block.states[rows], block.actions[rows]
    template, count = block.template, len(states)
    number = np.arange(count, dtype=np.int32)[:, None]

    def tile(values: np.ndarray) -> np.ndarray:
        return np.tile(values, (count, 1))

    def shifted(ids: np.ndarray, size: int, none: int) -> np.ndarray:
        return np.where(ids == none, none, ids + number * size).astype(np.int32)

    tokens, reward, observation = map(
        tile, (template.tokens, template.reward, template.observation)
    )
    seen, given = process.observation[states], template.parent[block.decision]
    tokens[:, template.offsets[block.decision]] = actions
    tokens[:, template.offsets[given]] = process.legal.shape[1] + seen
    reward[:, block.decision] = block.rewards[rows]
    observation[:, block.decision] = seen
    lengths = tile(template.lengths()).ravel()
    changed = {
        "tokens": tokens,
        "reward": reward,
        "observation": observation,
        "parent": shifted(template.parent, template.num_segments, NO_PARENT),
        "episode": shifted(template.episode, len(template.leaves()), NO_EPISODE),
        "trunk": shifted(template.trunk, len(template.leaves()), NO_TRUNK),
        "group": tile(template.group) + number,
    }
    rest = {
        name: tile(getattr(template, name))
        for name in (field.name for field in dataclasses.fields(template))
        if name not in (*changed, "offsets", "metadata")
    }
    return Forest(
        **{name: values.ravel() for name, values in (changed | rest).items()},
        offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32),
    ).validate()


def _shape(group: Group) -> tuple:
    return tuple(
        (len(tree.backbone.actions), *((depth, len(path.actions)) for depth, path in tree.forks))
        for tree in group.trees
    )


def _decisions(group: Group) -> list[list[float]]:
    """States, actions and rewards of a group in the order of its decisions."""
    names = ("states", "actions", "rewards")
    return [[*chain(*(getattr(path, name) for path in group.paths()))] for name in names]


def _forest(process: DecisionProcess, group: Group) -> tuple[Forest, np.ndarray]:
    """The forest of one group, and the action segment of each decision."""
    builder, decision = ForestBuilder(), []
    actions = process.legal.shape[1]

    def add(trunk: int, path: Path, given: int | None, parent: int) -> list[int]:
        """Adds a path below an observation that is there, or below `parent`; the observations."""
        seen = []
        for state, action, reward in zip(path.states, path.actions, path.rewards, strict=True):
            observation = int(process.observation[state])
            if given is None:
                given = builder.add([actions + observation], parent)
            seen.append(given)
            parent = builder.add(
                [action],
                given,
                is_action=True,
                reward=reward,
                observation=observation,
                trunk=trunk,
            )
            decision.append(parent)
            given = None
        return seen

    for trunk, tree in enumerate(group.trees):
        seen = add(trunk, tree.backbone, None, NO_PARENT)
        for depth, path in tree.forks:
            add(trunk, path, seen[depth], NO_PARENT)
    return builder.build(), np.array(decision)
