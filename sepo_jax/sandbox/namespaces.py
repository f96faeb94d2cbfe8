"""Namespaces: a worker sees files read-only outside its own, and its processes end with it.

Each step is tried in a forked child first, since a step that fails halfway cannot be taken back.
"""

import contextlib
import os
import resource
import select
import signal
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from sepo_jax.sandbox.system_calls import process_control, system_call

_NEW_MOUNTS, _NEW_USER, _NEW_PROCESSES = 0x00020000, 0x10000000, 0x20000000
_BIND, _RECURSIVE, _SLAVE = 0x1000, 0x4000, 1 << 19
_HERE, _ALL_BENEATH, _READ_ONLY = -100, 0x8000, 1
_NO_SET_USER, _NO_DEVICES, _NO_PROGRAMS = 2, 4, 8
_SET_PARENT_DEATH_SIGNAL = 1


def make_read_only(writable: Sequence[Path], own_processes: bool) -> bool:
    """Makes all file systems read-only for the calling process, but for what is beneath `writable`.

    That covers what other means leave open: modes, owners, times and attributes of files. It holds
    for good once the process has no privileges.

    Args:
      writable: directories and files that stay as writable as they are.
      own_processes: whether the process is in a pid namespace of its own; /proc then shows that.

    Returns:
      False, with nothing changed, where the system does not allow it.
    """

    def protect() -> None:
        _unshare(_NEW_MOUNTS)
        system_call("mount", b"none", b"/", None, _RECURSIVE | _SLAVE, None)
        if own_processes:
            with contextlib.suppress(OSError):
                flags = _NO_SET_USER | _NO_DEVICES | _NO_PROGRAMS
                system_call("mount", b"proc", b"/proc", b"proc", flags, None)
        for path in writable:
            name = os.fsencode(path)
            system_call("mount", name, name, None, _BIND | _RECURSIVE, None)
        _set_attributes(Path("/"), _READ_ONLY, 0)
        for path in writable:
            _set_attributes(path, 0, _READ_ONLY)
        # The working directory lies on the mount it was opened on, below the ones just made.
        with contextlib.suppress(OSError):
            os.chdir(os.getcwd())

    before = [os.access(path, os.W_OK) for path in writable]

    def rehearse() -> None:
        protect()
        if before != [os.access(path, os.W_OK) for path in writable]:
            raise PermissionError

    if not _works(rehearse):
        return False
    protect()
    return True


def enter_pid_namespace(at_end: Callable[[], None] = lambda: None) -> bool:
    """Goes on in a child, in a pid namespace in which every process ends when this one does.

    The calling process stays outside: it waits, ends whatever the child left, calls `at_end` and
    ends as the child did, by the same exit code or signal. When it is killed, so is all inside.
    The process must have a single thread.

    Returns:
      True in the child; False in the caller, with nothing changed, where this is not allowed.
    """

    def rehearse() -> None:
        os.close(os.pidfd_open(os.getpid()))
        _unshare(_NEW_PROCESSES)
        if not _works(lambda: process_control(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)):
            raise PermissionError

    if not _works(rehearse):
        return False
    outside = os.pidfd_open(os.getpid())
    _unshare(_NEW_PROCESSES)
    # The first process inside collects orphans; signals that a worker sends itself, and limits
    # that end it by a signal, have no effect on the first process of a namespace.
    first = os.fork()
    if first == 0:
        _end_with(outside)
        _collect_orphans()
    worker = os.fork()
    if worker == 0:
        _end_with(outside)
        return True
    _wait_outside(first, worker, at_end)


def _unshare(flags: int) -> None:
    """unshare(2); without the privilege, inside a user namespace that holds this user alone."""
    try:
        system_call("unshare", flags)
        return
    except PermissionError:
        user, group = os.geteuid(), os.getegid()
    system_call("unshare", flags | _NEW_USER)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1")


def _set_attributes(path: Path, on: int, off: int) -> None:
    attributes = struct.pack("=QQQQ", on, off, 0, 0)
    name, size = os.fsencode(path), len(attributes)
    system_call("mount_setattr", _HERE, name, _ALL_BENEATH, attributes, size)


def _works(action: Callable[[], object]) -> bool:
    """Whether an action ends without an error in a forked child, which then ends."""
    child = os.fork()
    if child == 0:
        try:
            action()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1] == 0


def _end_with(parent: int) -> None:
    """Has the kernel kill this process when its parent, given as a pidfd, ends."""
    process_control(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if select.select([parent], [], [], 0)[0]:
        os._exit(1)
    os.close(parent)


def _collect_orphans() -> NoReturn:
    """Waits for children for ever: those that their own parents left."""
    _let_go()
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    while True:
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            signal.sigwait([signal.SIGCHLD])


def _wait_outside(first: int, worker: int, at_end: Callable[[], None]) -> NoReturn:
    """Waits for the worker, ends its namespace with all in it, and ends as the worker did."""
    try:
        _let_go()
        _, status = os.waitpid(worker, 0)
        os.kill(first, signal.SIGKILL)
        os.waitpid(first, 0)
        at_end()
        if os.WIFSIGNALED(status):
            ending = os.WTERMSIG(status)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            if ending != signal.SIGKILL:
                signal.signal(ending, signal.SIG_DFL)
                signal.pthread_sigmask(signal.SIG_UNBLOCK, [ending])
            os.kill(os.getpid(), ending)
        os._exit(os.waitstatus_to_exitcode(status))
    finally:
        os._exit(1)


def _let_go() -> None:
    """Closes what a process that only waits has no use for, and puts back the usual signals."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2:
            with contextlib.suppress(OSError):
                os.close(int(name))
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
