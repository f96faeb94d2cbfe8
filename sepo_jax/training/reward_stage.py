"""The reinforcement-learning stage on tasks that pay their own rewards."""

from collections.abc import Mapping, Sequence
from typing import Any

import chex
import numpy as np

from ..domains.base import derive_seed
from ..domains.tasks import is_task_domain
from ..policy import Policy
from ..rollout import build_forest, play
from ..sandbox.environments import domain_environments
from ..sandbox.episodes import EpisodeRequest, EpisodeResult
from ..sandbox.protocol import Pool, TooManyFailures
from .run_directory import without_nonfinite
from .sepo_stage import training_sampling
from .settings import Settings
from .setup import engine_options
from .stages import StepData

_SAMPLES = 4  # episodes that a step writes out


class RewardStage:
    """Reinforcement learning on tasks: play each several times, compare the rewards, update.

    A step draws `rl.tasks_per_step` tasks and plays each `rl.rollouts_per_task` times; the episodes
    of a task are one group. Numbers that episodes record are logged as their means.
    """

    name = "rl"

    def __init__(
        self,
        settings: Settings,
        policy: Policy,
        domain: Any,
        environments: Pool | None = None,
        progress: bool = False,
    ):
        """A stage; ValueError for a domain without tasks."""
        if not is_task_domain(domain):
            raise ValueError(
                f"rl.steps={settings.rl.steps}, but domain {domain.name!r} has opponents and no "
                "tasks with a reward of their own: train it with sepo.steps"
            )
        self.settings, self.policy, self.domain = settings, policy, domain
        self.environments = environments or domain_environments(domain)
        self.progress = progress
        self.options = engine_options(settings, training_sampling(settings))

    def evaluate(self, params: chex.ArrayTree) -> dict[str, float]:
        """Nothing beside what the judge measures."""
        return {}

    def requests(self, step: int) -> list[EpisodeRequest]:
        """The episodes of a step."""
        rl, seed = self.settings.rl, derive_seed(self.settings.seed, "rl", step)
        return [
            EpisodeRequest(task, seed=derive_seed(seed, group), group=group, member=member)
            for group, task in enumerate(self.domain.training_tasks(rl.tasks_per_step, seed))
            for member in range(rl.rollouts_per_task)
        ]

    def data(self, step: int, params: chex.ArrayTree) -> StepData:
        """Plays the episodes of one step.

        Raises:
          TooManyFailures: more episodes failed than the config allows, or all.
          ValueError: a prompt that does not fit `rollout.capacity`.
        """
        rollout = play(
            self.policy,
            params,
            self.requests(step),
            self.environments,
            self.options,
            seed=self.settings.seed,
            step=step,
            progress=f"step {step + 1}" if self.progress else "",
        )
        played = [result for result in rollout.results if result.failure is None]
        if not played:
            raise TooManyFailures("no episode was played to its end")
        forest = build_forest(rollout.results)
        metrics = {
            "reward": float(np.mean([total_reward(result) for result in played])),
            "failed_rollouts": len(rollout.results) - len(played),
            **mean_of_records([result.record for result in played]),
        }
        stride = max(len(played) // _SAMPLES, 1)
        samples = [sample_record(self.name, step + 1, result) for result in played[::stride]]
        return StepData(forest, metrics, samples, rollout.statistics["blocked_seconds"])


def total_reward(result: EpisodeResult) -> float:
    """What seat 0 was paid in an episode."""
    return float(sum(paid.get(0, 0.0) for paid in result.rewards))


def mean_of_records(records: Sequence[Any]) -> dict[str, float]:
    """Means of the numbers that episodes recorded, as "task/<name>"."""
    found: dict[str, list[float]] = {}
    for record in records:
        for name, value in record.items() if isinstance(record, Mapping) else ():
            if isinstance(value, bool | int | float):
                found.setdefault(f"task/{name}", []).append(float(value))
    return {name: float(np.mean(values)) for name, values in found.items()}


def sample_record(stage: str, step: int, result: EpisodeResult) -> dict[str, Any]:
    """An episode as report pages show it, in `samples.jsonl` and `tasks.json`."""
    return {
        "stage": stage,
        "step": step,
        "reward": total_reward(result),
        "decisions": [
            {
                "observation": action.prompt.observation,
                "prompt": action.prompt.messages[-1]["content"] if action.prompt.messages else "",
                "reply": action.text,
            }
            for action in result.actions
        ],
        "record": without_nonfinite(result.record),
    }
