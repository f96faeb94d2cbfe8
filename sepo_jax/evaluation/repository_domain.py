"""Repository repair as a domain to train on: bundled repositories, or instances of SWE-bench."""

import itertools
import json
import logging
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..domains.base import Message, check_integer, stream
from ..domains.repository.bundle import NAMES, repository, variants
from ..domains.repository.swe_bench import patch_conversation, patch_replies, read_instances, split
from ..domains.repository.tasks import RepairRules, oracle_conversation, oracle_replies
from ..names import check_option
from ..sandbox.container_repository import container_environments
from ..sandbox.protocol import EnvironmentFactory
from ..sandbox.repository import repository_environments, task_of
from ..sandbox.repository_checks import read_quarantine
from ..sepo.metrics import rate

_LOG = logging.getLogger(__name__)
HELD_OUT = ("cache", "grid", "roman", "slug")
KNOWN, NEW, INSTANCES = "known", "new", "instances"
_MEANS = ("turns", "fail_to_pass", "pass_to_pass")


class RepositoryRepair:
    """Repositories with a fault, to be repaired by shell commands and edits
    (`domains.tasks.TaskDomain`).

    The bundled repositories come in variants under other names. Evaluation tasks are of two kinds:
    "known", variants that are not trained on of repositories that are, and "new", repositories
    that no training step sees. With `instances`, tasks are the instances of SWE-bench in that file,
    three of four to train on, and need a container engine.

    Args:
      turns: actions of an episode.
      output_limit: characters of a command's output that are shown.
      reward: of `domains.repository.tasks.REWARDS`.
      held_out: bundled repositories that are not trained on.
      instances: a JSONL file of SWE-bench instances; "" for the bundled repositories.
      quarantined: a file of tasks that are left out, as `experiments/check_tasks.py` writes it; ""
        for none.

    Raises:
      ValueError: numbers out of range, an unknown reward or repository, a file of quarantined tasks
        of another format or of other tasks, or none left to train on or to be judged by.
      FileNotFoundError: no such file of instances or of quarantined tasks.
    """

    name = "repository"
    game = None

    def __init__(
        self,
        turns: int = 8,
        output_limit: int = 1200,
        reward: str = "binary",
        held_out: Sequence[str] = HELD_OUT,
        instances: str = "",
        quarantined: str = "",
    ):
        self.rules = RepairRules(turns, output_limit, reward, long_forms=bool(instances))
        self.held_out = tuple(check_option("repository", each, NAMES) for each in held_out)
        self.trained = tuple(name for name in NAMES if name not in self.held_out)
        if not self.trained:
            raise ValueError("held_out names all repositories; leave one or more to train on")
        self.instances = instances
        self._instances = read_instances(instances) if instances else {}
        self._left_out: frozenset[str] = frozenset()
        if quarantined:
            self._leave_out(quarantined)

    def _leave_out(self, path: str) -> None:
        """Leaves out the tasks that a file lists."""
        known = {_key(task) for task in self.tasks()}
        listed = [task for task, _ in read_quarantine(path)]
        for task in listed:
            if _key(task) not in known:
                raise ValueError(
                    f"{path} lists {_key(task)}, which is no task of this domain with instances="
                    f"{self.instances!r}; check these tasks with experiments/check_tasks.py"
                )
        self._left_out = frozenset(map(_key, listed))
        self.trained = tuple(name for name in self.trained if self._of(name, evaluation=False))
        instances = self._sound_instances(evaluation=False)
        if not (instances if self.instances else self.trained) or not self.evaluation_tasks(1, 0):
            raise ValueError(
                f"{path} lists {len(listed)} of {len(known)} tasks, which leaves none to train on "
                "or none to be judged by"
            )
        _LOG.warning("%s: %d of %d tasks are left out", path, len(self._left_out), len(known))

    def tasks(self) -> list[dict[str, Any]]:
        """All tasks, to train on and to be judged by, those that are left out among them."""
        if self.instances:
            return [{"instance_id": name} for name in self._instances]
        return [_task(name, at) for name in NAMES for at in range(repository(name).variants)]

    def oracle(self, task: Any) -> list[str]:
        """Replies of the known repair of a task; ValueError for what is none."""
        if not self.instances:
            return oracle_replies(task_of(task))
        return patch_replies(self._instances[task["instance_id"]])

    def environments(self) -> EnvironmentFactory:
        """Environments that play the tasks; see `sandbox.repository` for what they need."""
        if self.instances:
            return container_environments(self.instances, self.rules)
        return repository_environments(self.rules)

    def training_tasks(self, count: int, seed: int) -> list[dict[str, Any]]:
        """Tasks to train on, drawn with replacement."""
        check_integer("count", count, minimum=0)
        rng = stream(seed, "repository")
        if self.instances:
            names = self._sound_instances(evaluation=False)
            if not names:
                raise ValueError(
                    f"{self.instances} has too few instances to train on; give 2 or more"
                )
            return [{"instance_id": rng.choice(names)} for _ in range(count)]
        of_each = {name: self._of(name, evaluation=False) for name in self.trained}
        return [dict(rng.choice(of_each[rng.choice(self.trained)])) for _ in range(count)]

    def evaluation_tasks(self, count: int, seed: int) -> list[dict[str, Any]]:
        """`count` different tasks of each kind, all where there are fewer."""
        check_integer("count", count, minimum=0)
        rng = stream(seed, "repository evaluation")
        if self.instances:
            names = self._sound_instances(evaluation=True)
            return [
                {"instance_id": name} for name in sorted(rng.sample(names, min(count, len(names))))
            ]
        known = [task for name in self.trained for task in self._of(name, evaluation=True)]
        new = [task for name in self.held_out for task in self._of(name)]
        return [task for kind in (known, new) for task in rng.sample(kind, min(count, len(kind)))]

    def _of(self, name: str, evaluation: bool | None = None) -> list[dict[str, Any]]:
        """Tasks of a bundled repository that are not left out: to be judged by, to train on, or
        all."""
        numbers = range(repository(name).variants)
        tasks = [
            _task(name, number)
            for number in (numbers if evaluation is None else variants(name, evaluation))
        ]
        return [task for task in tasks if _key(task) not in self._left_out]

    def _sound_instances(self, evaluation: bool) -> list[str]:
        """Names of instances that are not left out: to be judged by, or to train on."""
        names = split(self._instances, evaluation)
        return [name for name in names if _key({"instance_id": name}) not in self._left_out]

    def figures(self, tasks: Sequence[Any], records: Sequence[Any]) -> dict[str, float]:
        """Figures of all episodes and, as "<kind>/<figure>", of each kind of task.

        success: share of episodes all of whose tests pass; one without a record did not succeed.
        submitted: share that the agent ended itself. valid: share of replies that were an action.
        turns: mean number of replies. fail_to_pass, pass_to_pass: mean shares of the tests to flip
        and to hold that pass. All but the first are of the episodes that left a record. Intervals
        are left out where a task is played several times in a row: its episodes say little of
        others.
        """
        ends = not any(task == before for before, task in itertools.pairwise(tasks))
        found = _figures(records, ends)
        kinds = [self._kind(task) for task in tasks]
        for kind in dict.fromkeys(kinds):
            own = [record for record, of in zip(records, kinds, strict=True) if of == kind]
            found |= {f"{kind}/{name}": value for name, value in _figures(own, ends).items()}
        return found

    def baselines(self, tasks: Sequence[Any]) -> Mapping[str, Mapping[str, float]]:
        """Figures of an agent that submits at once, and of the known repair; both are played.

        Of instances there are none: playing them takes hours.
        """
        if self.instances:
            return {}
        players: dict[str, Callable[[Any], list[str]]] = {
            "nothing": lambda task: ["submit"],
            "oracle": self.oracle,
        }
        with tempfile.TemporaryDirectory() as scratch:
            environment = self.environments()(Path(scratch))
            try:
                played = {
                    player: [_record(environment, task, replies(task)) for task in tasks]
                    for player, replies in players.items()
                }
            finally:
                environment.close()
        return {player: self.figures(tasks, records) for player, records in played.items()}

    def expert_traces(
        self, num_decisions: int, seed: int, *, rationale: bool = False
    ) -> list[tuple[list[Message], str]]:
        """Decisions of the known repairs of training tasks: all messages so far, and the reply.

        With `rationale`, a line of reasoning goes before each action.
        """
        check_integer("num_decisions", num_decisions, minimum=0)
        traces: list[tuple[list[Message], str]] = []
        for messages in self._conversations(num_decisions, seed, rationale):
            for place, message in enumerate(messages):
                if message["role"] == "assistant":
                    traces.append((messages[:place], message["content"]))
            if len(traces) >= num_decisions:
                break
        return traces[:num_decisions]

    def _conversations(self, count: int, seed: int, rationale: bool) -> Iterator[list[Message]]:
        """Episodes of known repairs of at most `count` training tasks; each has a decision or
        more."""
        for task in self.training_tasks(count, seed):
            if self.instances:
                yield patch_conversation(self._instances[task["instance_id"]], self.rules)
            else:
                yield oracle_conversation(task_of(task), self.rules, rationale=rationale)

    def _kind(self, task: Any) -> str:
        if "instance_id" in task:
            return INSTANCES
        return NEW if task["repository"] in self.held_out else KNOWN


def _task(name: str, variant: int) -> dict[str, Any]:
    return {"repository": name, "variant": variant}


def _key(task: Any) -> str:
    return json.dumps(task, sort_keys=True)


def _record(environment: Any, task: Any, replies: Sequence[str]) -> Any:
    """What an episode of these replies, the last of which ends it, records."""
    environment.reset(task, 0)
    for reply in replies:
        turn = environment.step({0: reply})
    return turn.record


def _figures(records: Sequence[Any], ends: bool) -> dict[str, float]:
    found: dict[str, float] = {}
    played = [record for record in records if record is not None]
    turns = sum(record["turns"] for record in played)
    counts = {
        "success": (sum(record["success"] for record in played), len(records)),
        "submitted": (sum(record["submitted"] for record in played), len(played)),
    }
    for name, (of_them, count) in counts.items():
        if count:
            share = rate(of_them, count)
            found[name] = share.value
            found |= {f"{name}_low": share.low, f"{name}_high": share.high} if ends else {}
    if played:
        found["valid"] = 1.0 - sum(record["invalid"] for record in played) / turns
    for name in _MEANS:
        if played:
            found[name] = float(np.mean([record[name] for record in played]))
    return found
