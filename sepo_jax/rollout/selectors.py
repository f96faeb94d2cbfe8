"""Which decisions of a trunk become branch points: arrays over its decisions in, positions out."""

import numpy as np

SELECTORS = ("entropy", "uniform", "lowest", "threshold")
ENTROPIES = ("first_token", "mean")


def highest(entropy: np.ndarray, offsets: np.ndarray, count: int, spacing: int) -> np.ndarray:
    """The decisions of highest entropy, the earlier of equal ones first.

    Args:
      entropy: float [n], of each decision.
      offsets: int [n], where it begins, ascending.
      count: most decisions that are chosen.
      spacing: least distance between the offsets of two of them; the better ranked goes first.

    Returns:
      int64 [at most count], ascending positions.
    """
    return _spaced(np.argsort(-np.asarray(entropy), kind="stable"), offsets, count, spacing)


def lowest(entropy: np.ndarray, offsets: np.ndarray, count: int, spacing: int) -> np.ndarray:
    """The decisions of lowest entropy; otherwise as `highest`."""
    return _spaced(np.argsort(np.asarray(entropy), kind="stable"), offsets, count, spacing)


def uniform(
    generator: np.random.Generator, offsets: np.ndarray, count: int, spacing: int
) -> np.ndarray:
    """Decisions drawn one after another, each uniformly among those far enough from the others."""
    return _spaced(generator.permutation(len(offsets)), offsets, count, spacing)


def first_above(
    entropy: np.ndarray, offsets: np.ndarray, count: int, spacing: int, threshold: float
) -> np.ndarray:
    """The first decisions of an entropy above the threshold, each far enough from the last one.

    Whether a decision is chosen depends on it and on earlier ones only.
    """
    return _spaced(np.flatnonzero(np.asarray(entropy) > threshold), offsets, count, spacing)


def _spaced(order: np.ndarray, offsets: np.ndarray, count: int, spacing: int) -> np.ndarray:
    """The first `count` of `order` that keep their distance from those before them, ascending."""
    chosen: list[int] = []
    for position in order.tolist():
        if len(chosen) == count:
            break
        if all(abs(int(offsets[position] - offsets[other])) >= spacing for other in chosen):
            chosen.append(position)
    return np.array(sorted(chosen), np.int64)


def shares(forks: int, points: int) -> list[int]:
    """Forks of each branch point: as equal as can be, the earlier get those that are left over."""
    least, more = divmod(forks, points)
    return [least + (point < more) for point in range(points)]
