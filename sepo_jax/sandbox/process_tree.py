"""Processes that stem from one process: found through /proc, and killed together."""

import contextlib
import os
import signal
from pathlib import Path

from sepo_jax.sandbox import pids_cgroup


def kill_tree(pid: int) -> None:
    """Kills a worker, its process group, its session, and all that descends from any of these.

    They are stopped before they are killed, so that none starts others meanwhile. Processes that
    are gone are fine. The caller waits for its own child afterwards: an id that has been waited for
    may belong to another process. The worker's control group goes as well.

    Raises ValueError for this process, its parent, group or session, or what is no process id.
    """
    own = (os.getpid(), os.getppid(), os.getpgrp(), os.getsid(0))
    if not isinstance(pid, int) or pid <= 1 or pid in own:
        raise ValueError(f"kill_tree takes the process id of a worker, not {pid!r}")
    family: set[int] = set()
    while new := _family(pid) - family:
        for member in new:
            _send(member, signal.SIGSTOP)
        family |= new
    for member in family:
        _send(member, signal.SIGKILL)
    pids_cgroup.remove(pid)


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _family(pid: int) -> set[int]:
    """Living processes of the group or session `pid`, and what descends from them or from `pid`."""
    children: dict[int, list[int]] = {}
    todo, family = [pid], set()
    for process, parent, group, session in _processes():
        children.setdefault(parent, []).append(process)
        if pid in (process, group, session):
            todo.append(process)
            family.add(process)
    while todo:
        for child in children.pop(todo.pop(), ()):
            todo.append(child)
            family.add(child)
    return family - {os.getpid()}


def _processes() -> list[tuple[int, int, int, int]]:
    """(process, parent, group, session) of every process that is not dead."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                # The name in parentheses may hold anything, parentheses as well.
                status = Path("/proc", name, "stat").read_bytes().rpartition(b")")[2].split()
                if status[0] not in (b"Z", b"X"):
                    found.append((int(name), *map(int, status[1:4])))
    return found
