"""Tables of the README from JSON files, so that no figure in it is typed by hand.

A file experiments/results/NAME.json has exactly these keys:

  title     what the table shows, one line
  command   the literal command that wrote the file
  seeds     list of integers
  commit    revision of the source it was run with
  versions  package -> version (and "hardware" -> a description, where speed is measured)
  columns   list of headings
  rows      list of rows, a cell for every column: text, number, or null for "not measured"
  notes     what a reader must know, "" when nothing

In the README the table NAME stands between two comment lines, `<!-- results:NAME -->` and
`<!-- /results -->`; what is between them is replaced as a whole.
"""

import json
import math
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..algorithms import ALGORITHMS
from ..names import did_you_mean, unknown
from .files import replace_text

KEYS = ("title", "command", "seeds", "commit", "versions", "columns", "rows", "notes")
_BLOCK = re.compile(r"<!-- results:([\w-]*) -->\n(.*?)<!-- /results -->", re.DOTALL)
_OPENING = re.compile(r"<!-- results:")


def load_result(path: str | Path) -> dict[str, Any]:
    """Reads and checks one results file.

    Raises:
      FileNotFoundError: no such file; the nearest one is offered.
      ValueError: no JSON, a missing or unknown key, a row whose length is not that of the columns,
        or a number that is not finite; the file is named.
    """
    path = Path(path)
    if not path.is_file():
        others = sorted(p.stem for p in path.parent.glob("*.json"))
        hint = did_you_mean(path.stem, others)
        raise FileNotFoundError(
            f"no results file {path}.{hint} Present: {', '.join(others) or 'none'}. "
            "Run the command that writes it."
        )
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(result, dict):
        raise ValueError(f"{path} holds a {type(result).__name__}; expected an object with {KEYS}")
    for key in KEYS:
        if key not in result:
            raise ValueError(f"{path} lacks {key!r}; it needs {', '.join(KEYS)}")
    for key in result:
        if key not in KEYS:
            raise unknown(f"key of {path}", key, KEYS)
    width = len(result["columns"])
    for index, row in enumerate(result["rows"]):
        if len(row) != width:
            raise ValueError(
                f"{path}: row {index} has {len(row)} cells for the {width} columns "
                f"{result['columns']}"
            )
        for cell in row:
            if isinstance(cell, float) and not math.isfinite(cell):
                raise ValueError(f"{path}: row {index} holds {cell}; use null for not measured")
    return result


def write_result(path: str | Path, result: Mapping[str, Any]) -> Path:
    """Writes one results file as a whole, in a directory that is made where it is absent."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_text(path, json.dumps(result, indent=1) + "\n")
    return path


def rows_of(path: str | Path, columns: Sequence[str]) -> list[list[Any]]:
    """Rows of a results file with these columns; none where there is no file.

    To change them hold `files.locked` of the directory from here until they are written.

    Raises:
      ValueError: the file there has other columns.
    """
    path = Path(path)
    if not path.exists():
        return []
    result = load_result(path)
    if list(result["columns"]) != list(columns):
        raise ValueError(
            f"{path} is another table: it has the columns {result['columns']}, not "
            f"{list(columns)}; choose another name, or move it away"
        )
    return result["rows"]


def source_commit() -> str:
    """Revision of this package's source, or "unknown" outside a checkout."""
    try:
        found = subprocess.run(
            ["git", "rev-parse", "HEAD"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return found.stdout.strip()


def format_cell(cell: Any) -> str:
    """Text as it is; whole numbers with separators; others to 4 significant digits; null as –."""
    if cell is None:
        return "–"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, int):
        return f"{cell:,}"
    if isinstance(cell, float):
        if cell != 0 and abs(cell) < 1e-4:
            return f"{cell:.1e}"
        if abs(cell) >= 1000:
            return f"{cell:,.0f}"
        return f"{cell:.4g}"
    return str(cell).replace("|", "\\|").replace("\n", " ")


def markdown_table(columns: list[Any], rows: list[list[Any]]) -> str:
    """A Markdown table; a column in which every cell is a number or null is aligned right."""
    numeric = [
        bool(rows) and all(row[i] is None or isinstance(row[i], int | float) for row in rows)
        for i in range(len(columns))
    ]
    lines = [
        "| " + " | ".join(format_cell(column) for column in columns) + " |",
        "|" + "|".join("---:" if right else "---" for right in numeric) + "|",
    ]
    lines += ["| " + " | ".join(format_cell(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def render_result(result: Mapping[str, Any]) -> str:
    """One results file as Markdown: title, table, notes, and where the numbers come from."""
    seeds = ", ".join(str(seed) for seed in result["seeds"])
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    source = [f"`{result['command']}`"]
    source += [f"seeds {seeds}"] if seeds else []
    source += [f"commit {str(result['commit'])[:12]}"] if result["commit"] else []
    source += [versions] if versions else []
    parts = [result["title"], markdown_table(result["columns"], result["rows"])]
    parts += [result["notes"]] if result["notes"] else []
    parts.append(f"Written by {'; '.join(source)}.")
    return "\n\n".join(parts) + "\n"


def render_readme(text: str, render: Callable[[str], str]) -> str:
    """README text with every results block replaced.

    Args:
      text: the README.
      render: Markdown of the table with a given name, ending in a newline.

    Returns:
      The text; equal to the input when it was up to date.

    Raises:
      ValueError: an opening comment without a closing one, or without a name.
    """
    opened, closed = len(_OPENING.findall(text)), len(_BLOCK.findall(text))
    if opened != closed:
        raise ValueError(
            f"{opened} '<!-- results:NAME -->' comments but {closed} complete blocks; each needs "
            "its own line and a '<!-- /results -->' line after the table"
        )

    def replace(match: re.Match) -> str:
        name = match.group(1)
        if not name:
            raise ValueError("a '<!-- results: -->' comment names no results file")
        return f"<!-- results:{name} -->\n{render(name)}<!-- /results -->"

    return _BLOCK.sub(replace, text)


def render_named(name: str, directory: str | Path) -> str:
    """Markdown of the table NAME: `algorithms` from the code, any other from directory/NAME.json.

    Raises:
      FileNotFoundError, ValueError: as `load_result`.
    """
    if name == "algorithms":
        return algorithm_table() + "\n"
    return render_result(load_result(Path(directory) / f"{name}.json"))


def algorithm_table() -> str:
    """The rows of `sepo_jax.algorithms.ALGORITHMS` as a Markdown table."""
    columns = ["algorithm", "compare within", "baseline", "scale", "ratio of", "clip", "mean over"]
    scales = {"mean": "geometric mean", "sum": "sum", "sqrt": "sum / sqrt(K)"}
    rows = []
    for row in ALGORITHMS.values():
        ratio = row.ratio
        if ratio in ("sequence", "event"):
            ratio = f"{ratio} ({scales[row.ratio_scale]})"
        rows.append(
            [
                f"`{row.name}`",
                row.compare.replace("_", " "),
                row.baseline.replace("_", " "),
                row.scale,
                ratio,
                _clip_text(row.clip_low, row.clip_high),
                row.reduce.removesuffix("_mean").replace("_", " "),
            ]
        )
    return markdown_table(columns, rows)


def _clip_text(low: float | None, high: float | None) -> str:
    if low is None and high is None:
        return "none"
    ends = ["none" if end is None else f"{end:g}" for end in (low, high)]
    return ends[0] if ends[0] == ends[1] else " / ".join(ends)
