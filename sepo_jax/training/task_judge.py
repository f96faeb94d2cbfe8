"""Evaluation inside a run over tasks: all evaluation tasks at the end of every stage."""

import sys
from collections.abc import Sequence
from statistics import fmean
from typing import Any

import chex
from tqdm import tqdm

from ..policy import Policy
from ..rollout import play
from ..sandbox.environments import domain_environments
from ..sandbox.episodes import EpisodeRequest, EpisodeResult
from ..sandbox.protocol import Pool
from .judge import provenance
from .reward_stage import sample_record
from .run_directory import RunDirectory, without_nonfinite
from .settings import Settings
from .setup import engine_options, evaluation_sampling, seated

_STEP = 2**30  # of the sampling keys: no training step has it
_SAMPLES = 8  # episodes of a stage that are kept whole


class TaskJudge:
    """Measures parameters on the evaluation tasks of a `domains.tasks.TaskDomain`.

    `policy` plays; a stage that gives roles adapters of their own (`setup.role_policy`) sets it.

    Keys of `summary.json` are "<player>/<figure>": players are the untrained policy, the stages
    and the domain's baselines. Replies are drawn as
    `setup.evaluation_sampling` says.

    `tasks.json` holds "tasks", "task_samples" (episodes of each in a row) and "players": player ->
    {"curves": title -> `domains.tasks.Curve` as an object}, and of stages also "step", "records"
    (what each episode recorded, null where it left nothing) and "samples", some episodes with their
    replies. Baselines are among the players where the domain says what they would record.
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
        head = {"tasks": self.tasks, "task_samples": self.settings.evaluation.task_samples}
        self.directory.add_json("tasks.json", head)
        offered = getattr(self.domain, "baseline_records", None)
        for player, records in (offered(self.tasks) if offered else {}).items():
            self._write_player(player, {"curves": self._curves(self.tasks, records)})
        if self.settings.evaluation.untrained:
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
        results = self._play(params)
        tasks = [result.request.task for result in results]
        records = [result.record for result in results]
        figures = self.domain.figures(tasks, records)
        played = [result for result in results if result.failure is None]
        if played:
            figures = {"tokens": fmean(map(_sampled_tokens, played)), **figures}
        shown = played[:: max(len(played) // _SAMPLES, 1)][:_SAMPLES]
        samples = [sample_record(stage, step, result) for result in shown]
        curves = self._curves(tasks, records)
        episodes = {"step": step, "curves": curves, "records": records, "samples": samples}
        self._write_player(stage, episodes)
        found: dict[str, Any] = {f"{stage}/{name}": value for name, value in figures.items()}
        self.directory.add_json("summary.json", found | {f"{stage}/step": step})

    def _play(self, params: chex.ArrayTree) -> list[EpisodeResult]:
        """Episodes of the policy on all evaluation tasks, each `evaluation.task_samples` times."""
        requests = [
            EpisodeRequest(task, seed=0, group=number, member=member)
            for number, task in enumerate(self.tasks)
            for member in range(self.settings.evaluation.task_samples)
        ]
        rollout = play(
            requests=requests,
            pool=self.environments,
            options=engine_options(self.settings, evaluation_sampling(self.settings)),
            seed=self.settings.seed,
            step=_STEP,
            **seated(self.policy, params, self.domain),
            progress="tasks" if self.progress else "",
        )
        return list(rollout.results)

    def _curves(self, tasks: Sequence[Any], records: Sequence[Any]) -> dict[str, Any]:
        """Curves in JSON values; none of a domain that draws none."""
        offered = getattr(self.domain, "curves", None)
        found = offered(tasks, records) if offered else {}
        return {title: curve._asdict() for title, curve in found.items()}

    def _write_player(self, player: str, found: dict[str, Any]) -> None:
        """Adds a player to `tasks.json`, in place of what stood there."""
        players = self.directory.read_json("tasks.json").get("players", {})
        players[player] = without_nonfinite(found)
        self.directory.add_json("tasks.json", {"players": players})

    def _read(self) -> dict[str, Any]:
        return self.directory.read_json("summary.json")


def _sampled_tokens(result: EpisodeResult) -> int:
    return sum(len(action.tokens) for action in result.actions)
