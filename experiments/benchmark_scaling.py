"""What a training step costs as it grows, and the same work for each of more and more devices.

    python experiments/benchmark_scaling.py --write        # about eight minutes on two cores
    python experiments/benchmark_scaling.py --quick        # a smallest model, to see that all runs

`growth`: generation, scores and an update of more samples of a prompt, longer prompts, more leaves
of a tree and more slots, beside as many trajectories that have nothing in common; seconds and
counted tokens. `devices`: one update, by pmap and on a mesh, and the decode that runs inside one
program, on 1, 2 and 4 virtual devices of the CPU, which share its cores: beside one device that
does the work of all. --write feeds README's tables and draws their figure.
"""

from collections.abc import Callable
from typing import Any

import scaling_devices
import scaling_growth
from absl import flags
from rollout_models import SMALLEST, TINY, fresh
from scaling_tables import COLUMNS, write_tables
from scaling_work import axes
from tqdm import tqdm

from sepo_jax.evaluation.results import format_cell
from sepo_jax.training.command_line import run_main

PARTS = flags.DEFINE_multi_enum("part", list(COLUMNS), list(COLUMNS), "what to run; repeatable")
REPETITIONS = flags.DEFINE_integer("repetitions", 3, "measured, of each side", lower_bound=1)
SEED = flags.DEFINE_integer("seed", 0, "seed of sampling", lower_bound=0)
QUICK = flags.DEFINE_bool("quick", False, "a smallest model and small sizes")
WRITE = flags.DEFINE_bool("write", False, "write experiments/results/benchmark_scaling*.json")
DEBUG = flags.DEFINE_bool("debug", False, "show the traceback of a user error")


def show(row: list) -> None:
    """Prints a row without harm to the progress bar."""
    tqdm.write("  ".join(map(format_cell, row)))


def growth(progress: Callable[[], Any]) -> list[list]:
    """Rows of all that grows."""
    model = fresh("", SMALLEST if QUICK.value else TINY)
    trainers = {
        name: scaling_growth.Trainer(model.policy, model.params, name) for name in ("grpo", "bpo")
    }
    rows = []
    for axis in axes(QUICK.value):
        found = {
            size: scaling_growth.compete(trainers, shape, REPETITIONS.value, SEED.value, progress)
            for size, shape in axis.shapes.items()
        }
        for row in scaling_growth.growth_rows(axis, found):
            show(row)
            rows.append(row)
    return rows


def devices(progress: Callable[[], Any]) -> list[list]:
    """Rows of all numbers of devices."""
    rows = []
    for number in (2,) if QUICK.value else (1, 2, 4):
        loads = scaling_devices.loads(QUICK.value, number, SEED.value)
        answers = scaling_devices.compete(loads, REPETITIONS.value, progress)
        for row in scaling_devices.device_rows(number, answers):
            show(row)
            rows.append(row)
    return rows


def main() -> None:
    """Measures, prints each row as it comes, and writes tables and figure when asked to."""
    if WRITE.value and (QUICK.value or set(PARTS.value) != set(COLUMNS)):
        raise ValueError("--write takes a full run: leave out --quick and --part")
    rows = {}
    for part, measure in (("growth", growth), ("devices", devices)):
        if part in PARTS.value:
            with tqdm(desc=part, unit="step") as bar:
                show(COLUMNS[part])
                rows[part] = measure(bar.update)
    if WRITE.value:
        for path in write_tables(rows, REPETITIONS.value, SEED.value):
            print(f"wrote {path}")


if __name__ == "__main__":
    run_main(main)
