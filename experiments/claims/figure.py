"""The figure of a claim: every arm's value for each seed, with the mean and its interval."""

from pathlib import Path

import numpy as np

from sepo_jax.evaluation.panels import write_panels
from sepo_jax.evaluation.plots import COLORS, MUTED
from sepo_jax.evaluation.statistics import seed_interval

from .base import Panel

_STYLE = {"svg.hashsalt": "claim", "axes.grid.axis": "x"}


def draw_claim(path: Path, title: str, panels: list[Panel]) -> Path:
    """Writes the panels of a claim, at least one, under its title; see `write_panels`."""
    most = max(len(panel.values) for panel in panels)
    return write_panels(path, panels, _draw_panel, (3.6, 0.9 + 0.34 * most), _STYLE, title)


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
