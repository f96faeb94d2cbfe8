"""Comparing answers of mathematics with the library math-verify, in a process that can be killed.

That library reads LaTeX and calls sympy, which some answers keep busy for ever ("9^9^9^9"), crash,
or fill the memory of. Its own time limits are signals, which work in main threads alone, and which
a long operation inside the interpreter does not heed. Here each comparison has a limit of processor
time that the kernel enforces; what does not come to an end costs its own sample, a new process
takes the next one, and no process is left.

A comparison is waited for. Environments in processes of their own (`ProcessPool`) wait each for
their own; those of an `InProcessPool` share one checker with the process that trains, which a
hostile answer holds up for as long as a comparison may take.
"""

import functools
import os
import tempfile
import threading
import weakref
from collections.abc import Callable
from dataclasses import asdict, replace

from sepo_jax.domains.math.answers import MAX_ANSWER, normal_form, plain_equal
from sepo_jax.sandbox.isolation import Limits
from sepo_jax.sandbox.peers import Peer, warn_left_open
from sepo_jax.sandbox.protocol import BadAnswer, SandboxError

EQUAL, DIFFERENT, TIME, LOST, UNREADABLE = OUTCOMES = (
    "equal",
    "different",
    "time",  # the comparison took too long
    "lost",  # it ended its process
    "unreadable",  # the reference is no mathematics that the library reads
)
# Loops end by their processor time; wall time is ample, for machines that are busy.
ANSWER_LIMITS = Limits(
    seconds=120.0, cpu_seconds=3.0, memory_bytes=2**30, processes=4, file_bytes=2**20
)
_GRACE = 60.0  # seconds beyond its limit in which a comparison must have been ended
_STARTING = 300.0  # seconds in which a process is ready, on a busy machine
_ADVICE = (
    "Workers that compare answers need limits.processes (sandbox.processes in a config), such as 8"
)


class AnswerChecker:
    """Compares answers, one at a time; its process is started when it is first needed.

    Any thread may use it. The process goes when the checker is closed or lost.

    Args:
      limits: of each comparison; `seconds` is wall time.
    """

    def __init__(self, limits: Limits = ANSWER_LIMITS):
        self._limits, self._lock = limits, threading.Lock()
        self._peer: Peer | None = None
        self._finish: Callable[[], object] = lambda: None
        self._owner = 0

    def check(self, reference: str, answer: str) -> str:
        """Compares an answer with the right one; of `OUTCOMES`.

        Raises SandboxError where no process can be had, or math-verify is not installed.
        """
        if len(answer) > MAX_ANSWER:
            return DIFFERENT
        reference, answer = normal_form(reference), normal_form(answer)
        if not answer:
            return DIFFERENT
        same = plain_equal(reference, answer)
        if same is not None:
            return EQUAL if same else DIFFERENT
        with self._lock:
            return self._ask(reference, answer)

    def close(self) -> None:
        """Ends the process; the next comparison starts another."""
        with self._lock:
            self._end()

    def _ask(self, reference: str, answer: str) -> str:
        # A process that was killed while it waited costs no sample.
        if self._peer is not None and self._owner == os.getpid() and not self._peer.is_waiting:
            self._end()
        if self._peer is None or self._owner != os.getpid():
            self._start()
        try:
            self._peer.send("check", {"reference": reference, "answer": answer})
            kind, found = self._peer.receive(self._limits.seconds + _GRACE)
            if kind != "checked" or found.get("outcome") not in OUTCOMES:
                raise BadAnswer(f"a comparison was answered with {kind!r}")
        except TimeoutError:
            self._end()
            return TIME
        except (OSError, EOFError, BadAnswer):
            self._end()
            return LOST
        except BaseException:  # an interrupt: the next comparison must not get this one's answer
            self._end()
            raise
        return found["outcome"]

    def _start(self) -> None:
        try:
            peer = Peer("sepo_jax.sandbox.answer_process")
        except OSError as error:
            raise SandboxError(f"answers cannot be compared here: {error}. {_ADVICE}") from error
        scratch = tempfile.TemporaryDirectory(prefix="sepo_jax-answers-")
        self._peer, self._owner = peer, os.getpid()
        self._finish = weakref.finalize(self, _give_back, peer, scratch, os.getpid())
        try:
            peer.send("start", {"limits": asdict(self._limits), "scratch": scratch.name})
            kind, found = peer.receive(_STARTING)
            if kind != "ready":
                raise BadAnswer(str(found.get("message", found)))
        except (OSError, EOFError, BadAnswer) as error:
            self._end()
            raise SandboxError(f"answers cannot be compared here: {error}. {_ADVICE}") from error
        warn_left_open(found["left_open"])

    def _end(self) -> None:
        self._finish()
        self._peer = None


def _give_back(peer: Peer, scratch: tempfile.TemporaryDirectory, owner: int) -> None:
    peer.close(owner)
    if os.getpid() == owner:
        scratch.cleanup()


@functools.cache
def _checker(seconds: float) -> AnswerChecker:
    """The checker of this process."""
    wall = max(ANSWER_LIMITS.seconds, 10 * seconds)
    return AnswerChecker(replace(ANSWER_LIMITS, cpu_seconds=seconds, seconds=wall))


def check_answer(reference: str, answer: str, seconds: float = 3.0) -> str:
    """Compares an answer with the right one, in a process that all calls share; of `OUTCOMES`.

    Args:
      reference, answer: whole numbers, fractions, LaTeX.
      seconds: processor time that the comparison may take.

    Raises SandboxError where no process can be had, or math-verify is not installed.
    """
    return _checker(seconds).check(reference, answer)
