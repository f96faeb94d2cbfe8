"""Advantages by comparison with the other members of a group (see `groups` for the ids).

A group without spread gives exactly 0, whatever value its members share; a group of one gives 0;
a masked unit, one without a group or one whose return is missing gets 0 and changes nothing for
the others.
"""

import chex
import jax.numpy as jnp

from sepo_jax.advantages.groups import group_statistics
from sepo_jax.names import check_option

SCALES = ("none", "population", "sample")


def group_mean(
    returns: chex.Array,
    group: chex.Array,
    mask: chex.Array,
    *,
    scale: str = "none",
    epsilon: float = 1e-8,
) -> chex.Array:
    """Return minus the group's mean, optionally divided by the group's standard deviation.

    `A[i] = (R[i] - mean) / (std + epsilon)`. GRPO, arXiv 2402.03300, section 4.1.2 (std);
    Dr. GRPO, arXiv 2503.20783 (`scale="none"`).

    Returns 1, 1, 1, 0, 0, 0, 0, 0 give +0.625 and -0.375; divided by the population std (over n)
    +1.290994 and -0.774597, by the sample std (over n - 1) +1.207615 and -0.724569, before
    epsilon.

    Args:
      returns: `[N]`, NaN where missing.
      group: int32 `[N]`, negative for none.
      mask: bool `[N]`.
      scale: `"none"`, `"population"` or `"sample"`.
      epsilon: added to the standard deviation, units of the return.

    Returns:
      float32 `[N]`.

    Raises:
      ValueError: unknown `scale`.
    """
    check_option("scale", scale, SCALES)
    statistics = group_statistics(returns, group, mask)
    if scale == "none":
        return statistics.deviation
    std = statistics.std_population if scale == "population" else statistics.std_sample
    return statistics.deviation / jnp.where(std > 0, std + epsilon, 1.0)


def leave_one_out(returns: chex.Array, group: chex.Array, mask: chex.Array) -> chex.Array:
    """Return minus the mean return of the other members of the group.

    `A[i] = R[i] - mean of R[j], j != i = n / (n - 1) * (R[i] - mean)`. The baseline does not
    depend on unit i, so the policy gradient stays unbiased. RLOO, arXiv 2402.14740.

    Args:
      returns: `[N]`, NaN where missing.
      group: int32 `[N]`, negative for none.
      mask: bool `[N]`.

    Returns:
      float32 `[N]`. Returns 1, 2, 3 give -1.5, 0, 1.5.
    """
    count = group_statistics(returns, group, mask).count
    return group_mean(returns, group, mask) * (count / jnp.maximum(count - 1, 1))


def normalize_batch(
    advantage: chex.Array, mask: chex.Array, *, center: bool = False, epsilon: float = 1e-8
) -> chex.Array:
    """Divides advantages by their population standard deviation over the whole batch.

    Without centring, zeros stay exactly 0: a group without spread stays without signal. With
    centring it is the whitening of REINFORCE++ (arXiv 2501.03262). Equal advantages are not
    divided.

    Args:
      advantage: `[N]`.
      mask: bool `[N]`.
      center: subtract the batch mean as well.
      epsilon: added to the standard deviation.

    Returns:
      float32 `[N]`, 0 where masked.
    """
    chex.assert_type(mask, bool)
    batch = jnp.zeros(advantage.shape, jnp.int32)
    centred = group_mean(advantage, batch, mask)
    std = group_statistics(advantage, batch, mask).std_population
    values = centred if center else jnp.where(mask, _float32(advantage), 0.0)
    return values / jnp.where(std > 0, std + epsilon, 1.0)


def _float32(values: chex.Array) -> chex.Array:
    return jnp.asarray(values, jnp.float32)
