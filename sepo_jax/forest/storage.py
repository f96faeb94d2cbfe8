"""A forest as one file: a zip of numpy arrays (.npz) without pickled objects."""

import json
import os
import tempfile
import zipfile
import zlib
from pathlib import Path

import numpy as np

from sepo_jax.forest.data import SEGMENT_FIELDS, TOKEN_FIELDS, Forest

FORMAT = "sepo_jax.forest.2"


def save(path: str | os.PathLike, forest: Forest) -> Path:
    """Writes the forest to one file and returns its path.

    The file appears under its name only when it is complete: a reader sees the old file, the whole
    file, or none.

    Raises:
      ValueError: a malformed forest, or metadata that JSON cannot hold.
    """
    forest.validate()
    path = Path(path)
    try:
        metadata = json.dumps(dict(forest.metadata), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"the metadata of a forest must be plain JSON: {error}") from error
    arrays = {name: getattr(forest, name) for name in (*TOKEN_FIELDS, *SEGMENT_FIELDS, "offsets")}
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            np.savez_compressed(
                file, format=np.array(FORMAT), metadata=np.array(metadata), **arrays
            )
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    return path


def load(path: str | os.PathLike) -> Forest:
    """Reads a forest written by `save` and validates it.

    Raises:
      FileNotFoundError: no such file.
      ValueError: the file is cut short, damaged, or not a forest of this format.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no forest at {path}")
    try:
        with np.load(path, allow_pickle=False) as stored:
            content = {name: stored[name] for name in stored.files}
    except (ValueError, TypeError, OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{path} is not a whole forest file: {error}") from error
    given = str(content.pop("format", "no format mark"))
    if given != FORMAT:
        raise ValueError(f"{path} has format {given!r}; this version reads {FORMAT!r}")
    expected = {*TOKEN_FIELDS, *SEGMENT_FIELDS, "offsets", "metadata"}
    if set(content) != expected:
        missing, extra = sorted(expected - set(content)), sorted(set(content) - expected)
        raise ValueError(f"{path} lacks the arrays {missing} and has the unknown arrays {extra}")
    metadata = json.loads(str(content.pop("metadata")))
    return Forest(**content, metadata=metadata).validate()
