"""Tokens a second of rollouts with slow sandboxes, beside a loop that waits for its whole batch.

    python experiments/benchmark_rollouts.py --write        # about ten minutes on two cores
    python experiments/benchmark_rollouts.py --quick        # a tiny model, to see that all runs

Both sides play the same episodes, over the same engine and the same sandboxes; they take turns, and
must sample the same tokens. More rows measure decoding alone, by the loop on the host and by the
one inside the compiled program. --write feeds README's table. SmolLM2-135M has its published
weights after `python experiments/get_smollm2.py`, else random ones, which are as fast.
"""

from pathlib import Path

from absl import flags
from rollout_environment import SlowEnvironment
from rollout_models import Model, weights_text
from rollout_plan import (
    COLUMNS,
    Contest,
    contests,
    count_episodes,
    rehearsals,
    table_rows,
    write_table,
)
from rollout_sides import compete, play
from tqdm import tqdm

from sepo_jax.evaluation.results import format_cell
from sepo_jax.rollout.driver import DRIVERS
from sepo_jax.sandbox.process_pool import ProcessPool
from sepo_jax.sandbox.protocol import Pool
from sepo_jax.training.command_line import run_main

ROOT = Path(__file__).resolve().parents[1]
MODEL = flags.DEFINE_string("model", str(ROOT / "models" / "smollm2-135m"), "SmolLM2's directory")
DRIVER = flags.DEFINE_enum("driver", "host_loop", DRIVERS, "of the rows with sandboxes")
SEED = flags.DEFINE_integer("seed", 0, "seed of prompts, latencies and sampling", lower_bound=0)
QUICK = flags.DEFINE_bool("quick", False, "a tiny model and few episodes")
WRITE = flags.DEFINE_bool("write", False, "write experiments/results/benchmark_rollouts.json")
DEBUG = flags.DEFINE_bool("debug", False, "show the traceback of a user error")


def show(row: list) -> None:
    """Prints a row without harm to the progress bar."""
    tqdm.write("  ".join(map(format_cell, row)))


def hold(model: Model, held: list[Contest], pool: Pool, bar: tqdm) -> list[list]:
    """The rows of a model's contests, printed as they come."""
    rows, seed = [], SEED.value
    bar.set_description(f"{model.name}: compiling")
    for side, work in rehearsals(held).items():
        play(model, work, side, pool, seed, bar.update)
    for contest in held:
        bar.set_description(f"{model.name}: {contest.title}")
        sides, turns = contest.sides, contest.turns
        plays = compete(model, contest.work, sides, pool, turns, seed, bar.update)
        found = table_rows(model.name, contest, plays)
        for row in found:
            show(row)
        rows += found
    return rows


def main() -> None:
    """Measures, prints each row as it comes, and writes the table when asked to."""
    if WRITE.value and QUICK.value:
        raise ValueError("--write takes a full run: leave out --quick")
    weights = Path(MODEL.value)
    plan = contests(QUICK.value, DRIVER.value, weights)
    workers = max(contest.workers for _, held in plan for contest in held)
    total = sum(count_episodes(held) for _, held in plan)
    rows = []
    show(COLUMNS)
    with (
        ProcessPool(SlowEnvironment, workers=workers) as pool,
        tqdm(total=total, unit="episode") as bar,
    ):
        for make_model, held in plan:
            rows += hold(make_model(), held, pool, bar)
    if WRITE.value:
        described = weights_text(weights)
        print(f"wrote {write_table(rows, described, DRIVER.value, SEED.value)}")


if __name__ == "__main__":
    run_main(main)
