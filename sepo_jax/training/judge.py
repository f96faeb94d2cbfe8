"""Evaluation inside a run: exact after every few steps, match play at the end of a stage."""

import sys
from importlib.metadata import version
from typing import Any

import chex
import numpy as np
from tqdm import tqdm

from ..evaluation import exact_nash_conv, nash_conv_of_table, play_matches
from ..evaluation.results import source_commit
from ..games import solve_sequence_form
from ..policy import Policy, Sampling
from ..sandbox.protocol import Pool
from .run_directory import RunDirectory
from .settings import Settings
from .setup import engine_options, game_of

PACKAGES = ("jax", "flax", "optax", "orbax-checkpoint", "transformers", "numpy", "scipy")


class Judge:
    """Measures parameters and writes `summary.json` and `tables.json`.

    Attributes:
      game: the domain's compiled game, or None; without one only match play is measured.
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
        self.domain, self.directory, self.environments = domain, directory, environments
        self.game = game_of(domain)

    def baselines(self, params: chex.ArrayTree) -> None:
        """Uniform, best known and untrained figures, which every later one stands beside."""
        figures: dict[str, Any] = {"seed": self.settings.seed, "commit": source_commit()}
        figures |= {f"versions/{name}": version(name) for name in PACKAGES}
        if self.game is not None:
            uniform = self.game.uniform_policy()
            best = solve_sequence_form(self.game)
            figures["uniform/nash_conv"] = float(nash_conv_of_table(self.game, uniform))
            figures["best_known/nash_conv"] = best.nash_conv
            self._tables("uniform", np.asarray(uniform))
            self._tables("best_known", np.asarray(best.policy))
        # A run that goes on keeps the revision and versions it was started with.
        self._summary(figures | self._read_summary())
        self.final("untrained", params, 0)

    def exact(self, params: chex.ArrayTree) -> dict[str, float]:
        """Exact NashConv and illegal mass of the policy's action table, as metrics."""
        if self.game is None:
            return {}
        figures, _ = self._exact(params)
        return {f"exact/{name}": value for name, value in figures.items()}

    def final(self, stage: str, params: chex.ArrayTree, step: int) -> None:
        """Exact figures and match play after `step` updates of a stage, unless they are there."""
        if self._read_summary().get(f"{stage}/step") == step:
            return
        if self.progress:
            tqdm.write(f"{stage}: exact values and matches", file=sys.stderr)
        if self.game is not None:
            self._exact_summary(stage, params)
        figures = play_matches(
            self.policy,
            params,
            self.domain,
            episodes=self.settings.evaluation.match_episodes,
            seed=self.settings.seed,
            weights=(
                self.settings.sepo.exploitability_weight,
                self.settings.sepo.collusion_weight,
                self.settings.sepo.externality_weight,
            ),
            options=engine_options(self.settings, Sampling(self.settings.rollout.temperature)),
            environments=self.environments,
            progress=self.progress,
        )
        figures["step"] = step
        self._summary({f"{stage}/{name}": value for name, value in figures.items()})

    def _exact(self, params: chex.ArrayTree) -> tuple[dict[str, float], np.ndarray]:
        found = exact_nash_conv(
            self.policy,
            params,
            self.game,
            self.domain,
            temperature=self.settings.rollout.temperature,
        )
        figures = {
            "nash_conv": float(found),
            "illegal_mass": float(found.illegal_mass.mean()),
            "max_illegal_mass": float(found.illegal_mass.max()),
        }
        return figures, found.probabilities

    def _exact_summary(self, stage: str, params: chex.ArrayTree) -> None:
        figures, table = self._exact(params)
        self._summary({f"{stage}/{name}": value for name, value in figures.items()})
        self._tables(stage, table)

    def _read_summary(self) -> dict:
        return self.directory.read_json("summary.json")

    def _summary(self, figures: dict[str, Any]) -> None:
        self.directory.write_json("summary.json", self._read_summary() | figures)

    def _tables(self, stage: str, table: np.ndarray) -> None:
        rows = {
            name: row.tolist() for name, row in zip(self.game.infoset_names, table, strict=True)
        }
        tables = self.directory.read_json("tables.json")
        self.directory.write_json("tables.json", tables | {stage: rows})
