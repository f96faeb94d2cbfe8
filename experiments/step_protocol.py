"""What the two sides of `benchmark_step.py` share: how a process is told to work, and measures it.

Standard library only: the peer's environment does not hold this package.
"""

import json
import os
import re
import resource
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class Channel:
    """JSON lines on stdin and stdout; whatever else prints in this process goes to stderr."""

    def __init__(self):
        self._answers = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
        os.dup2(2, 1)

    def receive(self) -> Any:
        """The next message; None when the other end is closed."""
        line = sys.stdin.readline()
        return json.loads(line) if line else None

    def send(self, message: Any) -> None:
        """Answers with one line."""
        self._answers.write(json.dumps(message) + "\n")


class Stopwatch:
    """Seconds of each phase of a step, of which phases may be parts of others' time."""

    def __init__(self):
        self.seconds: dict[str, float] = {}

    def timed(self, name: str, function):
        """`function`, whose calls add their time to `seconds[name]`."""

        def call(*arguments, **keywords):
            start = time.perf_counter()
            try:
                return function(*arguments, **keywords)
            finally:
                spent = time.perf_counter() - start
                self.seconds[name] = self.seconds.get(name, 0.0) + spent

        return call


def reward(completion: Sequence[int]) -> float:
    """Share of even token ids: costs nothing, and differs between the samples of a prompt."""
    return sum(1 - token % 2 for token in completion) / len(completion)


def peak_bytes() -> int:
    """Most memory this process held at a time (resident set), since `reset_peak` if called."""
    if _STATUS.is_file():
        found = re.search(r"VmHWM:\s+(\d+) kB", _STATUS.read_text(encoding="utf-8"))
        if found:
            return int(found.group(1)) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def reset_peak() -> bool:
    """Starts `peak_bytes` again from what is held now, where Linux allows it."""
    try:
        _CLEAR.write_text("5", encoding="utf-8")
    except OSError:
        return False
    return True
