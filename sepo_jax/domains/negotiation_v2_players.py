"""Scripted players of item negotiation, and how a demand, a pool and values read as text.

The SEPO sources (2605.30854) give the formulas of the five opponents in a few words each, and of
the four experts the names only. The rounding, the counting of rounds and the experts are this
project's reading; each class says what it demands. Formulas are of one item and hold for all three.
"""

from collections.abc import Callable, Sequence

from sepo_jax.domains.base import Opponent, View
from sepo_jax.domains.repeated import Strategy

ITEMS = ("Books", "Hats", "Balls")
TOTAL_VALUE = 10
"""Sum of a player's three values, in points."""
ONE_OF_EACH = (1, 1, 1)

Units = tuple[int, ...]
"""A whole number for each of `ITEMS`: a pool, a demand (units) or values (points a unit)."""

_POOL, _VALUES = "pool ", "values "


def write_units(units: Sequence[int]) -> str:
    """The word of a demand: three numbers with blanks between, as in "1 2 0"."""
    return " ".join(map(str, units))


def read_units(text: str) -> Units:
    """The numbers of a word that `write_units` wrote; ValueError for anything else."""
    parts = text.split(" ")
    if len(parts) != len(ITEMS) or not all(part.isascii() and part.isdecimal() for part in parts):
        raise ValueError(f"{text!r} is no row of {len(ITEMS)} whole numbers, as in '1 2 0'")
    return tuple(map(int, parts))


def write_pool(pool: Sequence[int]) -> str:
    """What both players know of a round, as `View.history` holds it."""
    return _POOL + write_units(pool)


def write_values(values: Sequence[int]) -> str:
    """What one player knows alone, as `View.private` holds it."""
    return _VALUES + write_units(values)


def pool_of(view: View) -> Units:
    """Units of each item that the players share out."""
    return _read_labelled(_POOL, view.history)


def values_of(view: View) -> Units:
    """Points that one unit of each item brings to the player who sees `view`."""
    return _read_labelled(_VALUES, view.private)


def last_demand(view: View) -> Units | None:
    """The other player's demand of the last round; None at the start and after a forfeit."""
    return read_units(view.past[-1].other) if view.past and view.past[-1].other else None


def left_over(pool: Units, demand: Units) -> Units:
    """What a demand leaves of the pool: pool - demand."""
    return tuple(p - d for p, d in zip(pool, demand, strict=True))


def worth(demand: Units, values: Units) -> int:
    """Points of a demand: sum over the items of demand * value."""
    return sum(d * v for d, v in zip(demand, values, strict=True))


def _read_labelled(label: str, text: str) -> Units:
    if not text.startswith(label):
        raise ValueError(f"{text!r} does not start with {label!r}: no text of item negotiation")
    return read_units(text.removeprefix(label))


class Negotiator(Strategy):
    """A player whose demand is a function of its view; subclasses give `demand`."""

    def demand(self, view: View) -> Units:
        """Units demanded of each item."""
        raise NotImplementedError

    def choose(self, view: View) -> str:
        """Word of the demand."""
        return write_units(self.demand(view))


class FairNegotiator(Negotiator):
    """Half of the pool, rounded down: pool // 2."""

    def demand(self, view: View) -> Units:
        """The same in every round."""
        return tuple(p // 2 for p in pool_of(view))


class TitForTatNegotiator(Negotiator):
    """Two thirds of the pool, rounded down, at first; then what the other's last demand left.

    First 2 * pool // 3, then pool - (the other player's last demand). After a round that the other
    player forfeited there is no such demand, and it opens again.
    """

    def demand(self, view: View) -> Units:
        """By the last round alone."""
        last, pool = last_demand(view), pool_of(view)
        return tuple(2 * p // 3 for p in pool) if last is None else left_over(pool, last)


class ConcedingNegotiator(Negotiator):
    """All at first, later one and two units less: max(0, pool - min(round, 2)).

    Rounds count from 0, as `View.round` does: it demands the whole pool in the first round,
    pool - 1 in the second, and pool - 2 from the third on.
    """

    def demand(self, view: View) -> Units:
        """By the round alone."""
        return tuple(max(0, p - min(view.round, 2)) for p in pool_of(view))


class GreedyNegotiator(Negotiator):
    """One unit more than the share of an item in its values: min(pool, pool * value // 10 + 1)."""

    def demand(self, view: View) -> Units:
        """By the values that the view shows; the same wherever they stay the same."""
        shares = zip(pool_of(view), values_of(view), strict=True)
        return tuple(min(p, p * v // TOTAL_VALUE + 1) for p, v in shares)


class HardballNegotiator(Negotiator):
    """All but one unit: pool - 1."""

    def demand(self, view: View) -> Units:
        """The same in every round."""
        return tuple(p - 1 for p in pool_of(view))


class Proportional(Negotiator):
    """The share of an item in its values: pool * value / 10, rounded, halves up.

    Where that is nothing of any item, one unit of the item it values most (the first of equals).
    """

    def demand(self, view: View) -> Units:
        """The same in every round, as long as the values are."""
        pool, values = pool_of(view), values_of(view)
        doubled = [2 * p * v for p, v in zip(pool, values, strict=True)]
        shares = tuple((twice + TOTAL_VALUE) // (2 * TOTAL_VALUE) for twice in doubled)
        if any(shares):
            return shares
        best = values.index(max(values))
        return tuple(int(item == best) for item in range(len(ITEMS)))


class Conservative(Negotiator):
    """One unit of each item, worth 10 whatever the values, which leaves room for most demands."""

    def demand(self, view: View) -> Units:
        """The same in every round."""
        return ONE_OF_EACH


class Adaptive(Negotiator):
    """What the other's last demand left, pool - last; one of each where that is nothing.

    It opens with one of each too, and goes back to that after a forfeit of the other player.
    """

    def demand(self, view: View) -> Units:
        """By the last round alone."""
        last = last_demand(view)
        rest = ONE_OF_EACH if last is None else left_over(pool_of(view), last)
        return rest if any(rest) else ONE_OF_EACH


class Defensive(Negotiator):
    """Half of the pool, rounded up: pool - pool // 2. Who wants more than the rest gets nothing."""

    def demand(self, view: View) -> Units:
        """The same in every round."""
        return tuple(p - p // 2 for p in pool_of(view))


POOLS: dict[str, dict[str, Callable[[], Opponent]]] = {
    "train": {
        "FairNegotiator": FairNegotiator,
        "TitForTatNegotiator": TitForTatNegotiator,
        "ConcedingNegotiator": ConcedingNegotiator,
    },
    "exploiter": {
        "GreedyNegotiator": GreedyNegotiator,
        "HardballNegotiator": HardballNegotiator,
    },
    "collusive": {"FairNegotiator": FairNegotiator},
}
EXPERTS: dict[str, tuple[float, Callable[[], Opponent]]] = {
    "Proportional": (0.35, Proportional),
    "Conservative": (0.25, Conservative),
    "Adaptive": (0.25, Adaptive),
    "Defensive": (0.15, Defensive),
}
