"""Environments that try to get out: every way must fail, and its caller must hear of it."""

import os
import signal
import socket

import pytest
from sandbox import toys
from sandbox.confined import (
    FILE_ATTEMPTS,
    METADATA,
    TELL_ATTEMPTS,
    USERS,
    fill,
    look,
    need,
    need_protection,
    protections,
    reachable,
    run_confined,
    sleeping,
)
from sandbox.pools import Client, processes_of_workers

from sepo_jax.sandbox.isolation import Limits
from sepo_jax.sandbox.process_pool import ProcessPool

# Prints every attempt's error by name; null would be an escape.
NETWORK = """
kinds = [(family, kind) for family in (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX,
         socket.AF_NETLINK, socket.AF_PACKET, 40) for kind in (socket.SOCK_STREAM,
         socket.SOCK_DGRAM, socket.SOCK_RAW)]
errors = {f"{family:d} {kind:d}": attempt(socket.socket, family, kind) for family, kind in kinds}
errors["connect"] = attempt(socket.create_connection, ("127.0.0.1", extra["port"]), 5)
errors["datagram pair"] = attempt(socket.socketpair, socket.AF_UNIX, socket.SOCK_DGRAM)
library = ctypes.CDLL(None, use_errno=True)
def call(number, *values):
    if library.syscall(number, *map(ctypes.c_long, values)) < 0:
        raise OSError(ctypes.get_errno(), "")
errors["io_uring"] = attempt(call, 425, 1, 0)
first, second = socket.socketpair()
first.send(b"x")
errors["own pair"] = attempt(first.connect, "/dev/log")
tell(errors)
tell(second.recv(1).decode())
"""


@pytest.fixture
def server():
    """A TCP server on this machine: its port."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


@pytest.mark.parametrize("processes", [0, 4])
@pytest.mark.parametrize("user", USERS)
def test_no_socket_opens(server, user, processes):
    need_protection(user, "system_call_filter")
    with reachable(user) as scratch:
        code, (errors, echo) = run_confined(
            NETWORK, scratch, user, {"port": server}, processes=processes
        )
    assert (code, echo) == (0, "x")
    assert set(errors.values()) == {"EPERM"}


def test_sockets_open_where_they_are_allowed(server):
    with reachable("this user") as scratch:
        _, (errors, _) = run_confined(NETWORK, scratch, extra={"port": server}, network=True)
    assert errors["connect"] is None
    assert errors[f"{socket.AF_INET:d} {socket.SOCK_DGRAM:d}"] is None


@pytest.mark.parametrize("user", USERS)
def test_nothing_is_written_outside(user):
    need_protection(user, "landlock_files", "read_only_mounts")
    metadata = protections(user)["read_only_mounts"]
    code = FILE_ATTEMPTS + METADATA * metadata + TELL_ATTEMPTS
    with reachable(user) as scratch, reachable(user) as outside:
        fill(outside, user)
        before = look(outside)
        extra = {"outside": str(outside)}
        status, (errors,) = run_confined(code, scratch, user, extra)
        assert look(outside) == before
    assert status == 0
    assert None not in errors.values(), errors
    assert len(errors) == 18 + 3 * metadata


def test_all_of_that_goes_through_without_a_sandbox():
    code = FILE_ATTEMPTS + METADATA + TELL_ATTEMPTS
    with reachable("this user") as scratch, reachable("this user") as outside:
        fill(outside, "this user")
        _, (errors,) = run_confined(code, scratch, extra={"outside": str(outside)}, before="")
    assert set(errors.values()) == {None}


@pytest.mark.parametrize("user", USERS)
def test_nothing_is_written_to_the_usual_places(user):
    need_protection(user, "landlock_files", "read_only_mounts")
    code = """
places = [os.path.expanduser("~"), "/tmp", "/var/tmp", "/dev/shm", "/", str(Path(isolation.__file__).parent)]
errors = {place: attempt(open, place + "/escaped", "w") for place in places}
for path in ("/proc/self/oom_score_adj", "/proc/sys/kernel/core_pattern", "/sys/kernel/profiling",
             "/dev/kmsg", "/sys/fs/cgroup/pids/cgroup.procs", extra):
    errors[path] = attempt(open, path, "w")
tell(errors)
"""  # noqa: E501
    with reachable(user) as scratch:
        _, (errors,) = run_confined(code, scratch, user, f"/proc/{os.getpid()}/mem")
    assert None not in errors.values(), errors


@pytest.mark.parametrize("user", USERS)
def test_no_process_starts_where_none_is_allowed(user):
    need_protection(user, "system_call_filter")
    code = """
import multiprocessing
def bomb():
    while True:
        os.fork()
def vfork():
    library = ctypes.CDLL(None, use_errno=True)
    if library.vfork() < 0:
        raise OSError(ctypes.get_errno(), "")
attempts = {
    "fork": bomb,
    "subprocess": lambda: subprocess.run(["/bin/true"]),
    "vfork": vfork,
    "spawn": lambda: os.posix_spawn("/bin/true", ["true"], {}),
    "shell": lambda: os.popen("true"),
    "multiprocessing": lambda: multiprocessing.get_context("fork").Process(target=print).start(),
}
tell({name: attempt(action) for name, action in attempts.items()})
"""
    with reachable(user) as scratch:
        status, (errors,) = run_confined(code, scratch, user)
    assert status == 0
    assert set(errors.values()) == {"EPERM"}


BOMB = """
def children():
    "Forks until that fails: the number of children, and the error."
    hold, release = os.pipe()
    pids, name = [], None
    while len(pids) < 40:
        try:
            pid = os.fork()
        except OSError as error:
            name = errno.errorcode[error.errno]
            break
        if pid == 0:
            os.close(release)
            os.read(hold, 1)
            os._exit(0)
        pids.append(pid)
    os.close(release)
    for pid in pids:
        os.waitpid(pid, 0)
    return len(pids), name
tell(children())
tell(children())
for _ in range(30):  # orphans, which somebody has to collect
    if os.fork() == 0:
        os._exit(0 if os.fork() else 0)
    os.wait()
time.sleep(0.2)
tell(children())
"""


@pytest.mark.parametrize("user", USERS)
def test_no_more_processes_start_than_allowed(user):
    need_protection(user, "pids_cgroup", "process_limit")
    with reachable(user) as scratch:
        status, told = run_confined(BOMB, scratch, user, processes=8)
    assert status == 0
    assert told == [[8, "EAGAIN"]] * 3


@pytest.mark.parametrize("user", USERS)
def test_memory_ends_with_an_error(user):
    need(user)
    code = """
import mmap
tell(attempt(bytearray, 10 * 2**30))
tell(attempt(mmap.mmap, -1, 10 * 2**30))
tell(attempt(bytearray, 2**20))
tell(attempt(resource.setrlimit, resource.RLIMIT_AS, (20 * 2**30, 20 * 2**30)))
"""
    with reachable(user) as scratch:
        status, (array, mapped, small, raised) = run_confined(code, scratch, user)
    assert (status, array, mapped, small) == (0, "MemoryError", "ENOMEM", None)
    assert raised == "ValueError"  # not allowed to raise maximum limit


@pytest.mark.slow
@pytest.mark.parametrize("processes", [0, 1])
def test_endless_computing_ends_the_process(processes):
    code = """
clock = time.process_time
for used in (5.5, 0.25):  # as if it had used that much before the call
    isolation.time.process_time = lambda: used
    isolation.allow_cpu(limits)
    tell(resource.getrlimit(resource.RLIMIT_CPU))
while clock() < 100:
    pass
tell("escaped")
"""
    with reachable("this user") as scratch:
        status, told = run_confined(code, scratch, cpu_seconds=0.7, processes=processes)
    assert (status, told) == (-signal.SIGXCPU, [[7, -1], [1, -1]])


@pytest.mark.parametrize("user", USERS)
def test_a_file_stays_below_the_limit(user):
    need(user)
    code = """
with open(scratch + "/big", "wb", buffering=0) as file:
    tell(attempt(lambda: [file.write(bytes(2**20)) for _ in range(9)]))
tell(attempt(os.truncate, scratch + "/big", 2**30))
tell(os.path.getsize(scratch + "/big"))
"""
    with reachable(user) as scratch:
        status, told = run_confined(code, scratch, user, file_bytes=4 * 2**20)
    assert (status, told) == (0, ["EFBIG", "EFBIG", 4 * 2**20])


KILL = """
library = ctypes.CDLL(None, use_errno=True)
def trace(pid):
    if library.ptrace(16, pid, None, None) < 0:
        raise OSError(ctypes.get_errno(), "")
def own(pid):
    import fcntl
    first, second = os.pipe()
    fcntl.fcntl(first, fcntl.F_SETOWN, pid)
    fcntl.fcntl(first, 10, signal.SIGKILL)
    os.set_blocking(first, False)
    fcntl.fcntl(first, fcntl.F_SETFL, os.O_ASYNC)
    os.write(second, b"x")
victim, parent = extra
errors = {}
for pid in (victim, parent):
    errors[f"{pid} memory"] = attempt(open, f"/proc/{pid}/mem", "rb")
    errors[f"{pid} variables"] = attempt(open, f"/proc/{pid}/environ", "rb")
    errors[f"{pid} probe"] = attempt(os.kill, pid, 0)
    errors[f"{pid} group"] = attempt(os.killpg, pid, 0)
    errors[f"{pid} limit"] = attempt(resource.prlimit, pid, resource.RLIMIT_CPU)
    errors[f"{pid} cores"] = attempt(os.sched_setaffinity, pid, [0])
    errors[f"{pid} nice"] = attempt(os.setpriority, os.PRIO_PROCESS, pid, 19)
    errors[f"{pid} trace"] = attempt(trace, pid)
    errors[f"{pid} owner"] = attempt(own, pid)
errors["kill"] = attempt(os.kill, victim, signal.SIGKILL)
errors["pidfd"] = attempt(lambda: signal.pidfd_send_signal(os.pidfd_open(victim), signal.SIGKILL))
tell(errors)
os.kill(os.getpid(), signal.SIGTERM)
"""


@pytest.mark.parametrize("processes", [0, 4])
@pytest.mark.parametrize("user", USERS)
def test_other_processes_cannot_be_touched(user, processes):
    need_protection(user, "system_call_filter")
    need_protection(user, "landlock_signals", "pid_namespace")
    with reachable(user) as scratch, sleeping(user) as victim:
        extra = [victim.pid, os.getpid()]
        status, (errors,) = run_confined(KILL, scratch, user, extra, processes=processes)
        assert victim.poll() is None
    assert status == -signal.SIGTERM  # it can still signal itself
    assert set(errors.values()) <= {"EPERM", "EACCES", "ESRCH", "ENOENT"}, errors


@pytest.mark.parametrize("processes", [0, 4])
@pytest.mark.parametrize("user", USERS)
def test_the_cage_has_no_key(user, processes):
    need_protection(user, "system_call_filter")
    code = """
library = ctypes.CDLL(None, use_errno=True)
def call(name, *values):
    number = seccomp.number(name, os.uname().machine)
    if library.syscall(number, *map(ctypes.c_long, values)) < 0:
        raise OSError(ctypes.get_errno(), "")
names = {"unshare": 0x10000000, "setns": 3, "mount": 0, "bpf": 0, "keyctl": 0, "ptrace": 0,
         "kexec_load": 0, "perf_event_open": 0, "clone": 0x10000011, "shmget": 0, "userfaultfd": 0}
tell({name: attempt(call, name, value, 0, 0, 0, 0) for name, value in names.items()})
tell(attempt(call, "clone3", 0, 0))
status = "/proc/self/status"
if limits.processes:  # what a new program gets back
    done = subprocess.run(["/bin/cat", status], capture_output=True, text=True)
    lines = done.stdout
else:
    lines = open(status).read()
fields = dict(line.split(":", 1) for line in lines.splitlines())
tell([fields[name].strip() for name in ("CapEff", "CapPrm", "NoNewPrivs", "Seccomp")])
"""
    with reachable(user) as scratch:
        _, (errors, clone3, fields) = run_confined(code, scratch, user, processes=processes)
    assert set(errors.values()) == {"EPERM"}, errors
    assert clone3 == "ENOSYS"
    assert fields == ["0" * 16, "0" * 16, "1", "2"]


@pytest.mark.parametrize("watchdog", [120], indirect=True)
def test_a_pool_tells_what_was_tried(tmp_path, place, watchdog):
    need_protection("this user", "system_call_filter")
    need_protection("this user", "landlock_files", "read_only_mounts")
    (tmp_path / "outside").mkdir()
    attempts = {
        "socket": ("raised", "PermissionError"),
        f"outside {tmp_path / 'outside' / 'file'}": ("raised", str(tmp_path / "outside")),
        "bomb": ("raised", "PermissionError"),
        "memory": ("raised", "MemoryError"),
        "deaf": ("timeout", "a step took longer than 5 s"),
    }
    with ProcessPool(toys.Escaping, workers=1, limits=Limits(seconds=5.0)) as pool:
        client = Client(pool)
        client.reset(9, steps=9)
        for episode, (text, (kind, words)) in enumerate(attempts.items()):
            client.reset(episode)
            failure = client.step(episode, text).failure
            assert failure is not None, text
            assert (failure.kind, words in failure.message) == (kind, True), (text, failure)
            assert client.step(9, "a", seat=episode % 2).turn is not None
        assert (pool.counters["raised"], pool.counters["timeouts"]) == (4, 1)
    assert list((tmp_path / "outside").iterdir()) == []
    assert processes_of_workers(os.getpid()) == set()
