"""Groups of trees: every outcome with its probability, samples, and the forests they become."""

import numpy as np
import pytest

from sepo_jax.domains.corridor import Corridor
from sepo_jax.domains.decision_process import process_of_paths
from sepo_jax.evaluation.branching_trees import (
    Design,
    above_entropy,
    at_depths,
    block_forest,
    blocks,
    enumerate_groups,
    highest_entropy,
    nowhere,
    sample_groups,
)

STOPS = process_of_paths({(0,): 1.0, (1, 0): 4.0, (1, 1, 0): -2.0, (1, 1, 1): 3.0})
POLICY = np.array([[0.5, 0.5], [0.25, 0.75], [0.75, 0.25]])


def corridor_process(**options):
    corridor = Corridor(**options)
    return corridor.process(corridor.training_tasks(1, 0)[0])


def test_selectors():
    entropies = [0.2, 0.6, 0.6, 0.1, 0.9]
    assert list(nowhere(entropies)) == []
    assert at_depths(1, 3, 7)(entropies) == [1, 3]
    # The last decision is no candidate, and of equal ones the earliest is taken.
    assert highest_entropy(1)(entropies) == [1]
    assert highest_entropy(3)(entropies) == [0, 1, 2]
    assert highest_entropy(9)([0.5]) == []
    assert above_entropy(0.5, 2)(entropies) == [1, 2]
    assert above_entropy(0.5, 9)(entropies) == [1, 2, 4]


@pytest.mark.parametrize("trees", [1, 2, 3])
@pytest.mark.parametrize("continuations", [2, 3, 4])
@pytest.mark.parametrize("depths", [(), (0,), (1,), (1, 2)])
def test_leaves_and_steps(trees, continuations, depths):
    process = corridor_process(length=4)
    design = Design(trees, continuations, at_depths(*depths))
    for group in sample_groups(process, process.uniform_policy(), design, 5, 0):
        # Budget: 1 + M (K - 1) leaves a tree, and a fork at t takes the 4 - t decisions from there.
        assert len(group.paths()) == trees * (1 + len(depths) * (continuations - 1))
        forked = sum((4 - depth) * (continuations - 1) for depth in depths)
        assert group.steps() == trees * (4 + forked)
        for tree in group.trees:
            for depth, path in tree.forks:
                assert path.states[0] == tree.backbone.states[depth]


@pytest.mark.parametrize("trees", [1, 2])
@pytest.mark.parametrize("continuations", [2, 3])
def test_outcomes_are_all_there_with_their_probabilities(trees, continuations):
    design = Design(trees, continuations, at_depths(1))
    groups = enumerate_groups(STOPS, POLICY, design)
    assert sum(group.chance for group in groups) == pytest.approx(1, abs=1e-14)
    assert len({group.trees for group in groups}) == len(groups)
    # By chance of the shape: a tree forks where the first action was 1, one time in two.
    forked = sum(g.chance for g in groups if all(tree.forks for tree in g.trees))
    assert forked == pytest.approx(0.5**trees, abs=1e-14)
    # By hand: backbone (1, 0) and K - 1 forks that end with action 0 too, in every tree.
    same = [
        g.chance
        for g in groups
        if all(t.backbone.actions == (1, 0) for t in g.trees)
        and all(path.actions == (0,) for t in g.trees for _, path in t.forks)
    ]
    assert same == [pytest.approx((0.5 * 0.25**continuations) ** trees)]


def test_samples_come_as_often_as_their_outcomes():
    design = Design(2, 2, highest_entropy(1))
    expected = enumerate_groups(STOPS, POLICY, design)
    count = 4000

    def key(trees):  # trees may come in any order
        return tuple(
            sorted((t.backbone.actions, [(d, p.actions) for d, p in t.forks]) for t in trees)
        )

    chances, seen = {}, {}
    for group in expected:
        chances[str(key(group.trees))] = group.chance
    for group in sample_groups(STOPS, POLICY, design, count, 3):
        name = str(key(group.trees))
        seen[name] = seen.get(name, 0) + 1
    assert len(chances) == len(expected) and seen.keys() <= chances.keys()
    for name, chance in chances.items():
        error = np.sqrt(chance * (1 - chance) / count)
        assert abs(seen.get(name, 0) / count - chance) < 5 * error + 1 / count
    again = sample_groups(STOPS, POLICY, design, 50, 3)
    assert again == sample_groups(STOPS, POLICY, design, 50, 3)
    assert again != sample_groups(STOPS, POLICY, design, 50, 4)


def test_forks_share_the_hidden_luck_of_their_state():
    process = corridor_process(length=3, prefix_share=0.5, luck_share=0.4)
    luck = Corridor(length=3, prefix_share=0.5, luck_share=0.4).weights.luck
    groups = sample_groups(process, process.uniform_policy(), Design(2, 3, at_depths(1)), 200, 0)
    tosses = []
    for group in groups:
        for tree in group.trees:
            heads = {path.states[0] % 2 for _, path in tree.forks}  # states go by situation, luck
            heads |= {tree.backbone.states[0] % 2}
            assert len(heads) == 1
            tosses.append(heads.pop())
            least = luck * tosses[-1]
            assert all(path.rewards[-1] >= least - 1e-12 for _, path in tree.forks)
    assert 0.4 < np.mean(tosses) < 0.6


def test_a_forest_holds_the_groups_of_a_block():
    design = Design(2, 3, at_depths(1))
    groups = enumerate_groups(STOPS, POLICY, design)
    found = blocks(STOPS, groups)
    assert sorted(np.concatenate([block.index for block in found])) == list(range(len(groups)))
    assert len(found) > 3  # episodes of different lengths
    for block in found:
        forest = block_forest(STOPS, block, np.arange(len(block.index)))
        assert len(np.unique(forest.group)) == len(block.index)
        leaves = forest.leaves()
        place = 0
        for number, index in enumerate(block.index):
            paths = groups[index].paths()
            earned, actions = [], []
            for leaf in leaves[place : place + len(paths)]:
                assert forest.group[leaf] == number
                path = forest.path(int(leaf))
                earned.append(forest.reward[path].sum())
                actions.append(tuple(forest.tokens[forest.offsets[path[1::2]]].tolist()))
                assert forest.is_action[path].tolist() == [False, True] * (len(path) // 2)
                for given, action in zip(path[::2], path[1::2], strict=True):
                    seen = forest.observation[action]
                    assert forest.tokens[forest.offsets[given]] == 2 + seen
            place += len(paths)
            expected = []
            for tree in groups[index].trees:
                expected.append((tree.backbone.actions, sum(tree.backbone.rewards)))
                for depth, path in tree.forks:
                    before = tree.backbone.actions[:depth]
                    paid = sum(tree.backbone.rewards[:depth]) + sum(path.rewards)
                    expected.append(((*before, *path.actions), paid))
            assert sorted(zip(actions, earned, strict=True)) == sorted(expected)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Design(0), "trees must be at least 1"),
        (lambda: Design(1, 1), "continuations must be at least 2"),
        (lambda: enumerate_groups(STOPS, np.ones((3, 2)), Design(1)), "row 0 of the policy"),
        (lambda: sample_groups(STOPS, POLICY, Design(1), 0, 0), "count must be at least 1"),
        (
            lambda: enumerate_groups(STOPS, POLICY, Design(1, 2, lambda entropies: [5])),
            r"chose decisions \[5\] of a backbone of 1",
        ),
        (
            lambda: sample_groups(STOPS, POLICY, Design(1, 2, lambda entropies: [0, 0]), 1, 0),
            "each must be one of them, once",
        ),
    ],
)
def test_bad_input_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
