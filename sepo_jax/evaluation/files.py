"""Text files that are replaced as a whole."""

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path


def replace_text(path: Path, text: str) -> None:
    """Writes a file beside `path` and renames it: readers see the old text or all of the new one.

    After an error the old file is as it was and nothing else is left.
    """
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(temporary, 0o644)  # mkstemp makes files that only their owner may read
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def check_writable(path: Path) -> None:
    """Makes the directory of a file that long work is to end in, and tries to write there.

    Raises:
      OSError: `path` is a directory, or no file can be written there; the message names it.
    """
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a directory; name a file to write")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        raise OSError(f"{path} cannot be written: {error}") from error


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Holds a directory against other writers that ask, without a file of its own."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
