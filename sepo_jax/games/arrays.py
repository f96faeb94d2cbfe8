"""Numbers as callers give them, made arrays of one float type."""

import jax
import jax.numpy as jnp
import numpy as np

KINDS = (np.floating, np.integer, np.bool_)
ROUNDING = 1e-15  # of a sum of two payoffs, relative to the larger one


def as_numbers(name: str, array) -> jax.Array | np.ndarray:
    """JAX arrays as they are, anything else as a numpy array, which keeps integers whole.

    Raises:
      ValueError: rows of unequal length, complex numbers, text or objects (integers beyond 64 bits
        included).
    """
    try:
        array = array if isinstance(array, jax.Array) else np.asarray(array)
    except ValueError as error:
        raise ValueError(f"{name} of rows that do not fit into one array: {error}") from None
    if not any(jnp.issubdtype(array.dtype, kind) for kind in KINDS):
        raise ValueError(
            f"{name} of type {array.dtype}; give real numbers: floats, booleans, or integers of at "
            "most 64 bits"
        )
    return array


def as_tables(payoffs) -> np.ndarray:
    """Payoffs [..., m, n] as numpy float64, finite or not.

    Raises:
      ValueError: another shape, no cell, or entries that are no real numbers.
    """
    table = np.asarray(as_numbers("payoffs", payoffs), np.float64)
    if table.ndim < 2 or 0 in table.shape[-2:]:
        raise ValueError(
            f"payoffs of shape {list(table.shape)}; expected [..., m, n], m and n >= 1"
        )
    return table


def float_type(*arrays) -> np.dtype:
    """float64 where JAX has x64 enabled and an array is that wide, else float32."""
    wide = any(jnp.issubdtype(a.dtype, np.floating) and a.dtype.itemsize >= 8 for a in arrays)
    return np.dtype(jnp.result_type(float) if wide else np.float32)


def as_float(array, dtype) -> jax.Array:
    """An array from `as_numbers` in the given float type; what does not fit becomes infinite."""
    with np.errstate(over="ignore"):
        return jnp.asarray(array.astype(dtype))


def largest_allowed(dtype) -> float:
    """Magnitude of payoffs up to which differences and sums of values cannot overflow."""
    return float(np.finfo(dtype).max) / 4


def check_magnitude(largest, dtype) -> None:
    """Refuses payoffs of a magnitude above `largest_allowed`; ValueError. NaN passes."""
    if largest > largest_allowed(dtype):
        raise ValueError(
            f"payoffs of magnitude {largest:.6g}; evaluation in {np.dtype(dtype).name} takes at "
            f"most {largest_allowed(dtype):.6g}: divide all payoffs by a constant"
        )
