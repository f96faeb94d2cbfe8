"""The figure of `benchmark_scaling.py`: a panel for each thing that grows, and weak scaling."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure
from scaling_devices import ALONE, KINDS
from scaling_devices import COLUMNS as DEVICE_COLUMNS
from scaling_growth import COLUMNS as GROWTH_COLUMNS
from scaling_work import SEPARATE, SHARED

from sepo_jax.evaluation.plots import COLORS, GRID, INK, MUTED

_STYLE = {
    "svg.hashsalt": "scaling",
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 8.5,
    "axes.edgecolor": MUTED,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": GRID,
    "text.color": INK,
    "axes.titlesize": 9.0,
    "axes.titlelocation": "left",
    "legend.frameon": False,
    "legend.fontsize": 7.5,
}
_WIDE = 3  # panels in a row


def draw(growth: Sequence[Sequence], devices: Sequence[Sequence]) -> Figure:
    """Seconds of a step by size, and of a decode and an update by devices, all from zero.

    Args:
      growth: rows with the columns of `scaling_growth`, of which those of sizes are drawn.
      devices: rows with the columns of `scaling_devices`.
    """
    panels = [
        (name, GROWTH_COLUMNS, "step s", (SHARED, SEPARATE), rows)
        for name, rows in _by_name(growth).items()
    ]
    panels += [
        (f"devices, equal work for each: {phase}", DEVICE_COLUMNS, f"{phase} s", KINDS, devices)
        for phase in ("generate", "update")
        if devices
    ]
    rows = -(-len(panels) // _WIDE)
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(3.4 * _WIDE, 2.5 * rows), layout="constrained")
        figure.patch.set_facecolor("white")  # pages in dark mode show the file as it is
        places = figure.subplots(rows, _WIDE, squeeze=False).ravel()
        for axes, panel in zip(places, panels, strict=False):
            _draw_panel(axes, *panel)
        for axes in places[len(panels) :]:
            axes.set_visible(False)
    return figure


def save(figure: Figure, path: Path) -> Path:
    """Writes the figure as SVG, in a directory that is made where it is absent; equal input gives
    equal bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(_STYLE):
        figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})
    return path


def _by_name(growth: Sequence[Sequence]) -> dict[str, list[Sequence]]:
    """Rows of sizes by what grows; those of differences have a text in place of a size."""
    panels: dict[str, list[Sequence]] = {}
    for row in growth:
        if isinstance(row[1], int):
            panels.setdefault(row[0], []).append(row)
    return panels


def _draw_panel(axes, title, columns, column, sides, rows) -> None:
    size, side, value = (columns.index(name) for name in (_size_of(columns), "side", column))
    for color, name in zip(COLORS, sides, strict=False):
        points = [(row[size], row[value]) for row in rows if row[side] == name]
        points = [point for point in points if point[1] is not None]
        if points:
            label = f"{name}, all the work" if name == ALONE else name
            axes.plot(*zip(*points, strict=True), "o-", color=color, label=label, markersize=3.5)
    axes.set_ylim(bottom=0)
    axes.set_xlim(left=0)
    axes.set_xticks(sorted({row[size] for row in rows}))
    axes.set_title(title)
    axes.set_ylabel("seconds")
    axes.legend()


def _size_of(columns: Sequence[str]) -> str:
    return "size" if "size" in columns else "devices"
