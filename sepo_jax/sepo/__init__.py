"""SEPO: utility minus penalties for exploitability, collusion and externality (2605.30854).

- `episodes`: finished episodes of a step as arrays.
- `reward`: the objective, and rewards in three credit modes.
- `metrics`: figures of a report with intervals.
- `exploiter`: the exact best response to the current policy as an opponent.
- `exact`: every outcome of a Kuhn hand, or of a match in a repeated game, with its probability.
- `histories`: repeated games as trees of joint histories, and policies on them.
- `history_response`: the best opponent of a policy in a repeated game, exact or searched for
  (`history_search`); it is one of the machines of `automata`.
"""

from sepo_jax.sepo.episodes import (
    COLLUSIVE,
    EXPLOITER,
    TRAIN,
    EpisodeArrays,
    from_episodes,
    from_results,
)
from sepo_jax.sepo.exploiter import best_response_opponent
from sepo_jax.sepo.history_response import Exploitation, TooManyContexts, best_exploiter
from sepo_jax.sepo.history_search import SearchSettings
from sepo_jax.sepo.metrics import Estimate, action_rates, card_rates, evaluate
from sepo_jax.sepo.reward import (
    CREDITS,
    OBJECTIVES,
    SepoWeights,
    assign_rewards,
    objective_terms,
    objective_value,
    payoff_scale,
    trained_episodes,
    without_penalties,
)

__all__ = [
    "COLLUSIVE",
    "CREDITS",
    "EXPLOITER",
    "OBJECTIVES",
    "TRAIN",
    "EpisodeArrays",
    "Estimate",
    "Exploitation",
    "SearchSettings",
    "SepoWeights",
    "TooManyContexts",
    "action_rates",
    "assign_rewards",
    "best_exploiter",
    "best_response_opponent",
    "card_rates",
    "evaluate",
    "from_episodes",
    "from_results",
    "objective_terms",
    "objective_value",
    "payoff_scale",
    "trained_episodes",
    "without_penalties",
]
