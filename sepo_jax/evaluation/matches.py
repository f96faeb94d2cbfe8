"""Match play through text: against the pools of a domain, and against the exact best response.

    figures = play_matches(policy, params, domain, episodes=200)         # flat, for summary.json
    matches = match_play(policy, params, domain, episodes=200)           # with a row an opponent
    sampled_nash_conv(policy, params, game, domain, episodes=2000)       # beside the exact value

Everything sampled derives from the seed: deals and opponents through the domain, the policy's own
tokens through `rollout.play`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import chex
import numpy as np

from ..domains import Played
from ..domains.seeds import derive_seed
from ..games import tree
from ..games.kuhn import KUHN
from ..games.tree import TreeGame
from ..policy import Policy
from ..rollout import EngineOptions, play
from ..sandbox.environments import domain_environments
from ..sandbox.episodes import EpisodeRequest
from ..sandbox.protocol import Pool
from ..sepo import SepoWeights, best_response_opponent, from_results
from .match_rows import (
    NO_LABEL,
    POOLS,
    Matches,
    check_played,
    legal_rate,
    matches_of,
    pool_requests,
    requests_of,
    single_hand,
)
from .policy_table import policy_table
from .statistics import Interval, bootstrap_interval, normal_interval

GAMES = {KUHN.name: KUHN}
DEFAULT_OPTIONS = EngineOptions()
DEFAULT_WEIGHTS = SepoWeights()


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
    label: Mapping[str, str] = NO_LABEL,
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
      label: what every task of them holds beside opponent and seat: {"game": domain.name} for
        environments that serve several games.
      progress: show a progress bar.

    Returns:
      Matches.

    Raises:
      ValueError: fewer than 2 episodes, or an unknown pool.
      TooManyFailures: more episodes failed than the options allow, or all against one opponent.
    """
    agent = _Agent(policy, params, domain, options, environments, label, progress)
    requests = pool_requests(domain, pools, episodes, seed, label)
    played = agent.play([each for batch in requests.values() for each in batch], seed, step=0)
    found = matches_of(domain, requests, played, weights, seed)
    table = agent.single_hand_table()
    if table is None:
        return found
    rows, uniform = [], GAMES[domain.game].uniform_policy()
    for row in found.rows:
        opponent = domain.pools[row.pool][row.opponent]()
        exact, flat = (_exact_payoff(domain, each, opponent) for each in (table, uniform))
        rows.append(replace(row, exact=exact, uniform=flat))
    return replace(found, rows=tuple(rows))


@dataclass(frozen=True)
class _Agent:
    """A policy with the way it is played."""

    policy: Policy
    params: chex.ArrayTree
    domain: Any
    options: EngineOptions
    environments: Pool | None
    label: Mapping[str, str]
    progress: bool = False

    def play(self, requests: list[EpisodeRequest], seed: int, step: int) -> list[Played]:
        """The played episodes, in order; one that failed has no rounds."""
        rollout = play(
            self.policy,
            self.params,
            requests,
            domain_environments(self.domain) if self.environments is None else self.environments,
            self.options,
            # Apart from the tokens of training and of other games; keys are int32.
            seed=derive_seed(seed, "match tokens", *self.label.values()) % 2**31,
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
        if game is None or not whole or not single_hand(self.domain):
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
    if single_hand(domain) and getattr(domain, "game", None) in GAMES:
        kept = ("options", "environments", "label", "progress")
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
    label: Mapping[str, str] = NO_LABEL,
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
      seed, options, environments, label, progress: as in `match_play`.

    Returns:
      SampledNashConv, in the game's payoff unit a hand, not halved.

    Raises:
      ValueError: a game that is not zero-sum, episodes of several hands, or fewer than 4.
      TooManyFailures: more episodes failed than the options allow, or all from one seat.
    """
    if not game.zero_sum:
        raise ValueError(f"{game.name} is not zero-sum; the gains do not add up to this estimate")
    if not single_hand(domain):
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
    requests = requests_of(
        domain, opponent, episodes, derive_seed(seed, "best response"), label=label
    )
    agent = _Agent(policy, params, domain, options, environments, label, progress)
    batch = agent.play(requests, seed, step=1)  # match play has step 0
    # The agent sits second in odd episodes; there the best response moves first.
    first, second = (
        np.array([sum(r.opponent for r in played.rounds) for played in part if played.rounds])
        for part in (batch[1::2], batch[0::2])
    )
    check_played("the best response", first, second)
    return SampledNashConv(
        normal=normal_interval(first, second),
        bootstrap=bootstrap_interval(first, second, seed=seed),
        seats=(normal_interval(first), normal_interval(second)),
        legal_rate=legal_rate(batch),
    )


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
