"""The whole run: warm start, reinforcement learning, exact evaluation, report.

Every random choice derives from (seed, step), so a run that is stopped at any point and resumed
from its last checkpoint is the run it would have been, bit for bit on CPU. That is also why several
processes can share the episodes of a step out (`distributed`): state, batches and metrics are equal
on all, and process 0 alone writes.
"""

import contextlib
import dataclasses
import sys
from pathlib import Path
from typing import Any, NamedTuple

import chex
import jax
from tqdm import tqdm

from ..algorithms import get_algorithm
from ..domains.tasks import is_task_domain
from ..evaluation import write_report
from ..names import check_option
from ..policy import Policy, detach
from ..rollout.driver import check_on_mesh
from ..sandbox.protocol import Pool
from .compilations import Compilations
from .distributed import (
    barrier,
    check_same_config,
    from_first,
    is_first,
    together,
)
from .goals import (
    check_overlap,
    choose_objective,
    credit_row,
    describe_objective,
    row_of,
)
from .judge import Judge
from .parallel import Parallel
from .reward_stage import RewardStage
from .run_directory import RunDirectory, UnwrittenRunDirectory
from .sepo_stage import SepoStage
from .settings import Settings, read_settings, to_dict
from .setup import (
    check_comparison,
    check_critic,
    engine_options,
    evaluation_sampling,
    make_domain,
    make_policy,
    make_pool,
    role_policy,
)
from .stage_runner import AroundStep, StageRunner, Watch
from .stages import SftStage
from .task_judge import TaskJudge
from .trainable import begin_stage
from .written_policy import write_policy


class Run(NamedTuple):
    """What training returns.

    Attributes:
      policy, params: the trained policy; with `policy.lora_rank` the adapter of the last stage, or
        those of its roles, are beside the kernels, and the policy without is the one before it.
      summary: final figures by stage, as in `summary.json`.
      directory: where the run's files lie; only process 0 of several writes any.
    """

    policy: Policy
    params: chex.ArrayTree
    summary: dict[str, Any]
    directory: Path


def train(
    config: Any,
    objective: Any = None,
    domain: Any = None,
    *,
    run_directory: str | Path | None = None,
    resume: bool = False,
    allow_change: tuple[str, ...] = (),
    progress: bool = True,
    around_step: AroundStep = lambda stage, step: contextlib.nullcontext(),
) -> Run:
    """Runs every stage of a config: SFT, SEPO, evaluation, report.

    Several processes joined by `distributed.connect` all call it with the same arguments.

    Args:
      config: a ConfigDict, mapping or `Settings`.
      objective: for the reinforcement-learning stage, in place of the config's algorithm: an
        `Algorithm`, or a function `(params, batch) -> (loss, metrics)`, which gets the policy as
        `policy=` when it has such a parameter.
      domain: an object like `domains.Kuhn`, in place of the one the config names.
      run_directory: where to write; default `runs/<name>_seed<seed>`.
      resume: go on with the run in that directory.
      allow_change: dotted config keys that may differ from the interrupted run's.
      progress: show progress bars.
      around_step: gives the context in which each step of each stage runs.

    Raises:
      FileExistsError: the directory holds a run and `resume` is false.
      FileNotFoundError: nothing to resume, or no such policy directory.
      ValueError: an unknown or mistyped config field, or a config that differs at resume or
        between processes; what stops one process stops all.
      NonFiniteError: a metric became NaN or infinite; step and metric are named.
      NoSpreadError: a step had nothing to learn from; see `sepo.max_resample`.
      TooManyFailures: sandboxes failed more episodes than `sandbox.max_failed_fraction`.
    """
    settings = together(lambda: read_settings(config))
    if objective is not None:
        settings = dataclasses.replace(settings, objective=describe_objective(objective))
    check_same_config({**to_dict(settings), "resume": resume, "allow_change": allow_change})
    path = Path(run_directory or Path("runs") / f"{settings.name}_seed{settings.seed}")
    if is_first() and not resume:
        RunDirectory.refuse_existing(path)
    progress = progress and is_first()
    if progress:
        tqdm.write(f"{path}: loading {settings.policy.source}", file=sys.stderr)
    with contextlib.ExitStack() as stack:
        compilations = stack.enter_context(Compilations())
        prepared = together(lambda: _prepare(settings, objective, domain, progress, stack))
        watch = Watch(compilations, around_step, progress)
        return _train(settings, prepared, path, resume, allow_change, watch)


def _train(settings: Settings, prepared: "_Prepared", path, resume, allow_change, watch) -> Run:
    """Runs what was prepared."""
    policy, parallel = prepared.policy, prepared.parallel
    params = parallel.rest(from_first(prepared.params))
    # Nothing is written before everything the config names was found and fits together.
    directory = together(lambda: _open_directory(path, settings, resume, allow_change))
    kind = TaskJudge if is_task_domain(prepared.domain) else Judge
    judge = kind(
        settings, policy, prepared.domain, directory, prepared.environments, watch.progress
    )
    judge.baselines(parallel.put(params))
    runner = StageRunner(settings, directory, parallel, judge, watch)
    adapters = []
    for number, (stage, numbers, goal) in enumerate(prepared.stages):
        key = jax.random.fold_in(jax.random.key(settings.seed), number)
        policy = judge.policy = stage.policy
        params = parallel.rest(begin_stage(policy.config, parallel.put(params), key))
        params = runner.run(stage, numbers, goal, params)
        judge.final(stage.name, parallel.put(params), numbers.steps)
        adapters.append((policy.config, detach(params)[1]))
    if is_first():
        write_policy(directory.path, settings, prepared.domain, policy, params, adapters)
        write_report(directory.path)
    barrier("end of the run")
    return Run(policy, params, directory.read_json("summary.json"), directory.path)


class _Prepared(NamedTuple):
    """What a config names, made.

    Attributes:
      environments: the pool of the domain's environments.
      policy, params: before training. parallel: how updates are laid out.
      stages: (stage, its numbers, its goal) in order.
    """

    domain: Any
    environments: Pool
    policy: Policy
    params: chex.ArrayTree
    parallel: Parallel
    stages: list[tuple]


def _prepare(
    settings: Settings, objective: Any, domain: Any, progress: bool, stack: contextlib.ExitStack
) -> _Prepared:
    """Makes what the config names; `stack` closes the sandboxes however the run ends."""
    check_option("optimizer.on_nonfinite", settings.optimizer.on_nonfinite, ("stop", "skip"))
    if settings.sft.data and not settings.sft.steps:
        raise ValueError(
            f"sft.data={settings.sft.data!r} is read by no stage: sft.steps=0. Raise sft.steps, or "
            "leave sft.data out"
        )
    domain = domain if domain is not None else make_domain(settings.domain)
    chosen = choose_objective(settings, objective)
    row = credit_row(settings, chosen)
    if settings.rl.steps:
        check_comparison(row, settings.rl)
    if settings.rollout.overlap:
        check_overlap(row_of(chosen))
    parallel = Parallel(settings.parallel)
    if parallel.kind == "mesh":
        check_on_mesh(engine_options(settings, evaluation_sampling(settings)))
    environments = stack.enter_context(make_pool(settings.sandbox, domain))
    policy, params = make_policy(settings, domain)
    trained = role_policy(settings, policy, domain)
    if settings.sepo.steps or settings.rl.steps:
        check_critic(row, trained)
    stages = []
    if settings.sft.steps:
        stages.append((SftStage(settings, policy, domain), settings.sft, get_algorithm("sft")))
    for kind, numbers in ((SepoStage, settings.sepo), (RewardStage, settings.rl)):
        if numbers.steps:
            stage = kind(settings, trained, domain, environments, progress)
            stages.append((stage, numbers, chosen))
    return _Prepared(domain, environments, policy, params, parallel, stages)


def _open_directory(path, settings, resume: bool, allow_change: tuple[str, ...]) -> RunDirectory:
    if not is_first():
        return UnwrittenRunDirectory(path)
    if resume:
        return RunDirectory.resume(path, to_dict(settings), allow_change)
    return RunDirectory.create(path, to_dict(settings))
