"""Every outcome of an episode with its probability, instead of samples.

The outcomes are `EpisodeArrays` whose weights are probabilities, so rewards, objective and metrics
of a policy are computed by the code that serves sampled episodes, without sampling error. A single
hand of Kuhn poker is enumerated by its deals and moves, a repeated game by its joint histories (see
`histories` for the games in which that is possible).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from sepo_jax.domains.base import Table
from sepo_jax.domains.kuhn import DEALS, TERMINAL_HISTORIES, Kuhn, payoff_to_first
from sepo_jax.domains.repeated import RepeatedGame, Strategy
from sepo_jax.sepo.episodes import POOLS, EpisodeArrays
from sepo_jax.sepo.histories import PolicyLike, all_matches, as_policy, history_game
from sepo_jax.sepo.reward import SepoWeights, objective_terms, objective_value, payoff_scale

_MEASURES = ("own", "opponent", "harmful", "externality", "decisions")


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


class _Enumerated(NamedTuple):
    """All outcomes against one opponent: `_MEASURES` [n, R, 5], probability [n], outcome [n]."""

    measures: np.ndarray
    probability: np.ndarray
    outcomes: Iterable[Any]


def exact_episodes(
    domain: Kuhn | RepeatedGame,
    policy: Table | PolicyLike,
    extra: Mapping[str, Mapping[str, Any]] | None = None,
    pools: Sequence[str] = POOLS,
) -> tuple[EpisodeArrays, list]:
    """All outcomes of a policy against the pools.

    Args:
      domain: gives the pools and what the measures count. Of Kuhn poker a single hand is played,
        both seats equally likely.
      policy: the agent's. Kuhn poker: its probabilities at all twelve information sets. A repeated
        game: see `histories.as_policy`.
      extra: further opponents, pool -> name -> opponent (an exact best response, say): a table in
        Kuhn poker, a `Strategy` in a repeated game.
      pools: pools of the domain that are played.

    Returns:
      Arrays in which the weights of each opponent's outcomes sum to 1, and the outcome of each row.
      Kuhn poker: R = 1 and 60 `Outcome`s an opponent; those of probability 0 are kept, since their
      score may matter. A repeated game: R rounds, and int arrays [R, 2] with the indices of both
      players' moves; matches of probability 0 are left out.

    Raises:
      ValueError: a repeated game, a policy or an opponent that cannot be enumerated.
    """
    enumerate_outcomes = (
        _hands(domain, policy) if isinstance(domain, Kuhn) else _matches(domain, policy)
    )
    opponents = [
        (pool, name, factory()) for pool in pools for name, factory in domain.pools[pool].items()
    ]
    opponents += [
        (pool, name, player)
        for pool, named in (extra or {}).items()
        for name, player in named.items()
    ]
    parts = [enumerate_outcomes(player) for _, _, player in opponents]
    sizes = [len(part.probability) for part in parts]
    measures = np.concatenate([part.measures for part in parts])
    arrays = EpisodeArrays(
        **{name: measures[..., column] for column, name in enumerate(_MEASURES)},
        mask=np.ones(measures.shape[:2], bool),
        pool=np.repeat([POOLS.index(pool) for pool, _, _ in opponents], sizes),
        opponent_id=np.repeat(np.arange(len(opponents)), sizes),
        weight=np.concatenate([part.probability for part in parts]),
        opponent_names=tuple(f"{pool}/{name}" for pool, name, _ in opponents),
    )
    return arrays, [outcome for part in parts for outcome in part.outcomes]


def _hands(domain: Kuhn, policy: Table) -> Callable[[Any], _Enumerated]:
    """Enumerates the hands of a table against an opponent (or its table)."""

    def enumerate_hands(player: Any) -> _Enumerated:
        outcomes = hand_outcomes()
        results = [domain.score(item.seat, item.history, item.own) for item in outcomes]
        measures = [
            [result.own, result.opponent, result.harmful, result.externality, len(item.choices)]
            for item, result in zip(outcomes, results, strict=True)
        ]
        table = getattr(player, "table", player)
        probability = np.array([item.probability(policy, table) / 2 for item in outcomes])
        return _Enumerated(np.array(measures, np.float64)[:, None], probability, outcomes)

    return enumerate_hands


def _matches(domain: RepeatedGame, policy: PolicyLike) -> Callable[[Strategy], _Enumerated]:
    """Enumerates the matches of a policy against an opponent."""
    game = history_game(domain)
    ask = as_policy(game, policy)
    counted = np.stack(
        [game.own, game.opponent, game.harmful, game.externality, np.ones_like(game.own)], axis=-1
    )

    def enumerate_matches(player: Strategy) -> _Enumerated:
        moves, probability = all_matches(game, ask, player)
        measures = counted[np.arange(game.rounds), moves[..., 0], moves[..., 1]]
        return _Enumerated(measures, probability, moves)

    return enumerate_matches


def exact_terms(
    domain: Kuhn | RepeatedGame,
    policy: Table | PolicyLike,
    weights: SepoWeights,
    extra: Mapping[str, Mapping[str, Any]] | None = None,
) -> dict[str, float]:
    """u, e, c, x and the safety score of a policy, without sampling error.

    Args:
      domain, policy, extra: as in `exact_episodes`.
      weights: of the safety score.

    Returns:
      The terms of `reward.objective_terms` and "safety".
    """
    arrays, _ = exact_episodes(domain, policy, extra)
    terms = {name: float(value) for name, value in objective_terms(arrays).items()}
    safety = objective_value(terms, weights, payoff_scale(domain.max_payoff))
    return {**terms, "safety": float(safety)}
