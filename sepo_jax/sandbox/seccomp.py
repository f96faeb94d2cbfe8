"""A filter of system calls, written by hand in the kernel's small packet-filter language."""

import ctypes
import errno
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from sepo_jax.sandbox.system_calls import architecture, number, process_control

# Instructions: code, offset where true, offset where false, operand.
_LOAD, _AND, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x06
_NUMBER_AT, _ARCHITECTURE_AT, _ARGUMENTS_AT = 0, 4, 16
ALLOW, ERROR, KILL_PROCESS = 0x7FFF0000, 0x00050000, 0x80000000
AUDIT_NAMES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32 = 0x40000000  # numbers of the second interface that x86_64 kernels may offer

_SET_SECCOMP, _MODE_FILTER = 22, 2
CLONE_THREAD = 0x00010000
CLONE_NAMESPACES = 0x7E020000
SOCK_STREAM = 1

# Other processes' memory, the kernel, keys, and what outlives a process or escapes its limits.
ALWAYS_DENIED = (
    *("ptrace", "process_vm_readv", "process_vm_writev", "pidfd_getfd", "kcmp"),
    *("process_madvise", "process_mrelease", "move_pages", "migrate_pages"),
    *("kexec_load", "kexec_file_load", "bpf", "perf_event_open", "userfaultfd", "io_uring_setup"),
    *("mount", "umount2", "move_mount", "mount_setattr", "open_tree", "fsopen"),
    *("unshare", "setns", "open_by_handle_at", "keyctl", "add_key", "request_key"),
    *("shmget", "msgget", "semget", "mq_open", "memfd_create"),
)
# Calls that change another process when their argument (by position) names one.
ON_OTHER_PROCESSES = {
    "prlimit64": 0,
    "sched_setaffinity": 0,
    "sched_setattr": 0,
    "sched_setparam": 0,
    "sched_setscheduler": 0,
    "setpriority": 1,
    "ioprio_set": 1,
}
# Owners of a descriptor's signals (F_SETOWN and its like), and typing into a terminal.
OWNER_COMMANDS = (8, 15)
DEVICE_COMMANDS = (0x8901, 0x8902, 0x5412, 0x541C)


@dataclass(frozen=True)
class Rule:
    """Denies a system call: always, or by the low 32 bits of one argument.

    Attributes:
      call: name of the system call.
      argument: position of the argument that decides; None denies every call.
      mask: bits of the argument that are looked at.
      allowed: values let through, all others denied; or, where empty,
      denied: values denied, all others let through.
      error: the error that a denied call returns.
    """

    call: str
    argument: int | None = None
    mask: int = 0xFFFFFFFF
    allowed: tuple[int, ...] = ()
    denied: tuple[int, ...] = ()
    error: int = errno.EPERM


def rules(pid: int, processes: bool, network: bool) -> list[Rule]:
    """What a confined process may not call.

    Args:
      pid: the process itself, as it sees itself.
      processes: whether it may have children.
      network: whether it may open sockets.
    """
    found = [Rule(name) for name in ALWAYS_DENIED]
    found += [Rule(name, at, allowed=(0, pid)) for name, at in ON_OTHER_PROCESSES.items()]
    found += [Rule("fcntl", 1, denied=OWNER_COMMANDS), Rule("ioctl", 1, denied=DEVICE_COMMANDS)]
    # The flags of clone3 lie in memory that a filter cannot read; the C library then uses clone.
    found.append(Rule("clone3", error=errno.ENOSYS))
    if processes:
        found.append(Rule("clone", 0, mask=CLONE_NAMESPACES, allowed=(0,)))
    else:
        found += [Rule("fork"), Rule("vfork")]
        mask = CLONE_NAMESPACES | CLONE_THREAD
        found.append(Rule("clone", 0, mask=mask, allowed=(CLONE_THREAD,)))
        found.append(Rule("kill", 0, allowed=(0, pid, -pid & 0xFFFFFFFF)))
        found.append(Rule("tgkill", 0, allowed=(pid,)))
        others = ("tkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo", "pidfd_send_signal")
        found += [Rule(name) for name in others]
    if not network:
        # A stream pair is connected to itself for good; a datagram pair could be sent elsewhere.
        found += [Rule("socket"), Rule("connect"), Rule("bind")]
        found.append(Rule("socketpair", 1, mask=0xF, allowed=(SOCK_STREAM,)))
    return found


def program(found: Sequence[Rule], machine: str) -> bytes:
    """The rules as a filter program for one of the known architectures; all else is allowed."""
    steps = [
        (_LOAD, 0, 0, _ARCHITECTURE_AT),
        (_EQUAL, 1, 0, AUDIT_NAMES[machine]),
        (_RETURN, 0, 0, KILL_PROCESS),
        (_LOAD, 0, 0, _NUMBER_AT),
    ]
    if machine == "x86_64":
        steps += [(_AT_LEAST, 0, 1, _X32), (_RETURN, 0, 0, KILL_PROCESS)]
    for rule in found:
        code = number(rule.call, machine)
        if code is not None:
            body = _body(rule)
            steps += [(_EQUAL, 0, len(body), code), *body]
    steps.append((_RETURN, 0, 0, ALLOW))
    return b"".join(struct.pack("=HBBI", *step) for step in steps)


def _body(rule: Rule) -> list[tuple[int, int, int, int]]:
    """The steps for a call whose number matched; they always end in a return."""
    deny = (_RETURN, 0, 0, ERROR | rule.error)
    if rule.argument is None:
        return [deny]
    values = rule.allowed or rule.denied
    otherwise, match = (deny, (_RETURN, 0, 0, ALLOW))[:: 1 if rule.allowed else -1]
    tests = [(_EQUAL, len(values) - at, 0, value) for at, value in enumerate(values)]
    load = (_LOAD, 0, 0, _ARGUMENTS_AT + 8 * rule.argument)
    return [load, (_AND, 0, 0, rule.mask), *tests, otherwise, match]


def install(found: Sequence[Rule]) -> bool:
    """Puts the rules in force for good, for the calling thread and its children.

    Needs no_new_privileges in force. False where the kernel or the architecture has no filter.
    """
    machine = architecture()
    if machine is None:
        return False
    code = program(found, machine)
    buffer = ctypes.create_string_buffer(code, len(code))
    header = struct.pack("@HP", len(code) // 8, ctypes.addressof(buffer))
    try:
        process_control(_SET_SECCOMP, _MODE_FILTER, header)
    except OSError:
        return False
    return True
