"""Every outcome of a single hand of Kuhn poker with its probability, instead of samples.

The outcomes are `EpisodeArrays` whose weights are probabilities, so rewards, objective and metrics
of a policy table are computed by the code that serves sampled episodes, without sampling error.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from sepo_jax.domains.base import Table
from sepo_jax.domains.kuhn import DEALS, TERMINAL_HISTORIES, Kuhn, payoff_to_first
from sepo_jax.sepo.episodes import POOLS, EpisodeArrays
from sepo_jax.sepo.reward import SepoWeights, objective_terms, objective_value, payoff_scale


class Outcome(NamedTuple):
    """How one hand can go.

    Attributes:
      seat: the agent's seat.
      deal: first mover's card, then second mover's.
      history: the moves of a finished hand.
      choices: the agent's decisions, (information set, action) in order.
      opponent_choices: the opponent's, likewise.
    """

    seat: int
    deal: str
    history: str
    choices: tuple[tuple[str, int], ...]
    opponent_choices: tuple[tuple[str, int], ...]

    @property
    def own(self) -> int:
        """The agent's net chips."""
        to_first = payoff_to_first(self.deal, self.history)
        return to_first if self.seat == 0 else -to_first

    def probability(self, agent: Table, opponent: Table) -> float:
        """Of this outcome given the seat: deal 1/6, times both players' probabilities."""
        product = 1 / len(DEALS)
        for table, choices in ((agent, self.choices), (opponent, self.opponent_choices)):
            for name, action in choices:
                product *= table[name][action]
        return product


def hand_outcomes(seats: Sequence[int] = (0, 1)) -> list[Outcome]:
    """All outcomes of a hand with the agent in each of `seats`: 30 a seat."""
    return [
        Outcome(
            seat, deal, history, _choices(deal, history, seat), _choices(deal, history, 1 - seat)
        )
        for seat in seats
        for deal in DEALS
        for history in TERMINAL_HISTORIES
    ]


def _choices(deal: str, history: str, seat: int) -> tuple[tuple[str, int], ...]:
    return tuple(
        (deal[seat] + history[:index], "pb".index(letter))
        for index, letter in enumerate(history)
        if index % 2 == seat
    )


def exact_episodes(
    domain: Kuhn,
    table: Table,
    extra: Mapping[str, Mapping[str, Table]] | None = None,
    pools: Sequence[str] = POOLS,
) -> tuple[EpisodeArrays, list[Outcome]]:
    """All outcomes of a policy table against the pools, both seats equally likely.

    Args:
      domain: gives the pools and what counts as harmful.
      table: the agent's probabilities at all twelve information sets.
      extra: further opponents, pool -> name -> table (an exact best response, say).
      pools: pools of the domain that are played.

    Returns:
      Arrays with R = 1 in which the weights of each opponent's 60 outcomes sum to 1, and the
      outcome of each row. Outcomes of probability 0 are kept: their score may matter.
    """
    opponents = [
        (pool, name, factory().table)
        for pool in pools
        for name, factory in domain.pools[pool].items()
    ]
    opponents += [
        (pool, name, rows) for pool, named in (extra or {}).items() for name, rows in named.items()
    ]
    outcomes = hand_outcomes()
    rounds = [domain.score(item.seat, item.history, item.own) for item in outcomes]
    size = len(outcomes)

    def column(values):
        return np.tile(np.array(values, np.float64)[:, None], (len(opponents), 1))

    arrays = EpisodeArrays(
        own=column([result.own for result in rounds]),
        opponent=column([result.opponent for result in rounds]),
        harmful=column([result.harmful for result in rounds]),
        externality=column([result.externality for result in rounds]),
        mask=np.ones((size * len(opponents), 1), bool),
        pool=np.repeat([POOLS.index(pool) for pool, _, _ in opponents], size),
        opponent_id=np.repeat(np.arange(len(opponents)), size),
        decisions=column([len(item.choices) for item in outcomes]),
        weight=np.array(
            [item.probability(table, rows) / 2 for _, _, rows in opponents for item in outcomes]
        ),
        opponent_names=tuple(f"{pool}/{name}" for pool, name, _ in opponents),
    )
    return arrays, outcomes * len(opponents)


def exact_terms(
    domain: Kuhn,
    table: Table,
    weights: SepoWeights,
    extra: Mapping[str, Mapping[str, Table]] | None = None,
) -> dict[str, float]:
    """u, e, c, x and the safety score of a policy table, without sampling error.

    Args:
      domain, table, extra: as in `exact_episodes`.
      weights: of the safety score.

    Returns:
      The terms of `reward.objective_terms` and "safety".
    """
    arrays, _ = exact_episodes(domain, table, extra)
    terms = {name: float(value) for name, value in objective_terms(arrays).items()}
    safety = objective_value(terms, weights, payoff_scale(domain.max_payoff))
    return {**terms, "safety": float(safety)}
