"""From returns to advantages: what each token of a forest is credited with.

Reads the left half of the table (`algorithms`): comparison, baseline, scale, returns. Structure is
worked out on the host, statistics by the jitted functions of `advantages` on padded arrays.
"""

import dataclasses
import warnings

import numpy as np

from sepo_jax.algorithms import Algorithm, get_algorithm
from sepo_jax.credit.checks import (
    check_group_size,
    check_lengths,
    check_rewards,
    warn_small,
)
from sepo_jax.credit.comparisons import event_agents, grouped, numbered, path_credit, tree
from sepo_jax.forest import NO_EVENT, Batch, Forest, check_events_whole, fill, pack
from sepo_jax.forest.returns import PathActions, path_actions
from sepo_jax.losses import Mean, kl_estimate


@dataclasses.dataclass(frozen=True, eq=False)
class Credit:
    """What training needs beyond the data; aligned with a forest, 0 where nothing counts.

    Attributes:
      advantage: float32 [T]; 0 on given tokens. A token shared by several paths that earned
        differently takes the mean over these paths, weighted as the loss weighs them.
      value_target: float32 [T], for a critic.
      segment_weight: float32 [N]; 0 leaves a segment out of every numerator and denominator.
      path_weight: float32 [L], over `forest.leaves()`, likewise.
      path_advantage: float32 [L], for ratios of whole paths.
      metrics: averages over the forest; counts are written as `Mean(count, 1)`.
    """

    advantage: np.ndarray
    value_target: np.ndarray
    segment_weight: np.ndarray
    path_weight: np.ndarray
    path_advantage: np.ndarray
    metrics: dict[str, Mean]

    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays by field name, as `forest.fill` takes them."""
        names = [field.name for field in dataclasses.fields(self) if field.name != "metrics"]
        return {name: getattr(self, name) for name in names}


@dataclasses.dataclass(eq=False)
class _Work:
    """What the comparisons share. The last four are what a comparison writes."""

    algorithm: Algorithm
    forest: Forest
    leaves: np.ndarray
    actions: PathActions
    counts: np.ndarray  # bool [L]: the path takes part
    penalty: np.ndarray  # float64 [T]: divergence from the reference to subtract from rewards
    tree_weight: np.ndarray  # float64 [L]: weight of a path before anything is left out
    segment_advantage: np.ndarray  # float64 [N]
    path_advantage: np.ndarray  # float64 [L]
    segment_keep: np.ndarray  # bool [N]
    path_keep: np.ndarray  # bool [L]

    def mean_weight(self) -> np.ndarray:
        """How much each path counts where paths are averaged, [L]: as the reduction weighs it."""
        weight = np.where(self.counts, self.tree_weight, 0.0)
        if self.algorithm.reduce != "sequence_mean":
            return weight
        lengths = self.forest.lengths()[self.actions.segment]
        tokens = np.bincount(self.actions.leaf, lengths, len(self.leaves))
        return weight / np.maximum(tokens, 1)

    def spread_over_segments(self, values: np.ndarray) -> np.ndarray:
        """Mean of `values` per path [L] over the paths through each segment, [N]."""
        index = self.actions.leaf
        return self.actions.over_segments(
            values[index], self.mean_weight()[index], self.forest.num_segments
        )


def assign_credit(
    algorithm: str | Algorithm,
    forest: Forest,
    *,
    values: np.ndarray | None = None,
    reference_logp: np.ndarray | None = None,
    group_size: int | None = None,
) -> Credit:
    """Advantages and weights of every token under one row of the table.

    Args:
      algorithm: a row, or its name.
      forest: the data, rewards set; a missing reward is NaN and leaves its own episode (or turn)
        out of loss and statistics.
      values: the critic's values before each action token, float [T]; for baseline "critic".
      reference_logp: log-probabilities under the reference policy, float [T]; needed where the
        divergence is part of the reward.
      group_size: when given, every prompt must have that many episodes.

    Returns:
      Credit.

    Raises:
      ValueError: an infinite reward; values or reference_logp needed and missing, or of the wrong
        length; a group of another size than `group_size`; siblings compared where episodes have
        several contexts.
    """
    algorithm = get_algorithm(algorithm)
    forest.validate()
    check_rewards(forest)
    check_lengths(forest, values=values, reference_logp=reference_logp)
    work = _start(algorithm, forest, reference_logp)
    check_group_size(forest, work.leaves, group_size)
    metrics = _base_metrics(work)
    token_credit = None
    if algorithm.compare == "none":
        token_credit = _without_group(work, values)
    elif algorithm.compare == "parent":
        metrics |= _siblings(work)
    elif algorithm.compares_trajectories or algorithm.compare == "observation":
        metrics |= _episodes(work)
    if algorithm.compare in ("observation", "agent", "turn", "event_type"):
        metrics |= _segments(work)
    return _finish(work, token_credit, metrics)


def prepare(
    algorithm: str | Algorithm,
    forest: Forest,
    *,
    row_length: int,
    rows: int | None = None,
    parts: int | None = None,
    at_least: dict[str, int] | None = None,
    values: np.ndarray | None = None,
    reference_logp: np.ndarray | None = None,
    group_size: int | None = None,
) -> tuple[Batch, dict[str, Mean]]:
    """Packs a forest, assigns credit and fills it in: a batch ready for the objective.

    Args are those of `forest.pack` and `assign_credit`.

    Returns:
      batch, and the metrics of `assign_credit`.
    """
    credit = assign_credit(
        algorithm, forest, values=values, reference_logp=reference_logp, group_size=group_size
    )
    batch = pack(forest, row_length=row_length, rows=rows, parts=parts, at_least=at_least)
    check_events_whole(forest, batch)
    known = {"value": values, "reference_logp": reference_logp}
    given = {name: array for name, array in known.items() if array is not None}
    return fill(batch, **given, **credit.arrays()), credit.metrics


def _start(algorithm: Algorithm, forest: Forest, reference_logp: np.ndarray | None) -> _Work:
    owner = forest.segment_of_token()
    penalty = np.zeros(forest.num_tokens)
    if algorithm.kl_weight and algorithm.kl_place == "reward":
        if reference_logp is None:
            raise ValueError("kl_place='reward' needs reference_logp: one number per token")
        estimate = kl_estimate(forest.behavior_logp, np.float32(reference_logp), algorithm.kl_kind)
        penalty = np.where(forest.is_action[owner], algorithm.kl_weight * np.asarray(estimate), 0.0)
    reward = forest.reward - np.bincount(owner, penalty, forest.num_segments)
    if algorithm.returns == "one":
        reward = np.zeros(forest.num_segments)
    leaves = forest.leaves()
    # Without groups gamma discounts tokens (`path_credit`), not turns.
    gamma = 1.0 if algorithm.compare == "none" else algorithm.gamma
    actions = path_actions(forest, reward=reward, gamma=gamma)
    whole = algorithm.compares_trajectories or algorithm.compare in ("parent", "observation")
    counts = ~np.isnan(actions.episode) if whole else np.ones(len(leaves), bool)
    if algorithm.mask_truncated:
        cut = [forest.truncated[forest.path(int(leaf))].any() for leaf in leaves]
        counts &= ~np.array(cut, bool)
    weight = np.ones(len(leaves))
    if algorithm.segment_weight == "path":
        weight = tree(algorithm, forest, np.where(counts, 0.0, np.nan)).weight[leaves]
    return _Work(
        algorithm=algorithm,
        forest=forest,
        leaves=leaves,
        actions=actions,
        counts=counts,
        penalty=penalty,
        tree_weight=weight,
        segment_advantage=np.zeros(forest.num_segments),
        path_advantage=np.zeros(len(leaves)),
        segment_keep=np.ones(forest.num_segments, bool),
        path_keep=counts.copy(),
    )


def _base_metrics(work: _Work) -> dict[str, Mean]:
    forest, leaves = work.forest, work.leaves
    _, first = np.unique(forest.episode[leaves], return_index=True)
    earned, counts = work.actions.episode[first], work.counts[first]
    counted = counts & ~np.isnan(earned)
    metrics = {
        "missing_rewards": Mean(float(np.isnan(earned).sum()), 1.0),
        "truncated_fraction": Mean(float(forest.truncated[leaves].sum()), float(len(leaves))),
    }
    if work.algorithm.returns != "one":
        metrics["return_mean"] = Mean(earned[counted].sum(), float(counted.sum()))
    return metrics


def _without_group(work: _Work, values: np.ndarray | None) -> tuple[np.ndarray, np.ndarray] | None:
    """Credit of tokens from their own path alone; (advantage, value target) [T], or None."""
    row, actions = work.algorithm, work.actions
    if row.returns == "one":
        work.segment_advantage[:] = 1.0
        work.path_advantage[:] = 1.0
        return None
    if row.baseline == "critic" or row.returns == "to_go":
        if row.baseline == "critic" and values is None:
            raise ValueError("baseline='critic' needs values: one number per token")
        weight = np.where(work.counts, work.mean_weight(), 0.0)
        return path_credit(row, work.forest, actions, work.penalty, weight, values)
    if row.returns == "immediate":
        weight = work.mean_weight()[actions.leaf]
        mean = actions.over_segments(actions.immediate, weight, work.forest.num_segments)
    else:
        mean = work.spread_over_segments(actions.episode)
        work.path_advantage[:] = np.where(work.counts, actions.episode, 0.0)
    work.segment_advantage[:] = np.where(np.isnan(mean), 0.0, mean)
    return None


def _episodes(work: _Work) -> dict[str, Mean]:
    """Compares the episodes of a prompt, and those of a tree where the row says so."""
    row, forest, leaves = work.algorithm, work.forest, work.leaves
    _, first, unit = np.unique(forest.episode[leaves], return_index=True, return_inverse=True)
    earned, counts = work.actions.episode[first], work.counts[first]
    group = numbered(forest.group[leaves[first]])
    result = grouped(row, earned, group, counts)
    advantage, teaches = result.advantage, result.spread > 0
    if row.compare in ("root_then_tree", "root_plus_tree"):
        trees = numbered(forest.group[leaves[first]], forest.trunk[leaves[first]])
        again = advantage if row.compare == "root_then_tree" else earned
        within = grouped(row, again, trees, counts)
        advantage = within.advantage + (advantage if row.compare == "root_plus_tree" else 0.0)
        teaches = within.spread > 0 if row.compare == "root_then_tree" else teaches
    work.path_advantage[:] = advantage[unit]
    if not row.count_no_spread:
        work.path_keep &= teaches[unit]
    mean = work.spread_over_segments(work.path_advantage)
    work.segment_advantage[:] = np.where(np.isnan(mean), 0.0, mean)
    warn_small(result.groups_of_one, "episode")
    return {"no_spread_fraction": result.no_spread, "groups_of_one": result.groups_of_one}


def _segments(work: _Work) -> dict[str, Mean]:
    """Compares action segments, or events, that share a key within a prompt."""
    row, forest, actions = work.algorithm, work.forest, work.actions
    earned = {
        "episode": actions.episode[actions.leaf],
        "to_go": actions.to_go,
        "immediate": actions.immediate,
    }[row.returns]
    weight = work.mean_weight()[actions.leaf]
    unit_return = actions.over_segments(earned, weight, forest.num_segments)
    counts = forest.is_action & ~np.isnan(unit_return)
    metrics = {}
    if row.compare == "event_type":
        unit_return, counts, metrics = _event_returns(work, unit_return, counts)
    keys = {
        "observation": (forest.group, forest.observation),
        "agent": (forest.group, forest.agent),
        "turn": (forest.group, forest.turn, forest.agent),
        "event_type": (forest.group, forest.event_type, event_agents(forest)),
    }[row.compare]
    # An event is one unit: its first member stands for it.
    first = np.ones(forest.num_segments, bool)
    member = np.flatnonzero(counts & (forest.event != NO_EVENT))
    if row.compare == "event_type":
        first[member] = False
        _, lead, event = np.unique(forest.event[member], return_index=True, return_inverse=True)
        first[member[lead]] = True
    result = grouped(row, unit_return, numbered(*keys), counts & first)
    advantage, spread = result.advantage, result.spread
    if row.compare == "event_type":
        advantage[member] = advantage[member[lead]][event]
        spread[member] = spread[member[lead]][event]
    names = {"no_spread_fraction": result.no_spread, "groups_of_one": result.groups_of_one}
    if row.compare == "observation":
        work.segment_advantage += row.observation_weight * np.where(counts, advantage, 0.0)
        metrics |= {f"observation_{name}": value for name, value in names.items()}
        if not row.count_no_spread:
            below = np.zeros(forest.num_segments, bool)
            below[actions.segment[work.path_keep[actions.leaf]]] = True
            work.segment_keep &= below | (spread > 0)
            work.path_keep |= work.counts
        return metrics
    # An observation that is seen once is no such sign: most states do not repeat.
    warn_small(result.groups_of_one, "event" if row.compare == "event_type" else "action")
    work.segment_advantage[:] = np.where(counts, advantage, 0.0)
    work.segment_keep &= counts & (row.count_no_spread | (spread > 0))
    return metrics | names


def _event_returns(work: _Work, unit_return: np.ndarray, counts: np.ndarray):
    """Return of each member's event: the mean of its members'; incomplete events are left out."""
    forest = work.forest
    member = forest.event != NO_EVENT
    event = numbered(forest.event)
    size = int(event.max(initial=-1)) + 1
    found = np.bincount(event[member & counts], minlength=size)[event]
    complete = member & counts & (found == forest.event_size)
    summed = np.bincount(event[complete], unit_return[complete], size)[event]
    broken = np.unique(event[member & (found != forest.event_size)])
    metrics = {"incomplete_events": Mean(float(len(broken)), 1.0)}
    return np.where(complete, summed / np.maximum(found, 1), np.nan), complete, metrics


def _siblings(work: _Work) -> dict[str, Mean]:
    """Compares the continuations of every branch point."""
    forest, leaves = work.forest, work.leaves
    episodes, uses = np.unique(forest.episode[leaves], return_counts=True)
    if (uses > 1).any():
        raise ValueError(
            f"compare='parent' compares the continuations of a state, but episode "
            f"{episodes[uses > 1][0]} has several contexts; compare='root' takes those"
        )
    result = tree(work.algorithm, forest, np.where(work.counts, work.actions.episode, np.nan))
    work.segment_advantage[:] = result.advantage
    work.path_advantage[:] = result.advantage[leaves]
    if not work.algorithm.count_no_spread:
        work.segment_keep &= result.teaches
    warn_small(result.groups_of_one, "sample")
    return {"no_spread_fraction": result.no_spread, "groups_of_one": result.groups_of_one}


def _finish(work: _Work, token_credit, metrics: dict[str, Mean]) -> Credit:
    """Tokens from segments and paths, and the weights of what is left."""
    forest, actions = work.forest, work.actions
    path_weight = np.where(work.path_keep, work.tree_weight, 0.0)
    below = np.bincount(actions.segment, path_weight[actions.leaf], forest.num_segments)
    weight = np.where(below > 0, 1.0, 0.0) if work.algorithm.segment_weight == "uniform" else below
    segment_weight = np.where(work.segment_keep, weight, 0.0)
    owner = forest.segment_of_token()
    acted = forest.is_action[owner] & (segment_weight[owner] > 0)
    advantage, target = token_credit or (work.segment_advantage[owner], np.zeros(len(owner)))
    advantage = np.where(acted, advantage, 0.0)
    if work.algorithm.compare == "none" and work.algorithm.returns in ("to_go", "immediate"):
        work.path_advantage[:] = _mean_over_tokens(work, owner, advantage, acted)
    path_advantage = np.where(path_weight > 0, work.path_advantage, 0.0)
    count = float(acted.sum())
    if forest.is_action.any() and not count:
        warnings.warn("nothing to learn from: no action token takes part", stacklevel=3)
    return Credit(
        advantage=advantage.astype(np.float32),
        value_target=np.where(acted, target, 0.0).astype(np.float32),
        segment_weight=segment_weight.astype(np.float32),
        path_weight=path_weight.astype(np.float32),
        path_advantage=path_advantage.astype(np.float32),
        metrics=metrics
        | {
            "advantage_mean": Mean(advantage.sum(), count),
            "advantage_abs": Mean(np.abs(advantage).sum(), count),
        },
    )


def _mean_over_tokens(work: _Work, owner, advantage, acted) -> np.ndarray:
    """Mean advantage of the action tokens of each path, [L]: for ratios of whole paths."""
    size, leaf, segment = work.forest.num_segments, work.actions.leaf, work.actions.segment
    summed, counted = (np.bincount(owner, values, size) for values in (advantage, acted))
    totals = np.bincount(leaf, summed[segment], len(work.leaves))
    return totals / np.maximum(np.bincount(leaf, counted[segment], len(work.leaves)), 1)
