"""How much the best opponent takes from a policy in a repeated game: exactly, or at least.

    found = best_exploiter(domain, policy)          # value a round, opponent, contexts
    domain.new_episode(found.opponent, seed=7)

The paper's e is over a fixed pool, which a policy can beat and still be exploitable. Here the
opponent is the best there is. It sees what the agent sees (all moves), so backward induction over
the agent's contexts h finds it, with pi the policy and g the payoff of a round that it maximises:

    Q(h, b) = sum over a of pi(a | h) (g(a, b) + V(h a b)),      V(h) = max over b of Q(h, b)

Contexts that the policy itself never reaches (one of its moves there had probability 0) count for
nothing and are left out. The policy is asked once for each context, all of a round at a time.

Where there are too many contexts, a search over simple opponents gives a lower bound
(`history_search`).
"""

from dataclasses import dataclass

import numpy as np

from sepo_jax.domains.arguments import check_integer
from sepo_jax.domains.repeated import RepeatedGame
from sepo_jax.names import check_option
from sepo_jax.sepo.automata import Automaton
from sepo_jax.sepo.exploiter import BEST_RESPONSE
from sepo_jax.sepo.histories import HistoryGame, HistoryPolicy, PolicyLike, as_policy, history_game
from sepo_jax.sepo.history_search import SearchSettings, search_exploiter

OBJECTIVES = ("gap", "opponent")


@dataclass(frozen=True)
class Exploitation:
    """An opponent and what it takes from the policy.

    Attributes:
      value: mean a round of what the opponent maximises; an estimate when `exact` is False.
      low, high: 95 % interval of the mean of this very opponent; both are `value` when exact.
      exact: True for a best response. False: `value` is of the best opponent that a search found,
        a lower bound of what the best response takes.
      opponent: the opponent, for `new_episode`.
      num_contexts: distinct contexts at which the policy was asked.
    """

    value: float
    low: float
    high: float
    exact: bool
    opponent: Automaton
    num_contexts: int


class TooManyContexts(ValueError):
    """The policy reaches more contexts than were allowed."""


def best_exploiter(
    domain: RepeatedGame,
    policy: PolicyLike,
    objective: str = "gap",
    *,
    max_contexts: int = 100_000,
    search: bool | SearchSettings = False,
) -> Exploitation:
    """The best response of an opponent to a policy, or the best that a search finds.

    Args:
      domain: a repeated game in which the moves are all that counts (see `history_game`).
      policy: the agent's, see `as_policy`. Its probabilities are over legal moves: what a language
        policy loses by illegal replies is not in the value.
      objective: what the opponent maximises: "gap", its payoff minus the agent's, which is what e
        measures; "opponent", its payoff.
      max_contexts: most contexts at which the policy is asked.
      search: where there are more contexts, False refuses; True, or settings, searches for
        a lower bound.

    Raises:
      TooManyContexts: more contexts than `max_contexts` and no search; the number is told.
      ValueError: a domain or a policy that does not fit.
    """
    check_option("objective", objective, OBJECTIVES)
    check_integer("max_contexts", max_contexts, 1)
    game = history_game(domain)
    ask = as_policy(game, policy)
    payoff = game.opponent - game.own if objective == "gap" else game.opponent
    try:
        value, opponent, count = best_response(game, ask, payoff, max_contexts)
        return Exploitation(value, value, value, True, opponent, count)
    except TooManyContexts:
        if search is False:
            raise
    settings = SearchSettings() if search is True else search
    found = search_exploiter(game, ask, payoff, settings)
    return Exploitation(
        found.value, found.low, found.high, False, found.opponent, found.num_contexts
    )


def best_response(
    game: HistoryGame, policy: HistoryPolicy, payoff: np.ndarray, max_contexts: int
) -> tuple[float, Automaton, int]:
    """Backward induction; see the module's docstring.

    Args:
      game: the game.
      policy: a checked function of contexts.
      payoff: [rounds, A, A], what the opponent maximises, by the agent's and its own move.
      max_contexts: most contexts.

    Returns:
      Value a round, the opponent, and the number of contexts.
    """
    levels = _reached(game, policy, max_contexts)
    best: list[np.ndarray] = []
    later = None
    for gains, probabilities in zip(payoff[::-1], levels[::-1], strict=True):
        value = probabilities @ gains
        if later is not None:
            # `later` runs over (context, own move that it may play, opponent's move).
            ahead = np.zeros((*probabilities.shape, game.num_actions))
            ahead[probabilities > 0] = later.reshape(-1, game.num_actions)
            value += np.einsum("na,nab->nb", probabilities, ahead)
        best.append(value.argmax(axis=1))
        later = value.max(axis=1)
    count = sum(map(len, levels))
    return float(later[0]) / game.rounds, _machine(game, levels, best[::-1], payoff), count


def _reached(game: HistoryGame, policy: HistoryPolicy, max_contexts: int) -> list[np.ndarray]:
    """Probabilities [n, A] at the contexts of each round that the policy may reach."""
    contexts, count = game.root(), 1
    levels: list[np.ndarray] = []
    while True:
        levels.append(policy(contexts))
        if len(levels) == game.rounds:
            return levels
        played = np.nonzero(np.repeat(levels[-1][:, :, None] > 0, game.num_actions, axis=2))
        count += len(played[0])
        if count > max_contexts:
            raise TooManyContexts(
                f"{game.domain.name} has {game.num_contexts} contexts in {game.rounds} rounds; the "
                f"policy reaches {count} of them by round {len(levels) + 1}, max_contexts is "
                f"{max_contexts}. Raise it, or pass search=True for a lower bound"
            )
        contexts = contexts.after(*played)


def _machine(
    game: HistoryGame, levels: list[np.ndarray], best: list[np.ndarray], payoff: np.ndarray
) -> Automaton:
    """The best response as a machine: a state for each history of the agent's moves.

    Its own moves follow from those. Where the policy has probability 0, and after a forfeit, its
    last state plays the move whose worst case is best, for good.
    """
    cautious = payoff.sum(axis=0).min(axis=0).argmax()
    rows, outputs, transitions, total = np.zeros(1, np.int64), [], [], 0
    for number, (probabilities, moves) in enumerate(zip(levels, best, strict=True)):
        outputs.append(moves[rows])
        total += len(rows)
        ahead = np.full((len(rows), game.num_actions + 1), -1)
        if number + 1 < game.rounds:
            may = probabilities > 0
            place = np.cumsum(may).reshape(may.shape) - 1
            here = may[rows]
            children = (place[rows] * game.num_actions + outputs[-1][:, None])[here]
            ahead[:, :-1][here] = total + np.arange(len(children))
            rows = children
        transitions.append(ahead)
    outputs.append(np.array([cautious]))
    transitions.append(np.full((1, game.num_actions + 1), -1))
    table = np.concatenate(transitions)
    table[table < 0] = total
    return Automaton(game.situations[0].actions, np.concatenate(outputs), table, 0, BEST_RESPONSE)
