"""A helper process of one owner: started when it is needed, spoken to in JSON, ended with all it
started."""

import contextlib
import json
import math
import os
import select
import socket
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sepo_jax.sandbox.frames import Frame, FrameReader, is_silent, pack
from sepo_jax.sandbox.protocol import BadAnswer
from sepo_jax.sandbox.spawned import end, spawn


class Peer:
    """A process and the channel to it, which carries JSON; for one thread at a time.

    Args:
      module: name of a module whose `main(channel)` the process runs.

    Raises OSError where no process can be had.
    """

    def __init__(self, module: str):
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._process = spawn(module, theirs.fileno())
                self._pidfd = os.pidfd_open(self._process.pid)
            except BaseException:
                ours.close()
                raise
        self._channel, self._reader = ours, FrameReader()
        self._frames: list[Frame] = []

    def send(self, kind: str, fields: Mapping[str, Any]) -> None:
        """Sends a message; raises OSError when the process is gone."""
        self._channel.sendall(pack({"kind": kind}, json.dumps(fields).encode()))

    def receive(self, seconds: float) -> tuple[str, dict[str, Any]]:
        """The next message; raises EOFError, BadAnswer or TimeoutError when there is none."""
        deadline = time.monotonic() + seconds
        poll = select.poll()
        poll.register(self._channel, select.POLLIN)
        while not self._frames:
            left = deadline - time.monotonic()
            if left <= 0 or not poll.poll(math.ceil(left * 1000)):
                raise TimeoutError(f"no answer within {seconds:g} s")
            data = self._channel.recv(1 << 18)
            if not data:
                raise EOFError("the process ended")
            self._frames += self._reader.feed(data)
        header, body = self._frames.pop(0)
        try:
            return str(header["kind"]), dict(json.loads(body))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise BadAnswer(f"not a message: {error!r}") from error

    @property
    def is_waiting(self) -> bool:
        """Whether the process is there and has nothing to say."""
        return not self._frames and is_silent(self._channel)

    def close(self, owner: int) -> None:
        """Ends the process, unless this one is a forked copy of the owner."""
        self._channel.close()
        if os.getpid() == owner:
            end(self._process, self._pidfd)
            os.close(self._pidfd)


def warn_left_open(messages: Sequence[str]) -> None:
    """Warns of what a confined process can still do, unless this one is confined itself and has
    said so."""
    confined = False
    with contextlib.suppress(OSError):
        confined = "NoNewPrivs:\t1" in Path("/proc/self/status").read_text()
    if not confined:
        for message in messages:
            warnings.warn(message, RuntimeWarning, stacklevel=6)
