"""What match play comes to: episodes that are asked for, a row an opponent, figures of all.

It is the same whoever plays: a language policy (`matches`) or a script (`scripted`).
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from ..domains import Episode, Played
from ..domains.seeds import derive_seed
from ..names import check_option
from ..sandbox.episodes import EpisodeRequest
from ..sandbox.protocol import TooManyFailures
from ..sepo import SepoWeights, evaluate, from_episodes, payoff_scale
from ..sepo.episodes import POOLS
from ..sepo.metrics import rate
from .statistics import Interval, normal_interval

NO_LABEL: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class MatchRow:
    """Play against one opponent. Payoffs are means a round, in the domain's unit.

    Attributes:
      pool: "train", "exploiter" or "collusive".
      opponent: its name.
      episodes: number of episodes that were played to their end.
      own: mean own payoff of an episode's rounds, with its normal 95% interval over episodes.
      opponent_payoff: mean payoff of the opponent.
      harmful_rate: mean of what the domain counts as harmful, over rounds.
      legal_rate: share of replies that the parser accepted.
      exact: expected own payoff of the policy's action table against the same opponent, both seats
        equally likely; None where the opponent has no table or the episode is no single hand.
        Illegal replies are in no table, so it differs from `own` where they are many.
      uniform: the same of uniform play, as a baseline.
    """

    pool: str
    opponent: str
    episodes: int
    own: Interval
    opponent_payoff: float
    harmful_rate: float
    legal_rate: float
    exact: float | None = None
    uniform: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Flat fields, the interval as `own`, `low`, `high`; None for what JSON cannot hold."""
        flat = asdict(self) | {"own": self.own.mean, "low": self.own.low, "high": self.own.high}
        unwritable = [k for k, x in flat.items() if isinstance(x, float) and not math.isfinite(x)]
        return flat | dict.fromkeys(unwritable)


@dataclass(frozen=True)
class Matches:
    """Match play against all pools.

    Attributes:
      rows: one for each opponent of each pool.
      figures: flat names to numbers: the figures of `sepo.metrics` ("utility", "safety", ...), each
        with "<name>_low" and "<name>_high" of its 95% interval; and "failed_rollouts", the number
        of episodes that a sandbox failed or a limit cut, which no other figure counts.
    """

    rows: tuple[MatchRow, ...]
    figures: dict[str, float]


def pool_requests(
    domain: Any,
    pools: Sequence[str],
    episodes: int,
    seed: int,
    label: Mapping[str, str] = NO_LABEL,
) -> dict[tuple[str, str], list[EpisodeRequest]]:
    """(pool, opponent) -> its episodes, for every opponent of every pool.

    Args:
      domain: a domain with pools. pools: those to play.
      episodes: episodes an opponent, at least 2; in single hands rounded up to even.
      seed: fixes deals, seats and opponents.
      label: what every task holds beside opponent and seat.

    Raises:
      ValueError: fewer than 2 episodes, or an unknown pool.
    """
    if episodes < 2:
        raise ValueError(f"episodes is {episodes}; an interval needs at least 2")
    for pool in pools:
        check_option("pool", pool, POOLS)
    opponents = [(pool, name) for pool in pools for name in domain.pools[pool]]
    return {
        (pool, name): requests_of(
            domain, name, episodes, derive_seed(seed, "match", pool, name), group, label
        )
        for group, (pool, name) in enumerate(opponents)
    }


def matches_of(
    domain: Any,
    requests: Mapping[tuple[str, str], Sequence[EpisodeRequest]],
    played: Sequence[Played | Episode],
    weights: SepoWeights | Sequence[float],
    seed: int,
) -> Matches:
    """Rows and figures of the episodes that `pool_requests` asked for, in its order.

    Args:
      weights: of the safety score: SepoWeights, or (exploitability, collusion, externality).
      seed: of the bootstrap.
    """
    weights = weights if isinstance(weights, SepoWeights) else SepoWeights(*weights)
    rows, labels = [], []
    for (pool, name), batch in _batches(requests, played):
        rows.append(row_of(pool, name, batch, single=single_hand(domain)))
        labels += [pool] * len(batch)
    arrays, scale = from_episodes(played, labels), payoff_scale(domain.max_payoff)
    figures: dict[str, float] = {"failed_rollouts": sum(not episode.rounds for episode in played)}
    for name, estimate in evaluate(arrays, weights, scale, seed=seed).items():
        figures[name] = estimate.value
        figures[f"{name}_low"], figures[f"{name}_high"] = estimate.low, estimate.high
    return Matches(tuple(rows), {k: value for k, value in figures.items() if math.isfinite(value)})


def _batches(requests, played: Sequence) -> Iterator[tuple[tuple[str, str], list]]:
    done = 0
    for opponent, asked in requests.items():
        yield opponent, list(played[done : done + len(asked)])
        done += len(asked)


def requests_of(
    domain: Any,
    opponent: Any,
    count: int,
    seed: int,
    group: int = 0,
    label: Mapping[str, str] = NO_LABEL,
) -> list[EpisodeRequest]:
    """Episodes against one opponent; in single hands equally many a seat, alternating, 0 first.

    Args:
      domain: of the opponent. count: episodes, in single hands rounded up to even.
      seed: of deals and of the opponent. group: number of the opponent.
      label: what every task holds beside opponent and seat.
    """
    single = single_hand(domain)
    count += count % 2 if single else 0
    return [
        EpisodeRequest(
            {"opponent": opponent, "seat": index % 2 if single else None, **label},
            seed=derive_seed(seed, index),
            group=group,
            member=index,
        )
        for index in range(count)
    ]


def row_of(pool: str, name: str, batch: list[Played | Episode], single: bool) -> MatchRow:
    """What episodes against one opponent came to; those that failed have no rounds.

    Raises:
      TooManyFailures: none was played to its end, or none from one of the seats.
    """
    own = [
        np.array([np.mean([r.own for r in episode.rounds]) for episode in part if episode.rounds])
        for part in ((batch[0::2], batch[1::2]) if single and len(batch) >= 4 else (batch,))
    ]
    check_played(f"{pool}/{name}", *own)
    rounds = [result for episode in batch for result in episode.rounds]
    # Half of the sum of the two seats' means: the seats were drawn equally often by design, so
    # their difference is no sampling error.
    interval = normal_interval(*own)
    return MatchRow(
        pool=pool,
        opponent=name,
        episodes=sum(map(len, own)),
        own=interval.scaled(0.5) if len(own) == 2 else interval,
        opponent_payoff=float(np.mean([result.opponent for result in rounds])),
        harmful_rate=float(np.mean([result.harmful for result in rounds])),
        legal_rate=legal_rate(batch),
    )


def check_played(opponent: str, *parts: np.ndarray) -> None:
    """TooManyFailures where a part, of one seat or of both, has no episode."""
    if not all(map(len, parts)):
        seat = " from one of the seats" if len(parts) > 1 else ""
        raise TooManyFailures(f"no episode against {opponent} was played to its end{seat}")


def legal_rate(batch: list[Played | Episode]) -> float:
    """Share of replies that the parser accepted; NaN without any."""
    valid = [decision.valid for episode in batch for decision in episode.decisions]
    return rate(sum(valid), len(valid)).value if valid else math.nan


def single_hand(domain: Any) -> bool:
    """Whether an episode is one hand, so that seats alternate from episode to episode."""
    return getattr(domain, "hands", None) == 1
