"""A directory as bytes and back: tar archives that hold all a program in it could see, and no more.

Names, permission bits, symbolic and hard links, contents and modification times (to the nanosecond:
caches of compiled code compare them) come back as they were. Owners do not: files belong to whoever
unpacks them, and set-user-ID and set-group-ID bits are dropped. Absolute paths inside files and
links are kept as they are, so a directory that is to be restored elsewhere should hold none to
itself.
"""

import contextlib
import hashlib
import io
import os
import shutil
import stat
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from sepo_jax.sandbox.protocol import SnapshotRefused
from sepo_jax.sandbox.snapshots import content_hash

_TEXT = {"encoding": "utf-8", "errors": "surrogateescape"}
_PERMISSIONS = 0o1777
_TYPES = {
    tarfile.DIRTYPE: "directory",
    tarfile.REGTYPE: "file",
    tarfile.SYMTYPE: "link",
    tarfile.LNKTYPE: "hard link",
}
_BLOCK = 512
# Headers of an entry: one for its own, two for its time.
_HEADERS = 3 * _BLOCK


class Entry(NamedTuple):
    """One member of an archive.

    Attributes:
      name: path from the directory; "." for the directory itself.
      kind: "directory", "file", "link" (symbolic) or "hard link".
      mode: permission bits.
      modified: nanoseconds since 1970.
      link: target of a symbolic link, or the earlier entry that a hard link names.
      data: contents of a file.
    """

    name: str
    kind: str
    mode: int
    modified: int
    link: str
    data: memoryview


def pack_directory(directory: Path, max_bytes: int) -> bytes:
    """The directory as a tar archive; equal directories give equal bytes.

    Nothing should write to the directory meanwhile.

    Raises:
      SnapshotRefused: the archive would be larger than `max_bytes`, a socket, pipe or device lies
        there, or something cannot be read.
    """
    buffer = io.BytesIO()
    first: dict[tuple[int, int], str] = {}
    try:
        with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT, **_TEXT) as tar:
            for name, path, status in _walk(directory):
                member = _member(name, path, status, first)
                if buffer.tell() + _HEADERS + member.size > max_bytes:
                    raise SnapshotRefused(
                        f"the files of {directory} need more than {max_bytes} bytes (stopped at "
                        f"{name!r}); keep less there or allow more"
                    )
                data = _read(path, status, member.size) if member.isreg() else b""
                tar.addfile(member, io.BytesIO(data))
    except (OSError, RecursionError) as error:
        raise SnapshotRefused(f"the files of {directory} cannot be read: {error}") from error
    return buffer.getvalue()


def _walk(directory: Path) -> Iterator[tuple[str, str, os.stat_result]]:
    """Name, path and status of the directory and all below it, parents first, in order of names."""

    def visit(name: str, path: str) -> Iterator[tuple[str, str, os.stat_result]]:
        status = os.lstat(path)
        yield name, path, status
        if stat.S_ISDIR(status.st_mode):
            with _allowed(path, status, 0o500):
                for child in sorted(os.listdir(path)):
                    below = child if name == "." else f"{name}/{child}"
                    yield from visit(below, os.path.join(path, child))

    return visit(".", str(directory))


@contextlib.contextmanager
def _allowed(path: str, status: os.stat_result, bits: int) -> Iterator[None]:
    """Grants the owner permissions for a while, where they are missing."""
    mode = stat.S_IMODE(status.st_mode)
    if mode & bits == bits:
        yield
        return
    os.chmod(path, mode | bits)
    try:
        yield
    finally:
        os.chmod(path, mode)


def _member(
    name: str, path: str, status: os.stat_result, first: dict[tuple[int, int], str]
) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.mode = stat.S_IMODE(status.st_mode) & _PERMISSIONS
    seconds, nanoseconds = divmod(status.st_mtime_ns, 10**9)
    member.pax_headers = {"mtime": f"{seconds}.{nanoseconds:09d}"}
    place = (status.st_dev, status.st_ino)
    if stat.S_ISDIR(status.st_mode):
        member.type = tarfile.DIRTYPE
    elif stat.S_ISLNK(status.st_mode):
        member.type, member.linkname, member.mode = tarfile.SYMTYPE, os.readlink(path), 0
    elif not stat.S_ISREG(status.st_mode):
        raise SnapshotRefused(
            f"{name!r} is no file, directory or link (mode {stat.filemode(status.st_mode)}): "
            "sockets, pipes and devices cannot be kept in a snapshot"
        )
    elif place in first:
        member.type, member.linkname = tarfile.LNKTYPE, first[place]
    else:
        member.size = status.st_size
        if status.st_nlink > 1:
            first[place] = name
    return member


def _read(path: str, status: os.stat_result, size: int) -> bytes:
    with _allowed(path, status, 0o400):
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    with open(descriptor, "rb") as handle:
        data = handle.read(size + 1)
    if len(data) != size:
        raise SnapshotRefused(f"{path} changed while it was being read")
    return data


def read_archive(archive: bytes) -> list[Entry]:
    """The entries of an archive, checked: every one lies beneath a directory of the archive.

    Raises:
      SnapshotRefused: bytes that are no archive, a path that leads out of the directory or through
        a link, the same path twice, or something that `pack_directory` does not write.
    """
    entries: list[Entry] = []
    kinds: dict[str, str] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:", **_TEXT) as tar:
            for member in tar:
                entry = _entry(member, archive)
                _check_place(entry, kinds)
                kinds[entry.name] = entry.kind
                entries.append(entry)
    except (tarfile.TarError, ValueError, OSError, EOFError) as error:
        raise SnapshotRefused(f"not an archive of a directory: {error}") from error
    if "." not in kinds:
        raise SnapshotRefused("not an archive of a directory: it is empty")
    return entries


def _entry(member: tarfile.TarInfo, archive: bytes) -> Entry:
    if member.type not in _TYPES or member.sparse is not None:
        raise SnapshotRefused(f"the archive holds {member.name!r} of type {member.type!r}")
    seconds, _, fraction = member.pax_headers.get("mtime", str(member.mtime)).partition(".")
    modified = int(seconds) * 10**9 + int(f"{fraction:0<9.9}")
    data = memoryview(archive)[member.offset_data :][: member.size if member.isreg() else 0]
    mode = member.mode & _PERMISSIONS
    return Entry(member.name, _TYPES[member.type], mode, modified, member.linkname, data)


def _check_place(entry: Entry, kinds: dict[str, str]) -> None:
    """Refuses an entry whose place is not beneath a directory that came before it."""
    parent, _, last = entry.name.rpartition("/")
    inside = kinds.get(parent or ".") == "directory" and not entry.name.startswith("/")
    own = entry.name == "." and entry.kind == "directory" and not kinds
    if not own and (not inside or last in ("", ".", "..") or "\0" in last):
        raise SnapshotRefused(
            f"the archive holds {entry.name!r}, which does not lie in a directory of the archive"
        )
    if entry.name in kinds:
        raise SnapshotRefused(f"the archive holds {entry.name!r} twice")
    if entry.kind == "hard link" and kinds.get(entry.link) != "file":
        raise SnapshotRefused(
            f"the archive holds {entry.name!r}, a hard link to {entry.link!r}: no file before it"
        )


def archive_content(entries: list[Entry]) -> str:
    """Hash of what a directory holds, whenever it was written: names, kinds, modes, links, data."""
    return content_hash(
        [
            (entry.name, entry.kind, entry.mode, entry.link, hashlib.sha256(entry.data).digest())
            for entry in entries
        ]
    )


def unpack_directory(entries: list[Entry], directory: Path, staging: Path) -> None:
    """Makes an existing directory hold exactly the entries.

    Everything is written beside it first, so that a full disk leaves the directory as it was.

    Args:
      entries: of `read_archive`.
      directory: keeps its place and inode; whatever it holds vanishes.
      staging: a path on the same file system that does not exist; it does not exist afterwards.

    Raises:
      OSError: what the file system says.
    """
    try:
        for entry in entries:
            _write(entry, staging)
        clear_directory(directory)
        for name in os.listdir(staging):
            os.rename(staging / name, directory / name)
    finally:
        if staging.exists():
            clear_directory(staging)
            staging.rmdir()
    # Children first: writing them changes the times of their directories, and a directory's own
    # permissions may forbid to reach them.
    for entry in reversed(entries):
        path = directory / entry.name
        os.utime(path, ns=(entry.modified, entry.modified), follow_symlinks=False)
        if entry.kind != "link":
            os.chmod(path, entry.mode)


def _write(entry: Entry, root: Path) -> None:
    path = root / entry.name
    if entry.kind == "directory":
        os.mkdir(path, 0o700)
    elif entry.kind == "link":
        os.symlink(entry.link, path)
    elif entry.kind == "hard link":
        os.link(root / entry.link, path, follow_symlinks=False)
    else:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as handle:
            handle.write(entry.data)


def clear_directory(directory: Path) -> None:
    """Empties a directory, of what is write-protected too; never follows a link."""
    os.chmod(directory, 0o700)
    for entry in list(os.scandir(directory)):
        if entry.is_dir(follow_symlinks=False):
            clear_directory(Path(entry.path))
            os.rmdir(entry.path)
        else:
            os.unlink(entry.path)


def copy_directory(source: Path, directory: Path) -> None:
    """Copies the contents of a directory into an existing one, where they can be changed.

    Links are copied as links, times are kept, and the owner may write to every copy, also where
    the source is write-protected.
    """
    shutil.copytree(source, directory, symlinks=True, dirs_exist_ok=True)
    for path, status in [(path, status) for _, path, status in _walk(directory)]:
        if not stat.S_ISLNK(status.st_mode):
            os.chmod(path, stat.S_IMODE(status.st_mode) | (0o700 if os.path.isdir(path) else 0o600))
