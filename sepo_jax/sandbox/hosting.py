"""Many environments in one process: made by a factory, kept by episode, reused once closed.

What an environment says leaves here as a `Reply` of bytes, the same in the process of the caller
and across a pipe, so that every pool answers alike; `answer_of` reads it with all due distrust.
"""

import contextlib
import json
import warnings
from pathlib import Path
from typing import NamedTuple

from sepo_jax.sandbox.frames import MAX_BODY
from sepo_jax.sandbox.protocol import (
    Answer,
    BadAnswer,
    Call,
    Environment,
    EnvironmentFactory,
    Failure,
    SnapshotRefused,
    Turn,
)

BEGINNINGS = ("reset", "restore")
RESULTS = {"reset": "turn", "restore": "turn", "step": "turn", "snapshot": "state"}
KINDS = (*RESULTS, "close")
REFUSALS = ("raised", "bad_answer", "refused", "lost")  # failures that a host itself reports
MAX_TURN = 1 << 24  # bytes of a turn's JSON
MAX_WORDS = 4000  # characters kept of a failure's message


class Reply(NamedTuple):
    """What a host says to a call.

    Attributes:
      kind: "turn", "state", or the kind of a failure.
      body: JSON text of the turn, the state itself, or the failure's message.
    """

    kind: str
    body: bytes


def check_call(call: Call) -> None:
    """Raises ValueError for a call that no environment could serve."""
    if call.kind not in KINDS:
        raise ValueError(f"unknown kind of call {call.kind!r}; allowed: {', '.join(KINDS)}")
    if call.kind == "restore" and not isinstance(call.payload, bytes):
        raise ValueError(f"a restore takes bytes, not {type(call.payload).__name__}")


class _Housed(NamedTuple):
    environment: Environment
    directory: Path


def new_counters() -> dict[str, int]:
    """The counters of a pool, all zero."""
    names = ("calls", "restarts", "deaths", "timeouts", "raised", "bad_answers")
    return dict.fromkeys((*names, "ignored_answers", "replayed", "constructed"), 0)


class Host:
    """The environments of open episodes, and idle ones that serve the next.

    Attributes:
      constructed: how often the factory was called.
    """

    def __init__(self, factory: EnvironmentFactory, directory: Path):
        """A host whose environments get their directories in `directory`."""
        self._factory, self._directory = factory, directory
        self._open: dict[int, _Housed] = {}
        self._idle: list[_Housed] = []
        self.constructed = 0

    def perform(self, call: Call) -> Reply | None:
        """Serves a call; None for a close.

        Whatever the environment raises becomes a reply, and the environment is discarded unless it
        only refused a snapshot. KeyboardInterrupt alone passes through.
        """
        if call.kind == "close":
            if call.episode in self._open:
                self._idle.append(self._open.pop(call.episode))
            return None
        if call.kind not in BEGINNINGS and call.episode not in self._open:
            return Reply("lost", not_open(call.episode).message.encode())
        try:
            return self._ask(call)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            if not (call.kind == "snapshot" and isinstance(error, SnapshotRefused)):
                self.discard(call.episode)
            return reply_of(error)

    def close(self) -> None:
        """Closes all environments and removes their directories."""
        for episode in list(self._open):
            self.perform(Call(0, episode, "close"))
        while self._idle:
            _end(self._idle.pop())

    def _ask(self, call: Call) -> Reply:
        if call.episode not in self._open:
            self._open[call.episode] = self._idle.pop() if self._idle else self._construct()
        environment = self._open[call.episode].environment
        if call.kind == "snapshot":
            return Reply("state", _check_state(environment.snapshot()))
        if call.kind == "reset":
            task, seed = call.payload
            return Reply("turn", _encode(environment.reset(task, seed)))
        play = environment.restore if call.kind == "restore" else environment.step
        return Reply("turn", _encode(play(call.payload)))

    def _construct(self) -> _Housed:
        directory = self._directory / f"environment-{self.constructed}"
        self.constructed += 1
        directory.mkdir()
        return _Housed(self._factory(directory), directory)

    def discard(self, episode: int) -> None:
        """Gives up the environment of an episode, if there is one."""
        if episode in self._open:
            _end(self._open.pop(episode))


def _end(housed: _Housed) -> None:
    """Closes an environment, whatever it says to that, and removes its directory."""
    import shutil  # slow to import, and most workers never need it

    try:
        housed.environment.close()
    except Exception as error:
        warnings.warn(f"an environment failed to close: {_words(error)}", stacklevel=2)
    shutil.rmtree(housed.directory, ignore_errors=True)


def _encode(turn: Turn) -> bytes:
    """JSON of a turn that reads back; raises BadAnswer for anything else."""
    try:
        text = Turn.to_json(turn)
        Turn.from_json(text)
        if "\\ud" in text:  # an escaped surrogate: half of a pair is no text
            json.dumps(json.loads(text), ensure_ascii=False).encode()
    except BadAnswer:
        raise
    except Exception as error:
        raise BadAnswer(f"not a turn: {_words(error)}") from error
    if len(text) > MAX_TURN:
        raise BadAnswer(f"a turn has {len(text):,} bytes of JSON; at most {MAX_TURN:,} are allowed")
    return text.encode()


def _check_state(state: bytes) -> bytes:
    if not isinstance(state, bytes):
        raise BadAnswer(f"a snapshot must be bytes, not {type(state).__name__}")
    if len(state) > MAX_BODY:
        raise BadAnswer(f"a snapshot has {len(state):,} bytes; at most {MAX_BODY:,} are allowed")
    return state


def reply_of(error: BaseException) -> Reply:
    """How a host reports what an environment raised."""
    if isinstance(error, SnapshotRefused | BadAnswer):
        kind = "refused" if isinstance(error, SnapshotRefused) else "bad_answer"
        return Reply(kind, _bytes(str(error)))
    return Reply("raised", _bytes(f"{_words(error)}{_place(error)}"))


def _bytes(text: str) -> bytes:
    return text[:MAX_WORDS].encode("utf-8", "replace")


def _words(error: BaseException) -> str:
    text = "a message that cannot be shown"
    with contextlib.suppress(Exception):
        text = str(error)
    return f"{type(error).__name__}: {text}"[:MAX_WORDS]


def _place(error: BaseException) -> str:
    """The last line of the traceback, in brackets."""
    import traceback  # slow to import, and most workers never need it

    with contextlib.suppress(Exception):
        last = traceback.extract_tb(error.__traceback__)[-1]
        return f" ({Path(last.filename).name}:{last.lineno} in {last.name}: {last.line})"
    return ""


def not_open(episode: int) -> Failure:
    """The failure of a call to an episode that no environment serves."""
    message = (
        f"episode {episode} is not open: it failed, was closed, or was never reset or restored"
    )
    return Failure("lost", message)


def answer_of(call: Call, reply: Reply) -> Answer:
    """The answer to a call.

    Raises:
      BadAnswer: a reply that no host gives to such a call, whatever sent it.
    """
    if reply.kind in REFUSALS:
        failure = Failure(reply.kind, reply.body[:MAX_WORDS].decode("utf-8", "replace"))
        return Answer(call.number, call.episode, failure=failure)
    if reply.kind != RESULTS[call.kind]:
        raise BadAnswer(f"a {call.kind} was answered with {reply.kind[:20]!r}")
    if reply.kind == "state":
        return Answer(call.number, call.episode, state=reply.body)
    if len(reply.body) > MAX_TURN:
        raise BadAnswer(f"a turn of {len(reply.body):,} bytes")
    try:
        turn = Turn.from_json(reply.body.decode())
    except BadAnswer:
        raise
    except Exception as error:  # too deep, too large, no UTF-8
        raise BadAnswer(f"not a turn: {_words(error)}") from error
    return Answer(call.number, call.episode, turn=turn)


def count_failure(counters: dict[str, int], failure: Failure | None) -> None:
    """Counts a failure under the name that pools have for its kind, if they have one."""
    names = {"worker_died": "deaths", "timeout": "timeouts", "bad_answer": "bad_answers"}
    names["raised"] = "raised"
    if failure is not None and failure.kind in names:
        counters[names[failure.kind]] += 1
