"""Runs a config over its seeds and writes one results table; runs that exist are gone on with.

    python experiments/sweep.py --config=configs/sepo/kuhn.py --write

The config file's `sweep(add)` names the runs, and its `result(argument)` the table: its title, its
notes, and the figures of `summary.json` to tabulate with their headings, or figures over the steps
of a stage (`sweep_rows.figure_of`); "baselines" in it adds rows of the figures that `summary.json`
has of these players. Runs that differ by more than the seed are added with an `argument` of the
config, and "variants" of the table says what each argument is called: they have means of their own.
With --write the table goes to experiments/results/<config name>.json, from which
experiments/render_results.py renders the README.
"""

import json
from pathlib import Path

from absl import flags
from sweep_rows import all_rows

from sepo_jax.evaluation.results import write_result
from sepo_jax.names import check_option
from sepo_jax.training.command_line import load_config, load_module, load_sweep, run_main

ROOT = Path(__file__).resolve().parent.parent
CONFIG = flags.DEFINE_string("config", "", "config file, with an argument after a colon if any")
RUNS = flags.DEFINE_string("runs", "runs", "directory of all runs")
SEEDS = flags.DEFINE_list("seeds", [], "only the runs of these seeds")
WRITE = flags.DEFINE_bool("write", False, "write experiments/results/<config name>.json")
DEBUG = flags.DEFINE_bool("debug", False, "show the traceback of a user error")


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
    given = CONFIG.value.partition(":")[2].split(",")
    if WRITE.value and "runlocal" in (item.partition("=")[0].strip() for item in given):
        raise ValueError("numbers of runlocal mean nothing: leave out --write or runlocal")
    rows, summaries = all_rows(table, CONFIG.value, changes, RUNS.value)
    commits = {summary["commit"] for summary in summaries}
    option = f" --seeds={chosen}" if chosen else ""
    first = "run" if "variants" in table else "seed"
    result = {
        "title": table["title"],
        "command": f"python experiments/sweep.py --config={CONFIG.value}{option} --write",
        "seeds": sorted({overrides["seed"] for overrides in changes}),
        "commit": commits.pop() if len(commits) == 1 else "several",
        "versions": {
            key.removeprefix("versions/"): value
            for key, value in summaries[-1].items()
            if key.startswith("versions/")
        },
        "columns": [first, *table["columns"].values(), "minutes"],
        "rows": rows,
        "notes": table["notes"],
    }
    print(json.dumps(result, indent=1))
    if WRITE.value:
        path = ROOT / "experiments" / "results" / f"{load_config(CONFIG.value).name}.json"
        print(f"wrote {write_result(path, result)}")


if __name__ == "__main__":
    run_main(main, cache="")
