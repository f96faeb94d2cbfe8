"""Where the time and the memory of a step go: what `timings.jsonl` holds."""

import resource
import sys
import time
from collections.abc import Callable, Mapping

import jax


class Clock:
    """Seconds spent in each phase of a step.

    Attributes:
      laps: seconds by phase.
    """

    def __init__(
        self,
        compiling: Callable[[], float] = lambda: 0.0,
        now: Callable[[], float] = time.perf_counter,
    ):
        """A clock that runs from now on; `compiling` tells the seconds compiled so far."""
        self._compiling, self._now = compiling, now
        self._compiled, self._last = compiling(), now()
        self.laps: dict[str, float] = {}

    def lap(self, phase: str, within: Mapping[str, float] | None = None) -> None:
        """Adds the time since the last call to `phase`, but for what went into compiling, which is
        added to "compile", and for the seconds of phases `within` it, added to those."""
        now, compiled = self._now(), self._compiling()
        parts = {"compile": compiled - self._compiled, **(within or {})}
        parts[phase] = now - self._last - sum(parts.values())
        for name, seconds in parts.items():
            self.laps[name] = round(self.laps.get(name, 0.0) + seconds, 6)
        self._last, self._compiled = now, compiled


def peak_memory() -> dict[str, int]:
    """Most bytes that this process has held so far, and, where devices tell, each of them at most:
    "peak_host_bytes" and "peak_device_bytes"."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    figures = {"peak_host_bytes": peak if sys.platform == "darwin" else peak * 1024}
    told = [device.memory_stats() or {} for device in jax.local_devices()]
    peaks = [stats["peak_bytes_in_use"] for stats in told if "peak_bytes_in_use" in stats]
    return figures | ({"peak_device_bytes": max(peaks)} if peaks else {})
