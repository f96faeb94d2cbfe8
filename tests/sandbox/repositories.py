"""Tasks and players of repository repair for tests. Importable by workers."""

import random

from sepo_jax.domains.repository.bundle import bundled_task
from sepo_jax.domains.repository.tasks import RepairRules, oracle_replies
from sepo_jax.sandbox.protocol import Prompt
from sepo_jax.sandbox.repository import repository_environments, task_of

RULES = RepairRules(turns=6)
environments = repository_environments(RULES)

TESTS = """import unittest
from helper import VALUE


class Tests(unittest.TestCase):
    def test_value(self):
        self.assertEqual(VALUE, {value})
"""
# A repository with a folder for its tests, one of which is to flip.
OWN = {
    "name": "own",
    "issue": "VALUE is 1.",
    "files": {"helper.py": "VALUE = 1\n", "other/__init__.py": ""},
    "tests": {
        "tests/__init__.py": "",
        "tests/test_hold.py": TESTS.format(value="VALUE"),
    },
    "hidden_tests": {"tests/test_flip.py": TESTS.format(value=2)},
    "fail_to_pass": ["tests.test_flip.Tests.test_value"],
    "pass_to_pass": ["tests.test_hold.Tests.test_value"],
    "gold": [["helper.py", "VALUE = 1", "VALUE = 2"]],
}


def oracle(task):
    """Replies that repair a task."""
    return oracle_replies(task_of(task))


def play(environment, task, replies, seed=0):
    """The last turn of an episode of these replies."""
    turn = environment.reset(task, seed)
    for reply in replies:
        turn = environment.step({0: reply})
    return turn


def random_reply(stream: random.Random, prompt: Prompt) -> str:
    """Looks, writes, edits and git commands, some of them nonsense; never the end."""
    path = stream.choice([*bundled_task("cart").shown, "new", "deep/er", "."])
    word = stream.choice(["total", "return", "value", "import"])
    verbs = {
        "cat": f"run: cat {path}",
        "list": "run: ls -A . deep; wc -c *",
        "append": f"run: mkdir -p deep; echo {word} >> {path}",
        "remove": f"run: rm {path}",
        "link": f"run: ln -s {path} {word}; ls -l {word} | cut -c 1-10",
        "diff": "run: git diff --stat; git status --porcelain",
        "commit": "run: git add -A && git commit -qm x; git rev-parse HEAD",
        "edit": f"edit {path}: {word} -> {stream.choice(['x', 'y'])}",
        "nothing": "I do not know.",
    }
    return verbs[stream.choice(list(verbs))]
