"""Scratch directories: fresh ones inside, all of it gone at the end, others' left alone."""

import fcntl
import gc
import os
import signal
import subprocess
import sys
import tempfile

import pytest
from sandbox.confined import PLAIN_USER, USERS, WATCHDOG, need, reachable, run_python

from sepo_jax.sandbox import scratch as scratch_module
from sepo_jax.sandbox.scratch import Scratch


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    """The temporary directory of each test is its own."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


@pytest.fixture
def owner():
    """A process that owns a Scratch and waits, with the directory's path: ends by a line."""
    code = (
        "import sys; from sepo_jax.sandbox.scratch import Scratch; s = Scratch();"
        "(s.make('worker') / 'f').write_text('x'); print(s.path, flush=True); sys.stdin.readline()"
    )
    command = [sys.executable, "-c", code]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        try:
            yield child, child.stdout.readline().strip()
        finally:
            child.kill()


def test_makes_fresh_empty_directories_inside(temporary):
    with Scratch() as scratch:
        assert scratch.path.parent == temporary
        assert scratch.path.name.startswith("sepo_jax-")
        first = scratch.make("worker")
        (first / "left").write_text("over")
        second = scratch.make("worker")
        assert first != second
        for path in (first, second):
            assert path.parent == scratch.path
            assert path.name.startswith("worker")
            assert path.stat().st_mode & 0o077 == 0
        assert list(second.iterdir()) == []


def test_remove_takes_one_directory_and_leaves_the_others():
    with Scratch() as scratch:
        gone, kept = scratch.make("a"), scratch.make("a")
        (gone / "deep" / "deeper").mkdir(parents=True)
        scratch.remove(gone)
        assert not gone.exists()
        assert kept.exists()
        scratch.remove(gone)


@pytest.mark.parametrize("end", ["close", "with", "lost"])
def test_every_end_removes_all(temporary, end):
    scratch = Scratch()
    (scratch.make("worker") / "file").write_text("x")
    if end == "with":
        with scratch:
            pass
    elif end == "close":
        scratch.close()
        scratch.close()
    del scratch
    gc.collect()
    assert list(temporary.iterdir()) == []


def test_the_end_of_the_interpreter_removes_all(owner, temporary):
    child, path = owner
    assert os.path.isdir(path)
    child.communicate("\n", timeout=WATCHDOG)
    assert child.returncode == 0
    assert list(temporary.iterdir()) == []


def test_what_a_killed_owner_left_goes_with_the_next(owner, temporary):
    child, path = owner
    child.send_signal(signal.SIGKILL)
    child.wait(timeout=WATCHDOG)
    assert os.path.isdir(path)
    Scratch(prefix="other-").close()
    assert os.path.isdir(path)
    with Scratch() as scratch:
        assert list(temporary.iterdir()) == [scratch.path]


def test_what_a_living_owner_holds_stays(owner):
    _, path = owner
    Scratch().close()
    with Scratch(), Scratch():
        assert os.path.isdir(path)
        assert os.listdir(path)


def test_sweeps_nothing_that_it_cannot_lock(temporary, tmp_path_factory):
    no_lock = temporary / "sepo_jax-nolock"
    no_lock.mkdir()
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / scratch_module.LOCK).touch()
    (temporary / "sepo_jax-link").symlink_to(elsewhere)
    (temporary / "sepo_jax-file").touch()
    pipe = temporary / "sepo_jax-linked-lock"
    pipe.mkdir()
    (pipe / scratch_module.LOCK).symlink_to(elsewhere / scratch_module.LOCK)
    before = sorted(temporary.iterdir())
    Scratch().close()
    assert sorted(temporary.iterdir()) == before
    assert (elsewhere / scratch_module.LOCK).exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make directories of another user")
def test_sweeps_nothing_of_another_user(temporary):
    theirs = temporary / "sepo_jax-theirs"
    theirs.mkdir()
    (theirs / scratch_module.LOCK).touch()
    os.chown(theirs, 65534, 65534)
    Scratch().close()
    assert theirs.exists()
    os.chown(theirs, 0, 0)
    Scratch().close()
    assert not theirs.exists()


def test_its_lock_is_held_from_the_first_sight_of_it():
    with Scratch() as scratch, open(scratch.path / scratch_module.LOCK) as lock:
        with pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert os.listdir(scratch.path) == [scratch_module.LOCK]


def test_a_forked_copy_removes_nothing():
    with Scratch() as scratch:
        child = os.fork()
        if child == 0:
            scratch.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert scratch.path.is_dir()
    assert not scratch.path.exists()


# What a hostile environment may leave behind, as the user that runs the test.
MESS = """
import os, sys
os.chdir(sys.argv[1])
os.makedirs("locked/inner/more")
open("locked/inner/file", "w").close()
os.symlink(sys.argv[2], "link")
os.symlink(sys.argv[2], "locked/link")
os.mkfifo("locked/pipe")
open("locked/none", "w").close()
os.chmod("locked/none", 0)
for name in ("locked/inner/more", "locked/inner", "locked"):
    os.chmod(name, 0)
for depth in range(int(sys.argv[3])):
    os.mkdir("d" * 100)
    os.chdir("d" * 100)
"""
REMOVE = """
import resource, tempfile, warnings
from sepo_jax.sandbox.scratch import Scratch
warnings.simplefilter("error")
tempfile.tempdir = sys.argv[4]
os.chdir("/")
scratch = Scratch()
os.rename(sys.argv[1], scratch.path / "mess")
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
scratch.close()
"""


@pytest.mark.parametrize("user", USERS)
def test_unreadable_deep_and_linked_things_go_too(user):
    need(user)
    with reachable(user) as place, reachable(user) as outside:
        (outside / "kept").write_text("kept")
        mess = place / "mess"
        mess.mkdir()
        if user == "plain user":
            os.chown(mess, PLAIN_USER, PLAIN_USER)
        done = run_python(MESS + REMOVE, mess, outside, 150, place, user=user)
        assert (done.returncode, done.stderr) == (0, "")
        assert list(place.iterdir()) == []
        assert (outside / "kept").read_text() == "kept"
        assert outside.stat().st_mode & 0o777 == 0o755


def test_what_will_not_go_is_warned_of(monkeypatch):
    scratch = Scratch()

    def refuse(top, **_):
        raise PermissionError(1, "Operation not permitted", "file")

    monkeypatch.setattr(scratch_module, "_empty", refuse)
    with pytest.warns(UserWarning, match="not wholly removed: .*not permitted"):
        scratch.close()


def test_a_failed_start_leaves_nothing(temporary, monkeypatch):
    def refuse(*_):
        raise OSError(37, "No locks available")

    monkeypatch.setattr(scratch_module.fcntl, "flock", refuse)
    with pytest.raises(OSError, match="No locks"):
        Scratch()
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("name", ["", "a/b", "..", ".lock", 3, "a\0b"])
def test_bad_names_are_refused(name):
    with Scratch() as scratch, pytest.raises(ValueError, match="file name"):
        scratch.make(name)
    with pytest.raises(ValueError, match="prefix"):
        Scratch(prefix=name)


def test_paths_of_others_are_not_removed(tmp_path_factory):
    other = tmp_path_factory.mktemp("other")
    with Scratch() as scratch:
        inner = scratch.make("a")
        (inner / "b").mkdir()
        paths = [other, scratch.path, inner / "b", scratch.path / "..", scratch.path / ".lock"]
        for path in paths:
            with pytest.raises(ValueError, match="not a directory that make"):
                scratch.remove(path)
            assert path.exists()


def test_a_closed_one_makes_nothing():
    scratch = Scratch()
    scratch.close()
    with pytest.raises(ValueError, match="closed"):
        scratch.make("a")
    with pytest.raises(ValueError, match="closed"), scratch:
        pass
