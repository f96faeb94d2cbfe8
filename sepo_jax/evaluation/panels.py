"""Figures of panels side by side as SVG files; equal input gives equal bytes."""

import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from .plots import GRID, INK, MUTED

_STYLE = {
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
}
_WIDE = 3  # most panels in a row
_LETTERS = 42  # of a title, that stand above one panel


def write_panels(
    path: Path,
    panels: Sequence[Any],
    draw: Callable[[Any, Any], None],
    size: tuple[float, float],
    style: Mapping[str, Any],
    title: str = "",
) -> Path:
    """Writes a figure with a panel for each of `panels`.

    Args:
      path: of the file, in a directory that is made where it is absent.
      panels: at least one.
      draw: draws a panel on the axes that it gets first.
      size: of a panel, inches.
      style: of matplotlib, beside what all such figures have; "svg.hashsalt" makes bytes repeat.
      title: above all panels.
    """
    wide = min(len(panels), _WIDE)
    rows = -(-len(panels) // wide)
    with matplotlib.rc_context({**_STYLE, **style}):
        figure = Figure(figsize=(size[0] * wide, size[1] * rows), layout="constrained")
        figure.patch.set_facecolor("white")  # pages in dark mode show the file as it is
        if title:
            title = textwrap.fill(title, _LETTERS * wide)
            figure.suptitle(title, fontsize=9.5, fontweight="bold", color=INK)
        places = figure.subplots(rows, wide, squeeze=False).ravel()
        for axes, panel in zip(places, panels, strict=False):
            draw(axes, panel)
        for axes in places[len(panels) :]:
            axes.set_visible(False)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})
    return path
