"""Workers end with all that they started, and killing one leaves nothing behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from sandbox.confined import (
    CONFINE,
    USERS,
    WATCHDOG,
    arguments_of,
    need_protection,
    reachable,
    run_confined,
    start_python,
)

from sepo_jax.sandbox import pids_cgroup
from sepo_jax.sandbox.isolation import kill_tree


def has_group(pid):
    """Whether a worker has a control group."""
    return any((place / f"{pids_cgroup.PREFIX}{pid}").exists() for place in pids_cgroup._places())


@pytest.mark.parametrize("processes", [0, 4])
def test_who_ignores_signals_is_killed(processes):
    code = """
for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, 32, 33}:
    signal.signal(number, signal.SIG_IGN)
tell("ready")
while True:
    time.sleep(300)
"""
    with reachable("this user") as scratch:
        arguments = arguments_of(code, scratch, None, {"processes": processes})
        with start_python(*arguments, user="this user") as process:
            assert process.stdout.readline() == '"ready"\n'
            if processes == 0:
                process.terminate()
                time.sleep(0.1)
                assert process.poll() is None
            kill_tree(process.pid)
            assert process.wait(timeout=WATCHDOG) == -signal.SIGKILL
        assert not has_group(process.pid)


GRANDCHILDREN = """
token = "sleep-" + os.path.basename(scratch)
sleeper = [sys.executable, "-c", "import time; time.sleep(300)", token]
if os.fork() == 0:  # orphaned, in a session of its own
    os.setsid()
    if os.fork() == 0:
        os.execv(sys.executable, sleeper)
    os._exit(0)
os.wait()
direct = subprocess.Popen(sleeper, start_new_session=True)
time.sleep(0.1)
tell("ready")
if extra == "exit":
    os._exit(7)
if extra == "kill itself":
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(300)
"""


def running(token):
    """Processes whose command line ends in a token."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            arguments = path.read_bytes().rstrip(b"\0").split(b"\0")
        except OSError:
            continue
        if arguments[-1] == token.encode():
            found.append(path.parent.name)
    return found


def wait_for(condition):
    """Waits until a condition holds, and says whether it does in the end."""
    end = time.monotonic() + 60
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()


@pytest.mark.parametrize("end", ["exit", "kill itself", "kill", "kill tree"])
@pytest.mark.parametrize("user", USERS)
def test_grandchildren_end_with_the_worker(user, end):
    need_protection(user, "pid_namespace")
    with reachable(user) as scratch:
        token = f"sleep-{scratch.name}"
        arguments = arguments_of(GRANDCHILDREN, scratch, end, {"processes": 8})
        with start_python(*arguments, user=user) as process:
            assert process.stdout.readline() == '"ready"\n'
            grouped = has_group(process.pid)
            if end == "kill":
                assert len(running(token)) == 2
                os.kill(process.pid, signal.SIGKILL)
            elif end == "kill tree":
                kill_tree(process.pid)
            status = process.wait(timeout=WATCHDOG)
        assert status == (7 if end == "exit" else -signal.SIGKILL)
        assert wait_for(lambda: running(token) == [])
        if end == "kill":  # what nobody removes goes when the next worker starts
            assert has_group(process.pid) == grouped
            assert run_confined("", scratch, user, processes=1) == (0, [])
        assert not has_group(process.pid)


TIED = "namespaces.process_control(1, signal.SIGKILL)"


@pytest.mark.parametrize("user", USERS)
def test_a_worker_ends_with_its_parent(user):
    need_protection(user, "pid_namespace")
    with reachable(user) as scratch:
        token = f"sleep-{scratch.name}"
        inner = arguments_of(GRANDCHILDREN, scratch, "stay", {"processes": 8}, TIED + CONFINE)
        outer = (
            "import subprocess, sys, time;"
            "subprocess.Popen([sys.executable, '-c', *sys.argv[1:]]); time.sleep(300)"
        )
        with start_python(outer, *inner, user=user) as process:
            assert process.stdout.readline() == '"ready"\n'
            assert len(running(token)) == 2
            process.kill()
            process.wait(timeout=WATCHDOG)
        assert wait_for(lambda: running(token) == [])


FAMILY = """
import os, signal, subprocess, sys, time
sleeper = [sys.executable, "-c", "import time; time.sleep(300)", sys.argv[1]]
subprocess.Popen(sleeper, start_new_session=True)
subprocess.Popen(sleeper)
if os.fork() == 0:  # an orphan that stays in the session, in a group of its own
    os.setpgid(0, 0)
    subprocess.Popen(sleeper)
    os._exit(0)
os.wait()
print("ready", flush=True)
if sys.argv[2] == "die":
    os._exit(0)
time.sleep(300)
"""


def test_kill_tree_finds_children_groups_and_sessions():
    token = f"sleep-family-{os.getpid()}"
    with start_python(FAMILY, token, "live", user="this user") as process:
        assert process.stdout.readline() == "ready\n"
        assert wait_for(lambda: len(running(token)) == 3)
        kill_tree(process.pid)
        assert process.wait(timeout=WATCHDOG) == -signal.SIGKILL
    assert wait_for(lambda: running(token) == [])


def test_kill_tree_finds_the_session_of_a_worker_that_is_dead():
    token = f"sleep-session-{os.getpid()}"
    with start_python(FAMILY, token, "die", user="this user") as process:
        assert process.stdout.readline() == "ready\n"
        assert wait_for(lambda: len(running(token)) == 3)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        kill_tree(process.pid)
        assert wait_for(lambda: len(running(token)) == 1)
        (other,) = running(token)  # nothing ties it to the worker any more
        os.kill(int(other), signal.SIGKILL)
        assert process.wait(timeout=WATCHDOG) == 0


CHAIN = """
import os, signal, sys
print("ready", flush=True)
for _ in range(300):  # every child has a child at once, until the alarm ends it all
    signal.alarm(20)
    if os.fork():
        signal.pause()
    if sys.argv[2] == "sessions":
        os.setsid()
signal.pause()
"""


@pytest.mark.parametrize("kind", ["one session", "sessions"])
def test_kill_tree_stops_what_keeps_forking(kind):
    token = f"chain-{os.getpid()}"
    with start_python(CHAIN.replace("sys.argv[2]", repr(kind)), token, user="this user") as process:
        assert process.stdout.readline() == "ready\n"
        kill_tree(process.pid)
        assert process.wait(timeout=WATCHDOG) == -signal.SIGKILL
        assert wait_for(lambda: running(token) == [])


def test_kill_tree_of_a_process_that_is_gone_is_fine():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait(timeout=WATCHDOG)
    kill_tree(process.pid)


def test_kill_tree_refuses_what_is_no_worker():
    for pid in (0, 1, -5, os.getpid(), os.getppid(), os.getpgrp(), "7", None):
        with pytest.raises(ValueError, match="process id of a worker"):
            kill_tree(pid)
