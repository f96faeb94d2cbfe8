"""Work on ALFWorld's games for other processes (`elsewhere.start`)."""

import time
from pathlib import Path

from sandbox.elsewhere import become_nobody

from sepo_jax.domains.alfworld import AlfWorld
from sepo_jax.domains.alfworld.games import TASK_TYPES
from sepo_jax.sandbox.environments import domain_environments
from sepo_jax.sandbox.protocol import SnapshotRefused

TASK = {"split": "train", "task_type": TASK_TYPES[3], "number": 2}


def oracle(domain, task):
    """Commands of the oracle."""
    return [command for _, command in domain.played(domain.new_episode(task, 0), "oracle")]


def first_restore(snapshot):
    """CPU seconds that loading the game of a snapshot takes, those that restoring it takes where
    the game is loaded and was never played, and the turn."""
    environment = domain_environments(AlfWorld())(Path())
    environment.reset(TASK | {"number": 77}, 0)  # imports the packages and parses the grammar
    before = time.process_time()
    environment.reset(TASK, 0)
    loaded = time.process_time()
    turn = environment.restore(snapshot)
    return loaded - before, time.process_time() - loaded, turn.to_json()


def refusal(data, snapshot):
    """What the refusal of a snapshot says; "" where it is restored."""
    environment = domain_environments(AlfWorld(data=data, task_types=TASK_TYPES[:1]))(Path())
    try:
        environment.restore(snapshot)
    except SnapshotRefused as error:
        return str(error)
    return ""


def many_episodes(data, count):
    """Records of so many episodes on shared data, played by an ordinary user."""
    oracle(AlfWorld(), TASK)  # what is imported on the way may be closed to others
    become_nobody()
    domain = AlfWorld(data=data)
    task = domain.training_tasks(1, 3)[0]
    environment = domain_environments(domain)(Path())
    records = []
    for _ in range(count):
        environment.reset(task, 0)
        for command in oracle(domain, task):
            turn = environment.step({0: command})
        records.append(turn.record)
    return records
