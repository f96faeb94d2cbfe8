"""Which decisions of a trunk are forked: noise and bias of the gradient by what chooses them."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from tqdm import tqdm

from sepo_jax.domains.decision_process import DecisionProcess, exact
from sepo_jax.evaluation.branching_theory import bias, gradients, moments
from sepo_jax.evaluation.branching_trees import (
    Design,
    Group,
    Selector,
    at_depths,
    enumerate_groups,
)
from sepo_jax.evaluation.claims import Finding
from sepo_jax.evaluation.results import source_commit
from sepo_jax.evaluation.statistics import seed_interval
from sepo_jax.rollout.branching import Branching, choose

from .base import Measured, Panel
from .bpo_estimates import PAPER, TREE, geometric_interval, ratios, seeds_for
from .bpo_variance import Sampler, corridor_of
from .runs import Runs

SELECTORS = ("entropy", "uniform", "lowest", "threshold")
ABLATED = ("uniform", "lowest")  # that the paper compares with
SHARE = 0.5  # of Var(R) that the door explains under uniform play
THRESHOLD = 0.5  # nats; of two actions the most is 0.69
LENGTH, CONTINUATIONS, PROMPTS = 8, 4, 300
SHORT = 3  # decisions of the corridor in which every outcome of two trees is enumerated
# Row and trees of a prompt of each estimate.
ESTIMATES = {"as published": (PAPER, 1), "tree credit": (TREE, 2)}


def random_policy(process: DecisionProcess, seed: int) -> np.ndarray:
    """Standard normal logits: a policy that is sure at some observations and not at others."""
    logits = np.random.default_rng(seed).normal(size=process.legal.shape)
    return process.softmax_policy(logits)


def one_point(selector: str, seed: int) -> Selector:
    """The rollouts' own choice of a single branch point, with any distance allowed."""
    branching = Branching(1, CONTINUATIONS, selector, spacing=0, threshold=THRESHOLD)
    generator = np.random.default_rng(seed)

    def select(entropies: Sequence[float]) -> list[int]:
        found = choose(branching, np.array(entropies), np.arange(len(entropies)), generator)
        return found.tolist()

    return select


def sampled_noise(seed: int, prompts: int) -> dict[str, dict[str, tuple[float, float]]]:
    """Estimate -> selector -> noise of the whole gradient of a random policy in the corridor, and
    decisions a prompt takes."""
    process = corridor_of(LENGTH, SHARE)
    sampler = Sampler(process, random_policy(process, seed), prompts)
    everywhere = np.arange(len(process.legal))
    found: dict[str, dict[str, tuple[float, float]]] = {}
    for label, (row, trees) in ESTIMATES.items():
        for selector in SELECTORS:
            design = Design(trees, CONTINUATIONS, one_point(selector, seed))
            (noise,) = sampler.noise(row, design, 1, everywhere)
            found.setdefault(label, {})[selector] = (noise, sampler.steps(design))
    return found


def two_trees(
    process: DecisionProcess, policy: np.ndarray, choices: Sequence[Selector]
) -> list[Group]:
    """Every outcome of two trees of two continuations, each of which draws one of the choices."""
    trees = [
        (group.chance / len(choices), group.trees[0])
        for select in choices
        for group in enumerate_groups(process, policy, Design(1, 2, select))
    ]
    return [
        Group((1 if first == second else 2) * one * other, (tree, its))
        for first, (one, tree) in enumerate(trees)
        for second, (other, its) in enumerate(trees)
        if first <= second
    ]


def enumerated_bias(seed: int) -> dict[str, float]:
    """Selector -> relative bias of tree credit of two trees for a random policy in a corridor of
    three decisions. "uniform" draws one of the first two, the last being no candidate."""
    process = corridor_of(SHORT, SHARE)
    policy = random_policy(process, seed)
    gradient = exact(process, policy).gradient
    found = {}
    for selector in SELECTORS:
        each = [at_depths(depth) for depth in range(SHORT - 1)]
        choices = each if selector == "uniform" else [one_point(selector, seed)]
        groups = two_trees(process, policy, choices)
        mean = moments(groups, gradients(TREE, process, policy, groups)).mean
        found[selector] = bias(mean, gradient).relative
    return found


def selectors(bench: Runs) -> Measured:
    """Noise of the whole gradient by what chooses the branch point, one of four leaves a tree, at
    five random policies in the corridor; and the bias that a choice with knowledge of what came
    after it brings, by enumeration.

    Published: of entropy, uniform and lowest entropy the first is best (no number was found).
    Decided by the noise (`scaled_noise`) of the paper's own estimate with entropy by that with
    each of the others. "threshold" forks the first decision above 0.5 nats and does not look
    ahead; nor does "uniform" where episodes are equally long.
    """
    seeds = seeds_for(bench)
    prompts = 20 if bench.quick else PROMPTS
    noises = [
        sampled_noise(seed, prompts)
        for seed in tqdm(seeds, desc="noise", disable=not bench.progress)
    ]
    biases = [
        enumerated_bias(seed) for seed in tqdm(seeds, desc="bias", disable=not bench.progress)
    ]
    bench.note(source_commit(), seeds)

    def values(label: str, part: Callable[[tuple[float, float]], float]) -> dict[str, list[float]]:
        return {s: [part(each[label][s]) for each in noises] for s in SELECTORS}

    noise = {label: values(label, lambda pair: pair[0]) for label in ESTIMATES}
    per_step = {label: values(label, lambda pair: pair[0] * pair[1]) for label in ESTIMATES}
    off = {selector: [each[selector] for each in biases] for selector in SELECTORS}
    panels = [
        *(Panel(f"noise of the gradient, {label}", noise[label]) for label in ESTIMATES),
        Panel("relative bias, tree credit, enumerated", off, 0.0),
    ]
    return Measured(selector_findings(noise, per_step, off), panels)


def selector_findings(
    noise: Mapping[str, Mapping[str, Sequence[float]]],
    per_step: Mapping[str, Mapping[str, Sequence[float]]],
    off: Mapping[str, Sequence[float]],
) -> list[Finding]:
    """Findings of `selectors`.

    Args:
      noise: estimate of `ESTIMATES` -> selector -> noise for each seed, at equal leaves.
      per_step: the same times the steps of a prompt. off: selector -> relative bias for each seed.
    """
    findings = []
    for label in ESTIMATES:
        for other in SELECTORS[1:]:
            decides = label == "as published" and other in ABLATED
            found = geometric_interval(ratios(noise[label]["entropy"], noise[label][other]))
            name = f"noise, entropy / {other}, {label}"
            findings.append(Finding(name, found, "below" if decides else "shown", 1.0))
    for other in SELECTORS[1:]:
        pair = (per_step["as published"][each] for each in ("entropy", other))
        name = f"at matched steps, entropy / {other}, as published"
        findings.append(Finding(name, geometric_interval(ratios(*pair))))
    return [
        *findings,
        *(Finding(f"relative bias, {name}", seed_interval(each)) for name, each in off.items()),
    ]
