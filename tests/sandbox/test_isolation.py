"""Limits, what still works in a sandbox, and what is said of protections that are missing."""

import os
import pickle
import threading
from pathlib import Path

import pytest
from sandbox.confined import (
    CONFINE,
    USERS,
    need,
    need_protection,
    protections,
    reachable,
    run_confined,
    run_python,
)

from sepo_jax.sandbox.isolation import PROTECTIONS, Limits, confine, probe
from sepo_jax.sandbox.protocol import SandboxError

ORDINARY = """
import asyncio, numpy, random, shutil, socket, sqlite3, tarfile, zipfile
place = Path(scratch)
done = []

count = int(numpy.ones((300, 300)).dot(numpy.ones((300, 300)))[0, 0])
done.append(count == 300 and len(os.listdir("/proc/self/task")) == 1)

results = []
threads = [threading.Thread(target=results.append, args=(n,)) for n in range(20)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
done.append(sorted(results) == list(range(20)))

with tempfile.NamedTemporaryFile() as file, tempfile.TemporaryDirectory() as folder:
    done.append(Path(file.name).parent == place.resolve() == Path(folder).parent)

(place / "a" / "b").mkdir(parents=True)
(place / "a" / "file").write_text("x")
os.chmod(place / "a" / "file", 0o640)
os.utime(place / "a" / "file", (5, 5))
os.rename(place / "a" / "file", place / "a" / "b" / "moved")
os.link(place / "a" / "b" / "moved", place / "hard")
os.symlink(place / "hard", place / "soft")
shutil.copytree(place / "a", place / "c")
os.truncate(place / "c" / "b" / "moved", 0)
done.append((place / "soft").read_text() == "x" and os.stat(place / "hard").st_mtime == 5)
shutil.rmtree(place / "a")
os.chdir(place)
Path("relative").write_text("x")
done.append(not (place / "a").exists() and (place / "relative").exists())

done.append(len(Path(isolation.__file__).read_text()) > 1000 and os.path.exists("/etc/passwd"))
with open(os.devnull, "w") as null:
    print("nothing", file=null)
done.append(asyncio.run(asyncio.wait_for(asyncio.sleep(0, "slept"), 5)) == "slept")

signal.signal(signal.SIGUSR1, lambda *_: done.append("signalled"))
os.kill(os.getpid(), signal.SIGUSR1)
os.killpg(0, 0)
signal.raise_signal(signal.SIGUSR1)
with open("/proc/self/stat") as file:
    done.append(file.read().split()[0] == str(os.getpid()))
with sqlite3.connect(place / "database") as base:
    base.execute("create table t (x)")
os.nice(1)
resource.setrlimit(resource.RLIMIT_NOFILE, (512, 1024))
tell(done)
"""
CHILDREN = """
import multiprocessing
done = []
done.append(subprocess.run(["/bin/sh", "-c", "echo a | tr a b"], capture_output=True).stdout == b"b\\n")
with subprocess.Popen(["/bin/sleep", "60"]) as child:
    child.kill()
    done.append(child.wait() == -9)
child = os.fork()
if child == 0:
    os._exit(3)
done.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3)
first, second = multiprocessing.Pipe()
process = multiprocessing.get_context("fork").Process(target=second.send, args=("sent",))
process.start()
done.append(first.recv() == "sent")
process.join()
done.append(process.exitcode == 0)
tell(done)
sys.exit(5)
"""  # noqa: E501


@pytest.mark.slow
@pytest.mark.parametrize("processes", [0, 30])
@pytest.mark.parametrize("user", USERS)
def test_ordinary_python_works_inside(user, processes):
    need(user)
    with reachable(user) as scratch:
        before = "tempfile.gettempdir()" + CONFINE
        status, (done,) = run_confined(ORDINARY, scratch, user, before=before, processes=processes)
        assert done.count("signalled") == 2
        assert all(done), done
        assert status == 0
        # What stays belongs to this user, who can remove it.
        assert (scratch / "relative").stat().st_uid == scratch.stat().st_uid


@pytest.mark.parametrize("user", USERS)
def test_children_work_where_they_are_allowed(user):
    need(user)
    with reachable(user) as scratch:
        status, (done,) = run_confined(CHILDREN, scratch, user, processes=8)
    assert all(done), done
    assert status == 5


def test_further_paths_can_be_written():
    code = """
folder, file, other = extra
Path(folder, "new").write_text("x")
Path(file).write_text("x")
tell(attempt(Path(other).write_text, "x"))
tell(attempt(Path(file + "2").write_text, "x"))
"""
    need_protection("this user", "landlock_files", "read_only_mounts")
    with reachable("this user") as scratch, reachable("this user") as outside:
        (outside / "folder").mkdir()
        for name in ("file", "other"):
            (outside / name).write_text("before")
        extra = [str(outside / name) for name in ("folder", "file", "other")]
        status, (other, new) = run_confined(code, scratch, extra=extra, writable=extra[:2])
        assert status == 0
        assert (outside / "folder" / "new").read_text() == (outside / "file").read_text() == "x"
        assert (outside / "other").read_text() == "before"
    assert None not in (other, new)


def test_a_working_directory_in_scratch_stays_writable():
    before = "os.chdir(scratch + '/sub')\nisolation.confine(limits, scratch)\n"
    with reachable("this user") as scratch:
        (scratch / "sub").mkdir()
        code = "Path('file').write_text('x'); tell(os.getcwd())"
        status, told = run_confined(code, scratch, before=before)
        assert (status, told) == (0, [str((scratch / "sub").resolve())])
        assert (scratch / "sub" / "file").exists()


@pytest.mark.parametrize("user", USERS)
def test_own_threads_do_not_count_as_children(user):
    need_protection(user, "pids_cgroup", "process_limit")
    before = "isolation.confine(limits, scratch, own_threads=2)\n"
    code = """
for _ in range(2):
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
children = [subprocess.Popen(["/bin/sleep", "60"]) for _ in range(3)]
tell(attempt(subprocess.run, ["/bin/true"]))
[child.kill() for child in children]
os._exit(0)
"""
    with reachable(user) as scratch:
        assert run_confined(code, scratch, user, before=before, processes=3) == (0, ["EAGAIN"])


@pytest.mark.parametrize("processes", [0, 1])
@pytest.mark.parametrize("user", USERS)
def test_probe_says_what_confine_puts_in_force(user, processes):
    need(user)
    offered = protections(user)
    assert list(offered) == list(PROTECTIONS)
    assert offered["resource_limits"]
    only_with_children = {"pid_namespace", "pids_cgroup", "process_limit"}
    expected = {name for name in PROTECTIONS if offered[name]}
    expected -= set() if processes else only_with_children
    with reachable(user) as scratch:
        _, (in_force,) = run_confined("tell(in_force)", scratch, user, processes=processes)
    assert set(in_force) == expected


def test_probe_leaves_this_process_as_it_is():
    probe()
    with open("/proc/self/status") as file:
        fields = dict(line.split(":", 1) for line in file)
    assert fields["NoNewPrivs"].strip() == "0"


WITHOUT = """
from unittest import mock
with mock.patch.multiple(landlock, interface=lambda: extra["landlock"]), \\
     mock.patch.multiple(namespaces, _works=lambda action: extra["namespaces"]), \\
     mock.patch.multiple(seccomp, architecture=lambda: "x86_64" if extra["filter"] else None), \\
     mock.patch.multiple(pids_cgroup, make=lambda pid: None), \\
     warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    in_force = isolation.confine(limits, scratch)
tell([str(warning.message) for warning in caught])
tell(in_force)
tell(attempt(Path(scratch, "file").write_text, "x"))
"""


def confined_without(parts, **limits):
    """Warnings, and protections in force, where the system lacks some parts."""
    with reachable("this user") as scratch:
        status, told = run_confined("", scratch, extra=parts, before=WITHOUT, **limits)
    messages, in_force, written = told
    assert (status, written) == (0, None)
    return messages, in_force


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the test names this architecture")
def test_what_is_missing_is_warned_of_once():
    nothing = {"landlock": 0, "namespaces": False, "filter": False}
    (message,), in_force = confined_without(nothing, processes=0)
    for part in ("write files", "modes and times", "signal other", "network", "start processes"):
        assert part in message
    for advice in ("landlock", "user namespaces", "CONFIG_SECCOMP_FILTER"):
        assert advice in message
    assert in_force == ["resource_limits", "no_new_privileges", "no_capabilities"]

    (message,), in_force = confined_without(nothing | {"filter": True}, processes=2)
    assert "leave processes behind" in message
    assert ("start more processes" in message) == (os.geteuid() == 0)
    assert "network" not in message
    assert "system_call_filter" in in_force

    (message,), in_force = confined_without({"landlock": 1, "namespaces": False, "filter": True})
    assert "write files" not in message
    assert "truncate" in message
    assert "landlock_files" in in_force
    assert "landlock_truncation" not in in_force


@pytest.mark.parametrize("user", USERS)
def test_nothing_is_warned_of_where_all_is_in_force(user):
    need(user)
    if not all(protections(user)[name] for name in PROTECTIONS[:-2]):
        pytest.skip(f"this system does not offer {user} all protections")
    before = "warnings.simplefilter('error')\nisolation.confine(limits, scratch)\n"
    with reachable(user) as scratch:
        for processes in (0, 2):
            assert run_confined("", scratch, user, before=before, processes=processes) == (0, [])


def test_confine_refuses_a_process_with_threads(tmp_path):
    started = threading.Event()
    thread = threading.Thread(target=started.wait, daemon=True)
    thread.start()
    with pytest.raises(SandboxError, match="one thread, and this one has"):
        confine(Limits(), tmp_path)
    started.set()
    thread.join()


def test_confine_refuses_paths_that_are_missing():
    code = """
import sys
from sepo_jax.sandbox.isolation import Limits, confine
for limits, scratch in ((Limits(), "/missing"), (Limits(writable=["/also-missing"]), "/tmp")):
    try:
        confine(limits, scratch)
    except Exception as error:
        print(type(error).__name__, error)
"""
    done = run_python(code, user="this user")
    first, second = done.stdout.splitlines()
    assert first == "SandboxError the scratch directory /missing does not exist; make it first"
    assert second.startswith("SandboxError limits.writable names /also-missing, which does not")


def test_limits_take_lists_and_cross_processes():
    limits = Limits(writable=["/a", Path("/b")], seconds=1, processes=3)
    assert limits.writable == ("/a", "/b")
    assert pickle.loads(pickle.dumps(limits)) == limits
    assert hash(limits) == hash(Limits(writable=("/a", "/b"), seconds=1.0, processes=3))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("seconds", 0, "above 0"),
        ("seconds", float("nan"), "above 0"),
        ("seconds", float("inf"), "above 0"),
        ("seconds", "60", "above 0"),
        ("cpu_seconds", -1.0, "above 0"),
        ("cpu_seconds", True, "above 0"),
        ("memory_bytes", 0, "from 1"),
        ("memory_bytes", 2.0**30, "from 1"),
        ("file_bytes", -1, "from 1"),
        ("processes", -1, "from 0"),
        ("processes", True, "from 0"),
        ("processes", None, "from 0"),
        ("network", 1, "True or False"),
        ("network", "no", "True or False"),
        ("writable", "/tmp", "tuple of paths"),
        ("writable", ("relative",), "absolute"),
    ],
)
def test_bad_limits_are_refused(name, value, message):
    with pytest.raises(ValueError, match=rf"limits\.{name} .*{message}"):
        Limits(**{name: value})


def test_the_worker_side_loads_nothing_heavy():
    code = """
import sys
before = set(sys.modules)
import sepo_jax.sandbox.isolation
print(*sorted(set(sys.modules) - before))
"""
    loaded = set(run_python(code, user="this user").stdout.split())
    assert "sepo_jax.sandbox.isolation" in loaded
    assert not loaded & {"jax", "numpy", "subprocess", "tempfile", "multiprocessing"}
