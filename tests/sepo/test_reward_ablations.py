"""Ablations of the reward: exploiters pooled before the clamp, and objectives without penalties."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sepo_jax.sepo import (
    COLLUSIVE,
    EXPLOITER,
    TRAIN,
    EpisodeArrays,
    SepoWeights,
    assign_rewards,
    objective_terms,
    objective_value,
    without_penalties,
)

WEIGHTS = SepoWeights(exploitability=2.0, collusion=1.0, externality=0.5, invalid_penalty=0.25)


def example(gaps=(3.0, 1.0, -1.0, 1.0)) -> EpisodeArrays:
    """Two train rollouts (4 to 2, 1 to 5), each with an episode against exploiters 1 and 2 and the
    given gaps, in that order; one collusive episode of rollout 0, and one of rollout 1."""
    own = [4.0, 1.0, *(2.0 for _ in gaps), 0.0, 0.0]
    other = [2.0, 5.0, *(2.0 + gap for gap in gaps), 0.0, 0.0]
    size = len(own)
    return EpisodeArrays(
        own=np.array(own)[:, None],
        opponent=np.array(other)[:, None],
        harmful=np.array([0.0] * (size - 2) + [1.0, 0.0])[:, None],
        externality=np.array([0.5, 0.0, 1.0, *[0.0] * (size - 3)])[:, None],
        mask=np.ones((size, 1), bool),
        pool=[TRAIN] * 2 + [EXPLOITER] * len(gaps) + [COLLUSIVE] * 2,
        opponent_id=[0, 0, 1, 1, 2, 2, 3, 3],
        group=[0, 1, 0, 1, 0, 1, 0, 1],
        invalid=np.array([0.0, 2.0, *[0.0] * (size - 2)])[:, None],
        opponent_names=("train/A", "exploiter/B", "exploiter/C", "collusive/D"),
    )


def test_pooled_exploitability_by_hand():
    # Exploiter B takes 2 on the mean, C 0: each alone (2 + 0) / 2; together (3 + 1 - 1 + 1) / 4.
    assert objective_terms(example())["exploit_pool_advantage"] == 1.0
    assert objective_terms(example(), pooled=True)["exploit_pool_advantage"] == 1.0
    # What the agent wins from C hides what it loses to B, down to nothing.
    hidden = example((3.0, 1.0, -3.0, -2.0))
    assert objective_terms(hidden)["exploit_pool_advantage"] == 1.0
    pooled = objective_terms(hidden, pooled=True)
    assert pooled["exploit_pool_advantage"] == 0.0
    assert pooled["exploit_pool_advantage/B"] == 2.0
    assert pooled["exploit_pool_advantage/C"] == -2.5


def test_pooled_rewards_by_hand():
    # credited: the mean over all is 1 > 0, so C's episodes are charged too, at 2 * s = 3 a point.
    rewards = assign_rewards(example((3.0, 1.0, -1.0, 0.0)), WEIGHTS, 1.5, pooled=True)
    np.testing.assert_allclose(rewards[2:6, 0], [-9.0 - 0.5, -3.0, 3.0, 0.0])
    alone = assign_rewards(example((3.0, 1.0, -1.0, 0.0)), WEIGHTS, 1.5)
    np.testing.assert_allclose(alone[2:6, 0], [-9.0 - 0.5, -3.0, 0.0, 0.0])
    # per_rollout: rollout 0 has gaps 3 and -1, rollout 1 has 1 and -3.
    arrays = example((3.0, 1.0, -1.0, -3.0))
    free = dataclasses.replace(WEIGHTS, collusion=0.0, externality=0.0, invalid_penalty=0.0)
    pooled = assign_rewards(arrays, free, 1.5, "per_rollout", pooled=True)
    np.testing.assert_allclose(pooled[:2, 0], [6.0 - 3.0 * 1.0, 1.5 - 3.0 * 0.0])
    alone = assign_rewards(arrays, free, 1.5, "per_rollout")
    np.testing.assert_allclose(alone[:2, 0], [6.0 - 3.0 * 1.5, 1.5 - 3.0 * 0.5])
    # shared: one constant, 3 max(0, 0) in place of 3 (2 + 0) / 2.
    shared = assign_rewards(arrays, free, 1.5, "shared", pooled=True)
    np.testing.assert_allclose(shared[:2, 0], [6.0, 1.5])
    np.testing.assert_allclose(assign_rewards(arrays, free, 1.5, "shared")[:2, 0], [3.0, -1.5])


def test_a_known_gap_stands_for_its_opponents_part_of_the_pooled_mean():
    arrays, free = example((3.0, 1.0, -1.0, -1.0)), SepoWeights(2.0)
    charged = assign_rewards(arrays, free, 1.5, pooled=True)[2:6]
    assert charged.any()  # (2 - 1) / 2 > 0
    # B takes 0.9 in truth: (0.9 - 1) / 2 < 0.
    known = {"exploiter/B": 0.9}
    assert not assign_rewards(arrays, free, 1.5, pooled=True, known_gaps=known)[2:6].any()
    known = {"exploiter/B": 1.1}
    same = assign_rewards(arrays, free, 1.5, pooled=True, known_gaps=known)[2:6]
    np.testing.assert_array_equal(same, charged)


@settings(deadline=None, max_examples=50)
@given(gaps=st.lists(st.floats(-4, 4), min_size=4, max_size=4))
def test_balanced_pooled_rewards_average_to_the_pooled_objective(gaps):
    arrays = example(tuple(gaps))
    weights = dataclasses.replace(WEIGHTS, invalid_penalty=0.0)
    rewards = assign_rewards(arrays, weights, 1.5, balance=True, pooled=True)
    objective = objective_value(objective_terms(arrays, pooled=True), weights, 1.5)
    assert rewards.mean() == pytest.approx(objective, abs=1e-9)
    each = objective_terms(arrays)["exploit_pool_advantage"]
    # The mean of the clamped is never below the clamped mean (Jensen).
    assert objective_terms(arrays, pooled=True)["exploit_pool_advantage"] <= each + 1e-12


@pytest.mark.parametrize("credit", ["credited", "per_rollout", "shared"])
def test_objectives_without_penalties(credit):
    # Own payoffs 4 and 1, mean payoffs of both 3 and 3; two unparsable replies in the second.
    for objective, expected in (("reward_only", [6.0, 1.5]), ("welfare_only", [4.5, 4.5])):
        rewards = assign_rewards(example(), WEIGHTS, 1.5, credit, objective=objective)
        np.testing.assert_allclose(rewards[:2, 0], np.array(expected) - [0.0, 0.5])
        assert not rewards[2:].any()
    # Pools that no objective of these needs may be absent.
    alone = EpisodeArrays(
        own=[[1.0], [2.0]], opponent=[[0.0], [4.0]], harmful=np.zeros((2, 1)),
        externality=np.ones((2, 1)), mask=np.ones((2, 1), bool), pool=[TRAIN] * 2, group=[0, 1],
    )  # fmt: skip
    rewards = assign_rewards(alone, WEIGHTS, 1.0, credit, objective="welfare_only")
    np.testing.assert_allclose(rewards[:, 0], [0.5, 3.0])
    with pytest.raises(ValueError, match="no episode of the exploiter pool"):
        assign_rewards(alone, WEIGHTS, 1.0, credit)


def test_weights_without_penalties_keep_that_of_unparsable_replies():
    assert without_penalties(WEIGHTS) == SepoWeights(0.0, 0.0, 0.0, 0.25)


def test_an_unknown_objective_is_named():
    with pytest.raises(ValueError, match="Did you mean 'welfare_only'"):
        assign_rewards(example(), WEIGHTS, 1.5, objective="welfare")
