"""How a training step grows, with what trajectories have in common computed once, and without."""

import dataclasses
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import numpy as np
from scaling_work import SEPARATE, SHARED, Axis, Shape, TokenEnvironment

from sepo_jax.forest import Forest
from sepo_jax.objective import make_objective
from sepo_jax.policy import Policy
from sepo_jax.rollout import play
from sepo_jax.training.batches import BatchMaker
from sepo_jax.training.parallel import Parallel
from sepo_jax.training.settings import ParallelSettings, Settings, read_settings
from sepo_jax.training.update import init_state, make_optimizer, make_update

PHASES = ("generate", "score", "update")
COUNTS = ("new tokens", "prefilled", "in scores and update")
COLUMNS = ["growing", "size", "side", *COUNTS, *(f"{phase} s" for phase in PHASES), "step s"]
LESS, GROWTH = "times less", "{} to {}"
_KL, _RATE = 0.04, 1e-6
_ROW_STEP = 16  # rows are as long as a multiple of this: sizes that differ little compile once
_STEPS = 10_000  # of a constant learning rate


def settings_of(row_length: int) -> Settings:
    """Settings of an update with rows of at most so many tokens."""
    return read_settings({"rollout": {"row_length": row_length}})


class Trainer:
    """A policy and its reference, and updates by one algorithm in one layout of devices.

    Attributes:
      params: of the reference, which generates, too: a step is as long under any parameters.
    """

    def __init__(
        self, policy: Policy, params: Any, algorithm: str, parallel: ParallelSettings | None = None
    ):
        self.policy, self.params = policy, params
        objective = make_objective(algorithm, policy, kl_weight=_KL)
        self.algorithm = objective.algorithm
        optimizer = make_optimizer(read_settings({}).optimizer, _RATE, 0, _STEPS, _RATE)
        self.parallel = Parallel(parallel or ParallelSettings("single"))
        make = partial(make_update, optimizer=optimizer)
        self._update = self.parallel.compile_update(make, objective)
        self._state = self.parallel.place(init_state(params, optimizer))

    def maker(self, row_length: int) -> BatchMaker:
        """What packs and scores forests for the updates."""
        settings = settings_of(row_length)
        return BatchMaker(settings, self.policy, self.algorithm, self.parallel.num_devices)

    def update(self, batch: Any) -> None:
        """One update, done when this returns."""
        self._state, metrics = self._update(self._state, {}, batch)
        jax.block_until_ready((self._state, metrics))


@dataclasses.dataclass(frozen=True)
class Measured:
    """Tokens of a step in the order of `COUNTS`, and its seconds in the order of `PHASES`; None for
    what is not done."""

    counts: tuple[int | None, ...]
    seconds: tuple[float | None, ...]

    @property
    def cells(self) -> list[Any]:
        """Of a row, from the counts on."""
        return [*self.counts, *self.seconds, sum(filter(None, self.seconds))]


class Step:
    """A training step of one shape and side: call it for the next one."""

    def __init__(self, trainer: Trainer, shape: Shape, side: str, seed: int):
        self.trainer, self.shape, self.side, self.seed = trainer, shape, side, seed
        self._maker: BatchMaker | None = None
        self._taken = 0

    def __call__(self) -> Measured:
        """Generates, scores and updates."""
        trainer, shape = self.trainer, self.shape
        requests = shape.requests(self.side, trainer.policy.config.vocab_size)
        self._taken += 1

        def generate():
            return play(
                trainer.policy,
                trainer.params,
                requests,
                TokenEnvironment,
                shape.options(),
                seed=self.seed,
                step=self._taken,
                follow_ups=shape.follow_ups if self.side == SHARED else None,
            )

        generated, rollout = timed(generate)
        figures = rollout.statistics
        counts = (figures["sampled_tokens"], figures["prefilled_tokens"])
        if not shape.algorithm:
            return Measured((*counts, None), (generated, None, None))
        scored, batch = timed(lambda: self._score(rollout.forest()))
        updated, _ = timed(lambda: trainer.update(batch))
        computed = int((np.asarray(batch.column_index) >= 0).sum())
        return Measured((*counts, computed), (generated, scored, updated))

    def _score(self, forest: Forest):
        if self._maker is None:
            self._maker = self.trainer.maker(row_length(forest, self.side))
        return self._maker.make(forest, self.trainer.params, self.trainer.params)[0]


def row_length(forest: Forest, side: str) -> int:
    """Tokens of a row: the whole tree where it is shared, else a trajectory; rounded up."""
    paths = forest.starts() + forest.lengths()
    tokens = forest.num_tokens if side == SHARED else int(paths.max())
    return -(-tokens // _ROW_STEP) * _ROW_STEP


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds of a piece of work, and what it returns."""
    begin = time.perf_counter()
    result = work()
    return time.perf_counter() - begin, result


def medians(taken: list[Measured]) -> Measured:
    """Of the seconds; the counts, which must be the same every time.

    Raises:
      RuntimeError: they are not.
    """
    counts = {measured.counts for measured in taken}
    if len(counts) > 1:
        raise RuntimeError(f"one shape has computed other numbers of tokens: {sorted(counts)}")
    columns = zip(*(measured.seconds for measured in taken), strict=True)
    seconds = (None if None in column else statistics.median(column) for column in columns)
    return Measured(counts.pop(), tuple(seconds))


def compete(
    trainers: Mapping[str, Trainer],
    shape: Shape,
    repetitions: int,
    seed: int,
    progress: Callable[[], Any],
) -> dict[str, Measured]:
    """Both sides in turn and so often after a rehearsal, which compiles everything."""
    trainer = trainers[shape.algorithm or "grpo"]
    steps = {side: Step(trainer, shape, side, seed) for side in (SHARED, SEPARATE)}
    taken: dict[str, list[Measured]] = {side: [] for side in steps}
    for number in range(-1, repetitions):
        for side in list(steps)[:: -1 if number % 2 else 1]:
            measured = steps[side]()
            if number >= 0:
                taken[side].append(measured)
            progress()
    return {side: medians(made) for side, made in taken.items()}


def growth_rows(axis: Axis, found: Mapping[int, Mapping[str, Measured]]) -> list[list]:
    """Rows of what was measured by size and side: a row a side and how many times less sharing
    takes; then, where a larger size is more work, what the largest takes beyond the smallest."""
    rows = []
    for size, sides in found.items():
        rows += side_rows(axis.name, size, {side: each.cells for side, each in sides.items()})
    if axis.adds and len(found) > 1:
        least, most = min(found), max(found)
        more = {
            side: [
                high - low
                for high, low in zip(found[most][side].cells, found[least][side].cells, strict=True)
            ]
            for side in found[most]
        }
        rows += side_rows(axis.name, GROWTH.format(least, most), more)
    return rows


def side_rows(name: str, size: Any, cells: Mapping[str, list]) -> list[list]:
    """A row a side, and how many times less sharing takes of what it takes any of."""
    times = [
        separate / shared if shared is not None and shared > 0 else None
        for shared, separate in zip(cells[SHARED], cells[SEPARATE], strict=True)
    ]
    return [
        *([name, size, side, *each] for side, each in cells.items()),
        [name, size, LESS, *times],
    ]
