"""Estimates of the policy gradient that claims of BPO compare, and how noisy they are."""

from collections.abc import Callable, Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from sepo_jax.algorithms import Algorithm, get_algorithm
from sepo_jax.evaluation.branching_theory import ESTIMATORS
from sepo_jax.evaluation.branching_trees import Design, Selector, nowhere
from sepo_jax.evaluation.statistics import DEFAULT_LEVEL, Interval, seed_interval

from .runs import Runs

# As the paper has it: lambda credit on the prefix, every token once, no weight that undoes the
# over-sampling of forked states. In a process of equally long episodes its mean over tokens divides
# by a constant.
PAPER = get_algorithm("bpo", prefix_credit="lambda", segment_weight="uniform")
TREE = ESTIMATORS["tree"]


SEEDS = tuple(range(5))


def seeds_for(bench: Runs) -> list[int]:
    """The seeds given, else the usual ones, of a smoke test the first two."""
    return list(bench.seeds or (SEEDS[:2] if bench.quick else SEEDS))


class Arm(NamedTuple):
    """An estimate of the gradient.

    Attributes:
      row: of the table of algorithms.
      trees: of a prompt; without forks, independent samples.
      continuations: K of every branch point.
      select: chooses branch points.
    """

    row: Algorithm
    trees: int = 1
    continuations: int = 2
    select: Selector = nowhere

    @property
    def design(self) -> Design:
        """How a prompt is sampled."""
        return Design(self.trees, self.continuations, self.select)


def scaled_noise(found: np.ndarray, gradient: np.ndarray) -> float:
    """Variance of an estimate, after it is scaled to go as far along the exact gradient as that.

    trace Cov(g) / (s |grad|)², s = <E g, grad> / |grad|²: of an unbiased estimate its variance over
    |grad|². Free of what an estimate is divided by; a bias counts where it shortens the way along
    the exact gradient.

    Args:
      found: estimates of single prompts, [n >= 2, ...]. gradient: exact, not 0, [...].

    Returns:
      The noise; inf where the mean has no part along the exact gradient.
    """
    flat, exact = found.reshape(len(found), -1), gradient.ravel()
    along = flat.mean(axis=0) @ exact
    variance = flat.var(axis=0, ddof=1).sum()
    return float(variance * (exact @ exact) / along**2) if along else float("inf")


def by_seed(found: np.ndarray, seeds: int) -> list[np.ndarray]:
    """Equal shares of sampled gradients, one a seed; what is left over is dropped."""
    size = len(found) // seeds
    return [found[seed * size : (seed + 1) * size] for seed in range(seeds)]


def ratios(first: Sequence[float], second: Sequence[float]) -> list[float]:
    """first / second, seed by seed."""
    return [a / b for a, b in zip(first, second, strict=True)]


def geometric_interval(values: Sequence[float]) -> Interval:
    """Geometric mean of positive ratios over seeds, with Student's t interval of their logarithms:
    a ratio and its inverse are treated alike, and neither end is below 0."""
    found = seed_interval(np.log(values))
    mean, low, high = np.exp([found.mean, found.low, found.high]).tolist()
    error = mean * found.standard_error
    return Interval(mean, low, high, error, found.count, found.level, "student of logarithms")


class Batches(NamedTuple):
    """What the spread of n batch gradients is read from.

    Attributes:
      gram: inner products of the gradients, [n, n].
      along: their parts along the exact gradient, as shares of its norm, [n]; nan where it is not
        known.
    """

    gram: np.ndarray
    along: np.ndarray

    @classmethod
    def of(cls, gradients: np.ndarray, exact: np.ndarray | None = None) -> "Batches":
        """Of gradients [n, ...], n >= 3, and the exact gradient [...]."""
        flat = np.asarray(gradients, np.float64).reshape(len(gradients), -1)
        if len(flat) < 3:
            raise ValueError(f"{len(flat)} gradients have no jackknife: give 3 or more")
        along = np.full(len(flat), np.nan)
        if exact is not None:
            along = flat @ exact.ravel() / float((exact**2).sum())
        return cls(flat @ flat.T, along)

    def norms(self) -> np.ndarray:
        """Euclidean norms, [n]."""
        return np.sqrt(np.diag(self.gram))

    def without(self, number: int) -> "Batches":
        """All but one."""
        kept = np.delete(np.arange(len(self.along)), number)
        return Batches(self.gram[np.ix_(kept, kept)], self.along[kept])


def norm_variance(batches: Batches) -> float:
    """Variance of the gradient norm, in the estimate's own unit: what a training log shows."""
    return float(batches.norms().var(ddof=1))


def relative_norm_variance(batches: Batches) -> float:
    """Variance of the gradient norm over its squared mean: free of the unit."""
    norms = batches.norms()
    return float(norms.var(ddof=1) / norms.mean() ** 2)


def variance(batches: Batches) -> float:
    """Variance of the gradient, trace Cov(g), in the estimate's own unit."""
    count = len(batches.along)
    return float((np.trace(batches.gram) - batches.gram.sum() / count) / (count - 1))


def noise(batches: Batches) -> float:
    """Variance of the gradient where its mean is scaled as in `scaled_noise`, over |grad|²."""
    return variance(batches) / float(batches.along.mean() ** 2)


def ratio_of(
    first: Batches,
    second: Batches,
    statistic: Callable[[Batches], float],
    level: float = DEFAULT_LEVEL,
) -> Interval:
    """The ratio of a positive statistic of two independent sets of batches.

    The interval is normal on the scale of logarithms, with errors of the jackknife over batches.
    """
    logs, error = [], 0.0
    for batches in (first, second):
        count = len(batches.along)
        left = np.log([statistic(batches.without(number)) for number in range(count)])
        error += (count - 1) / count * float(np.square(left - left.mean()).sum())
        logs.append(np.log(statistic(batches)))
    ratio, error = float(np.exp(logs[0] - logs[1])), error**0.5
    margin = float(np.exp(NormalDist().inv_cdf((1 + level) / 2) * error))
    count = len(first.along) + len(second.along)
    return Interval(ratio, ratio / margin, ratio * margin, ratio * error, count, level, "jackknife")
