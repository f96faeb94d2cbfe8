"""Landlock: a process gives up writing files, TCP and signals outside its own domain.

Files stay readable. What is given up cannot be won back, and holds for every child.
"""

import os
import stat
import struct
from collections.abc import Iterable
from pathlib import Path

from sepo_jax.sandbox.system_calls import system_call

WRITE_FILE = 1 << 1
REMOVE_DIRECTORY = 1 << 4
REMOVE_FILE = 1 << 5
MAKE = 0b1111111 << 6  # devices, directories, files, sockets, pipes, symbolic links
REFER = 1 << 13  # from interface 2: rename and link between directories; before, always refused
TRUNCATE = 1 << 14  # from interface 3
DEVICE_CONTROL = 1 << 15  # from interface 5
TCP = 0b11  # from interface 4: bind and connect
SCOPES = 0b11  # from interface 6: abstract unix sockets and signals
ON_FILES = WRITE_FILE | TRUNCATE | DEVICE_CONTROL

_VERSION = 1  # flag of landlock_create_ruleset: ask for the interface
_BENEATH = 1  # kind of rule: what is allowed beneath a directory


def interface() -> int:
    """The version of the landlock interface of this kernel; 0 where there is none."""
    try:
        return system_call("landlock_create_ruleset", None, 0, _VERSION)
    except OSError:
        return 0


def restrict(writable: Iterable[Path], network: bool) -> tuple[str, ...]:
    """Confines the calling thread and its children; needs no_new_privileges in force.

    Args:
      writable: directories beneath which, and files which, may be written.
      network: whether TCP stays allowed.

    Returns:
      The protections in force: "landlock_files", "landlock_truncation", "landlock_network" and
      "landlock_signals", as far as the kernel has them.
    """
    version = interface()
    if version == 0:
        return ()
    files = WRITE_FILE | REMOVE_DIRECTORY | REMOVE_FILE | MAKE
    files |= (REFER if version >= 2 else 0) | (TRUNCATE if version >= 3 else 0)
    files |= DEVICE_CONTROL if version >= 5 else 0
    tcp = TCP if version >= 4 and not network else 0
    scopes = SCOPES if version >= 6 else 0
    # A kernel takes a longer structure than it knows when the rest is zero.
    attributes = struct.pack("=QQQ", files, tcp, scopes)
    ruleset = system_call("landlock_create_ruleset", attributes, len(attributes), 0)
    try:
        for path in writable:
            _allow(ruleset, path, files)
        _allow(ruleset, Path(os.devnull), files)
        system_call("landlock_restrict_self", ruleset, 0)
    finally:
        os.close(ruleset)
    parts = {"files": True, "truncation": version >= 3, "network": tcp, "signals": scopes}
    return tuple(f"landlock_{name}" for name, there in parts.items() if there)


def _allow(ruleset: int, path: Path, access: int) -> None:
    """Adds a rule: what the ruleset takes away stays allowed at and beneath `path`."""
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            access &= ON_FILES
        rule = struct.pack("=Qi", access, descriptor)
        system_call("landlock_add_rule", ruleset, _BENEATH, rule, 0)
    finally:
        os.close(descriptor)
