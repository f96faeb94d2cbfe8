"""The reward of SEPO and its three ways of crediting the penalties to episodes.

Objective (arXiv 2605.30854, section 3; definitions from the authors' code):

    J = s u - lambda_e s e - lambda_c c - lambda_x x,        s = 3 / max_payoff

    u  mean own payoff a round against the train pool
    e  mean over exploiters of max(0, mean over that exploiter's episodes of opponent - own payoff)
    c  mean rate of harmful moves against the collusive pool
    x  mean externality a round over train and exploiter play

c and x are rates and are not rescaled. How the penalties reach the policy is the credit mode:

    "shared"       every train episode carries the same penalty: it cancels in any comparison
                   within a group and teaches nothing (the paper's ablation arm).
    "per_rollout"  each train rollout carries the penalties of auxiliary episodes played for it
                   (the paper's method). Given the policy, e and c are independent of the train
                   actions: their expected gradient is 0, they only add variance. The externality
                   of the train episode itself does carry gradient.
    "credited"     each episode, of any pool, carries its own part of J, so the policy gradient of
                   the rewards is the gradient of J. The default for use. With d = opponent - own
                   payoff, a round is worth
                     train      s own - lambda_x ext
                     exploiter  -lambda_e s d - lambda_x ext  where the mean of d over this
                                opponent's episodes is > 0, else -lambda_x ext: max(0, .) is flat
                     collusive  -lambda_c harmful

Two other objectives are the paper's baselines: "reward_only" is s u, and "welfare_only" is
s (own + opponent) / 2 against the train pool: the paper names it without a formula, and the half
keeps it on the scale of the others.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from sepo_jax.names import check_option
from sepo_jax.sepo.episodes import COLLUSIVE, EXPLOITER, TRAIN, EpisodeArrays

CREDITS = ("shared", "per_rollout", "credited")
OBJECTIVES = ("sepo", "reward_only", "welfare_only")
# Rewards of "shared" lie on this grid: exact in float32 up to 1024, so that the shared penalty
# leaves the differences within a group untouched to the last bit.
SHARED_GRID = 2.0**-14


@dataclass(frozen=True)
class SepoWeights:
    """Weights of the penalties, each finite and >= 0.

    Attributes:
      exploitability: lambda_e, on s e. The paper uses 1.5 for Kuhn poker.
      collusion: lambda_c. Kuhn poker has no collusion measure by default (`Kuhn.collusion`).
      externality: lambda_x. The paper uses 0 for Kuhn poker.
      invalid_penalty: subtracted from the reward of a round for each unparsable reply in it;
        in units of reward. Part of the reward, not of J.
    """

    exploitability: float = 1.5
    collusion: float = 0.0
    externality: float = 0.0
    invalid_penalty: float = 0.0

    def __post_init__(self):
        for name, value in vars(self).items():
            if not (np.isfinite(value) and value >= 0):
                raise ValueError(f"weight {name} must be finite and >= 0, not {value}")


def without_penalties(weights: SepoWeights) -> SepoWeights:
    """Weights of an objective that knows no penalties but that of unparsable replies."""
    return SepoWeights(0.0, 0.0, 0.0, weights.invalid_penalty)


def payoff_scale(max_payoff: float) -> float:
    """s = 3 / max_payoff: brings payoffs to the scale of the iterated prisoner's dilemma."""
    if not (np.isfinite(max_payoff) and max_payoff > 0):
        raise ValueError(f"max_payoff must be positive and finite, not {max_payoff}")
    return 3.0 / max_payoff


def assign_rewards(
    arrays: EpisodeArrays,
    weights: SepoWeights,
    scale: float,
    credit: str = "credited",
    *,
    balance: bool = False,
    known_gaps: Mapping[str, float] | None = None,
    pooled: bool = False,
    objective: str = "sepo",
) -> np.ndarray:
    """Reward of every round of every episode.

    Penalties of a whole episode are rates a round and are subtracted in each of its rounds, so a
    sum over rounds weighs payoffs and penalties alike in every mode.

    Args:
      arrays: the step's episodes, all pools together.
      weights: penalty weights.
      scale: s, see `payoff_scale`.
      credit: "shared", "per_rollout" or "credited".
      balance: "credited" only. Multiplies each term by (total weight of all episodes) / (weight
        of the episodes its mean runs over), so that the mean reward over ALL episodes equals J
        and its gradient does not depend on how many episodes each pool got. Without it, pools
        weigh by their numbers of episodes.
      known_gaps: "credited" only. Name of an exploiter as in `arrays.opponent_names`
        ("exploiter/BestResponse") -> its exact mean of opponent - own payoff, to decide the clamp
        instead of the sample mean. Near an equilibrium sample means change sign by chance and
        would switch the penalty off half of the time; an exact best response has the policy's
        NashConv here, which is never negative.
      pooled: clamp the mean over the episodes of all exploiters at once, in place of each
        opponent's own (the authors' older code): what the agent wins from one exploiter then
        hides what it loses to another.
      objective: "sepo"; "reward_only" and "welfare_only" know no penalties (see the module).

    Returns:
      float64 [E, R]; 0 in rounds not played and, except in "credited", in auxiliary episodes,
      which do not train (see `trained_episodes`); NaN, a missing reward, in a rollout of
      "per_rollout" whose auxiliary episodes of one opponent are all missing.

    Raises:
      ValueError: unknown credit or objective; a weighted penalty without episodes to measure it;
        "per_rollout" without groups, or with a rollout that was given no such episodes at all;
        a known gap that is not finite or is of no exploiter.
    """
    check_option("credit", credit, CREDITS)
    check_option("objective", objective, OBJECTIVES)
    if (balance or known_gaps) and credit != "credited":
        raise ValueError(
            f"balance and known_gaps apply to credit 'credited' only, not to {credit!r}"
        )
    if objective != "sepo":
        weights = without_penalties(weights)
    if objective == "welfare_only":
        arrays = replace(arrays, own=(arrays.own + arrays.opponent) / 2)
    _check_measurable(arrays, weights)
    if credit == "credited":
        rewards = _credited(arrays, weights, scale, balance, known_gaps or {}, pooled)
    elif credit == "per_rollout":
        penalty = _rollout_penalties(arrays, weights, scale, pooled)
        rewards = scale * arrays.own - penalty[:, None]
    else:
        penalty = _shared_penalty(arrays, weights, scale, pooled)
        rewards = _on_grid(scale * arrays.own) - _on_grid(penalty)
    rewards = rewards - weights.invalid_penalty * arrays.invalid
    trained = trained_episodes(arrays, credit)
    return np.where(arrays.mask & trained[:, None], rewards, 0.0)


def trained_episodes(arrays: EpisodeArrays, credit: str) -> np.ndarray:
    """bool [E]: episodes whose actions the credit mode trains; missing episodes never do."""
    check_option("credit", credit, CREDITS)
    return arrays.present if credit == "credited" else arrays.members(TRAIN)


def objective_terms(
    arrays: EpisodeArrays, weight: np.ndarray | None = None, *, pooled: bool = False
) -> dict:
    """u, e, c, x of the module's docstring; a term whose pool has no episodes is left out.

    Args:
      arrays: episodes.
      weight: weights [..., E] that replace `arrays.weight`, for resampling.
      pooled: e is max(0, mean over the episodes of all exploiters), see `assign_rewards`.

    Returns:
      "utility", "exploit_pool_advantage", "exploit_pool_advantage/<opponent>" (the unclamped mean
      of opponent - own payoff, so that a negative value shows by how much the agent wins),
      "collusion", "externality": floats, or arrays [...] when `weight` has leading axes.
    """
    weight = arrays.weight if weight is None else weight
    terms: dict = {}

    def average(name, members, values):
        if members.any():
            terms[name] = _weighted_mean(weight[..., members], arrays.episode_mean(values)[members])

    average("utility", arrays.members(TRAIN), arrays.own)
    gap = arrays.opponent - arrays.own
    gaps = []
    for opponent in np.unique(arrays.opponent_id[arrays.members(EXPLOITER)]):
        members = arrays.present & (arrays.opponent_id == opponent)
        name = f"exploit_pool_advantage/{arrays.name_of(opponent).removeprefix('exploiter/')}"
        average(name, members, gap)
        gaps.append(terms[name])
    if gaps and pooled:
        average("exploit_pool_advantage", arrays.members(EXPLOITER), gap)
        gaps = [terms["exploit_pool_advantage"]]
    if gaps:
        terms["exploit_pool_advantage"] = np.mean([np.maximum(gap, 0.0) for gap in gaps], axis=0)
    average("collusion", arrays.members(COLLUSIVE), arrays.harmful)
    average("externality", arrays.members(TRAIN, EXPLOITER), arrays.externality)
    return terms


def objective_value(terms: dict, weights: SepoWeights, scale: float):
    """J = s u - lambda_e s e - lambda_c c - lambda_x x, also called the safety score.

    Args:
      terms: as returned by `objective_terms`.

    Raises:
      ValueError: a term with a weight above 0 is absent.
    """
    signed = {
        "utility": scale,
        "exploit_pool_advantage": -weights.exploitability * scale,
        "collusion": -weights.collusion,
        "externality": -weights.externality,
    }
    absent = [name for name, factor in signed.items() if factor and name not in terms]
    if absent:
        raise ValueError(
            f"the objective needs {', '.join(absent)}; play the pools that measure them, or set "
            "their weights to 0"
        )
    return sum(factor * terms[name] for name, factor in signed.items() if factor)


def _weighted_mean(weight: np.ndarray, values: np.ndarray):
    total = weight.sum(axis=-1)
    return (weight * values).sum(axis=-1) / np.where(total > 0, total, 1.0)


def _check_measurable(arrays: EpisodeArrays, weights: SepoWeights) -> None:
    needs = {"exploitability": EXPLOITER, "collusion": COLLUSIVE}
    for name, pool in needs.items():
        if getattr(weights, name) > 0 and not (arrays.pool == pool).any():
            raise ValueError(
                f"weight {name} = {getattr(weights, name)} but no episode of the "
                f"{'exploiter' if pool == EXPLOITER else 'collusive'} pool was given; add such "
                "episodes or set the weight to 0"
            )


def _on_grid(values):
    return np.round(np.asarray(values) / SHARED_GRID) * SHARED_GRID


def _shared_penalty(
    arrays: EpisodeArrays, weights: SepoWeights, scale: float, pooled: bool
) -> float:
    terms = objective_terms(arrays, pooled=pooled)
    return (
        weights.exploitability * scale * terms.get("exploit_pool_advantage", 0.0)
        + weights.collusion * terms.get("collusion", 0.0)
        + weights.externality * terms.get("externality", 0.0)
    )


def _credited(arrays: EpisodeArrays, weights: SepoWeights, scale, balance, known_gaps, pooled):
    weight = np.where(arrays.present, arrays.weight, 0.0)

    def share(members, count=1):
        """Factor that makes the batch mean of a term over `members` the term's own mean."""
        total = weight[members].sum() * count
        return weight.sum() / total if balance and total > 0 else 1.0

    train = arrays.members(TRAIN)
    rewards = share(train) * scale * arrays.own * train[:, None]
    gap = arrays.opponent - arrays.own
    exploiters = np.unique(arrays.opponent_id[arrays.members(EXPLOITER)])
    listed = np.unique(arrays.opponent_id[arrays.pool == EXPLOITER])
    names = [arrays.name_of(opponent) for opponent in listed]
    for name, known in known_gaps.items():
        check_option("exploiter of known_gaps", name, names)
        if not np.isfinite(known):
            raise ValueError(f"known gap of {name} must be finite, not {known}")

    def clamp_open(opponents):
        """Whether the mean gap over the episodes of these opponents is positive."""
        total = 0.0
        for opponent in opponents:
            members = arrays.present & (arrays.opponent_id == opponent)
            sampled = _weighted_mean(weight[members], arrays.episode_mean(gap)[members])
            size = weight[members].sum()
            total += size * known_gaps.get(arrays.name_of(opponent), sampled)
        return total > 0

    parts = [exploiters] if pooled and exploiters.size else exploiters[:, None]
    for opponents in parts:
        if clamp_open(opponents):
            members = arrays.present & np.isin(arrays.opponent_id, opponents)
            factor = share(members, len(parts)) * weights.exploitability * scale
            rewards -= factor * gap * members[:, None]
    both = arrays.members(TRAIN, EXPLOITER)
    rewards -= share(both) * weights.externality * arrays.externality * both[:, None]
    collusive = arrays.members(COLLUSIVE)
    rewards -= share(collusive) * weights.collusion * arrays.harmful * collusive[:, None]
    return rewards


def _rollout_penalties(
    arrays: EpisodeArrays, weights: SepoWeights, scale: float, pooled: bool
) -> np.ndarray:
    """P of each episode's rollout, [E]."""
    if arrays.group is None:
        raise ValueError("credit 'per_rollout' needs `group`: the train rollout of each episode")
    rollouts, group = np.unique(arrays.group, return_inverse=True)
    trains = np.zeros(len(rollouts), bool)
    trains[group[arrays.members(TRAIN)]] = True

    def by_rollout(listed, values, what):
        """Mean over each rollout's `listed` episodes that are present, [G]; NaN where none is."""
        lacking = rollouts[trains & (np.bincount(group[listed], minlength=len(rollouts)) == 0)]
        if lacking.size:
            raise ValueError(f"rollout {lacking[0]} was given no episodes to measure {what}")
        members = listed & arrays.present
        ids, part = group[members], arrays.weight[members]
        total = np.bincount(ids, part, len(rollouts))
        summed = np.bincount(ids, part * arrays.episode_mean(values)[members], len(rollouts))
        return np.where(total > 0, summed / np.where(total > 0, total, 1.0), np.nan)

    penalty = np.zeros(len(rollouts))
    if weights.exploitability:
        exploiters = arrays.pool == EXPLOITER
        listed = (
            {"exploitability": exploiters}
            if pooled
            else {
                f"exploitability against {arrays.name_of(opponent)}": arrays.opponent_id == opponent
                for opponent in np.unique(arrays.opponent_id[exploiters])
            }
        )
        for what, members in listed.items():
            mean_gap = by_rollout(members, arrays.opponent - arrays.own, what)
            share = weights.exploitability * scale / len(listed)
            penalty += share * np.maximum(mean_gap, 0.0)
    if weights.collusion:
        listed = arrays.pool == COLLUSIVE
        penalty += weights.collusion * by_rollout(listed, arrays.harmful, "collusion")
    if weights.externality:
        listed = np.isin(arrays.pool, (TRAIN, EXPLOITER))
        cost = by_rollout(listed, arrays.externality, "externality")
        penalty += weights.externality * cost
    return penalty[group]
