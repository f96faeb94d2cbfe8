"""The thread behind a pool, whatever its workers are, and what callers share with it.

The thread alone touches the workers. Callers only touch two lists, and never wait for a worker.
"""

import contextlib
import os
import pickle
import threading
import time
import weakref
from collections.abc import Sequence
from typing import Any, Protocol

from sepo_jax.sandbox.frames import MAX_BODY
from sepo_jax.sandbox.hosting import Reply, check_call
from sepo_jax.sandbox.protocol import (
    Answer,
    Call,
    EnvironmentFactory,
    Failure,
    SandboxError,
    TooManyFailures,
)
from sepo_jax.sandbox.stations import Request, Station


class Overseer(Protocol):
    """What a manager asks of a `Supervisor`, or of what stands in for one.

    Attributes:
      stations: the places of the workers.
      answers: what is to be given to callers.
      exhausted: why nothing more can be served, or None.
    """

    stations: Sequence[Station]
    answers: list[Any]
    exhausted: Failure | None

    def start(self, now: float) -> None:
        """Called once, before anything else."""

    def submit(self, request: Any) -> None:
        """Takes what a caller handed in."""

    def dispatch(self, now: float) -> None:
        """Has workers do what has been handed in, as far as they are free."""

    def ready(self, station: Station) -> None:
        """A worker has started; raises BadAnswer when it cannot have."""

    def reply(self, station: Station, number: int, reply: Reply) -> None:
        """A worker answered; raises BadAnswer for what is no answer."""

    def died(self, station: Station, failure: Failure, now: float) -> None:
        """A worker has ended."""

    def end(self, failure: Failure) -> None:
        """Fails everything that is open."""


class Manager:
    """A thread that sees to workers until it is closed.

    Subclasses say what it does in a turn, and how it gives back what it holds at the end.

    Attributes:
      counters: as in `Pool`.
      thread: started by whoever made the manager.
    """

    def __init__(self, overseer: Overseer, counters: dict[str, int]):
        """A manager of the workers of an overseer."""
        self.counters = counters
        self.thread = threading.Thread(target=self._run, name="sandbox manager", daemon=True)
        self.overseer = overseer
        self._owner = os.getpid()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        # Shared with callers, under the condition:
        self._changed = threading.Condition()
        self._submitted: list[Any] = []
        self._answers: list[Any] = []
        self._refusal: SandboxError | None = None  # why nothing more can be submitted
        self._closing = False

    def submit(self, request: Any) -> None:
        """Hands something to the overseer; raises SandboxError when nothing is served any more."""
        if os.getpid() != self._owner:
            raise SandboxError(
                f"the pool belongs to process {self._owner}, this is a fork of it; make a pool here"
            )
        with self._changed:
            if self._refusal is not None:
                raise type(self._refusal)(*self._refusal.args)
            self._submitted.append(request)
            os.eventfd_write(self._wake, 1)

    def take(self) -> list[Any]:
        """All that the overseer has answered since the last take."""
        with self._changed:
            answers, self._answers = self._answers, []
            return answers

    def wait(self, seconds: float) -> bool:
        """Waits until there is something to take; False when nothing came in time."""
        with self._changed:
            return self._changed.wait_for(lambda: bool(self._answers), seconds)

    def wake(self) -> None:
        """Has the thread look at its workers at once."""
        with self._changed:
            if self._wake >= 0:
                os.eventfd_write(self._wake, 1)

    def close(self) -> None:
        """Gives back all that the manager holds, and ends its thread; again is fine."""
        if os.getpid() != self._owner:
            return
        self._closing = True
        self.wake()
        # The last reference to a pool can vanish anywhere, in this very thread too.
        if self.thread.is_alive() and self.thread is not threading.current_thread():
            self.thread.join()

    def _turn(self) -> None:
        """Waits until something happens, and sees to it."""
        raise NotImplementedError

    def _give_back(self, stack: contextlib.ExitStack) -> None:
        """Ends all workers; what must be done even if something fails goes on the stack."""
        raise NotImplementedError

    def _run(self) -> None:
        failure = Failure("lost", "the pool was closed")
        try:
            self.overseer.start(time.monotonic())
            while not self._closing:
                self._turn()
        except BaseException as error:
            words = f"the pool's own thread failed: {type(error).__name__}: {error}"
            failure = Failure("worker_died", words)
            raise
        finally:
            with contextlib.ExitStack() as stack:
                stack.callback(self._tell_all, failure)
                self._give_back(stack)

    def _receive_submitted(self) -> None:
        """Hands the overseer what callers have handed in since the last time."""
        with self._changed:
            submitted, self._submitted = self._submitted, []
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._wake)
        for request in submitted:
            self.overseer.submit(request)

    def _deliver(self) -> None:
        """Lets callers have what the overseer has answered."""
        exhausted = self.overseer.exhausted
        with self._changed:
            if exhausted is not None and self._refusal is None:
                self._refusal = TooManyFailures(exhausted.message)
            if self.overseer.answers:
                self._answers += self.overseer.answers
                self.overseer.answers.clear()
                self._changed.notify_all()

    def _tell_all(self, failure: Failure) -> None:
        with self._changed:
            self._refusal = self._refusal or SandboxError(failure.message)
            submitted, self._submitted = self._submitted, []
            os.close(self._wake)
            self._wake = -1
        self.overseer.end(failure)
        for request in submitted:
            self.overseer.submit(request)
        self._deliver()


class ManagedPool:
    """A pool whose workers a manager sees to; see `Pool` for the methods."""

    def __init__(self, manager: Manager):
        """Starts the manager. It outlives the pool object, which only points there."""
        self._manager = manager
        self.counters = manager.counters
        self._finish = weakref.finalize(self, manager.close)
        manager.thread.start()

    def submit(self, call: Call) -> None:
        """Hands in a call and returns at once.

        Raises:
          TooManyFailures: no worker is left.
          ValueError: a kind that does not exist, a payload that does not pickle or is too large.
          SandboxError: the pool is closed.
        """
        request = Request(Call(call.number, call.episode, call.kind), _encode(call))
        try:
            self._manager.submit(request)
        except SandboxError:
            if call.kind != "close":
                raise

    def take(self) -> list[Answer]:
        """All answers that have arrived since the last take; never waits."""
        return self._manager.take()

    def wait(self, seconds: float) -> bool:
        """Waits until an answer is there to take; False when none came in time."""
        return self._manager.wait(seconds)

    def close(self) -> None:
        """Ends all workers and removes their files; again is fine."""
        self._finish()

    def __enter__(self):
        return self

    def __exit__(self, *_) -> None:
        self.close()


def check_numbers(least: int = 0, **numbers: int) -> None:
    """Raises ValueError for a number below the least that is allowed."""
    for name, value in numbers.items():
        if value < least:
            raise ValueError(f"{name} must be at least {least}, got {value}")


def pickle_factory(factory: EnvironmentFactory) -> bytes:
    """A factory for other processes; raises ValueError for one that does not pickle."""
    try:
        return pickle.dumps(factory)
    except Exception as error:
        raise ValueError(
            f"the factory of environments must pickle to reach other processes ({error}): use "
            "a class or function of a module, or functools.partial of one"
        ) from error


def _encode(call: Call) -> bytes:
    """The payload as a worker decodes it: a state as it is, anything else pickled."""
    check_call(call)
    try:
        body = call.payload if call.kind == "restore" else pickle.dumps(call.payload)
    except Exception as error:
        raise ValueError(f"the payload of a {call.kind} does not pickle: {error}") from error
    if len(body) > MAX_BODY:
        raise ValueError(
            f"the payload of a {call.kind} has {len(body):,} bytes; at most {MAX_BODY:,} are sent"
        )
    return body
