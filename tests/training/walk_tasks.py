"""A domain of tasks of several turns: walk along a line and end at a place."""

import random

SYSTEM = {"role": "system", "content": "Walk to the place. Say left or right."}
STEPS = {"left": -1, "right": 1}


class Walk:
    """An episode; pays 1 at the end if it is at its place, and a tenth for every step."""

    def __init__(self, place: int, turns: int):
        self.place, self.turns, self.here, self.taken = place, turns, 0, 0

    @property
    def done(self):
        return self.taken == self.turns

    @property
    def observation(self):
        return f"{self.here}/{self.taken}"

    def messages(self):
        text = f"Place {self.place}. You are at {self.here}."
        return ([] if self.taken else [SYSTEM]) + [{"role": "user", "content": text}]

    def legal_actions(self):
        return tuple(STEPS)

    def step(self, reply):
        self.taken += 1
        self.here += STEPS.get(reply.strip(), 0)
        return 0.1 * (reply.strip() in STEPS) + float(self.done and self.here == self.place)

    def record(self):
        return {"there": self.here == self.place}


class Walks:
    name = "walk"

    def __init__(self, turns: int = 3):
        self.turns = turns

    def new_episode(self, task, seed):
        return Walk(task["place"], self.turns)

    def training_tasks(self, count, seed):
        draw = random.Random(seed)
        return [{"place": draw.choice((-1, 1, 3))} for _ in range(count)]

    def evaluation_tasks(self, count, seed):
        return [{"place": (-1, 1)[number % 2]} for number in range(count)]

    def figures(self, tasks, records):
        return {"success": sum(bool(r and r["there"]) for r in records) / len(records)}

    def baselines(self, tasks):
        return {}

    def expert_traces(self, num_decisions, seed, *, rationale=False):
        walk = Walk(1, 1)
        return [(walk.messages(), "right")] * num_decisions
