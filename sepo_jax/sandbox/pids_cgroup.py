"""A control group that bounds how many processes a worker has (cgroup versions 1 and 2)."""

import contextlib
import os
import time
from pathlib import Path

PREFIX = "sepo_jax-"
PATIENCE = 0.1  # seconds that the members of a group get to be gone


def make(pid: int) -> Path | None:
    """Makes the group of worker `pid`; None where this process may make none.

    Groups of workers that are no more are removed first.
    """
    for place in _places():
        for left in place.glob(PREFIX + "*"):
            owner = left.name.removeprefix(PREFIX)
            if owner.isdigit() and not Path("/proc", owner).exists():
                _remove_directory(left)
        with contextlib.suppress(OSError):
            group = place / f"{PREFIX}{pid}"
            group.mkdir(exist_ok=True)
            return group
    return None


def join(group: Path, most: int) -> bool:
    """Moves the calling process into a group of at most `most` processes and threads.

    False, with the group removed, where that is not allowed.
    """
    try:
        (group / "pids.max").write_text(str(most))
        (group / "cgroup.procs").write_text("0")
    except OSError:
        _remove_directory(group)
        return False
    return True


def remove(pid: int) -> None:
    """Removes the group of worker `pid`, if there is one, once its members are gone.

    Waits for that at most 0.1 s; what is left then goes when the next group is made.
    """
    deadline = time.monotonic() + PATIENCE
    for place in _places():
        group = place / f"{PREFIX}{pid}"
        while group.exists() and not _remove_directory(group) and time.monotonic() < deadline:
            time.sleep(0.002)


def _remove_directory(group: Path) -> bool:
    try:
        group.rmdir()
    except OSError:
        return False
    return True


def _places() -> list[Path]:
    """Directories in which this process can look for its leave to make a group, best first."""
    try:
        memberships = Path("/proc/self/cgroup").read_text().splitlines()
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return []
    own = {}
    for line in memberships:
        _, controllers, path = line.split(":", 2)
        own["cgroup2" if controllers == "" else controllers] = path
    found = []
    for line in mounts:
        fields, _, rest = line.partition(" - ")
        root, place = fields.split()[3:5]
        kind, _, options = rest.split()[:3]
        if kind == "cgroup" and "pids" in options.split(","):
            path = next((own[name] for name in own if "pids" in name.split(",")), None)
            found += _own_place(Path(place), root, path)[:1]
        elif kind == "cgroup2":
            above = _own_place(Path(place), root, own.get("cgroup2"))
            found += [directory for directory in above if _hands_down_pids(directory)]
    return found


def _own_place(place: Path, root: str, path: str | None) -> list[Path]:
    """This process's directory in a hierarchy mounted at `place`, and those above it."""
    if path is None or ".." in path.split("/"):
        return []
    below = os.path.relpath(path, root)
    if below.startswith(".."):
        return []
    own = place / below
    return [own, *(parent for parent in own.parents if parent.is_relative_to(place))]


def _hands_down_pids(directory: Path) -> bool:
    try:
        return "pids" in (directory / "cgroup.subtree_control").read_text().split()
    except OSError:
        return False
