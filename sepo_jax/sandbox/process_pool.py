"""A pool of worker processes.

One thread of the parent, the manager, owns the processes: it starts them, and is the only one that
reads, writes, waits and kills. It never blocks on a worker. Callers only touch two lists.
"""

import contextlib
import math
import os
import pickle
import select
import threading
import time
import weakref

from sepo_jax.sandbox.frames import MAX_BODY
from sepo_jax.sandbox.hosting import MAX_WORDS, Reply, check_call, new_counters
from sepo_jax.sandbox.isolation import Limits
from sepo_jax.sandbox.protocol import (
    Answer,
    BadAnswer,
    Call,
    EnvironmentFactory,
    Failure,
    SandboxError,
    TooManyFailures,
)
from sepo_jax.sandbox.scratch import Scratch
from sepo_jax.sandbox.supervisor import BUSY, GONE, IDLE, STARTING, Request, Station, Supervisor
from sepo_jax.sandbox.worker_process import WorkerProcess

START_SECONDS = 60.0
END_SECONDS = 2.0


class ProcessPool:
    """Environments in worker processes; see `Pool` for the methods.

    A worker whose call exits, crashes, runs out of time or answers nonsense is killed with all it
    started, and replaced. That call's episode fails. The other episodes of the worker are rebuilt
    from their recorded calls, so an environment whose turns do not follow from its task, seed and
    actions is lost with its worker; none other is.
    """

    def __init__(
        self,
        factory: EnvironmentFactory,
        *,
        workers: int = 2,
        limits: Limits | None = None,
        max_restarts: int = 3,
        retries: int = 0,
    ):
        """Starts the workers and returns before they are ready.

        Args:
          factory: makes an environment, inside a worker.
          workers: processes.
          limits: what a worker may use, and how long a call may take.
          max_restarts: how often each worker is replaced.
          retries: how often a call that ended a worker is tried again, in another one.

        Raises:
          ValueError: numbers out of range, or a factory that does not pickle.
        """
        for name, value, least in (
            ("workers", workers, 1), ("max_restarts", max_restarts, 0), ("retries", retries, 0)
        ):  # fmt: skip
            if value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        try:
            pickled = pickle.dumps(factory)
        except Exception as error:
            raise ValueError(
                f"the factory of environments must pickle to reach other processes ({error}): use "
                "a class or function of a module, or functools.partial of one"
            ) from error
        self._manager = _Manager(pickled, workers, limits or Limits(), max_restarts, retries)
        self.counters = self._manager.counters
        self._finish = weakref.finalize(self, self._manager.close)
        self._manager.thread.start()

    def submit(self, call: Call) -> None:
        """Hands in a call and returns at once.

        Raises:
          TooManyFailures: no worker is left.
          ValueError: a kind that does not exist, a payload that does not pickle or is too large.
          SandboxError: the pool is closed.
        """
        self._manager.submit(Request(Call(call.number, call.episode, call.kind), _encode(call)))

    def take(self) -> list[Answer]:
        """All answers that have arrived since the last take; never waits."""
        return self._manager.take()

    def wait(self, seconds: float) -> bool:
        """Waits until an answer is there to take; False when none came in time."""
        return self._manager.wait(seconds)

    def close(self) -> None:
        """Ends all workers and removes their files; again is fine."""
        self._finish()

    def __enter__(self) -> "ProcessPool":
        return self

    def __exit__(self, *_) -> None:
        self.close()


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


class _Manager:
    """What the manager thread owns. It outlives the pool object, which only points here."""

    def __init__(
        self, factory: bytes, workers: int, limits: Limits, max_restarts: int, retries: int
    ):
        self.counters = new_counters()
        self.thread = threading.Thread(target=self._run, name="sandbox manager", daemon=True)
        self._owner = os.getpid()
        self._seconds = limits.seconds
        self._scratch = Scratch()
        processes = [
            WorkerProcess(f"worker-{index}", factory, limits, self._scratch, warn=index == 0)
            for index in range(workers)
        ]
        self._supervisor = Supervisor(
            processes, self.counters, max_restarts=max_restarts, retries=retries
        )
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        # Shared with callers, under the condition:
        self._changed = threading.Condition()
        self._submitted: list[Request] = []
        self._answers: list[Answer] = []
        self._refusal: SandboxError | None = None  # why nothing more can be submitted
        self._closing = False

    def submit(self, request: Request) -> None:
        if os.getpid() != self._owner:
            raise SandboxError(
                f"the pool belongs to process {self._owner}, this is a fork of it; make a pool here"
            )
        with self._changed:
            if self._refusal is None:
                self._submitted.append(request)
                os.eventfd_write(self._wake, 1)
            elif request.call.kind != "close":
                raise type(self._refusal)(*self._refusal.args)

    def take(self) -> list[Answer]:
        with self._changed:
            answers, self._answers = self._answers, []
            return answers

    def wait(self, seconds: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: bool(self._answers), seconds)

    def close(self) -> None:
        if os.getpid() != self._owner:
            return
        with self._changed:
            self._closing = True
            if self._wake >= 0:
                os.eventfd_write(self._wake, 1)
        # The last reference to a pool can vanish anywhere, in this very thread too.
        if self.thread.is_alive() and self.thread is not threading.current_thread():
            self.thread.join()

    def _run(self) -> None:
        failure = Failure("lost", "the pool was closed")
        try:
            self._supervisor.start(time.monotonic())
            while not self._closing:
                self._turn()
        except BaseException as error:
            words = f"the pool's own thread failed: {type(error).__name__}: {error}"
            failure = Failure("worker_died", words)
            raise
        finally:
            self._end(failure)

    def _turn(self) -> None:
        """Waits until something happens, and sees to it."""
        ready = self._poll(self._next_deadline())
        with self._changed:
            submitted, self._submitted = self._submitted, []
            if self._wake in ready:
                os.eventfd_read(self._wake)
        for request in submitted:
            self._supervisor.submit(request)
        for station in self._staffed():
            if self._is_overdue(station) or not ready.isdisjoint(station.worker.descriptors):
                self._attend(station, ready)
        self._supervisor.dispatch(time.monotonic())
        self._deliver()

    def _staffed(self) -> list[Station]:
        return [station for station in self._supervisor.stations if station.state != GONE]

    def _poll(self, deadline: float | None) -> set[int]:
        """The descriptors that are ready, as soon as one is, or none at the deadline."""
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        for station in self._staffed():
            channel, pidfd = station.worker.descriptors
            writes = select.POLLOUT if station.worker.has_more_to_send else 0
            poll.register(channel, select.POLLIN | writes)
            poll.register(pidfd, select.POLLIN)
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        return {ready for ready, _ in poll.poll(None if left is None else math.ceil(left * 1000))}

    def _time_allowed(self, station: Station) -> float:
        return {STARTING: START_SECONDS, BUSY: self._seconds}.get(station.state, math.inf)

    def _is_overdue(self, station: Station) -> bool:
        return time.monotonic() - station.since > self._time_allowed(station)

    def _next_deadline(self) -> float | None:
        stations = self._staffed()
        first = min((s.since + self._time_allowed(s) for s in stations), default=math.inf)
        return None if first == math.inf else first

    def _attend(self, station: Station, ready: set[int]) -> None:
        """Hears what a worker says, then ends it if it is dead, late or talks nonsense."""
        worker, task = station.worker, station.task
        worker.flush()
        failure = None
        try:
            # What it said before it died or before its time was up still counts.
            frames, goes_on = worker.receive()
            for frame in frames:
                self._hear(station, *frame)
        except BadAnswer as error:
            failure = Failure("bad_answer", f"a worker sent {error}")
        if failure is None and goes_on and worker.pidfd not in ready:
            if not self._is_overdue(station):
                return
            if task is None:
                words = f"a worker was not ready after {START_SECONDS:g} s"
                failure = Failure("worker_died", words)
            else:
                words = f"a {task.request.call.kind} took longer than {self._seconds:g} s"
                failure = Failure("timeout", words)
        how = worker.end()
        failure = failure or Failure("worker_died", how)
        self._supervisor.died(station, failure, time.monotonic())

    def _hear(self, station: Station, header: dict, body: bytes) -> None:
        """Takes one message of a worker; raises BadAnswer for what is none."""
        number, kind, made = (header.get(name) for name in ("number", "kind", "constructed"))
        whole = type(number) is int and type(made) is int and 0 <= made < 1 << 31
        if not whole or not isinstance(kind, str):
            raise BadAnswer(f"no message: a header of {str(header)[:80]!r}")
        worker = station.worker
        self.counters["constructed"] += max(0, made - worker.constructed)
        worker.constructed = max(made, worker.constructed)
        if kind == "ready":
            self._supervisor.ready(station)
        elif kind == "unready":
            worker.last_words = body[:MAX_WORDS].decode("utf-8", "replace")
        else:
            self._supervisor.reply(station, number, Reply(kind, body))

    def _deliver(self) -> None:
        exhausted = self._supervisor.exhausted
        with self._changed:
            if exhausted is not None and self._refusal is None:
                self._refusal = TooManyFailures(exhausted.message)
            if self._supervisor.answers:
                self._answers += self._supervisor.answers
                self._supervisor.answers.clear()
                self._changed.notify_all()

    def _end(self, failure: Failure) -> None:
        """Ends all workers, tells every caller, and gives everything back."""
        with contextlib.ExitStack() as stack:  # whatever fails, the rest is done
            stack.callback(self._scratch.close)
            stack.callback(self._tell_all, failure)
            stations = self._staffed()
            for station in stations:
                stack.callback(station.worker.end)
            for station in stations:
                if station.state == IDLE:
                    station.worker.ask_to_end()
            deadline = time.monotonic() + END_SECONDS
            for station in stations:
                if station.state == IDLE:
                    station.worker.wait(max(0.0, deadline - time.monotonic()))

    def _tell_all(self, failure: Failure) -> None:
        with self._changed:
            self._refusal = self._refusal or SandboxError(failure.message)
            submitted, self._submitted = self._submitted, []
            os.close(self._wake)
            self._wake = -1
        self._supervisor.end(failure)
        for request in submitted:
            self._supervisor.submit(request)
        self._deliver()
