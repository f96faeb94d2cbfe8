"""Figures of episodes with 95% intervals, for domains of tasks: rates, means, flat figures."""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

NORMAL_QUANTILE = 1.959964  # 97.5 %


class Estimate(NamedTuple):
    """A figure with its 95 % interval.

    Attributes:
      value: the estimate.
      low, high: ends of the interval; NaN when there are too few episodes for one.
      count: present episodes of the pools (or decisions, for rates of decisions) behind it.
    """

    value: float
    low: float
    high: float
    count: int


def rate(successes: float, count: float) -> Estimate:
    """A share with Wilson's 95 % interval, which stays in [0, 1] and is wide at 0 and 1."""
    if not 0 <= successes <= count or count <= 0:
        raise ValueError(f"a rate needs 0 <= successes <= count, not {successes} of {count}")
    share, z = successes / count, NORMAL_QUANTILE
    spread = z * math.sqrt(share * (1 - share) / count + z**2 / (4 * count**2))
    centre, divisor = share + z**2 / (2 * count), 1 + z**2 / count
    low, high = (centre - spread) / divisor, (centre + spread) / divisor
    # Rounding must not leave the share outside, which is an end itself at 0 and 1.
    return Estimate(share, min(max(low, 0.0), share), max(min(high, 1.0), share), int(count))


def mean(values: Sequence[float]) -> Estimate:
    """A mean with the interval of the normal approximation, mean ± 1.96 s / sqrt(n), s² with the
    divisor n - 1; its ends are NaN for one value. ValueError for none."""
    count = len(values)
    if not count:
        raise ValueError("a mean needs at least one value")
    centre = math.fsum(values) / count
    if count == 1:
        return Estimate(centre, math.nan, math.nan, 1)
    squares = math.fsum((value - centre) ** 2 for value in values)
    spread = NORMAL_QUANTILE * math.sqrt(squares / (count - 1) / count)
    return Estimate(centre, centre - spread, centre + spread, count)


def task_figures(
    tasks: Sequence[Any], records: Sequence[Mapping[str, Any] | None], names: Mapping[str, Any]
) -> dict[str, float]:
    """Figures of episodes of tasks (`domains.tasks.TaskDomain.figures`).

    A figure whose values are all true or false is a rate, any other a mean over episodes.
    Intervals are left out where a task is played several times in a row: its episodes say little
    of other tasks.

    Args:
      tasks, records: of the episodes; a record is None where an episode left none.
      names: figure -> what counts for an episode without record, None to leave it out.

    Returns:
      "<figure>" and, where it has an interval, "<figure>_low" and "<figure>_high". A figure
      without any value is left out.
    """
    ends = not any(task == before for before, task in itertools.pairwise(tasks))
    found: dict[str, float] = {}
    for name, absent in names.items():
        kept = [absent if record is None else record[name] for record in records]
        values = [value for value in kept if value is not None]
        if not values:
            continue
        shares = all(isinstance(value, bool) for value in values)
        estimate = rate(sum(values), len(values)) if shares else mean(values)
        found[name] = estimate.value
        if ends and not math.isnan(estimate.low):
            found |= {f"{name}_low": estimate.low, f"{name}_high": estimate.high}
    return found


def sampled_figures(tasks: Sequence[Any], successes: Sequence[bool]) -> dict[str, float]:
    """Figures of tasks that are each played n >= 2 times in a row; empty for any others.

    "avg@<n>" is the mean over tasks of the share of a task's n episodes that succeed, with an
    interval over tasks; "pass@<n>" is the share of tasks of which any does, with Wilson's.

    Args:
      tasks, successes: of the episodes.
    """
    shares: list[list[bool]] = []
    for place, (task, success) in enumerate(zip(tasks, successes, strict=True)):
        if place and task == tasks[place - 1]:
            shares[-1].append(bool(success))
        else:
            shares.append([bool(success)])
    counts = {len(each) for each in shares}
    if len(counts) != 1 or counts == {1}:
        return {}
    (count,) = counts
    estimates = {
        f"avg@{count}": mean([sum(each) / count for each in shares]),
        f"pass@{count}": rate(sum(map(any, shares)), len(shares)),
    }
    found: dict[str, float] = {}
    for name, estimate in estimates.items():
        found[name] = estimate.value
        if not math.isnan(estimate.low):
            found |= {f"{name}_low": estimate.low, f"{name}_high": estimate.high}
    return found
