"""How much of the policy gradient comes from the penalties, under each mode of credit.

Exactly, for tabular policies whose outcomes are enumerated (Kuhn poker and two rounds of the
prisoner's dilemma), and from samples, for the language policy after its warm start.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from sepo_jax.domains import IteratedPrisonersDilemma, Kuhn
from sepo_jax.domains.kuhn_players import INFOSETS
from sepo_jax.evaluation.claims import Finding
from sepo_jax.evaluation.statistics import Interval, seed_interval
from sepo_jax.sepo import EpisodeArrays, payoff_scale
from sepo_jax.sepo.episodes import COLLUSIVE, EXPLOITER, TRAIN
from sepo_jax.sepo.exact import exact_episodes

from .base import Measured, Panel, mean_of
from .bench import Bench
from .sampled import (
    CHARGED,
    EXTERNALITY,
    PARTS,
    difference_of_shares,
    mean_share,
    norm_by_credited,
    penalty_part,
    share_panels,
    warm_start_shares,
)

# Norms of enumerated gradients: rounding below, a gradient above. Of sampled ones, which have
# single precision, a ratio below PRESENT is rounding.
ROUNDING, PRESENT = 1e-9, 1e-3
_LABELS = tuple(PARTS)


class Tabular(NamedTuple):
    """A game in which a softmax over two moves at each context is a policy.

    Attributes:
      domain: its rules.
      size: contexts, each with the log-odds of the second move as its parameter.
      policy: log-odds [size] -> a policy that `exact_episodes` takes.
      scores: outcomes, log-odds -> gradient of the log-probability of each outcome [n, size].
    """

    domain: Any
    size: int
    policy: Callable[[np.ndarray], Any]
    scores: Callable[[Any, np.ndarray], np.ndarray]


def sigmoid(logits: np.ndarray) -> np.ndarray:
    """Probabilities of the second move."""
    return 1 / (1 + np.exp(-logits))


def _kuhn_scores(outcomes: Any, logits: np.ndarray) -> np.ndarray:
    result, bet = np.zeros((len(outcomes), len(INFOSETS))), sigmoid(logits)
    for row, outcome in zip(result, outcomes, strict=True):
        for name, action in outcome.choices:
            place = INFOSETS.index(name)
            row[place] += action - bet[place]
    return result


def _ipd_policy(logits: np.ndarray) -> list[np.ndarray]:
    rows = np.stack([1 - sigmoid(logits), sigmoid(logits)], axis=-1)
    return [rows[:1], rows[1:]]


def _ipd_scores(outcomes: Any, logits: np.ndarray) -> np.ndarray:
    result, defect = np.zeros((len(outcomes), 5)), sigmoid(logits)
    for row, ((first, reply), (second, _)) in zip(result, np.array(outcomes).tolist(), strict=True):
        context = 1 + 2 * first + reply
        row[0] += first - defect[0]
        row[context] += second - defect[context]
    return result


GAMES: Mapping[str, Tabular] = {
    "Kuhn": Tabular(
        Kuhn(collusion="fold_rate"),
        len(INFOSETS),
        lambda logits: {
            name: (1 - p, p) for name, p in zip(INFOSETS, sigmoid(logits), strict=True)
        },
        _kuhn_scores,
    ),
    "IPD": Tabular(IteratedPrisonersDilemma(rounds=2), 5, _ipd_policy, _ipd_scores),
}


def expected_gradient(weight: np.ndarray, scores: np.ndarray, rewards: np.ndarray) -> np.ndarray:
    """Expected gradient of the mean reward over all episodes and rounds.

    Args:
      weight: [E], in proportion to probabilities. scores: [E, parameters]. rewards: [E, R].
    """
    return (weight / weight.sum() * rewards.mean(axis=1)) @ scores


def exact_norms(game: Tabular, seed: int) -> dict[str, float]:
    """Norms of the expected gradients of the penalties at a random policy, by `_LABELS`, and
    "spread": the root mean square norm of what a single rollout adds under per_rollout."""
    logits = np.random.default_rng(seed).normal(size=game.size)
    scale = payoff_scale(game.domain.max_payoff)
    arrays, outcomes = exact_episodes(game.domain, game.policy(logits))
    scores = game.scores(outcomes, logits)
    shared, credited = (
        expected_gradient(arrays.weight, scores, penalty_part(arrays, CHARGED, scale, credit))
        for credit in ("shared", "credited")
    )
    joint, weight, train = rollouts(game, logits)
    charged, external = (
        penalty_part(joint, weights, scale, "per_rollout")[: len(weight)]
        for weights in (CHARGED, EXTERNALITY)
    )
    gradients = (
        shared,
        expected_gradient(weight, train, charged),
        expected_gradient(weight, train, external),
        credited,
    )
    norms = {
        label: float(np.linalg.norm(gradient))
        for label, gradient in zip(_LABELS, gradients, strict=True)
    }
    centred = charged.mean(axis=1) - weight @ charged.mean(axis=1)
    single = np.square(centred[:, None] * train).sum(axis=1)
    return norms | {"spread": float(np.sqrt(weight @ single))}


def rollouts(game: Tabular, logits: np.ndarray) -> tuple[EpisodeArrays, np.ndarray, np.ndarray]:
    """Every (train, exploiter, collusive) triple of outcomes as a rollout of "per_rollout", against
    the first opponent of each pool.

    Returns:
      Arrays of 3 n episodes, train episodes first; the probability of each triple [n]; the score of
      its train episode [n, size].
    """
    sides = []
    for pool, opponents in game.domain.pools.items():
        name = next(iter(opponents))
        sides.append(
            exact_episodes(
                game.domain,
                game.policy(logits),
                {pool: {name: opponents[name]()}},
                pools=[],
            )
        )
    picked = [index.ravel() for index in np.indices([len(outcomes) for _, outcomes in sides])]
    count = len(picked[0])

    def column(name: str) -> np.ndarray:
        return np.concatenate(
            [getattr(arrays, name)[index] for (arrays, _), index in zip(sides, picked, strict=True)]
        )

    names = ("own", "opponent", "harmful", "externality", "mask")
    arrays = EpisodeArrays(
        **{name: column(name) for name in names},
        pool=np.repeat([TRAIN, EXPLOITER, COLLUSIVE], count),
        group=np.tile(np.arange(count), 3),
    )
    weight = np.prod(
        [side.weight[index] for (side, _), index in zip(sides, picked, strict=True)], axis=0
    )
    return arrays, weight / weight.sum(), game.scores(sides[0][1], logits)[picked[0]]


def all_norms(bench: Bench) -> tuple[dict[str, list[dict[str, float]]], list[Panel]]:
    """Game -> `exact_norms` for each seed, and their panels."""
    norms = {
        name: [exact_norms(game, seed) for seed in bench.seeds] for name, game in GAMES.items()
    }
    panels = [
        Panel(f"{name}, exact norm", {label: [n[label] for n in each] for label in each[0]})
        for name, each in norms.items()
    ]
    return norms, panels


def extreme(norms: Mapping[str, list[dict[str, float]]], label: str, choose: Callable) -> Interval:
    """The largest or smallest norm of the games, `choose` being max or min, over the seeds."""
    found = [choose(each[label] for each in games) for games in zip(*norms.values(), strict=True)]
    return seed_interval(found)


def constant_penalty(bench: Bench) -> Measured:
    """A penalty that all rollouts share gives no gradient.

    Decided by what is shared: the larger exact norm of two games, and the language policy's norm
    by that of the credited penalties. Those of the other credit modes are shown beside it.
    """
    norms, panels = all_norms(bench)
    shares = warm_start_shares(bench)
    shared, per_rollout, _, credited = _LABELS
    ratio = seed_interval(norm_by_credited(shares, shared))
    findings = [
        Finding("exact norm, shared: e, c", extreme(norms, shared, max), "below", ROUNDING),
        Finding("sampled norm by credited, shared: e, c", ratio, "below", PRESENT),
        Finding("exact norm, per_rollout: e, c", extreme(norms, per_rollout, max)),
        Finding("exact norm, credited: e, c", extreme(norms, credited, min)),
    ]
    return Measured(findings, [*panels, *share_panels(shares)])


def per_rollout_gradient(bench: Bench) -> Measured:
    """The penalties e and c of each rollout have an expected gradient that trains on them.

    Decided by the exact norm in two games, of which the larger speaks more for it. Where that is 0
    the claim fails: auxiliary episodes are independent of the train episode that they are charged
    to, so they add noise alone, and of the penalties only the externality teaches. In the language
    policy no interval can show a gradient to be 0; there the systematic share of credited
    penalties less that of per_rollout's is shown.
    """
    norms, panels = all_norms(bench)
    shares = warm_start_shares(bench)
    _, charged, external, credited = _LABELS
    findings = [
        Finding(
            "exact norm of the expected gradient, per_rollout: e, c",
            extreme(norms, charged, max),
            "above",
            PRESENT,
        ),
        Finding("exact norm of one rollout, per_rollout: e, c", extreme(norms, "spread", min)),
        Finding("exact norm, per_rollout: x", extreme(norms, external, min)),
        Finding("exact norm, credited: e, c", extreme(norms, credited, min)),
        Finding(
            "sampled share, credited - per_rollout: e, c",
            difference_of_shares(shares[credited], shares[charged]),
        ),
        *(Finding(f"sampled share, {label}", mean_share(shares[label])) for label in _LABELS),
        *(
            Finding(f"|mean| by its error, {label}", mean_of([s.ratio for s in shares[label]]))
            for label in (charged, credited)
        ),
    ]
    return Measured(findings, [*panels, *share_panels(shares)])
