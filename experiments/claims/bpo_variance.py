"""How noisy BPO's gradient is in the corridor, and what chooses its branch points: sampled play of
tabular policies, estimates by the package's own credit and objective."""

import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from sepo_jax.domains.corridor import Corridor
from sepo_jax.domains.decision_process import DecisionProcess, exact
from sepo_jax.evaluation.branching_examples import start_observations
from sepo_jax.evaluation.branching_theory import ESTIMATORS, gradients, predicted_ratio
from sepo_jax.evaluation.branching_trees import Design, at_depths, sample_groups
from sepo_jax.evaluation.claims import Finding
from sepo_jax.evaluation.results import source_commit

from .base import Measured, Panel, mean_of
from .bpo_estimates import (
    PAPER,
    TREE,
    by_seed,
    geometric_interval,
    ratios,
    scaled_noise,
    seeds_for,
)
from .bpo_exact import advantage_factors
from .runs import Runs

LENGTH = 6
SHARES = (0.2, 0.5, 0.9)  # of Var(R) that the door explains
CONTINUATIONS = (2, 4)
BRANCH_POINTS = (1, 2, 3)  # the decisions right after the door
PROMPTS = 200  # of each seed and cell
SAMPLE = 17  # seed of what is drawn
BASELINES = ("rloo", "grpo")


class Cell(NamedTuple):
    """Noise of branching and of independent samples in one corridor at as many leaves.

    Attributes:
      predicted: ratio of the variances of advantages, of BPO and of independent samples.
      branching: noise for each seed. independent: baseline -> noise for each seed.
      steps: decisions that a prompt takes, of branching by that of independent samples.
    """

    predicted: float
    branching: Sequence[float]
    independent: Mapping[str, Sequence[float]]
    steps: float

    def ratio(self, baseline: str, *, matched: str) -> list[float]:
        """Branching by the baseline for each seed, at matched "leaves" or "steps"."""
        factor = self.steps if matched == "steps" else 1.0
        return [factor * each for each in ratios(self.branching, self.independent[baseline])]


def corridor_of(length: int, prefix_share: float) -> DecisionProcess:
    """A corridor of one door and `length` - 1 forks without luck, as a table."""
    domain = Corridor(length=length, prefix_share=prefix_share)
    return domain.process(domain.training_tasks(1, 0)[0])


class Sampler:
    """Gradients of single prompts in one process, [seeds x prompts, O, A]; each drawn once."""

    def __init__(self, process: DecisionProcess, policy: np.ndarray, count: int):
        self.process, self.policy, self.count = process, policy, count
        self.exact = exact(process, policy)
        self._groups = functools.cache(self._sample)
        self.gradients = functools.cache(self._estimate)

    def _sample(self, design: Design):
        return sample_groups(self.process, self.policy, design, self.count, SAMPLE)

    def _estimate(self, row, design: Design) -> np.ndarray:
        return gradients(row, self.process, self.policy, self._groups(design))

    def steps(self, design: Design) -> float:
        """Mean decisions of a prompt."""
        return float(np.mean([group.steps() for group in self._groups(design)]))

    def noise(self, row, design: Design, seeds: int, keep: np.ndarray) -> list[float]:
        """`scaled_noise` for each seed of the part of the gradient at some observations."""
        found, gradient = self.gradients(row, design)[:, keep], self.exact.gradient[keep]
        return [scaled_noise(each, gradient) for each in by_seed(found, seeds)]


def measured_grid(
    cells: Sequence[tuple[float, int, int]], seeds: int, prompts: int, progress: bool
) -> dict[str, dict[str, Cell]]:
    """Part of the gradient, "local" or "whole" -> "share, K, M" -> its cell.

    Local: the paper's estimate on one tree of N leaves, at the decisions from the fork on, beside N
    samples. Whole: tree credit of two such trees, beside 2 N samples. Play is uniform, where shares
    of variance are those of the corridor's options.

    Args:
      cells: (share that the door explains, K, M). seeds, prompts: of each, and how many.
    """
    grid: dict[str, dict[str, Cell]] = {"local": {}, "whole": {}}
    samplers = {}
    for share, continuations, points in tqdm(cells, desc="grid", disable=not progress):
        if share not in samplers:
            process = corridor_of(LENGTH, share)
            samplers[share] = Sampler(process, process.uniform_policy(), seeds * prompts)
        sampler = samplers[share]
        everywhere = np.arange(len(sampler.policy))
        below = np.setdiff1d(everywhere, start_observations(sampler.process))
        leaves = 1 + points * (continuations - 1)
        select = _after_the_door(points)
        name = f"{share:.0%}, K = {continuations}, M = {points}"
        for part, row, trees, keep in (("local", PAPER, 1, below), ("whole", TREE, 2, everywhere)):
            design, samples = Design(trees, continuations, select), Design(trees * leaves)
            grid[part][name] = Cell(
                predicted_ratio(sampler.exact, 1, continuations, trees * leaves),
                sampler.noise(row, design, seeds, keep),
                {b: sampler.noise(ESTIMATORS[b], samples, seeds, keep) for b in BASELINES},
                sampler.steps(design) / sampler.steps(samples),
            )
    return grid


@functools.cache
def _after_the_door(points: int):
    return at_depths(*range(1, 1 + points))


def variance_condition(bench: Runs) -> Measured:
    """Variance of the gradient on trees by that of independent samples, over a grid of K, M and the
    share of variance that the prefix explains, beside the predicted ratio.

    Published (theorem 4.3): the variance is at most K / (K - 1) E[Var(R | s_t)] and strictly below
    GRPO's for t > 0. The factor is that of a single advantage, and is exact. A gradient averages
    over advantages: siblings share their state, so it has the variance between states too, which
    the prediction EVar / Var < (N / (N - 1)) / (K / (K - 1)) leaves out. Measured is the noise of
    the gradient (`scaled_noise`) at the decisions from the fork on, of the paper's estimate by
    that of RLOO and GRPO; decided by the largest ratio to GRPO's at matched leaves. Policy tokens
    are one a decision here, as environment steps are where snapshots save the prefix: one figure
    stands for both. Where a sandbox replays instead, steps are as many as those of whole episodes:
    the figure at matched leaves. The whole gradient, of tree credit on two trees, is shown.
    """
    seeds = seeds_for(bench)
    cells = [*itertools.product(SHARES, CONTINUATIONS, BRANCH_POINTS)]
    cells, prompts = (cells[:2], 8) if bench.quick else (cells, PROMPTS)
    grid = measured_grid(cells, len(seeds), prompts, bench.progress)
    bench.note(source_commit(), seeds)
    factors = advantage_factors((2,) if bench.quick else (2, 3, 4))
    panels = [
        Panel(
            f"{part} noise, BPO / {baseline.upper()}, matched {matched}",
            {name: cell.ratio(baseline, matched=matched) for name, cell in grid[part].items()},
            1.0,
        )
        for part, baseline, matched in (
            ("local", "grpo", "leaves"),
            ("local", "grpo", "steps"),
            ("whole", "grpo", "steps"),
        )
    ]
    predicted = {name: [cell.predicted] for name, cell in grid["local"].items()}
    panels.insert(0, Panel("predicted ratio", predicted, 1.0))
    return Measured(condition_findings(grid, factors), panels)


def condition_findings(
    grid: Mapping[str, Mapping[str, Cell]], factors: Mapping[str, float]
) -> list[Finding]:
    """Findings of `variance_condition` from `measured_grid` and `advantage_factors`."""
    findings = []
    for baseline, matched in itertools.product(("grpo", "rloo"), ("leaves", "steps")):
        intervals = {
            name: geometric_interval(cell.ratio(baseline, matched=matched))
            for name, cell in grid["local"].items()
        }
        most = max(intervals, key=lambda name: intervals[name].mean)
        side = "below" if (baseline, matched) == ("grpo", "leaves") else "shown"
        least = min(intervals.values(), key=lambda interval: interval.mean)
        name = f"local noise / {baseline.upper()}, matched {matched}"
        findings += [
            Finding(f"largest {name} ({most})", intervals[most], side, 1.0),
            Finding(f"least {name}", least),
        ]
    for part, baseline, matched in itertools.product(grid, BASELINES, ("leaves", "steps")):
        share = agreement(grid[part].values(), baseline, matched)
        name = f"{part}, {baseline.upper()}, {matched}"
        findings.append(Finding(f"share of the grid as predicted: {name}", mean_of([share])))
    off = max(abs(factor - 1) for factor in factors.values())
    return [
        *findings,
        Finding("largest deviation of E[A²] from K / (K - 1) EVar, relative", mean_of([off])),
    ]


def agreement(cells: Sequence[Cell], baseline: str, matched: str) -> float:
    """Share of cells whose mean measured ratio lies on the predicted side of 1."""
    agree = [
        (geometric_interval(cell.ratio(baseline, matched=matched)).mean < 1) == (cell.predicted < 1)
        for cell in cells
    ]
    return float(np.mean(agree))
