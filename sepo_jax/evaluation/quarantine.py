"""Files of tasks whose tests do not say the same every time, which a domain leaves out."""

import json
import os
from pathlib import Path
from typing import Any

from ..sandbox.repository_checks import Checked
from .files import replace_text

FORMAT = "sepo_jax.quarantine.1"


def write_quarantine(path: str | os.PathLike, checked: Checked, times: int) -> Path:
    """Writes what `read_quarantine` reads: the tasks that are not sound, with reasons, in JSON."""
    record = {
        "format": FORMAT,
        "times": times,
        "checked": len(checked.sound) + len(checked.quarantined),
        "quarantined": [{"task": task, "reason": why} for task, why in checked.quarantined],
    }
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_text(path, json.dumps(record, indent=1) + "\n")
    return path


def read_quarantine(path: str | os.PathLike) -> list[tuple[Any, str]]:
    """(task, reason) of the tasks that a file of `write_quarantine` lists.

    Raises:
      FileNotFoundError: no such file.
      ValueError: a file of another format.
    """
    path = Path(path)
    how = f"experiments/check_tasks.py --output={path} writes one"
    if not path.is_file():
        raise FileNotFoundError(f"no file {path} of quarantined tasks; {how}")
    try:
        record = json.loads(path.read_bytes())
    except ValueError as error:
        raise ValueError(
            f"{path} is no file of quarantined tasks, not JSON: {error}; {how}"
        ) from None
    given = record.get("format") if isinstance(record, dict) else None
    if given != FORMAT:
        raise ValueError(f"{path} has format {given!r}, expected {FORMAT!r}; {how}")
    listed = record.get("quarantined")
    whole = isinstance(listed, list) and all(
        isinstance(each, dict) and isinstance(each.get("reason"), str) and "task" in each
        for each in listed
    )
    if not whole:
        raise ValueError(f"{path} lists no 'quarantined' tasks with 'task' and 'reason'; {how}")
    return [(each["task"], each["reason"]) for each in listed]
