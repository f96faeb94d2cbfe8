"""Scripted bidders of the repeated auction, and the experts of its warm start.

The SEPO sources (2605.30854) name these players. What follows from their names and their values is
this project's reading; what `faithful=True` keeps of the authors' code is in `opponent_pools`.
"""

from collections.abc import Callable

from sepo_jax.domains.base import Opponent, View
from sepo_jax.domains.repeated import Strategy
from sepo_jax.names import check_option

PRICES = {"LOW": 1, "MED": 2, "HIGH": 3}
"""Word of a bid -> the points it offers."""
BIDS = tuple(PRICES)
VALUES = (2, 4)
"""What the item may be worth to a player, in points."""


def price(bid: str) -> int:
    """Points that a bid offers; ValueError when `bid` is no word of one."""
    return PRICES[check_option("bid", bid, PRICES)]


def own_value(view: View) -> int:
    """Points that the item of this round is worth to the player who sees `view`.

    `View.private` holds the number as text; ValueError when it is none of `VALUES`.
    """
    return int(check_option("private value", view.private, map(str, VALUES)))


def beating_bid(view: View) -> str:
    """The least bid above the other player's last one, HIGH at most; MED in the first round.

    A round that the other player forfeited counts as an offer of nothing.
    """
    if not view.past:
        return "MED"
    last = PRICES.get(view.past[-1].other, 0)
    return BIDS[min(last, len(BIDS) - 1)]


class BidByValue(Strategy):
    """Bids by its value alone; subclasses give the table.

    Attributes:
      bids: in the order of `VALUES`.
    """

    bids: tuple[str, ...]

    def choose(self, view: View) -> str:
        """The bid of the table."""
        return self.bids[VALUES.index(own_value(view))]


class TruthfulBid(BidByValue):
    """The bid nearest to its value that costs it nothing: MED at 2 (profit 0), HIGH at 4."""

    bids = ("MED", "HIGH")


class ConservativeBid(BidByValue):
    """Half of its value: LOW at 2, MED at 4."""

    bids = ("LOW", "MED")


class ShadedBid(BidByValue):
    """One below its value: LOW at 2, HIGH at 4."""

    bids = ("LOW", "HIGH")


class AggressiveBid(BidByValue):
    """Always HIGH."""

    bids = ("HIGH",) * len(VALUES)


class CollusiveLowBid(BidByValue):
    """Always LOW: both players profit as long as the other one does the same."""

    bids = ("LOW",) * len(VALUES)


class AdaptiveBid(Strategy):
    """`beating_bid`, whatever its value."""

    def choose(self, view: View) -> str:
        """One above the other player's last bid."""
        return beating_bid(view)


class CoinBid(Strategy):
    """LOW or MED with probability 1/2 each, whatever its value."""

    def choose(self, view: View) -> str:
        """The fall of the coin."""
        return self.rng.choice(("LOW", "MED"))


class ValueBid(ConservativeBid):
    """LOW at value 2, MED at 4: half of what a win brings stays with it."""


class AggressiveValue(ShadedBid):
    """LOW at value 2, HIGH at 4: wins what is worth winning."""


class Adaptive(Strategy):
    """`beating_bid`, but never so high that winning would bring nothing.

    At value 2 that is LOW; at value 4 each bid leaves a profit. Unlike AdaptiveBid it never wins at
    a loss, which is what a demonstration should show.
    """

    def choose(self, view: View) -> str:
        """The beating bid, or the highest bid below its value where that is less."""
        profitable = [bid for bid in BIDS if PRICES[bid] < own_value(view)]
        return min(beating_bid(view), profitable[-1], key=PRICES.__getitem__)


class RandomBid(Strategy):
    """Any bid, all equally likely."""

    def choose(self, view: View) -> str:
        """A bid drawn uniformly."""
        return self.rng.choice(view.legal_actions)


def opponent_pools(faithful: bool = False) -> dict[str, dict[str, Callable[[], Opponent]]]:
    """Pool -> name in reports -> factory.

    AdaptiveBid trains and exploits, as in the authors' account of the experiments. Their own rule
    for pools, one behaviour for each, speaks against it: one opponent in two roles pulls the
    gradient two ways.

    With `faithful`, as in the authors' code, three bidders do not look at their value: TruthfulBid
    is CoinBid, and both ConservativeBid and ShadedBid are CollusiveLowBid.
    """
    return {
        "train": {
            "TruthfulBid": CoinBid if faithful else TruthfulBid,
            "ConservativeBid": CollusiveLowBid if faithful else ConservativeBid,
            "ShadedBid": CollusiveLowBid if faithful else ShadedBid,
            "AdaptiveBid": AdaptiveBid,
        },
        "exploiter": {"AggressiveBid": AggressiveBid, "AdaptiveBid": AdaptiveBid},
        "collusive": {"CollusiveLowBid": CollusiveLowBid},
    }


EXPERTS: dict[str, tuple[float, Callable[[], Opponent]]] = {
    "ValueBid": (0.44, ValueBid),
    "AggressiveValue": (0.28, AggressiveValue),
    "Adaptive": (0.20, Adaptive),
    "Random": (0.08, RandomBid),
}
"""Mixture of the paper's warm start (SEPO, authors' data generator): name -> weight, factory."""
