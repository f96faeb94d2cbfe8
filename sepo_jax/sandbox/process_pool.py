"""A pool of worker processes on this machine.

Their manager is the only one that reads, writes, waits and kills. It never blocks on a worker.
"""

import contextlib
import math
import select
import time
from collections.abc import Callable, Mapping, Sequence

from sepo_jax.sandbox.hosting import MAX_WORDS, Reply, new_counters
from sepo_jax.sandbox.isolation import Limits
from sepo_jax.sandbox.manager import (
    ManagedPool,
    Manager,
    Overseer,
    check_numbers,
    pickle_factory,
)
from sepo_jax.sandbox.protocol import BadAnswer, EnvironmentFactory, Failure
from sepo_jax.sandbox.scratch import Scratch
from sepo_jax.sandbox.stations import BUSY, GONE, IDLE, STARTING, Station
from sepo_jax.sandbox.supervisor import Supervisor
from sepo_jax.sandbox.worker_process import WorkerProcess, main_module

START_SECONDS = 60.0
END_SECONDS = 2.0
Oversee = Callable[[Sequence[WorkerProcess], dict[str, int]], Overseer]


class ProcessPool(ManagedPool):
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
        check_numbers(1, workers=workers)
        check_numbers(max_restarts=max_restarts, retries=retries)

        def oversee(processes: Sequence[WorkerProcess], counters: dict[str, int]) -> Supervisor:
            return Supervisor(processes, counters, max_restarts=max_restarts, retries=retries)

        pickled = pickle_factory(factory)
        super().__init__(
            ProcessManager(pickled, main_module(), workers, limits or Limits(), oversee)
        )


class ProcessManager(Manager):
    """The manager of the worker processes of one machine."""

    def __init__(
        self,
        factory: bytes,
        main: Mapping[str, str],
        workers: int,
        limits: Limits,
        oversee: Oversee,
    ):
        """A manager whose processes have yet to be started by its overseer.

        Args:
          factory: pickled.
          main: where the main module is found that the factory may come from.
          workers: processes.
          limits: what each may use.
          oversee: makes the overseer of these, which counts in the counters it is given.
        """
        self._seconds = limits.seconds
        self._scratch = Scratch()
        processes = [
            WorkerProcess(f"worker-{index}", factory, main, limits, self._scratch, warn=index == 0)
            for index in range(workers)
        ]
        counters = new_counters()
        super().__init__(oversee(processes, counters), counters)

    def _turn(self) -> None:
        ready = self._poll(self._next_deadline())
        self._receive_submitted()
        for station in self._staffed():
            if self._is_overdue(station) or not ready.isdisjoint(station.worker.descriptors):
                self._attend(station, ready)
        self.overseer.dispatch(time.monotonic())
        self._deliver()

    def _staffed(self) -> list[Station]:
        return [station for station in self.overseer.stations if station.state != GONE]

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
        worker = station.worker
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
            if station.state == STARTING:
                words = f"a worker was not ready after {START_SECONDS:g} s"
                failure = Failure("worker_died", words)
            else:
                kind = station.task.request.call.kind
                failure = Failure("timeout", f"a {kind} took longer than {self._seconds:g} s")
        how = worker.end()
        failure = failure or Failure("worker_died", how)
        self.overseer.died(station, failure, time.monotonic())

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
            self.overseer.ready(station)
        elif kind == "unready":
            worker.last_words = body[:MAX_WORDS].decode("utf-8", "replace")
        else:
            self.overseer.reply(station, number, Reply(kind, body))

    def _give_back(self, stack: contextlib.ExitStack) -> None:
        stack.callback(self._scratch.close)
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
