"""The slow environment of `benchmark_rollouts.py`: random tokens, after a while.

Worker processes import this module, so it needs the protocol and the standard library only.
"""

import math
import random
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sepo_jax.sandbox.protocol import Prompt, SnapshotRefused, Turn

PROMPT_TOKENS = (112, 128)
OBSERVATION_TOKENS = (36, 44)
SPREAD = 0.5  # standard deviation of the logarithm of a latency
OUTLIERS, OUTLIER_SECONDS = 0.01, 2.0


def latency(seed: int, turn: int, mean: float) -> float:
    """Seconds that a sandbox takes to answer a turn of an episode; the reset is turn 0.

    Lognormal of the given mean, and `OUTLIER_SECONDS` for a share of `OUTLIERS`; 0 for a mean of 0.
    """
    if mean == 0:
        return 0.0
    draw = random.Random(f"latency {seed} {turn}")
    if draw.random() < OUTLIERS:
        return OUTLIER_SECONDS
    return draw.lognormvariate(math.log(mean) - SPREAD**2 / 2, SPREAD)


def random_tokens(name: str, least_and_most: tuple[int, int], vocabulary: int) -> tuple[int, ...]:
    """As many ids as drawn from the range, the same for the same name."""
    draw = random.Random(name)
    return tuple(draw.randrange(vocabulary) for _ in range(draw.randint(*least_and_most)))


class SlowEnvironment:
    """An episode of a few turns of one seat, in one growing context; its replies change nothing.

    A task has "prompt" (a number; equal ones mean the same prompt), "turns", "vocabulary" (ids that
    the policy knows) and "latency" (mean, in seconds).
    """

    def __init__(self, directory: Path):
        """The factory of itself; the directory stays empty."""

    def reset(self, task: Mapping[str, Any], seed: int) -> Turn:
        """Asks with the prompt of the task."""
        self._task, self._seed, self._turn = task, seed, 0
        return self._ask(f"prompt {task['prompt']}", PROMPT_TOKENS, continues=False)

    def step(self, actions: Mapping[int, str]) -> Turn:
        """Asks with an observation, or ends the episode."""
        self._turn += 1
        name = f"observation {self._seed} {self._turn}"
        return self._ask(name, OBSERVATION_TOKENS, continues=True)

    def snapshot(self) -> bytes:
        """Refuses."""
        raise SnapshotRefused("the benchmark takes no snapshots")

    def restore(self, state: bytes) -> Turn:
        """Refuses."""
        raise SnapshotRefused("the benchmark takes no snapshots")

    def close(self) -> None:
        """Holds nothing."""

    def _ask(self, name: str, size: tuple[int, int], continues: bool) -> Turn:
        time.sleep(latency(self._seed, self._turn, self._task["latency"]))
        if self._turn == self._task["turns"]:
            return Turn(done=True)
        tokens = random_tokens(name, size, self._task["vocabulary"])
        return Turn({0: Prompt(tokens=tokens, continues=continues)})
