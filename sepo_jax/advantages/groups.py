"""Statistics of groups: units whose returns may be compared with each other.

A unit is a trajectory, an action segment or an event. Groups are given by ids: int32 `[N]`, any
values, in any order; a negative id belongs to no group. Which units share an id is the whole
difference between most algorithms, so ids are the caller's choice. A unit counts where the mask
is True, its id is not negative and its return is not NaN (NaN is a missing reward); whatever does
not count changes nothing for the others.
"""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from sepo_jax.mean import Mean


class GroupStatistics(NamedTuple):
    """Statistics of each unit's group over its counted members, gathered per unit, all `[N]`.

    Attributes:
      count: number of counted members, int32; 0 for a unit without a group.
      mean: float32; exactly the common value when all members are equal.
      deviation: the unit's return minus the mean, float32; taken before the mean is rounded to the
        size of the returns, so that what all members have in common leaves no trace in it. 0 for
        what does not count.
      std_population: root of the mean squared deviation (divides by count), float32.
      std_sample: divides by count - 1; 0 for a group of one, float32.
      spread: largest minus smallest return, float32; exactly 0 when all members are equal, for
        every value that float32 can or cannot hold.
    """

    count: chex.Array
    mean: chex.Array
    deviation: chex.Array
    std_population: chex.Array
    std_sample: chex.Array
    spread: chex.Array


def counted_units(returns: chex.Array, group: chex.Array, mask: chex.Array) -> chex.Array:
    """Which units enter the statistics: in a group, not masked, return not missing.

    Args:
      returns: `[N]`, NaN where missing.
      group: int32 `[N]`, negative for none.
      mask: bool `[N]`.

    Returns:
      bool `[N]`.
    """
    chex.assert_rank(returns, 1)
    chex.assert_equal_shape([returns, group, mask])
    chex.assert_type([group, mask], [int, bool])
    return mask & (group >= 0) & ~jnp.isnan(returns)


@jax.jit
def group_statistics(returns: chex.Array, group: chex.Array, mask: chex.Array) -> GroupStatistics:
    """Count, mean, standard deviations and spread of each unit's group.

    Returns are shifted by the group's smallest and divided by about its spread before they are
    summed: equal returns then give deviations of exactly 0 (the plain mean of seven 0.1 does not),
    a small spread around a large mean keeps its digits, and squares of large returns stay finite.
    Differentiable in `returns`, also where there is no spread.

    Args:
      returns: `[N]`, NaN where missing.
      group: int32 `[N]`.
      mask: bool `[N]`.

    Returns:
      `GroupStatistics` of arrays `[N]`.
    """
    counted = counted_units(returns, group, mask)
    returns = jnp.where(counted, jnp.asarray(returns, jnp.float32), 0.0)
    slot = _slots(group)

    def total(values):
        return jax.ops.segment_sum(jnp.where(counted, values, 0), slot, group.size)[slot]

    count = total(jnp.ones_like(group))
    # Mean and deviations do not depend on the shift, so it may be a constant to the gradient.
    fixed = jax.lax.stop_gradient(returns)
    low = jax.ops.segment_min(jnp.where(counted, fixed, jnp.inf), slot, group.size)[slot]
    high = jax.ops.segment_max(jnp.where(counted, fixed, -jnp.inf), slot, group.size)[slot]
    low, high = jnp.where(count > 0, low, 0.0), jnp.where(count > 0, high, 0.0)
    spread = high - low
    # In units of about the spread, no sum or square leaves float32; by a power of two, no digit
    # changes. A constant to the gradient as well.
    unit = _power_of_two(spread)
    shifted = (returns - low) / unit
    shifted_mean = total(shifted) / jnp.maximum(count, 1)
    deviation = jnp.where(counted, shifted - shifted_mean, 0.0)
    squares = total(jnp.square(deviation))
    return GroupStatistics(
        count=count,
        mean=low + unit * shifted_mean,
        deviation=unit * deviation,
        std_population=unit * _safe_sqrt(squares / jnp.maximum(count, 1)),
        std_sample=unit * _safe_sqrt(squares / jnp.maximum(count - 1, 1)),
        spread=spread,
    )


def no_spread_fraction(returns: chex.Array, group: chex.Array, mask: chex.Array) -> Mean:
    """Share of groups whose members all have the same return, hence carry no signal.

    Decided for each group from that group alone. Groups of one are among them; groups without
    any counted member are not groups.

    Args:
      returns: `[N]`, NaN where missing.
      group: int32 `[N]`.
      mask: bool `[N]`.

    Returns:
      `Mean` over groups, scalars.
    """
    statistics = group_statistics(returns, group, mask)
    exists = _first_of_group(group) & (statistics.count > 0)
    flat = exists & (statistics.spread == 0)
    return Mean(flat.sum(dtype=jnp.float32), exists.sum(dtype=jnp.float32))


def small_groups(returns: chex.Array, group: chex.Array, mask: chex.Array) -> chex.Array:
    """Number of groups with a single counted member: nothing to compare with, advantage 0.

    More than a few mean that the group ids are too fine (one per trajectory, say).

    Args:
      returns: `[N]`, NaN where missing.
      group: int32 `[N]`.
      mask: bool `[N]`.

    Returns:
      int32 scalar.
    """
    count = group_statistics(returns, group, mask).count
    return jnp.sum(_first_of_group(group) & (count == 1), dtype=jnp.int32)


def _first_of_group(group):
    """True at the first unit of each id, so that each group is counted once."""
    slot, unit = _slots(group), jnp.arange(group.size)
    return jax.ops.segment_min(unit, slot, group.size)[slot] == unit


def _slots(group):
    """Ids in [0, N), equal where the ids are equal: the place of each id among the sorted ones."""
    return jnp.searchsorted(jnp.sort(group), group)


def _power_of_two(values):
    """The largest power of two that is not above each value; 1 where there is none."""
    _, exponent = jnp.frexp(values)
    # Below 2^-126 lie the numbers that devices may flush to 0.
    power = jnp.ldexp(jnp.ones_like(values), jnp.maximum(exponent - 1, -126))
    return jnp.where(values > 0, power, 1.0)


def _safe_sqrt(values):
    """Square root whose gradient at 0 is 0 instead of infinite."""
    positive = values > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, values, 1.0)), 0.0)
