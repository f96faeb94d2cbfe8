"""What estimates of BPO's gradient come to on average: every outcome enumerated."""

from collections.abc import Mapping, Sequence

import numpy as np

from sepo_jax.domains.decision_process import exact
from sepo_jax.evaluation.branching_examples import EXAMPLES, start_observations
from sepo_jax.evaluation.branching_theory import (
    ESTIMATORS,
    Bias,
    advantages,
    bias,
    gradients,
    moments,
)
from sepo_jax.evaluation.branching_trees import at_depths, enumerate_groups
from sepo_jax.evaluation.claims import Finding
from sepo_jax.evaluation.results import source_commit

from .base import Measured, Panel, mean_of
from .bpo_estimates import PAPER, TREE, Arm
from .runs import Runs

ROUNDING = 1e-9  # of expectations whose terms are binary fractions
SINGLE = 1e-5  # of credit in float32, relative
FORK = at_depths(1)
FIRST = (0, 1)  # logit of the second action at the start of the two-step process
# Four leaves each: two trees of two continuations, a tree of four, four samples.
PUBLISHED = "as published"
ESTIMATES: dict[str, Arm] = {
    "tree credit, 2 trees": Arm(TREE, 2, 2, FORK),
    "tree credit, 1 tree": Arm(TREE, 1, 4, FORK),
    PUBLISHED: Arm(PAPER, 1, 4, FORK),
    "lambda 0.95": Arm(ESTIMATORS["lambda"], 1, 4, FORK),
    "none": Arm(ESTIMATORS["none"], 1, 4, FORK),
    "VinePPO": Arm(ESTIMATORS["vineppo"], 2, 2, FORK),
    "Tree-GRPO": Arm(ESTIMATORS["tree_grpo"], 2, 2, FORK),
    "GiGPO": Arm(ESTIMATORS["gigpo"], 2, 2, FORK),
    "GRPO": Arm(ESTIMATORS["grpo"], 4),
    "RLOO": Arm(ESTIMATORS["rloo"], 4),
}


def expected_gradient(arm: Arm, name: str) -> np.ndarray:
    """Expectation of an estimate on an example, [O, A], over every outcome."""
    process, policy = EXAMPLES[name]
    groups = enumerate_groups(process, policy, arm.design)
    return moments(groups, gradients(arm.row, process, policy, groups)).mean


def local_unbiasedness(bench: Runs) -> Measured:
    """Siblings at a branch point against the exact gradient there, and tree credit of two trees
    against the whole gradient, on three processes.

    Published: the sibling-baseline advantage is unbiased (theorem 4.1), for other siblings do not
    depend on the chosen action, given the state. That says nothing of earlier decisions. In the
    two-step process of the examples the gradient by the first logit is 3/16; siblings compared at
    the second decision give it 0, and so does their advantage propagated to the prefix. Tree
    credit, of this package, compares trees too. Two continuations, a fork at the second decision.
    """
    bench.note(source_commit(), [])
    errors: dict[str, dict[str, float]] = {"local": {}, "whole": {}, "prefix": {}}
    first = {"exact": float(exact(*EXAMPLES["two_steps"]).gradient[FIRST])}
    for name, (process, policy) in EXAMPLES.items():
        gradient = exact(process, policy).gradient
        above = start_observations(process)
        below = np.setdiff1d(np.arange(len(gradient)), above)
        means = {
            label: expected_gradient(Arm(ESTIMATORS[label], 2, 2, FORK), name)
            for label in ("none", "lambda", "tree")
        }
        errors["local"][name] = float(np.abs(means["none"] - gradient)[below].max())
        errors["whole"][name] = float(np.abs(means["tree"] - gradient).max())
        errors["prefix"][name] = float(np.abs(means["lambda"])[above].max())
        if name == "two_steps":
            first |= {label: float(mean[FIRST]) for label, mean in means.items()}
    return Measured(
        unbiasedness_findings(errors, first),
        [
            Panel("largest error below the fork, siblings", _single(errors["local"]), 0.0),
            Panel("largest error, tree credit", _single(errors["whole"]), 0.0),
            Panel("two steps: gradient by the first logit", _single(first), first["exact"]),
        ],
    )


def unbiasedness_findings(
    errors: Mapping[str, Mapping[str, float]], first: Mapping[str, float]
) -> list[Finding]:
    """Findings of `local_unbiasedness`.

    Args:
      errors: "local" of siblings below the fork, "whole" of tree credit, and "prefix", the largest
        expectation of lambda credit above the fork; each example -> figure.
      first: estimate -> its expectation at the first logit of the two-step process.
    """
    largest = {part: mean_of([np.max([*each.values()])]) for part, each in errors.items()}
    found = {label: mean_of([value]) for label, value in first.items()}
    return [
        Finding("largest error of siblings below the fork", largest["local"], "below", ROUNDING),
        Finding("of tree credit, whole gradient", largest["whole"], "below", ROUNDING),
        Finding("largest expectation of lambda credit above the fork", largest["prefix"]),
        *(Finding(f"two steps, first logit, {label}", each) for label, each in found.items()),
    ]


def estimator_bias(bench: Runs) -> Measured:
    """Bias of the whole gradient of every estimate at four leaves, on three processes.

    Published: unbiased. Decided by the paper's own estimate, one tree with lambda credit and no
    correction for forked states: its largest |E g - grad| / |grad|. Estimates that divide by a
    spread or average over tokens have another length by design, so beside it stands the part that
    no scale explains, the sine of the angle to the exact gradient. Of tree credit one tree is
    biased, for nothing is compared with its trunk, and two are not.
    """
    bench.note(source_commit(), [])
    exact_of = {name: exact(*example).gradient for name, example in EXAMPLES.items()}
    found = {
        label: [bias(expected_gradient(arm, name), exact_of[name]) for name in EXAMPLES]
        for label, arm in ESTIMATES.items()
    }
    panels = [
        Panel(title, {label: [getattr(b, part) for b in each] for label, each in found.items()}, 0)
        for title, part in (
            ("|E g - grad| / |grad|", "relative"),
            ("sine of the angle", "direction"),
        )
    ]
    return Measured(bias_findings(found), panels)


def bias_findings(found: Mapping[str, Sequence[Bias]]) -> list[Finding]:
    """Findings of `estimator_bias`: estimate of `ESTIMATES` -> its bias on each example."""
    relative, angle = (
        {
            label: mean_of([np.max([getattr(b, part) for b in each])])
            for label, each in found.items()
        }
        for part in ("relative", "direction")
    )
    return [
        Finding(f"largest relative bias, {PUBLISHED}", relative[PUBLISHED], "below", SINGLE),
        *(Finding(label, each) for label, each in relative.items() if label != PUBLISHED),
        *(Finding(f"sine, {label}", each) for label, each in angle.items()),
    ]


def advantage_factors(continuations: Sequence[int]) -> dict[str, float]:
    """Example and K -> mean square of the trunk's advantage at the fork over its prediction
    K / (K - 1) E[Var(R | s_t)], by enumeration."""
    factors = {}
    for name, (process, policy) in EXAMPLES.items():
        within = exact(process, policy).within[1]
        for count in continuations:
            groups = enumerate_groups(process, policy, Arm(TREE, 1, count, FORK).design)
            paths = advantages(TREE, process, groups)
            square = sum(
                group.chance * float(path[0][1]) ** 2
                for group, path in zip(groups, paths, strict=True)
                if len(path) > 1
            )
            factors[f"{name}, K = {count}"] = square / (count / (count - 1) * within)
    return factors


def _single(values: Mapping[str, float]) -> dict[str, list[float]]:
    return {label: [value] for label, value in values.items()}
