"""What `benchmark_branching.py` measures: the same number of leaves, as trees and independently."""

import dataclasses
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import numpy as np
from branching_workloads import Workload

from sepo_jax.evaluation.results import source_commit, write_result
from sepo_jax.forest import Batch, Forest
from sepo_jax.objective import make_objective
from sepo_jax.policy import Policy
from sepo_jax.rollout import Branching, Rollout, play
from sepo_jax.sandbox.environments import domain_environments
from sepo_jax.sandbox.episodes import EpisodeRequest, EpisodeResult
from sepo_jax.training.batches import BatchMaker
from sepo_jax.training.settings import read_settings
from sepo_jax.training.update import init_state, make_optimizer, make_update

HERE = Path(__file__).resolve().parent
RESULT = HERE / "results" / "branching_speed.json"
BRANCHING, INDEPENDENT = "branching", "independent"
PER_LEAF = ("sampled", "prefilled", "distinct", "in the update", "environment steps")
COLUMNS = ["work", "side", "leaves", *(f"{name} a leaf" for name in PER_LEAF)]
COLUMNS += ["row length", "generate s", "update s"]
ROW_STEP = 64  # rows are as long as a multiple of this


def middle(turns: int, count: int) -> list[int]:
    """The `count` turns nearest to half of an episode, the earlier of two first; ascending."""
    return sorted(sorted(range(turns), key=lambda turn: abs(turn - turns / 2))[:count])


def forks(result: EpisodeResult, branching: Branching) -> list[EpisodeRequest]:
    """What goes on from the middle of a trunk; nothing from an episode that is a fork itself."""
    if result.request.past is not None or result.failure is not None:
        return []
    turns = middle(len(result.actions), branching.branch_points)
    repeated = [turn for turn in turns for _ in range(branching.continuations - 1)]
    return [result.continuation(turn, member + 1) for member, turn in enumerate(repeated)]


@dataclasses.dataclass(frozen=True, eq=False)
class Measured:
    """A side's work: figures by leaf in the order of `PER_LEAF`, and medians of seconds."""

    leaves: int
    per_leaf: tuple[float, ...]
    row_length: int
    generate: float
    update: float


class Updater:
    """Updates of BPO, each from the same parameters; compiled once for all shapes that repeat."""

    def __init__(self, policy: Policy, params: Any):
        objective = make_objective("bpo", policy)
        optimizer = make_optimizer(read_settings({}).optimizer, 1e-4, 0, 1000, 1e-4)
        self.policy, self.params, self.algorithm = policy, params, objective.algorithm
        self._state = init_state(params, optimizer)
        self._update = jax.jit(make_update(objective, optimizer))

    def __call__(self, batch: Batch) -> None:
        """Takes a batch [parts, B, ...] and waits until the update is done."""
        jax.block_until_ready(self._update(self._state, {}, batch))


class Side:
    """Generation and update of one way to get the leaves.

    Attributes:
      row_length: of the update, chosen by `rehearse`.
    """

    def __init__(
        self, update: Updater, workload: Workload, branching: Branching, grows: bool, seed: int
    ):
        """A side that branches, or one that plays as many independent episodes."""
        self.update, self.branching, self.grows, self.seed = update, branching, grows, seed
        self.options, self.parts = workload.options, workload.prompts
        self.environments = domain_environments(workload.domain)
        self.requests = [
            EpisodeRequest(task, group, group, member, keep_snapshots=grows)
            for group, task in enumerate(workload.domain.training_tasks(workload.prompts, seed))
            for member in range(1 if grows else branching.leaves)
        ]
        self.row_length = 0
        self._makers: dict[int, BatchMaker] = {}

    def generate(self) -> Rollout:
        """Plays all leaves."""

        def next_of(result: EpisodeResult) -> list[EpisodeRequest]:
            return forks(result, self.branching)

        return play(
            self.update.policy,
            self.update.params,
            self.requests,
            self.environments,
            self.options,
            seed=self.seed,
            follow_ups=next_of if self.grows else None,
        )

    def train(self, forest: Forest, row_length: int) -> int:
        """Credit, packing and one update; the tokens that it computed."""
        if row_length not in self._makers:
            settings = read_settings(
                {
                    "rollout": {"row_length": row_length},
                    "optimizer": {"micro_batches": self.parts},
                }
            )
            self._makers[row_length] = BatchMaker(
                settings, self.update.policy, self.update.algorithm, 1
            )
        batch, _ = self._makers[row_length].make(forest, self.update.params)
        self.update(jax.tree.map(lambda leaf: leaf[0], batch))
        return int((batch.column_index >= 0).sum())

    def rehearse(self, times: Sequence[int]) -> Measured:
        """Compiles everything, and chooses how long rows are: as long as so many of the longest
        path, longer ones as long as they are faster. Its seconds are those of a first try.

        Raises:
          RuntimeError: an episode did not end by itself, so that its length says nothing.
        """
        self.generate()
        generate, rollout = timed(self.generate)
        cut = {result.status for result in rollout.results} - {"finished"}
        if cut:
            raise RuntimeError(f"episodes ended as {sorted(cut)}: raise the workload's capacity")
        forest = rollout.forest()
        longest = int((forest.starts() + forest.lengths()).max())
        largest = np.bincount(forest.group, forest.lengths()).max()
        found = {}
        for factor in times:
            row_length = -(-factor * longest // ROW_STEP) * ROW_STEP
            self.train(forest, row_length)
            found[row_length] = timed(lambda row=row_length: self.train(forest, row))
            self.row_length = min(found, key=lambda row: found[row][0])
            # Longer rows would be slower still, or not be filled.
            if self.row_length != row_length or row_length >= largest:
                break
        update, tokens = found[self.row_length]
        figures, leaves = rollout.statistics, len(forest.leaves())
        totals = [figures["sampled_tokens"], figures["prefilled_tokens"]]
        totals += [forest.num_tokens, tokens, steps_of(rollout)]
        per_leaf = tuple(total / leaves for total in totals)
        return Measured(leaves, per_leaf, self.row_length, generate, update)


def steps_of(rollout: Rollout) -> int:
    """Steps that environments took: one for each action that an episode did not take over."""
    taken = (len(r.request.past.taken) if r.request.past else 0 for r in rollout.results)
    return sum(len(result.actions) for result in rollout.results) - sum(taken)


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds of a piece of work, and what it returns."""
    begin = time.perf_counter()
    result = work()
    return time.perf_counter() - begin, result


def compete(
    update: Updater,
    workload: Workload,
    branching: Branching,
    repetitions: int,
    row_factors: Sequence[int],
    seed: int,
    progress: Callable[[], Any],
) -> dict[str, Measured]:
    """Both sides at equal leaves, in turn and so often after a rehearsal.

    Raises:
      RuntimeError: they did not get the same number of leaves.
    """
    sides, found = {}, {}
    for name in (BRANCHING, INDEPENDENT):
        grows = name == BRANCHING
        sides[name] = Side(update, workload, branching, grows, seed)
        found[name] = sides[name].rehearse(row_factors)
        progress()
    if len({measured.leaves for measured in found.values()}) > 1:
        raise RuntimeError(f"{workload.title}: the sides have other numbers of leaves: {found}")
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    for number in range(repetitions):
        for name in list(sides)[:: -1 if number % 2 else 1]:
            side = sides[name]
            generate, rollout = timed(side.generate)
            forest = rollout.forest()
            spent, _ = timed(lambda s=side, f=forest: s.train(f, s.row_length))
            seconds[name].append((generate, spent))
            progress()
    for name, each in seconds.items():
        generate, spent = map(statistics.median, zip(*each, strict=True))
        found[name] = dataclasses.replace(found[name], generate=generate, update=spent)
    return found


def table_rows(title: str, found: Mapping[str, Measured]) -> list[list]:
    """A row a side, and how many times less of everything branching takes."""
    rows, costs = [], {}
    for side, measured in found.items():
        costs[side] = [*measured.per_leaf, measured.generate, measured.update]
        *per_leaf, generate, update = costs[side]
        rows.append(
            [title, side, measured.leaves, *per_leaf, measured.row_length, generate, update]
        )
    *per_leaf, generate, update = (
        theirs / ours for ours, theirs in zip(costs[BRANCHING], costs[INDEPENDENT], strict=True)
    )
    return [*rows, [title, "times less", None, *per_leaf, None, generate, update]]


NOTES = (
    "Trees have 1 + M (K - 1) leaves: at each of the M turns nearest to half of the trunk, K - 1 "
    "forks go on. Independent: as many episodes of the same {prompts} prompts, each from the "
    "beginning. Whatever is replied, an episode takes the way that its prompt fixes, so that all "
    "episodes of a prompt are shown the same and are equally long; replies end at {limits} "
    "tokens. Figures a leaf: tokens sampled; tokens of prompts and observations computed during "
    "generation, what is copied apart; distinct tokens, each once however many leaves share it; "
    "tokens computed in the update; steps of the environments. Rows of the update are as long as "
    "one, two or four of the longest episodes, whichever is fastest for the side. Seconds are "
    "those of all leaves, medians of {repetitions} repetitions, sides in turn: generation on "
    "{prompts} slots, with its snapshots; an update of BPO with credit and packing, a prompt at a"
    " time. Attention in a row costs the square of its length, of which a policy as small as this"
    " one has much: tiny, 4 layers of width 128, vocabulary 512, random weights, layers "
    "recomputed in the backward pass."
)


def write_table(rows: list, works: Sequence[Workload], repetitions: int, seed: int) -> Path:
    """Writes the table where README's renderer looks for it."""
    machine = f"{os.cpu_count()} CPU cores, JAX on {jax.devices()[0].platform}"
    limits = " and ".join(str(work.reply_tokens) for work in works)
    options = f"--repetitions={repetitions} --seed={seed}"
    result = {
        "title": "Branching rollouts beside independent ones at equal leaves",
        "command": f"python experiments/benchmark_branching.py {options} --write",
        "seeds": [seed],
        "commit": source_commit(),
        "versions": {name: version(name) for name in ("jax", "jaxlib", "numpy")}
        | {"hardware": machine},
        "columns": COLUMNS,
        "rows": rows,
        "notes": NOTES.format(prompts=works[0].prompts, limits=limits, repetitions=repetitions),
    }
    return write_result(RESULT, result)
