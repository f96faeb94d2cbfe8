"""What a report shows of evaluation tasks: figures by kind of task, curves, samples.

It reads `tasks.json` and knows no domain: kinds, figures and curves have the names that the domain
gave them. Every player of the run stands beside the baselines.
"""

from collections.abc import Mapping
from typing import Any

from . import page, plots
from .measures import MEASURES, canonical, describe
from .page import Html, tag
from .report_baselines import in_order, with_baselines
from .report_sections import STAGE_LABELS, figure_with_interval, is_end_of_interval
from .run_data import RunData, to_number

_OPEN_FIGURES, _OPEN_CURVES = 4, 6  # the others are folded


def tasks_section(run: RunData) -> Html:
    """A panel for each curve, and a table for each figure: kinds of tasks by players."""
    tables, panels = _tables(run), _panels(run)
    if not tables and not panels:
        lead = "The tasks of this domain are of one kind: their figures are those of the summary."
        return page.section("tasks", "Tasks", lead)
    curves = [
        page.legend(_style(run, player) for player in _players(run)),
        tag("div", *panels[:_OPEN_CURVES], class_="grid"),
        _folded("Further curves", panels[_OPEN_CURVES:], "grid"),
    ]
    return page.section(
        "tasks",
        "Tasks",
        "The evaluation tasks by their kind; every stage beside the baselines on the same tasks. A "
        "dash: not measured, or nothing to measure. Brackets: 95% interval over tasks.",
        *(curves if panels else ()),
        tag("div", *tables[:_OPEN_FIGURES], class_="inline"),
        _folded("Further figures", tables[_OPEN_FIGURES:], "inline"),
    )


def evaluation_samples(run: RunData) -> list[dict[str, Any]]:
    """Episodes of evaluation tasks that the run kept whole, of all stages."""
    found = [found.get("samples") for found in _players(run).values()]
    listed = [sample for samples in found if isinstance(samples, list) for sample in samples]
    return [sample for sample in listed if isinstance(sample, dict)]


def _tables(run: RunData) -> list[Html]:
    """Keys "<kind>/<figure>" of the summary as one table a figure."""
    stages = with_baselines(run)
    keys = dict.fromkeys(key for found in stages.values() for key in found if "/" in key)
    keys = [key for key in keys if not is_end_of_interval(key, keys)]
    shown = {stage: found for stage, found in stages.items() if any(key in found for key in keys)}
    rank = {name: place for place, name in enumerate(MEASURES)}
    names = dict.fromkeys(key.rpartition("/")[2] for key in keys)
    parts = []
    for name in sorted(names, key=lambda name: rank.get(canonical(name), len(rank))):
        own = [key for key in keys if key.rpartition("/")[2] == name]
        rows = [
            [
                key.rpartition("/")[0],
                *(figure_with_interval(found, key) for found in shown.values()),
            ]
            for key in own
        ]
        measure = describe(name)
        arrow = {"lower": "\u00a0↓", "higher": "\u00a0↑"}.get(measure.better, "")
        headers = ["Kind of task", *(STAGE_LABELS.get(stage, stage) for stage in shown)]
        table = page.table(headers, rows, classes=["w", *["n"] * len(shown)])
        parts.append(
            page.join(
                [
                    tag("h3", measure.label, arrow),
                    tag("p", measure.sentence, class_="lead"),
                    table,
                ]
            )
        )
    return parts


def _panels(run: RunData) -> list[Html]:
    """One chart a title, with a line for each player that has this curve."""
    lines: dict[str, list[plots.Line]] = {}
    labels: dict[str, tuple[str, str]] = {}
    for player, found in _players(run).items():
        curves = found.get("curves")
        for title, curve in curves.items() if isinstance(curves, Mapping) else ():
            x, y = (_numbers(curve, axis) for axis in ("x", "y"))
            if not x or len(x) != len(y):
                continue
            _, color, dashed = _style(run, player)
            lines.setdefault(title, []).append(plots.Line(x, y, color, dashed))
            labels[title] = (str(curve.get("x_label", "")), str(curve.get("y_label", "")))
    charts = []
    for title, drawn in lines.items():
        x_label, y_label = labels[title]
        chart = plots.curve_chart(drawn, title=title, x_label=x_label, y_label=y_label)
        charts.append(page.figure(chart, ""))
    return charts


def _numbers(curve: Any, axis: str) -> list[float]:
    """The numbers of one axis, [] for anything else."""
    values = curve.get(axis) if isinstance(curve, Mapping) else None
    numbers = [to_number(value) for value in values] if isinstance(values, list) else []
    return [] if any(number is None for number in numbers) else numbers


def _players(run: RunData) -> dict[str, Mapping[str, Any]]:
    """Players of tasks.json in the order of a page."""
    players = run.tasks.get("players")
    known = players.items() if isinstance(players, Mapping) else ()
    return in_order({name: found for name, found in known if isinstance(found, Mapping)})


def _style(run: RunData, player: str) -> tuple[str, str, bool]:
    """Label, colour, and whether it is a baseline, which is dashed."""
    players = _players(run)
    others = [name for name in players if name not in plots.STAGE_COLORS]
    color = plots.STAGE_COLORS.get(player)
    if color is None:
        color = plots.COLORS[others.index(player) % len(plots.COLORS)]
    return STAGE_LABELS.get(player, player), color, "step" not in players[player]


def _folded(title: str, parts: list[Html], class_: str) -> Html:
    if not parts:
        return Html("")
    return page.details(f"{title} ({len(parts)})", tag("div", *parts, class_=class_))
