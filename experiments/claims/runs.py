"""Runs that claims share: trained once, gone on with where they exist, timed and noted.

A run of a config file lies where `experiments/sweep.py` puts it, so that results tables and claims
read the same runs. Those of a smoke test have names of their own.
"""

import dataclasses
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from timed_run import train_timed

from sepo_jax.evaluation.results import source_commit
from sepo_jax.training.command_line import load_sweep, swept_config

ROOT = Path(__file__).resolve().parents[2]


@dataclasses.dataclass
class Runs:
    """Trains what claims ask for; each run once.

    Attributes:
      seeds: of the runs; None for those that the sweep of a config names (see `seeds_of`).
      runs: directory of all runs. results: directory of results files.
      quick: steps of a smoke test, whose numbers mean nothing.
      progress: show progress bars.
      trained: seconds that this object spent on training so far.
      used: run directory -> seconds of its training, for all runs asked for since `start`.
      noted: (revision, seed) of all runs and results files asked for since then.
    """

    seeds: Sequence[int] | None
    runs: Path
    results: Path
    quick: bool = False
    progress: bool = True
    trained: float = 0.0
    used: dict[Path, float] = dataclasses.field(default_factory=dict)
    noted: set[tuple[str, int]] = dataclasses.field(default_factory=set)

    def __post_init__(self):
        self._kept: dict[Any, Any] = {}
        self._begun = (time.perf_counter(), 0.0)

    def start(self) -> None:
        """Begins the clock of a claim."""
        self.used, self.noted = {}, set()
        self._begun = (time.perf_counter(), self.trained)

    def note(self, commit: str, seeds: Sequence[int]) -> None:
        """Remembers what was measured: the revision it was run with, and its seeds."""
        self.noted |= {(commit, seed) for seed in seeds}

    def commit(self) -> str:
        """Revision of all that was measured since `start`, "several" where there is more than one;
        that of the source where nothing was."""
        commits = {commit for commit, _ in self.noted} or {source_commit()}
        return commits.pop() if len(commits) == 1 else "several"

    def measured_seeds(self) -> list[int]:
        """Seeds of what was measured since `start`."""
        return sorted({seed for _, seed in self.noted})

    def seconds(self) -> float:
        """Time since `start`, every run of the claim counted as if it were trained in it."""
        begun, trained = self._begun
        return time.perf_counter() - begun - (self.trained - trained) + sum(self.used.values())

    def once(self, key: Any, measure: Callable[[], Any]) -> Any:
        """What `measure()` gave when it was first asked for under this key."""
        if key not in self._kept:
            self._kept[key] = measure()
        return self._kept[key]

    def seeds_of(self, path: str | Path) -> list[int]:
        """The seeds given, else those of the sweep of a config file; of a smoke test its first."""
        if self.seeds is not None:
            return list(self.seeds)
        seeds = list(dict.fromkeys(changes["seed"] for changes in load_sweep(str(path))))
        return seeds[:1] if self.quick else seeds

    def config_of(self, path: str | Path, seed: int) -> Any:
        """The config of a file, whose path an argument may follow behind a colon, as its sweep has
        it first for a seed; of a smoke test with `runlocal`."""
        swept = [changes for changes in load_sweep(str(path)) if changes["seed"] == seed]
        value = str(path)
        if self.quick:
            value += f"{',' if ':' in value else ':'}runlocal"
        return swept_config(value, swept[0] if swept else {"seed": seed})

    def finished(self, config: Any) -> tuple[Path, dict[str, Any]]:
        """Directory and summary of the run of a config or `Settings`; trained now where it is not
        there, and gone on with where it is not finished."""
        quick = "quick_" if self.quick else ""
        path = self.runs / f"{quick}{config.name}_seed{config.seed}"
        summary, seconds = self.once(path, lambda: self._train(config, path))
        if path not in self.used:
            self.used[path] = seconds
            self.note(summary["commit"], [config.seed])
        return path, summary

    def _train(self, config: Any, path: Path) -> tuple[dict[str, Any], float]:
        """Summary and seconds of a run; of one whose time nobody took, those spent now."""
        begun = time.perf_counter()
        summary, seconds = train_timed(config, path, self.progress)
        spent = time.perf_counter() - begun
        self.trained += spent
        return summary, spent if seconds is None else seconds
