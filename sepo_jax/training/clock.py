"""Where the time and the memory of a step go: what `timings.jsonl` holds."""

import resource
import sys
import time
from collections.abc import Callable

import jax


class Clock:
    """Seconds spent in each phase of a step.

    Attributes:
      laps: seconds by phase.
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter):
        self._now, self._last = now, now()
        self.laps: dict[str, float] = {}

    def lap(self, phase: str, within: dict[str, float] | None = None) -> None:
        """Books the time since the last call under `phase`, but for the seconds of phases `within`
        it, which are booked under their own names."""
        now = self._now()
        within = within or {}
        self.laps[phase] = round(now - self._last - sum(within.values()), 6)
        self.laps |= {name: round(seconds, 6) for name, seconds in within.items()}
        self._last = now


def peak_memory() -> dict[str, int]:
    """Most bytes that this process has held so far, and, where devices tell, each of them at most:
    "peak_host_bytes" and "peak_device_bytes"."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    figures = {"peak_host_bytes": peak if sys.platform == "darwin" else peak * 1024}
    told = [device.memory_stats() or {} for device in jax.local_devices()]
    peaks = [stats["peak_bytes_in_use"] for stats in told if "peak_bytes_in_use" in stats]
    return figures | ({"peak_device_bytes": max(peaks)} if peaks else {})
