"""Speed of exact evaluation: this package beside OpenSpiel's Python and C++, and beside memory.

    python experiments/benchmark_games.py --write   # needs the extra: pip install -e .[openspiel]

Exact NashConv of random policies of Kuhn and Leduc (936 information sets) in policies a second, and
of a million 5x5 matrix games in bytes moved a second, beside a copy in the same run. Contenders of
one kind take turns; the best turn counts. --write feeds README's table.
"""

import os
from functools import partial
from importlib.metadata import version
from pathlib import Path

import jax
from absl import flags
from games_workloads import best_rates, matrix_contenders, tree_contenders
from tqdm import tqdm

from sepo_jax.evaluation.results import source_commit, write_result
from sepo_jax.training.command_line import run_main

PATH = Path(__file__).resolve().parent / "results" / "benchmark_games.json"
SEED = flags.DEFINE_integer("seed", 0, "seed of policies and games")
TURNS = flags.DEFINE_integer("turns", 7, "turns of each contender", lower_bound=1)
SCALE = flags.DEFINE_float("scale", 1.0, "share of the full batch sizes", lower_bound=1e-6)
WRITE = flags.DEFINE_bool("write", False, "write experiments/results/benchmark_games.json")
DEBUG = flags.DEFINE_bool("debug", False, "show the traceback of a user error")
COLUMNS = ["measured", "batch", "sepo_jax", "OpenSpiel Python", "OpenSpiel C++", "times Python"]


def scaled(size: int) -> int:
    return max(1, int(size * SCALE.value))


def measure(title: str, contenders: dict, times: int = 1) -> dict[str, float]:
    return best_rates(contenders, times * TURNS.value, partial(tqdm, desc=title, mininterval=1))


def tree_rows(name: str, batch: int, count: int) -> list[list]:
    """Policies a second, in a batch and one by one."""
    speed = measure(name, tree_contenders(name, batch, count, SEED.value))
    rivals = [speed["python"], speed["c++"]]
    return [
        [f"{name}, policies/s", size, rate, *rivals, rate / speed["python"]]
        for size, rate in ((batch, speed["batch"]), (1, speed["one"]))
    ]


def matrix_rows(count: int, size: int = 5) -> list[list]:
    """Gigabytes of payoffs, strategies and results a second."""
    contenders = matrix_contenders(count, size, SEED.value)
    speed = measure("matrix games", contenders, times=10)  # turns of a few milliseconds
    kernel, copy = speed["nash_conv"], speed["copy"]
    games = kernel / contenders["nash_conv"][0] * count
    title = f"{size}x{size} matrix games"
    return [
        [f"{title}, games/s", count, games, None, None, None],
        [f"{title}, GB/s", count, kernel, None, None, None],
        ["memory copy, GB/s", count, copy, None, None, None],
        [f"{title}, share of the copy's GB/s", count, kernel / copy, None, None, None],
    ]


def main() -> None:
    """Measures, prints the table, and writes it when asked to."""
    rows = tree_rows("kuhn_poker", scaled(65536), scaled(200))
    rows += tree_rows("leduc_poker", scaled(2048), scaled(10))
    rows += matrix_rows(scaled(1_000_000))
    for row in rows:
        print(*(f"{cell:,.4g}" if isinstance(cell, float) else cell for cell in row), sep="  ")
    if not WRITE.value:
        return
    packages = ("jax", "jaxlib", "numpy", "open_spiel")
    machine = f"{os.cpu_count()} CPU cores, JAX on {jax.devices()[0].platform}"
    result = {
        "title": "Exact evaluation: NashConv of policies and of matrix games",
        "command": f"python experiments/benchmark_games.py --seed={SEED.value} --write",
        "seeds": [SEED.value],
        "commit": source_commit(),
        "versions": {name: version(name) for name in packages} | {"hardware": machine},
        "columns": COLUMNS,
        "rows": rows,
        "notes": f"float32 here, float64 in OpenSpiel, which takes one policy at a time; values "
        f"agree to 1e-4. Best of {TURNS.value} interleaved turns.",
    }
    print(f"wrote {write_result(PATH, result)}")


if __name__ == "__main__":
    run_main(main)
