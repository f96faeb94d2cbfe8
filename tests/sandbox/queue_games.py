"""Environments of the tests of the host queue, and how a rollout of them is played and told."""

import pickle
import threading

from sandbox.fake_device import FakeCodec, FakeSlots, ShuffledPool, run_device

from sepo_jax.sandbox.episodes import EpisodeRequest, StopRules
from sepo_jax.sandbox.exchange import ExchangeShape
from sepo_jax.sandbox.protocol import Prompt, Turn
from sepo_jax.sandbox.queue import HostQueue

SHAPE = ExchangeShape(slots=4, interval=4, widths=(2, 8), calls=2)
RULES = StopRules(action_tokens=6, capacity=400)


def ask(text, continues=False):
    return Prompt(({"role": "user", "content": text},), continues=continues)


class Kept:
    """Snapshots of all attributes."""

    def snapshot(self):
        return pickle.dumps(vars(self))

    def restore(self, state):
        vars(self).update(pickle.loads(state))
        return self.pending

    def show(self, turn):
        self.pending = turn
        return turn


class Talk(Kept):
    """Three turns in one context; the observation depends on the reply. Payoff: reply length."""

    def reset(self, task, seed):
        self.turns, self.task = 0, task
        return self.show(Turn({0: ask(f"prompt of {task} " + "task " * 3)}))

    def step(self, actions):
        self.turns += 1
        reward = {0: float(len(actions[0]))}
        if self.turns == 3:
            return Turn(rewards=reward, done=True, record=[self.task, actions[0]])
        return self.show(Turn({0: ask(f"heard {actions[0]} now go on", continues=True)}, reward))


class Duel(Kept):
    """Seats 0 and 1 move together twice, then seat 1 alone, each in fresh contexts."""

    def reset(self, task, seed):
        self.turns, self.said = 0, ""
        return self.show(Turn({0: ask("a" + task), 1: ask("b" + task)}))

    def step(self, actions):
        self.turns += 1
        self.said += "".join(f"{seat}{text}" for seat, text in sorted(actions.items()))
        if self.turns == 3:
            return Turn(rewards={0: 1.0, 1: -1.0}, done=True, record=self.said)
        if self.turns == 2:
            return self.show(Turn({1: ask("alone" + self.said)}))
        return self.show(Turn({seat: ask(f"{seat}{self.said}") for seat in (0, 1)}))


def requests(count=12, group=4):
    return [EpisodeRequest(f"x{i // group}", i, i // group, i % group) for i in range(count)]


def play(
    make=Talk, asked=None, shape=SHAPE, pool=None, devices=1, seats=(0,), cuts=(True,), **more
):
    more = {"seed": 3, "rules": RULES} | more
    rules = more.pop("rules")
    pool = pool or ShuffledPool(make)
    codecs = [FakeCodec() for _ in cuts]
    queue = HostQueue(
        pool, asked or requests(), codecs, shape, rules,
        seats=seats, devices=devices, can_cut=cuts, **more,
    )  # fmt: skip
    tables = [[FakeSlots(shape, cut) for cut in cuts] for _ in range(devices)]
    codes = [None] * devices

    def loop(device):
        codes[device] = run_device(queue, device, tables[device])

    threads = [threading.Thread(target=loop, args=(device,)) for device in range(devices)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    queue.computed = sum(table.computed for row in tables for table in row)
    return queue, codes


def told(queue):
    """All that was sampled and answered, comparable."""
    return [
        (
            result.status,
            result.record,
            [dict(reward) for reward in result.rewards],
            [
                (a.seat, a.turn, a.context, a.given.tolist(), a.tokens.tolist(), a.logp.tolist())
                for a in result.actions
            ],
        )
        for result in queue.results()
    ]
