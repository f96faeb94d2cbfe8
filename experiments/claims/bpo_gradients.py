"""How much gradients of batches differ at matched environment steps, on trees and on independent
episodes: of a tabular policy, and of a language policy in the same corridor."""

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import chex
import jax
import numpy as np
from tqdm import tqdm

from sepo_jax.algorithms import Algorithm, get_algorithm
from sepo_jax.evaluation.branching_trees import at_depths
from sepo_jax.evaluation.claims import Finding
from sepo_jax.evaluation.results import source_commit
from sepo_jax.forest import Forest, batch_sizes
from sepo_jax.objective import make_objective
from sepo_jax.policy import Policy, load
from sepo_jax.rollout import Branching, build_forest, play_branching
from sepo_jax.sandbox.environments import domain_environments
from sepo_jax.sandbox.episodes import EpisodeRequest
from sepo_jax.training import Settings, read_settings
from sepo_jax.training.batches import SIZE_NAMES, BatchMaker, packing_of
from sepo_jax.training.command_line import load_config
from sepo_jax.training.sepo_stage import training_sampling
from sepo_jax.training.setup import engine_options, make_domain

from .base import Measured, Panel, mean_of
from .bpo_estimates import (
    PAPER,
    TREE,
    Arm,
    Batches,
    noise,
    norm_variance,
    ratio_of,
    relative_norm_variance,
    variance,
)
from .bpo_variance import Sampler, corridor_of
from .runs import ROOT, Runs
from .sampled import flat_gradient

CONFIG = ROOT / "configs" / "bpo" / "corridor.py"
LENGTH, SHARE = 8, 0.9  # of Var(R) that the door explains under uniform play
HALF = 0.5  # published: "halves gradient-norm variance"
PUBLISHED, OWN = "as published", "tree credit"
BASELINES = ("GRPO", "RLOO")
# A token's loss, averaged over the tokens of a path, as that of GRPO: the same unit for all.
RLOO = get_algorithm("rloo", ratio="token")
# Prompts of a batch: about as many decisions each, 1,024 of the tabular policy.
TABULAR: dict[str, tuple[Arm, int]] = {
    PUBLISHED: (Arm(PAPER, 1, 4, at_depths(1, 4)), 25),  # 8 + 3 x 7 + 3 x 4 decisions a prompt
    OWN: (Arm(dataclasses.replace(TREE, reduce="token_mean"), 2, 4, at_depths(1)), 18),  # 58
    "GRPO": (Arm(get_algorithm("grpo"), 8), 16),  # 64
    "RLOO": (Arm(RLOO, 8), 16),
}
TABULAR_BATCHES, LANGUAGE_BATCHES, SANDBOX_BATCHES = 150, 48, 24
SANDBOXES = ("webshop", "alfworld", "repository")


class Played(NamedTuple):
    """How the episodes of a language policy's batches are played, and compared.

    Attributes:
      row: of the table of algorithms. branching: of every prompt.
      prompts: that are played for a batch; how many it has is what matches GRPO's steps.
    """

    row: Algorithm
    branching: Branching
    prompts: int


LANGUAGE: dict[str, Played] = {
    PUBLISHED: Played(PAPER, Branching(2, 4, "entropy", spacing=16), 6),
    OWN: Played(get_algorithm("bpo"), Branching(1, 4, "uniform", 0, trees_per_prompt=2), 4),
    "GRPO": Played(get_algorithm("grpo"), Branching(0, trees_per_prompt=8), 3),
    "RLOO": Played(RLOO, Branching(0, trees_per_prompt=8), 3),
}


class Gradients(NamedTuple):
    """Batch gradients of one arm.

    Attributes:
      batches: their spread.
      steps: mean environment steps of a batch. tokens: that the policy computed.
    """

    batches: Batches
    steps: float
    tokens: float


# ---- the tabular policy


def tabular_gradients(count: int) -> dict[str, Gradients]:
    """Arm of `TABULAR` -> `count` batch gradients of uniform play in the corridor."""
    process, found = corridor_of(LENGTH, SHARE), {}
    for label, (arm, prompts) in TABULAR.items():
        sampler = Sampler(process, process.uniform_policy(), count * prompts)
        single = sampler.gradients(arm.row, arm.design)
        means = single.reshape(count, prompts, -1).mean(axis=1)
        steps = prompts * sampler.steps(arm.design)
        found[label] = Gradients(Batches.of(means, sampler.exact.gradient), steps, steps)
    return found


# ---- the language policy


def language_settings(quick: bool, seed: int) -> Settings:
    """The run of `configs/bpo/corridor.py` without reinforcement learning, in a corridor of one
    door; its expert draws words at random, so imitation teaches the form of replies alone and play
    is uniform, as the shares of variance suppose."""
    config = load_config(f"{CONFIG}:runlocal" if quick else str(CONFIG))
    config.name, config.seed = "claim_bpo_corridor", seed
    options = {"length": LENGTH, "early": 1, "keys": 2, "prefix_share": SHARE}
    config.domain.options = options | {"expert_skill": 0.0}
    config.rl.steps, config.evaluation.tasks = 0, 2
    config.rollout.slots = 64
    return read_settings(config)


class Episodes(NamedTuple):
    """What was played under one arm.

    Attributes:
      by_prompt: results of each prompt. steps: environment steps of each, those before a fork once.
      tokens: that the policy computed for a prompt, on average.
    """

    by_prompt: list[list[Any]]
    steps: np.ndarray
    tokens: float

    def batches(self, prompts: int, count: int) -> list[Forest]:
        """At most `count` forests of so many prompts."""
        count = min(count, len(self.by_prompt) // prompts)
        shares = (self.by_prompt[prompts * n : prompts * (n + 1)] for n in range(count))
        return [build_forest([*itertools.chain(*share)]) for share in shares]


def language_gradients(
    settings: Settings, policy: Policy, params: chex.ArrayTree, count: int, progress: bool = False
) -> dict[str, Gradients]:
    """Arm of `LANGUAGE` -> at most `count` batch gradients by all parameters of a policy that plays
    the domain of `settings`; every batch has tasks of its own and about as many environment steps
    as one of GRPO, and arms that play alike share their episodes."""
    domain = make_domain(settings.domain)
    found, played = {}, {}
    for arm in LANGUAGE.values():
        how = (arm.branching, arm.prompts)
        if how not in played:
            played[how] = _play(settings, domain, policy, params, arm, count)
    grpo = LANGUAGE["GRPO"]
    target = grpo.prompts * played[grpo.branching, grpo.prompts].steps.mean()
    for label, arm in LANGUAGE.items():
        episodes = played[arm.branching, arm.prompts]
        prompts = max(round(target / episodes.steps.mean()), 1)
        batches = episodes.batches(prompts, count)
        objective = make_objective(arm.row, policy, temperature=settings.rollout.temperature)
        maker = BatchMaker(settings, policy, arm.row, num_devices=1)
        maker.sizes = _largest_sizes(settings, policy, batches)
        gradients = []
        for forest in tqdm(batches, desc=label, disable=not progress):
            batch = jax.tree.map(lambda leaf: leaf[0, 0], maker.make(forest, params)[0])
            gradients.append(np.asarray(flat_gradient(objective, params, batch)))
        steps = prompts * float(episodes.steps.mean())
        found[label] = Gradients(Batches.of(np.array(gradients)), steps, prompts * episodes.tokens)
    return found


def _play(
    settings: Settings, domain: Any, policy: Policy, params: chex.ArrayTree, arm: Played, count: int
) -> Episodes:
    tasks = domain.training_tasks(count * arm.prompts, settings.seed)
    rollout = play_branching(
        policy,
        params,
        [EpisodeRequest(task, seed=number, group=number) for number, task in enumerate(tasks)],
        domain_environments(domain),
        engine_options(settings, training_sampling(settings)),
        arm.branching,
        seed=settings.seed,
    )
    by_prompt: list[list[Any]] = [[] for _ in tasks]
    for result in rollout.results:
        by_prompt[result.request.group].append(result)
    steps = np.array([build_forest(results).is_action.sum() for results in by_prompt])
    statistics = rollout.statistics
    tokens = statistics["prefilled_tokens"] + statistics["sampled_tokens"]
    return Episodes(by_prompt, steps, tokens / len(tasks))


def _largest_sizes(settings: Settings, policy: Policy, forests: Sequence[Forest]) -> np.ndarray:
    """Sizes that every batch fits: all of an arm share a compilation."""
    pack = packing_of(policy)
    sizes = [
        batch_sizes(pack(each, row_length=settings.rollout.row_length, parts=1)) for each in forests
    ]
    return np.array([max(size[name] for size in sizes) for name in SIZE_NAMES], np.int32)


# ---- the claim


def gradient_variance(bench: Runs) -> Measured:
    """Spread of batch gradients on trees by that on independent episodes, in the corridor whose
    door explains nine tenths of the return's variance, at matched environment steps.

    Published: gradient-norm variance halved against GRPO and RLOO. Three things go by that name:
    "raw norm" is Var |g| as a log shows it, in the unit of the estimate, which is small where
    advantages are (GRPO divides them by their spread; siblings below the door have little of it
    left); "norm" is Var |g| / (E |g|)², free of the unit; "gradient" is trace Cov(g), of the
    tabular policy scaled to the exact gradient (`noise`), of the language policy as it is. Decided
    by the first two of the paper's estimate: a variance that is halved is so in any unit. Tree
    credit, on two trees, is shown.

    Tabular: uniform play, a fork after the door, and for the paper's estimate another three
    decisions later. Language: a policy that has learned the form of replies alone plays, and the
    package's objective is differentiated by its parameters; forks lie where entropy is highest for
    the paper's estimate, anywhere for tree credit.
    """
    quick = bench.quick
    tabular = tabular_gradients(4 if quick else TABULAR_BATCHES)
    seed = 0 if bench.seeds is None else next(iter(bench.seeds))
    bench.note(source_commit(), [seed])
    settings = language_settings(quick, seed)
    run, _ = bench.finished(settings)
    count = 4 if quick else LANGUAGE_BATCHES
    language = language_gradients(settings, *load(run / "policy"), count, bench.progress)
    panels = [
        Panel(f"gradient norm, {name}", {a: each.batches.norms() for a, each in found.items()})
        for name, found in (("tabular", tabular), ("language policy", language))
    ]
    return Measured(variance_findings(tabular, language), panels)


def imitation_of(task: str, quick: bool, seed: int) -> Settings:
    """The run of a config of `configs/bpo/` without reinforcement learning."""
    config = load_config(f"{CONFIG.with_stem(task)}{':runlocal' if quick else ''}")
    config.name, config.seed = f"{config.name}_imitation", seed
    config.rl.steps, config.evaluation.tasks = 0, 2
    return read_settings(config)


def sandbox_gradient_variance(bench: Runs) -> Measured:
    """Spread of batch gradients on trees by that on independent episodes, as `gradient_variance`
    has it, of policies that have imitated the expert of the web shop, of household tasks and of
    repository repair.

    Published: gradient-norm variance halved against GRPO and RLOO. Decided by "raw norm" and
    "norm" of the paper's estimate. Batches have about as many environment steps as those of GRPO;
    what they come to is shown.
    """
    seed = 0 if bench.seeds is None else next(iter(bench.seeds))
    bench.note(source_commit(), [seed])
    findings, missing = [], ""
    for task in SANDBOXES:
        settings = imitation_of(task, bench.quick, seed)
        try:
            run, _ = bench.finished(settings)
        except ImportError as error:
            missing = f"{task} is not measured: {error}"
            continue
        count = 4 if bench.quick else SANDBOX_BATCHES
        found = language_gradients(settings, *load(run / "policy"), count, bench.progress)
        findings += arm_findings(task, found, variance)
    return Measured(findings, [], missing)


def variance_findings(
    tabular: Mapping[str, Gradients], language: Mapping[str, Gradients]
) -> list[Finding]:
    """Findings of `gradient_variance`: arm -> gradients of either policy."""
    findings = arm_findings("tabular", tabular, noise)
    findings += arm_findings("language", language, variance)
    return findings + [
        Finding(f"computed tokens a batch, {arm} / GRPO", _share(language, arm, "tokens"))
        for arm in (PUBLISHED, OWN)
    ]


def arm_findings(
    name: str, found: Mapping[str, Gradients], whole: Callable[[Batches], float]
) -> list[Finding]:
    """Spread of the estimates on trees by that of the baselines, and their environment steps.

    Args:
      name: of the policy or the sandbox.
      found: arm -> gradients. whole: spread of a whole gradient.
    """
    findings = []
    for arm, baseline in _pairs((PUBLISHED, OWN), BASELINES):
        batches = found[arm].batches, found[baseline].batches
        label = f"{arm} / {baseline}, {name}"
        side = "below" if arm == PUBLISHED else "shown"
        relative = ratio_of(*batches, relative_norm_variance)
        findings += [
            Finding(f"raw norm, {label}", ratio_of(*batches, norm_variance), side, HALF),
            Finding(f"norm, {label}", relative, side, HALF),
            Finding(f"gradient, {label}", ratio_of(*batches, whole)),
        ]
    return findings + [
        Finding(f"steps a batch, {arm} / GRPO, {name}", _share(found, arm, "steps"))
        for arm in (PUBLISHED, OWN)
    ]


def _pairs(first: Sequence[str], second: Sequence[str]) -> list[tuple[str, str]]:
    return [(one, other) for one in first for other in second]


def _share(found: Mapping[str, Gradients], arm: str, what: str):
    return mean_of([getattr(found[arm], what) / getattr(found["GRPO"], what)])
