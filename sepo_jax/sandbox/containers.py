"""Containers of a Docker engine, by its command-line client."""

import contextlib
import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence

from sepo_jax.sandbox.command_process import KEPT, MOST, Kept
from sepo_jax.sandbox.commands import NO_COMMAND, Finished
from sepo_jax.sandbox.protocol import SandboxError

LABEL = "sepo_jax"
_PATIENCE = 60.0  # seconds for a call that runs no command of an agent
_STARTING = 1800.0  # seconds in which an image may be fetched
_LIFETIME = "12h"  # after which a container that was forgotten ends
_KILLED, _TIMED_OUT = 137, 124
_NEEDED = (
    "SWE-bench instances run in containers: they need Docker, its daemon running, and in a worker "
    "process limits that allow processes and sockets (sandbox.processes, sandbox.network); the "
    "bundled repositories need none of these"
)


class Engine:
    """The Docker engine that the client `docker` on PATH talks to.

    Args:
      memory, processes: of each container.

    Raises SandboxError from every method where the client is missing, the daemon does not answer,
    or a call fails; the message says what was tried and what the client said.
    """

    def __init__(self, memory: str = "8g", processes: int = 512):
        self._memory, self._processes = memory, processes

    def check(self) -> None:
        """Raises SandboxError unless there is an engine."""
        if shutil.which("docker") is None:
            raise SandboxError(f"there is no `docker` on PATH. {_NEEDED}")
        try:
            self._call("version", "--format", "{{.Server.Version}}")
        except SandboxError as error:
            raise SandboxError(f"no container engine answers: {error}. {_NEEDED}") from error

    def start(self, image: str, directory: str) -> str:
        """Starts a container that does nothing, without a network; its name.

        Args:
          image: is fetched where it is not there.
          directory: where commands run.
        """
        options = ["--detach", "--init", "--network", "none", "--label", LABEL]
        options += ["--memory", self._memory, "--pids-limit", str(self._processes)]
        options += ["--security-opt", "no-new-privileges", "--workdir", directory]
        command = ["run", *options, "--entrypoint", "sleep", image, _LIFETIME]
        return self._call(*command, seconds=_STARTING).strip().splitlines()[-1]

    def execute(
        self,
        container: str,
        command: str,
        *,
        seconds: float,
        given: str = "",
        keep: int = KEPT,
    ) -> Finished:
        """Runs a command in bash; what it started and left is gone on return, but for files.

        Args:
          container: of `start`.
          command: text of the command.
          seconds: time it may take.
          given: its standard input.
          keep: bytes of its output that are kept, half from either end.
        """
        if "\0" in command:
            return NO_COMMAND
        inside = ["timeout", "--kill-after=1", f"{seconds:g}", "bash", "-c", command]
        arguments = ["docker", "exec", "--interactive", container, *inside]
        began = time.monotonic()
        finished = _collect(arguments, given, seconds + _PATIENCE, Kept(keep))
        late = time.monotonic() - began >= seconds
        if finished.ending == "time":
            raise SandboxError(f"the container engine did not end a command of {seconds:g} s")
        if self._call("top", container).count("\n") > 3:  # a head, the first process and `sleep`
            self._call("restart", "-t", "0", container)
        if late and finished.code in (_TIMED_OUT, _KILLED):
            return Finished(finished.output, None, "time")
        return finished

    def commit(self, container: str) -> str:
        """Keeps the files of a container as an image; its name."""
        change = f"LABEL {LABEL}=snapshot"
        return self._call("commit", "--change", change, container, seconds=_STARTING).strip()

    def has_image(self, image: str) -> bool:
        """Whether an image is there."""
        try:
            self._call("image", "inspect", "--format", "{{.Id}}", image)
        except SandboxError:
            self.check()
            return False
        return True

    def remove(self, container: str) -> None:
        """Removes a container, whatever it does."""
        self._call("rm", "--force", "--volumes", container)

    def remove_image(self, image: str) -> None:
        """Removes an image, unless a container was made of it."""
        with contextlib.suppress(SandboxError):
            self._call("rmi", image)

    def _call(self, *arguments: str, seconds: float = _PATIENCE) -> str:
        try:
            done = subprocess.run(
                ["docker", *arguments],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=seconds,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise SandboxError(f"docker {arguments[0]}: {error}") from error
        if done.returncode != 0:
            raise SandboxError(f"docker {arguments[0]}: {(done.stderr or done.stdout).strip()}")
        return done.stdout


def _collect(command: Sequence[str], given: str, seconds: float, kept: Kept) -> Finished:
    """Runs a program, keeps the ends of its output, and ends it when it prints too much."""
    deadline, ending = time.monotonic() + seconds, "ended"
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE if given else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
    except OSError as error:
        raise SandboxError(f"{command[0]}: {error}") from error
    with process:
        left = memoryview(given.encode("utf-8", "replace"))
        reading = process.stdout.fileno()
        poll = select.poll()
        poll.register(reading, select.POLLIN)
        if given:
            os.set_blocking(process.stdin.fileno(), False)
            poll.register(process.stdin.fileno(), select.POLLOUT)
        while ending == "ended":
            ready = dict(poll.poll(max(deadline - time.monotonic(), 0) * 1000))
            if reading in ready and not kept.add(os.read(reading, 1 << 16)):
                break
            if given and process.stdin.fileno() in ready:
                left = _feed(process, left)
                if not left:
                    poll.unregister(process.stdin.fileno())
                    given = ""
                    process.stdin.close()
            if kept.total >= MOST:
                ending = "output"
            elif time.monotonic() >= deadline:
                ending = "time"
        if ending != "ended":
            process.send_signal(signal.SIGKILL)
        code = process.wait()
    return Finished(kept.text(), code if ending == "ended" else None, ending)


def _feed(process: subprocess.Popen, left: memoryview) -> memoryview:
    """Writes what a program takes of its input at present; what is left, nothing if it is gone."""
    try:
        return left[os.write(process.stdin.fileno(), left) :]
    except BlockingIOError:
        return left
    except OSError:
        return left[:0]
