"""A directory of everything a snapshot keeps, and what it takes to restore it, for any user."""

import os
import shutil
from pathlib import Path

from sandbox.elsewhere import become_nobody, scratch_directory

from sepo_jax.sandbox.archive import (
    archive_content,
    clear_directory,
    pack_directory,
    read_archive,
    unpack_directory,
)

LARGE = 2**24


def grow(root: Path) -> None:
    """Fills a directory with files of every mode, links of every kind, and odd names."""
    modes = {"plain": 0o644, "script": 0o755, "protected": 0o444, "hidden": 0o000, "sticky": 0o1700}
    for name, mode in modes.items():
        (root / name).write_bytes(name.encode() * 300)
        (root / name).chmod(mode)
    for name, mode in {"empty": 0o755, "closed": 0o000, "fixed": 0o555}.items():
        (root / name / "below").mkdir(parents=True)
        (root / name / "below" / "file").write_text("deep")
        (root / name).chmod(mode)
    shutil.rmtree(root / "empty" / "below")
    for name in (b"caf\xe9", "naïve ☃".encode(), b"x" * 200, b" ", b"new\nline", b"-rf", b"a\\b"):
        (root / os.fsdecode(name)).write_bytes(b"")
    links = {"to file": "plain", "to directory": "fixed", "nowhere": "gone", "out": "../../x"}
    for name, target in (links | {"absolute": "/etc/passwd", "round": "."}).items():
        os.symlink(target, root / name)
    (root / "twin").hardlink_to(root / "plain")
    (root / "fixed" / "below" / "triplet").hardlink_to(root / "plain")
    long = root / "/".join(["y" * 90] * 4)
    long.mkdir(parents=True)
    for number, path in enumerate([root / "plain", root / "to file", long, root]):
        moment = 1_234_567_890_123_456_789 + number
        os.utime(path, ns=(moment, moment), follow_symlinks=False)
    os.utime(root / "script", ns=(-1_500_000_001, -1_500_000_001))  # before 1970


def describe(root: Path) -> dict[str, tuple]:
    """All that can be seen of a directory; opens what its owner may open."""
    found = {}
    for path in [root, *sorted(root.iterdir())]:
        status = path.lstat()
        key = str(path.relative_to(root.parent).relative_to(root.name))
        seen = (status.st_mode, status.st_mtime_ns, status.st_size if path.is_file() else None)
        if path.is_symlink():
            found[key] = (*seen[:2], os.readlink(path))
        elif path.is_file():
            path.chmod(0o600)
            found[key] = (*seen, status.st_nlink, path.read_bytes())
            path.chmod(status.st_mode & 0o7777)
        elif path != root:
            path.chmod(0o700)
            found |= {f"{key}/{below}": what for below, what in describe(path).items()}
            found[key] = seen
            path.chmod(status.st_mode & 0o7777)
        else:
            found[key] = seen
    return found


def restored_as_nobody() -> list[str]:
    """What goes wrong when an ordinary user packs a tree, changes it, and unpacks it; nothing."""
    become_nobody()
    scratch = scratch_directory()
    root = scratch / "tree"
    root.mkdir()
    try:
        return _problems(root)
    finally:
        clear_directory(scratch)
        scratch.rmdir()


def _problems(root: Path) -> list[str]:
    problems = []
    grow(root)
    before = describe(root)
    archive = pack_directory(root, LARGE)
    if describe(root) != before or pack_directory(root, LARGE) != archive:
        problems.append("packing changed the tree")
    content = archive_content(read_archive(archive))
    try:
        (root / "protected").write_text("changed")
        problems.append("this user may write what is write-protected, so nothing was tested")
    except PermissionError:
        pass
    for change in (None, "grown", "empty"):
        if change == "empty":
            clear_directory(root)
        if change == "grown":
            (root / "more").mkdir()
            (root / "more" / "file").touch()
            (root / "more").chmod(0o500)
            (root / "plain").chmod(0o600)
            (root / "plain").write_text("changed")
        inode = root.stat().st_ino
        unpack_directory(read_archive(archive), root, root.parent / "staging")
        if describe(root) != before or root.stat().st_ino != inode:
            problems.append(f"another tree came back ({change})")
        if archive_content(read_archive(pack_directory(root, LARGE))) != content:
            problems.append(f"another content came back ({change})")
    if sorted(path.name for path in root.parent.iterdir()) != ["tree"]:
        problems.append("the staging directory was left")
    return problems
