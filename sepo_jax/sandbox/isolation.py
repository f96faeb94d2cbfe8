"""What a worker process may do: limits, and a cage built from what the Linux kernel offers anyone.

Several layers overlap, so that what one system lacks another layer covers: resource limits,
landlock, a filter of system calls, read-only mounts, a pid namespace, a control group. None needs
another package, and none needs root. What is left open is warned of.

Not covered: environments may read what their user may read; the sum of the sizes of all files in
the scratch directory has no bound but the disk, and memory and CPU time are bounded by process.
"""

import math
import os
import resource
import signal
import sys
import time
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from sepo_jax.sandbox import landlock, namespaces, pids_cgroup, seccomp
from sepo_jax.sandbox.process_tree import kill_tree
from sepo_jax.sandbox.protocol import SandboxError
from sepo_jax.sandbox.system_calls import process_control, system_call

__all__ = ["PROTECTIONS", "Limits", "allow_cpu", "confine", "kill_tree", "probe"]

PROTECTIONS = (
    "resource_limits",  # memory, file size, CPU time, open files
    "no_new_privileges",  # set-user-id programs give nothing
    "no_capabilities",  # root's own powers are given up
    "landlock_files",  # writing, making and removing files
    "landlock_truncation",
    "landlock_network",  # TCP
    "landlock_signals",  # signals to, and abstract sockets of, processes outside
    "system_call_filter",  # sockets, child processes, other processes, the kernel
    "read_only_mounts",  # all of the above for files, and modes, owners, times
    "pid_namespace",  # children end with the worker and see no others
    "pids_cgroup",  # number of children
    "process_limit",  # number of children, by RLIMIT_NPROC
)
OPEN_FILES = 1024

# Numerical libraries would start a thread for each core, in every worker, against its limits.
_THREADS_OF_LIBRARIES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")

_NO_NEW_PRIVILEGES, _CHILD_SUBREAPER = 38, 36
_CAPABILITY_VERSION = 0x20080522


@dataclass(frozen=True)
class Limits:
    """What the environments of one worker may use.

    Attributes:
      seconds: wall time of one call; the pool ends a worker that takes longer.
      cpu_seconds: CPU time of one call, in the worker itself, to the next full second.
      memory_bytes: address space of the worker, and of each of its children.
      processes: child processes at one time; a thread counts as one. 0: none, and threads are free.
      file_bytes: size of the largest file.
      network: whether sockets may be opened.
      writable: absolute paths that may be written, other than the scratch directory.

    Raises ValueError for numbers that are no limit and paths that are not absolute.
    """

    seconds: float = 60.0
    cpu_seconds: float = 60.0
    memory_bytes: int = 4 * 2**30
    processes: int = 0
    file_bytes: int = 64 * 2**20
    network: bool = False
    writable: tuple[str, ...] = ()

    def __post_init__(self):
        for name in ("seconds", "cpu_seconds"):
            value = getattr(self, name)
            if not _is_number(value, (int, float)) or not 0 < value < math.inf:
                raise ValueError(f"limits.{name} is a number of seconds above 0, not {value!r}")
        for name, least in (("memory_bytes", 1), ("file_bytes", 1), ("processes", 0)):
            value = getattr(self, name)
            if not _is_number(value, int) or value < least:
                raise ValueError(f"limits.{name} is a whole number from {least}, not {value!r}")
        if not isinstance(self.network, bool):
            raise ValueError(f"limits.network is True or False, not {self.network!r}")
        if isinstance(self.writable, str | bytes | Path):
            raise ValueError(f"limits.writable is a tuple of paths, not {self.writable!r}")
        paths = tuple(os.fspath(path) for path in self.writable)
        for path in paths:
            if not os.path.isabs(path):
                raise ValueError(f"limits.writable takes absolute paths, not {path!r}")
        object.__setattr__(self, "writable", paths)


def confine(limits: Limits, scratch: Path, own_threads: int = 0) -> tuple[str, ...]:
    """Confines this process for good; called once, before any environment is made.

    The process must be freshly spawned with a single thread. It gets a session of its own,
    `scratch` as its directory for temporary files, and one thread in numerical libraries unless
    the environment's variables say otherwise. With limits.processes, the call returns in a
    child of the calling process, which waits outside and ends as the child does: another process
    id, the same open files.

    Args:
      limits: what the environments may use.
      scratch: a directory that exists, the only one they may write but for limits.writable.
      own_threads: threads that the worker itself will start, on top of limits.processes.

    Returns:
      Those of PROTECTIONS that are in force. A warning says what the others leave open.

    Raises SandboxError when there are other threads, or a path is missing.
    """
    writable = _check_start(scratch, limits)
    if os.getsid(0) != os.getpid() != os.getpgrp():
        os.setsid()
    for number in (signal.SIGCHLD, signal.SIGXCPU):
        signal.signal(number, signal.SIG_DFL)
    in_force = ["resource_limits"]
    if sys.platform == "linux":
        user_namespace = os.readlink("/proc/self/ns/user")
        in_force += _contain_children(limits, own_threads)
        if namespaces.make_read_only(writable, "pid_namespace" in in_force):
            in_force.append("read_only_mounts")
        in_force += _drop_privileges()
        _limit_resources(limits)
        if limits.processes and "pids_cgroup" not in in_force:
            alone = os.readlink("/proc/self/ns/user") != user_namespace
            in_force += _limit_processes(limits.processes + own_threads, alone, in_force)
        if "no_new_privileges" in in_force:
            in_force += landlock.restrict(writable, limits.network)
            rules = seccomp.rules(os.getpid(), limits.processes > 0, limits.network)
            in_force += ["system_call_filter"] if seccomp.install(rules) else []
    else:
        _limit_resources(limits)
    for name in _THREADS_OF_LIBRARIES:
        os.environ.setdefault(name, "1")
    os.environ["TMPDIR"] = str(writable[0])
    if "tempfile" in sys.modules:
        sys.modules["tempfile"].tempdir = None
    _warn(_left_open(limits, in_force))
    return tuple(name for name in PROTECTIONS if name in in_force)


def allow_cpu(limits: Limits) -> None:
    """Gives this process limits.cpu_seconds from here on; SIGXCPU ends it after that.

    The hard limit stays open, for the next call; an environment that sets its own limits is ended
    by the wall time of its call.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    soft = _at_most(math.ceil(time.process_time() + limits.cpu_seconds), hard)
    resource.setrlimit(resource.RLIMIT_CPU, (soft, hard))


def probe() -> dict[str, bool]:
    """Which of PROTECTIONS this system offers to workers with and without children.

    Finds out by confining two fresh processes; takes about a quarter of a second. "process_limit"
    is the second choice after "pids_cgroup", and not tried where that is there.

    Raises SandboxError when a process cannot be confined at all.
    """
    import subprocess  # here, because workers start sooner without them
    import tempfile

    code = (
        f"import sys, warnings; sys.path[:] = {sys.path!r}; warnings.simplefilter('ignore');"
        "from sepo_jax.sandbox.isolation import Limits, confine;"
        "print(*confine(Limits(processes=int(sys.argv[1])), sys.argv[2]))"
    )
    found: set[str] = set()
    with tempfile.TemporaryDirectory() as scratch:
        for processes in ("0", "1"):
            command = [sys.executable, "-c", code, processes, scratch]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60)
            if done.returncode != 0:
                raise SandboxError(f"a process cannot be confined here: {done.stderr.strip()}")
            found.update(done.stdout.split())
    return {name: name in found for name in PROTECTIONS}


def _is_number(value: object, kinds: type | tuple[type, ...]) -> bool:
    return isinstance(value, kinds) and not isinstance(value, bool)


def _check_start(scratch: Path, limits: Limits) -> list[Path]:
    """The paths that may be written, the scratch directory first; SandboxError as in `confine`."""
    threads = len(os.listdir("/proc/self/task")) if os.path.isdir("/proc/self/task") else 1
    if threads > 1:
        raise SandboxError(
            f"confine() needs a process with one thread, and this one has {threads}: call it in a "
            "spawned process, before anything starts threads"
        )
    if not os.path.isdir(scratch):
        raise SandboxError(f"the scratch directory {scratch} does not exist; make it first")
    for path in limits.writable:
        if not os.path.exists(path):
            raise SandboxError(f"limits.writable names {path}, which does not exist; make it first")
    return [Path(path).resolve() for path in (scratch, *limits.writable)]


def _contain_children(limits: Limits, own_threads: int) -> list[str]:
    """Has children counted, and ended with the worker; nothing to do when there are none."""
    if limits.processes == 0:
        return []
    in_force = []
    pid = os.getpid()
    group = pids_cgroup.make(pid)
    if namespaces.enter_pid_namespace(at_end=lambda: pids_cgroup.remove(pid)):
        in_force.append("pid_namespace")
    else:
        # Orphans become children of the worker, where kill_tree finds them while it lives.
        process_control(_CHILD_SUBREAPER, 1)
    if group is not None and pids_cgroup.join(group, 1 + own_threads + limits.processes):
        in_force.append("pids_cgroup")
    return in_force


def _drop_privileges() -> list[str]:
    """Gives up all capabilities, and whatever programs could give back."""
    in_force = []
    try:
        process_control(_NO_NEW_PRIVILEGES, 1)
        in_force.append("no_new_privileges")
        header = _CAPABILITY_VERSION.to_bytes(4, sys.byteorder) + bytes(4)
        system_call("capset", header, bytes(24))
        in_force.append("no_capabilities")
    except OSError:
        pass
    return in_force


def _limit_resources(limits: Limits) -> None:
    wanted = {
        resource.RLIMIT_AS: limits.memory_bytes,
        resource.RLIMIT_FSIZE: limits.file_bytes,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_NOFILE: OPEN_FILES,
    }
    for kind, value in wanted.items():
        value = _at_most(value, resource.getrlimit(kind)[1])
        resource.setrlimit(kind, (value, value))


def _limit_processes(most: int, alone: bool, in_force: Iterable[str]) -> list[str]:
    """RLIMIT_NPROC, where the kernel heeds it: not for root.

    It counts all processes and threads of the user, in its user namespace: those of this worker
    when it is `alone` there, else all that the user runs, of which those running now are let be.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NPROC)
    resource.setrlimit(resource.RLIMIT_NPROC, (0, hard))
    try:
        child = os.fork()
    except BlockingIOError:
        running = (3 if "pid_namespace" in in_force else 1) if alone else _tasks_of_user()
        most = _at_most(running + most, hard)
        resource.setrlimit(resource.RLIMIT_NPROC, (most, most))
        return ["process_limit"]
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    resource.setrlimit(resource.RLIMIT_NPROC, (soft, hard))
    return []


def _tasks_of_user() -> int:
    """Threads of all processes of this user."""
    count = 0
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and os.stat(f"/proc/{name}").st_uid == os.getuid():
                count += len(os.listdir(f"/proc/{name}/task"))
        except OSError:
            continue
    return count


def _at_most(value: int, hard: int) -> int:
    return value if hard == resource.RLIM_INFINITY else min(value, hard)


_USER_NAMESPACES = (
    "allow user namespaces (sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone, "
    "kernel.apparmor_restrict_unprivileged_userns; in a container: a seccomp profile that lets "
    "unshare and mount through) or grant CAP_SYS_ADMIN"
)
_FILTER = "use a kernel with CONFIG_SECCOMP_FILTER on x86_64 or aarch64"


def _left_open(limits: Limits, in_force: Iterable[str]) -> list[str]:
    """What environments can do for want of protections, and what to install or allow."""
    mounts, call_filter = "read_only_mounts", "system_call_filter"
    # What stays possible, what each prevents it, what to do.
    table = [
        (
            "write files outside the scratch directory",
            {"landlock_files", mounts},
            "use Linux 5.13 or later with landlock (lsm=landlock,...), or " + _USER_NAMESPACES,
        ),
        (
            "truncate files outside the scratch directory",
            {"landlock_truncation", mounts},
            "use Linux 6.2 or later with landlock, or " + _USER_NAMESPACES,
        ),
        ("change modes and times of files outside", {mounts}, _USER_NAMESPACES),
        (
            "signal other processes",
            {"landlock_signals", "pid_namespace", call_filter if limits.processes == 0 else ""},
            "use Linux 6.12 or later with landlock, or " + _USER_NAMESPACES,
        ),
        ("touch other processes and the kernel", {call_filter}, _FILTER),
        (
            "raise limits and undo protections as root",
            {"no_capabilities"},
            "use Linux 3.5 or later",
        ),
    ]
    if not limits.network:
        table.append(("use the network", {call_filter}, _FILTER))
    if limits.processes == 0:
        table.append(("start processes", {call_filter}, _FILTER))
    else:
        table += [
            (
                "start more processes than allowed",
                {"pids_cgroup", "process_limit"},
                "give this process a writable pids control group, or run it as a user other than "
                "root",
            ),
            ("leave processes behind in other sessions", {"pid_namespace"}, _USER_NAMESPACES),
        ]
    return [f"{what} ({advice})" for what, needed, advice in table if not needed & set(in_force)]


def _warn(left_open: list[str]) -> None:
    if left_open:
        message = "environments in this sandbox can still: " + "; ".join(left_open)
        warnings.warn(message, RuntimeWarning, stacklevel=3)
