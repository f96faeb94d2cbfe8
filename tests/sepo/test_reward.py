"""The reward on hand-made episodes: worked numbers, shared constants, bad input."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sepo_jax.advantages.baselines import group_mean, leave_one_out
from sepo_jax.sepo import (
    COLLUSIVE,
    EXPLOITER,
    TRAIN,
    EpisodeArrays,
    SepoWeights,
    assign_rewards,
    objective_terms,
    objective_value,
    payoff_scale,
    trained_episodes,
)

WEIGHTS = SepoWeights(exploitability=2.0, collusion=1.0, externality=0.5)


def example(**changes) -> EpisodeArrays:
    """Two train rollouts with one episode each against exploiters 1 and 2 and a collusive one.

    Two rounds an episode; group 10 and 11 are the rollouts.
    """
    fields = {
        "own": [[1, 2], [0, 1], [0, 0], [2, 0], [3, 3], [2, 2], [0, 0], [0, 0]],
        "opponent": [[1, 0], [0, 1], [2, 2], [2, 2], [0, 0], [1, 1], [0, 0], [0, 0]],
        "harmful": [[0, 0], [0, 0], [0, 0], [0, 0], [0, 0], [0, 0], [1, 0], [1, 1]],
        "externality": [[0, 1], [0, 0], [1, 1], [0, 0], [0, 0], [0, 0], [9, 9], [9, 9]],
        "mask": np.ones((8, 2), bool),
        "pool": [TRAIN] * 2 + [EXPLOITER] * 4 + [COLLUSIVE] * 2,
        "opponent_id": [0, 0, 1, 1, 2, 2, 3, 3],
        "group": [10, 11, 10, 11, 10, 11, 10, 11],
    }
    return EpisodeArrays(**{**fields, **changes})


def test_terms_by_hand():
    # u = mean(1.5, 0.5). Gaps of exploiter 1: episodes (2, 1); of exploiter 2: (-3, -1). e clamps
    # each opponent, then averages. c = mean(0.5, 1). x over six train and exploiter episodes.
    terms = objective_terms(example())
    assert terms["utility"] == 1.0
    assert terms["exploit_pool_advantage/1"] == pytest.approx((2 + 1) / 2)
    assert terms["exploit_pool_advantage/2"] == pytest.approx(-2.0)
    assert terms["exploit_pool_advantage"] == pytest.approx((1.5 + 0) / 2)
    assert terms["collusion"] == 0.75
    assert terms["externality"] == pytest.approx((0.5 + 0 + 1) / 6)
    value = objective_value(terms, WEIGHTS, scale=1.5)
    assert value == pytest.approx(1.5 * 1 - 2 * 1.5 * 0.75 - 0.75 - 0.5 * 0.25)


def test_per_opponent_and_pooled_exploitability_differ():
    # Pooling first would let exploiter 2's losses hide exploiter 1's gains: max(0, -0.25) = 0.
    pooled = dataclasses.replace(example(), opponent_id=[0, 0, 1, 1, 1, 1, 3, 3])
    assert objective_terms(pooled)["exploit_pool_advantage"] == 0.0


def test_credited_rewards_by_hand():
    rewards = assign_rewards(example(), WEIGHTS, 1.5, "credited")
    # train: 1.5 own - 0.5 ext; exploiter 1 (mean gap 1.5 > 0): -3 (opponent - own) - 0.5 ext, also
    # in its single rounds with a gap of 0; exploiter 2 (mean gap < 0): only ext; collusive: -harm.
    expected = [
        [1.5, 2.5],
        [0, 1.5],
        [-6.5, -6.5],
        [0, -6],
        [0, 0],
        [0, 0],
        [-1, 0],
        [-1, -1],
    ]
    np.testing.assert_allclose(rewards, expected)
    assert trained_episodes(example(), "credited").all()


def test_a_known_gap_decides_the_clamp():
    plain = assign_rewards(example(), WEIGHTS, 1.5)
    switched = assign_rewards(example(), WEIGHTS, 1.5, known_gaps={"1": 0.0, "2": 0.01})
    np.testing.assert_allclose(switched[2:4], [[-0.5, -0.5], [0, 0]])  # only externality is left
    np.testing.assert_allclose(switched[4:6], [[9, 9], [3, 3]])  # -3 times a gap of -3, of -1
    np.testing.assert_array_equal(switched[[0, 1, 6, 7]], plain[[0, 1, 6, 7]])
    with pytest.raises(ValueError, match="exploiter of known_gaps 'Best'"):
        assign_rewards(example(), WEIGHTS, 1.5, known_gaps={"Best": 1.0})
    with pytest.raises(ValueError, match=r"exploiter of known_gaps '0'\. Allowed: 1, 2"):
        assign_rewards(example(), WEIGHTS, 1.5, known_gaps={"0": 1.0})  # of the train pool
    with pytest.raises(ValueError, match="known gap of 1 must be finite, not nan"):
        assign_rewards(example(), WEIGHTS, 1.5, known_gaps={"1": float("nan")})
    with pytest.raises(ValueError, match="known_gaps apply to credit 'credited'"):
        assign_rewards(example(), WEIGHTS, 1.5, "shared", known_gaps={"1": 1.0})


def test_per_rollout_rewards_by_hand():
    # Rollout 10: gaps 2 and -3 -> e = 1; c = 0.5; x over its train and two exploiter episodes
    # = (0.5 + 1 + 0) / 3. Rollout 11: gaps 1 and -1 -> e = 0.5; c = 1; x = 0.
    penalty = np.array([2 * 1.5 * 1 + 0.5 + 0.5 * 0.5, 2 * 1.5 * 0.5 + 1 + 0])
    rewards = assign_rewards(example(), WEIGHTS, 1.5, "per_rollout")
    expected = 1.5 * np.array([[1, 2], [0, 1]]) - penalty[:, None]
    np.testing.assert_allclose(rewards[:2], expected)
    assert not rewards[2:].any()
    assert trained_episodes(example(), "per_rollout").tolist() == [True] * 2 + [False] * 6


def test_shared_rewards_carry_one_constant():
    rewards = assign_rewards(example(), WEIGHTS, 1.5, "shared")
    constant = 2 * 1.5 * 0.75 + 0.75 + 0.5 * 0.25
    np.testing.assert_allclose(rewards[:2], 1.5 * np.array([[1, 2], [0, 1]]) - constant, atol=1e-4)
    assert not rewards[2:].any()


@jax.jit
def compared(returns):
    """Advantages of two groups of four in three forms."""
    group, mask = jnp.repeat(jnp.arange(2), 4), jnp.ones(8, bool)
    return (
        group_mean(returns, group, mask, scale="none"),
        group_mean(returns, group, mask, scale="population"),
        leave_one_out(returns, group, mask),
    )


# Test (a) of papers 1.11: whatever the shared penalty is, advantages keep every bit.
@settings(deadline=None, max_examples=50)
@given(
    weights=st.tuples(*[st.floats(0, 10)] * 3),
    scale=st.sampled_from([1.5, 0.6, 0.3, 1.0]),
    gaps=st.floats(-5, 5),
)
def test_shared_penalty_leaves_advantages_bit_identical(weights, scale, gaps):
    train = 8
    own = np.array([1, -2, 2, -1, 1, 1, -2, 2.0])

    def advantages(sepo_weights):
        arrays = EpisodeArrays(
            own=np.append(own, 0.0)[:, None],
            opponent=np.append(-own, gaps)[:, None],
            harmful=np.linspace(0, 1, train + 1)[:, None],
            externality=np.linspace(1, 0, train + 1)[:, None],
            mask=np.ones((train + 1, 1), bool),
            pool=[TRAIN] * train + [EXPLOITER],
            opponent_id=[0] * train + [1],
        )
        rewards = assign_rewards(arrays, sepo_weights, scale, "shared")[:train, 0]
        return rewards, [np.asarray(a) for a in compared(jnp.asarray(rewards, jnp.float32))]

    penalised, ours = advantages(SepoWeights(weights[0], 0.0, weights[2]))
    free, plain = advantages(SepoWeights(0.0, 0.0, 0.0))
    for one, other in zip(ours, plain, strict=True):
        assert one.tobytes() == other.tobytes()
        assert np.abs(one).max() > 0.1
    if weights[0] * max(gaps, 0) > 0.1:
        assert np.abs(penalised - free).min() > 1e-3  # the penalty is there, it only cancels


SMALL = st.floats(-4, 4).map(lambda value: round(value, 3))


# With balance the mean reward over all episodes is the objective itself, for any batch.
@settings(deadline=None, max_examples=50)
@given(data=st.data(), counts=st.tuples(*[st.integers(1, 4)] * 4), rounds=st.integers(1, 3))
def test_balanced_rewards_average_to_the_objective(data, counts, rounds):
    pool = np.repeat([TRAIN, EXPLOITER, EXPLOITER, COLLUSIVE], counts)
    size = len(pool)

    def draw():
        return np.array(data.draw(st.lists(SMALL, min_size=size * rounds, max_size=size * rounds)))

    own, opponent, harmful, externality = (draw().reshape(size, rounds) for _ in range(4))
    mask = np.ones((size, rounds), bool)
    mask[::2, 1:] = False  # episodes of different lengths
    arrays = EpisodeArrays(
        own=own,
        opponent=opponent,
        harmful=harmful,
        externality=externality,
        mask=mask,
        pool=pool,
        opponent_id=np.repeat(np.arange(4), counts),
        weight=np.linspace(0.5, 2.0, size),
    )
    rewards = assign_rewards(arrays, WEIGHTS, 1.5, "credited", balance=True)
    mean = (arrays.weight * arrays.episode_mean(rewards)).sum() / arrays.weight.sum()
    objective = objective_value(objective_terms(arrays), WEIGHTS, 1.5)
    assert mean == pytest.approx(objective, abs=1e-9)


def test_invalid_replies_cost_the_configured_penalty_and_nothing_by_default():
    invalid = np.zeros((8, 2))
    invalid[0, 1], invalid[2, 0], invalid[6, 1] = 2, 1, 1
    arrays = example(invalid=invalid)
    for credit, rows in (("credited", range(8)), ("per_rollout", range(2)), ("shared", range(2))):
        free = assign_rewards(arrays, WEIGHTS, 1.5, credit)
        np.testing.assert_array_equal(free, assign_rewards(example(), WEIGHTS, 1.5, credit))
        charged = dataclasses.replace(WEIGHTS, invalid_penalty=0.25)
        difference = free - assign_rewards(arrays, charged, 1.5, credit)
        expected = np.zeros((8, 2))
        expected[list(rows)] = 0.25 * invalid[list(rows)]
        np.testing.assert_allclose(difference, expected, atol=1e-12)


def test_rounds_not_played_change_nothing():
    mask = np.ones((8, 2), bool)
    mask[3, 1] = mask[6] = False
    poison = {}
    for name in ("own", "opponent", "harmful", "externality"):
        values = np.array(getattr(example(), name))
        values[~mask] = np.nan
        poison[name] = values
    for credit in ("credited", "shared"):
        clean = assign_rewards(example(mask=mask), WEIGHTS, 1.5, credit)
        dirty = assign_rewards(example(mask=mask, **poison), WEIGHTS, 1.5, credit)
        np.testing.assert_array_equal(clean, dirty)
        assert np.isfinite(dirty).all() and not dirty[~mask].any()


def test_a_missing_episode_enters_no_mean():
    mask = np.ones((8, 2), bool)
    mask[1] = mask[7] = False
    terms = objective_terms(example(mask=mask))
    assert terms["utility"] == 1.5 and terms["collusion"] == 0.5
    assert not trained_episodes(example(mask=mask), "credited")[1]


def test_a_rollout_whose_auxiliary_episodes_died_has_a_missing_reward():
    mask = np.ones((8, 2), bool)
    mask[3] = False  # exploiter 1 for rollout 11
    rewards = assign_rewards(example(mask=mask), WEIGHTS, 1.5, "per_rollout")
    assert np.isnan(rewards[1]).all()
    assert np.isfinite(rewards[0]).all()


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: assign_rewards(example(), WEIGHTS, 1.5, "shard"), "Did you mean 'shared'"),
        (lambda: assign_rewards(example(), WEIGHTS, 1.5, "shared", balance=True), "balance"),
        (lambda: assign_rewards(example(group=None), WEIGHTS, 1.5, "per_rollout"), "`group`"),
        (
            lambda: assign_rewards(
                example(group=[10, 11, 10, 10, 10, 11, 10, 11]), WEIGHTS, 1.5, "per_rollout"
            ),
            "rollout 11 was given no episodes to measure exploitability against 1",
        ),
        (
            lambda: assign_rewards(
                example(pool=[TRAIN] * 6 + [COLLUSIVE] * 2), WEIGHTS, 1.5, "credited"
            ),
            "no episode of the exploiter pool",
        ),
        (lambda: SepoWeights(exploitability=-1), "exploitability must be finite and >= 0"),
        (lambda: SepoWeights(collusion=float("nan")), "collusion must be finite"),
        (lambda: payoff_scale(0), "max_payoff must be positive"),
        (lambda: example(own=np.zeros((8, 3))), r"own has shape \[8, 3\], expected \[8, 2\]"),
        (lambda: example(pool=[5] * 8), "pool must hold"),
        (lambda: example(opponent_id=[0] * 8), "an opponent of two pools needs two ids"),
        (lambda: example(weight=-np.ones(8)), "weight must be finite and not negative"),
        (lambda: example(weight=[np.inf] * 8), "weight must be finite and not negative"),
        (lambda: example(weight=np.zeros(8)), "opponent 0 all have weight 0"),
        (lambda: example(weight=[1] * 4 + [0] * 2 + [1] * 2), "opponent 2 all have weight 0"),
        (lambda: example(pool=[0.7, 1.2, 2, 2, 2, 2, 2, 2]), r"pool must hold integers, not \[0.7"),
        (lambda: example(group=[0.5] * 8), "group must hold integers"),
        (lambda: example(opponent_id=[np.nan] * 8), "opponent_id must hold integers"),
        (lambda: example(own=np.full((8, 2), np.nan)), "own of episode 0 is not finite"),
        (
            lambda: objective_value({"utility": 1.0}, WEIGHTS, 1.5),
            "needs exploit_pool_advantage, collusion, externality",
        ),
    ],
)
def test_bad_input_is_refused_by_name(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_payoff_scale():
    # IPD 3, auction 3, negotiation 5 and 10, Kuhn 2 (papers 1.2).
    assert [payoff_scale(m) for m in (3, 5, 10, 2)] == [1.0, 0.6, 0.3, 1.5]
