"""A language policy's exact action probabilities in a repeated game, where they are asked for.

    ask = HistoryProbabilities(policy, params)
    best_exploiter(domain, ask)                 # sepo.history_response
    ask.largest_illegal_mass

The counterpart of `policy_table` for games that are trees of joint histories: too many contexts
for a table by name, so it is a function that the enumeration calls round by round.
"""

import chex
import numpy as np

from ..policy import Policy, render
from ..policy.constrained import action_log_probs
from ..sepo.histories import Contexts
from .policy_table import normalize_actions


class HistoryProbabilities:
    """Probabilities of a policy's moves at contexts, normalised over the legal moves.

    Each is that of the move's canonical reply followed by the end token, at the domain's own
    prompt, as in `policy_table`. What an illegal reply would cost is in no figure made from these;
    read those together with `largest_illegal_mass`.

    Args:
      policy, params: the language policy.
      temperature: of the softmax over tokens.
      rows: prompts scored at a time.

    Attributes:
      largest_illegal_mass: the most probability that replies other than the legal moves had at any
        context so far; 0 before the first call.
      num_contexts: contexts asked so far.
    """

    def __init__(
        self,
        policy: Policy,
        params: chex.ArrayTree,
        *,
        temperature: float = 1.0,
        rows: int = 16,
    ):
        self.policy, self.params = policy, params
        self.temperature, self.rows = temperature, rows
        self.largest_illegal_mass = 0.0
        self.num_contexts = 0

    def __call__(self, contexts: Contexts) -> np.ndarray:
        """float64 [n, A].

        Raises:
          ValueError: log-probabilities that are not numbers (a diverged policy).
        """
        domain, views = contexts.game.domain, contexts.views()
        logs = action_log_probs(
            self.policy,
            self.params,
            [render(self.policy.tokenizer, domain.messages(view)) for view in views],
            list(contexts.game.situations[contexts.round].actions),
            temperature=self.temperature,
            rows=self.rows,
        )
        names = [domain.observation(view) for view in views]
        table = normalize_actions(np.asarray(logs, np.float64), names)
        self.largest_illegal_mass = max(self.largest_illegal_mass, float(table.illegal_mass.max()))
        self.num_contexts += len(views)
        return table.probabilities
