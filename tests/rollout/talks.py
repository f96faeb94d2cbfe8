"""Environments of the tests of whole rollouts; spawned workers import this module (no jax)."""

import hashlib
import os
import random
import time

from sandbox.toys import fault_of

from sepo_jax.sandbox.protocol import Prompt, Turn


class Talk:
    """One seat, three turns in one context; what it hears depends on all it said.

    Args:
      delay: most seconds that a call takes, drawn anew in every process: answers come in any order.
    """

    seats = (0,)

    def __init__(self, scratch, delay=0.0):
        self.delay = delay

    def reset(self, task, seed):
        self.task, self.seed, self.said = task, seed, []
        return self.turn()

    def step(self, actions):
        self.said.append(sorted(actions.items()))
        return self.turn()

    def turn(self):
        if self.delay:
            time.sleep(random.SystemRandom().uniform(0, self.delay))
        count = len(self.said)
        if count == 3:
            return Turn({}, {seat: float(seat + 1) for seat in self.seats}, True, self.said)
        return Turn({seat: self.prompt(seat, count) for seat in self.asked(count)}, {0: 1.0})

    def asked(self, count):
        return self.seats

    def prompt(self, seat, count):
        heard = hashlib.sha256(repr((seat, self.task, self.said)).encode()).hexdigest()[:8]
        text = f"You hear {heard}." if count else f"Task {self.task}: choose. " * 3
        continues = count > 0 and seat == 0
        return Prompt(({"role": "user", "content": text},), continues, observation=text)

    def close(self):
        pass


class Duel(Talk):
    """Two seats: both at once, then the second alone, then both; seat 1 begins afresh each turn."""

    seats = (0, 1)

    def asked(self, count):
        return (1,) if count == 1 else self.seats


class FaultyTalk(Talk):
    """A talk whose faults follow from its seed and turn, see `sandbox.toys.fault_of`."""

    def step(self, actions):
        fault = fault_of(self.seed, len(self.said))
        if fault == "exit":
            os._exit(9)
        if fault == "hang":
            time.sleep(1000)
        if fault == "raise":
            raise RuntimeError("as planned")
        return super().step(actions)


class Once:
    """One reply to two tokens, and the episode is over."""

    def __init__(self, scratch):
        pass

    def reset(self, task, seed):
        return Turn({0: Prompt(tokens=(5, 6))})

    def step(self, actions):
        return Turn(done=True)

    def close(self):
        pass
