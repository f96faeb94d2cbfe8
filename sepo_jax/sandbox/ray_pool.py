"""A pool whose worker processes are on the machines of a Ray cluster.

An actor hosts the workers of one machine and only relays; assigning episodes, replacing workers and
rebuilding what a dead one held is done here, by the same supervisor as for the workers of one
machine. So an actor or a machine that dies is so many workers that die, none of whose calls is to
blame.
"""

import atexit
import contextlib
import functools
import math
import select
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

from sepo_jax.sandbox import ray_cluster
from sepo_jax.sandbox.frames import FrameReader, pack
from sepo_jax.sandbox.hosting import MAX_WORDS, Reply, new_counters
from sepo_jax.sandbox.isolation import Limits
from sepo_jax.sandbox.manager import ManagedPool, Manager, check_numbers, pickle_factory
from sepo_jax.sandbox.protocol import BadAnswer, EnvironmentFactory, Failure, SandboxError
from sepo_jax.sandbox.ray_actor import WorkerHost
from sepo_jax.sandbox.stations import GONE, Request, Station
from sepo_jax.sandbox.supervisor import Supervisor
from sepo_jax.sandbox.worker_process import main_module

LISTENING_SECONDS = 5.0  # an actor answers within that time, if only to say that nothing happened
SILENT_SECONDS = 60.0
PLACING_SECONDS = 300.0  # for an actor that has never said anything: a cluster may have to grow
END_SECONDS = 20.0
DEPTH = 16  # so that a worker need not wait for the way to it and back


class RayPool(ManagedPool):
    """Environments in worker processes of Ray actors; see `Pool` for the methods.

    Workers and their faults are treated as by `ProcessPool`. An actor that ends, with its machine
    or alone, is replaced where the cluster has room, which counts as one restart of each of its
    workers; all its episodes are rebuilt.
    """

    def __init__(
        self,
        factory: EnvironmentFactory,
        *,
        actors: int = 2,
        workers_per_actor: int = 2,
        limits: Limits | None = None,
        max_restarts: int = 3,
        retries: int = 0,
        address: str | None = None,
        cpus_per_worker: float = 1.0,
        resources: Mapping[str, float] | None = None,
    ):
        """Starts the workers and returns before they are ready.

        Every machine needs this package, and the factory's module in a place where Python looks.

        Args:
          factory: makes an environment, inside a worker.
          actors: as a rule one for each machine; they are spread over the cluster.
          workers_per_actor: processes of each.
          limits: what a worker may use, and how long a call may take.
          max_restarts: how often each worker is replaced.
          retries: how often a call that ended a worker is tried again, in another one.
          address: of a running cluster, or "auto" to find it. By default the one that this process
            is connected to, else RAY_ADDRESS, else one on this machine for as long as pools use it.
          cpus_per_worker: what Ray sets aside for a worker on the machines of a running cluster.
          resources: what else it sets aside there for an actor, by Ray's names.

        Raises:
          ImportError: Ray is not installed.
          ValueError: numbers out of range, a factory that does not pickle, an address while
            connected to another, or resources without a running cluster.
          ConnectionError: nothing runs at that address.
        """
        check_numbers(1, actors=actors, workers_per_actor=workers_per_actor)
        check_numbers(max_restarts=max_restarts, retries=retries, cpus_per_worker=cpus_per_worker)
        arguments = (
            pickle_factory(factory), main_module(), [str(path) for path in sys.path],
            workers_per_actor, limits or Limits(),
        )  # fmt: skip
        is_local = ray_cluster.connect(address, actors)
        try:
            if is_local and resources:
                raise ValueError(
                    f"resources are those of a running cluster, and none was named: {resources}; "
                    "give its address, or leave them out"
                )
            cpus = 0.0 if is_local else cpus_per_worker * workers_per_actor
            create = functools.partial(_create_actor, arguments, cpus, dict(resources or {}))
            manager = _RayManager(create, actors, workers_per_actor, max_restarts, retries)
        except BaseException:
            ray_cluster.disconnect()
            raise
        super().__init__(manager)
        atexit.register(self._finish)  # before Ray's own, which was registered earlier


def _create_actor(arguments: tuple, cpus: float, resources: dict[str, float]) -> Any:
    """A handle of an actor that will be placed as soon as there is room."""
    ray = ray_cluster.import_ray()
    actor_class = ray.remote(concurrency_groups={"submit": 1, "take": 1})(WorkerHost)
    options = {"num_cpus": cpus, "resources": resources, "scheduling_strategy": "SPREAD"}
    return actor_class.options(max_restarts=0, max_task_retries=0, **options).remote(*arguments)


class _Actor:
    """An actor, or the place for one.

    Attributes:
      stations: the places of its workers, by their index.
      future: what it will say next, None while there is no actor.
      heard: when it last said something.
      counted: the counters it last gave.
    """

    def __init__(self, create: Callable[[], Any], wake: Callable[[], None]):
        self._create, self._wake = create, wake
        self._handle: Any = None
        self._outgoing = bytearray()
        self._batches = 0
        self.stations: list[Station] = []
        self.future: Future | None = None
        self.heard = 0.0
        self.counted: dict[str, int] = {}

    def post(self, header: dict[str, Any], body: bytes = b"") -> None:
        """Adds a command to what is sent next; makes an actor if there is none."""
        if self._handle is None:
            self._handle, self._batches, self.counted = self._create(), 0, {}
            self._listen()
        self._outgoing += pack(header, body)

    def flush(self) -> None:
        """Sends the commands."""
        if self._outgoing:
            submit = self._handle.submit.options(concurrency_group="submit")
            submit.remote(self._batches, bytes(self._outgoing))
            self._batches += 1
            self._outgoing.clear()

    @property
    def deadline(self) -> float:
        """When it must have said something; never while there is no actor."""
        if self.future is None:
            return math.inf
        return self.heard + (SILENT_SECONDS if self.counted else PLACING_SECONDS)

    def receive(self) -> list:
        """The events that have come, and listens for more; raises what ended the actor."""
        data = self.future.result()
        if not isinstance(data, bytes):
            raise BadAnswer(f"an actor sent {type(data).__name__}, not bytes")
        self._listen()
        return FrameReader().feed(data)

    def end(self, ray: Any) -> None:
        """Ends the actor, if there is one, and forgets what it was to be told."""
        handle, self._handle, self.future = self._handle, None, None
        self._outgoing.clear()
        if handle is not None and ray.is_initialized():
            with contextlib.suppress(Exception):
                ray.kill(handle)

    def ask_to_end(self) -> Any:
        """Asks the actor to give back what it holds; what to wait for."""
        return self._handle.close.remote()

    def _listen(self) -> None:
        self.heard = time.monotonic()
        take = self._handle.take.options(concurrency_group="take")
        self.future = take.remote(LISTENING_SECONDS).future()
        self.future.add_done_callback(lambda _: self._wake())


class _RemoteWorker:
    """A worker of an actor."""

    def __init__(self, actor: _Actor, index: int):
        self.actor, self._index = actor, index

    def start(self) -> None:
        """Has the worker started."""
        self._post("start")

    def send(self, number: int, request: Request) -> None:
        """Hands over a request."""
        call = request.call
        self._post(call.kind, request.body, number=number, episode=call.episode)

    def _post(self, kind: str, body: bytes = b"", **more: int) -> None:
        self.actor.post({"worker": self._index, "kind": kind, **more}, body)


class _RayManager(Manager):
    def __init__(
        self,
        create: Callable[[], Any],
        actors: int,
        workers: int,
        max_restarts: int,
        retries: int,
    ):
        self._ray = ray_cluster.import_ray()
        self._actors = [_Actor(create, self.wake) for _ in range(actors)]
        remote = [_RemoteWorker(actor, i) for i in range(workers) for actor in self._actors]
        counters = new_counters()
        super().__init__(
            Supervisor(remote, counters, max_restarts=max_restarts, retries=retries, depth=DEPTH),
            counters,
        )
        for station in self.overseer.stations:
            station.worker.actor.stations.append(station)

    def _turn(self) -> None:
        self._wait()
        if not self._ray.is_initialized():  # the next call would start another cluster
            raise SandboxError("Ray was shut down while a pool used it")
        self._receive_submitted()
        for actor in self._actors:
            if actor.future is not None:
                self._attend(actor)
        self.overseer.dispatch(time.monotonic())
        for actor in self._actors:
            actor.flush()
        self._deliver()

    def _wait(self) -> None:
        """Waits for a caller, an actor, or the time at which one has been silent too long."""
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        left = min(actor.deadline for actor in self._actors) - time.monotonic()
        poll.poll(None if left == math.inf else math.ceil(max(0.0, left) * 1000))

    def _attend(self, actor: _Actor) -> None:
        """Hears what an actor says, or ends it."""
        try:
            if actor.future.done():
                for header, body in actor.receive():
                    self._hear(actor, header, body)
                return
            if time.monotonic() < actor.deadline:
                return
            seconds = time.monotonic() - actor.heard
            why = f"it said nothing for {seconds:.0f} s; does the cluster have room for it?"
        except Exception as error:  # Ray has many, and any of them means that it is of no use
            why = f"{type(error).__name__}: {' '.join(str(error).split())[:MAX_WORDS]}"
        actor.end(self._ray)
        stations = [station for station in actor.stations if station.state != GONE]
        failure = Failure("worker_died", f"the Ray actor of a worker ended: {why}")
        self.overseer.lost(stations, failure, time.monotonic())

    def _hear(self, actor: _Actor, header: dict[str, Any], body: bytes) -> None:
        if header["kind"] == "counters":
            for name in ("constructed", "ignored_answers"):
                self.counters[name] += header[name] - actor.counted.get(name, 0)
                actor.counted[name] = header[name]
            return
        station = actor.stations[header["worker"]]
        if header["kind"] == "ready":
            self.overseer.ready(station)
        elif header["kind"] == "reply":
            self.overseer.reply(station, header["number"], Reply(header["reply"], body))
        else:
            failure = Failure(header["failure"], body[:MAX_WORDS].decode("utf-8", "replace"))
            now = time.monotonic()
            self.overseer.died(station, failure, now, is_to_blame=header["busy"])

    def _give_back(self, stack: contextlib.ExitStack) -> None:
        stack.callback(ray_cluster.disconnect)
        for actor in self._actors:
            stack.callback(actor.end, self._ray)
        if not self._ray.is_initialized():  # and the actors are gone with it
            return
        with contextlib.suppress(Exception):
            ends = [actor.ask_to_end() for actor in self._actors if actor.future is not None]
            self._ray.wait(ends, num_returns=len(ends), timeout=END_SECONDS)
