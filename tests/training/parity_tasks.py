"""A domain of tasks in a few lines: say whether a number is even or odd."""

import random

from sepo_jax.sandbox.environments import task_environments

SYSTEM = {"role": "system", "content": "Say whether the number is even or odd."}
WORDS = ("even", "odd")


class ParityRules:
    name = "parity"

    def messages(self, task):
        return [SYSTEM, {"role": "user", "content": f"{task['number']}?"}]

    def judge(self, task, text):
        word = text.strip()
        right = word == WORDS[task["number"] % 2]
        return float(right), {"right": right, "known": word in WORDS, "text": text}


class Parity:
    name = "parity"

    def __init__(self, largest: int = 9):
        self.largest = largest

    def environments(self):
        return task_environments(ParityRules())

    def _numbers(self, count, seed):
        return [random.Random(f"{seed}/{i}").randint(0, self.largest) for i in range(count)]

    def training_tasks(self, count, seed):
        return [{"number": number} for number in self._numbers(count, seed)]

    def evaluation_tasks(self, count, seed):
        return [{"number": number % (self.largest + 1)} for number in range(count)]

    def figures(self, tasks, records):
        assert len(tasks) == len(records)
        return {"success": sum(bool(r and r["right"]) for r in records) / len(records)}

    def baselines(self, tasks):
        even = sum(task["number"] % 2 == 0 for task in tasks) / len(tasks)
        return {"always_even": {"success": even}}

    def expert_traces(self, num_decisions, seed, *, rationale=False):
        numbers = self._numbers(num_decisions, seed)
        return [(ParityRules().messages({"number": n}), WORDS[n % 2]) for n in numbers]
