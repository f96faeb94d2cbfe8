"""The figure of a claim: every arm's value for each seed, with the mean and its interval."""

import textwrap
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from sepo_jax.evaluation.plots import COLORS, GRID, INK, MUTED
from sepo_jax.evaluation.statistics import seed_interval

from .base import Panel

_STYLE = {
    "svg.hashsalt": "claim",
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 8.5,
    "axes.edgecolor": MUTED,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "x",
    "grid.color": GRID,
    "text.color": INK,
    "axes.titlesize": 9.0,
    "axes.titlelocation": "left",
}

_LETTERS = 42  # of a title, that stand above one panel


def draw_claim(path: Path, title: str, panels: list[Panel]) -> Path:
    """Writes the panels of a claim side by side as SVG; equal input gives equal bytes.

    Args:
      path: of the file, in a directory that is made where it is absent.
      title: above all panels.
      panels: at least one.
    """
    wide = min(len(panels), 3)
    rows = -(-len(panels) // wide)
    most = max(len(panel.values) for panel in panels)
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(3.6 * wide, rows * (0.9 + 0.34 * most)), layout="constrained")
        figure.patch.set_facecolor("white")  # pages in dark mode show the file as it is
        title = textwrap.fill(title, _LETTERS * wide)
        figure.suptitle(title, fontsize=9.5, fontweight="bold", color=INK)
        places = figure.subplots(rows, wide, squeeze=False).ravel()
        for axes, panel in zip(places, panels, strict=False):
            _draw_panel(axes, panel)
        for axes in places[len(panels) :]:
            axes.set_visible(False)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})
    return path


def _draw_panel(axes, panel: Panel) -> None:
    for place, values in enumerate(panel.values.values()):
        color = COLORS[place % len(COLORS)]
        found = seed_interval(values)
        axes.plot(values, np.full(len(values), place + 0.16), "o", color=color, ms=3, alpha=0.55)
        if len(values) > 1:
            axes.plot([found.low, found.high], [place, place], color=color, linewidth=1.6)
        axes.plot(found.mean, place, "D", color=color, markersize=5)
    if panel.reference is not None:
        axes.axvline(panel.reference, color=MUTED, linewidth=1, linestyle=(0, (4, 3)))
    axes.set_yticks(range(len(panel.values)), list(panel.values))
    axes.set_ylim(len(panel.values) - 0.5, -0.5)
    axes.set_title(panel.title)
