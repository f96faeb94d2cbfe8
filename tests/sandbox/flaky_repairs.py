"""A domain of repository repair of which one task is flaky. Importable by workers."""

import functools
from pathlib import Path

from sepo_jax.domains.repository.tasks import RepairRules
from sepo_jax.evaluation.repository_domain import RepositoryRepair
from sepo_jax.sandbox.repository import RepositoryEnvironment, task_of

FLAKY = {"repository": "cart", "variant": 1}
BY_CHANCE = """import os
import unittest


class Chance(unittest.TestCase):
    def test_by_chance(self):
        self.assertEqual(os.urandom(1)[0] % 2, 0)
"""


class FlakyEnvironment(RepositoryEnvironment):
    """A hidden test of `FLAKY` fails in every second run, by chance."""

    def start(self, task, seed):
        if task != FLAKY:
            return super().start(task, seed)
        changed = task_of(task).record()
        changed["hidden_tests"]["test_chance.py"] = BY_CHANCE
        changed["pass_to_pass"] += ["test_chance.Chance.test_by_chance"]
        return super().start(changed, seed)


class FlakyRepairs(RepositoryRepair):
    """Three tasks to check."""

    def tasks(self):
        return [{"repository": "cart", "variant": number} for number in range(3)]

    def environments(self):
        return functools.partial(_environment, self.rules)


def _environment(rules: RepairRules, scratch: Path) -> FlakyEnvironment:
    return FlakyEnvironment(scratch, rules)
