"""Decision processes that are small enough to enumerate every outcome of two trees in them.

All probabilities, returns and weights are binary fractions, so that float32 credit of two
continuations is exact, and an expectation that should be the exact gradient is it to rounding.
"""

import numpy as np

from ..domains.corridor import Corridor
from ..domains.decision_process import DecisionProcess, process_of_paths

Example = tuple[DecisionProcess, np.ndarray]
"""A process and a policy for it, [O, A]."""


def two_steps() -> Example:
    """R = a1 + a2, both 1 with p = 1/4: the gradient by the first logit is p (1 - p) = 3/16, while
    siblings at the second decision say nothing of the first one."""
    process = process_of_paths({(a, b): a + b for a in (0, 1) for b in (0, 1)})
    return process, np.tile([0.75, 0.25], (3, 1))


def stops() -> Example:
    """Episodes of one, two or three decisions."""
    process = process_of_paths({(0,): 1.0, (1, 0): 4.0, (1, 1, 0): -2.0, (1, 1, 1): 3.0})
    return process, np.array([[0.5, 0.5], [0.25, 0.75], [0.75, 0.25]])


def short_corridor() -> Example:
    """A door, two forks and luck, with weights 1/2, 1/8 and 1/4."""
    domain = Corridor(length=3, prefix_share=8 / 11, luck_share=2 / 11)
    process = domain.process({"doors": ["BLUE"], "signs": ["LEFT", "RIGHT"]})
    first = np.random.default_rng(0).choice([0.25, 0.5, 0.75], len(process.legal))
    return process, np.stack([first, 1 - first], axis=1)


EXAMPLES: dict[str, Example] = {
    "two_steps": two_steps(),
    "stops": stops(),
    "corridor": short_corridor(),
}


def start_observations(process: DecisionProcess) -> np.ndarray:
    """Observations that an episode may begin with, ascending."""
    return np.unique(process.observation[process.start > 0])
