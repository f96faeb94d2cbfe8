"""Means of samples with intervals: normal approximation, Student's t and bootstrap; spreads of
few samples, and differences of rates.

An interval speaks of sampling error only, under independent samples: a caller averages within an
episode first, because the hands of one match are not independent. Rates have Wilson's interval,
which is `sepo.metrics.rate`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from scipy.special import chdtri, fdtri, stdtrit

from ..sepo.metrics import Estimate

DEFAULT_LEVEL = 0.95
_RESAMPLES_PER_CHUNK = 256


@dataclass(frozen=True)
class Interval:
    """An estimate with its interval.

    Attributes:
      mean: the estimate, in the unit of the samples; nan where they are too few for any.
      low: lower end of the interval, same unit; -inf when one sample says nothing of the spread.
      high: upper end.
      standard_error: estimated standard deviation of `mean`; inf where it is not estimated.
      count: number of independent samples behind the estimate, over all strata.
      level: nominal coverage, 0.95 for a 95% interval.
      method: how it was computed: "normal", "student", "bootstrap", "chi-square", "F", "newcombe".
    """

    mean: float
    low: float
    high: float
    standard_error: float
    count: int
    level: float
    method: str

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high

    def __str__(self) -> str:
        return f"{self.mean:.4f} [{self.low:.4f}, {self.high:.4f}]"

    def scaled(self, factor: float) -> "Interval":
        """The interval of `factor` times the quantity; a negative factor swaps the ends."""
        ends = sorted((self.low * factor, self.high * factor))
        error = self.standard_error * abs(factor)
        return Interval(
            self.mean * factor, ends[0], ends[1], error, self.count, self.level, self.method
        )


def normal_interval(
    *strata: Sequence[float] | np.ndarray, level: float = DEFAULT_LEVEL
) -> Interval:
    """Normal-approximation interval of a mean, or of a sum of means of independent strata.

    estimate = Σ_i mean_i, standard error = sqrt(Σ_i s_i² / n_i) with the sample variance s_i²
    (divisor n_i − 1), interval = estimate ± z · standard error with z the (1 + level) / 2 quantile.

    Args:
      *strata: one or more arrays [n_i] of independent samples. One array is the ordinary mean; two
        arrays give, for example, the sum of a first-seat mean and a second-seat mean.
      level: nominal coverage in (0, 1).

    Returns:
      The Interval, method "normal". A stratum of one sample makes it infinitely wide.

    Raises:
      ValueError: an empty stratum, a value that is not finite, or a level outside (0, 1).
    """
    arrays = _check(strata, level)
    mean = float(sum(array.mean() for array in arrays))
    count = sum(array.size for array in arrays)
    if min(array.size for array in arrays) == 1:
        return Interval(mean, -np.inf, np.inf, np.inf, count, level, "normal")
    error = float(np.sqrt(sum(array.var(ddof=1) / array.size for array in arrays)))
    margin = NormalDist().inv_cdf((1.0 + level) / 2.0) * error
    return Interval(mean, mean - margin, mean + margin, error, count, level, "normal")


def seed_interval(values: Sequence[float] | np.ndarray, level: float = DEFAULT_LEVEL) -> Interval:
    """Student's t interval of a mean over few independent runs, such as the seeds of a sweep.

    mean ± t · s / sqrt(n), with the sample standard deviation s (divisor n − 1) and the
    (1 + level) / 2 quantile t of Student's distribution with n − 1 degrees of freedom. It speaks of
    what differs between runs, episodes sampled for their evaluation included.

    Args:
      values: a figure of each run, [n].
      level: nominal coverage in (0, 1).

    Returns:
      The Interval, method "student". One run makes it infinitely wide.

    Raises:
      ValueError: no run, a value that is not finite, or a level outside (0, 1).
    """
    (array,) = _check((values,), level)
    mean, count = float(array.mean()), array.size
    if count == 1:
        return Interval(mean, -np.inf, np.inf, np.inf, 1, level, "student")
    error = float(array.std(ddof=1) / np.sqrt(count))
    margin = float(stdtrit(count - 1, (1.0 + level) / 2.0)) * error
    return Interval(mean, mean - margin, mean + margin, error, count, level, "student")


def deviation_interval(
    values: Sequence[float] | np.ndarray, level: float = DEFAULT_LEVEL
) -> Interval:
    """Interval of the standard deviation of a normal quantity from few independent samples.

    s = sqrt(Σ (v - mean)² / (n - 1)); (n - 1) s² / σ² has the chi-square distribution with n - 1
    degrees of freedom, so the ends are s sqrt((n - 1) / q) with q its (1 ± level) / 2 quantiles.

    Args:
      values: a figure of each run, [n].
      level: nominal coverage in (0, 1).

    Returns:
      The Interval, method "chi-square"; nan in [0, inf] for one run.

    Raises:
      ValueError: as `seed_interval`.
    """
    (array,) = _check((values,), level)
    free = array.size - 1
    if not free:
        return Interval(np.nan, 0.0, np.inf, np.inf, 1, level, "chi-square")
    spread = float(array.std(ddof=1))
    # By the probabilities above them.
    quantiles = chdtri(free, [(1.0 - level) / 2.0, (1.0 + level) / 2.0])
    low, high = (float(spread * np.sqrt(free / quantile)) for quantile in quantiles)
    return Interval(spread, low, high, np.inf, array.size, level, "chi-square")


def deviation_ratio_interval(
    first: Sequence[float] | np.ndarray,
    second: Sequence[float] | np.ndarray,
    level: float = DEFAULT_LEVEL,
) -> Interval:
    """Interval of the ratio σ1 / σ2 of two normal quantities from independent samples of each.

    s1² σ2² / (s2² σ1²) has the F distribution with n1 - 1 and n2 - 1 degrees of freedom: the ends
    are s1 / s2 divided by the square roots of its (1 ± level) / 2 quantiles.

    Args:
      first, second: a figure of each run, [n1] and [n2].
      level: nominal coverage in (0, 1).

    Returns:
      The Interval, method "F"; nan in [0, inf] where either has one run or `second` no spread.

    Raises:
      ValueError: as `seed_interval`.
    """
    arrays = _check((first, second), level)
    count = sum(array.size for array in arrays)
    spreads = [float(array.std(ddof=1)) if array.size > 1 else np.nan for array in arrays]
    if np.isnan(spreads).any() or not spreads[1]:
        return Interval(np.nan, 0.0, np.inf, np.inf, count, level, "F")
    ratio = spreads[0] / spreads[1]
    freedom = [array.size - 1 for array in arrays]
    quantiles = fdtri(*freedom, [(1.0 + level) / 2.0, (1.0 - level) / 2.0])
    low, high = (float(ratio / np.sqrt(quantile)) for quantile in quantiles)
    return Interval(ratio, low, high, np.inf, count, level, "F")


def coefficient_of_variation(values: Sequence[float] | np.ndarray) -> float:
    """Sample standard deviation (divisor n - 1) over the mean of a quantity that is never negative,
    [n]; 0 where all values are equal.

    Raises:
      ValueError: fewer than two values, one that is not finite, or one below 0.
    """
    (array,) = _check((values,), DEFAULT_LEVEL)
    if array.size < 2 or array.min() < 0:
        raise ValueError(
            f"got {array.size} values, the least of them {array.min():g}; a coefficient of "
            "variation needs two or more, none below 0"
        )
    return float(array.std(ddof=1) / array.mean()) if array.max() > array.min() else 0.0


def rate_difference(first: Estimate, second: Estimate) -> Interval:
    """Newcombe's interval of the difference of two independent rates (Statistics in Medicine 17,
    1998, method 10): first - second, at the 95% of `sepo.metrics.rate`.

    With shares p1, p2 and their Wilson intervals [l1, u1], [l2, u2] the ends are
    p1 - p2 - sqrt((p1 - l1)² + (u2 - p2)²) and p1 - p2 + sqrt((u1 - p1)² + (p2 - l2)²).
    """
    difference = first.value - second.value
    low = difference - np.hypot(first.value - first.low, second.high - second.value)
    high = difference + np.hypot(first.high - first.value, second.value - second.low)
    count = first.count + second.count
    return Interval(difference, float(low), float(high), np.inf, count, DEFAULT_LEVEL, "newcombe")


def bootstrap_interval(
    *strata: Sequence[float] | np.ndarray,
    seed: int,
    level: float = DEFAULT_LEVEL,
    resamples: int = 2000,
) -> Interval:
    """Percentile-bootstrap interval of a mean, or of a sum of means of independent strata.

    Every resample draws n_i values with replacement inside each stratum and adds up the strata's
    means; the ends are the (1 − level)/2 and (1 + level)/2 quantiles of these sums
    (Efron and Tibshirani, An Introduction to the Bootstrap, chapter 13).

    Args:
      *strata: one or more arrays [n_i] of independent samples.
      seed: seed of the generator that draws the resamples; equal seeds give equal intervals.
      level: nominal coverage in (0, 1).
      resamples: number of resamples, at least 100.

    Returns:
      The Interval, method "bootstrap". A stratum of one sample makes it infinitely wide.

    Raises:
      ValueError: as `normal_interval`, or fewer than 100 resamples.
    """
    arrays = _check(strata, level)
    if resamples < 100:
        raise ValueError(f"resamples is {resamples}; a percentile needs at least 100")
    mean = float(sum(array.mean() for array in arrays))
    count = sum(array.size for array in arrays)
    if min(array.size for array in arrays) == 1:
        return Interval(mean, -np.inf, np.inf, np.inf, count, level, "bootstrap")
    generator = np.random.default_rng(seed)
    sums = np.zeros(resamples)
    for array in arrays:
        # Chunks bound the memory of the index array at any number of samples.
        for start in range(0, resamples, _RESAMPLES_PER_CHUNK):
            stop = min(start + _RESAMPLES_PER_CHUNK, resamples)
            picks = generator.integers(array.size, size=(stop - start, array.size))
            sums[start:stop] += array[picks].mean(axis=1)
    low, high = np.quantile(sums, [(1.0 - level) / 2.0, (1.0 + level) / 2.0])
    error = float(sums.std(ddof=1))
    return Interval(mean, float(low), float(high), error, count, level, "bootstrap")


def _check(strata: Sequence, level: float) -> list[np.ndarray]:
    """The strata as float64 vectors, after the checks that every interval shares."""
    if not 0.0 < level < 1.0:
        raise ValueError(
            f"level is {level}; a coverage lies strictly between 0 and 1, such as 0.95"
        )
    if not strata:
        raise ValueError("got no samples; pass at least one array")
    arrays = [np.asarray(values, np.float64).reshape(-1) for values in strata]
    for index, array in enumerate(arrays):
        if array.size == 0:
            raise ValueError(f"array {index} holds no samples; a mean needs at least one")
        bad = int((~np.isfinite(array)).sum())
        if bad:
            raise ValueError(
                f"array {index} holds {bad} values of {array.size} that are not finite; "
                "drop missing samples (and report how many) before averaging"
            )
    return arrays
