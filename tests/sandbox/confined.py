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

WATCHDOG = 30
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


def run_python(code, *arguments, user="plain user", python=None, path=None, timeout=WATCHDOG):
    """Runs code with arguments; returns the completed process, output as text."""
    options = {}
    if user == "plain user":
        if python is None:
            python, path = plain_python()
        options = {"user": PLAIN_USER, "group": PLAIN_USER, "extra_groups": []}
        options["env"] = {"PATH": os.environ["PATH"], "PYTHONPATH": path}
    command = [python or sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=timeout, cwd="/", **options
    )


PRELUDE = """
import errno, json, os, resource, signal, sys, threading, time, warnings
warnings.simplefilter("ignore")
from sepo_jax.sandbox import isolation
scratch, extra = sys.argv[1], json.loads(sys.argv[3])
limits = isolation.Limits(**json.loads(sys.argv[2]))
in_force = isolation.confine(limits, scratch)
def attempt(action, *arguments):
    "What an action gives, or the name of its error."
    try:
        return action(*arguments)
    except OSError as error:
        return errno.errorcode.get(error.errno, "?")
    except Exception as error:
        return type(error).__name__
def tell(value):
    print(json.dumps(value), flush=True)
"""


def run_confined(code, scratch, user="this user", extra=None, timeout=WATCHDOG, **limits):
    """Runs code after `confine`; gives its exit status and the values that it told, by lines.

    The code finds `scratch`, `limits`, `in_force`, `extra`, `attempt` and `tell`.
    """
    need(user)
    done = run_python(
        PRELUDE + code, scratch, json.dumps(limits), json.dumps(extra), user=user, timeout=timeout
    )
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert not done.stderr or "Traceback" not in done.stderr, done.stderr
    return done.returncode, told
