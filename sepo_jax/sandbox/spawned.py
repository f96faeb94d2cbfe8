"""Starting fresh Python processes that serve a channel, and ending them with all they started."""

import contextlib
import math
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

from sepo_jax.sandbox.process_tree import kill_tree

_SECRETS = ("TOKEN", "SECRET", "PASSWORD", "API_KEY", "CREDENTIAL")


def spawn(module: str, channel: int) -> subprocess.Popen:
    """Starts `main(channel)` of a module in a process and session of its own; raises OSError.

    Args:
      module: name of a module with a function `main`.
      channel: descriptor of a socket, which the process inherits.
    """
    # An own command in place of multiprocessing: that imports the parent's main module in every
    # worker, JAX and all, and keeps one more process.
    paths = [str(path) for path in sys.path]
    code = f"import sys; sys.path[:] = {paths!r}; from {module} import main; main({channel})"
    variables = {
        name: value
        for name, value in os.environ.items()
        if not any(secret in name.upper() for secret in _SECRETS)
    }
    return subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.DEVNULL,
        stdout=2,  # what environments print must not mix with the parent's own output
        env={"PYTHONHASHSEED": "0"} | variables,
        pass_fds=(channel,),
        start_new_session=True,
    )


def end(process: subprocess.Popen, pidfd: int) -> int | None:
    """Ends a process of `spawn` and all that it started; its exit code, None if it does not end.

    Args:
      process: nobody has waited for it.
      pidfd: of the process.
    """
    _kill_from_inside(process.pid, pidfd)
    kill_tree(process.pid)
    with contextlib.suppress(subprocess.TimeoutExpired):  # stuck in the kernel, if so
        return process.wait(timeout=5)
    return None


def wait(pidfd: int, seconds: float) -> None:
    """Waits until the process of a pidfd has ended, but no longer than that."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    poll.poll(math.ceil(seconds * 1000))


def _kill_from_inside(pid: int, pidfd: int) -> None:
    """Where a process waits outside the worker's pid namespace, has that one reap the rest.

    Killed with them, it would leave the dead to process 1, which reaps in its own time.
    """
    place = Path("/proc", str(pid))
    with contextlib.suppress(OSError):
        inside, outside = (os.readlink(place / "ns" / n) for n in ("pid_for_children", "pid"))
        if inside != outside:
            for child in (place / "task" / place.name / "children").read_text().split():
                os.kill(int(child), signal.SIGKILL)
            wait(pidfd, 1.0)
