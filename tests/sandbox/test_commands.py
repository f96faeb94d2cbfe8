"""Commands in a confined process: what they may do, what is left of them, and how they end."""

import gc
import os
import signal
import time
from pathlib import Path

import pytest
from sandbox.confined import need_protection, sleeping
from sandbox.pools import is_running, processes_of_workers, wait_for

from sepo_jax.sandbox import peers
from sepo_jax.sandbox.command_process import LEFT_OUT, Kept
from sepo_jax.sandbox.commands import CommandRunner, Finished
from sepo_jax.sandbox.isolation import Limits
from sepo_jax.sandbox.protocol import SandboxError
from sepo_jax.sandbox.unit_tests import read_report

pytestmark = [
    pytest.mark.usefixtures("watchdog"),
    pytest.mark.parametrize("watchdog", [300], indirect=True),
]
LIMITS = Limits(
    seconds=30.0, cpu_seconds=1.0, memory_bytes=2**29, processes=24, file_bytes=2**20
)  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A scratch directory for the runner of this module."""
    return tmp_path_factory.mktemp("commands")


@pytest.fixture(scope="module")
def runner(place):
    """A runner of commands with short limits."""
    found = CommandRunner(place, LIMITS)
    yield found
    found.close()


@pytest.fixture
def work(place):
    """The directory that commands run in, empty."""
    directory = place / "work"
    directory.mkdir(exist_ok=True)
    for path in directory.iterdir():
        path.unlink()
    return directory


def test_an_interrupted_command_leaves_its_answer_to_nobody(runner, work, monkeypatch):
    def interrupted(self, seconds):
        raise KeyboardInterrupt

    assert runner.run("echo one", work).output == "one\n"
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(peers.Peer, "receive", interrupted)
        runner.run("sleep 1; echo two", work)
    assert runner.run("echo three", work).output == "three\n"


def strangers(token):
    """Running processes whose command line names a token."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            named = token.encode() in path.read_bytes()
        except OSError:
            continue
        if named and is_running(int(path.parent.name)):
            found.append(path.parent.name)
    return found


def test_a_command_gives_its_output_and_its_code(runner, work):
    (work / "a").write_text("one\n")
    assert runner.run("cat a; echo two >&2; exit 3", work) == Finished("one\ntwo\n", 3, "ended")
    assert runner.run("pwd", work).output == f"{work.resolve()}\n"
    assert runner.run("read x; echo \"got '$x'\"", work).output == "got ''\n"
    assert runner.run("kill -9 $$", work) == Finished("", -signal.SIGKILL, "ended")
    assert runner.run("no-such-program", work).code == 127
    assert runner.run("echo \x00", work).code == 126
    assert runner.run("echo '\udc80'", work).output == "?\n"
    assert runner.run("printf '\\377'", work).output == "\ufffd"


def test_nothing_outlasts_a_command_but_its_files(runner, work):
    runner.run("cd /; export A=1; umask 0; echo x > $TMPDIR/left; mkdir -p $HOME/.lock/deep", work)
    said = runner.run("pwd; echo \"'$A'\"; ls -A $TMPDIR $HOME; umask", work).output
    assert said.splitlines()[:2] == [str(work.resolve()), "''"]
    assert "left" not in said and "deep" not in said and ".lock" not in said
    runner.run("echo x > kept", work)
    assert (work / "kept").read_text() == "x\n"


def test_secrets_of_the_caller_are_not_there(runner, work, monkeypatch):
    monkeypatch.setenv("MY_TOKEN", "secret-1")
    monkeypatch.setenv("OTHER", "other-1")
    with_new = CommandRunner(work.parent, LIMITS)
    said = with_new.run("env; cat /proc/$PPID/environ", work).output
    with_new.close()
    assert "secret-1" not in said and "HOME=" in said


def test_commands_write_in_their_directory_alone(runner, work, place, tmp_path):
    other = place / "other"
    other.mkdir(exist_ok=True)
    for target in (place / "beside", other / "x", tmp_path / "x", "/tmp/sepo-x", "/dev/shm/sepo-x"):
        done = runner.run(f"echo x > {target}", work)
        assert done.code != 0 and not Path(target).exists(), target


def test_commands_have_no_network_and_reach_no_other_process(runner, work):
    code = "import socket; socket.socket()"
    assert "PermissionError" in runner.run(f"python -c '{code}'", work).output
    need_protection("this user", "pid_namespace", "landlock_signals")
    with sleeping("this user") as other:
        said = runner.run(f"kill -9 {other.pid}; kill -9 $PPID; kill -9 1; echo on", work)
        assert other.poll() is None
    assert said.output.endswith("on\n") and said.ending == "ended"
    assert runner.run("echo still", work).output == "still\n"


def test_limits_of_memory_and_files_hold(runner, work):
    assert "MemoryError" in runner.run("python -c 'bytearray(2**30)'", work).output
    done = runner.run("head -c 2000000 /dev/zero > big", work)
    assert done.code != 0 and (work / "big").stat().st_size <= LIMITS.file_bytes


@pytest.mark.parametrize(
    "command",
    [
        "while :; do :; done",
        "python -c 'while True: pass'",
        "trap '' XCPU TERM; while :; do :; done",
        "python -c 'from signal import *\nsignal(SIGXCPU, SIG_IGN)\nwhile True: pass'",
    ],
)
def test_an_endless_loop_ends_by_its_processor_time(runner, work, command):
    done = runner.run(command, work)
    assert done.ending == "time" or done.code in (-signal.SIGXCPU, -signal.SIGKILL, 137, 152)
    assert runner.run("echo on", work).output == "on\n"


def test_what_only_waits_ends_by_the_clock_with_all_that_it_started(runner, work):
    token = f"sepo-sleep-{os.getpid()}"
    sleeper = f"python -c 'import time; time.sleep(300)' {token}"
    began = time.monotonic()
    done = runner.run(f"setsid {sleeper} & (setsid {sleeper} &) ; {sleeper}", work, seconds=2.0)
    assert done.ending == "time" and done.code is None
    assert time.monotonic() - began < 30
    assert wait_for(lambda: not strangers(token), 5)


def test_what_a_command_leaves_running_is_killed(runner, work):
    token = f"sepo-left-{os.getpid()}"
    sleeper = f"python -c 'import time; time.sleep(300)' {token}"
    done = runner.run(f"setsid {sleeper} & (setsid {sleeper} &) ; sleep 0.2; echo done", work)
    assert done == Finished("done\n", 0, "ended")
    assert wait_for(lambda: not strangers(token), 5)


@pytest.mark.parametrize(
    "command",
    [
        "f() { f | f & }; f; sleep 60",
        "python -c 'import os\nwhile True:\n try:\n  if os.fork() == 0: os.setsid()\n"
        " except OSError: pass'",
    ],
)
def test_a_fork_bomb_is_bounded_and_killed(runner, work, command):
    before = processes_of_workers(os.getpid())
    done = runner.run(command, work, seconds=3.0)
    assert done.ending in ("time", "ended")
    assert wait_for(lambda: processes_of_workers(os.getpid()) <= before, 10)
    assert runner.run("echo on", work).output == "on\n"


def test_an_endless_output_is_cut_and_ended(runner, work):
    done = runner.run("yes", work)
    assert done.ending == "output" and done.code is None
    assert LEFT_OUT in done.output and len(done.output) < 2**18
    done = runner.run("seq 1 100000", work)
    assert done.output.startswith("1\n2\n") and done.output.endswith("\n100000\n")
    assert LEFT_OUT in done.output and done.code == 0


def test_kept_output_is_exact_until_something_is_left_out():
    kept = Kept(10)
    assert [kept.add(data) for data in (b"abc", b"defg", b"hij")] == [3, 4, 3]
    assert kept.text() == "abcdefghij"
    kept.add(b"k")
    assert kept.text() == f"abcde{LEFT_OUT}ghijk" and kept.total == 11
    snow = Kept(4)
    snow.add("☃".encode())
    assert snow.text() == "☃"


TESTS = """import os, sys, time, unittest
import helper

class Some(unittest.TestCase):
    def test_good(self):
        print('{"token": "x", "test": "m.Some.test_bad", "outcome": "passed", "why": ""}')
        self.assertEqual(helper.VALUE, 1)
    def test_bad(self):
        print("ok")
        sys.stderr.write("test_bad (m.Some) ... ok\\n")
        self.assertEqual(helper.VALUE, 2)
    def test_leaves(self):
        sys.exit(0)
    @unittest.skip("no")
    def test_skipped(self): pass
    @unittest.expectedFailure
    def test_expected(self): self.fail()
    @unittest.expectedFailure
    def test_unexpected(self): pass
    def test_ends(self):
        os._exit(0)
    def test_loops(self):
        while True: pass
    def test_spawns(self):
        import subprocess
        while True: subprocess.Popen(["sleep", "300", TOKEN], start_new_session=True)
"""


@pytest.fixture
def tested(work):
    (work / "m.py").write_text(TESTS.replace("TOKEN", repr(f"0.{os.getpid()}")))
    (work / "helper.py").write_text("VALUE = 1\n")
    return work


def of(*names):
    return [f"m.Some.test_{name}" for name in names]


def test_tests_say_what_became_of_them_whatever_is_printed(runner, tested):  # C14
    names = of("good", "bad", "leaves", "skipped", "expected", "unexpected", "absent")
    found = runner.run_tests([*names, "absent.Some.test_x"], tested)
    assert [outcome for outcome, _ in found.values()] == [
        "passed", "failed", "failed", "skipped", "passed", "failed", "failed", "failed",
    ]  # fmt: skip
    assert found["m.Some.test_bad"][1] == "AssertionError: 1 != 2"
    assert "SystemExit" in found["m.Some.test_leaves"][1]
    assert "absent" in found["m.Some.test_absent"][1]


def test_a_test_that_ends_the_process_passes_nothing(runner, tested):
    found = runner.run_tests(of("good", "ends", "bad"), tested)
    assert [outcome for outcome, _ in found.values()] == ["passed", "not run", "not run"]


@pytest.mark.parametrize("name", ["loops", "spawns"])
def test_tests_that_do_not_end_are_killed_with_their_children(runner, tested, name):
    found = runner.run_tests(of("good", name, "bad"), tested, seconds=3.0)
    outcomes = [outcome for outcome, _ in found.values()]
    assert outcomes[0] == "passed" and "passed" not in outcomes[1:]
    assert outcomes[1] == ("time" if name == "loops" else outcomes[1])
    assert wait_for(lambda: not strangers(f"0.{os.getpid()}"), 5)
    assert runner.run_tests(of("good"), tested)["m.Some.test_good"][0] == "passed"


def test_compiled_code_and_modules_of_library_names_are_not_used(runner, tested):
    (tested / "json.py").write_text("raise ImportError\n")
    (tested / "unittest.py").write_text("raise ImportError\n")
    runner.run(
        "rm json.py unittest.py; PYTHONDONTWRITEBYTECODE= python -m py_compile helper.py", tested
    )
    assert list(tested.glob("__pycache__/*"))
    # The cache is of the old source, and claims to be of the new one: same size and time.
    status = (tested / "helper.py").stat()
    (tested / "helper.py").write_text("VALUE = 2\n")
    os.utime(tested / "helper.py", ns=(status.st_atime_ns, status.st_mtime_ns))
    (tested / "json.py").write_text("raise ImportError\n")
    found = runner.run_tests(of("good", "bad"), tested)
    assert [outcome for outcome, _ in found.values()] == ["failed", "passed"]
    runner.run("rm -r __pycache__", tested)


def test_a_report_takes_only_lines_with_its_token():
    lines = [
        '{"token": "a", "test": "t", "outcome": "passed", "why": ""}',
        '{"token": "a", "test": "t", "outcome": "failed", "why": ""}',
        '{"token": "b", "test": "u", "outcome": "passed", "why": ""}',
        '{"token": "a"}', "[]", "3", "", "{", "[" * 5000,
    ]  # fmt: skip
    assert read_report("\n".join(lines), "a") == {"t": ("passed", "")}


def test_a_runner_goes_with_its_process(place):
    runner = CommandRunner(place, LIMITS)
    (place / "work").mkdir(exist_ok=True)
    before = processes_of_workers(os.getpid())
    runner.run("true", place / "work")
    own = processes_of_workers(os.getpid()) - before
    assert own
    runner.close()
    assert not any(map(is_running, own))
    assert runner.run("echo again", place / "work").output == "again\n"
    own = processes_of_workers(os.getpid()) - before
    del runner
    gc.collect()
    assert own and not any(map(is_running, own))


def test_who_kills_the_process_that_runs_it_is_lost_and_the_next_command_runs(place, monkeypatch):
    runner = CommandRunner(place, LIMITS)
    (place / "work").mkdir(exist_ok=True)
    runner.run("true", place / "work")
    os.kill(runner._peer._process.pid, signal.SIGKILL)
    done = runner.run("echo x", place / "work")
    assert done == Finished("", None, "lost")
    assert runner.run("echo x", place / "work").output == "x\n"
    os.kill(runner._peer._process.pid, signal.SIGKILL)
    found = runner.run_tests(["m.A.b"], place / "work")
    assert found["m.A.b"][0] == "lost"
    runner.close()


def test_where_no_process_can_be_had_the_error_says_what_to_do(place, monkeypatch):
    def refuse(*arguments):
        raise PermissionError("Operation not permitted")

    monkeypatch.setattr(peers, "spawn", refuse)
    with pytest.raises(SandboxError, match=r"Operation not permitted.*sandbox\.processes"):
        CommandRunner(place, LIMITS).run("true", place)
