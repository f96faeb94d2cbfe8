"""The reinforcement-learning stage on tasks that pay their own rewards."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import chex
import numpy as np

from ..domains.seeds import derive_seed
from ..domains.tasks import is_task_domain
from ..evaluation.tree_record import tree_record
from ..forest import Forest
from ..policy import Policy
from ..rollout import play_branching, team_metrics
from ..rollout.branching import leaf_weights
from ..sandbox.environments import domain_environments
from ..sandbox.episodes import Action, EpisodeRequest, EpisodeResult
from ..sandbox.protocol import Pool, TooManyFailures
from .distributed import rollout_share
from .run_directory import without_nonfinite
from .sepo_stage import training_sampling
from .settings import Settings
from .setup import branching_of_step, engine_options, seated
from .stages import StepData

_SAMPLES = 4  # episodes that a step writes out


class RewardStage:
    """Reinforcement learning on tasks: play each several times, compare the rewards, update.

    A step draws `rl.tasks_per_step` tasks and plays each `rl.rollouts_per_task` times; the episodes
    of a task are one group. With `rl.branch_points` they are the leaves of trees, but for the tasks
    of `rl.root_share`. Numbers that episodes record are logged as their means, in which the leaves
    of a tree weigh as much as states are visited (`leaf_weights`), and steps of evaluation keep the
    trees of one prompt (`evaluation.tree_record`).
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
        self.branching = branching_of_step(settings.rl)

    def evaluate(self, params: chex.ArrayTree) -> dict[str, float]:
        """Nothing beside what the judge measures."""
        return {}

    def requests(self, step: int) -> list[EpisodeRequest]:
        """A request for each task of a step; its trees are members of its group."""
        rl, seed = self.settings.rl, derive_seed(self.settings.seed, "rl", step)
        return [
            EpisodeRequest(task, seed=derive_seed(seed, group), group=group)
            for group, task in enumerate(self.domain.training_tasks(rl.tasks_per_step, seed))
        ]

    def data(self, step: int, params: chex.ArrayTree) -> StepData:
        """Plays the episodes of one step.

        Raises:
          TooManyFailures: more episodes failed than the config allows, or all.
          ValueError: a prompt that does not fit `rollout.capacity`.
        """
        rollout = play_branching(
            requests=self.requests(step),
            pool=self.environments,
            options=self.options,
            branching=self.branching,
            seed=self.settings.seed,
            step=step,
            **seated(self.policy, params, self.domain),
            share=rollout_share(),
            progress=f"step {step + 1}" if self.progress else "",
        )
        weights = leaf_weights(rollout.results)
        kept = [
            (result, weight)
            for result, weight in zip(rollout.results, weights, strict=True)
            if result.failure is None
        ]
        if not kept:
            raise TooManyFailures("no episode was played to its end")
        played, weights = zip(*kept, strict=True)
        forest = rollout.forest()
        metrics = {
            "reward": _weighted_mean([total_reward(result) for result in played], weights),
            "failed_rollouts": len(rollout.results) - len(played),
            # What episodes of a tree have in common was sampled once.
            "sampled_decisions": int(forest.is_action.sum()),
            "sampled_tokens": int(forest.lengths()[forest.is_action].sum()),
            **mean_of_records([result.record for result in played], weights),
        }
        metrics |= team_metrics(played)
        timings, branches = {}, any(each.forks for each in self.branching)
        if branches:
            metrics |= self._tree_figures(rollout.statistics, forest)
            timings = {"snapshots": round(rollout.statistics["snapshot_seconds"], 6)}
        stride = max(len(played) // _SAMPLES, 1)
        samples = [sample_record(self.name, step + 1, result) for result in played[::stride]]
        waited = rollout.statistics["blocked_seconds"]
        tree = self._tree(rollout.results, forest) if branches else None
        return StepData(forest, metrics, samples, waited, timings, tree)

    def _tree(self, results: Sequence[EpisodeResult], forest: Forest) -> Callable[..., dict]:
        """`StepData.tree` of a step."""
        tokenizer = self.policy.tokenizer
        return partial(
            tree_record,
            results,
            forest,
            decode=tokenizer.decode if tokenizer is not None else None,
            entropy_of=self.settings.rl.branch_entropy,
        )

    @staticmethod
    def _tree_figures(statistics: Mapping[str, Any], forest: Forest) -> dict[str, float]:
        """Figures of the trees of a step, none of them of time."""
        names = ("leaves", "missing_leaves", "branch_points", "short_trees")
        entropies = [name for name in ("branch_entropy", "decision_entropy") if name in statistics]
        figures = {f"trees/{name}": statistics[name] for name in (*names, *entropies)}
        # Each token once, however many leaves share it.
        return figures | {"trees/tokens_per_leaf": forest.num_tokens / statistics["leaves"]}


def total_reward(result: EpisodeResult) -> float:
    """What the seats of an episode were paid together."""
    return float(sum(sum(paid.values()) for paid in result.rewards))


def mean_of_records(
    records: Sequence[Any], weights: Sequence[float] | None = None
) -> dict[str, float]:
    """Means of the numbers that episodes recorded, as "task/<name>"; by default all count alike."""
    found: dict[str, list[tuple[float, float]]] = {}
    weights = [1.0] * len(records) if weights is None else weights
    for record, weight in zip(records, weights, strict=True):
        for name, value in record.items() if isinstance(record, Mapping) else ():
            if isinstance(value, bool | int | float):
                found.setdefault(f"task/{name}", []).append((float(value), weight))
    return {name: _weighted_mean(*zip(*pairs, strict=True)) for name, pairs in found.items()}


def _weighted_mean(values: Sequence[float], weights: Sequence[float]) -> float:
    return float(np.average(values, weights=weights))


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
                **_membership(action),
            }
            for action in result.actions
        ],
        "record": without_nonfinite(result.record),
    }


def _membership(action: Action) -> dict[str, str]:
    """Which role of a team replied, in which kind of event."""
    one = action.prompt.membership
    return {} if one is None else {"role": f"{one.role} {one.member}", "event": one.kind}
