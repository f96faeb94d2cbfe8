"""A mean carried as its two parts, so that micro-batches, rows and devices add up exactly."""

from typing import Any, NamedTuple


class Mean(NamedTuple):
    """A mean that is not divided yet: `value = sum / count`.

    Means of parts of a batch are added, never averaged: `(a + b).value` is the mean over both
    parts whatever their sizes. A pytree of two leaves, so `jax.lax.psum` and `jax.tree.map` apply.

    Attributes:
      sum: weighted sum of the values; array or number.
      count: sum of the weights, same shape; 0 where nothing was counted.
    """

    sum: Any
    count: Any

    @property
    def value(self) -> Any:
        """`sum / count`, and exactly 0 (with zero gradient) where `count` is 0."""
        empty = self.count == 0
        # The divisor is replaced rather than the quotient: 0 / 0 is never evaluated.
        return self.sum / (self.count + empty) * (1 - empty)

    def __add__(self, other: "Mean") -> "Mean":
        return Mean(self.sum + other.sum, self.count + other.count)
