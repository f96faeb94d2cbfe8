"""Writes report.html of a run: one self-contained page, from whatever has been written so far."""

import os
import tempfile
from pathlib import Path

from . import page
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
from .run_data import RunData, read_run


def render_report(run: RunData) -> str:
    """The page as text: a function of the run's content alone, so equal runs give equal pages.

    Plots are inline SVG and the style sheet is inline: nothing is fetched when the page is opened.
    Text from the run (samples, config, keys) is escaped.
    """
    curves = [
        (
            f"curves-{stage or 'unnamed'}",
            f"{STAGE_LABELS.get(stage, stage)} curves",
            curves_section(run, stage),
        )
        for stage in run.stages()
    ]
    sections = [
        ("summary", "Summary", summary_section(run)),
        ("nashconv", "NashConv", nash_conv_section(run)),
        *curves,
        ("policy", "Policy table", policy_section(run)),
        ("matches", "Match play", matches_section(run)),
        ("samples", "Samples", samples_section(run)),
        ("counters", "Failures", counters_section(run)),
        ("settings", "Settings", settings_section(run)),
    ]
    name = str(run.config.get("name") or run.path.resolve().name)
    return page.document(f"Run {name}", header(run), sections)


def write_report(run_directory: str | os.PathLike) -> Path:
    """Reads a run directory, whole or partial, and writes its report.html.

    Args:
      run_directory: `runs/<name>`; the layout is in `run_data`. Missing and broken files give a
        page that says so.

    Returns:
      Path of the page, replaced as a whole.

    Raises:
      FileNotFoundError: no such directory; the message names the nearest sibling.
    """
    run = read_run(run_directory)
    text = render_report(run)
    handle, temporary = tempfile.mkstemp(dir=run.path, prefix=".report.html.")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
    os.chmod(temporary, 0o644)  # mkstemp makes files that only their owner may read
    target = run.path / "report.html"
    os.replace(temporary, target)
    return target
