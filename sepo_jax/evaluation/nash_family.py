"""The equilibria of Kuhn poker as ranges, and how far a policy table is from them.

Kuhn poker has a one-parameter family of equilibria: alpha in [0, 1/3] is the probability that the
first player bets the jack. Every probability of action 1 (bet, call) is fixed or affine in alpha
(H. W. Kuhn, A simplified two-person poker, 1950).
Information sets are named as in `games.kuhn`: the own card, then the history of passes and bets.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

KUHN_UNIFORM_NASH_CONV = 11 / 12
KUHN_VALUE_TO_FIRST = -1 / 18

# Probability of action 1 (bet or call) = constant + slope * alpha.
KUHN_FAMILY: dict[str, tuple[float, float]] = {
    "J": (0.0, 1.0),
    "Q": (0.0, 0.0),
    "K": (0.0, 3.0),
    "Jp": (1 / 3, 0.0),
    "Qp": (0.0, 0.0),
    "Kp": (1.0, 0.0),
    "Jb": (0.0, 0.0),
    "Qb": (1 / 3, 0.0),
    "Kb": (1.0, 0.0),
    "Jpb": (0.0, 0.0),
    "Qpb": (1 / 3, 1.0),
    "Kpb": (1.0, 0.0),
}
MAX_ALPHA = 1 / 3


class Deviation(NamedTuple):
    """One information set beside the family.

    Attributes:
      probability: the policy's probability of action 1.
      low: smallest probability over the family.
      high: largest probability over the family.
      nearest: probability under the family's member nearest to the whole table.
      outside: distance of `probability` to [low, high], 0 inside.
    """

    probability: float
    low: float
    high: float
    nearest: float
    outside: float


class FamilyComparison(NamedTuple):
    """A table beside the Kuhn family.

    Attributes:
      alpha: parameter of the member nearest in the sum of squared differences.
      root_mean_square: root of the mean squared difference to that member, over the sets present.
      rows: information set -> Deviation, in the family's order, sets absent in the table left out.
    """

    alpha: float
    root_mean_square: float
    rows: dict[str, Deviation]


def is_kuhn(names: Sequence[str]) -> bool:
    """True when `names` holds information sets of Kuhn poker and nothing else."""
    return bool(names) and set(names) <= set(KUHN_FAMILY)


def kuhn_ranges() -> dict[str, tuple[float, float]]:
    """Information set -> smallest and largest probability of action 1 over the equilibria."""
    return {
        name: (constant, constant + slope * MAX_ALPHA)
        for name, (constant, slope) in KUHN_FAMILY.items()
    }


def kuhn_member(alpha: float) -> dict[str, list[float]]:
    """The equilibrium with parameter alpha: information set -> [P(pass or fold), P(bet or call)].

    Raises:
      ValueError: alpha outside [0, 1/3], where the profile is no equilibrium.
    """
    if not 0.0 <= alpha <= MAX_ALPHA + 1e-12:
        raise ValueError(f"alpha is {alpha}; equilibria of Kuhn poker have 0 <= alpha <= 1/3")
    return {
        name: [1 - (constant + slope * alpha), constant + slope * alpha]
        for name, (constant, slope) in KUHN_FAMILY.items()
    }


def compare_to_kuhn_family(table: Mapping[str, Sequence[float]]) -> FamilyComparison:
    """Sets a table of Kuhn poker beside the family of its equilibria.

    The nearest member minimises Σ (p_i − c_i − s_i alpha)² over the sets present, a parabola in
    alpha: alpha = Σ s_i (p_i − c_i) / Σ s_i², bounded to [0, 1/3]. A table may lie inside every
    range and still be no equilibrium, when its free sets call for different alphas; the distance to
    the nearest member shows that, the ranges alone do not.

    Args:
      table: information set -> [P(action 0), P(action 1)].

    Returns:
      A FamilyComparison. Distances are of probabilities; NashConv is the measure of loss.

    Raises:
      ValueError: an information set that Kuhn poker does not have, an empty table, or a row that is
        not two finite probabilities that sum to 1 (to 1e-4, for rows that were rounded).
    """
    if not is_kuhn(list(table)):
        strange = sorted(set(table) - set(KUHN_FAMILY))
        raise ValueError(
            f"not a table of Kuhn poker: information sets {strange or '(none given)'}; "
            f"expected some of {', '.join(KUHN_FAMILY)}"
        )
    present = [name for name in KUHN_FAMILY if name in table]
    for name in present:
        row = table[name]
        if len(row) != 2 or not (min(row) >= 0 and math.isclose(sum(row), 1, abs_tol=1e-4)):
            raise ValueError(
                f"row {name!r} is {list(row)}; need two finite probabilities that sum to 1"
            )
    numerator = sum(KUHN_FAMILY[n][1] * (table[n][1] - KUHN_FAMILY[n][0]) for n in present)
    denominator = sum(KUHN_FAMILY[n][1] ** 2 for n in present)
    alpha = min(max(numerator / denominator, 0.0), MAX_ALPHA) if denominator else 0.0
    rows = {}
    for name in present:
        constant, slope = KUHN_FAMILY[name]
        low, high = kuhn_ranges()[name]
        p = float(table[name][1])
        outside = max(low - p, p - high, 0.0)
        rows[name] = Deviation(p, low, high, constant + slope * alpha, outside)
    squares = sum((row.probability - row.nearest) ** 2 for row in rows.values())
    return FamilyComparison(alpha, (squares / len(rows)) ** 0.5, rows)
