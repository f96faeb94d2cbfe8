"""A training run that remembers how long it took, for mains that go on with runs that exist."""

import json
import time
from pathlib import Path
from typing import Any

from sepo_jax.evaluation.files import replace_text
from sepo_jax.training import read_settings, to_dict, train
from sepo_jax.training.run_directory import RunDirectory


def train_timed(config: Any, directory: Path, progress: bool = True) -> tuple[dict, float | None]:
    """Trains a run, or goes on with it, or reads it where it is finished.

    Returns:
      Its summary, and the seconds it took; None for a run that was interrupted, whose first part
      nobody timed.

    Raises:
      ValueError: the run there has another config; other errors as of `train`.
    """
    clock, begun = directory / "seconds.json", time.perf_counter()
    resume = (directory / "config.json").exists()
    if (directory / "policy").is_dir():  # the run is finished
        run = RunDirectory.resume(directory, to_dict(read_settings(config)))
        summary = run.read_json("summary.json")
    else:
        summary = train(config, run_directory=directory, resume=resume, progress=progress).summary
    if not resume:
        replace_text(clock, json.dumps(time.perf_counter() - begun))
    return summary, json.loads(clock.read_text(encoding="utf-8")) if clock.exists() else None
