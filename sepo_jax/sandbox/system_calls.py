"""Linux system calls that Python has no function for, by name and without other packages."""

import ctypes
import errno
import os
import struct
import sys
from typing import Any

# Name: number on x86_64, number on aarch64 (None: it has no such call).
NUMBERS = {
    "add_key": (248, 217),
    "bind": (49, 200),
    "bpf": (321, 280),
    "capset": (126, 91),
    "clone": (56, 220),
    "clone3": (435, 435),
    "connect": (42, 203),
    "fcntl": (72, 25),
    "fork": (57, None),
    "fsopen": (430, 430),
    "io_uring_setup": (425, 425),
    "ioctl": (16, 29),
    "ioprio_set": (251, 30),
    "kcmp": (312, 272),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "kill": (62, 129),
    "landlock_add_rule": (445, 445),
    "landlock_create_ruleset": (444, 444),
    "landlock_restrict_self": (446, 446),
    "memfd_create": (319, 279),
    "migrate_pages": (256, 238),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "move_pages": (279, 239),
    "mq_open": (240, 180),
    "msgget": (68, 186),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "perf_event_open": (298, 241),
    "pidfd_getfd": (438, 438),
    "pidfd_send_signal": (424, 424),
    "prlimit64": (302, 261),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "request_key": (249, 218),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "sched_setaffinity": (203, 122),
    "sched_setattr": (314, 274),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "semget": (64, 190),
    "setns": (308, 268),
    "setpriority": (141, 140),
    "shmget": (29, 194),
    "socket": (41, 198),
    "socketpair": (53, 199),
    "tgkill": (234, 131),
    "tkill": (200, 130),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
    "vfork": (58, None),
}
ARCHITECTURES = ("x86_64", "aarch64")

_LIBRARY = ctypes.CDLL(None, use_errno=True)
_LIBRARY.syscall.restype = ctypes.c_long


def architecture() -> str | None:
    """The architecture whose numbers hold in this process; None for one not in the table."""
    machine = os.uname().machine
    known = sys.platform == "linux" and machine in ARCHITECTURES and struct.calcsize("P") == 8
    return machine if known else None


def number(name: str, machine: str) -> int | None:
    """The number of a system call on `machine`; None where it has no such call."""
    return NUMBERS[name][ARCHITECTURES.index(machine)]


def system_call(name: str, *arguments: Any) -> int:
    """Makes a system call; arguments are whole numbers, bytes, None or ctypes buffers.

    Raises OSError with the error of the call; ENOSYS on an architecture not in the table.
    """
    machine = architecture()
    code = number(name, machine) if machine else None
    if code is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS), name)
    return _checked(name, _LIBRARY.syscall(code, *map(_argument, arguments)))


def process_control(option: int, *arguments: Any) -> int:
    """prctl(2): raises OSError with its error, ENOSYS on systems without it."""
    if not hasattr(_LIBRARY, "prctl"):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS), "prctl")
    padded = (*arguments, 0, 0, 0, 0)[:4]
    return _checked("prctl", _LIBRARY.prctl(option, *map(_argument, padded)))


def _argument(value: Any) -> Any:
    return ctypes.c_long(value) if isinstance(value, int) else value


def _checked(name: str, result: int) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), name)
    return result
