"""What runs in the process that compares answers: it forks a child that compares one after the
other, and another where a comparison had to be ended.

The process is confined and has loaded the library before it forks, so a child costs a fork and is
warm. It never compares itself.
"""

import contextlib
import functools
import json
import logging
import os
import select
import signal
import socket
import time
import warnings
from pathlib import Path
from typing import Any, NoReturn

from sepo_jax.sandbox.frames import is_silent, read_frame, write_frame
from sepo_jax.sandbox.isolation import Limits, confine
from sepo_jax.sandbox.process_tree import kill_descendants
from sepo_jax.sandbox.system_calls import process_control

_CHILD_SUBREAPER = 36
_FORKS_AFTER = 500  # comparisons of a child, which bounds what sympy keeps of them
_NO_LIBRARY = (
    "the library math-verify is not installed; `pip install sepo_jax[math]` or "
    "`pip install math-verify`"
)
# What a child has ready: numbers, decimals, expressions, sets, equations.
_WARMING = (("1/2", "0.5"), ("x+1", "1+x"), ("\\{1,2\\}", "1,2"), ("204", "x=204"), ("7", "n"))


def main(channel: int) -> None:
    """Serves the other end of a stream socket until that is closed.

    Args:
      channel: descriptor of the socket.
    """
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interrupt ends
    os.set_inheritable(channel, False)
    try:
        settings = json.loads(read_frame(channel)[1])
        limits = Limits(**settings["limits"])
        with warnings.catch_warnings(record=True) as left_open:
            warnings.simplefilter("always")
            in_force = confine(limits, Path(settings["scratch"]))
        with contextlib.suppress(OSError):
            process_control(_CHILD_SUBREAPER, 1)
        logging.disable(logging.CRITICAL)  # the library logs every answer that it cannot read
        for pair in _WARMING:
            compare(*pair)
        server = Server(channel, limits, alone="pid_namespace" in in_force)
        _write(channel, "ready", {"left_open": [str(each.message) for each in left_open]})
        server.serve()
    except (EOFError, ConnectionError):
        pass
    except ModuleNotFoundError as error:
        _write(channel, "error", {"message": f"{_NO_LIBRARY} ({error})"})
    except Exception as error:
        with contextlib.suppress(OSError):
            _write(channel, "error", {"message": f"{type(error).__name__}: {error}"})


def compare(reference: str, answer: str) -> str:
    """What the library says of an answer: "equal", "different" or, of the reference,
    "unreadable"."""
    from math_verify import verify

    expected = _read_reference(reference)
    if not expected:
        return "unreadable"
    return "equal" if verify(expected, _read(answer), timeout_seconds=None) else "different"


@functools.lru_cache(maxsize=64)
def _read_reference(reference: str) -> list[Any]:
    return _read(reference)


def _read(answer: str) -> list[Any]:
    from math_verify import parse

    return parse(f"\\boxed{{{answer}}}", parsing_timeout=None)


class Server:
    """Has a child compare what the parent asks for.

    Args:
      channel: to the parent.
      limits: of a comparison, `cpu_seconds` and `seconds`.
      alone: see `process_tree.kill_descendants`.
    """

    def __init__(self, channel: int, limits: Limits, alone: bool):
        self._channel, self._limits, self._alone = channel, limits, alone
        self._child: socket.socket | None = None
        self._pid = self._compared = 0

    def serve(self) -> None:
        """Answers requests until the parent is gone, which raises EOFError."""
        while True:
            _, body = read_frame(self._channel)
            try:
                answer = {"outcome": self._compare(body)}
            finally:
                if self._child is None or self._compared >= _FORKS_AFTER:
                    self._end_child()
            _write(self._channel, "checked", answer)

    def _compare(self, body: bytes) -> str:
        """Hands a request to the child; its outcome, "time" or "lost"."""
        if self._child is not None and not is_silent(self._child):
            self._end_child()
        if self._child is None:
            self._fork()
        self._compared += 1
        try:
            write_frame(self._child.fileno(), {}, body)
            if not self._wait(time.monotonic() + self._limits.seconds):
                self._child = self._child.close()
                return "time"
            return read_frame(self._child.fileno())[0]["outcome"]
        except ParentGone:
            raise
        except (EOFError, OSError):
            self._child = self._child.close()
            # The kernel ends it by this signal when its processor time is used up.
            code = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
            return "time" if code == -signal.SIGPROF else "lost"

    def _wait(self, deadline: float) -> bool:
        """Whether the child says something, or ends, in time; raises EOFError when the parent is
        gone."""
        poll = select.poll()
        poll.register(self._child, select.POLLIN)
        poll.register(self._channel, 0)  # the hang-up alone
        ready = dict(poll.poll(max(deadline - time.monotonic(), 0) * 1000 + 1))
        if self._channel in ready:
            kill_descendants(self._alone)
            raise ParentGone
        return bool(ready)

    def _fork(self) -> None:
        ours, theirs = socket.socketpair()
        self._pid = os.fork()
        if self._pid == 0:
            ours.close()
            _compare_all(theirs.fileno(), self._channel, self._limits)
        theirs.close()
        self._child, self._compared = ours, 0

    def _end_child(self) -> None:
        """Ends the child and whatever else descends from this process."""
        if self._child is not None:
            self._child = self._child.close()
        kill_descendants(self._alone)


class ParentGone(ConnectionError):
    """Nobody is left to answer."""


def _compare_all(channel: int, servers: int, limits: Limits) -> NoReturn:
    """What the child does: compares until its channel closes."""
    try:
        os.setsid()
        os.close(servers)
        null = os.open(os.devnull, os.O_RDWR)
        for standard in range(3):
            os.dup2(null, standard)
        signal.signal(signal.SIGPROF, signal.SIG_DFL)  # ends the process, whatever it is in
        while True:
            request = json.loads(read_frame(channel)[1])
            signal.setitimer(signal.ITIMER_PROF, limits.cpu_seconds)
            outcome = compare(request["reference"], request["answer"])
            signal.setitimer(signal.ITIMER_PROF, 0)
            write_frame(channel, {"outcome": outcome})
    finally:
        os._exit(1)


def _write(channel: int, kind: str, fields: dict[str, Any]) -> None:
    write_frame(channel, {"kind": kind}, json.dumps(fields).encode())
