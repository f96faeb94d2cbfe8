"""What a claim is made of."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from sepo_jax.evaluation.claims import Finding

if TYPE_CHECKING:
    from .bench import Bench


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
      measure: what measures it.
    """

    statement: str
    published: str
    measure: Callable[["Bench"], Measured]
