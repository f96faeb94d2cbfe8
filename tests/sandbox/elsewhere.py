"""Work for another process: `python -m sandbox.elsewhere` reads a pickled job, writes its result.

A job is (function, arguments); the result comes back pickled. The caller is a test, and the process
a fresh one, with a time limit and a PYTHONHASHSEED of its own.
"""

import os
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path

TESTS = Path(__file__).parents[1]
NOBODY = 65534


def start(function, *arguments, hash_seed: int = 0) -> subprocess.Popen:
    """Begins `function(*arguments)` in another process; see `result`."""
    paths = [str(TESTS), str(TESTS.parent), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {
        "PYTHONHASHSEED": str(hash_seed),
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "sandbox.elsewhere"],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    process.stdin.write(pickle.dumps((function, arguments)))
    process.stdin.close()
    process.stdin = None
    return process


def result(process: subprocess.Popen, seconds: float = 120):
    """What the other process returned; it is killed after so many seconds."""
    try:
        output, _ = process.communicate(timeout=seconds)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, f"the other process ended with {process.returncode}"
    return pickle.loads(output)


def become_nobody() -> None:
    """Gives up root, where the process has it, so that permissions mean something."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)


def scratch_directory() -> Path:
    """A fresh directory of the present user."""
    return Path(tempfile.mkdtemp(prefix="sandbox-test-"))


if __name__ == "__main__":
    function, arguments = pickle.load(sys.stdin.buffer)
    sys.stdout.buffer.write(pickle.dumps(function(*arguments)))
