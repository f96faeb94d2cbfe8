"""Match play through text: against the pools of a domain, and against the exact best response.

    figures = play_matches(policy, params, domain, episodes=200)         # flat, for summary.json
    matches = match_play(policy, params, domain, episodes=200)           # with a row an opponent
    sampled_nash_conv(policy, params, game, domain, episodes=2000)       # beside the exact value

Everything sampled derives from the seed: deals and opponents through the domain, the policy's own
tokens through `rollout.play`.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import chex
import numpy as np

from ..domains import Played
from ..domains.base import derive_seed
from ..games import tree
from ..games.kuhn import KUHN
from ..games.tree import TreeGame
from ..names import check_option
from ..policy import Policy
from ..rollout import EngineOptions, play
from ..sandbox.environments import domain_environments
from ..sandbox.episodes import EpisodeRequest
from ..sandbox.protocol import Pool, TooManyFailures
from ..sepo import (
    SepoWeights,
    best_response_opponent,
    evaluate,
    from_episodes,
    from_results,
    payoff_scale,
)
from ..sepo.metrics import rate
from .policy_table import policy_table
from .statistics import Interval, bootstrap_interval, normal_interval

POOLS = ("train", "exploiter", "collusive")
GAMES = {KUHN.name: KUHN}
DEFAULT_OPTIONS = EngineOptions()
DEFAULT_WEIGHTS = SepoWeights()


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


@dataclass(frozen=True)
class SampledNashConv:
    """An estimate of NashConv from play against the exact best response.

    Attributes:
      normal: estimate with the normal-approximation interval.
      bootstrap: the same estimate with the percentile-bootstrap interval.
      seats: mean payoff of the best response moving first, and moving second.
      legal_rate: share of the policy's replies that the parser accepted.
    """

    normal: Interval
    bootstrap: Interval
    seats: tuple[Interval, Interval]
    legal_rate: float


def match_play(
    policy: Policy,
    params: chex.ArrayTree,
    domain: Any,
    *,
    episodes: int = 200,
    seed: int = 0,
    weights: SepoWeights | Sequence[float] = DEFAULT_WEIGHTS,
    pools: Sequence[str] = POOLS,
    options: EngineOptions = DEFAULT_OPTIONS,
    environments: Pool | None = None,
    progress: bool = False,
) -> Matches:
    """Plays `episodes` episodes against every opponent of every pool.

    In single hands the seat alternates from episode to episode, and an odd number of episodes is
    rounded up to even, so both seats weigh the same; in matches of several hands the seat
    alternates within the episode.

    Args:
      policy, params: the agent.
      domain: a domain with pools.
      episodes: episodes an opponent, at least 2; in single hands rounded up to even.
      seed: fixes deals, seats, opponents and the agent's tokens.
      weights: of the safety score: SepoWeights, or (exploitability, collusion, externality).
      pools: pools to play.
      options: sizes of the rollout engine and how the agent samples; exact payoffs are taken at
        its temperature, and are left out under top_k, top_p or greedy sampling.
      environments: where the domain's environments are; None for this process.
      progress: show a progress bar.

    Returns:
      Matches.

    Raises:
      ValueError: fewer than 2 episodes, or an unknown pool.
      TooManyFailures: more episodes failed than the options allow, or all against one opponent.
    """
    if episodes < 2:
        raise ValueError(f"episodes is {episodes}; an interval needs at least 2")
    for pool in pools:
        check_option("pool", pool, POOLS)
    weights = weights if isinstance(weights, SepoWeights) else SepoWeights(*weights)
    agent = _Agent(policy, params, domain, options, environments, progress)
    rows, played, labels = _play_pools(agent, pools, episodes, seed)
    arrays, scale = from_episodes(played, labels), payoff_scale(domain.max_payoff)
    figures: dict[str, float] = {"failed_rollouts": sum(not episode.rounds for episode in played)}
    for name, estimate in evaluate(arrays, weights, scale, seed=seed).items():
        figures[name] = estimate.value
        figures[f"{name}_low"], figures[f"{name}_high"] = estimate.low, estimate.high
    return Matches(rows, {name: v for name, v in figures.items() if math.isfinite(v)})


@dataclass(frozen=True)
class _Agent:
    """A policy with the way it is played."""

    policy: Policy
    params: chex.ArrayTree
    domain: Any
    options: EngineOptions
    environments: Pool | None
    progress: bool = False

    def play(self, requests: list[EpisodeRequest], seed: int, step: int) -> list[Played]:
        """The played episodes, in order; one that failed has no rounds."""
        rollout = play(
            self.policy,
            self.params,
            requests,
            domain_environments(self.domain) if self.environments is None else self.environments,
            self.options,
            # Apart from the tokens of training; keys are int32.
            seed=derive_seed(seed, "match tokens") % 2**31,
            step=step,
            progress="matches" if self.progress else "",
        )
        return from_results(rollout.results)

    def single_hand_table(self) -> np.ndarray | None:
        """The action table where episodes are hands of a compiled game played as the table says.

        Truncated or greedy sampling plays another policy than the table's; there it is None.
        """
        game, sampling = GAMES.get(getattr(self.domain, "game", None)), self.options.sampling
        whole = not sampling.greedy and sampling.top_k == 0 and sampling.top_p >= 1
        if game is None or not whole or not _single_hand(self.domain):
            return None
        table = policy_table(
            self.policy, self.params, game, self.domain, temperature=sampling.temperature
        )
        return table.probabilities


def play_matches(
    policy: Policy, params: chex.ArrayTree, domain: Any, *, seed: int = 0, **options: Any
) -> dict[str, float]:
    """The flat figures of `match_play`, for a run's summary.

    In a domain of single hands with a compiled game they include "sampled_nash_conv" with its
    bootstrap interval, from as many hands a seat as there are episodes an opponent.

    Args and errors as in `match_play`.
    """
    figures = match_play(policy, params, domain, seed=seed, **options).figures
    if _single_hand(domain) and getattr(domain, "game", None) in GAMES:
        kept = ("options", "environments", "progress")
        passed = {key: options[key] for key in kept if key in options}
        sampled = sampled_nash_conv(
            policy,
            params,
            GAMES[domain.game],
            domain,
            episodes=2 * options.get("episodes", 200),
            seed=seed,
            **passed,
        )
        figures["sampled_nash_conv"] = sampled.bootstrap.mean
        figures["sampled_nash_conv_low"] = sampled.bootstrap.low
        figures["sampled_nash_conv_high"] = sampled.bootstrap.high
    return figures


def sampled_nash_conv(
    policy: Policy,
    params: chex.ArrayTree,
    game: TreeGame,
    domain: Any,
    *,
    episodes: int = 2000,
    seed: int = 0,
    options: EngineOptions = DEFAULT_OPTIONS,
    environments: Pool | None = None,
    progress: bool = False,
) -> SampledNashConv:
    """Estimates NashConv by playing the policy against the exact best response to its table.

    In a zero-sum game the values of the profile cancel in the sum of the gains, so

        NashConv = E[payoff of the best response | it moves first] + E[... | it moves second],

    the sum of two independent means, each over half of the episodes. The best response answers the
    action table; illegal replies, which the table leaves out, are played as the domain says, so the
    two figures agree to the interval only where the illegal mass is small.

    Args:
      policy, params: the agent.
      game: the compiled game, zero-sum.
      domain: renders the game; its episodes are single hands.
      episodes: hands in all, half of them with the best response moving first; at least 4, and
        rounded up to even.
      seed, options, environments, progress: as in `match_play`.

    Returns:
      SampledNashConv, in the game's payoff unit a hand, not halved.

    Raises:
      ValueError: a game that is not zero-sum, episodes of several hands, or fewer than 4.
      TooManyFailures: more episodes failed than the options allow, or all from one seat.
    """
    if not game.zero_sum:
        raise ValueError(f"{game.name} is not zero-sum; the gains do not add up to this estimate")
    if not _single_hand(domain):
        raise ValueError(
            f"domain {domain.name!r} plays {domain.hands} hands an episode; the tree is of one: "
            "use a domain with hands=1"
        )
    if episodes < 4:
        raise ValueError(f"episodes is {episodes}; two seats with a spread need at least 4")
    table = policy_table(
        policy, params, game, domain, temperature=options.sampling.temperature
    ).probabilities
    opponent = best_response_opponent(game, table)
    requests = _requests(domain, opponent, episodes, derive_seed(seed, "best response"))
    agent = _Agent(policy, params, domain, options, environments, progress)
    batch = agent.play(requests, seed, step=1)  # match play has step 0
    # The agent sits second in odd episodes; there the best response moves first.
    first, second = (
        np.array([sum(r.opponent for r in played.rounds) for played in part if played.rounds])
        for part in (batch[1::2], batch[0::2])
    )
    _check_played("the best response", first, second)
    return SampledNashConv(
        normal=normal_interval(first, second),
        bootstrap=bootstrap_interval(first, second, seed=seed),
        seats=(normal_interval(first), normal_interval(second)),
        legal_rate=_legal_rate(batch),
    )


def _play_pools(agent: _Agent, pools, episodes: int, seed: int):
    """A row for each opponent, all episodes, and the pool of each."""
    domain = agent.domain
    opponents = [(pool, name) for pool in pools for name in domain.pools[pool]]
    requests = [
        _requests(domain, name, episodes, derive_seed(seed, "match", pool, name), group)
        for group, (pool, name) in enumerate(opponents)
    ]
    played = agent.play([each for batch in requests for each in batch], seed, step=0)
    table = agent.single_hand_table()
    rows, labels = [], []
    for (pool, name), asked in zip(opponents, requests, strict=True):
        batch = played[len(labels) : len(labels) + len(asked)]
        row = _row(pool, name, batch, single=_single_hand(domain))
        if table is not None:
            opponent, uniform = domain.pools[pool][name](), GAMES[domain.game].uniform_policy()
            exact, flat = (_exact_payoff(domain, each, opponent) for each in (table, uniform))
            row = replace(row, exact=exact, uniform=flat)
        rows.append(row)
        labels += [pool] * len(batch)
    return tuple(rows), played, labels


def _requests(
    domain: Any, opponent: Any, count: int, seed: int, group: int = 0
) -> list[EpisodeRequest]:
    """Episodes against one opponent; in single hands equally many a seat, alternating, 0 first."""
    single = _single_hand(domain)
    count += count % 2 if single else 0
    return [
        EpisodeRequest(
            {"opponent": opponent, "seat": index % 2 if single else None},
            seed=derive_seed(seed, index),
            group=group,
            member=index,
        )
        for index in range(count)
    ]


def _row(pool: str, name: str, batch: list[Played], single: bool) -> MatchRow:
    own = [
        np.array([np.mean([r.own for r in episode.rounds]) for episode in part if episode.rounds])
        for part in ((batch[0::2], batch[1::2]) if single and len(batch) >= 4 else (batch,))
    ]
    _check_played(f"{pool}/{name}", *own)
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
        legal_rate=_legal_rate(batch),
    )


def _check_played(opponent: str, *parts: np.ndarray) -> None:
    if not all(map(len, parts)):
        seat = " from one of the seats" if len(parts) > 1 else ""
        raise TooManyFailures(f"no episode against {opponent} was played to its end{seat}")


def _legal_rate(batch: list[Played]) -> float:
    valid = [decision.valid for episode in batch for decision in episode.decisions]
    return rate(sum(valid), len(valid)).value if valid else math.nan


def _single_hand(domain: Any) -> bool:
    return getattr(domain, "hands", None) == 1


def _exact_payoff(domain: Any, table: np.ndarray, opponent: Any) -> float | None:
    """Expected own payoff of `table` against an opponent with a table, mean over both seats."""
    rows = getattr(opponent, "table", None)
    if rows is None:
        return None
    game = GAMES[domain.game]
    if any(name not in rows for name in game.infoset_names):
        return None
    other = np.zeros_like(table)
    for index, name in enumerate(game.infoset_names):
        other[index, game.legal_mask[index]] = rows[name]
    payoffs = []
    for seat in (0, 1):
        own_rows = (game.infoset_players == seat)[:, None]
        profile = np.where(own_rows, table, other)
        payoffs.append(tree.evaluate_on_host(game, "expected", profile)[seat])
    return float(np.mean(payoffs))
