"""What episodes and turns earned."""

import numpy as np

from sepo_jax.forest import ForestBuilder
from sepo_jax.forest.returns import path_actions


def test_two_turns_with_an_observation_between():
    builder = ForestBuilder()
    first = builder.add([2], builder.add([1]), is_action=True, reward=1.0)
    seen = builder.add([3], first, reward=2.0)
    builder.add([4], seen, is_action=True, reward=4.0)
    result = path_actions(builder.build(), gamma=0.5)
    # The observation's reward belongs to the turn that led to it.
    np.testing.assert_array_equal(result.segment, [1, 3])
    np.testing.assert_array_equal(result.immediate, [3, 4])
    np.testing.assert_array_equal(result.to_go, [3 + 0.5 * 4, 4])
    np.testing.assert_array_equal(result.episode, [7])


def test_contexts_of_one_episode_share_their_rewards():
    # Two agents act at turns 0 and 1, each in a context of its own; the team's reward is written
    # once, at agent 0's last segment.
    builder = ForestBuilder()
    for agent in range(2):
        above = builder.add([1], agent=agent)
        for turn in range(2):
            reward = 5.0 if (agent, turn) == (0, 1) else float(turn == 0 and agent == 1)
            above = builder.add([2], above, is_action=True, reward=reward, episode=0)
    result = path_actions(builder.build(), gamma=0.5)
    np.testing.assert_array_equal(result.episode, [6, 6])
    np.testing.assert_array_equal(result.immediate, [1, 5, 1, 5])
    np.testing.assert_array_equal(result.to_go, [3.5, 5, 3.5, 5])


def test_a_shared_segment_is_paid_once_per_episode():
    builder = ForestBuilder()
    shared = builder.add([2], builder.add([1]), is_action=True, reward=1.0)
    builder.add([3], shared, is_action=True, reward=10.0, episode=0)
    builder.add([3], shared, is_action=True, reward=20.0, episode=0)
    builder.add([3], shared, is_action=True, reward=40.0, episode=1)
    result = path_actions(builder.build())
    np.testing.assert_array_equal(result.episode, [31, 31, 41])


def test_a_missing_reward_reaches_only_turns_before_it():
    builder = ForestBuilder()
    first = builder.add([2], builder.add([1]), is_action=True, reward=np.nan)
    builder.add([3], first, is_action=True, reward=2.0)
    result = path_actions(builder.build())
    np.testing.assert_array_equal(result.episode, [np.nan])
    np.testing.assert_array_equal(result.to_go, [np.nan, 2])
    np.testing.assert_array_equal(result.immediate, [np.nan, 2])


def test_mean_over_paths_leaves_missing_ones_out():
    builder = ForestBuilder()
    trunk = builder.add([2], builder.add([1]), is_action=True)
    for _ in range(3):
        builder.add([3], trunk, is_action=True)
    result = path_actions(builder.build())
    values = np.array([1.0, 2.0, 7.0, np.nan])[1:][result.leaf]
    mean = result.over_segments(values, np.array([1.0, 3.0, 1.0])[result.leaf], 5)
    np.testing.assert_allclose(mean, [np.nan, (2 + 21) / 4, 2, 7, np.nan])
