"""What a leaf costs: branching rollouts beside as many independent ones.

    python experiments/benchmark_branching.py --write     # nine minutes on two cores
    python experiments/benchmark_branching.py --quick     # a tiny model, to see that all runs

Both sides play the same tasks over the same engine and the same environments, and get the same
number of leaves; then each takes one update on them. Trees branch at half of the episode, where
what they share counts for half. Tokens are counted and seconds measured, generation and update
apart, in turn and after compilation. --write feeds README's table.
"""

from absl import flags
from branching_sides import COLUMNS, Updater, compete, table_rows, write_table
from branching_workloads import fresh_policy, workloads
from tqdm import tqdm

from sepo_jax.evaluation.results import format_cell
from sepo_jax.rollout import Branching
from sepo_jax.training.command_line import run_main

SHAPES = ((1, 4), (2, 4), (5, 4))  # M and K
ROW_FACTORS = (1, 2, 4)  # lengths of rows that are tried, in longest paths
REPETITIONS = flags.DEFINE_integer("repetitions", 3, "measured ones of each side", lower_bound=1)
SEED = flags.DEFINE_integer("seed", 0, "seed of tasks and sampling", lower_bound=0)
QUICK = flags.DEFINE_bool("quick", False, "a tiny model, short episodes and one repetition")
WRITE = flags.DEFINE_bool("write", False, "write experiments/results/branching_speed.json")
DEBUG = flags.DEFINE_bool("debug", False, "show the traceback of a user error")


def show(row: list) -> None:
    """Prints a row without harm to the progress bar."""
    tqdm.write("  ".join(map(format_cell, row)))


def main() -> None:
    """Measures, prints the rows of each pair of sides, and writes the table when asked to."""
    if WRITE.value and QUICK.value:
        raise ValueError("--write takes a full run: leave out --quick")
    works = workloads(QUICK.value)
    shapes, repetitions = (((2, 3),), 1) if QUICK.value else (SHAPES, REPETITIONS.value)
    rows: list[list] = []
    show(COLUMNS)
    with tqdm(total=2 * len(works) * len(shapes) * (1 + repetitions), unit="play") as bar:
        for work in works:
            update = Updater(*fresh_policy(work, QUICK.value))
            for points, continuations in shapes:
                title = f"{work.title}, M={points}, K={continuations}"
                bar.set_description(title)
                branching = Branching(points, continuations)
                factors = ROW_FACTORS[:2] if QUICK.value else ROW_FACTORS
                found = compete(
                    update, work, branching, repetitions, factors, SEED.value, bar.update
                )
                rows += table_rows(title, found)
                for row in rows[-len(found) - 1 :]:
                    show(row)
    if WRITE.value:
        print(f"wrote {write_table(rows, works, repetitions, SEED.value)}")


if __name__ == "__main__":
    run_main(main)
