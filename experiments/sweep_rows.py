"""Rows of the tables that sweep.py writes: of runs, of means over seeds, of baselines."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from timed_run import train_timed

from sepo_jax.evaluation.run_data import read_run
from sepo_jax.evaluation.statistics import coefficient_of_variation, seed_interval
from sepo_jax.names import did_you_mean
from sepo_jax.training.command_line import swept_config

OVER_STEPS = {
    "step_mean": statistics.fmean,
    "step_cv": coefficient_of_variation,
    "step_seconds": statistics.median,  # the first step compiles
}


def mean_row(label: str, rows: list[list]) -> list:
    """Means over the runs with half the width of their 95% interval (Student's t)."""
    cells = []
    for values in list(zip(*rows, strict=True))[1:-1]:
        interval = seed_interval(values)
        cells.append(f"{interval.mean:.3g} ± {interval.high - interval.mean:.2g}")
    return [label, *cells, None]


def run_row(label: Any, table: Mapping, config: Any, runs: str) -> tuple[list, dict]:
    """The row of a run, which is trained where it is not there, and its summary."""
    directory = Path(runs) / f"{config.name}_seed{config.seed}"
    summary, seconds = train_timed(config, directory)
    minutes = None if seconds is None else round(seconds / 60, 2)
    figures = [round(figure_of(directory, summary, key), 5) for key in table["columns"]]
    return [label, *figures, minutes], summary


def figure_of(directory: Path, summary: Mapping, key: str) -> float:
    """A figure of a run: of its summary, or over the steps of a stage.

    "<stage>/step_mean/<metric>" is the mean over them, "<stage>/step_cv/<metric>" the standard
    deviation over the mean, and "<stage>/step_seconds/<part>" the median of the time of a part.
    """
    stage, statistic, metric = (*key.split("/", 2), "", "")[:3]
    if statistic not in OVER_STEPS:
        if key not in summary:
            raise ValueError(
                f"{directory} has no figure {key!r}, which the table of its config names."
                f"{did_you_mean(key, summary)}"
            )
        return summary[key]
    run, timings = read_run(directory), statistic == "step_seconds"
    return OVER_STEPS[statistic](run.series(stage, metric, timings)[1])


def baseline_rows(table: Mapping, summary: Mapping) -> list[list]:
    """Rows of the same figures of the table's baselines, from the summary of any run; null for
    what is measured in training alone."""
    rows = []
    for player, label in table.get("baselines", {}).items():
        keys = (f"{player}/{key.partition('/')[2]}" for key in table["columns"])
        found = [summary.get(key) for key in keys]
        rows.append([label, *(None if x is None else round(x, 5) for x in found), None])
    return rows


def all_rows(
    table: Mapping, config_file: str, changes: Sequence[Mapping], runs: str
) -> tuple[list[list], list[dict]]:
    """Every row of a table, runs by variant with a mean after each, and the summaries of the runs.

    Args:
      table: what the config file's `result` gives.
      config_file: its path, with an argument after a colon if any.
      changes: of `load_sweep`. runs: directory of all runs.

    Raises:
      ValueError: a run without a seed, or of a variant that the table does not name.
    """
    rows, summaries = [], []
    variants = table.get("variants", {"": ""})
    for overrides in changes:
        if overrides.get("argument", "") not in variants or "seed" not in overrides:
            raise ValueError(
                f"the sweep of {config_file} adds a run of {dict(overrides)}: every run needs a "
                f'seed, and an argument that "variants" of its table names; these are '
                f"{list(variants)}"
            )
    for variant, name in variants.items():
        own = []
        for overrides in changes:
            if overrides.get("argument", "") == variant:
                label = f"{name} {overrides['seed']}" if name else overrides["seed"]
                row, summary = run_row(label, table, swept_config(config_file, overrides), runs)
                own.append(row)
                summaries.append(summary)
        rows += own + ([mean_row(f"{name} mean".strip(), own)] if len(own) > 1 else [])
    return rows + baseline_rows(table, summaries[-1]), summaries
