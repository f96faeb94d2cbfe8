"""Which worker serves which episode, and what becomes of both when a worker ends.

Knows nothing of processes or clocks: a pool hands in calls, replies and deaths, and carries out
what comes of them. A worker serves one call at a time. When it ends, the episode of the call in
progress is the culprit and fails; its other episodes are innocent: they are rebuilt elsewhere from
their recorded calls, and lost only where a rebuilt turn differs from the recorded one.
"""

import hashlib
import itertools
import json
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from sepo_jax.sandbox.hosting import BEGINNINGS, Reply, answer_of, count_failure, not_open
from sepo_jax.sandbox.protocol import Answer, BadAnswer, Call, Failure

STARTING, IDLE, BUSY, GONE = "starting", "idle", "busy", "gone"


class Request(NamedTuple):
    """A call as it goes to a worker: the payload as bytes, so that nobody can change it later.

    Attributes:
      call: number, episode and kind, without a payload.
      body: what the worker decodes.
    """

    call: Call
    body: bytes


class Worker(Protocol):
    """What a supervisor asks of the place where environments live."""

    def start(self) -> None:
        """Starts an empty worker, which will say when it is ready; raises OSError."""

    def send(self, number: int, request: Request) -> None:
        """Hands over a request; a reply carries `number`, and a close has none."""


class Replayed(NamedTuple):
    """A request that an episode has behind it, and the digest of the turn it gave."""

    request: Request
    digest: bytes


@dataclass(eq=False)
class Episode:
    """An open episode.

    Attributes:
      number: its name in calls.
      station: where it is served.
      history: its requests from its reset or restore on, snapshots left out.
      replayed: how many of these the present worker has seen.
      pending: requests not yet answered, in order.
      attempts: how often the first pending one ended a worker.
      cause: how it did so the last time.
      queued: whether it waits at the station.
      failure: set when it was lost while nothing was pending; the next call is told.
    """

    number: int
    station: "Station"
    history: list[Replayed] = field(default_factory=list)
    replayed: int = 0
    pending: deque[Request] = field(default_factory=deque)
    attempts: int = 0
    cause: Failure | None = None
    queued: bool = False
    failure: Failure | None = None

    def next_request(self) -> tuple[Request | None, bool]:
        """What to ask next, and whether it is a replay."""
        anew = self.pending and self.pending[0].call.kind in (*BEGINNINGS, "close")
        if not anew and self.replayed < len(self.history):
            return self.history[self.replayed].request, True
        return (self.pending[0] if self.pending else None), False


class Task(NamedTuple):
    """What a worker is busy with."""

    number: int
    episode: Episode
    request: Request
    is_replay: bool


@dataclass(eq=False)
class Station:
    """A worker's place: the worker that is there at present, and the episodes assigned to it.

    Attributes:
      state: STARTING, IDLE, BUSY or GONE.
      since: the time at which it began to start or to be busy.
      restarts: workers that took the place of dead ones.
      task: what it is busy with.
      queue: episodes with something to ask, in order.
      episodes: all that are assigned, by number.
    """

    worker: Worker
    state: str = STARTING
    since: float = 0.0
    restarts: int = 0
    task: Task | None = None
    queue: deque[Episode] = field(default_factory=deque)
    episodes: dict[int, Episode] = field(default_factory=dict)


class Supervisor:
    """Assigns episodes to workers, and moves the innocent ones of a dead worker.

    Attributes:
      answers: answers for the caller, to be taken away.
      exhausted: why no worker is left, or None.
    """

    def __init__(
        self,
        workers: Sequence[Worker],
        counters: dict[str, int],
        *,
        max_restarts: int,
        retries: int,
    ):
        self.stations = [Station(worker) for worker in workers]
        self.answers: list[Answer] = []
        self.exhausted: Failure | None = None
        self._counters = counters
        self._max_restarts, self._retries = max_restarts, retries
        self._episodes: dict[int, Episode] = {}
        self._numbers = itertools.count(1)

    def start(self, now: float) -> None:
        """Starts all workers."""
        for station in self.stations:
            if failure := self._try_start(station, now):
                self._restart(station, failure, now)

    def submit(self, request: Request) -> None:
        """Takes a call of the caller."""
        self._counters["calls"] += request.call.kind != "close"
        self._accept(request)

    def dispatch(self, now: float) -> None:
        """Gives idle workers something to do until all are busy or nothing is left."""
        while station := next((s for s in self.stations if s.state == IDLE and s.queue), None):
            episode = station.queue.popleft()
            episode.queued = False
            request, is_replay = episode.next_request()
            if request.call.kind == "close":
                station.worker.send(0, request)
                self._forget(episode, not_open(episode.number))
                continue
            if request.call.kind in BEGINNINGS and not is_replay:
                episode.history.clear()
                episode.replayed = 0
            station.task = Task(next(self._numbers), episode, request, is_replay)
            station.state, station.since = BUSY, now
            station.worker.send(station.task.number, request)

    def ready(self, station: Station) -> None:
        """A worker has started; raises BadAnswer when it had before."""
        if station.state != STARTING:
            raise BadAnswer("a worker said twice that it is ready")
        station.state = IDLE

    def reply(self, station: Station, number: int, reply: Reply) -> None:
        """A worker answered; late and repeated answers are counted and ignored.

        Raises:
          BadAnswer: nothing that a worker says to such a call.
        """
        task = station.task
        if task is None or number != task.number:
            self._counters["ignored_answers"] += 1
            return
        answer = answer_of(task.request.call, reply)
        digest = digest_of(reply.body) if answer.turn is not None else b""
        station.task, station.state = None, IDLE
        if task.is_replay:
            self._replayed(task.episode, answer, digest)
        else:
            self._answered(task.episode, task.request, answer, digest)
        self._enqueue(task.episode)

    def died(self, station: Station, failure: Failure, now: float) -> None:
        """A worker has ended, by itself or by force."""
        count_failure(self._counters, failure)
        task, station.task = station.task, None
        episodes = list(station.episodes.values())
        station.episodes.clear()
        station.queue.clear()
        for episode in episodes:
            episode.queued, episode.replayed = False, 0
        self._restart(station, failure, now)
        if task is not None and not self._tries_again(task, failure):
            episodes.remove(task.episode)
            lost = Failure("lost", f"the worker ended while it rebuilt this one: {failure.message}")
            cause = (task.episode.cause or lost) if task.is_replay else failure
            self._fail(task.episode, cause)
        for episode in episodes:
            self._counters["replayed"] += bool(episode.history)
            self._place(episode)

    def end(self, failure: Failure) -> None:
        """Gives up all workers and fails everything that is open."""
        self.exhausted = self.exhausted or failure
        for station in self.stations:
            station.state = GONE
        for episode in list(self._episodes.values()):
            self._fail(episode, failure)

    def _accept(self, request: Request) -> None:
        number, kind = request.call.episode, request.call.kind
        episode = self._episodes.get(number)
        if episode is not None and episode.failure is None:
            episode.pending.append(request)
            self._enqueue(episode)
            return
        self._episodes.pop(number, None)
        if kind in BEGINNINGS:
            episode = Episode(number, self.stations[0], pending=deque([request]))
            self._episodes[number] = episode
            self._place(episode)
        elif kind != "close":
            self._refuse(request, episode.failure if episode else not_open(number))

    def _refuse(self, request: Request, failure: Failure) -> None:
        self.answers.append(Answer(request.call.number, request.call.episode, failure=failure))

    def _try_start(self, station: Station, now: float) -> Failure | None:
        station.state, station.since = STARTING, now
        try:
            station.worker.start()
        except OSError as error:
            return Failure("worker_died", f"a worker could not start: {error}")
        return None

    def _restart(self, station: Station, failure: Failure, now: float) -> None:
        """Puts a fresh worker in the place of one that ended, if it may have one."""
        last: Failure | None = failure
        while last is not None and station.restarts < self._max_restarts:
            station.restarts += 1
            self._counters["restarts"] += 1
            last = self._try_start(station, now)
        if last is None:
            return
        station.state = GONE
        if all(other.state == GONE for other in self.stations):
            self.exhausted = Failure(
                "worker_died",
                f"no worker is left: each of {len(self.stations)} was replaced "
                f"{self._max_restarts} times; the last: {last.message}",
            )

    def _tries_again(self, task: Task, failure: Failure) -> bool:
        """Whether the culprit's call may be tried again after a rebuild."""
        if task.is_replay or task.episode.attempts >= self._retries or self.exhausted:
            return False
        task.episode.attempts += 1
        task.episode.cause = failure
        return True

    def _place(self, episode: Episode) -> None:
        """Assigns an episode to the worker with the fewest."""
        alive = [station for station in self.stations if station.state != GONE]
        if not alive:
            self._fail(episode, self.exhausted)
            return
        episode.station = min(alive, key=lambda station: len(station.episodes))
        episode.station.episodes[episode.number] = episode
        self._enqueue(episode)

    def _enqueue(self, episode: Episode) -> None:
        served = self._episodes.get(episode.number) is episode and episode.failure is None
        task = episode.station.task
        busy = task is not None and task.episode is episode
        if served and not busy and not episode.queued and episode.next_request()[0] is not None:
            episode.queued = True
            episode.station.queue.append(episode)

    def _answered(self, episode: Episode, request: Request, answer: Answer, digest: bytes) -> None:
        count_failure(self._counters, answer.failure)
        refused = answer.failure and answer.failure.kind == "refused"
        if answer.failure and not (refused and request.call.kind == "snapshot"):
            self._fail(episode, answer.failure)
            return
        episode.pending.popleft()
        episode.attempts, episode.cause = 0, None
        self.answers.append(answer)
        if answer.turn is not None:
            episode.history.append(Replayed(request, digest))
            episode.replayed += 1

    def _replayed(self, episode: Episode, answer: Answer, digest: bytes) -> None:
        request, expected = episode.history[episode.replayed]
        if digest == expected:
            episode.replayed += 1
            return
        came = answer.failure.message if answer.failure else "another turn"
        lost = Failure(
            "lost",
            f"its worker ended, and call {episode.replayed} of its history, a {request.call.kind}, "
            f"gave {came} when it was rebuilt",
        )
        episode.station.worker.send(0, Request(Call(0, episode.number, "close"), b""))
        self._fail(episode, episode.cause or lost)

    def _fail(self, episode: Episode, failure: Failure) -> None:
        """Ends an episode. Its pending calls are told, or else the next one will be."""
        if episode.queued:
            episode.station.queue.remove(episode)
        if episode.pending:
            self._forget(episode, failure)
        else:
            episode.station.episodes.pop(episode.number, None)
            episode.history.clear()
            episode.failure = failure

    def _forget(self, episode: Episode, failure: Failure) -> None:
        """Drops an episode and fails its pending calls; those after a close begin it anew."""
        episode.station.episodes.pop(episode.number, None)
        del self._episodes[episode.number]
        while episode.pending:
            request = episode.pending.popleft()
            if request.call.kind == "close":
                for later in episode.pending:
                    self._accept(later)
                return
            self._refuse(request, failure)


def digest_of(body: bytes) -> bytes:
    """A digest of a turn's JSON, whatever the order of its keys; raises BadAnswer for bad text."""
    try:
        fields = json.loads(body)
        text = json.dumps(fields, sort_keys=True, ensure_ascii=False, allow_nan=False)
        return hashlib.blake2b(text.encode(), digest_size=16).digest()
    except (ValueError, RecursionError) as error:
        raise BadAnswer(f"not a turn: {error}") from error
