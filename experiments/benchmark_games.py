"""Speed of exact evaluation: this package beside OpenSpiel, memory, and solvers of matrix games.

    python experiments/benchmark_games.py --write   # extras: pip install -e .[openspiel,nashpy]

Exact NashConv of random policies of Kuhn and Leduc (936 information sets) in policies a second, and
of a million 5x5 matrix games in bytes moved a second, beside a copy in the same run. Equilibria of
random matrix games a second, in batches by numpy and by JAX, beside SciPy's HiGHS and Nashpy one by
one. Contenders of one kind take turns; the best turn counts. --part=solvers or --part=evaluation
measures one of the two alone. --write feeds README's tables.
"""

import os
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import jax
from absl import flags
from games_tables import evaluation_table, solvers_table

from sepo_jax.evaluation.results import source_commit, write_result
from sepo_jax.training.command_line import run_main

RESULTS = Path(__file__).resolve().parent / "results"
# Part: (function that measures, name of the results file, packages that matter).
PARTS = {
    "evaluation": (
        evaluation_table,
        "benchmark_games",
        ("jax", "jaxlib", "numpy", "open_spiel"),
    ),
    "solvers": (
        solvers_table,
        "benchmark_solvers",
        ("jax", "jaxlib", "numpy", "scipy", "nashpy"),
    ),
}
PART = flags.DEFINE_enum("part", None, list(PARTS), "what to measure; everything by default")
SEED = flags.DEFINE_integer("seed", 0, "seed of policies and games")
TURNS = flags.DEFINE_integer("turns", 7, "turns of each contender", lower_bound=1)
SCALE = flags.DEFINE_float("scale", 1.0, "share of the full batch sizes", lower_bound=1e-6)
WRITE = flags.DEFINE_bool("write", False, "write the tables to experiments/results")
DEBUG = flags.DEFINE_bool("debug", False, "show the traceback of a user error")


def versions(packages: tuple[str, ...]) -> dict[str, str]:
    """Of the packages that are installed."""
    found = {}
    for name in packages:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def main() -> None:
    """Measures, prints the tables, and writes them when asked to."""
    machine = f"{os.cpu_count()} CPU cores, JAX on {jax.devices()[0].platform}"
    for part in [PART.value] if PART.value else PARTS:
        measured, name, packages = PARTS[part]
        table = measured(SEED.value, TURNS.value, SCALE.value)
        print(*table["columns"], sep="  ")
        for row in table["rows"]:
            print(*(f"{cell:,.4g}" if isinstance(cell, float) else cell for cell in row), sep="  ")
        if not WRITE.value:
            continue
        chosen = f" --part={part}" if PART.value else ""
        result = table | {
            "command": f"python experiments/benchmark_games.py --seed={SEED.value}{chosen} --write",
            "seeds": [SEED.value],
            "commit": source_commit(),
            "versions": versions(packages) | {"hardware": machine},
        }
        print(f"wrote {write_result(RESULTS / f'{name}.json', result)}")


if __name__ == "__main__":
    run_main(main)
