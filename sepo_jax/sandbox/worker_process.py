"""The parent's side of one worker process: start it, talk to it without ever waiting, end it."""

import os
import pickle
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping

from sepo_jax.sandbox.frames import Frame, FrameReader, pack
from sepo_jax.sandbox.isolation import Limits
from sepo_jax.sandbox.scratch import Scratch
from sepo_jax.sandbox.spawned import end, spawn, wait
from sepo_jax.sandbox.stations import Request

_HINTS = {
    signal.SIGKILL: "out of memory, most likely",
    signal.SIGXCPU: "it used up its processor time",
    signal.SIGXFSZ: "it wrote a file over the limit",
    signal.SIGSYS: "it made a forbidden system call",
}
_PIECE = 1 << 18
_PIECES = 16  # read at once, so that a worker which floods its parent does not keep it


class WorkerProcess:
    """A worker process, or the place for one.

    Attributes:
      pidfd: readable once it has ended, even while something it forked holds its channel open.
      constructed: environments it made, as it says.
      last_words: why it did not become ready.
    """

    def __init__(
        self,
        name: str,
        factory: bytes,
        main: Mapping[str, str],
        limits: Limits,
        scratch: Scratch,
        warn: bool,
    ):
        """A place for a worker.

        Args:
          name: begins the names of its directories.
          factory: pickled.
          main: the `main_module` of the process that pickled it.
          limits: what it may use.
          scratch: where its directories are made.
          warn: whether its first process says which protections are missing.
        """
        self._name, self._scratch, self._warn = name, scratch, warn
        self._main = dict(main)
        self._body = pickle.dumps((limits, factory))
        self._process: subprocess.Popen | None = None
        self._outgoing = bytearray()
        self._starts = 0
        self._channel: socket.socket | None = None
        self.pidfd = -1
        self.constructed = 0
        self.last_words = ""

    def start(self) -> None:
        """Starts the process, in a session of its own; raises OSError."""
        self._directory = self._scratch.make(f"{self._name}-{self._starts}")
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._process = spawn("sepo_jax.sandbox.worker", theirs.fileno())
                self.pidfd = os.pidfd_open(self._process.pid)
            except BaseException:
                ours.close()
                self._bury()
                raise
        ours.setblocking(False)
        self._channel, self._reader = ours, FrameReader()
        self._outgoing.clear()
        self.constructed, self.last_words = 0, ""
        header = {"directory": str(self._directory), "main": self._main}
        self._write(pack(header | {"warn": self._warn and not self._starts}, self._body))
        self._starts += 1

    def send(self, number: int, request: Request) -> None:
        """Hands over a request."""
        header = {"number": number, "episode": request.call.episode, "kind": request.call.kind}
        self._write(pack(header, request.body))

    def ask_to_end(self) -> None:
        """Asks the process to close its environments and to end; it must not be busy."""
        self._write(pack({"kind": "end"}))

    @property
    def descriptors(self) -> tuple[int, int]:
        """What to wait for: the channel, and the end of the process."""
        return self._channel.fileno(), self.pidfd

    @property
    def has_more_to_send(self) -> bool:
        """Whether the process has yet to read what was handed over."""
        return bool(self._outgoing)

    def flush(self) -> None:
        """Sends as much of what was handed over as the process takes at present."""
        try:
            while self._outgoing:
                del self._outgoing[: self._channel.send(self._outgoing)]
        except BlockingIOError:
            pass
        except OSError:  # its end is noticed where it is read
            self._outgoing.clear()

    def receive(self) -> tuple[list[Frame], bool]:
        """What the process has said, and whether it can say more.

        Raises:
          BadAnswer: it sent something that is no message.
        """
        frames: list[Frame] = []
        for _ in range(_PIECES):
            try:
                data = self._channel.recv(_PIECE)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            if not data:
                return frames, False
            frames += self._reader.feed(data)
        return frames, True

    def wait(self, seconds: float) -> None:
        """Waits until the process has ended, but no longer than that."""
        wait(self.pidfd, seconds)

    def end(self) -> str:
        """Ends the process and all that it started, removes its files, says how it ended."""
        self._channel.close()
        self._channel = None
        return self._bury()

    def _write(self, data: bytes) -> None:
        self._outgoing += data
        self.flush()

    def _bury(self) -> str:
        code = None
        if self._process is not None:
            code = end(self._process, self.pidfd)
        if self.pidfd >= 0:
            os.close(self.pidfd)
        self._process, self.pidfd = None, -1
        self._scratch.remove(self._directory)
        return self.last_words or _describe(code)


def main_module() -> dict[str, str]:
    """Where the main module of this process can be imported from, as far as that is known."""
    module = sys.modules["__main__"]
    if getattr(module, "__spec__", None) is not None:
        return {"name": module.__spec__.name}
    path = getattr(module, "__file__", None)
    return {"path": os.path.abspath(path)} if path else {}


def _describe(code: int | None) -> str:
    if code is None:
        return "the worker does not end, even when killed"
    if code >= 0:
        return f"the worker ended with exit code {code}"
    number = -code
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    hint = f" ({_HINTS[number]})" if number in _HINTS else ""
    return f"the worker was killed by {name}{hint}"
