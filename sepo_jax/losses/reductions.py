"""Reductions of per-unit losses to a `Mean`: a sum and a count that add up over micro-batches.

The same mask decides numerator and denominator. Masked values are replaced before use, so NaN in
a masked slot reaches neither the value nor the gradient; with nothing to count the value is
exactly 0. Worked example, used in every docstring: values `[[.1, .2, .3], [.4, .5, .6]]`, mask
`[[1, 1, 0], [1, 1, 1]]`, one sequence per row.

Sequences are given by ids: int32 of the shape of the values, -1 where a token belongs to none. A
sequence must lie in one micro-batch whole; then the parts of micro-batches and devices add up.
"""

import chex
import jax
import jax.numpy as jnp

from sepo_jax.mean import Mean

__all__ = [
    "Mean",
    "constant_length",
    "count_sequences",
    "event_mean",
    "masked_sum",
    "sequence_mean",
    "sequence_sum_mean",
    "token_mean",
]


def masked_sum(
    values: chex.Array, mask: chex.Array, weight: chex.Array | None = None
) -> chex.Array:
    """`sum_t mask[t] * weight[t] * values[t]` over all axes; the example gives 1.8.

    Args:
      values: `[...]`.
      mask: bool `[...]`.
      weight: `[...]`, constant; None for 1 everywhere.

    Returns:
      float32 scalar.
    """
    chex.assert_equal_shape([values, mask])
    chex.assert_type(mask, bool)
    values = jnp.where(mask, jnp.asarray(values, jnp.float32), 0.0)
    if weight is not None:
        chex.assert_equal_shape([values, weight])
        values = values * jnp.where(mask, jnp.asarray(weight, jnp.float32), 0.0)
    return values.sum()


def token_mean(values: chex.Array, mask: chex.Array, weight: chex.Array | None = None) -> Mean:
    """Mean over all counted tokens: `sum w v / sum w`; the example gives 1.8 / 5 = 0.36.

    Long sequences weigh more. The loss of DAPO, arXiv 2503.14476, section 3.3.

    Args:
      values: `[...]`.
      mask: bool `[...]`.
      weight: `[...]`, at least 0; None for 1 everywhere. On a tree: the path weights.

    Returns:
      `Mean` of scalars.
    """
    weight = jnp.ones_like(values, jnp.float32) if weight is None else weight
    return Mean(masked_sum(values, mask, weight), masked_sum(weight, mask))


def sequence_mean(
    values: chex.Array, mask: chex.Array, sequence: chex.Array, num_sequences: int
) -> Mean:
    """Mean over sequences of their token means; the example gives (0.15 + 0.5) / 2 = 0.325.

    Every sequence weighs the same, so a token of a long one weighs less. GRPO, arXiv 2402.03300,
    eq. 3. Sequences without counted tokens are not counted.

    Args:
      values: `[...]`.
      mask: bool `[...]`.
      sequence: ids, int32 `[...]`, in [0, num_sequences) or -1.
      num_sequences: static bound of the ids.

    Returns:
      `Mean` of scalars.
    """
    chex.assert_equal_shape([values, mask, sequence])
    lengths = _sequence_lengths(mask, sequence, num_sequences)
    counted = mask & (sequence >= 0)
    share = 1.0 / jnp.maximum(lengths, 1.0)
    return Mean(
        masked_sum(values, counted, share[sequence]), jnp.sum(lengths > 0, dtype=jnp.float32)
    )


def sequence_sum_mean(
    values: chex.Array, mask: chex.Array, sequence: chex.Array, num_sequences: int
) -> Mean:
    """Mean over sequences of their token sums; the example gives (0.3 + 1.5) / 2 = 0.9.

    The gradient of the expected return itself. Sequences without counted tokens are not counted.

    Args:
      values: `[...]`.
      mask: bool `[...]`.
      sequence: ids, int32 `[...]`, in [0, num_sequences) or -1.
      num_sequences: static bound of the ids.

    Returns:
      `Mean` of scalars.
    """
    chex.assert_equal_shape([values, mask, sequence])
    count = count_sequences(mask, sequence, num_sequences)
    return Mean(masked_sum(values, mask & (sequence >= 0)), count)


def constant_length(
    values: chex.Array, mask: chex.Array, length: float, num_sequences: chex.Numeric
) -> Mean:
    """Sum over tokens divided by a constant length and the number of sequences.

    The example with length 3 gives 1.8 / (3 * 2) = 0.3. No token's weight depends on how long its
    sequence came out. Dr. GRPO, arXiv 2503.20783.

    Args:
      values: `[...]`.
      mask: bool `[...]`.
      length: the constant, in tokens, above 0.
      num_sequences: how many sequences have a counted token, number or scalar array
        (`count_sequences`).

    Returns:
      `Mean` of scalars; count is `length * num_sequences`.

    Raises:
      ValueError: `length` not above 0.
    """
    if length <= 0:
        raise ValueError(f"length is {length}, expected a number of tokens above 0.")
    return Mean(masked_sum(values, mask), jnp.asarray(length * num_sequences, jnp.float32))


def event_mean(values: chex.Array, mask: chex.Array) -> Mean:
    """Mean over complete events, each counted once whatever its members and tokens.

    SRPO, arXiv 2609.08452, the event-reduced objective.

    Args:
      values: loss of each event, `[...]`.
      mask: the event is complete, bool `[...]`.

    Returns:
      `Mean` of scalars.
    """
    return token_mean(values, mask)


def count_sequences(mask: chex.Array, sequence: chex.Array, num_sequences: int) -> chex.Array:
    """Number of sequences that have a counted token; the example gives 2.

    Args:
      mask: bool `[...]`.
      sequence: ids, int32 `[...]`, in [0, num_sequences) or -1.
      num_sequences: static bound of the ids.

    Returns:
      float32 scalar.
    """
    lengths = _sequence_lengths(mask, sequence, num_sequences)
    return jnp.sum(lengths > 0, dtype=jnp.float32)


def _sequence_lengths(mask, sequence, num_sequences):
    chex.assert_equal_shape([mask, sequence])
    chex.assert_type([mask, sequence], [bool, int])
    # An id past the end is dropped by the scatter; a negative one would wrap around.
    slot = jnp.where(mask & (sequence >= 0), sequence, num_sequences).reshape(-1)
    return jax.ops.segment_sum(jnp.ones(slot.shape, jnp.float32), slot, num_sequences)
