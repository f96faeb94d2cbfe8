"""Intervals of means: closed forms, coverage, determinism, bad input."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sepo_jax.evaluation import statistics
from sepo_jax.sepo.metrics import rate


def test_normal_interval_known_answer():
    # [1, 2, 3, 4]: mean 2.5, sample variance 5/3, standard error sqrt(5/12) = 0.645497,
    # times z(0.975) = 1.959964 gives 1.265151.
    interval = statistics.normal_interval([1, 2, 3, 4])
    assert interval.mean == 2.5
    assert interval.standard_error == pytest.approx(np.sqrt(5 / 12))
    assert (interval.low, interval.high) == pytest.approx(
        (2.5 - 1.265151, 2.5 + 1.265151), abs=1e-6
    )
    assert interval.count == 4 and interval.method == "normal"


def test_strata_add_means_and_variances():
    first, second = np.array([0.0, 2.0, 4.0]), np.array([1.0, 1.0, 4.0, 6.0])
    total = statistics.normal_interval(first, second)
    parts = [statistics.normal_interval(values) for values in (first, second)]
    assert total.mean == pytest.approx(sum(part.mean for part in parts))
    assert total.standard_error == pytest.approx(
        np.hypot(parts[0].standard_error, parts[1].standard_error)
    )
    assert total.count == 7


@pytest.mark.parametrize("method", ["normal", "bootstrap"])
def test_coverage_is_near_the_nominal_level(method):
    # 300 experiments of 40 skewed samples with mean 1; 90% intervals should hold 1 in about 90%
    # of them. The standard deviation of that share is 1.7%, so [0.83, 0.96] is four of them wide
    # plus the small-sample bias of both methods.
    generator = np.random.default_rng(0)
    hits = 0
    for trial in range(300):
        sample = generator.exponential(size=40)
        if method == "normal":
            interval = statistics.normal_interval(sample, level=0.9)
        else:
            interval = statistics.bootstrap_interval(sample, seed=trial, level=0.9, resamples=200)
        hits += 1.0 in interval
    assert 0.83 <= hits / 300 <= 0.96


def test_bootstrap_is_a_function_of_its_seed_and_close_to_normal():
    sample = np.random.default_rng(1).normal(3.0, 2.0, size=500)
    first = statistics.bootstrap_interval(sample, seed=7)
    assert first == statistics.bootstrap_interval(sample, seed=7)
    assert first != statistics.bootstrap_interval(sample, seed=8)
    normal = statistics.normal_interval(sample)
    assert (first.low, first.high) == pytest.approx((normal.low, normal.high), abs=0.03)


@given(st.lists(st.floats(-100, 100), min_size=2, max_size=20), st.sampled_from([-2.0, 0.5, 3.0]))
@settings(deadline=None, max_examples=50)
def test_scaling_samples_scales_the_interval(values, factor):
    scaled = statistics.normal_interval(values).scaled(factor)
    direct = statistics.normal_interval(np.asarray(values) * factor)
    assert (scaled.mean, scaled.low, scaled.high) == pytest.approx(
        (direct.mean, direct.low, direct.high), abs=1e-6
    )


def test_one_sample_says_nothing_of_the_spread():
    for interval in (
        statistics.normal_interval([2.0]),
        statistics.bootstrap_interval([2.0], [1.0, 3.0], seed=0),
    ):
        assert interval.low == -np.inf and interval.high == np.inf


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: statistics.normal_interval([]), "no samples"),
        (lambda: statistics.normal_interval(), "no samples"),
        (lambda: statistics.normal_interval([1.0, np.nan]), "1 values of 2 that are not finite"),
        (lambda: statistics.normal_interval([1.0, 2.0], level=95), "strictly between 0 and 1"),
        (lambda: statistics.bootstrap_interval([1.0, 2.0], seed=0, resamples=5), "at least 100"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_seed_interval_is_students():
    # Three runs: mean 2, s = 1, t(0.975, 2) = 4.302653: half width 4.302653 / sqrt(3).
    interval = statistics.seed_interval([1.0, 2.0, 3.0])
    assert interval.mean == 2 and interval.count == 3
    assert interval.high - interval.mean == pytest.approx(4.302653 / 3**0.5, abs=1e-5)
    assert statistics.seed_interval([1.5]).low == -np.inf
    with pytest.raises(ValueError):
        statistics.seed_interval([])
    with pytest.raises(ValueError):
        statistics.seed_interval([1.0, np.nan])


def test_deviation_interval_is_chi_squares():
    # 1, 2, 3: s = 1; quantiles of chi-square with 2 degrees of freedom are -2 log(1 - p):
    # 7.377759 at 0.975, 0.050636 at 0.025.
    found = statistics.deviation_interval([1.0, 2.0, 3.0])
    assert found.mean == 1 and found.count == 3
    assert found.low == pytest.approx((2 / 7.377759) ** 0.5, abs=1e-5)
    assert found.high == pytest.approx((2 / 0.050636) ** 0.5, rel=1e-4)
    assert str(statistics.deviation_interval([2.0, 2.0])) == "0.0000 [0.0000, 0.0000]"
    alone = statistics.deviation_interval([2.0])
    assert np.isnan(alone.mean) and alone.high == np.inf


def test_deviation_ratio_interval_is_fishers():
    # F with 2 and 2 degrees of freedom has the quantiles p / (1 - p): 39 and 1 / 39.
    found = statistics.deviation_ratio_interval([2.0, 4.0, 6.0], [1.0, 2.0, 3.0])
    assert found.mean == 2 and found.count == 6
    assert (found.low, found.high) == pytest.approx((2 / 39**0.5, 2 * 39**0.5))
    for first, second in (([1.0], [1.0, 2.0]), ([1.0, 2.0], [3.0]), ([1.0, 2.0], [3.0, 3.0])):
        found = statistics.deviation_ratio_interval(first, second)
        assert np.isnan(found.mean) and found.high == np.inf
    assert statistics.deviation_ratio_interval([3.0, 3.0], [1.0, 2.0]).high == 0
    with pytest.raises(ValueError, match="no samples"):
        statistics.deviation_ratio_interval([], [1.0])


def test_coverage_of_intervals_of_deviations():
    # 400 experiments; the standard deviation of a share of 95% is 1.1%.
    draws = np.random.default_rng(2).normal(size=(400, 12)) * np.repeat([3.0, 1.0], [5, 7])
    alone = [3.0 in statistics.deviation_interval(each[:5]) for each in draws]
    ratio = [3.0 in statistics.deviation_ratio_interval(each[:5], each[5:]) for each in draws]
    assert 0.91 <= np.mean(alone) <= 0.99 and 0.91 <= np.mean(ratio) <= 0.99


def test_coefficient_of_variation():
    # Deviations -2, -1 and 3 of a mean of 3: the sample variance is 14 / 2.
    assert statistics.coefficient_of_variation([1, 2, 6]) == pytest.approx(7**0.5 / 3)
    assert statistics.coefficient_of_variation([0.1, 0.1, 0.1]) == 0.0
    assert statistics.coefficient_of_variation([0.0, 0.0]) == 0.0
    for wrong, message in (([1.0], "got 1 values"), ([1.0, -1.0], "least of them -1")):
        with pytest.raises(ValueError, match=message):
            statistics.coefficient_of_variation(wrong)


def test_rate_difference_is_newcombes():
    # Newcombe 1998, table II, contrast (a), method 10: 56/70 - 48/80 = 0.2 [0.0524, 0.3339].
    found = statistics.rate_difference(rate(56, 70), rate(48, 80))
    assert (found.mean, found.low, found.high) == pytest.approx((0.2, 0.0524, 0.3339), abs=5e-5)
    # (h): 10/10 - 0/10 = 1 [0.6075, 1].
    found = statistics.rate_difference(rate(10, 10), rate(0, 10))
    assert (found.low, found.high) == pytest.approx((0.6075, 1.0), abs=5e-5)
    swapped = statistics.rate_difference(rate(0, 10), rate(10, 10))
    assert (swapped.low, swapped.high) == (-found.high, -found.low)
