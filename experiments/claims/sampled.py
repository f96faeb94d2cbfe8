"""The penalties' part of a language policy's gradient, from many independent batches.

The gradient is linear in the rewards where advantages are not divided by a spread (rloo), so what
the penalties add to the rewards is trained on alone. A batch's gradient g has a mean over batches
and noise. Without bias,

    |E g|^2 = mean over pairs of different batches of <g, g'>,      share = |E g|^2 / mean |g|^2

so the share is 0 where only noise is left and 1 without noise. Its interval is the jackknife's.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from statistics import NormalDist
from typing import Any, NamedTuple

import chex
import jax
import numpy as np
from jax.flatten_util import ravel_pytree
from tqdm import tqdm

from sepo_jax.algorithms import get_algorithm
from sepo_jax.domains import IteratedPrisonersDilemma
from sepo_jax.evaluation.statistics import Interval
from sepo_jax.objective import Objective, make_objective
from sepo_jax.rollout import build_forest, play
from sepo_jax.sandbox.environments import domain_environments
from sepo_jax.sepo import (
    EpisodeArrays,
    SepoWeights,
    assign_rewards,
    from_episodes,
    from_results,
)
from sepo_jax.training import Settings
from sepo_jax.training.batches import BatchMaker
from sepo_jax.training.decisions import reward_decisions, samples_of_decisions
from sepo_jax.training.sepo_stage import training_sampling
from sepo_jax.training.setup import engine_options, make_policy
from sepo_jax.training.step_plan import StepPlan
from sepo_jax.training.tasks import make_tasks

from .base import Panel
from .bench import WARM_START, Bench

FREE = SepoWeights(0.0, 0.0, 0.0)
CHARGED = SepoWeights(2.4, 1.0, 0.0)  # the penalties that auxiliary episodes measure
EXTERNALITY = SepoWeights(0.0, 0.0, 1.8)
# Label -> arm whose episodes are played, credit of the rewards, penalties.
PARTS = {
    "shared: e, c": ("per_rollout", "shared", CHARGED),
    "per_rollout: e, c": ("per_rollout", "per_rollout", CHARGED),
    "per_rollout: x": ("per_rollout", "per_rollout", EXTERNALITY),
    "credited: e, c": ("credited", "credited", CHARGED),
}
BATCHES = 16  # of each seed


class Share(NamedTuple):
    """What part of gradients is systematic.

    Attributes:
      share: as in the module, with its standard error.
      ratio: norm of the mean gradient by its standard error; about 1 where the mean is 0.
      norm: root mean square norm of a gradient.
    """

    share: float
    error: float
    ratio: float
    norm: float


def systematic_share(gradients: Sequence[np.ndarray]) -> Share:
    """The share of n >= 3 independent gradients, with its jackknife error; 0 where all are 0."""
    vectors = np.asarray(gradients, np.float64)
    if vectors.ndim != 2 or len(vectors) < 3:
        raise ValueError(f"gradients must be [n, parameters] with n >= 3, not {vectors.shape}")
    gram = vectors @ vectors.T
    count, total, own = len(gram), gram.sum(), np.trace(gram)
    if own == 0:
        return Share(0.0, 0.0, 0.0, 0.0)

    def share(pairs, squares, n):
        return (pairs - squares) / (n * (n - 1)) / (squares / n)

    without = total - 2 * gram.sum(axis=1) + np.diag(gram)
    left = share(without, own - np.diag(gram), count - 1)
    error = np.sqrt((count - 1) / count * np.square(left - left.mean()).sum())
    noise = (own - total / count) / (count - 1) / count  # squared error of the mean gradient
    ratio = np.sqrt(total / count**2 / noise) if noise > 0 else np.inf
    found = share(total, own, count)
    return Share(float(found), float(error), float(ratio), float(np.sqrt(own / count)))


def mean_share(shares: Sequence[Share], level: float = 0.95) -> Interval:
    """The mean share over independent sets of batches, such as seeds."""
    mean = float(np.mean([each.share for each in shares]))
    error = float(np.sqrt(np.sum([each.error**2 for each in shares])) / len(shares))
    margin = NormalDist().inv_cdf((1 + level) / 2) * error
    interval = (mean, mean - margin, mean + margin, error)
    return Interval(*interval, len(shares), level, "jackknife")


def penalty_part(
    arrays: EpisodeArrays, weights: SepoWeights, scale: float, credit: str
) -> np.ndarray:
    """What the penalties add to the rewards, [E, R]."""
    balance = credit == "credited"
    charged, free = (
        assign_rewards(arrays, each, scale, credit, balance=balance) for each in (weights, FREE)
    )
    return charged - free


def penalty_forests(
    settings: Settings, policy: Any, params: chex.ArrayTree, step: int
) -> Iterator[tuple[str, Any]]:
    """Plays the episodes of one step of an arm; label -> forest that the penalties alone reward.

    Args:
      settings: of an arm of `PARTS`.
    """
    domain, sepo = IteratedPrisonersDilemma(), settings.sepo
    (task,) = tasks = make_tasks(settings, domain)
    seats = StepPlan(settings, tasks).seats(step, {})
    results = play(
        policy,
        params,
        [seat.request for seat in seats],
        domain_environments(domain),
        engine_options(settings, training_sampling(settings)),
        seed=settings.seed,
        step=step,
    ).results
    episodes = from_results(results)
    arrays = from_episodes(
        episodes, [seat.pool for seat in seats], [seat.rollout for seat in seats]
    )
    for label, (arm, credit, weights) in PARTS.items():
        if arm != sepo.credit:
            continue
        added = penalty_part(arrays, weights, task.scale, credit)
        # Train episodes come first; under "credited" every episode trains.
        count = len(seats) if credit == "credited" else sum(s.pool == "train" for s in seats)
        forest = build_forest(list(results[:count]), share_prompts=False)
        forest = reward_decisions(forest, episodes[:count], added)
        yield label, samples_of_decisions(forest, episodes[:count], group_by="round")


@partial(jax.jit, static_argnums=0)
def flat_gradient(objective: Objective, params: chex.ArrayTree, batch: Any) -> chex.Array:
    """Gradient of the loss of a batch by all parameters, one vector."""
    return ravel_pytree(jax.grad(lambda values: objective(values, batch)[0])(params))[0]


def sampled_gradients(bench: Bench, seed: int, batches: int) -> dict[str, list[np.ndarray]]:
    """Label of `PARTS` -> gradients of its penalties over many batches at a seed's warm start."""
    found: dict[str, list[np.ndarray]] = {label: [] for label in PARTS}
    for arm in dict.fromkeys(arm for arm, _, _ in PARTS.values()):
        settings = bench.settings(arm, seed)
        policy, params = make_policy(settings, IteratedPrisonersDilemma())
        algorithm = get_algorithm("rloo")
        objective = make_objective(algorithm, policy, temperature=settings.rollout.temperature)
        maker = BatchMaker(settings, policy, algorithm, num_devices=1)
        for step in tqdm(range(batches), desc=f"{arm}, seed {seed}", disable=not bench.progress):
            for label, forest in penalty_forests(settings, policy, params, step):
                batch = jax.tree.map(lambda leaf: leaf[0, 0], maker.make(forest, params)[0])
                found[label].append(np.asarray(flat_gradient(objective, params, batch)))
    return found


def warm_start_shares(bench: Bench) -> dict[str, list[Share]]:
    """Label of `PARTS` -> the systematic share of the penalties' gradient of the language policy in
    the prisoner's dilemma for each seed, right after its warm start; played once for a bench."""
    for seed in bench.seeds:
        bench.run(WARM_START, seed)

    def measure() -> dict[str, list[Share]]:
        batches = 3 if bench.quick else BATCHES
        gradients = [sampled_gradients(bench, seed, batches) for seed in bench.seeds]
        return {label: [systematic_share(each[label]) for each in gradients] for label in PARTS}

    return bench.once("warm start shares", measure)


def norm_by_credited(shares: dict[str, list[Share]], label: str) -> list[float]:
    """Root mean square norm of a part's gradients by that of the credited e and c, a seed each."""
    pairs = zip(shares[label], shares["credited: e, c"], strict=True)
    return [part.norm / credited.norm for part, credited in pairs]


def difference_of_shares(first: Sequence[Share], second: Sequence[Share]) -> Interval:
    """Mean share of the first less that of the second; they come from different episodes, so their
    squared errors add."""
    a, b = mean_share(first), mean_share(second)
    mean, error = a.mean - b.mean, float(np.hypot(a.standard_error, b.standard_error))
    margin = NormalDist().inv_cdf((1 + a.level) / 2) * error
    return Interval(mean, mean - margin, mean + margin, error, a.count, a.level, a.method)


def share_panels(shares: dict[str, list[Share]]) -> list[Panel]:
    """The share and the mean by its error, for every label."""
    return [
        Panel(
            "language policy, systematic share",
            {label: [share.share for share in each] for label, each in shares.items()},
            0.0,
        ),
        Panel(
            "language policy, |mean gradient| by its error",
            {label: [share.ratio for share in each] for label, each in shares.items()},
            1.0,
        ),
    ]
