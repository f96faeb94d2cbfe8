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

from sepo_jax.sandbox.hosting import BEGINNINGS, Reply, answer_of, count_failure, not_open
from sepo_jax.sandbox.protocol import Answer, BadAnswer, Call, Failure
from sepo_jax.sandbox.stations import (
    BUSY,
    GONE,
    IDLE,
    STARTING,
    Episode,
    Replayed,
    Request,
    Station,
    Task,
    Worker,
)

LATE_SECONDS = 10.0


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
        depth: int = 1,
    ):
        """A supervisor of workers that have yet to be started.

        Args:
          workers: one for each station.
          counters: of the pool.
          max_restarts: how often each worker is replaced.
          retries: how often a call that ended a worker is tried again.
          depth: requests that a worker is handed before it has answered the first of them.
        """
        self.stations = [Station(worker) for worker in workers]
        self.answers: list[Answer] = []
        self.exhausted: Failure | None = None
        self._counters = counters
        self._max_restarts, self._retries, self._depth = max_restarts, retries, depth
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
        """Gives workers something to do until all have enough or nothing is left."""
        while station := next((s for s in self.stations if self._has_work(s, now)), None):
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
            task = Task(next(self._numbers), episode, request, is_replay)
            station.tasks.append(task)
            station.state, station.since = BUSY, now
            station.worker.send(task.number, request)

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
        station.tasks.popleft()
        station.state = BUSY if station.tasks else IDLE
        if task.is_replay:
            self._replayed(task.episode, answer, digest)
        else:
            self._answered(task.episode, task.request, answer, digest)
        self._enqueue(task.episode)

    def died(
        self, station: Station, failure: Failure, now: float, *, is_to_blame: bool = True
    ) -> None:
        """A worker has ended, by itself or by force; is the call it was busy with to blame?"""
        self._bury([station], failure, now, is_to_blame)

    def lost(self, stations: Sequence[Station], failure: Failure, now: float) -> None:
        """Workers have ended together, with what held them; no call is to blame."""
        self._bury(stations, failure, now, is_to_blame=False)

    def end(self, failure: Failure) -> None:
        """Gives up all workers and fails everything that is open."""
        self.exhausted = self.exhausted or failure
        for station in self.stations:
            station.state = GONE
        for episode in list(self._episodes.values()):
            self._fail(episode, failure)

    def _has_work(self, station: Station, now: float) -> bool:
        """Whether a worker can be handed something, and there is something.

        An idle one takes over what waits for another that is being replaced, or starts late.
        """
        if station.state not in (IDLE, BUSY) or len(station.tasks) >= self._depth:
            return False
        if not station.queue and not station.tasks:
            waiting = (s for s in self.stations if s.state == STARTING and s.queue)
            late = (s for s in waiting if s.restarts or now - s.since > LATE_SECONDS)
            for other in itertools.islice(late, 1):
                episode = other.queue.popleft()
                del other.episodes[episode.number]
                self._assign(episode, station)
        return bool(station.queue)

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

    def _bury(
        self, stations: Sequence[Station], failure: Failure, now: float, is_to_blame: bool
    ) -> None:
        episodes: list[Episode] = []
        culprits: list[Task] = []
        for station in stations:
            count_failure(self._counters, failure)
            if station.task is not None and is_to_blame:
                culprits.append(station.task)
            episodes += station.episodes.values()
            station.tasks.clear()
            station.episodes.clear()
            station.queue.clear()
        for episode in episodes:
            episode.queued, episode.replayed = False, 0
        for station in stations:
            self._restart(station, failure, now)
        for task in culprits:
            if not self._tries_again(task, failure):
                episodes.remove(task.episode)
                lost = f"the worker ended while it rebuilt this one: {failure.message}"
                cause = task.episode.cause or Failure("lost", lost)
                self._fail(task.episode, cause if task.is_replay else failure)
        for episode in episodes:
            self._counters["replayed"] += bool(episode.history)
            self._place(episode)

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
        self._assign(episode, min(alive, key=lambda station: len(station.episodes)))

    def _assign(self, episode: Episode, station: Station) -> None:
        episode.station, episode.queued = station, False
        station.episodes[episode.number] = episode
        self._enqueue(episode)

    def _enqueue(self, episode: Episode) -> None:
        served = self._episodes.get(episode.number) is episode and episode.failure is None
        busy = any(task.episode is episode for task in episode.station.tasks)
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
