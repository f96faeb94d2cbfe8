"""Environments that a policy without words can play, and one whose process ends; workers import
this module (no jax)."""

import os
import random
from pathlib import Path

from rollout.chains import Chain
from sandbox.environment_cases import CASES


class Steered:
    """An environment of `CASES` that plays, in place of each reply, the move that a random player
    with this text as its seed chooses: a policy that knows no words plays every kind of move."""

    def __init__(self, name: str, scratch: Path):
        self.case = CASES[name]
        self.inner = self.case.factory(scratch)

    def reset(self, task, seed):
        return self._shown(self.inner.reset(task, seed))

    def step(self, actions):
        moves = {
            seat: self.case.choose(random.Random(text), self.turn.prompts[seat])
            for seat, text in actions.items()
        }
        return self._shown(self.inner.step(moves))

    def snapshot(self):
        return self.inner.snapshot()

    def restore(self, state):
        return self._shown(self.inner.restore(state))

    def close(self):
        self.inner.close()

    def _shown(self, turn):
        self.turn = turn
        return turn


class Mortal(Chain):
    """A chain whose process ends in the midst of its last reply, of a trunk or of a fork as the
    task says, while its file of lives has a line left."""

    forked = False

    def start(self, task, seed):
        self.forked = False
        return super().start(task, seed)

    def restore(self, state):
        turn = super().restore(state)
        self.forked = True
        return turn

    def play(self, actions):
        task = self.state["task"]
        last = len(self.state["said"]) == task["turns"] - 1
        lives = Path(task["lives"])
        if last and self.forked == (task["mortal"] == "fork") and lives.stat().st_size:
            os.truncate(lives, lives.stat().st_size - 1)
            os._exit(9)
        return super().play(actions)
