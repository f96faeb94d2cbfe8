"""Writes report.html of a run: one self-contained page, from whatever has been written so far.

Where rollouts branched, trees.html is another: `report.html` links to it.
"""

import functools
import os
from collections.abc import Callable
from pathlib import Path

from . import page
from .files import replace_text
from .page import Html, tag
from .report_details import counters_section, samples_section, settings_section
from .report_matches import matches_section
from .report_policy import policy_section
from .report_sections import (
    STAGE_LABELS,
    curves_section,
    header,
    nash_conv_section,
    summary_section,
)
from .report_tasks import tasks_section
from .report_time import time_section
from .report_trees import TREES, trees_section
from .run_data import RunData, read_run
from .tree_page import render_trees

_OF_GAME_TREES = (
    "nashconv",
    "policy",
)  # sections of games that are walked whole: those leave tables
_OF_GAMES, _OF_TASKS = ("matches",), ("tasks",)


def render_report(run: RunData) -> str:
    """The page as text: a function of the run's content alone, so equal runs give equal pages.

    Plots are inline SVG and the style sheet is inline: nothing is fetched when the page is opened.
    Text from the run (samples, config, keys) is escaped. A section that fails on the run's content
    becomes a note in its place.
    """
    builders = [
        ("summary", "Summary", summary_section),
        ("tasks", "Tasks", tasks_section),
        ("nashconv", "NashConv", nash_conv_section),
        *(
            (
                f"curves-{stage or 'unnamed'}",
                f"{STAGE_LABELS.get(stage, stage)} curves",
                functools.partial(curves_section, stage=stage),
            )
            for stage in run.stages()
        ),
        ("trees", "Trees", trees_section),
        ("policy", "Policy table", policy_section),
        ("matches", "Match play", matches_section),
        ("samples", "Samples", samples_section),
        ("counters", "Failures", counters_section),
        ("time", "Time", time_section),
        ("settings", "Settings", settings_section),
    ]
    sections = [
        (identity, title, _section(identity, title, build, run))
        for identity, title, build in builders
        if identity not in _left_out(run)
    ]
    return page.document(
        f"Run {run.path.resolve().name}", _section("header", "Header", header, run), sections
    )


def _left_out(run: RunData) -> tuple[str, ...]:
    """Sections that say nothing of a run of this sort."""
    branching = () if run.trees else ("trees",)
    if run.tasks:
        return _OF_GAME_TREES + _OF_GAMES + branching
    games = () if run.tables or not run.summary else _OF_GAME_TREES
    return _OF_TASKS + games + branching


def _section(identity: str, title: str, build: Callable[[RunData], Html], run: RunData) -> Html:
    """What `build` makes of the run; a section that says why where the content breaks it."""
    try:
        return build(run)
    except Exception as error:  # whatever a file of the run holds, the rest of the page is shown
        what = f"This section could not be drawn: {type(error).__name__}: {error}"
        return page.section(identity, title, tag("span", what, class_="off"))


def write_report(run_directory: str | os.PathLike) -> Path:
    """Reads a run directory, whole or partial, and writes its report.html and trees.html.

    Args:
      run_directory: `runs/<name>`; the layout is in `run_data`. Missing and broken files give a
        page that says so.

    Returns:
      Path of report.html. Pages are replaced as a whole; without trees there is no trees.html.

    Raises:
      FileNotFoundError: no such directory; the message names the nearest sibling.
    """
    run = read_run(run_directory)
    target = run.path / "report.html"
    if run.trees:
        title = f"Trees of run {run.path.resolve().name}"
        replace_text(run.path / TREES, render_trees(run.trees, title))
    replace_text(target, render_report(run))
    return target
