"""The arrays that cross between the slots of a device and the host, of fixed shapes and numpy only.

A device reports what it sampled since the last exchange and gets commands. The host keeps the
tokens, so nothing crosses twice and a report stays small: on several devices a large argument of a
callback inside a loop can hang.

Shapes: S slots, E tokens an exchange, R rows of a prefill call, W its width, C calls of a width.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

KEY_PARTS = 5
RUNNING, FINISHED, FAILED = 0, 1, 2
MAX_REPORT_BYTES = 64 * 1024


@dataclass(frozen=True)
class ExchangeShape:
    """Static sizes of an exchange.

    Attributes:
      slots: contexts of a device.
      interval: most tokens a slot samples between two exchanges.
      widths: allowed widths of a prefill chunk, ascending. A context of n tokens still to be
        computed takes the widest chunks while n is larger than that, then the narrowest that holds
        the rest: the cut depends on the context alone, and so do the last bits of what it computes.
      calls: most prefill calls of each width an exchange, so that long prompts do not stall slots
        that decode.
      rows: contexts that one prefill call serves.
    """

    slots: int
    interval: int = 4
    widths: tuple[int, ...] = (16, 32, 64, 128)
    calls: int = 8
    rows: int = 1

    def __post_init__(self):
        for name in ("slots", "interval", "calls", "rows"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        widths = tuple(self.widths)
        whole = all(isinstance(width, int) for width in widths)
        if not widths or not whole or widths[0] < 1 or list(widths) != sorted(set(widths)):
            raise ValueError(
                f"prefill widths must be ascending whole numbers from 1 on, got {widths}"
            )
        if self.report_bytes > MAX_REPORT_BYTES:
            raise ValueError(
                f"slots={self.slots} with interval={self.interval} report {self.report_bytes} "
                f"bytes an exchange; at most {MAX_REPORT_BYTES} are safe inside a device loop: "
                f"use up to {MAX_REPORT_BYTES // (12 * self.interval + 5)} slots a device at this "
                "interval, or a shorter one"
            )

    @property
    def report_bytes(self) -> int:
        """Bytes of one report."""
        return self.slots * (12 * self.interval + 5)

    def chunk(self, remaining: int) -> int:
        """Width of the next chunk of a context with `remaining` tokens to compute."""
        return next((width for width in self.widths if width >= remaining), self.widths[-1])


class Report(NamedTuple):
    """What the slots of one device did since the last exchange.

    Attributes:
      tokens: int32 [S, E]; logp, entropy: float32 [S, E]; the first `count` of each row count.
      count: int32 [S].
      decoding: bool [S], whether the slot's action goes on.
    """

    tokens: np.ndarray
    logp: np.ndarray
    entropy: np.ndarray
    count: np.ndarray
    decoding: np.ndarray


class Chunks(NamedTuple):
    """Prefill calls of one width, carried out one after the other.

    Attributes:
      calls: int32 [], how many of the C are used.
      tokens: int32 [C, R, W], real tokens first. lengths: int32 [C, R], 0 for an unused row.
      slots: int32 [C, R], distinct within a call; S for an unused row.
    """

    calls: np.ndarray
    tokens: np.ndarray
    lengths: np.ndarray
    slots: np.ndarray


class Commands(NamedTuple):
    """What a device does next, in the order of the fields; all zero does nothing.

    Attributes:
      code: int32 [], RUNNING, FINISHED or FAILED; other than RUNNING ends the loop.
      halt: bool [S], slots whose action is cut off.
      clear: bool [S], slots that are emptied.
      chunks: one `Chunks` for every width; they append to the slots' caches, the widest first.
      fork_count: int32 []; forks: int32 [S, 3], (source, target, length): the target becomes the
        first `length` tokens of the source, -1 for all. One after the other.
      start: bool [S], slots that begin an action.
      pending: int32 [S], the last token of a starting slot's context, not yet in its cache.
      keys: int32 [S, 5], seed, step, group, member and index of the first token's key.
      limit: int32 [S], most tokens of a starting slot's action.
    """

    code: np.ndarray
    halt: np.ndarray
    clear: np.ndarray
    chunks: tuple[Chunks, ...]
    fork_count: np.ndarray
    forks: np.ndarray
    start: np.ndarray
    pending: np.ndarray
    keys: np.ndarray
    limit: np.ndarray


def no_report(shape: ExchangeShape) -> Report:
    """The report before anything was sampled."""
    size = (shape.slots, shape.interval)
    return Report(
        tokens=np.zeros(size, np.int32),
        logp=np.zeros(size, np.float32),
        entropy=np.zeros(size, np.float32),
        count=np.zeros(shape.slots, np.int32),
        decoding=np.zeros(shape.slots, bool),
    )


def no_commands(shape: ExchangeShape) -> Commands:
    """Commands that do nothing, to be filled in."""
    slots, calls, rows = shape.slots, shape.calls, shape.rows
    return Commands(
        code=np.zeros((), np.int32),
        halt=np.zeros(slots, bool),
        clear=np.zeros(slots, bool),
        chunks=tuple(
            Chunks(
                calls=np.zeros((), np.int32),
                tokens=np.zeros((calls, rows, width), np.int32),
                lengths=np.zeros((calls, rows), np.int32),
                slots=np.full((calls, rows), slots, np.int32),
            )
            for width in shape.widths
        ),
        fork_count=np.zeros((), np.int32),
        forks=np.zeros((slots, 3), np.int32),
        start=np.zeros(slots, bool),
        pending=np.zeros(slots, np.int32),
        keys=np.zeros((slots, KEY_PARTS), np.int32),
        limit=np.zeros(slots, np.int32),
    )
