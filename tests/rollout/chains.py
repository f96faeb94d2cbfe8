"""Environments to branch in; spawned workers import this module (no jax)."""

import hashlib

from sepo_jax.sandbox.base import BaseEnvironment, ask, finish
from sepo_jax.sandbox.protocol import SnapshotRefused
from sepo_jax.sandbox.snapshots import content_hash


class Chain(BaseEnvironment):
    """`turns` turns in one context; what it says and pays depends on all it was told.

    Its record: the replies, and a digest of the state at each turn.
    """

    def start(self, task, seed):
        self.state = {"task": task, "seed": seed, "said": [], "digests": []}
        return self.next_turn()

    def play(self, actions):
        self.state["said"].append(actions[0])
        return self.next_turn()

    def next_turn(self):
        state = self.state
        seen = content_hash((state["task"], state["seed"], state["said"]))
        state["digests"].append(seen[:16])
        reward = hashlib.sha256(seen.encode()).digest()[0] / 16 if state["said"] else 0.0
        if len(state["said"]) == state["task"]["turns"]:
            return finish(reward=reward, record=dict(state))
        first = f"Game {state['task']['name']}: choose a card. " * 2
        heard = f"You hear {seen[:6]}." if state["said"] else first
        return ask(heard, reward=reward, continues=bool(state["said"]), observation=seen)


class Secretive(Chain):
    """No snapshots."""

    def snapshot(self):
        raise SnapshotRefused("the state is in another program")


class Brittle(Chain):
    """Every second fork fails: those whose reply to the first question has an odd digest."""

    def restore(self, state):
        turn = super().restore(state)
        self.state["forked"] = len(self.state["said"])
        return turn

    def play(self, actions):
        if self.state.get("forked") == len(self.state["said"]):
            odd = hashlib.sha256(actions[0].encode()).digest()[0] % 2
            if odd:
                raise RuntimeError("the fork broke")
        return super().play(actions)
