"""Runs one stage of a run, step by step, from its last checkpoint to its end."""

import contextlib
import logging
from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
from tqdm import tqdm

from ..algorithms import Algorithm
from ..objective import make_objective
from .batches import BatchMaker, read_value
from .checkpoints import Checkpoints, newest_on_all
from .clock import Clock, peak_memory
from .compilations import Compilations
from .distributed import check_same_data, is_first
from .goals import credit_row
from .parallel import Parallel
from .run_directory import nonfinite
from .stages import StepData
from .trainable import join, reference_part, split
from .update import as_objective, init_state, make_optimizer, make_update

_LOG = logging.getLogger(__name__)
STAGES = ("sft", "sepo", "rl")  # in the order of a run
AroundStep = Callable[[str, int], contextlib.AbstractContextManager]


class NonFiniteError(RuntimeError):
    """A loss, gradient or metric stopped being a finite number."""


class Watch(NamedTuple):
    """What looks on while a run goes.

    Attributes:
      compilations: counts them.
      around_step: (stage, step) -> the context that the step runs in.
      progress: whether there are progress bars.
    """

    compilations: Compilations
    around_step: AroundStep
    progress: bool


class Held(NamedTuple):
    """What no update of a stage changes, as `Parallel.hold` lays it out.

    Attributes:
      frozen: parameters that are not trained.
      reference: the leaves that the reference policy has beside them, or None without KL terms.
    """

    frozen: chex.ArrayTree
    reference: chex.ArrayTree | None

    def local_reference(self, parallel: Parallel) -> chex.ArrayTree | None:
        """Parameters of the reference policy as `Parallel.local` lays them out, or None."""
        if self.reference is None:
            return None
        return join(parallel.local(self.frozen), parallel.local(self.reference))


class _Course(NamedTuple):
    """What all steps of a stage share.

    Attributes:
      stage: gives the data. steps: how many it has.
      maker: makes batches of them. update: takes these.
      checkpoints: of the stage; None where this process writes none.
      held: what no update changes.
    """

    stage: Any
    steps: int
    maker: BatchMaker
    update: Callable
    checkpoints: Checkpoints | None
    held: Held

    def ends_at(self, step: int) -> bool:
        """Whether `step`, from 0, is the last."""
        return step + 1 == self.steps


@jax.jit
def _copied(tree: chex.ArrayTree) -> chex.ArrayTree:
    return jax.tree.map(jnp.copy, tree)


class StageRunner:
    """Runs one stage from its last checkpoint to its end."""

    def __init__(self, settings, directory, parallel, judge, watch: Watch):
        self.settings, self.directory, self.parallel = settings, directory, parallel
        self.judge, self.watch = judge, watch

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
        state = init_state(parallel.put(trained), optimizer)
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
            course = _Course(stage, numbers.steps, maker, update, checkpoints, held)
            trained = self._steps(course, state, first)
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

    def _steps(self, course: _Course, state, first: int) -> chex.ArrayTree:
        """The trained parameters after the last step, from `state` after step `first`."""
        placed, ahead = self.parallel.place(state), None
        bar = tqdm(
            range(first, course.steps),
            desc=course.stage.name,
            initial=first,
            total=course.steps,
            disable=not self.watch.progress,
        )
        for step in bar:
            with self.watch.around_step(course.stage.name, step + 1):
                placed, ahead = self._step(course, step, placed, ahead, bar)
        return self.parallel.current(placed.params)

    def _step(self, course: _Course, step: int, placed, ahead: StepData | None, bar):
        """One step: the state after it and, where its updates overlap with rollouts, the data of
        the next; `ahead` are those of this one, where the step before has played them."""
        stage, clock = course.stage, Clock(self.watch.compilations.seconds)
        overlaps = self._overlaps(course, step)
        params = self._policy(course, placed, kept=overlaps)
        data = self._play(stage, step, params, clock) if ahead is None else ahead
        reference = course.held.local_reference(self.parallel)
        batch, credit = course.maker.make(data.forest, params, reference)
        check_same_data(batch, f"batch at step {step + 1} of stage {stage.name}")
        clock.lap("score")
        # The update wants the room, and consumes what these may share memory with.
        del reference
        following, behind = None, params if overlaps else None
        del params
        for _ in range(self._updates(stage)):
            placed, metrics = course.update(placed, course.held.frozen, batch)
        if overlaps:  # the updates are under way and not waited for
            clock.lap("update")
            following = self._play(stage, step + 1, behind, clock)
            del behind
        # All in one transfer, divided on the host: not an operation of the device for each.
        metrics, credited = jax.device_get((metrics, credit.metrics))
        record = {"stage": stage.name, "step": step + 1, "loss": read_value(metrics["loss"])}
        for part in (metrics, credited, data.metrics):
            record |= {name: read_value(value) for name, value in part.items()}
        if self.settings.rollout.overlap and stage.name != "sft":
            record["policy_lag"] = int(ahead is not None)
        clock.lap("update")
        lines = {"samples.jsonl": data.samples}
        if course.ends_at(step) or (step + 1) % self.settings.evaluation.every == 0:
            record |= self._judge(course, placed)
            if data.tree is not None:
                named = {"stage": stage.name, "step": step + 1}
                lines["trees.jsonl"] = [named | data.tree(credit, course.maker.algorithm)]
            clock.lap("evaluate")
        self._write(record, lines, placed, bar)
        self._save(course, step, placed, clock)
        return placed, following

    def _overlaps(self, course: _Course, step: int) -> bool:
        """Whether the next step's episodes are played beside the updates of `step`.

        The step after a checkpoint is played by the policy in it, so that a run which goes on from
        there needs none before it.
        """
        sampled = self.settings.rollout.overlap and course.stage.name != "sft"
        return sampled and not self._saves(course, step)

    def _saves(self, course: _Course, step: int) -> bool:
        return course.ends_at(step) or (step + 1) % self.settings.checkpoint.every == 0

    def _policy(self, course: _Course, placed, kept: bool = False) -> chex.ArrayTree:
        """All parameters as this process samples by them; with `kept` in memory that the next
        update leaves alone."""
        trained = self.parallel.current(placed.params)
        return join(self.parallel.local(course.held.frozen), _copied(trained) if kept else trained)

    @staticmethod
    def _play(stage, step: int, params: chex.ArrayTree, clock: Clock) -> StepData:
        """The data of a step, by the policy with these parameters."""
        data = stage.data(step, params)
        clock.lap("generate", {"environment": data.waited})
        clock.laps |= data.timings
        return data

    def _judge(self, course: _Course, placed) -> dict[str, float]:
        """Figures of the policy as it is now."""
        params = self._policy(course, placed)
        return course.stage.evaluate(params) | self.judge.exact(params)

    def _save(self, course: _Course, step: int, placed, clock: Clock) -> None:
        """Writes a checkpoint where one is due, and what the step took."""
        if self._saves(course, step):
            whole = self.parallel.fetch(placed)
            if course.checkpoints is not None:
                course.checkpoints.save(step + 1, (whole, course.maker.sizes))
            clock.lap("save")
        named = {"stage": course.stage.name, "step": step + 1}
        counts = self.watch.compilations.take()
        self.directory.append("timings.jsonl", named | clock.laps | counts | peak_memory())

    def _write(self, record, lines, placed, bar) -> None:
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
        self.directory.append("metrics.jsonl", record)
        shown = {k: f"{record[k]:.3g}" for k in ("loss", "exact/nash_conv") if k in record}
        bar.set_postfix(shown)
