"""Runs of the matrix benchmark as claims read them: figures of players on the benchmark's arms.

A player is a policy after a stage of its training, or a baseline on the same games. The games of an
arm are the same for every run, so players can be compared and the baselines are one number each.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sepo_jax.names import check_option
from sepo_jax.training.command_line import load_config

from .base import Panel
from .runs import ROOT, Runs

CONFIGS = ROOT / "configs" / "matrix"
SFT, RL, BOTH, FORM = "SFT", "RL", "SFT then RL", "form alone"
UNIFORM, BEST_PURE = "uniform", "best pure"
# Player -> its config, and the prefix of its figures in the summary of a run. What has learned the
# form of an answer alone, from random ones, is where the reinforcement learning starts.
PLAYERS = {
    UNIFORM: ("sft", "uniform"),
    BEST_PURE: ("sft", "best_pure"),
    FORM: ("rl", "sft"),
    SFT: ("sft", "sft"),
    RL: ("rl", "rl"),
    BOTH: ("sft_rl", "rl"),
}
UNSEEN_SIZES = (4, 5, 6, 7)
PAPER_SIZES = (5, 6, 7)


def dense(sizes: Sequence[int]) -> tuple[str, ...]:
    """The arms of dense square games."""
    return tuple(f"dense/{size}" for size in sizes)


class MatrixRuns(Runs):
    """Trains the configs of the matrix benchmark, and reads their summaries."""

    def values(
        self, player: str, arms: str | Sequence[str], figure: str = "success"
    ) -> list[float]:
        """A figure of a player for each seed of its config, averaged over arms.

        Args:
          player: of `PLAYERS`. arms: of `matrix_tasks.ARMS`.
          figure: of `matrix_domain.flat_figures`.

        Raises:
          ValueError: a run that has no such figure, because it was judged on other arms or because
            none of its replies was valid; both are named.
        """
        config, stage = PLAYERS[check_option("player", player, PLAYERS)]
        names = [f"{stage}/{arm}/{figure}" for arm in ([arms] if isinstance(arms, str) else arms)]
        found = []
        for seed in self.seeds_of(CONFIGS / f"{config}.py"):
            summary = self.summary(config, seed)
            for name in names:
                if name not in summary:
                    raise ValueError(
                        f"the run of configs/matrix/{config}.py with seed {seed} has no figure "
                        f"{name!r}: claims need all arms of the benchmark (domain.options.arms) "
                        "and valid replies"
                    )
            found.append(float(np.mean([summary[name] for name in names])))
        return found

    def config_of(self, path: str | Path, seed: int) -> Any:
        """As of all `Runs`, but a smoke test, too, is judged on every arm: by one game of each."""
        config = super().config_of(path, seed)
        if self.quick:
            whole = load_config(str(path))
            config.domain.options = whole.domain.options
            config.rollout.capacity = whole.rollout.capacity  # the largest games need it
            config.evaluation.tasks = 1
            config.rollout.max_action_tokens = 32  # what is hardly trained goes on to the last
        return config

    def summary(self, config: str, seed: int) -> dict[str, float]:
        """The summary of the finished run of a config of configs/matrix."""
        return self.finished(self.config_of(CONFIGS / f"{config}.py", seed))[1]

    def baseline(self, arms: str | Sequence[str]) -> float:
        """The larger success of uniform play and of the best pure profiles, averaged over arms."""
        return max(max(self.values(player, arms)) for player in (UNIFORM, BEST_PURE))

    def panel(
        self,
        title: str,
        players: Sequence[str],
        arms: str | Sequence[str],
        figure: str = "success",
    ) -> Panel:
        """A figure of several players; successes stand beside the baseline."""
        reference = self.baseline(arms) if figure == "success" else None
        values = {player: self.values(player, arms, figure) for player in players}
        return Panel(title, values, reference)
