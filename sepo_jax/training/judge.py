"""Evaluation inside a run: exact after every few steps, match play at the end of a stage."""

import sys
from importlib.metadata import version
from typing import Any

import chex
import numpy as np
from tqdm import tqdm

from ..evaluation import (
    exact_nash_conv,
    nash_conv_of_table,
    play_matches,
    scripted_baselines,
)
from ..evaluation.results import source_commit
from ..games import solve_sequence_form
from ..policy import Policy
from ..sandbox.protocol import Pool
from .run_directory import RunDirectory
from .settings import Settings
from .setup import engine_options, evaluation_sampling
from .tasks import Task, make_tasks, mean_over_games

PACKAGES = ("jax", "flax", "optax", "orbax-checkpoint", "transformers", "numpy", "scipy")


class Judge:
    """Measures parameters and writes `summary.json` and `tables.json`.

    Keys of the summary are "<stage>/<figure>", in a run over several games
    "<stage>/<game>/<figure>", with the mean over the games as "<stage>/safety".

    Attributes:
      tasks: the games; without a compiled one a game is measured by match play alone.
    """

    def __init__(
        self,
        settings: Settings,
        policy: Policy,
        domain: Any,
        directory: RunDirectory,
        environments: Pool | None = None,
        progress: bool = False,
    ):
        self.settings, self.policy, self.progress = settings, policy, progress
        self.tasks = make_tasks(settings, domain)
        self.directory, self.environments = directory, environments

    def baselines(self, params: chex.ArrayTree) -> None:
        """Figures that every later one stands beside: of uniform play, of the best known policy or
        the best expert, and of the untrained policy."""
        figures = provenance(self.settings)
        for task in self.tasks:
            if task.game is not None:
                uniform = task.game.uniform_policy()
                best = solve_sequence_form(task.game)
                nash_conv = float(nash_conv_of_table(task.game, uniform))
                figures[f"uniform/{task.prefix}nash_conv"] = nash_conv
                figures[f"best_known/{task.prefix}nash_conv"] = best.nash_conv
                self._tables("uniform", task, np.asarray(uniform))
                self._tables("best_known", task, np.asarray(best.policy))
            # The page computes those of a single compiled game exactly.
            if task.game is None or task.label:
                figures |= self._scripted(task)
        if len(self.tasks) > 1:
            figures["games"] = [task.name for task in self.tasks]
        figures |= self._mean_safety("uniform", figures)
        # A run that goes on keeps the revision and versions it was started with.
        self._summary(figures | self._read_summary())
        # There, if empty where no game is walked whole.
        self.directory.add_json("tables.json", {})
        if self.settings.evaluation.untrained:
            self.final("untrained", params, 0)

    def exact(self, params: chex.ArrayTree) -> dict[str, float]:
        """Exact NashConv and illegal mass of the policy's action tables, as metrics."""
        metrics: dict[str, float] = {}
        for task in self.tasks:
            if task.game is not None:
                figures, _ = self._exact(task, params)
                metrics |= task.prefixed({f"exact/{k}": value for k, value in figures.items()})
        return metrics

    def final(self, stage: str, params: chex.ArrayTree, step: int) -> None:
        """Exact figures and match play after `step` updates of a stage, unless they are there."""
        if self._read_summary().get(f"{stage}/step") == step:
            return
        if self.progress:
            exact = "exact values and " if any(task.game is not None for task in self.tasks) else ""
            tqdm.write(f"{stage}: {exact}matches", file=sys.stderr)
        found: dict[str, Any] = {}
        for task in self.tasks:
            if task.game is not None:
                self._exact_summary(stage, task, params)
            found |= _at(stage, task, self._matches(task, params))
        found |= self._mean_safety(stage, found)
        found[f"{stage}/step"] = step
        self._summary(found)

    def _matches(self, task: Task, params: chex.ArrayTree) -> dict[str, float]:
        return play_matches(
            self.policy,
            params,
            task.domain,
            episodes=self.settings.evaluation.match_episodes,
            seed=self.settings.seed,
            weights=task.judged,
            options=engine_options(self.settings, evaluation_sampling(self.settings)),
            environments=self.environments,
            label=task.label,
            progress=self.progress,
        )

    def _scripted(self, task: Task) -> dict[str, float]:
        """Figures of uniform play and of the best expert by their keys."""
        baselines = scripted_baselines(
            task.domain,
            episodes=self.settings.evaluation.match_episodes,
            seed=self.settings.seed,
            weights=task.judged,
        )
        found: dict[str, float] = {}
        for player, figures in baselines.items():
            found |= _at(player, task, figures)
        return found

    def _mean_safety(self, stage: str, figures: dict[str, Any]) -> dict[str, float]:
        found = {
            key.removeprefix(f"{stage}/"): value
            for key, value in figures.items()
            if key.startswith(f"{stage}/")
        }
        mean = mean_over_games(found, self.tasks, "safety")
        return {f"{stage}/{name}": value for name, value in mean.items()}

    def _exact(self, task: Task, params: chex.ArrayTree) -> tuple[dict[str, float], np.ndarray]:
        found = exact_nash_conv(
            self.policy,
            params,
            task.game,
            task.domain,
            temperature=self.settings.rollout.temperature,
        )
        figures = {
            "nash_conv": float(found),
            "illegal_mass": float(found.illegal_mass.mean()),
            "max_illegal_mass": float(found.illegal_mass.max()),
        }
        return figures, found.probabilities

    def _exact_summary(self, stage: str, task: Task, params: chex.ArrayTree) -> None:
        figures, table = self._exact(task, params)
        self._summary(_at(stage, task, figures))
        self._tables(stage, task, table)

    def _read_summary(self) -> dict:
        return self.directory.read_json("summary.json")

    def _summary(self, figures: dict[str, Any]) -> None:
        self.directory.add_json("summary.json", figures)

    def _tables(self, stage: str, task: Task, table: np.ndarray) -> None:
        rows = {
            name: row.tolist() for name, row in zip(task.game.infoset_names, table, strict=True)
        }
        name = f"{stage}/{task.name}" if task.label else stage
        self.directory.add_json("tables.json", {name: rows})


def provenance(settings: Settings) -> dict[str, Any]:
    """Seed, revision and versions, as the summary of a run begins with."""
    versions = {f"versions/{name}": version(name) for name in PACKAGES}
    return {"seed": settings.seed, "commit": source_commit()} | versions


def _at(stage: str, task: Task, figures: dict[str, Any]) -> dict[str, Any]:
    """Figures of a game under their keys in the summary."""
    return {f"{stage}/{name}": value for name, value in task.prefixed(figures).items()}
