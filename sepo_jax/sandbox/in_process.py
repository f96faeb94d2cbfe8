"""A pool without processes: for tests and for environments that need no sandbox."""

import threading
import weakref
from pathlib import Path

from sepo_jax.sandbox.hosting import Host, answer_of, check_call, count_failure, new_counters
from sepo_jax.sandbox.protocol import Answer, Call, EnvironmentFactory, SandboxError
from sepo_jax.sandbox.scratch import Scratch


class InProcessPool:
    """Performs each call in the thread that submits it, one at a time.

    Nothing confines the environments: one that exits takes the process with it, and one that hangs
    hangs. See `Pool` for the methods.
    """

    def __init__(self, factory: EnvironmentFactory, *, scratch: Path | None = None):
        """A pool of environments of one kind.

        Args:
          factory: makes an environment.
          scratch: where they get their directories; a temporary place by default.
        """
        self.counters = new_counters()
        self._performing = threading.Lock()
        self._arrived = threading.Condition()
        self._answers: list[Answer] = []
        owned = Scratch() if scratch is None else None
        self._host = Host(factory, owned.make("environments") if owned else Path(scratch))
        self._finish = weakref.finalize(self, _close, self._host, owned)

    def submit(self, call: Call) -> None:
        """Performs the call; its answer is there to take on return.

        Raises:
          ValueError: a kind of call that does not exist, or a restore of no bytes.
          SandboxError: the pool is closed.
        """
        check_call(call)
        with self._performing:
            if not self._finish.alive:
                raise SandboxError("the pool is closed")
            reply = self._host.perform(call)
            self.counters["constructed"] = self._host.constructed
            if reply is None:
                return
            answer = answer_of(call, reply)
            self.counters["calls"] += 1
            count_failure(self.counters, answer.failure)
        with self._arrived:
            self._answers.append(answer)
            self._arrived.notify_all()

    def take(self) -> list[Answer]:
        """All answers since the last take."""
        with self._arrived:
            answers, self._answers = self._answers, []
            return answers

    def wait(self, seconds: float) -> bool:
        """Waits until an answer is there to take; False when none came in time."""
        with self._arrived:
            return self._arrived.wait_for(lambda: bool(self._answers), seconds)

    def close(self) -> None:
        """Closes all environments and removes their files; again is fine."""
        with self._performing:
            self._finish()

    def __enter__(self) -> "InProcessPool":
        return self

    def __exit__(self, *_) -> None:
        self.close()


def _close(host: Host, owned: Scratch | None) -> None:
    host.close()
    if owned is not None:
        owned.close()
