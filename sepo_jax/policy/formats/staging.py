"""Directories that appear whole or not at all, and the JSON files in them."""

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def staged(directory, *, overwrite: bool = False) -> Iterator[Path]:
    """Gives an empty directory to fill; it takes the name `directory` when the block ends well.

    After an error nothing is left behind, and a directory that was there stays as it was.

    Args:
      overwrite: replace an existing directory (by a rename, at the end).

    Raises:
      FileExistsError: the name is taken and `overwrite` is False, or it is a file.
    """
    directory = Path(directory)
    if directory.exists() and not directory.is_dir():
        raise FileExistsError(f"{directory} is a file: choose another name")
    if directory.exists() and not overwrite:
        raise FileExistsError(f"{directory} exists: choose another name or pass overwrite=True")
    directory.parent.mkdir(parents=True, exist_ok=True)
    hidden = {"prefix": f".{directory.name}-", "dir": directory.parent}
    staging = Path(tempfile.mkdtemp(**hidden))
    try:
        yield staging
        staging.chmod(0o755)
        for file in staging.rglob("*"):  # some writers leave files that only the owner can read
            file.chmod(0o755 if file.is_dir() else 0o644)
        if directory.exists():
            retired = Path(tempfile.mkdtemp(**hidden))
            try:
                os.replace(directory, retired / "old")
                try:
                    os.replace(staging, directory)
                except OSError:
                    os.replace(retired / "old", directory)
                    raise
            finally:
                shutil.rmtree(retired)
        else:
            os.replace(staging, directory)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise


def write_json(path: Path, content: dict) -> None:
    """Writes a JSON file as model directories have them: indented by 2, keys sorted."""
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")
