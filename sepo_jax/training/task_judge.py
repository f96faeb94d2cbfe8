"""Evaluation inside a run over tasks: all evaluation tasks at the end of every stage."""

import sys
from typing import Any

import chex
from tqdm import tqdm

from ..policy import Policy
from ..rollout import play
from ..sandbox.environments import domain_environments
from ..sandbox.episodes import EpisodeRequest
from ..sandbox.protocol import Pool
from .judge import provenance
from .run_directory import RunDirectory
from .settings import Settings
from .setup import engine_options, evaluation_sampling

_STEP = 2**30  # of the sampling keys: no training step has it


class TaskJudge:
    """Measures parameters on the evaluation tasks of a `domains.tasks.TaskDomain`.

    Keys of `summary.json` are "<stage>/<figure>", and "<player>/<figure>" for the domain's
    baselines. Replies are drawn as `setup.evaluation_sampling` says.
    """

    def __init__(
        self,
        settings: Settings,
        policy: Policy,
        domain: Any,
        directory: RunDirectory,
        environments: Pool | None = None,
        progress: bool = False,
    ):
        self.settings, self.policy, self.domain = settings, policy, domain
        self.directory, self.progress = directory, progress
        self.environments = environments or domain_environments(domain)
        # The same tasks whatever the seed of a run: runs are compared on them.
        self.tasks = domain.evaluation_tasks(settings.evaluation.tasks, settings.sft.data_seed)

    def baselines(self, params: chex.ArrayTree) -> None:
        """Figures that every later one stands beside: the domain's players, and the untrained
        policy."""
        figures = provenance(self.settings)
        for player, found in self.domain.baselines(self.tasks).items():
            figures |= {f"{player}/{name}": value for name, value in found.items()}
        # A run that goes on keeps the revision and versions it was started with.
        self.directory.add_json("summary.json", figures | self._read())
        self.final("untrained", params, 0)

    def exact(self, params: chex.ArrayTree) -> dict[str, float]:
        """Nothing: tasks are played at the end of a stage."""
        return {}

    def final(self, stage: str, params: chex.ArrayTree, step: int) -> None:
        """Figures of all tasks after `step` updates of a stage, unless they are there."""
        if self._read().get(f"{stage}/step") == step:
            return
        if self.progress:
            tqdm.write(f"{stage}: {len(self.tasks)} tasks", file=sys.stderr)
        figures = self.measure(params)
        found: dict[str, Any] = {f"{stage}/{name}": value for name, value in figures.items()}
        self.directory.add_json("summary.json", found | {f"{stage}/step": step})

    def measure(self, params: chex.ArrayTree) -> dict[str, float]:
        """Figures of the policy on all evaluation tasks, each `evaluation.task_samples` times."""
        samples = self.settings.evaluation.task_samples
        requests = [
            EpisodeRequest(task, seed=0, group=number, member=member)
            for number, task in enumerate(self.tasks)
            for member in range(samples)
        ]
        rollout = play(
            self.policy,
            params,
            requests,
            self.environments,
            engine_options(self.settings, evaluation_sampling(self.settings)),
            seed=self.settings.seed,
            step=_STEP,
            progress="tasks" if self.progress else "",
        )
        records = [result.record for result in rollout.results]
        tasks = [task for task in self.tasks for _ in range(samples)]
        return dict(self.domain.figures(tasks, records))

    def _read(self) -> dict[str, Any]:
        return self.directory.read_json("summary.json")
