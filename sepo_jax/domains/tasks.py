"""What a domain offers whose tasks pay a reward of their own, without scripted opponents."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from sepo_jax.domains.base import Message


class SingleTurnRules(Protocol):
    """Rules of tasks that are answered by one reply; `sandbox.environments.TaskEnvironment` plays
    them.

    Attributes:
      name: short name in configs and reports.
    """

    name: str

    def messages(self, task: Any) -> Sequence[Message]:
        """Prompt of a task, [system, user]; ValueError for what is no task."""

    def judge(self, task: Any, text: str) -> tuple[float, dict[str, Any]]:
        """Reward of a reply, and what is recorded of it, in JSON values."""


class TaskDomain(Protocol):
    """Tasks to train on and to be judged by.

    Tasks are JSON values, and each is a function of its seed alone.

    Attributes:
      name: short name in configs and reports.
    """

    name: str

    def environments(self) -> Any:
        """Factory of environments that play a task (`sandbox.protocol.EnvironmentFactory`)."""

    def training_tasks(self, count: int, seed: int) -> list[Any]:
        """Tasks to train on."""

    def evaluation_tasks(self, count: int, seed: int) -> list[Any]:
        """Tasks to be judged by, `count` of each kind; none of them is trained on."""

    def figures(self, tasks: Sequence[Any], records: Sequence[Any]) -> Mapping[str, float]:
        """Flat figures of episodes by what they recorded; None where an episode left nothing."""

    def baselines(self, tasks: Sequence[Any]) -> Mapping[str, Mapping[str, float]]:
        """Player -> its figures on the same tasks, such as of uniform play."""

    def expert_traces(
        self, num_decisions: int, seed: int, *, rationale: bool = False
    ) -> list[tuple[list[Message], str]]:
        """Prompts and expert replies for supervised fine-tuning."""


PARTS = (
    "name",
    "environments",
    "training_tasks",
    "evaluation_tasks",
    "figures",
    "baselines",
    "expert_traces",
)


def is_task_domain(domain: Any) -> bool:
    """Whether a domain pays rewards of its own (`TaskDomain`)."""
    return hasattr(domain, "training_tasks")
