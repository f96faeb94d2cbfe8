"""The loop that `benchmark_rollouts.py` compares with: a batch that waits for its slowest member.

It is a pool around the real one, so that engine, policy and sandboxes are the very same.
"""

import threading
import time

from sepo_jax.sandbox.protocol import Answer, Call, Pool


class LockStepPool:
    """Plays the episodes in batches, all members of a batch one turn after the other.

    A turn begins when every episode of the batch has acted, and is answered when every sandbox has
    answered; a batch begins when the one before has ended. The queue in front of it must not ask
    for more than `batch` episodes at a time. See `Pool` for the methods.
    """

    def __init__(self, pool: Pool, episodes: int, batch: int):
        """A pool in front of `pool`.

        Args:
          pool: stays open when this one is closed.
          episodes: how many will be played.
          batch: episodes that play at once.
        """
        self.counters = pool.counters
        self._pool, self._left, self._batch = pool, episodes, batch
        self._resets: list[Call] = []
        self._steps: list[Call] = []
        self._open: set[int] = set()
        self._asked = 0
        self._answers: list[Answer] = []
        self._lock = threading.Lock()

    def submit(self, call: Call) -> None:
        """Holds the call back until those of all other episodes of the batch are there."""
        with self._lock:
            if call.kind == "close":
                self._open.discard(call.episode)
                self._pool.submit(call)
            elif call.kind == "reset":
                self._resets.append(call)
            else:
                self._steps.append(call)
            self._begin_turn()

    def take(self) -> list[Answer]:
        """The answers to a whole turn, or none."""
        with self._lock:
            self._answers += self._pool.take()
            if len(self._answers) < self._asked:
                return []
            answers, self._answers, self._asked = self._answers, [], 0
            return answers

    def wait(self, seconds: float) -> bool:
        """Waits until a turn is answered; False when that took too long."""
        deadline = time.monotonic() + seconds
        while True:
            with self._lock:
                self._answers += self._pool.take()
                if self._answers and len(self._answers) >= self._asked:
                    return True
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            self._pool.wait(left)

    def close(self) -> None:
        """Leaves the pool behind it open, which serves others."""

    def _begin_turn(self) -> None:
        if not self._open and self._resets and len(self._resets) == min(self._batch, self._left):
            calls, self._resets = self._resets, []
            self._left -= len(calls)
            self._open = {call.episode for call in calls}
        elif self._open and len(self._steps) == len(self._open):
            calls, self._steps = self._steps, []
        else:
            return
        self._asked = len(calls)
        for call in calls:
            self._pool.submit(call)
