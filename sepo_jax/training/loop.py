"""The whole run: warm start, reinforcement learning, exact evaluation, report.

Every random choice derives from (seed, step), so a run that is stopped at any point and resumed
from its last checkpoint is the run it would have been, bit for bit on CPU. That is also why several
processes can share the episodes of a step out (`distributed`): state, batches and metrics are equal
on all, and process 0 alone writes.
"""

import contextlib
import dataclasses
import logging
import sys
from pathlib import Path
from typing import Any, NamedTuple

import chex
import jax
from tqdm import tqdm

from ..algorithms import ALGORITHMS, Algorithm, get_algorithm
from ..domains.tasks import is_task_domain
from ..evaluation import write_report
from ..names import check_option, imported
from ..objective import make_objective
from ..policy import Policy, detach
from ..sandbox.protocol import Pool
from .batches import BatchMaker, read_value
from .checkpoints import Checkpoints, newest_on_all
from .clock import Clock, peak_memory
from .distributed import (
    barrier,
    check_same_config,
    check_same_data,
    from_first,
    is_first,
    together,
)
from .judge import Judge
from .parallel import Parallel
from .reward_stage import RewardStage
from .run_directory import RunDirectory, UnwrittenRunDirectory, nonfinite
from .sepo_stage import SepoStage
from .settings import Settings, read_settings, to_dict
from .setup import (
    check_comparison,
    check_critic,
    make_domain,
    make_policy,
    make_pool,
    role_policy,
)
from .stages import SftStage
from .task_judge import TaskJudge
from .trainable import begin_stage, join, reference_part, split
from .update import as_objective, init_state, make_optimizer, make_update
from .written_policy import write_policy

_LOG = logging.getLogger(__name__)
STAGES = ("sft", "sepo", "rl")  # in the order of a run


class NonFiniteError(RuntimeError):
    """A loss, gradient or metric stopped being a finite number."""


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
        prepared = together(lambda: _prepare(settings, objective, domain, progress, stack))
        return _train(settings, prepared, path, resume, allow_change, progress)


def _train(settings: Settings, prepared: "_Prepared", path, resume, allow_change, progress) -> Run:
    """Runs what was prepared."""
    policy, parallel = prepared.policy, prepared.parallel
    params = parallel.rest(from_first(prepared.params))
    # Nothing is written before everything the config names was found and fits together.
    directory = together(lambda: _open_directory(path, settings, resume, allow_change))
    kind = TaskJudge if is_task_domain(prepared.domain) else Judge
    judge = kind(settings, policy, prepared.domain, directory, prepared.environments, progress)
    judge.baselines(parallel.on_first(params))
    runner = StageRunner(settings, directory, parallel, judge, progress)
    adapters = []
    for number, (stage, numbers, goal) in enumerate(prepared.stages):
        key = jax.random.fold_in(jax.random.key(settings.seed), number)
        policy = judge.policy = stage.policy
        params = begin_stage(policy.config, params, key)
        params = runner.run(stage, numbers, goal, params)
        judge.final(stage.name, parallel.on_first(params), numbers.steps)
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
    chosen = _choose_objective(settings, objective)
    row = credit_row(settings, chosen)
    if settings.rl.steps:
        check_comparison(row, settings.rl)
    parallel = Parallel(settings.parallel)
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


def _choose_objective(settings: Settings, objective: Any) -> Any:
    if objective is None and settings.objective:
        objective = imported("objective", settings.objective, "my_module:my_function")
    if objective is None:
        return configured_algorithm(settings)
    return objective


def describe_objective(objective: Any) -> str:
    """What `config.json` says of an objective given in Python: "module:function", or a row of the
    table with the fields that differ from the one of its name."""
    row = objective if isinstance(objective, Algorithm) else getattr(objective, "algorithm", None)
    if row is None:
        name = getattr(objective, "__qualname__", type(objective).__qualname__)
        return f"{getattr(objective, '__module__', '')}:{name}"
    base = ALGORITHMS.get(row.name)
    changed = []
    for field in dataclasses.fields(row):
        value = getattr(row, field.name)
        if base is None or value != getattr(base, field.name):
            changed.append(f"{field.name}={getattr(value, '__qualname__', value)}")
    return f"Algorithm {row.name} {', '.join(changed)}".strip()


def configured_algorithm(settings: Settings) -> Algorithm:
    """The row of the table that the config names, with its overrides."""
    return get_algorithm(settings.algorithm.name, **settings.algorithm.overrides)


def credit_row(settings: Settings, goal: Any) -> Algorithm:
    """The row that assigns advantages: of an own loss without an `algorithm`, the config's."""
    row = goal if isinstance(goal, Algorithm) else getattr(goal, "algorithm", None)
    return row or configured_algorithm(settings)


class Held(NamedTuple):
    """What no update of a stage changes, as `Parallel.hold` lays it out.

    Attributes:
      frozen: parameters that are not trained.
      reference: the leaves that the reference policy has beside them, or None without KL terms.
    """

    frozen: chex.ArrayTree
    reference: chex.ArrayTree | None

    def whole_reference(self, parallel: Parallel) -> chex.ArrayTree | None:
        """Parameters of the reference policy on the first device, or None."""
        if self.reference is None:
            return None
        return join(parallel.whole(self.frozen), parallel.whole(self.reference))


class StageRunner:
    """Runs one stage from its last checkpoint to its end."""

    def __init__(self, settings, directory, parallel, judge, progress):
        self.settings, self.directory, self.parallel = settings, directory, parallel
        self.judge, self.progress = judge, progress

    def run(self, stage, numbers, goal, params) -> chex.ArrayTree:
        """Parameters after the stage.

        Args:
          stage: gives the data of a step, and the policy.
          numbers: the stage's section of the settings (steps and learning rates).
          goal: an Algorithm or an own loss.
          params: parameters before the stage, of `trainable.begin_stage`. KL terms refer to them,
            which are the policy without adapter where there is one.
        """
        settings, parallel, policy = self.settings, self.parallel, stage.policy
        updates = self._updates(stage)
        optimizer = make_optimizer(
            settings.optimizer,
            numbers.learning_rate,
            numbers.warmup_steps * updates,
            numbers.steps * updates,
            numbers.final_learning_rate,
        )
        temperature = settings.rollout.temperature
        if isinstance(goal, Algorithm):
            goal = make_objective(goal, policy, temperature=temperature)
        maker = BatchMaker(settings, policy, credit_row(settings, goal), parallel.num_devices)
        update = parallel.compile_update(
            lambda objective: make_update(objective, optimizer),
            as_objective(goal, policy, temperature),
        )
        frozen, trained = split(policy.config, params)
        state = jax.tree.map(jax.numpy.asarray, init_state(trained, optimizer))
        with self._checkpoints(stage.name) as checkpoints:
            first, (state, maker.sizes) = newest_on_all(checkpoints, (state, maker.sizes))
            if first > numbers.steps:
                raise ValueError(
                    f"stage {stage.name} has been trained for {first} steps; its steps cannot be "
                    f"lowered to {numbers.steps}"
                )
            if first < numbers.steps:
                self._drop_lines_after(stage.name, first)
            kept = reference_part(policy.config, trained)
            refers = maker.algorithm.kl_weight
            held = Held(parallel.hold(frozen), parallel.hold(kept) if refers else None)
            trained = self._steps(stage, numbers, maker, update, checkpoints, state, held, first)
        return join(frozen, parallel.rest(trained))

    def _checkpoints(self, stage: str) -> contextlib.AbstractContextManager[Checkpoints | None]:
        """Those of a stage on process 0, None on the others."""
        if not is_first():
            return contextlib.nullcontext()
        place = self.directory.path / "checkpoints" / stage
        return Checkpoints(place, self.settings.checkpoint.keep)

    def _updates(self, stage) -> int:
        """Updates on each batch; examples are learned from once, what was sampled more often."""
        return 1 if stage.name == "sft" else self.settings.optimizer.updates_per_batch

    def _drop_lines_after(self, name: str, step: int) -> None:
        """Forgets log lines of updates that no checkpoint holds; they are about to be redone."""
        later = STAGES[STAGES.index(name) + 1 :]
        self.directory.keep_lines(
            lambda line: (
                line["stage"] not in later and (line["stage"] != name or line["step"] <= step)
            )
        )

    def _steps(
        self, stage, numbers, maker, update, checkpoints, state, held, first
    ) -> chex.ArrayTree:
        """The trained parameters after the last step, from `state` after step `first`."""
        settings, parallel = self.settings, self.parallel
        placed = self.parallel.place(state)
        bar = tqdm(
            range(first, numbers.steps),
            desc=stage.name,
            initial=first,
            total=numbers.steps,
            disable=not self.progress,
        )
        for step in bar:
            clock = Clock()
            params = join(parallel.whole(held.frozen), parallel.current(placed.params))
            data = stage.data(step, params)
            clock.lap("generate", {"environment": data.waited})
            clock.laps |= data.timings
            reference = held.whole_reference(parallel)
            batch, credit = maker.make(data.forest, params, reference)
            check_same_data(batch, f"batch at step {step + 1} of stage {stage.name}")
            clock.lap("score")
            # The update consumes what these may share memory with, and wants the room.
            del params, reference
            for _ in range(self._updates(stage)):
                placed, metrics = update(placed, held.frozen, batch)
            record = {"stage": stage.name, "step": step + 1, "loss": read_value(metrics["loss"])}
            for part in (metrics, credit.metrics, data.metrics):
                record |= {name: read_value(value) for name, value in part.items()}
            clock.lap("update")
            last = step + 1 == numbers.steps
            lines = {"samples.jsonl": data.samples}
            if (step + 1) % settings.evaluation.every == 0 or last:
                params = join(parallel.whole(held.frozen), parallel.current(placed.params))
                record |= stage.evaluate(params) | self.judge.exact(params)
                del params
                if data.tree is not None:
                    named = {"stage": stage.name, "step": step + 1}
                    lines["trees.jsonl"] = [named | data.tree(credit, maker.algorithm)]
                clock.lap("evaluate")
            self._write(record, lines, clock, placed, bar)
            if (step + 1) % settings.checkpoint.every == 0 or last:
                whole = parallel.fetch(placed)
                if checkpoints is not None:
                    checkpoints.save(step + 1, (whole, maker.sizes))
        return parallel.current(placed.params)

    def _write(self, record, lines, clock, placed, bar) -> None:
        stage, step = record["stage"], record["step"]
        bad = nonfinite(record)
        if bad is not None:
            if self.settings.optimizer.on_nonfinite == "stop":
                raise NonFiniteError(
                    f"{bad} is {record[bad]} at step {step} of stage {stage}; parameters of the "
                    f"last checkpoint are in {self.directory.path / 'checkpoints' / stage}"
                )
            _LOG.warning("%s is %s at step %d; the update was skipped", bad, record[bad], step)
            record = {k: v for k, v in record.items() if nonfinite({k: v}) is None}
        record["skipped_updates"] = int(self.parallel.fetch(placed.skipped))
        for name, records in lines.items():
            for each in records:
                self.directory.append(name, each)
        timings = {"stage": stage, "step": step, **clock.laps, **peak_memory()}
        self.directory.append("timings.jsonl", timings)
        self.directory.append("metrics.jsonl", record)
        shown = {k: f"{record[k]:.3g}" for k in ("loss", "exact/nash_conv") if k in record}
        bar.set_postfix(shown)
