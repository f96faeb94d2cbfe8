"""Where the time of a run went: seconds of a step by phase, and what was compiled when."""

import math
import statistics

from . import page, plots
from .page import Html, number, tag
from .report_sections import STAGE_LABELS
from .run_data import RunData, to_number

# Phases of a step that follow each other, and their names on the page.
PHASES = {
    "generate": "generate",
    "environment": "wait for sandboxes",
    "score": "score and pack",
    "update": "update",
    "compile": "compile",
    "evaluate": "judge",
    "save": "save",
}
_COUNTS = ("compiled/", "loaded/")


def time_section(run: RunData) -> Html:
    """Seconds by phase as bars and as a table, compilations by function, the most memory held."""
    totals = _totals(run)
    phases = {
        stage: {name: sum(found[name]) for name in PHASES if name in found}
        for stage, found in totals.items()
    }
    phases = {stage: found for stage, found in phases.items() if sum(found.values()) > 0}
    if not totals:
        return page.section("time", "Time", "No timings were written yet.")
    shares = {
        STAGE_LABELS.get(stage, stage): {PHASES[name]: s for name, s in found.items()}
        for stage, found in phases.items()
    }
    chart = plots.share_chart(shares, title="Seconds of all steps by phase") if shares else ""
    return page.section(
        "time",
        "Time",
        "Wall-clock seconds of the steps of a stage. Phases follow each other; compiling, with "
        "tracing and lowering, stands for itself. Judging and saving are of the steps with any.",
        page.figure(chart, "Phases in the order of a step.") if chart else "",
        _phases_table(totals),
        _compilations(totals),
        _memory(totals),
    )


def _totals(run: RunData) -> dict[str, dict[str, list[float]]]:
    """Stage -> key -> its finite values, in the order of the steps."""
    totals: dict[str, dict[str, list[float]]] = {}
    for line in run.timings:
        for key, value in line.items():
            amount = to_number(value)
            if key not in ("stage", "step") and amount is not None and math.isfinite(amount):
                stage = totals.setdefault(str(line.get("stage", "")), {})
                stage.setdefault(key, []).append(amount)
    return totals


def _phases_table(totals) -> Html:
    """Phases first, in their order; then seconds of what goes on beside them, without a share."""
    rows = []
    for stage, found in totals.items():
        seconds = {k: v for k, v in found.items() if not k.startswith(_COUNTS)}
        seconds = {k: v for k, v in seconds.items() if not k.endswith("_bytes")}
        whole = sum(sum(values) for key, values in seconds.items() if key in PHASES)
        for key in sorted(seconds, key=lambda key: (key not in PHASES, [*PHASES, key].index(key))):
            values = seconds[key]
            share = f"{sum(values) / whole:.1%}" if key in PHASES and whole > 0 else ""
            rows.append(
                [
                    stage, PHASES.get(key, key), number(statistics.median(values), 3),
                    number(sum(values) / len(values), 3), number(sum(values), 1), share,
                    len(values),
                ]
            )  # fmt: skip
    headers = ["Stage", "Phase", "Median of a step", "Mean", "Sum", "Share", "Steps"]
    return page.table(headers, rows, classes=["", "", "n", "n", "n", "n", "n"])


def _compilations(totals) -> Html:
    """How often each function was compiled, or loaded from the persistent cache."""
    rows = []
    for stage, found in totals.items():
        names = sorted({key.partition("/")[2] for key in found if key.startswith(_COUNTS)})
        for name in names:
            counts = [int(sum(found.get(kind + name, ()))) for kind in _COUNTS]
            rows.append([stage, tag("code", name), *counts])
    if not rows:
        return Html("")
    rows.sort(key=lambda row: (list(totals).index(row[0]), -row[2], -row[3]))
    table = page.table(
        ["Stage", "Function", "Compiled", "Loaded"], rows, classes=["", "", "n", "n"]
    )
    several = sum(row[2] for row in rows), sum(row[3] for row in rows)
    title = f"Compilations ({several[0]} programs compiled, {several[1]} loaded from the cache)"
    return page.details(title, table)


def _memory(totals) -> Html:
    """The most that was held, by stage."""
    rows = [
        [stage, key.removesuffix("_bytes"), number(max(values) / 1e9, 3)]
        for stage, found in totals.items()
        for key, values in found.items()
        if key.endswith("_bytes")
    ]
    if not rows:
        return Html("")
    table = page.table(["Stage", "Key", "Largest, GB"], rows, classes=["", "", "n"])
    return page.join([tag("h3", "Memory"), table])
