"""Discounted returns and generalised advantages along token sequences with observations between.

`T` tokens on the last axis. The mask marks the model's own tokens. An observation (mask False) is
no time step: what comes after it reaches the tokens before it undiminished, each model token costs
one discount, and whatever is stored at observation or padding positions changes nothing.
"""

import chex
import jax
import jax.numpy as jnp


def reward_to_go(rewards: chex.Array, mask: chex.Array, gamma: float = 1.0) -> chex.Array:
    """Discounted sum of the rewards from each model token on.

    `G[t] = r[t] + gamma * G[next model token after t]`.
    Rewards 0, 0, 1 with mask 1, 0, 1 and gamma 0.5 give 0.5, 0, 1.

    Args:
      rewards: `[..., T]`, read at model tokens only.
      mask: True at model tokens, bool `[..., T]`.
      gamma: discount per model token, in [0, 1].

    Returns:
      float32 `[..., T]`, 0 where masked.
    """
    chex.assert_equal_shape([rewards, mask])
    chex.assert_type(mask, bool)
    rewards = jnp.where(mask, _float32(rewards), 0.0)
    returns = _reverse_recurrence(jnp.where(mask, gamma, 1.0), rewards)
    return jnp.where(mask, returns, 0.0)


def gae(
    rewards: chex.Array,
    values: chex.Array,
    mask: chex.Array,
    gamma: float = 1.0,
    lam: float = 0.95,
) -> tuple[chex.Array, chex.Array]:
    """Generalised advantage estimate and the returns a critic is fitted to.

    With n the next model token after t, and value 0 after the last one:
    `delta[t] = r[t] + gamma * V[n] - V[t]`, `A[t] = delta[t] + gamma * lam * A[n]`,
    `returns[t] = A[t] + V[t]`. Schulman et al., arXiv 1506.02438, eq. 16.
    gamma = lam = 1 gives reward to go minus value.

    Args:
      rewards: `[..., T]`, read at model tokens only.
      values: critic's values at the state before each model token, `[..., T]`, likewise.
      mask: True at model tokens, bool `[..., T]`.
      gamma: discount per model token, in [0, 1].
      lam: weight of longer estimates, in [0, 1].

    Returns:
      advantages and returns, float32 `[..., T]`, 0 where masked.
    """
    chex.assert_equal_shape([rewards, values, mask])
    chex.assert_type(mask, bool)
    rewards = jnp.where(mask, _float32(rewards), 0.0)
    values = jnp.where(mask, _float32(values), 0.0)
    # The value at t or, at an observation, at the first model token after it.
    reached = _reverse_recurrence(jnp.where(mask, 0.0, 1.0), values)
    after = jnp.concatenate([reached[..., 1:], jnp.zeros_like(reached[..., :1])], axis=-1)
    delta = jnp.where(mask, rewards + gamma * after - values, 0.0)
    advantages = _reverse_recurrence(jnp.where(mask, gamma * lam, 1.0), delta)
    advantages = jnp.where(mask, advantages, 0.0)
    return advantages, advantages + values


@jax.jit
def _reverse_recurrence(decay, increment):
    """`y[t] = increment[t] + decay[t] * y[t + 1]` on the last axis, in logarithmic depth."""

    def compose(later, earlier):
        return later[0] * earlier[0], earlier[1] + earlier[0] * later[1]

    axis = increment.ndim - 1
    return jax.lax.associative_scan(compose, (decay, increment), reverse=True, axis=axis)[1]


def _float32(values: chex.Array) -> chex.Array:
    return jnp.asarray(values, jnp.float32)
