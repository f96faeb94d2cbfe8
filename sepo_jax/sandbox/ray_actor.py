"""What runs in a Ray actor: the worker processes of one machine, told from afar what to do.

All judgement stays with the supervisor at the other end. Commands and events are messages of
`frames`, so that nothing an environment says is pickled on its way. Imports nothing of Ray.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from sepo_jax.sandbox.frames import Frame, FrameReader, pack
from sepo_jax.sandbox.hosting import Reply, answer_of
from sepo_jax.sandbox.isolation import Limits
from sepo_jax.sandbox.process_pool import ProcessManager
from sepo_jax.sandbox.protocol import BadAnswer, Call, Failure, SandboxError
from sepo_jax.sandbox.stations import BUSY, GONE, IDLE, STARTING, Request, Station, Task
from sepo_jax.sandbox.worker_process import WorkerProcess


class WorkerHost:
    """The worker processes of one machine. Ray calls each method from one thread of its own."""

    def __init__(
        self,
        factory: bytes,
        main: Mapping[str, str],
        paths: Sequence[str],
        workers: int,
        limits: Limits,
    ):
        """A host without workers; commands start them.

        Args:
          factory: pickled.
          main: where the main module is found that the factory may come from.
          paths: where the caller finds its modules; those that exist here serve workers too.
          workers: places for workers.
          limits: what each may use.
        """
        sys.path += [path for path in paths if path not in sys.path and os.path.isdir(path)]
        self._manager = ProcessManager(factory, main, workers, limits, Relay)
        self._manager.thread.start()
        self._reader = FrameReader()
        self._next_batch = 0
        self._batches: dict[int, bytes] = {}

    def submit(self, batch: int, commands: bytes) -> None:
        """Takes commands, see `Relay.submit`; Ray may swap batches, which are numbered from 0."""
        self._batches[batch] = commands
        while self._next_batch in self._batches:
            data = self._batches.pop(self._next_batch)
            self._next_batch += 1
            for command in self._reader.feed(data):
                self._manager.submit(command)

    def take(self, seconds: float) -> bytes:
        """Events, see `Relay`, as soon as there are some or the time is over.

        Last comes one of kind "counters": those of the pool that are counted here.
        """
        self._manager.wait(seconds)
        events = self._manager.take()
        if not self._manager.thread.is_alive():
            raise SandboxError("the host of the workers has ended")
        counters = self._manager.counters
        counted = {name: counters[name] for name in ("constructed", "ignored_answers")}
        return b"".join([*events, pack({"kind": "counters", **counted})])

    def close(self) -> None:
        """Ends the workers and removes their files."""
        self._manager.close()


class Relay:
    """Stands in for the supervisor of a host's workers: does what it is told, and tells all.

    Every message names a worker. Events are of kind "ready"; "reply" with the number of the call
    and the kind of the reply; "died" with the kind of the failure, and whether a call was going on.

    Attributes:
      stations: the places of the workers.
      answers: events, packed.
      exhausted: None; the supervisor decides that.
    """

    exhausted: Failure | None = None

    def __init__(self, workers: Sequence[WorkerProcess], counters: dict[str, int]):
        self.stations = [Station(worker, state=GONE) for worker in workers]
        self.answers: list[bytes] = []
        self._counters = counters
        self._commands: list[Frame] = []

    def start(self, now: float) -> None:
        """Nothing: each worker is started by a command."""

    def submit(self, command: Frame) -> None:
        """Takes a command: kind "start", or a kind of call with its number and episode."""
        self._commands.append(command)

    def dispatch(self, now: float) -> None:
        """Carries out the commands."""
        for header, body in self._commands:
            station = self.stations[header["worker"]]
            if header["kind"] == "start":
                self._start(station, now)
            elif station.state != GONE:  # or else its end is on its way to the supervisor
                call = Call(header["number"], header["episode"], header["kind"])
                request = Request(call, body)
                if call.kind == "close":
                    station.worker.send(call.number, request)
                else:
                    station.tasks.append(Task(call.number, None, request, False))
        self._commands.clear()
        for station in self.stations:
            if station.state == IDLE and station.tasks:
                station.state, station.since = BUSY, now
                station.worker.send(station.task.number, station.task.request)

    def ready(self, station: Station) -> None:
        """A worker has started; raises BadAnswer when it had before."""
        if station.state != STARTING:
            raise BadAnswer("a worker said twice that it is ready")
        station.state = IDLE
        self._tell(station, "ready")

    def reply(self, station: Station, number: int, reply: Reply) -> None:
        """A worker answered; raises BadAnswer for what is no answer to its call."""
        if station.state != BUSY or number != station.task.number:
            self._counters["ignored_answers"] += 1
            return
        answer_of(station.task.request.call, reply)
        station.tasks.popleft()
        station.state = IDLE
        self._tell(station, "reply", reply.body, number=number, reply=reply.kind)

    def died(self, station: Station, failure: Failure, now: float) -> None:
        """A worker has ended."""
        busy, station.state = station.state == BUSY, GONE
        station.tasks.clear()
        words = failure.message.encode("utf-8", "replace")
        self._tell(station, "died", words, busy=busy, failure=failure.kind)

    def end(self, failure: Failure) -> None:
        """Nobody listens any more."""

    def _start(self, station: Station, now: float) -> None:
        station.state, station.since = STARTING, now
        try:
            station.worker.start()
        except OSError as error:
            self.died(station, Failure("worker_died", f"a worker could not start: {error}"), now)

    def _tell(self, station: Station, kind: str, body: bytes = b"", **more: Any) -> None:
        header = {"worker": self.stations.index(station), "kind": kind}
        self.answers.append(pack(header | more, body))
