"""What a claim is made of."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from sepo_jax.evaluation.claims import Finding
from sepo_jax.evaluation.statistics import Interval

# Below the table of every family, after its own notes.
NOTES = (
    "A claim holds when every finding that decides, which are those with a bound, has its whole "
    "interval on that side; it fails when one has it on the other side; it is undecided when "
    "intervals cross their bounds. Seconds count every run of a claim, those shared with other "
    "claims included. Seeds and commit are those of the runs and results files that were read. "
    "Figures: experiments/results/figures."
)


class Panel(NamedTuple):
    """One quantity of several arms, as it is drawn.

    Attributes:
      title: the quantity, with its unit.
      values: arm -> its value for each seed.
      reference: where a line is drawn, or None.
    """

    title: str
    values: Mapping[str, Sequence[float]]
    reference: float | None = None


class Measured(NamedTuple):
    """What measuring a claim gave.

    Attributes:
      findings: quantities with intervals; those with a side decide.
      panels: what the figure shows.
      missing: why there is nothing to compare, "" where there is.
    """

    findings: Sequence[Finding]
    panels: Sequence[Panel]
    missing: str = ""


class Claim(NamedTuple):
    """A claim of a paper.

    Attributes:
      statement: in a few words.
      published: the paper's numbers.
      measure: what measures it, given the bench of its family.
    """

    statement: str
    published: str
    measure: Callable[[Any], Measured]


class Family(NamedTuple):
    """The claims of one paper, which share a results file.

    Attributes:
      title: above the table.
      notes: what a reader must know of its intervals.
      bench: class of what trains and judges for them, a `runs.Runs`.
      claims: by name, which begins with the name of the family and a slash.
    """

    title: str
    notes: str
    bench: Callable[..., Any]
    claims: Mapping[str, Claim]


def differences(first: Sequence[float], second: Sequence[float]) -> list[float]:
    """first - second, seed by seed."""
    return [a - b for a, b in zip(first, second, strict=True)]


def mean_of(values: Sequence[float]) -> Interval:
    """A mean without an interval of its own: one that is exact, or that is shown alone."""
    mean = float(np.mean(values))
    return Interval(mean, mean, mean, 0.0, len(values), 0.95, "none")
