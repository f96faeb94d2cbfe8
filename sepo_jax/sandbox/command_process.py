"""What runs in the process that runs commands: it forks a child for each, and ends what is left.

The process is confined once, when it starts, and has loaded nothing but the standard library, so a
child costs a fork. The child gives up more: it may write in its own directories alone.
"""

import contextlib
import json
import os
import resource
import select
import signal
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from sepo_jax.sandbox import landlock, unit_tests
from sepo_jax.sandbox.frames import read_frame, write_frame
from sepo_jax.sandbox.isolation import OPEN_FILES, Limits, allow_cpu, confine
from sepo_jax.sandbox.process_tree import kill_descendants
from sepo_jax.sandbox.scratch import empty_directory
from sepo_jax.sandbox.system_calls import process_control

KEPT = 1 << 17  # bytes of output that are kept, half from its beginning and half from its end
MOST = 1 << 24  # bytes of output after which a command is ended
LEFT_OUT = "\n[... output left out ...]\n"
_CHILD_SUBREAPER = 36
_PIECE = 1 << 16
_SHELL = "/bin/sh"


def main(channel: int) -> None:
    """Serves the other end of a stream socket until that is closed.

    Args:
      channel: descriptor of the socket.
    """
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interrupt ends
    os.set_inheritable(channel, False)
    try:
        settings = _read(channel)[1]
        limits = Limits(**settings["limits"])
        with warnings.catch_warnings(record=True) as left_open:
            warnings.simplefilter("always")
            in_force = confine(limits, Path(settings["scratch"]))
        with contextlib.suppress(OSError):
            process_control(_CHILD_SUBREAPER, 1)
        places = Path(settings["temporary"]), settings["environment"]
        server = Server(channel, limits, *places, alone="pid_namespace" in in_force)
        _write(channel, "ready", {"left_open": [str(each.message) for each in left_open]})
        server.serve()
    except (EOFError, ConnectionError):
        pass
    except Exception as error:
        with contextlib.suppress(OSError):
            _write(channel, "error", {"message": f"{type(error).__name__}: {error}"})


class Server:
    """Runs what the parent asks for, one after the other.

    Args:
      channel: to the parent.
      limits: what a command may use; `seconds` and `cpu_seconds` are for each.
      temporary: directory for temporary files; emptied after each command.
      environment: variables of commands.
      alone: see `process_tree.kill_descendants`.
    """

    def __init__(
        self,
        channel: int,
        limits: Limits,
        temporary: Path,
        environment: Mapping[str, str],
        alone: bool,
    ):
        self._channel, self._limits, self._alone = channel, limits, alone
        self._temporary, self._environment = temporary, dict(environment)

    def serve(self) -> None:
        """Answers requests until the parent is gone, which raises EOFError."""
        while True:
            kind, request = _read(self._channel)
            run = {"command": self._command, "tests": self._tests}[kind]
            try:
                answer = run(request)
            except OSError as error:  # no process or file is to be had
                kill_descendants(self._alone)
                answer = {"error": str(error)}
            with contextlib.suppress(OSError):
                empty_directory(self._temporary)
            _write(self._channel, kind, answer)

    def _command(self, request: Mapping[str, Any]) -> dict[str, Any]:
        def become(output: int) -> NoReturn:
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.closerange(3, OPEN_FILES)
            arguments = ["sh", "-c", request["command"]]
            try:
                os.execve(_SHELL, arguments, self._environment)
            except OSError as error:  # of a command that is too long; the pipe is closed by now
                os.write(1, f"sh: {error.strerror}\n".encode())
                os._exit(126)

        kept = Kept()
        code, ending = self._run(request, become, kept)
        return {"code": code, "ending": ending, "output": kept.text()}

    def _tests(self, request: Mapping[str, Any]) -> dict[str, Any]:
        def become(output: int) -> NoReturn:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 1)
            os.dup2(null, 2)
            report = os.dup2(output, 3)
            os.closerange(4, OPEN_FILES)
            os.environ.clear()
            os.environ.update(self._environment)
            unit_tests.run(request["tests"], request["directory"], report, request["token"])

        kept = Kept(request["report_bytes"])
        code, ending = self._run(request, become, kept)
        return {"code": code, "ending": ending, "output": kept.text()}

    def _run(
        self, request: Mapping[str, Any], become: Callable[[int], NoReturn], kept: "Kept"
    ) -> tuple[int | None, str]:
        """Runs a child to its end, and ends what it left; its exit code, and how it ended."""
        reading, writing = os.pipe()
        try:
            child = os.fork()
            if child == 0:
                self._start(request["directory"], become, writing)
            os.close(writing)
            writing = -1
            ending = self._watch(child, reading, kept, time.monotonic() + request["seconds"])
            code = None
            if ending == "ended":
                code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            kill_descendants(self._alone)
            os.set_blocking(reading, False)
            with contextlib.suppress(BlockingIOError):
                while kept.total < MOST and kept.add(os.read(reading, _PIECE)):
                    pass
            return code, ending
        finally:
            for descriptor in (reading, writing):
                if descriptor >= 0:
                    os.close(descriptor)

    def _start(self, directory: str, become: Callable[[int], NoReturn], writing: int) -> NoReturn:
        """What the child does: leaves all that is the server's, and becomes what it is to be."""
        try:
            os.setsid()
            os.close(self._channel)
            null = os.open(os.devnull, os.O_RDONLY)
            os.dup2(null, 0)
            os.chdir(directory)
            allow_cpu(self._limits)
            soft, _ = resource.getrlimit(resource.RLIMIT_CPU)
            resource.setrlimit(resource.RLIMIT_CPU, (soft, soft + 1))  # for who ignores the first
            with contextlib.suppress(OSError):  # without it, the server's own rules hold
                paths = [Path(directory), self._temporary]
                landlock.restrict(paths, self._limits.network)
            become(writing)
        except BaseException as error:
            os.write(writing, f"{type(error).__name__}: {error}\n".encode())
        finally:
            os._exit(126)

    def _watch(self, child: int, reading: int, kept: "Kept", deadline: float) -> str:
        """Collects output until the child ends, or has to be ended: "ended", "time" or "output".

        Raises EOFError when the parent is gone.
        """
        pidfd = os.pidfd_open(child)
        try:
            poll = select.poll()
            for descriptor, events in (
                (reading, select.POLLIN),
                (pidfd, select.POLLIN),
                (self._channel, 0),  # the hang-up alone
            ):
                poll.register(descriptor, events)
            while True:
                left = deadline - time.monotonic()
                if left <= 0:
                    return "time"
                ready = dict(poll.poll(left * 1000 + 1))
                if self._channel in ready:
                    kill_descendants(self._alone)
                    raise EOFError("the parent is gone")
                if reading in ready and not kept.add(os.read(reading, _PIECE)):
                    poll.unregister(reading)
                if kept.total >= MOST:
                    return "output"
                if pidfd in ready:
                    return "ended"
        finally:
            os.close(pidfd)


class Kept:
    """The beginning and the end of a stream of bytes; holds at most `most` of them."""

    def __init__(self, most: int = KEPT):
        self._half, self._head, self._tail = most // 2, bytearray(), bytearray()
        self.total = 0

    def add(self, data: bytes) -> int:
        """Takes the next bytes; how many they are."""
        self.total += len(data)
        room = self._half - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        del self._tail[: max(len(self._tail) - self._half, 0)]
        return len(data)

    def text(self) -> str:
        """What was kept, with a mark where something is left out."""
        gap = self.total > len(self._head) + len(self._tail)
        parts = [bytes(part).decode("utf-8", "replace") for part in (self._head, self._tail)]
        if not gap:
            return bytes(self._head + self._tail).decode("utf-8", "replace")
        return LEFT_OUT.join(parts)


def _read(channel: int) -> tuple[str, dict[str, Any]]:
    header, body = read_frame(channel)
    return header["kind"], json.loads(body)


def _write(channel: int, kind: str, fields: Mapping[str, Any]) -> None:
    write_frame(channel, {"kind": kind}, json.dumps(fields).encode())
