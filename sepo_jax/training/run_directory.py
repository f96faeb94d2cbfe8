"""The files of a run: config, metrics, timings, samples, summary, checkpoints.

Lines are appended as the run goes; whole files are replaced by rename, so that nothing half-written
stays.
"""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..evaluation.files import replace_text
from .settings import Settings, differences, read_settings

LINE_FILES = ("metrics.jsonl", "timings.jsonl", "samples.jsonl", "trees.jsonl")


class RunDirectory:
    """`runs/<name>/`: `config.json`, `metrics.jsonl`, `timings.jsonl`, `samples.jsonl`,
    `summary.json`, `tables.json` (games) or `tasks.json` (tasks), `checkpoints/`, `policy/`,
    `report.html`; where rollouts branch also `trees.jsonl` and `trees.html`.

    Wall-clock figures live in `timings.jsonl` alone, so that the other files of two runs of one
    config are equal byte for byte.
    """

    def __init__(self, path: str | os.PathLike):
        self.path = Path(path)

    @classmethod
    def create(cls, path: str | os.PathLike, config: Mapping) -> "RunDirectory":
        """A new run.

        Raises:
          FileExistsError: the directory exists and holds something.
        """
        cls.refuse_existing(path)
        directory = cls(path)
        directory.path.mkdir(parents=True, exist_ok=True)
        directory.write_json("config.json", config)
        return directory

    @staticmethod
    def refuse_existing(path: str | os.PathLike) -> None:
        """Raises FileExistsError when the directory exists and holds something."""
        if Path(path).exists() and any(Path(path).iterdir()):
            raise FileExistsError(
                f"run directory {path} exists. Give another name (--run=<name>, or run_directory= "
                "in Python), go on with it (--resume), or remove it."
            )

    @classmethod
    def resume(
        cls, path: str | os.PathLike, config: Mapping, allow_change: tuple[str, ...] = ()
    ) -> "RunDirectory":
        """An existing run, whose config must equal `config` but for the keys in `allow_change`.

        Raises:
          FileNotFoundError: there is no such run.
          ValueError: the config differs; every difference is listed.
        """
        directory = cls(path)
        if not (directory.path / "config.json").exists():
            raise FileNotFoundError(f"no run to resume at {directory.path} (no config.json there)")
        changed = differences(directory.read_json("config.json"), config)
        unexpected = {key: pair for key, pair in changed.items() if key not in allow_change}
        if unexpected:
            lines = "".join(f"\n  {k}: {old!r} -> {new!r}" for k, (old, new) in unexpected.items())
            raise ValueError(
                f"the config differs from the one {directory.path} was started with:{lines}\n"
                f"Restore the old values or pass --allow_change={','.join(unexpected)}."
            )
        if changed:
            directory.write_json("config.json", config)
        return directory

    def append(self, name: str, record: Mapping[str, Any]) -> None:
        """Adds one JSON line. Non-finite floats are refused: a run stops before it logs them."""
        line = json.dumps(_plain(record), allow_nan=False)
        with open(self.path / name, "a", encoding="utf-8") as file:
            file.write(line + "\n")

    def lines(self, name: str) -> list[dict]:
        """All complete lines of a file; a half-written last line is left out."""
        path = self.path / name
        if not path.exists():
            return []
        records = []
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                records.append(json.loads(line))
            except json.JSONDecodeError:
                break
        return records

    def keep_lines(self, keep: Any) -> None:
        """Drops from every line file the records for which `keep(record)` is false."""
        for name in LINE_FILES:
            if (self.path / name).exists():
                kept = [record for record in self.lines(name) if keep(record)]
                text = "".join(json.dumps(record) + "\n" for record in kept)
                replace_text(self.path / name, text)

    def write_json(self, name: str, content: Mapping) -> None:
        """Replaces a JSON file as a whole."""
        text = json.dumps(_plain(content), indent=1, allow_nan=False) + "\n"
        replace_text(self.path / name, text)

    def add_json(self, name: str, content: Mapping) -> None:
        """Adds to a JSON file, new values in place of old ones."""
        self.write_json(name, self.read_json(name) | dict(content))

    def read_json(self, name: str) -> dict[str, Any]:
        """Content of a JSON file, empty where there is none."""
        path = self.path / name
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


class UnwrittenRunDirectory(RunDirectory):
    """The run directory of a process that writes nothing: whole files live in memory alone."""

    def __init__(self, path: str | os.PathLike):
        super().__init__(path)
        self._files: dict[str, dict[str, Any]] = {}

    def append(self, name: str, record: Mapping[str, Any]) -> None:
        """Drops the line."""

    def lines(self, name: str) -> list[dict]:
        """No lines."""
        return []

    def keep_lines(self, keep: Any) -> None:
        """There are none to keep."""

    def write_json(self, name: str, content: Mapping) -> None:
        """Keeps the content for `read_json`."""
        self._files[name] = dict(content)

    def read_json(self, name: str) -> dict[str, Any]:
        """What `write_json` was given last."""
        return dict(self._files.get(name, {}))


def finished_policy(path: str | os.PathLike) -> tuple[Path, Settings]:
    """The policy directory of a finished run, and the settings it was trained with.

    Raises:
      FileNotFoundError: the run has no config or no policy yet.
      ValueError: a config that cannot be read.
    """
    run = Path(path)
    if not (run / "config.json").is_file():
        raise FileNotFoundError(f"{run} is no run directory: it has no config.json")
    if not (run / "policy").is_dir():
        raise FileNotFoundError(
            f"{run} has no policy/ yet, which a run writes at its end; let it finish "
            "(experiments/train.py --resume), or evaluate another directory with --policy"
        )
    config = run / "config.json"
    try:
        return run / "policy", read_settings(json.loads(config.read_text(encoding="utf-8")))
    except ValueError as error:  # JSON and encoding errors are such
        raise ValueError(f"{config} cannot be read: {error}") from error


def _plain(value: Any) -> Any:
    """JSON types only: array scalars become numbers, tuples lists."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "item") and getattr(value, "ndim", 0) == 0:
        return value.item()
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    return value


def without_nonfinite(value: Any) -> Any:
    """JSON values with None in place of NaN and infinities, which JSON does not have."""
    if isinstance(value, Mapping):
        return {name: without_nonfinite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_nonfinite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def nonfinite(record: Mapping[str, Any]) -> str | None:
    """Name of the first entry of `record` that is NaN or infinite, or None."""
    for name, value in record.items():
        if isinstance(value, float) and not math.isfinite(value):
            return name
    return None
