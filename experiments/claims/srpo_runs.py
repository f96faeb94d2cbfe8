"""Runs of teams as claims read them: figures of an arm, which is a config with an argument."""

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sweep_rows import figure_of

from sepo_jax.evaluation.run_data import read_run
from sepo_jax.training.team_configs import SUCCESS

from .runs import ROOT, Runs

CONFIGS = ROOT / "configs" / "srpo"
SHARE = 5  # the first and the last of so many parts of training are compared


class TeamRuns(Runs):
    """Trains the configs of teams, and reads their summaries and steps.

    An arm is the name of a config of configs/srpo and its argument, such as
    ("search_fixed", "workers=5").
    """

    def runs_of(self, name: str, argument: str = "") -> list[tuple[Any, Path, dict[str, Any]]]:
        """Config, directory and summary of an arm's run of each seed."""
        path = CONFIGS / f"{name}.py"
        found = []
        for seed in self.seeds_of(path):
            config = self.config_of(f"{path}:{argument}" if argument else path, seed)
            found.append((config, *self.finished(config)))
        return found

    def values(self, name: str, argument: str, key: str) -> list[float]:
        """A figure of an arm (`sweep_rows.figure_of`) for each seed."""
        runs = self.runs_of(name, argument)
        return [float(figure_of(path, summary, key)) for _, path, summary in runs]

    def success(self, name: str, argument: str = "", stage: str = "rl") -> list[float]:
        """Avg@16 of an arm after a stage, for each seed."""
        return self.values(name, argument, f"{stage}/{SUCCESS[name.partition('_')[0]]}")

    def passed(self, name: str, argument: str = "") -> list[float]:
        """Pass@16 of an arm, for each seed."""
        found = []
        for config, _, summary in self.runs_of(name, argument):
            found.append(float(summary[f"rl/pass@{config.evaluation.task_samples}"]))
        return found

    def series(self, name: str, argument: str, metric: str) -> list[list[float]]:
        """A metric of every batch of an arm, for each seed."""
        return [
            read_run(path).series("rl", metric)[1] for _, path, _ in self.runs_of(name, argument)
        ]

    def first_and_last(
        self, name: str, argument: str, metric: str
    ) -> tuple[list[float], list[float]]:
        """Means of a metric over the first and the last fifth of the batches, for each seed."""
        each = self.series(name, argument, metric)
        return [ends_of(values)[0] for values in each], [ends_of(values)[1] for values in each]


def ends_of(values: Sequence[float]) -> tuple[float, float]:
    """Means of the first and of the last fifth of values, at least one of each."""
    count = max(len(values) // SHARE, 1)
    return statistics.fmean(values[:count]), statistics.fmean(values[-count:])


def at_equal_tokens(rewards: Sequence[float], tokens: Sequence[float], budget: float) -> float:
    """Mean reward of the batches that end in the last fifth of a budget of sampled tokens, or of
    the last one within it; the first counts whatever it takes.

    Args:
      rewards, tokens: of each batch.
      budget: tokens.
    """
    spent, within = 0.0, []
    for reward, count in zip(rewards, tokens, strict=True):
        spent += count
        if within and spent > budget:
            break
        within.append((spent, reward))
    late = [reward for end, reward in within if end > budget * (1 - 1 / SHARE)]
    return statistics.fmean(late or [within[-1][1]])
