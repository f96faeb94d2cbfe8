"""Reads a run directory as it is: whole, half-written, or with files missing.

The layout (training writes it as the run goes):

  config.json     the settings of the run
  metrics.jsonl   one line a step: {"stage": "sft" | "sepo" | "rl", "step": int, flat keys: numbers}
  timings.jsonl   one line a step: {"stage": ..., "step": ..., flat keys: seconds; "*_bytes";
                  "compiled/<function>", "loaded/<function>": programs since the line before}
  summary.json    final figures by stage under flat keys such as "sepo/nash_conv"
  tables.json     stage -> information set -> probabilities of the actions
  tasks.json      of runs over tasks, in place of tables.json: the evaluation tasks; for every
                  player what it recorded, its curves, and some episodes
  samples.jsonl   one line a sample of play
  trees.jsonl     where rollouts branch, at steps of evaluation: one prompt's trees (`tree_record`)
  versions.json   package -> version (or "versions/<package>" keys of summary.json)
  evaluation.json match play and exact values, written by experiments/evaluate.py

Reading never fails on the content of a file: what cannot be read becomes a line in `notes`, which
the report prints, so that a lost measurement is seen and not guessed.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..names import nearest

STAGES = ("sft", "sepo", "rl")
MAX_STEP = 2.0**53  # beyond it floats skip steps
_MAX_NOTES_PER_FILE = 5


@dataclass(frozen=True)
class RunData:
    """What a run directory held, with everything unreadable turned into notes.

    Attributes:
      path: the directory.
      config: content of config.json, {} when absent.
      metrics: one dict a step, in file order, last writing of a (stage, step) wins.
      timings: likewise for timings.jsonl.
      summary: flat keys to values.
      tables: stage -> information set -> list of action probabilities.
      tasks: content of tasks.json, {} for a run over games.
      samples: one dict a sample.
      trees: one dict a step that kept its trees.
      versions: package -> version.
      evaluation: content of evaluation.json, {} before experiments/evaluate.py has run.
      notes: what was missing or unreadable, as sentences.
    """

    path: Path
    config: dict[str, Any] = field(default_factory=dict)
    metrics: list[dict[str, Any]] = field(default_factory=list)
    timings: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    tables: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    tasks: dict[str, Any] = field(default_factory=dict)
    samples: list[dict[str, Any]] = field(default_factory=list)
    trees: list[dict[str, Any]] = field(default_factory=list)
    versions: dict[str, Any] = field(default_factory=dict)
    evaluation: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def stages(self) -> list[str]:
        """Stages seen in the metrics: the known order first, then others as they appear."""
        seen = dict.fromkeys(str(line.get("stage", "")) for line in self.metrics)
        return [s for s in STAGES if s in seen] + [s for s in seen if s not in STAGES]

    def series(
        self, stage: str, key: str, timings: bool = False
    ) -> tuple[list[float], list[float]]:
        """Steps and values of one metric in one stage, or of one of its timings.

        Lines without the key, and lines whose step is no finite number, are left out.
        """
        steps, values = [], []
        for line in self.timings if timings else self.metrics:
            if str(line.get("stage", "")) != stage or key not in line:
                continue
            value, step = to_number(line[key]), step_of(line)
            if value is not None and step is not None:
                steps.append(step)
                values.append(value)
        return steps, values

    def metric_keys(self, stage: str | None = None) -> list[str]:
        """Names of the numeric metrics, in order of first appearance."""
        keys: dict[str, None] = {}
        for line in self.metrics:
            if stage is not None and str(line.get("stage", "")) != stage:
                continue
            for key, value in line.items():
                if key not in ("stage", "step") and to_number(value) is not None:
                    keys.setdefault(key)
        return list(keys)


def step_of(line: Mapping[str, Any]) -> float | None:
    """The step of a line of metrics, None when it is no finite number a step can be."""
    step = to_number(line.get("step"))
    return step if step is not None and abs(step) <= MAX_STEP else None


def to_number(value: Any) -> float | None:
    """`value` as a float, or None when it is no number.

    NaN and infinities are numbers here, also written as text ("NaN", "-Infinity") or as null,
    because a diverged run writes them and its report must show them. Booleans count as 0 and 1.
    """
    if value is None:
        return math.nan
    if isinstance(value, bool | int | float):
        return _as_float(value)
    if isinstance(value, str) and value.strip().lower().lstrip("+-") in (
        "nan",
        "inf",
        "infinity",
    ):
        return float(value)
    return None


def read_run(directory: str | Path) -> RunData:
    """Reads a run directory (layout in the module docstring).

    Args:
      directory: path of an existing run directory.

    Returns:
      RunData; files that are absent or broken leave their field empty and a note.

    Raises:
      FileNotFoundError: no such directory; the message names the nearest sibling.
    """
    path = Path(directory)
    if not path.is_dir():
        raise FileNotFoundError(_missing_directory(path))
    notes: list[str] = []
    config = _read_object(path / "config.json", notes)
    summary = _read_object(path / "summary.json", notes)
    tasks = _optional_object(path / "tasks.json", notes)
    tables = {} if tasks else _read_tables(path / "tables.json", notes)
    metrics = _last_writing(_read_lines(path / "metrics.jsonl", notes), "metrics.jsonl", notes)
    without = sum(step_of(line) is None for line in metrics)
    if without:
        notes.append(f"metrics.jsonl: {without} line(s) have no finite step; no curve shows them.")
    # An interrupted run has no timings or samples yet, and versions may sit in the config.
    timings = _last_writing(_read_lines(path / "timings.jsonl", notes), "timings.jsonl", notes)
    samples = _read_lines(path / "samples.jsonl", notes)
    trees = _optional_lines(path / "trees.jsonl", notes)
    versions = _versions(path, config, summary, notes)
    evaluation = _optional_object(path / "evaluation.json", notes)
    return RunData(
        path, config, metrics, timings, summary, tables, tasks, samples, trees, versions,
        evaluation, notes,
    )  # fmt: skip


def _missing_directory(path: Path) -> str:
    parent = path.parent
    siblings = sorted(p.name for p in parent.iterdir() if p.is_dir()) if parent.is_dir() else []
    guess = nearest(path.name, siblings)
    hint = f" Did you mean {parent / guess}?" if guess else ""
    listed = f" {parent} holds: {', '.join(siblings)}." if siblings else f" {parent} holds no runs."
    return f"no run directory at {path}.{hint}{listed}"


def _as_float(value: bool | int | float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _read_text(path: Path, notes: list[str]) -> str | None:
    """Text of a file, None with a note when absent; undecodable bytes become U+FFFD."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        notes.append(f"{path.name} is not there (yet).")
    except OSError as error:
        notes.append(f"{path.name} cannot be read: {error.strerror}.")
    return None


def _read_object(path: Path, notes: list[str]) -> dict[str, Any]:
    text = _read_text(path, notes)
    if text is None:
        return {}
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        notes.append(f"{path.name} is not valid JSON ({error}); it is left out.")
        return {}
    if not isinstance(content, dict):
        notes.append(f"{path.name} holds a {type(content).__name__}, not an object; left out.")
        return {}
    return content


def _optional_object(path: Path, notes: list[str]) -> dict[str, Any]:
    """As _read_object, for files that most runs do without: absence is no note."""
    return _read_object(path, notes) if path.exists() else {}


def _optional_lines(path: Path, notes: list[str]) -> list[dict[str, Any]]:
    """As _read_lines, likewise."""
    return _read_lines(path, notes) if path.exists() else []


def _read_lines(path: Path, notes: list[str]) -> list[dict[str, Any]]:
    """Objects of a .jsonl file; broken lines (a killed run's last one) are noted and skipped."""
    text = _read_text(path, notes)
    rows, broken = [], []
    for number, line in enumerate((text or "").split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if isinstance(row, dict):
            rows.append(row)
        else:
            broken.append(number)
    if broken:
        shown = ", ".join(str(number) for number in broken[:_MAX_NOTES_PER_FILE])
        more = ", ..." if len(broken) > _MAX_NOTES_PER_FILE else ""
        notes.append(
            f"{path.name}: {len(broken)} line(s) are no JSON objects and are left out "
            f"(line {shown}{more})."
        )
    elif text is not None and not rows:
        notes.append(f"{path.name} is empty.")
    return rows


def _last_writing(rows: list[dict[str, Any]], name: str, notes: list[str]) -> list[dict[str, Any]]:
    """Rows with the last writing of each (stage, step): a resumed run repeats its last steps."""
    latest: dict[tuple[str, str], dict[str, Any]] = {}
    for row in rows:
        key = (str(row.get("stage", "")), str(row.get("step")))
        latest.pop(key, None)
        latest[key] = row
    if len(latest) < len(rows):
        notes.append(
            f"{name}: {len(rows) - len(latest)} step(s) were written more than once "
            "(a resumed run); the last writing is shown."
        )
    return list(latest.values())


def _read_tables(path: Path, notes: list[str]) -> dict[str, dict[str, list[float]]]:
    """tables.json with rows that are no lists of numbers left out and noted."""
    tables: dict[str, dict[str, list[float]]] = {}
    for stage, table in _read_object(path, notes).items():
        if not isinstance(table, Mapping):
            notes.append(f"tables.json: stage {stage!r} is no table; left out.")
            continue
        rows = {}
        for infoset, row in table.items():
            numbers = [to_number(p) for p in row] if isinstance(row, list) else []
            if not numbers or any(p is None for p in numbers):
                notes.append(f"tables.json: {stage}, {infoset}: no row of numbers; left out.")
                continue
            rows[str(infoset)] = numbers
        tables[str(stage)] = rows
    return tables


def _versions(path: Path, config: dict, summary: dict, notes: list[str]) -> dict[str, Any]:
    """Versions from versions.json, else from the summary or the config, nested or flat."""
    candidates = [summary.get("versions"), config.get("versions")]
    candidates.insert(0, _optional_object(path / "versions.json", notes))
    flat = {k.partition("/")[2]: v for k, v in summary.items() if k.startswith("versions/")}
    candidates.append(flat)
    for candidate in candidates:
        if isinstance(candidate, Mapping) and candidate:
            return dict(candidate)
    return {}
