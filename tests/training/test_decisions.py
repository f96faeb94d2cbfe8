"""Rewards on decisions, and what is compared with what."""

import numpy as np
import pytest

from sepo_jax.advantages.baselines import leave_one_out
from sepo_jax.forest import ForestBuilder
from sepo_jax.training.decisions import (
    check_comparison,
    reward_decisions,
    samples_of_decisions,
    spread_of_groups,
)


class Decision:
    def __init__(self, round_):
        self.round = round_


class Episode:
    def __init__(self, *rounds):
        self.decisions = [Decision(round_) for round_ in rounds]


def two_episodes(shared=True):
    """Episode 0: two decisions in round 0, one in round 1. Episode 1: one decision."""
    builder = ForestBuilder()
    if shared:
        prompts = [builder.add([token], group=0) for token in (1, 2, 3)]
    for episode, turn in ((0, 0), (0, 1), (0, 2), (1, 0)):
        prompt = prompts[turn] if shared else builder.add([turn + 1], group=0)
        builder.add([7, 8], prompt, is_action=True, episode=episode, turn=turn)
    return builder.build(), [Episode(0, 0, 1), Episode(0)]


REWARDS = np.array([[1.0, 2.0], [5.0, 0.0]])


def test_a_rounds_reward_lies_on_its_last_decision():
    forest, episodes = two_episodes()
    rewarded = reward_decisions(forest, episodes, REWARDS)
    np.testing.assert_array_equal(rewarded.reward, [0, 0, 0, 0.0, 1.0, 2.0, 5.0])


def test_a_sample_of_a_prompt_earns_what_came_after_it():
    forest, episodes = two_episodes()
    rewarded = reward_decisions(forest, episodes, REWARDS)
    samples = samples_of_decisions(rewarded, episodes).validate()
    np.testing.assert_array_equal(samples.reward, [0, 0, 0, 3.0, 3.0, 2.0, 5.0])
    assert len(set(samples.episode[samples.is_action])) == 4
    # Decisions at the same prompt are compared, others are not.
    np.testing.assert_array_equal(samples.group[3:], [0, 1, 2, 0])


def test_an_immediate_return_is_of_the_round_alone():
    forest, episodes = two_episodes()
    rewarded = reward_decisions(forest, episodes, REWARDS)
    samples = samples_of_decisions(rewarded, episodes, returns="immediate").validate()
    # Both decisions of round 0 earn its 1.
    np.testing.assert_array_equal(samples.reward[3:], [1.0, 1.0, 2.0, 5.0])


def test_decisions_of_a_round_are_compared_within_their_opponent():
    """Two opponents, two episodes each, of two rounds; the last episode has one."""
    builder = ForestBuilder()
    episodes = [Episode(0, 1), Episode(0, 1), Episode(0, 1), Episode(0)]
    for number, episode in enumerate(episodes):
        for turn in range(len(episode.decisions)):
            # The same prompt in every round: nothing but the turn tells them apart.
            root = builder.add([5, 6], group=number // 2)
            builder.add([7], root, is_action=True, episode=number, turn=turn)
    rewards = np.array([[1.0, 10.0], [2.0, 20.0], [3.0, 30.0], [4.0, 0.0]])
    forest = reward_decisions(builder.build(), episodes, rewards)
    samples = samples_of_decisions(forest, episodes, group_by="round", returns="immediate")
    samples = samples.validate()
    actions = np.flatnonzero(samples.is_action)
    np.testing.assert_array_equal(samples.reward[actions], [1, 10, 2, 20, 3, 30, 4])
    first, second, third, fourth = samples.group[actions[[0, 1, 4, 5]]]
    assert len({first, second, third, fourth}) == 4
    np.testing.assert_array_equal(
        samples.group[actions], [first, second, first, second, third, fourth, third]
    )
    # The paper's advantage: each round beside the same round of the other rollouts.
    advantage = leave_one_out(
        samples.reward[actions], samples.group[actions], np.ones(len(actions), bool)
    )
    np.testing.assert_allclose(advantage, [-1, -10, 1, 10, -1, 0, 1])
    to_go = samples_of_decisions(forest, episodes, group_by="round")
    np.testing.assert_array_equal(to_go.reward[actions], [11, 10, 22, 20, 33, 30, 4])


@pytest.mark.parametrize("group_by", ["round", "deal_round"])
def test_no_group_of_rounds_holds_two_decisions_of_an_episode(group_by):
    forest, episodes = two_episodes(shared=False)
    samples = samples_of_decisions(forest, episodes, group_by=group_by).validate()
    groups = samples.group[np.flatnonzero(samples.is_action)]
    assert len(set(groups[:3])) == 3 and groups[3] == groups[0]


def test_a_missing_reward_stays_missing():
    forest, episodes = two_episodes()
    forest = reward_decisions(forest, episodes, np.array([[np.nan, 2.0], [5.0, 0.0]]))
    for returns in ("to_go", "immediate"):
        reward = samples_of_decisions(forest, episodes, returns=returns).reward[3:]
        np.testing.assert_array_equal(np.isnan(reward), [True, True, False, False])


def test_spread_of_groups_by_hand():
    builder = ForestBuilder()
    for group, rewards in enumerate([(1, 1), (1, 2), (3,), (np.nan, 5), (np.nan, 0, 1)]):
        root = builder.add([group], group=group)
        for number, reward in enumerate(rewards):
            episode = 10 * group + number
            first = builder.add([7], root, is_action=True, episode=episode, reward=0.0)
            builder.add([8], first, is_action=True, episode=episode, reward=reward)
    flat, groups, teaches = spread_of_groups(builder.build())
    assert (flat, groups) == (3, 5)
    assert list(teaches) == [False] * 4 + [True] * 4 + [False] * 6 + [True] * 6


@pytest.mark.parametrize(
    ("group_by", "returns", "message"),
    [
        ("rounds", "to_go", "Did you mean 'round'"),
        ("round", "immediat", "Did you mean 'immediate'"),
        ("deal", "immediate", "compares whole episodes; group by prompt or round"),
        ("opponent", "immediate", "compares whole episodes"),
    ],
)
def test_comparisons_that_do_not_exist_are_refused(group_by, returns, message):
    with pytest.raises(ValueError, match=message):
        check_comparison(group_by, returns)
