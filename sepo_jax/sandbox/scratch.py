"""Directories that a process owns for as long as it lives.

A file inside is locked by the owner. The lock ends with the process, however it ends, so whoever
comes next can tell what is left over from what is in use, and removes it.
"""

import contextlib
import errno
import fcntl
import os
import secrets
import stat
import tempfile
import warnings
import weakref
from pathlib import Path

LOCK = ".lock"
ATTEMPTS = 5  # to remove a directory that a dying process still writes into


class Scratch:
    """One directory under the temporary directory, with fresh directories inside for others.

    It goes at `close`, at the end of a `with` block, when the object is lost, or when the
    interpreter exits; after a kill, when the same user makes the next one of the same prefix. A
    forked child owns nothing: there, none of these removes anything.

    Attributes:
      path: the directory.
    """

    def __init__(self, prefix: str = "sepo_jax-"):
        """Makes the directory, and first removes those of the same prefix whose owner is dead.

        Raises ValueError for a prefix that is empty or no plain name.
        """
        _check_name("prefix", prefix)
        place = Path(tempfile.gettempdir())
        _sweep(place, prefix)
        self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=place))
        # Locked under another name first, so that nobody ever sees a lock file without its lock.
        waiting = self.path / (LOCK + ".new")
        try:
            lock = os.open(waiting, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(lock, fcntl.LOCK_EX)
            waiting.rename(self.path / LOCK)
        except OSError:
            _remove(self.path)
            raise
        self._end = weakref.finalize(self, _give_back, self.path, lock, os.getpid())

    def make(self, name: str) -> Path:
        """A fresh empty directory inside; its name begins with `name`.

        Raises ValueError for a name that is empty or no plain name, or when closed.
        """
        _check_name("name", name)
        self._check_open()
        return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self.path))

    def remove(self, path: Path) -> None:
        """Removes a directory that `make` gave, with all it holds; one that is gone is fine.

        Raises ValueError for any other path.
        """
        path = Path(path)
        if path.parent != self.path or path.name in ("", ".", "..", LOCK):
            raise ValueError(
                f"{path} is not a directory that make() gave: those are in {self.path}"
            )
        if self._end.alive:
            _remove(path)

    def close(self) -> None:
        """Removes the directory with all it holds; again is fine."""
        self._end()

    def _check_open(self) -> None:
        if not self._end.alive:
            raise ValueError(f"the scratch directory {self.path} is closed; make a new Scratch")

    def __enter__(self) -> "Scratch":
        self._check_open()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def empty_directory(path: Path) -> None:
    """Removes all that a directory holds, however deep and whatever the modes; follows no link.

    Raises OSError for what will not go, or what is no directory.
    """
    top = _open_directory(str(path), None)
    try:
        _empty(top)
    finally:
        os.close(top)


def _check_name(kind: str, name: str) -> None:
    if not isinstance(name, str) or not name or name.startswith(".") or "/" in name or "\0" in name:
        raise ValueError(
            f"the {kind} of a scratch directory is a file name that does not begin with a dot, "
            f"not {name!r}"
        )


def _give_back(path: Path, lock: int, owner: int) -> None:
    """Removes the directory of an owner, unless this process is a forked copy of it."""
    if os.getpid() == owner:
        _remove(path)
        os.close(lock)


def _sweep(place: Path, prefix: str) -> None:
    """Removes directories of this user whose name begins with `prefix` and whose lock is free."""
    for entry in os.scandir(place):
        if not entry.name.startswith(prefix):
            continue
        with contextlib.suppress(OSError):
            about = entry.stat(follow_symlinks=False)
            if stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid():
                _remove_if_free(Path(entry.path))


def _remove_if_free(path: Path) -> None:
    """Removes a directory when its lock file is there and can be locked; OSError otherwise."""
    lock = os.open(path / LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _remove(path)
    finally:
        os.close(lock)


def _remove(path: Path) -> None:
    """Removes a directory and all in it, whatever their modes; warns of what will not go."""
    problem = None
    for _ in range(ATTEMPTS):
        try:
            _remove_once(path)
        except FileNotFoundError:
            return
        except OSError as error:
            problem = error
            if error.errno != errno.ENOTEMPTY:
                break
        else:
            return
    warnings.warn(f"the scratch directory {path} is not wholly removed: {problem}", stacklevel=2)


def _remove_once(path: Path) -> None:
    top = _open_directory(str(path), None)
    try:
        _empty(top, spare=LOCK)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(LOCK, dir_fd=top)
    finally:
        os.close(top)
    path.rmdir()


def _empty(top: int, spare: str = "") -> None:
    """Removes all in an open directory but the name to spare: a lock file goes last.

    Directories further down are moved up before they are emptied, so that no depth is too deep
    for paths, open files or recursion. Links are removed, never followed.
    """
    token = secrets.token_hex(8)
    names = [name for name in os.listdir(top) if name != spare]
    moved = 0
    while names:
        name = names.pop()
        if _unlink(name, top):
            continue
        directory = _open_directory(name, top)
        try:
            for inner in os.listdir(directory):
                if not _unlink(inner, directory):
                    # Moving a directory writes its "..": it must be writable itself.
                    os.close(_open_directory(inner, directory))
                    moved += 1
                    higher = f"{token}-{moved}"
                    os.rename(inner, higher, src_dir_fd=directory, dst_dir_fd=top)
                    names.append(higher)
        finally:
            os.close(directory)
        os.rmdir(name, dir_fd=top)


def _unlink(name: str, directory: int) -> bool:
    """Removes what is no directory; False for a directory. What is gone already is fine."""
    try:
        os.unlink(name, dir_fd=directory)
    except IsADirectoryError:
        return False
    except FileNotFoundError:
        pass
    return True


def _open_directory(name: str, place: int | None) -> int:
    """Opens a directory inside another, never through a link, and lets its owner do all in it."""
    flags = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    handle = os.open(name, os.O_PATH | flags, dir_fd=place)
    try:
        # Through the handle, so that what stands under the name cannot be swapped in between.
        with contextlib.suppress(PermissionError):
            os.chmod(f"/proc/self/fd/{handle}", stat.S_IRWXU)
        return os.open(".", os.O_RDONLY | flags, dir_fd=handle)
    finally:
        os.close(handle)
