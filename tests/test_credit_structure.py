"""Credit on trees, turns, agents and events, with answers worked out by hand."""

import numpy as np
import pytest
from credit_forests import assign, of_actions, samples

from sepo_jax.algorithms import ALGORITHMS
from sepo_jax.credit import assign_credit
from sepo_jax.forest import ForestBuilder, paths

NAN = float("nan")
COMPARED = [name for name, row in ALGORITHMS.items() if row.compare != "none"]


pytestmark = pytest.mark.usefixtures("compile_fast")


def branching_tree():
    """Two trees of one prompt.

    Tree 1: action (1) -> branch: leaf (2) earns 4, leaf (3) earns 0. Tree 2: action (4) -> only
    child (5) earns 1. All under one shared prompt (0).
    """
    builder = ForestBuilder()
    prompt = builder.add([0])
    trunk = builder.add([1, 1], prompt, is_action=True)
    builder.add([2], trunk, is_action=True, reward=4.0)
    builder.add([3], trunk, is_action=True, reward=0.0)
    other = builder.add([1], prompt, is_action=True)
    builder.add([4, 4], other, is_action=True, reward=1.0)
    return builder.build()


def test_bpo_on_a_branching_tree():
    forest = branching_tree()
    credit = assign("bpo", forest)
    # Trees: returns mean(4, 0) = 2 and 1, so the trunks have +1 and -1. Leaves: 4 - 0 and 0 - 4.
    # The only child inherits its trunk's -1.
    np.testing.assert_allclose(of_actions(credit, forest), [1, 4, -4, -1, -1], atol=1e-6)
    # Weights: 1/2 for each tree, halved again below the branch.
    np.testing.assert_allclose(credit.segment_weight[1:], [0.5, 0.25, 0.25, 0.5, 0.5], atol=1e-6)
    np.testing.assert_allclose(credit.path_weight, [0.25, 0.25, 0.5], atol=1e-6)
    np.testing.assert_array_equal(assign("bpo", forest, segment_weight="uniform").path_weight, 1)


def test_bpo_variants_of_the_paper():
    forest = branching_tree()
    trunk_by_leaf = of_actions(assign("bpo", forest, node_return="leaf"), forest)
    # The trunk's own continuation is the first child: 4 instead of the mean 2; 4 - 1 and 1 - 4.
    np.testing.assert_allclose(trunk_by_leaf, [3, 4, -4, -3, -3], atol=1e-6)
    # Samples of the prompt are not compared, whether or not they share its tokens.
    for made in (forest, separate_roots(forest)):
        local = assign("bpo", made, prefix_credit="none")
        np.testing.assert_allclose(of_actions(local, made), [0, 4, -4, 0, 0], atol=1e-6)
        np.testing.assert_allclose(local.path_weight, [0.5, 0.5, 1], atol=1e-6)
        discounted = assign("bpo", made, prefix_credit="lambda")
        # One action before the branch: 0.95 times the advantage of the trunk's own continuation.
        expected = [0.95 * 4, 4, -4, 0, 0]
        np.testing.assert_allclose(of_actions(discounted, made), expected, atol=1e-5)


def test_a_trunk_may_branch_at_its_first_action():
    """Tree 1 has leaves that earn 4, 0 and 5, the last one from the prompt on; tree 2 earns 1."""
    builder = ForestBuilder()
    prompt = builder.add([0])
    trunk = builder.add([1, 1], prompt, is_action=True)
    builder.add([2], trunk, is_action=True, reward=4.0, trunk=0)
    builder.add([3], trunk, is_action=True, reward=0.0, trunk=0)
    builder.add([4], prompt, is_action=True, reward=5.0, trunk=0)
    builder.add([5], prompt, is_action=True, reward=1.0)
    forest = builder.build()
    assert forest.trunk[forest.leaves()[:3]].tolist() == [0, 0, 0] and forest.trunk[5] > 0
    then = assign("tree_grpo", forest, scale="none")
    np.testing.assert_allclose(then.path_advantage, [1, -3, 2, 0], atol=1e-5)
    local = assign("bpo", forest, prefix_credit="none")
    # The mean below the first action is 2, beside 5.
    np.testing.assert_allclose(of_actions(local, forest), [-3, 4, -4, 3, 0], atol=1e-6)
    np.testing.assert_allclose(local.path_weight, [0.25, 0.25, 0.5, 1], atol=1e-6)


def separate_roots(forest):
    """The same trees with a prompt segment each."""
    builder = ForestBuilder()
    moved = {}
    for segment in range(1, forest.num_segments):
        parent = int(forest.parent[segment])
        if parent == 0:
            moved[segment] = builder.add([0])
        above = moved[segment] if parent == 0 else moved[parent]
        moved[segment] = builder.add(
            forest.segment_tokens(segment), above, is_action=True, reward=forest.reward[segment]
        )
    return builder.build()


@pytest.mark.parametrize("name", [n for n in COMPARED if n != "srpo"])
def test_sharing_the_prompt_changes_nothing(name):
    forest = branching_tree()
    separate = separate_roots(forest)
    shared_credit, separate_credit = assign(name, forest), assign(name, separate)
    np.testing.assert_allclose(
        of_actions(shared_credit, forest), of_actions(separate_credit, separate), atol=1e-6
    )
    np.testing.assert_allclose(
        shared_credit.segment_weight[forest.is_action],
        separate_credit.segment_weight[separate.is_action],
        atol=1e-6,
    )


def test_vineppo_on_a_branching_tree():
    forest = branching_tree()
    # Value of the prompt: mean(2, 1) = 1.5; after trunk 1: 2; leaves 4 and 0.
    expected = [0.5, 2, -2, -0.5, -0.5]
    np.testing.assert_allclose(of_actions(assign("vineppo", forest), forest), expected, atol=1e-6)


def test_bpo_without_branches_is_leave_one_out():
    forest = samples([1, 2, 6], [0, 4], length=2)
    np.testing.assert_allclose(
        assign("bpo", forest).advantage, assign("rloo", forest).advantage, atol=1e-6
    )


def test_shared_tokens_take_the_mean_over_their_paths():
    forest = branching_tree()
    # Returns 4, 0, 1: mean 5/3. The trunk of tree 1 is shared by the first two paths.
    by_path = np.array([4, 0, 1]) - 5 / 3
    token_mean = of_actions(assign("grpo", forest, scale="none", reduce="token_mean"), forest)
    np.testing.assert_allclose(
        token_mean, [by_path[:2].mean(), *by_path[:2], by_path[2], by_path[2]], atol=1e-5
    )
    # The paths have 3 tokens each, so a mean over sequences weighs them alike.
    per_sequence = of_actions(assign("grpo", forest, scale="none"), forest)
    np.testing.assert_allclose(per_sequence, token_mean, atol=1e-5)
    # With a longer second leaf its path counts less: 1/3 against 1/5.
    builder = ForestBuilder()
    trunk = builder.add([1, 1], builder.add([0]), is_action=True)
    builder.add([2], trunk, is_action=True, reward=4.0)
    builder.add([3] * 3, trunk, is_action=True, reward=0.0)
    forest = builder.build()
    trunk_advantage = of_actions(assign("grpo", forest, scale="none"), forest)[0]
    assert trunk_advantage == pytest.approx((2 / 3 - 2 / 5) / (1 / 3 + 1 / 5), abs=1e-6)


def test_tree_grpo():
    forest = branching_tree()
    centred = {"scale": "none"}
    # Paths return 4, 0 and 1; centred on the prompt 7/3, -5/3, -2/3; within tree 1 then +2 and -2;
    # tree 2 has one path.
    then = assign("tree_grpo", forest, **centred)
    np.testing.assert_allclose(then.path_advantage, [2, -2, 0], atol=1e-5)
    # Dropped without spread: decided within the tree.
    dropped = assign("tree_grpo", forest, count_no_spread=False)
    np.testing.assert_array_equal(dropped.path_weight, [1, 1, 0])
    both = assign("tree_grpo", forest, compare="root_plus_tree", **centred)
    np.testing.assert_allclose(both.path_advantage, [7 / 3 + 2, -5 / 3 - 2, -2 / 3], atol=1e-5)


def turns(rewards, observations=None, agent=None, group=0, builder=None):
    """One context of several turns; returns the builder."""
    builder = builder or ForestBuilder()
    above = builder.add([0], group=group)
    for turn, reward in enumerate(rewards):
        fields = {} if observations is None else {"observation": observations[turn]}
        fields |= {} if agent is None else {"agent": agent}
        above = builder.add([1], above, is_action=True, reward=reward, **fields)
        above = builder.add([2], above)
    return builder


def test_gigpo():
    builder = turns([1, 3], observations=[7, 8])
    forest = turns([2, 9], observations=[7, 9], builder=builder).build()
    credit = assign("gigpo", forest, scale="none", gamma=0.5)
    # Episodes 4 and 11: -3.5, +3.5. Only the first turns saw the same: to go 1 + 1.5 and 2 + 4.5.
    np.testing.assert_allclose(of_actions(credit, forest), [-3.5 - 2, -3.5, 3.5 + 2, 3.5])
    assert credit.metrics["observation_groups_of_one"].value == 2
    # Left out without spread: an episode group with spread keeps all its turns.
    assert assign("gigpo", forest, count_no_spread=False).segment_weight[forest.is_action].all()
    flat = turns([2, 1], observations=[7, 9], builder=turns([1, 2], observations=[7, 8])).build()
    kept = assign("gigpo", flat, count_no_spread=False, gamma=0.5)
    # Equal episodes (3 and 3), but the first turns differ in discounted return.
    np.testing.assert_array_equal(kept.segment_weight[flat.is_action], [1, 0, 1, 0])


def team():
    """Two episodes of one prompt; agents 0 and 1 act at turns 0 and 1, in a context each."""
    builder = ForestBuilder()
    for episode in range(2):
        for agent in range(2):
            above = builder.add([0], agent=agent)
            for turn in range(2):
                reward = [[1.0, 5.0], [3.0, 3.0]][episode][turn] if agent == 0 else 0.0
                event = 4 * episode + 2 * turn
                above = builder.add(
                    [1],
                    above,
                    is_action=True,
                    reward=reward,
                    episode=episode,
                    event=event,
                    event_size=2,
                    event_type=turn,
                )
    return builder.build()


def test_agent_and_turn_comparisons():
    forest = team()
    # Per agent over all its responses: the first episode earns 6, the second 6: no spread.
    assert not assign("dr_mas", forest).advantage.any()
    # Per turn: the team earned 1 and 3 at turn 0, 5 and 3 at turn 1, seen by both agents.
    advantage = of_actions(assign("at_grpo", forest, scale="none"), forest)
    np.testing.assert_allclose(advantage, [-1, 1, -1, 1, 1, -1, 1, -1])
    # From the turn on: 6 and 6, then 5 and 3.
    advantage = of_actions(assign("at_grpo", forest, scale="none", returns="to_go"), forest)
    np.testing.assert_allclose(advantage, [0, 1, 0, 1, 0, -1, 0, -1])


def test_dr_mas_statistics_are_per_response():
    # Agent 0 answers twice in the first episode and once in the second: returns 3, 3 and 0, so its
    # mean is 2; agent 1 answers once in each.
    builder = ForestBuilder()
    for episode, (reward, answers) in enumerate([(3.0, 2), (0.0, 1)]):
        for agent, number in ((0, answers), (1, 1)):
            above = builder.add([0], agent=agent)
            for turn in range(number):
                last = agent == 1 and turn == number - 1
                above = builder.add(
                    [1], above, is_action=True, reward=reward * last, episode=episode
                )
    forest = builder.build()
    advantage = of_actions(assign("dr_mas", forest, scale="none"), forest)
    np.testing.assert_allclose(advantage, [1, 1, 1.5, -2, -1.5], atol=1e-6)


def test_an_episode_of_several_contexts_counts_once():
    # Episode 0 has two contexts, episodes 1 and 2 one: returns 6, 0, 0, so the mean is 2, not 3.
    builder = ForestBuilder()
    for episode, contexts in enumerate((2, 1, 1)):
        for context in range(contexts):
            reward = 6.0 if episode == 0 and context == 0 else 0.0
            builder.add([1], builder.add([0]), is_action=True, reward=reward, episode=episode)
    forest = builder.build()
    credit = assign("dr_grpo", forest)
    np.testing.assert_allclose(of_actions(credit, forest), [4, 4, -2, -2], atol=1e-6)
    np.testing.assert_allclose(of_actions(assign("rloo", forest), forest), [6, 6, -3, -3])
    with pytest.raises(ValueError, match="episode 0 has several contexts; compare='root'"):
        assign_credit("bpo", forest)


def events(*sets, group=0):
    """Events of one prompt: each a list of member rewards with its announced size."""
    builder = ForestBuilder()
    for event, (size, rewards) in enumerate(sets):
        for reward in rewards:
            builder.add(
                [1],
                builder.add([0], group=group),
                is_action=True,
                reward=reward,
                episode=event,
                event=event,
                event_size=size,
            )
    return builder.build()


def test_srpo_compares_events_not_members():
    # Returns 3 (three members), 1 (one) and 2 (two): mean 2 over events; over members it would be
    # (9 + 1 + 4) / 6.
    forest = events((3, [1, 1, 1]), (1, [1]), (2, [2, 0]))
    advantage = of_actions(assign("srpo", forest, scale="none"), forest)
    np.testing.assert_allclose(advantage, [1, 1, 1, -1, 0, 0], atol=1e-6)


def test_srpo_leaves_incomplete_events_out():
    forest = events((2, [1, 1]), (2, [50]), (2, [4, 0]), (2, [NAN, 1]))
    credit = assign("srpo", forest, scale="none")
    np.testing.assert_allclose(of_actions(credit, forest), [-1, -1, 0, 1, 1, 0, 0], atol=1e-6)
    weight = credit.segment_weight[forest.is_action]
    np.testing.assert_array_equal(weight, [1, 1, 0, 1, 1, 0, 0])
    assert credit.metrics["incomplete_events"].value == 2


def test_srpo_groups_by_event_type():
    forest = team()
    # Turn 0 and turn 1 are different kinds of events; every event earns its episode's 6: no spread.
    assert not assign("srpo", forest).advantage.any()
    immediate = of_actions(assign("srpo", forest, scale="none", returns="immediate"), forest)
    np.testing.assert_allclose(immediate, [-1, 1, -1, 1, 1, -1, 1, -1])


def test_srpo_groups_by_the_roles_of_an_event():
    # Two episodes, in each a solver's event, a critic's, and one of both at once, all of one kind.
    builder = ForestBuilder()
    for episode, earned in enumerate(((1, 10, 100), (3, 30, 300))):
        for number, agents in enumerate(((0,), (1,), (0, 1))):
            for agent in agents:
                builder.add(
                    [1],
                    builder.add([0], agent=agent),
                    is_action=True,
                    reward=earned[number] / len(agents),
                    episode=episode,
                    turn=number,
                    event=3 * episode + number,
                    event_size=len(agents),
                )
    forest = builder.build()
    credit = assign("srpo", forest, scale="none", returns="immediate")
    expected = [-1, -10, -100, -100, 1, 10, 100, 100]
    np.testing.assert_allclose(of_actions(credit, forest), expected, atol=1e-5)


def test_path_advantages_survive_path_wise_copies():
    forest = branching_tree()
    for name in ("rloo", "grpo", "tree_grpo"):
        copied = assign(name, paths(forest))
        np.testing.assert_allclose(
            copied.path_advantage, assign(name, forest).path_advantage, atol=1e-6
        )


def test_later_contexts_pay_the_last_turn():
    # One episode of two contexts; the second earns 8. Reward to go of the first context is 1 + 8.
    builder = ForestBuilder()
    builder.add([1, 1], builder.add([0]), is_action=True, reward=1.0, episode=0)
    builder.add([1], builder.add([0]), is_action=True, reward=8.0, episode=0, turn=1)
    credit = assign("reinforce", builder.build(), gamma=0.5)
    np.testing.assert_allclose(credit.advantage, [0, 4.5, 9, 0, 8])


def test_actions_of_one_turn_are_paid_once():
    builder = ForestBuilder()
    first = builder.add([1], builder.add([0]), is_action=True, reward=1.0)
    builder.add([1], first, is_action=True, reward=4.0, turn=0)
    credit = assign("reinforce", builder.build())
    np.testing.assert_allclose(credit.advantage, [0, 5, 4])
