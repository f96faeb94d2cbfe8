"""Measures claims of the papers and says which hold.

    python experiments/reproduce.py --claim=sepo/constant_penalty
    python experiments/reproduce.py --claim=sepo/all --write
    python experiments/reproduce.py --claim=matrix/all --write
    python experiments/reproduce.py --claim=bpo/all --write
    python experiments/reproduce.py --claim=srpo/all --write

A claim trains the runs it needs under --runs, for the seeds that the sweep of their config names;
runs that exist, those of `sweep.py` included, are gone on with, and claims share them. It prints a
row: what the paper says, what was found with 95% intervals, and the verdict, which is decided by
the intervals alone (`sepo_jax.evaluation.claims`). With --write the row goes to
experiments/results/claims_<family>.json beside those of other claims, the figure to figures/ there.
"""

import importlib.metadata
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from absl import flags
from claims import CLAIMS, FAMILIES, NOTES
from claims.figure import draw_claim
from tqdm import tqdm

from sepo_jax.evaluation.claims import claim_row, merge_rows, select_claims, verdict
from sepo_jax.training.command_line import run_main
from sepo_jax.training.judge import PACKAGES

ROOT = Path(__file__).resolve().parent.parent
CLAIM = flags.DEFINE_string("claim", "", "name of a claim, or <family>/all")
SEEDS = flags.DEFINE_integer(
    "seeds", None, "how many seeds, from 0; default: those of the configs' sweeps", lower_bound=1
)
RUNS = flags.DEFINE_string("runs", "runs", "directory of all runs")
RESULTS = flags.DEFINE_string(
    "results", str(ROOT / "experiments" / "results"), "directory of results files"
)
WRITE = flags.DEFINE_bool("write", False, "write the row and the figure to --results")
QUICK = flags.DEFINE_bool("quick", False, "a smoke test: a few steps, numbers that mean nothing")
DEBUG = flags.DEFINE_bool("debug", False, "show the traceback of a user error")


def reproduce(name: str, bench: Any) -> dict:
    """Measures one claim on the bench of its family and draws its figure; returns its row."""
    claim = CLAIMS[name]
    bench.start()
    measured = claim.measure(bench)
    found = verdict(measured.findings, measured.missing)
    if measured.panels:
        place = Path(RESULTS.value if WRITE.value else RUNS.value) / "figures"
        path = place / f"{name.replace('/', '_')}.svg"
        draw_claim(path, f"{name}: {found}. {claim.statement}", list(measured.panels))
        tqdm.write(f"wrote {path}")
    return claim_row(
        name,
        f"{claim.statement} ({claim.published})",
        measured.findings,
        missing=measured.missing,
        seeds=bench.measured_seeds(),
        command=command(name),
        commit=bench.commit(),
        seconds=bench.seconds(),
    )


def command(name: str) -> str:
    """What measures a claim again."""
    seeds = "" if SEEDS.value is None else f" --seeds={SEEDS.value}"
    return f"python experiments/reproduce.py --claim={name}{seeds} --write"


def write(family: str, rows: Sequence[dict]) -> Path:
    """Merges rows into the results file of a family."""
    heading = {
        "title": FAMILIES[family].title,
        "command": command(f"{family}/all"),
        "versions": {package: importlib.metadata.version(package) for package in PACKAGES},
        "notes": f"{FAMILIES[family].notes} {NOTES}",
    }
    return merge_rows(Path(RESULTS.value) / f"claims_{family}.json", rows, heading, list(CLAIMS))


def main() -> None:
    """Measures every claim asked for, one after another; each row is written when it is there."""
    names = select_claims(CLAIM.value, CLAIMS)
    if WRITE.value and QUICK.value:
        raise ValueError("numbers of --quick mean nothing: leave out --write or --quick")
    seeds = None if SEEDS.value is None else range(SEEDS.value)
    family = names[0].partition("/")[0]
    bench = FAMILIES[family].bench(seeds, Path(RUNS.value), Path(RESULTS.value), quick=QUICK.value)
    for name in tqdm(names, desc="claims"):
        row = reproduce(name, bench)
        tqdm.write(json.dumps(row, indent=1))
        if WRITE.value:
            tqdm.write(f"wrote {write(family, [row])}")


if __name__ == "__main__":
    run_main(main, cache="")
