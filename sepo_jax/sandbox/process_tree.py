"""Processes that stem from one process: found through /proc, and killed together."""

import contextlib
import os
import signal
import time
from typing import NamedTuple

from sepo_jax.sandbox import pids_cgroup

PATIENCE = 1.0  # seconds that a family of processes gets to come to a halt
HALTED = "TZX"  # states: stopped, dead and not waited for, dead


class Process(NamedTuple):
    """One process of /proc: its id, those of its parent, group and session, and its state."""

    pid: int
    parent: int
    group: int
    session: int
    state: str


def kill_tree(pid: int) -> None:
    """Kills a worker, its process group, its session, and all that descends from any of these.

    They are stopped first, so that none starts others meanwhile. Processes that are gone are fine.
    The caller waits for its own child afterwards: an id that has been waited for may belong to
    another process. The worker's control group goes as well.

    Raises ValueError for this process, its parent, group or session, or what is no process id.
    """
    own = (os.getpid(), os.getppid(), os.getpgrp(), os.getsid(0))
    if not isinstance(pid, int) or pid <= 1 or pid in own:
        raise ValueError(f"kill_tree takes the process id of a worker, not {pid!r}")
    _halt_and_kill(pid)
    pids_cgroup.remove(pid)


def kill_descendants(alone: bool) -> None:
    """Kills and reaps all that descends from this process, which leads a session of its own.

    With the process as their subreaper (prctl), orphans that left their session descend from it as
    well. Takes at most a few seconds: what the kernel does not let go of by then stays.

    Args:
      alone: whether `namespaces.enter_pid_namespace` gave it a pid namespace; all others in there
        are then killed.
    """
    deadline = time.monotonic() + 3 * PATIENCE
    while _has_children() and time.monotonic() < deadline:
        if alone and os.getppid() == 0:  # the parent is outside the namespace
            # Spares the caller and the namespace's first process; none can be born past it.
            _send(-1, signal.SIGKILL)
        else:
            _halt_and_kill(os.getpid())
        _reap(time.monotonic() + PATIENCE)


def _has_children() -> bool:
    """Reaps the dead; whether there are other children."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def _reap(deadline: float) -> None:
    """Waits until no child is left, each of which was killed."""
    while _has_children() and time.monotonic() < deadline:
        time.sleep(0.0005)


def _halt_and_kill(pid: int) -> None:
    """Stops the family of a process until none of it moves, then kills it; spares this process."""
    seen: dict[int, Process] = {}
    moving: set[int] = set()
    targets: set[int] = set()
    halted, deadline = False, time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        arrived = _look(seen, moving)
        family = _family(pid, seen)
        moving = {member.pid for member in family if member.state not in HALTED}
        arrived &= {member.pid for member in family}
        for target in {_target(seen[member]) for member in moving | arrived}:
            _send(target, signal.SIGSTOP)
            targets.add(target)
        # One caught inside a system call stops only after it, with one more child or another group.
        if halted and not moving and not arrived:
            break
        halted = not moving
        if moving and not arrived:
            time.sleep(0.0005)  # they need a processor to stop
    for target in targets:
        _send(target, signal.SIGKILL)


def _target(member: Process) -> int:
    """What to signal: the whole group, out of which no child can slip, unless it is our own."""
    ours = member.group in (0, 1, os.getpgrp())
    return member.pid if ours else -member.group


def _send(target: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(target, number)


def _look(seen: dict[int, Process], moving: set[int]) -> set[int]:
    """Adds what /proc holds to `seen`, looks again at those `moving`; gives the ids added."""
    present = {int(name) for name in os.listdir("/proc") if name.isdigit()}
    arrived = present - seen.keys()
    for pid in arrived | moving:
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                # The name in parentheses may hold anything, parentheses as well.
                state, *ids = file.read().rpartition(b")")[2].split()[:4]
        except OSError:
            if pid in seen:
                seen[pid] = seen[pid]._replace(state="X")
            continue
        seen[pid] = Process(pid, *map(int, ids), state.decode())
    return arrived & seen.keys()


def _family(pid: int, seen: dict[int, Process]) -> list[Process]:
    """Processes of the group or session `pid`, and what descends from them or from `pid`."""
    children: dict[int, list[Process]] = {}
    family: dict[int, Process] = {}
    for process in seen.values():
        children.setdefault(process.parent, []).append(process)
        if pid in (process.pid, process.group, process.session):
            family[process.pid] = process
    todo = [pid, *family]
    while todo:
        for child in children.pop(todo.pop(), ()):
            family[child.pid] = child
            todo.append(child.pid)
    family.pop(os.getpid(), None)
    return list(family.values())
