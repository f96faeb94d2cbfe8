"""Line charts, bars and the policy chart of a report, as inline SVG text.

Figures are built without pyplot, so no global figure state or display is touched. The SVG carries
no metadata, no document type and no name space, hence no address of any kind: it is valid inside an
HTML page only. Equal input gives equal text.
"""

import io
import math
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import matplotlib
import numpy as np
from matplotlib.figure import Figure

INK = "#1f2933"
MUTED = "#7b8794"
GRID = "#e4e7eb"
ALARM = "#c62828"
COLORS = ("#1f5fa8", "#d1751c", "#2e7d4f", "#8e4fa8", "#6b5b4b", "#b23a5a")
STAGE_COLORS = {
    "untrained": "#9aa5b1",
    "base": "#9aa5b1",
    "uniform": "#c3ccd5",
    "sft": "#d1751c",
    "sepo": "#1f5fa8",
    "rl": "#1f5fa8",
    "best_pure": "#8e4fa8",
    "best_known": "#2e7d4f",
}
STAGE_MARKERS = {"untrained": "x", "base": "x", "uniform": "|", "sft": "s", "sepo": "o"}
_MAX_POINTS = 400
_MARKED = 12  # a curve of so few points has marks
_MOST_NAMES, _MOST_LETTERS = 9, 30  # below the bars of a chart
_LARGEST = 1e30  # far below where differences and tick positions overflow
_STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "report",
    "font.family": "sans-serif",
    "font.size": 8.5,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": GRID,
    "text.color": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "legend.frameon": False,
    "legend.fontsize": 7.5,
    "text.parse_math": False,
}


class Series(NamedTuple):
    """One curve: steps [n], values [n], and its name.

    Values that are not `drawable` are drawn as a gap and a mark; steps must be.
    """

    steps: Sequence[float]
    values: Sequence[float]
    name: str


class Reference(NamedTuple):
    """A horizontal line at `value` with its name."""

    value: float
    name: str


def drawable(value: float) -> bool:
    """False for NaN, infinities and numbers beyond 1e30, which no axis can hold."""
    return abs(value) <= _LARGEST


def line_chart(series: Sequence[Series], *, title: str, color: str = COLORS[0]) -> str:
    """One panel with one or more curves over the steps of a stage.

    Args:
      series: the curves; more than one get a legend.
      title: heading of the panel: what the vertical axis shows.
      color: colour of the first curve.

    Returns:
      SVG text.
    """
    palette = [color, *(other for other in COLORS if other != color)]
    with matplotlib.rc_context(_STYLE):
        # Fixed margins: a page has dozens of these, and a layout solver doubles their time.
        figure = Figure(figsize=(3.7, 2.25))
        figure.subplots_adjust(left=0.18, right=0.97, top=0.88, bottom=0.2)
        axes = figure.add_subplot()
        for index, curve in enumerate(series):
            _draw(axes, curve, palette[index % len(palette)])
        axes.set_title(_plain(title))
        axes.set_xlabel("step")
        _axis_style(axes)
        _flat_limits(axes, series)
        if len(series) > 1:
            axes.legend(loc="best")
        return _svg(figure, title)


def stage_chart(
    stages: Mapping[str, Series],
    *,
    title: str,
    label: str,
    references: Sequence[Reference] = (),
) -> str:
    """One measure through all stages, side by side on one vertical axis, with reference lines.

    Args:
      stages: stage name -> its curve, in the order of training.
      title: heading.
      label: what the vertical axis shows.
      references: horizontal lines through every stage, named at the right edge.

    Returns:
      SVG text.
    """
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(9.4, 3.4), layout="constrained")
        # A short stage keeps a readable width beside a long one.
        spans = [max(_span(curve.steps), 1.0) for curve in stages.values()]
        widths = [max(span / max(spans), 0.4) for span in spans]
        panels = figure.subplots(
            1, len(stages), sharey=True, squeeze=False, gridspec_kw={"width_ratios": widths}
        )[0]
        for axes, (stage, curve) in zip(panels, stages.items(), strict=True):
            _draw(axes, curve, STAGE_COLORS.get(stage, COLORS[2]), markers=True)
            axes.set_title(stage.upper() if stage in ("sft", "sepo", "rl") else _plain(stage))
            axes.set_xlabel("step")
            _axis_style(axes)
            for reference in references:
                axes.axhline(reference.value, color=MUTED, linewidth=1, linestyle=(0, (4, 3)))
        panels[0].set_ylabel(label)
        for reference in references:
            panels[-1].annotate(
                f" {reference.name} {0.0 if abs(reference.value) < 1e-9 else reference.value:.4g}",
                xy=(1.0, reference.value),
                xycoords=("axes fraction", "data"),
                va="center",
                color=INK,
                fontsize=8,
                annotation_clip=False,
            )
        low = min([0.0, *(reference.value for reference in references)])
        panels[0].set_ylim(bottom=low - 0.03 * (panels[0].get_ylim()[1] - low))
        return _svg(figure, title)


class Line(NamedTuple):
    """A line of a `curve_chart`: x [n], y [n], its colour, and whether it is dashed."""

    x: Sequence[float]
    y: Sequence[float]
    color: str
    dashed: bool


def curve_chart(lines: Sequence[Line], *, title: str, x_label: str, y_label: str) -> str:
    """One panel of lines that the page names beside it.

    Args:
      lines: all points of them are drawn, with marks when they are few; gaps where a number is not
        `drawable`.
      title, x_label, y_label: heading and axes. An axis of shares runs from 0 to 1.

    Returns:
      SVG text.
    """
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(3.7, 2.5))
        figure.subplots_adjust(left=0.16, right=0.97, top=0.89, bottom=0.19)
        axes = figure.add_subplot()
        for line in lines:
            x, y = (np.asarray(numbers, float) for numbers in (line.x, line.y))
            shown = (np.abs(x) <= _LARGEST) & (np.abs(y) <= _LARGEST)
            axes.plot(
                np.where(shown, x, np.nan),
                np.where(shown, y, np.nan),
                color=line.color,
                linestyle=(0, (4, 2)) if line.dashed else "-",
                linewidth=1.4 if line.dashed else 1.8,
                marker="o" if len(x) <= _MARKED else None,
                markersize=3.2,
                clip_on=False,
            )
        values = [value for line in lines for value in line.y if drawable(value)]
        if all(0 <= value <= 1 for value in values):
            axes.set_ylim(-0.02, 1.02)
        if all(float(place).is_integer() for line in lines for place in line.x):
            axes.xaxis.get_major_locator().set_params(integer=True)
        axes.set_title(_plain(title))
        axes.set_xlabel(_plain(x_label))
        axes.set_ylabel(_plain(y_label))
        return _svg(figure, title)


class PolicyRow(NamedTuple):
    """One information set: its label, its range (low, high), and stage -> probability."""

    label: str
    low: float
    high: float
    stages: Mapping[str, float]


def policy_chart(rows: Sequence[PolicyRow], *, title: str, label: str) -> str:
    """Probabilities of the second action beside the range that equilibria allow.

    Args:
      rows: one information set each, top to bottom.
      title: heading.
      label: what the horizontal axis shows.

    Returns:
      SVG text.
    """
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(9.4, 0.6 + 0.29 * len(rows)), layout="constrained")
        axes = figure.add_subplot()
        places = np.arange(len(rows))
        for place, row in zip(places, rows, strict=True):
            # A range that is a single point is widened by the mark's own width only.
            width = max(row.high - row.low, 0.012)
            start = (row.low + row.high - width) / 2
            axes.barh(place, width, left=start, height=0.62, color="#bfe3cb", zorder=2)
        for stage in dict.fromkeys(stage for row in rows for stage in row.stages):
            axes.scatter(
                [row.stages.get(stage, math.nan) for row in rows],
                places,
                color=STAGE_COLORS.get(stage, COLORS[3]),
                marker=STAGE_MARKERS.get(stage, "D"),
                s=26,
                label=_plain(stage),
                zorder=3,
                clip_on=False,
            )
        axes.set_yticks(places, [row.label for row in rows])
        axes.tick_params(axis="y", colors=INK)
        axes.invert_yaxis()
        axes.set_xlim(-0.02, 1.02)
        axes.set_xlabel(label)
        axes.barh([0], [math.nan], color="#bfe3cb", label="range over the equilibria")
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
        return _svg(figure, title)


def bar_chart(
    labels: Sequence[str], values: Sequence[float], *, title: str, label: str = ""
) -> str:
    """Bars side by side; every one is named when they are few, else one in so many.

    Args:
      labels: a name for each bar, left to right.
      values: heights, from 0.
      title: heading.
      label: what the horizontal axis shows.

    Returns:
      SVG text.
    """
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(3.7, 2.25))
        figure.subplots_adjust(left=0.18, right=0.97, top=0.88, bottom=0.2)
        axes = figure.add_subplot()
        places = np.arange(len(values))
        axes.bar(places, values, width=0.85, color=COLORS[0], zorder=2)
        named = places[:: max(-(-len(labels) // _MOST_NAMES), 1)]
        names = [_plain(labels[place]) for place in named]
        # Long names would run into each other.
        small = sum(map(len, names)) > _MOST_LETTERS
        axes.set_xticks(named, names, fontsize=5.5 if small else None)
        axes.set_title(_plain(title))
        axes.set_xlabel(label)
        axes.grid(visible=False, axis="x")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:.4g}")
        return _svg(figure, title)


def share_chart(rows: Mapping[str, Mapping[str, float]], *, title: str) -> str:
    """SVG text of a bar for each row of {row: {part: amount from 0}}, cut into its parts."""
    parts = list(dict.fromkeys(name for row in rows.values() for name in row))
    palette = (*COLORS, MUTED)
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(9.4, 0.9 + 0.45 * len(rows)), layout="constrained")
        axes = figure.add_subplot()
        ends = np.zeros(len(rows))
        for index, part in enumerate(parts):
            sizes = np.array([row.get(part, 0.0) for row in rows.values()])
            color = palette[index % len(palette)]
            axes.barh(range(len(rows)), sizes, left=ends, color=color, label=_plain(part), zorder=2)
            ends = ends + sizes
        axes.set_yticks(range(len(rows)), [_plain(name) for name in rows])
        axes.invert_yaxis()
        axes.set_title(_plain(title))
        axes.grid(visible=False, axis="y")
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
        return _svg(figure, title)


def _draw(axes, curve: Series, color: str, markers: bool = False) -> None:
    """A curve: every point when few, else means of bins over a band from minimum to maximum."""
    steps, values = np.asarray(curve.steps, float), np.asarray(curve.values, float)
    name = _plain(curve.name)
    finite = np.abs(values) <= _LARGEST
    if finite.sum() > _MAX_POINTS:
        bins = np.array_split(np.flatnonzero(finite), _MAX_POINTS)
        centres = [steps[part].mean() for part in bins]
        low = [values[part].min() for part in bins]
        high = [values[part].max() for part in bins]
        axes.fill_between(centres, low, high, color=color, alpha=0.18, linewidth=0)
        axes.plot(centres, [values[p].mean() for p in bins], color=color, label=name)
    elif 40 < finite.sum() == len(values) and not markers:
        axes.plot(steps, values, color=color, alpha=0.3, linewidth=0.9)
        axes.plot(steps, _smooth(values), color=color, linewidth=1.6, label=name)
    else:
        dots = "o" if markers or finite.sum() <= _MARKED else None
        shown = np.where(finite, values, np.nan)
        axes.plot(steps, shown, color=color, marker=dots, markersize=3.2, linewidth=1.5, label=name)
    if (~finite).any():
        axes.plot(
            steps[~finite],
            np.full((~finite).sum(), 0.02),
            linestyle="none",
            marker="^",
            markersize=5,
            color=ALARM,
            transform=axes.get_xaxis_transform(),
        )


def _smooth(values: np.ndarray) -> np.ndarray:
    """Centred running mean over about a twentieth of the run, shorter at the ends."""
    half = max(len(values) // 40, 1)
    sums = np.concatenate([[0.0], np.cumsum(values)])
    index = np.arange(len(values))
    low, high = np.maximum(index - half, 0), np.minimum(index + half + 1, len(values))
    return (sums[high] - sums[low]) / (high - low)


def _plain(text: str) -> str:
    """A name short enough for a chart, without code points that fonts cannot draw."""
    text = text.encode("utf-8", "replace").decode("utf-8")
    text = "".join(c if c.isprintable() else " " for c in text)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _span(steps: Sequence[float]) -> float:
    return float(max(steps) - min(steps)) if len(steps) else 0.0


def _flat_limits(axes, series: Sequence[Series]) -> None:
    """A constant non-negative curve stands above a zero line, not on an invented scale."""
    values = [value for curve in series for value in curve.values if drawable(value)]
    if values and min(values) == max(values) >= 0:
        axes.set_ylim(-0.02, 1.02) if values[0] == 0 else axes.set_ylim(0, 2 * values[0])


def _axis_style(axes) -> None:
    """Whole steps below; plain numbers at the left, instead of a factor that hides the title."""

    def text(value: float, _) -> str:
        low, high = axes.get_ylim()
        return "0" if abs(value) < 1e-6 * (high - low) else f"{value:.4g}"

    axes.yaxis.set_major_formatter(text)
    axes.xaxis.get_major_locator().set_params(integer=True)


def _svg(figure: Figure, title: str) -> str:
    """Text of the figure's <svg> element alone, scalable, with a title for screen readers."""
    buffer = io.StringIO()
    none = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    figure.savefig(buffer, format="svg", metadata=none, transparent=True)
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    # Inside HTML the parser knows the SVG name space and xlink:href without being told.
    text = re.sub(r"\s+xmlns(:\w+)?=\"[^\"]*\"", "", text)
    text = re.sub(r"<!--.*?-->\s*|<style.*?</style>\s*", "", text, flags=re.DOTALL)
    # Group names repeat from figure to figure, and ids must be unique within a page.
    text = re.sub(r"<g id=\"[^\"]*\"", "<g", text)
    safe = title.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;")
    return text.replace("<svg", f'<svg role="img" aria-label="{safe}"', 1)
