"""Discounted returns and GAE across observations, against hand-made numbers and plain loops."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sepo_jax import advantages


def to_go(rewards, mask, gamma):
    return advantages.reward_to_go(jnp.array(rewards, jnp.float32), jnp.array(mask, bool), gamma)


@pytest.mark.parametrize(
    ("rewards", "mask", "gamma", "expected"),
    [
        ([0, 0, 1], [1, 0, 1], 0.5, [0.5, 0, 1]),  # A18
        ([0, 0, 0, 0, 2], [1, 1, 0, 0, 1], 0.5, [0.5, 1, 0, 0, 2]),  # A18
        ([0, 0, 0, 0, 0, 1], [1, 1, 0, 0, 1, 1], 1.0, [1, 1, 0, 0, 1, 1]),
        ([1.5, 1, 2, 2], [1, 1, 0, 0], 1.0, [2.5, 1, 0, 0]),  # A20: the last two are padding
        ([3, 4], [0, 0], 0.9, [0, 0]),
    ],
)
def test_reward_to_go_numbers(rewards, mask, gamma, expected):
    np.testing.assert_array_equal(to_go(rewards, mask, gamma), np.float32(expected))


REWARDS = jnp.array([0, 0, 0.1, 0.1, 0.1, 0, 0, 0.1, 1, 0, 0])
MASK = jnp.array([0, 0, 1, 1, 1, 0, 0, 1, 1, 0, 0], bool)
VALUES = jnp.zeros(11).at[jnp.array([2, 3, 4, 7, 8])].set(jnp.array([4.0, 5, 6, 7, 9]))


@pytest.mark.parametrize(
    ("gamma", "lam", "expected"),
    [
        # From the end: 1 - 9 = -8; .1 + 9 - 7 - 8 = -5.9; .1 + 7 - 6 - 5.9 = -4.8; ...
        (1.0, 1.0, [-2.6, -3.7, -4.8, -5.9, -8.0]),
        # -8; .1 + 8.1 - 7 + .855 * -8 = -5.64; .1 + 6.3 - 6 + .855 * -5.64 = -4.4222; ...
        (0.9, 0.95, [-2.205239, -3.280981, -4.4222, -5.64, -8.0]),
    ],
)
def test_gae_numbers(gamma, lam, expected):
    advantage, returns = advantages.gae(REWARDS, VALUES, MASK, gamma, lam)
    np.testing.assert_allclose(advantage[MASK], expected, rtol=1e-6)
    np.testing.assert_allclose(returns[MASK] - VALUES[MASK], expected, atol=1e-5)
    assert not advantage[~MASK].any() and not returns[~MASK].any()


@pytest.mark.parametrize("garbage", [100.0, -100.0, np.nan, np.inf])
def test_observations_and_padding_change_nothing(garbage):  # A18, A20
    rewards, values = (jnp.where(MASK, x, garbage) for x in (REWARDS, VALUES))
    clean = advantages.gae(REWARDS, VALUES, MASK, 0.9, 0.95)
    np.testing.assert_array_equal(advantages.gae(rewards, values, MASK, 0.9, 0.95), clean)
    padded = [jnp.pad(x, (0, 53), constant_values=garbage) for x in (rewards, values)]
    wide = advantages.gae(*padded, jnp.pad(MASK, (0, 53)), 0.9, 0.95)
    np.testing.assert_allclose(jnp.stack(wide)[:, :11], jnp.stack(clean), atol=1e-5)
    np.testing.assert_array_equal(
        advantages.reward_to_go(rewards, MASK, 0.9), advantages.reward_to_go(REWARDS, MASK, 0.9)
    )


@settings(deadline=None, max_examples=25)
@given(
    rewards=st.lists(st.floats(-2, 2, width=32), min_size=9, max_size=9),
    values=st.lists(st.floats(-2, 2, width=32), min_size=9, max_size=9),
    mask=st.lists(st.booleans(), min_size=9, max_size=9),
    gamma=st.sampled_from([0.0, 0.5, 0.9, 1.0]),
    lam=st.sampled_from([0.0, 0.95, 1.0]),
)
def test_recursions_agree_with_plain_loops(rewards, values, mask, gamma, lam):
    returns, advantage = np.zeros(9), np.zeros(9)
    next_return = next_value = next_advantage = 0.0
    for t in reversed(range(9)):
        if mask[t]:
            next_return = returns[t] = rewards[t] + gamma * next_return
            delta = rewards[t] + gamma * next_value - values[t]
            next_advantage = advantage[t] = delta + gamma * lam * next_advantage
            next_value = values[t]
    arrays = jnp.array(rewards), jnp.array(values), jnp.array(mask)
    np.testing.assert_allclose(
        advantages.reward_to_go(arrays[0], arrays[2], gamma), returns, atol=1e-5
    )
    got, targets = advantages.gae(*arrays, gamma, lam)
    np.testing.assert_allclose(got, advantage, atol=1e-5)
    np.testing.assert_allclose(targets, np.where(mask, advantage + values, 0), atol=1e-5)


def test_gae_with_lambda_one_is_reward_to_go_minus_value():
    advantage, returns = advantages.gae(REWARDS, VALUES, MASK, 0.9, 1.0)
    want = advantages.reward_to_go(REWARDS, MASK, 0.9)
    np.testing.assert_allclose(returns, want, atol=1e-5)
    np.testing.assert_allclose(advantage, jnp.where(MASK, want - VALUES, 0), atol=1e-5)


def test_gae_with_lambda_zero_is_the_temporal_difference():
    advantage, _ = advantages.gae(REWARDS, VALUES, MASK, 1.0, 0.0)
    np.testing.assert_allclose(advantage[MASK], [1.1, 1.1, 1.1, 2.1, -8], rtol=1e-6)


def test_batches_and_bfloat16():
    stacked = [jnp.stack([x, x]) for x in (REWARDS, VALUES, MASK)]
    batched = advantages.gae(*stacked, 0.9, 0.95)
    mapped = jax.jit(jax.vmap(lambda r, v, m: advantages.gae(r, v, m, 0.9, 0.95)))(*stacked)
    np.testing.assert_allclose(batched, mapped, atol=1e-5)
    low = advantages.reward_to_go(REWARDS.astype(jnp.bfloat16), MASK, 0.9)
    assert low.dtype == jnp.float32


def test_wrong_shapes_and_types_are_refused():
    with pytest.raises(AssertionError):
        advantages.gae(REWARDS, VALUES[:-1], MASK)
    with pytest.raises(AssertionError):
        advantages.reward_to_go(REWARDS, MASK.astype(jnp.float32))
