"""Each layer of a sandbox alone: the filter's program step by step, landlock, read-only mounts."""

import errno
import os
import re
import signal
import socket
import struct
from pathlib import Path

import pytest
from sandbox.confined import (
    FILE_ATTEMPTS,
    METADATA,
    TELL_ATTEMPTS,
    USERS,
    fill,
    look,
    need_protection,
    reachable,
    run_confined,
    sleeping,
)

from sepo_jax.sandbox import seccomp, system_calls

MACHINES = system_calls.ARCHITECTURES
PID = 4242


def verdict(program, machine, name, *arguments, number=None):
    """What a filter answers to a system call: an interpreter of the steps that it may hold."""
    number = system_calls.number(name, machine) if number is None else number
    data = struct.pack("=IIQ", number, seccomp.AUDIT_NAMES[machine], 0)
    data += struct.pack("=6Q", *(value % 2**64 for value in (*arguments, 0, 0, 0, 0, 0, 0)[:6]))
    return run_filter(program, data)


def run_filter(program, data):
    steps, at, value = list(struct.iter_unpack("=HBBI", program)), 0, 0
    while True:
        code, true, false, operand = steps[at]
        at += 1
        if code == 0x06:
            return operand
        if code == 0x20:
            value = struct.unpack_from("=I", data, operand)[0]
        elif code == 0x54:
            value &= operand
        else:
            holds = {0x15: value == operand, 0x35: value >= operand}[code]
            at += true if holds else false


@pytest.fixture(params=MACHINES)
def filters(request):
    """Answers of the filter on one machine: (name, arguments, processes, network) -> an error."""

    def answer(name, *arguments, processes=False, network=False):
        found = seccomp.rules(PID, processes, network)
        result = verdict(seccomp.program(found, request.param), request.param, name, *arguments)
        if result == seccomp.ALLOW:
            return None
        assert result & 0xFFFF0000 == seccomp.ERROR
        return errno.errorcode[result & 0xFFFF]

    answer.machine = request.param
    return answer


def test_filter_denies_children_and_lets_threads_be(filters):
    flags = {"thread": 0x3D0F00, "fork": 0x1200011, "posix_spawn": 0x4111, "namespace": 0x10000011}
    answers = {name: filters("clone", value) for name, value in flags.items()}
    assert answers == {"thread": None} | dict.fromkeys(
        ("fork", "posix_spawn", "namespace"), "EPERM"
    )
    answers = {name: filters("clone", value, processes=True) for name, value in flags.items()}
    assert answers == dict.fromkeys(("thread", "fork", "posix_spawn")) | {"namespace": "EPERM"}
    assert filters("clone3") == filters("clone3", processes=True) == "ENOSYS"
    if filters.machine == "x86_64":
        assert filters("fork") == filters("vfork") == "EPERM"
        assert filters("fork", processes=True) is None


def test_filter_denies_sockets(filters):
    for name in ("socket", "connect", "bind"):
        assert filters(name, 2, 1) == "EPERM"
        assert filters(name, 2, 1, network=True) is None
    stream = socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
    assert filters("socketpair", 1, stream) is None
    assert filters("socketpair", 1, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) == "EPERM"
    assert filters("io_uring_setup", network=True) == "EPERM"


def test_filter_denies_signals_to_others(filters):
    for pid, error in {
        0: None,
        PID: None,
        -PID: None,
        1: "EPERM",
        -1: "EPERM",
        -7: "EPERM",
    }.items():
        assert filters("kill", pid, 9) == error
        assert filters("kill", pid, 9, processes=True) is None  # it may signal its children
    assert filters("tgkill", PID, 5, 9) is None
    assert filters("tgkill", 7, 7, 9) == "EPERM"


def test_filter_denies_changes_to_others(filters):
    for name, at in seccomp.ON_OTHER_PROCESSES.items():
        for pid, error in {0: None, PID: None, 7: "EPERM"}.items():
            assert filters(name, *[0] * at, pid, processes=True, network=True) == error
    assert filters("fcntl", 3, 8, 7) == filters("fcntl", 3, 15, 7) == "EPERM"
    assert filters("fcntl", 3, 1) is None
    assert filters("ioctl", 0, 0x5412) == "EPERM"
    assert filters("ioctl", 0, 0x5401) is None
    for name in seccomp.ALWAYS_DENIED:
        assert filters(name, processes=True, network=True) == "EPERM"


def test_filter_lets_all_else_through(filters):
    program = seccomp.program(seccomp.rules(PID, False, False), filters.machine)
    ruled = {system_calls.number(name, filters.machine) for name in system_calls.NUMBERS}
    for number in set(range(500)) - ruled:
        assert verdict(program, filters.machine, "", number=number) == seccomp.ALLOW


@pytest.mark.parametrize("machine", MACHINES)
def test_filter_kills_calls_by_other_numbers(machine):
    program = seccomp.program([], machine)
    (other,) = set(MACHINES) - {machine}
    assert verdict(program, machine, "socket") == seccomp.ALLOW
    assert verdict(program, other, "socket") == seccomp.KILL_PROCESS
    if machine == "x86_64":
        assert verdict(program, machine, "", number=0x40000000 + 41) == seccomp.KILL_PROCESS


HEADERS = {"x86_64": "x86_64-linux-gnu/asm/unistd_64.h", "aarch64": "asm-generic/unistd.h"}


@pytest.mark.parametrize("machine", MACHINES)
def test_numbers_are_those_of_the_kernel_headers(machine):
    path = f"/usr/include/{HEADERS[machine]}"
    if not os.path.exists(path):
        pytest.skip(f"needs the kernel headers: {path} (apt: linux-libc-dev)")
    found = re.findall(r"#define __NR(?:3264)?_(\w+) (\d+)$", Path(path).read_text(), re.MULTILINE)
    defined = dict(found)
    for name in system_calls.NUMBERS:
        known = system_calls.number(name, machine)
        # Headers of older systems end before the youngest calls.
        assert defined.get(name, str(known)) == str(known), name


LANDLOCK = """
namespaces.process_control(38, 1)
tell(landlock.restrict([Path(scratch).resolve()], network=False))
"""
MOUNTS = """
tell(namespaces.make_read_only([Path(scratch).resolve()], False))
isolation._drop_privileges()
"""


@pytest.mark.parametrize("user", USERS)
def test_landlock_alone_keeps_files(user):
    need_protection(user, "landlock_truncation")
    with reachable(user) as scratch, reachable(user) as outside:
        fill(outside, user)
        before = look(outside)
        extra = {"outside": str(outside)}
        code = FILE_ATTEMPTS + TELL_ATTEMPTS
        _, (parts, errors) = run_confined(code, scratch, user, extra, before=LANDLOCK)
        assert look(outside) == before
    assert parts[:2] == ["landlock_files", "landlock_truncation"]
    assert set(errors.values()) == {"EACCES", "EXDEV"}, errors


@pytest.mark.parametrize("user", USERS)
def test_read_only_mounts_alone_keep_files_and_their_modes(user):
    need_protection(user, "read_only_mounts")
    with reachable(user) as scratch, reachable(user) as outside:
        fill(outside, user)
        before = look(outside)
        extra = {"outside": str(outside)}
        code = FILE_ATTEMPTS + METADATA + TELL_ATTEMPTS
        _, (done, errors) = run_confined(code, scratch, user, extra, before=MOUNTS)
        assert look(outside) == before
    assert done is True
    assert set(errors.values()) == {"EROFS", "EXDEV"}, errors
    assert len(errors) == 21


REACH = """
victim, port, name = extra
tell(attempt(socket.create_connection, ("127.0.0.1", port), 5))
tell(attempt(lambda: socket.socket(socket.AF_UNIX).connect("\\0" + name)))
tell(attempt(os.kill, victim, 0))
tell(attempt(os.kill, os.getpid(), 0))
os.killpg(0, signal.SIGKILL)
"""


def test_landlock_alone_keeps_from_tcp_abstract_sockets_and_others():
    need_protection("this user", "landlock_signals")
    name = f"test-{os.getpid()}"
    with (
        reachable("this user") as scratch,
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.socket(socket.AF_UNIX) as abstract,
        sleeping("this user") as victim,
    ):
        abstract.bind("\0" + name)
        abstract.listen()
        extra = [victim.pid, server.getsockname()[1], name]
        free = run_confined(REACH, scratch, extra=extra, before="")
        kept = run_confined(REACH, scratch, extra=extra, before=LANDLOCK)
    assert free == (-signal.SIGKILL, [None, None, None, None])
    assert kept[0] == -signal.SIGKILL
    assert kept[1][1:] == ["EACCES", "EPERM", "EPERM", None]
