"""What a supervisor keeps of workers and episodes."""

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from sepo_jax.sandbox.hosting import BEGINNINGS
from sepo_jax.sandbox.protocol import Call, Failure

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
      tasks: what it is busy with, and what it was handed to go on with, in order.
      queue: episodes with something to ask, in order.
      episodes: all that are assigned, by number.
    """

    worker: Worker
    state: str = STARTING
    since: float = 0.0
    restarts: int = 0
    tasks: deque[Task] = field(default_factory=deque)
    queue: deque[Episode] = field(default_factory=deque)
    episodes: dict[int, Episode] = field(default_factory=dict)

    @property
    def task(self) -> Task | None:
        """What the worker is busy with."""
        return self.tasks[0] if self.tasks else None
