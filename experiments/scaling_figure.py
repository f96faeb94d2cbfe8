"""The figure of `benchmark_scaling.py`: a panel for each thing that grows, and weak scaling."""

from collections.abc import Sequence
from pathlib import Path

from scaling_devices import ALONE, KINDS
from scaling_devices import COLUMNS as DEVICE_COLUMNS
from scaling_growth import COLUMNS as GROWTH_COLUMNS
from scaling_work import SEPARATE, SHARED

from sepo_jax.evaluation.panels import write_panels
from sepo_jax.evaluation.plots import COLORS

_STYLE = {"svg.hashsalt": "scaling", "legend.frameon": False, "legend.fontsize": 7.5}


def draw(path: Path, growth: Sequence[Sequence], devices: Sequence[Sequence]) -> Path:
    """Writes seconds of a step by size, and of a decode and an update by devices, all from zero.

    Args:
      path: of the file.
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
    return write_panels(path, panels, _draw_panel, (3.4, 2.5), _STYLE)


def _by_name(growth: Sequence[Sequence]) -> dict[str, list[Sequence]]:
    """Rows of sizes by what grows; those of differences have a text in place of a size."""
    panels: dict[str, list[Sequence]] = {}
    for row in growth:
        if isinstance(row[1], int):
            panels.setdefault(row[0], []).append(row)
    return panels


def _draw_panel(axes, panel: tuple) -> None:
    title, columns, column, sides, rows = panel
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
