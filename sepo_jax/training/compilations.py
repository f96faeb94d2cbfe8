"""How often each function was compiled and how long that took, as JAX's monitoring tells it."""

import re
import threading
from collections import Counter
from typing import Any

from jax import monitoring

_STEPS = "/jax/core/compile/"  # tracing, lowering and compiling; each says when it begins and ends
_BACKEND = _STEPS + "backend_compile_duration"
_HIT = "/jax/compilation_cache/cache_hits"


class Compilations:
    """Counts compilations while it is entered: `with Compilations() as compilations: ...`.

    What the persistent cache holds is loaded in place of being compiled and counts as that. Counts
    are those of all threads. Functions are told apart by name alone.
    """

    def __init__(self):
        self._lock, self._here = threading.Lock(), threading.local()
        self._counts: Counter[str] = Counter()

    def __enter__(self) -> "Compilations":
        monitoring.register_scalar_listener(self._begin)
        monitoring.register_event_listener(self._event)
        monitoring.register_event_duration_secs_listener(self._end)
        return self

    def __exit__(self, *_: Any) -> None:
        monitoring.unregister_scalar_listener(self._begin)
        monitoring.unregister_event_listener(self._event)
        monitoring.unregister_event_duration_listener(self._end)

    def take(self) -> dict[str, int]:
        """Counts since the last call, by "compiled/<function>" and "loaded/<function>"."""
        with self._lock:
            counts, self._counts = dict(self._counts), Counter()
        return counts

    def seconds(self) -> float:
        """Seconds that the calling thread has spent so far until functions could run."""
        return getattr(self._here, "seconds", 0.0)

    def _open(self) -> list[bool]:
        """The steps of compilation that this thread is in, one inside the other, and whether each
        has found its program in the cache."""
        if not hasattr(self._here, "open"):
            self._here.open = []
        return self._here.open

    def _begin(self, event: str, value: float, **details: Any) -> None:
        if event.startswith(_STEPS):
            self._open().append(False)

    def _event(self, event: str, **details: Any) -> None:
        if event == _HIT and self._open():
            self._open()[-1] = True

    def _end(self, event: str, seconds: float, **details: Any) -> None:
        if not event.startswith(_STEPS) or not self._open():
            return
        loaded = self._open().pop()
        if not self._open():  # those inside of others are part of their time
            self._here.seconds = self.seconds() + seconds
        if event == _BACKEND:
            name = re.sub(r"^\w+\((.*)\)$", r"\1", str(details.get("fun_name", "")))
            with self._lock:
                self._counts[f"{'loaded' if loaded else 'compiled'}/{name}"] += 1
