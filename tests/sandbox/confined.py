"""Runs Python in processes of its own, as this user or as a plain one, with a hard time limit."""

import contextlib
import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy
import pytest

import sepo_jax

WATCHDOG = 120  # seconds; far more than any of these processes needs on an idle machine
PLAIN_USER = 65534
USERS = ("this user", "plain user")
TEMPORARY = tempfile.gettempdir()
SOURCE = Path(sepo_jax.__file__).parents[1]


@contextlib.contextmanager
def reachable(user):
    """An empty directory of `user`, where every user can go."""
    place = Path(tempfile.mkdtemp(prefix="test-", dir=TEMPORARY))
    try:
        place.chmod(0o755)
        if user == "plain user":
            os.chown(place, PLAIN_USER, PLAIN_USER)
        yield place
    finally:
        shutil.rmtree(place)


@functools.cache
def plain_python():
    """A Python that the plain user can run with this package and numpy; None without one."""
    places = f"{SOURCE}:{Path(numpy.__file__).parents[1]}"
    for python in (sys.executable, shutil.which("python3", path="/usr/bin:/usr/local/bin")):
        try:
            done = run_python("import numpy, sepo_jax.sandbox", python=python, path=places)
        except OSError:
            continue
        if done.returncode == 0:
            return python, places
    return None


def need(user):
    """Skips the test where it cannot run as `user`."""
    if user == "plain user":
        if os.geteuid() != 0:
            pytest.skip("only root can become the plain user; these tests run as a plain user")
        if plain_python() is None:
            pytest.skip("the plain user can run no Python with this package and numpy")


def start_python(code, *arguments, user="plain user", python=None, path=None):
    """Starts code with arguments, in a session of its own; its output is piped, as text."""
    options = {}
    if user == "plain user":
        if python is None:
            python, path = plain_python()
        options = {"user": PLAIN_USER, "group": PLAIN_USER, "extra_groups": []}
        options["env"] = {"PATH": os.environ["PATH"], "PYTHONPATH": path}
    return subprocess.Popen(
        [python or sys.executable, "-c", code, *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd="/",
        start_new_session=True,
        **options,
    )


def run_python(code, *arguments, **options):
    """Runs code with arguments to its end; returns the completed process."""
    with start_python(code, *arguments, **options) as process:
        try:
            out, errors = process.communicate(timeout=WATCHDOG)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, errors)


@contextlib.contextmanager
def sleeping(user):
    """A process of `user` that only sleeps."""
    with start_python("import time; time.sleep(60)", user=user) as process:
        try:
            yield process
        finally:
            process.kill()


HELPERS = """
import ctypes, errno, json, os, resource, signal, socket, subprocess, sys, tempfile, threading, time
import warnings
from pathlib import Path
from sepo_jax.sandbox import isolation, landlock, namespaces, pids_cgroup, seccomp
scratch, extra = sys.argv[1], json.loads(sys.argv[3])
limits = isolation.Limits(**json.loads(sys.argv[2]))
def attempt(action, *arguments):
    "None where an action goes through, or the name of its error."
    try:
        action(*arguments)
    except OSError as error:
        return errno.errorcode.get(error.errno, type(error).__name__)
    except Exception as error:
        return type(error).__name__
def tell(value):
    print(json.dumps(value), flush=True)
"""
CONFINE = """
warnings.simplefilter("ignore")
in_force = isolation.confine(limits, scratch)
"""


def arguments_of(code, scratch, extra, limits, before=CONFINE):
    """What `start_python` takes to confine a process and then run code in it.

    The code finds `scratch`, `limits`, `extra`, `in_force`, `attempt` and `tell`.
    """
    return HELPERS + before + code, scratch, json.dumps(limits), json.dumps(extra)


def run_confined(code, scratch, user="this user", extra=None, before=CONFINE, **limits):
    """Runs code after `confine`, or after `before`: its exit code, and what it told, by lines."""
    done = run_python(*arguments_of(code, scratch, extra, limits, before), user=user)
    assert not done.stderr, done.stderr
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]


@functools.cache
def protections(user):
    """Which protections this system offers to a user."""
    need(user)
    code = (
        "import json; from sepo_jax.sandbox import isolation; print(json.dumps(isolation.probe()))"
    )
    done = run_python(code, user=user)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def need_protection(user, *names):
    """Skips the test where the system lacks all of the protections."""
    if not any(protections(user)[name] for name in names):
        pytest.skip(f"this system offers {user} none of: {', '.join(names)}")


# Ways to write outside: name and action, for `outside` (a directory with a file) and `scratch`.
FILE_ATTEMPTS = """
outside = extra["outside"]
there = outside + "/file"
def write(path, mode="w"):
    with open(path, mode) as file:
        file.write("x")
def through(link, target):
    os.symlink(target, scratch + "/" + link)
    return scratch + "/" + link
write(scratch + "/mine")
os.mkdir(scratch + "/folder")
ATTEMPTS = {
    "new": lambda: write(outside + "/new"),
    "over": lambda: write(there),
    "append": lambda: write(there, "a"),
    "link": lambda: write(through("a", there)),
    "folder link": lambda: write(through("b", outside) + "/new2"),
    "dots": lambda: write(scratch + "/../" + os.path.relpath(there, os.path.dirname(scratch))),
    "truncate": lambda: os.truncate(there, 0),
    "open to truncate": lambda: os.close(os.open(there, os.O_RDONLY | os.O_TRUNC)),
    "mkdir": lambda: os.mkdir(outside + "/folder"),
    "symlink": lambda: os.symlink(scratch, outside + "/symlink"),
    "mkfifo": lambda: os.mkfifo(outside + "/pipe"),
    "rename out": lambda: os.rename(scratch + "/mine", outside + "/mine"),
    "rename folder out": lambda: os.rename(scratch + "/folder", outside + "/folder2"),
    "hard link out": lambda: os.link(through("c", there), outside + "/hard"),
    "hard link in": lambda: write([os.link(there, scratch + "/hard"), scratch + "/hard"][1]),
    "rename in": lambda: os.rename(outside + "/second", scratch + "/second"),
    "rmdir": lambda: os.rmdir(outside + "/empty"),
    "unlink": lambda: os.unlink(outside + "/third"),
}
"""
METADATA = """
ATTEMPTS |= {
    "chmod": lambda: os.chmod(there, 0o600),
    "times": lambda: os.utime(there, (1, 1)),
    "attribute": lambda: os.setxattr(there, "user.x", b"x"),
}
"""
TELL_ATTEMPTS = "tell({name: attempt(action) for name, action in ATTEMPTS.items()})"


def fill(outside, user):
    """Puts the things into a directory that FILE_ATTEMPTS are after."""
    for name in ("file", "second", "third"):
        (outside / name).write_text("before")
        os.utime(outside / name, (100, 100))
    (outside / "empty").mkdir()
    if user == "plain user":
        for path in outside.iterdir():
            os.chown(path, PLAIN_USER, PLAIN_USER)


def look(outside):
    """All that is in a directory: contents, modes and times."""
    found = {}
    for path in sorted(outside.rglob("*")):
        about = path.lstat()
        found[path.name] = (about.st_mode, about.st_mtime, path.is_file() and path.read_text())
    return found
