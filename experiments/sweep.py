"""Runs a config over its seeds and writes one results table; runs that exist are gone on with.

    python experiments/sweep.py --config=configs/sepo/kuhn.py --write

The config file's `sweep(add)` names the runs, and its `result(argument)` the table: its title, its
notes, and the figures of `summary.json` to tabulate with their headings; "baselines" in it adds
rows of the figures that `summary.json` has of these players. With --write the table
goes to experiments/results/<config name>.json, from which experiments/render_results.py renders the
README.
"""

import json
from collections.abc import Mapping
from pathlib import Path

from absl import flags
from timed_run import train_timed

from sepo_jax.evaluation.results import write_result
from sepo_jax.evaluation.statistics import seed_interval
from sepo_jax.names import check_option
from sepo_jax.training.command_line import load_config, load_module, load_sweep, run_main

ROOT = Path(__file__).resolve().parent.parent
CONFIG = flags.DEFINE_string("config", "", "config file, with an argument after a colon if any")
RUNS = flags.DEFINE_string("runs", "runs", "directory of all runs")
SEEDS = flags.DEFINE_list("seeds", [], "only the runs of these seeds")
WRITE = flags.DEFINE_bool("write", False, "write experiments/results/<config name>.json")
DEBUG = flags.DEFINE_bool("debug", False, "show the traceback of a user error")


def mean_row(rows: list[list]) -> list:
    """Means over the runs with half the width of their 95% interval (Student's t)."""
    cells = []
    for values in list(zip(*rows, strict=True))[1:-1]:
        interval = seed_interval(values)
        cells.append(f"{interval.mean:.3g} ± {interval.high - interval.mean:.2g}")
    return ["mean", *cells, None]


def baseline_rows(table: Mapping, summary: Mapping) -> list[list]:
    """Rows of the same figures of the table's baselines, from the summary of any run."""
    rows = []
    for player, label in table.get("baselines", {}).items():
        keys = (f"{player}/{key.partition('/')[2]}" for key in table["columns"])
        rows.append([label, *(round(summary[key], 5) for key in keys), None])
    return rows


def main() -> None:
    """Trains every run of the sweep and tabulates their summaries."""
    if not CONFIG.value:
        raise ValueError("give a config file: --config=configs/sepo/kuhn.py")
    table = load_module(CONFIG.value).result(CONFIG.value.partition(":")[2])
    changes = load_sweep(CONFIG.value)
    chosen = ",".join(SEEDS.value)
    if chosen:
        added = [str(each.get("seed")) for each in changes]
        for seed in SEEDS.value:
            check_option("seed", seed, added)
        changes = [each for each in changes if str(each.get("seed")) in SEEDS.value]
    if WRITE.value and "runlocal" in CONFIG.value.partition(":")[2].split(","):
        raise ValueError("numbers of runlocal mean nothing: leave out --write or runlocal")
    rows, summary, commits = [], {}, []
    for overrides in changes:
        config = load_config(CONFIG.value)
        config.update(overrides)
        directory = Path(RUNS.value) / f"{config.name}_seed{config.seed}"
        summary, seconds = train_timed(config, directory)
        minutes = None if seconds is None else round(seconds / 60, 2)
        commits.append(summary["commit"])
        figures = [round(summary[key], 5) for key in table["columns"]]
        rows.append([config.seed, *figures, minutes])
    seeds = [row[0] for row in rows]
    if len(rows) > 1:
        rows.append(mean_row(rows))
    rows += baseline_rows(table, summary)
    option = f" --seeds={chosen}" if chosen else ""
    result = {
        "title": table["title"],
        "command": f"python experiments/sweep.py --config={CONFIG.value}{option} --write",
        "seeds": seeds,
        "commit": commits[0] if len(set(commits)) == 1 else "several",
        "versions": {
            key.removeprefix("versions/"): value
            for key, value in summary.items()
            if key.startswith("versions/")
        },
        "columns": ["seed", *table["columns"].values(), "minutes"],
        "rows": rows,
        "notes": table["notes"],
    }
    print(json.dumps(result, indent=1))
    if WRITE.value:
        path = ROOT / "experiments" / "results" / f"{config.name}.json"
        print(f"wrote {write_result(path, result)}")


if __name__ == "__main__":
    run_main(main)
