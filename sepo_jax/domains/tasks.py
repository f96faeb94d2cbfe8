"""What a domain offers whose tasks pay a reward of their own, without scripted opponents."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

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


class TaskEpisode(Protocol):
    """An episode of a task that takes several replies, all of them in one context.

    It is plain Python that pickles: its copy goes on as it would, whatever the process.

    Attributes:
      done: whether it is over.
      observation: key of what the agent sees; equal keys mean equal situations.
    """

    done: bool
    observation: str

    def messages(self) -> Sequence[Message]:
        """What the agent is shown next: at the beginning [system, user], later what follows its
        last reply, such as [user]."""

    def legal_actions(self) -> Sequence[str]:
        """Canonical replies; empty where they are not listed."""

    def step(self, reply: str) -> float:
        """Plays a reply, whatever it says; what it earned."""

    def record(self) -> Any:
        """What the episode leaves at its end, in JSON values."""


class TaskDomain(Protocol):
    """Tasks to train on and to be judged by.

    Tasks are JSON values, and each is a function of its seed alone. A domain whose tasks are played
    by a `TaskEpisode` offers `new_episode(task, seed)` in place of `environments`; one that a team
    plays offers `workflow(task, seed)` (`domains.teams`).

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
        """Flat figures of episodes by what they recorded; None where an episode left nothing.

        Figures of one kind of task are "<kind>/<figure>". "<figure>_low" and "<figure>_high" are
        the ends of its 95% interval.
        """

    def baselines(self, tasks: Sequence[Any]) -> Mapping[str, Mapping[str, float]]:
        """Player -> its figures on the same tasks, such as of uniform play."""

    def expert_traces(
        self, num_decisions: int, seed: int, *, rationale: bool = False
    ) -> list[tuple[list[Message], str]]:
        """Prompts and expert replies for supervised fine-tuning."""


class Curve(NamedTuple):
    """A line of a report page.

    Attributes:
      x, y: finite numbers [n], x ascending.
      x_label, y_label: what the axes show.
    """

    x: Sequence[float]
    y: Sequence[float]
    x_label: str
    y_label: str


class CurvedTaskDomain(TaskDomain, Protocol):
    """What a domain of tasks may offer beside: curves, of which report pages draw one panel a
    title with a line for every player."""

    def curves(self, tasks: Sequence[Any], records: Sequence[Any]) -> Mapping[str, Curve]:
        """Title -> curve of episodes by what they recorded; arguments as in `figures`."""

    def baseline_records(self, tasks: Sequence[Any]) -> Mapping[str, Sequence[Any]]:
        """Player of `baselines` -> what it would record, an episode a task."""


_PARTS = (
    "name",
    "training_tasks",
    "evaluation_tasks",
    "figures",
    "baselines",
    "expert_traces",
)
_PLAYED_BY = ("environments", "new_episode", "workflow")  # one of them


def is_task_domain(domain: Any) -> bool:
    """Whether a domain pays rewards of its own (`TaskDomain`)."""
    return hasattr(domain, "training_tasks")


def missing_parts(domain: Any) -> list[str]:
    """What a domain of tasks lacks of `TaskDomain`."""
    missing = [part for part in _PARTS if not hasattr(domain, part)]
    if not any(hasattr(domain, part) for part in _PLAYED_BY):
        missing.append(" or ".join(_PLAYED_BY))
    return missing
