"""Figures of dry runs as a results file, of which README shows a table."""

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ..evaluation.files import locked
from ..evaluation.results import format_cell, rows_of, source_commit, write_result
from .chips import GIB
from .dry_run_report import Report, Row

COLUMNS = (
    "config", "on", "parameters, 10^9", "parameters", "optimizer", "activations", "update",
    "score", "cache", "generate", "of", "fits", "update, TFLOP",
    "update, links GB", "least step, s", "compiled in, CPU s",
)  # fmt: skip
GENERATION = ("fuse", "prefill", "decode")
_PACKAGES = ("jax", "jaxlib", "libtpu", "flax", "optax")
RESULT = Path(__file__).resolve().parents[2] / "experiments" / "results" / "dry_run.json"


def table_row(report: Report, config: str, target: str) -> list[Any]:
    """The cells of `COLUMNS`; bytes in GiB, and a lower bound where the compiler refused."""
    rows = {row.name: row for row in report.rows}
    update = rows["update"]
    kinds = update.by_kind
    times, decode = report.step_times(), rows.get("decode")
    links = update.work and sum(found.num_bytes for found in update.work.collectives.values())
    return [
        f"`{config}`",
        f"{target}, estimate" if report.estimated else target,
        round(report.num_parameters / 1e9, 2),
        *(_gib(kinds[kind]) for kind in ("parameters", "optimizer", "activations")),
        _most(rows, "update"),
        _most(rows, "score"),
        _gib(decode.by_kind["cache"]) if decode else None,
        _most(rows, *GENERATION),
        _gib(report.chip.memory) if report.chip else None,
        report.fits if report.is_whole else f"{format_cell(report.fits)}, {_named(report)} alone",
        _rounded(update.work and update.work.flops / 1e12),
        _rounded(update.work and links / 1e9),
        _rounded(times and sum(times.values())),
        None if report.estimated else round(sum(row.seconds for row in report.rows)),
    ]


def _named(report: Report) -> str:
    return " and ".join(report.parts)


def _most(rows: dict[str, Row], *names: str) -> Any:
    """GiB of the function that takes most; text where the compiler refused one of them."""
    found = [rows[name] for name in names if name in rows]
    if not found:
        return None
    most = _gib(max(row.total for row in found))
    return f"> {most}" if any(row.error for row in found) else most


def _gib(num_bytes: float) -> float:
    return round(num_bytes / GIB, 2)


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.3g}")


def write_row(report: Report, config: str, target: str, path: str | Path = RESULT) -> Path:
    """Puts the row of a report into the results file, in place of the one of the same config and
    target; rows are in the order of their names.

    Raises:
      ValueError: the file there is another table.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    row = table_row(report, config, target)
    with locked(path.parent):
        kept = {tuple(old[:2]): old for old in rows_of(path, COLUMNS)}
        kept[tuple(row[:2])] = row
        return write_result(
            path,
            {
                "title": "Training of published models on slices that are not there: GiB of one "
                "chip by function, and of the update by kind.",
                "command": "python experiments/dry_run.py --config=<config> --write",
                "seeds": [],
                "commit": source_commit(),
                "versions": _versions(),
                "columns": list(COLUMNS),
                "rows": [kept[key] for key in sorted(kept)],
                "notes": NOTES,
            },
        )


NOTES = (
    "Everything is compiled ahead of time for the slice at full size, from shapes; an estimate is "
    "arithmetic. update, score, generate: the most that a chip holds while they run, training "
    "state included; activations: all that is made meanwhile, gradients among it; > a refusal of "
    "the compiler, with the least that it needs. Each host scores and generates for itself, by a "
    "copy of the parameters that its chips share. Rows are as many and as long as the config "
    "allows. Least step: products at published peak, memory and links, whichever is longest of "
    "each function, times how often a step runs it with every slot at work; on the host's side "
    "nothing is counted."
)


def _versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
