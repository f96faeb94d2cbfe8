"""Bridges from a forest to the jitted functions of `advantages`: padding, dense ids, virtual roots.

Sizes are padded to `forest.bucket` sizes, so that forests of any shape share few compilations.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sepo_jax import advantages
from sepo_jax.algorithms import Algorithm
from sepo_jax.forest import NO_EVENT, NO_PARENT, NO_TRUNK, Forest, bucket
from sepo_jax.forest.returns import PathActions
from sepo_jax.losses import Mean


class Grouped(NamedTuple):
    """Comparison of units [U] within groups.

    Attributes:
      advantage: float64 [U]; 0 where a unit does not count.
      spread: largest minus smallest return of the unit's group, float64 [U].
      no_spread: share of groups in which all returns are equal.
      groups_of_one: number of groups with a single member, as `Mean(number, 1)`.
    """

    advantage: np.ndarray
    spread: np.ndarray
    no_spread: Mean
    groups_of_one: Mean


class Siblings(NamedTuple):
    """Comparison at every branch point.

    Attributes:
      advantage: float64 [N].
      weight: path weights, float64 [N].
      teaches: the segment's advantage stems from a branch point whose children differ, bool [N].
      no_spread: share of branch points whose children all have the same return.
      groups_of_one: number of prompts with a single sample, as `Mean(number, 1)`.
    """

    advantage: np.ndarray
    weight: np.ndarray
    teaches: np.ndarray
    no_spread: Mean
    groups_of_one: Mean


def numbered(*keys: np.ndarray) -> np.ndarray:
    """Ids 0, 1, ... of the combinations of keys, int64 of their shape."""
    ids = np.zeros(len(keys[0]), np.int64)
    for key in keys:
        _, place = np.unique(key, return_inverse=True)
        _, ids = np.unique(ids * (int(place.max(initial=0)) + 1) + place, return_inverse=True)
    return ids


def event_agents(forest: Forest) -> np.ndarray:
    """For each segment a number of the set of agents in its event, or of its own agent, [N]."""
    agents = forest.agent.tolist()
    sets: dict[int, set[int]] = {}
    for event, agent in zip(forest.event.tolist(), agents, strict=True):
        sets.setdefault(event, set()).add(agent)
    whole = [
        frozenset((agent,) if event == NO_EVENT else sets[event])
        for event, agent in zip(forest.event.tolist(), agents, strict=True)
    ]
    number = {each: place for place, each in enumerate(dict.fromkeys(whole))}
    return np.array([number[each] for each in whole], np.int64)


def grouped(row: Algorithm, returns: np.ndarray, group: np.ndarray, counts: np.ndarray) -> Grouped:
    """Advantage of each unit over its group, by the row's baseline and scale."""
    size = bucket(max(len(returns), 1))
    advantage, spread, no_spread, ones = _grouped(
        _pad(returns, size, np.nan, np.float32),
        _pad(group, size, -1, np.int32),
        _pad(counts, size, False, bool),
        baseline=row.baseline,
        scale=row.scale,
    )
    cut = slice(0, len(returns))
    return Grouped(
        np.asarray(advantage, np.float64)[cut],
        np.asarray(spread, np.float64)[cut],
        Mean(*map(float, no_spread)),
        Mean(float(ones), 1.0),
    )


@partial(jax.jit, static_argnames=("baseline", "scale"))
def _grouped(returns, group, mask, *, baseline, scale):
    compare = _baseline(baseline, scale)
    statistics = advantages.group_statistics(returns, group, mask)
    return (
        compare(returns, group, mask),
        statistics.spread,
        advantages.no_spread_fraction(returns, group, mask),
        advantages.small_groups(returns, group, mask),
    )


def _baseline(baseline: str, scale: str):
    if baseline == "leave_one_out":
        return advantages.leave_one_out
    return partial(advantages.group_mean, scale=scale)


def tree(row: Algorithm, forest: Forest, leaf_return: np.ndarray) -> Siblings:
    """Credit among siblings by the row's baseline, prefix credit and node returns.

    Under prefix credit "tree" all samples of a prompt hang below one virtual root, otherwise those
    that grew from one trunk, whether or not they share the prompt's tokens.

    Args:
      row: the algorithm.
      forest: the data.
      leaf_return: return of each leaf path, [L]; NaN leaves the path out.
    """
    groups = numbered(forest.group)
    top = groups if row.prefix_credit == "tree" else _trunks(forest)
    virtual = int(top.max(initial=-1)) + 1
    # What several trunks share hangs nowhere, and what is below it begins anew for each of them.
    begins = (forest.parent == NO_PARENT) | (top[forest.parent] == NO_TRUNK)
    parent = np.where(begins, top, forest.parent + virtual)
    parent = np.concatenate([np.full(virtual, NO_PARENT), parent])
    returns = np.full(len(parent), np.nan)
    returns[forest.leaves() + virtual] = leaf_return
    is_action = np.concatenate([np.zeros(virtual, bool), forest.is_action])
    size = bucket(max(len(parent), 1))
    advantage, weight, spread, siblings, no_spread = _tree(
        _pad(parent, size, -1, np.int32),
        _pad(returns, size, np.nan, np.float32),
        _pad(np.ones(len(parent)), size, False, bool),
        _pad(is_action, size, False, bool),
        baseline=row.baseline,
        scale=row.scale,
        prefix_credit=row.prefix_credit,
        decay=row.lambda_prefix,
        node_return=row.node_return,
    )
    cut = slice(virtual, len(parent))
    advantage = np.asarray(advantage, np.float64)[cut]
    teaches = _inherited(forest, np.asarray(siblings)[cut] > 1, np.asarray(spread)[cut] > 0)
    _, samples = np.unique(groups[forest.leaves()], return_counts=True)
    return Siblings(
        advantage,
        np.asarray(weight, np.float64)[cut],
        teaches | (advantage != 0),
        Mean(*map(float, no_spread)),
        Mean(float((samples == 1).sum()), 1.0),
    )


def _trunks(forest: Forest) -> np.ndarray:
    """Number from 0 of the trunk that all leaves below each segment share, int64 [N]; NO_TRUNK
    where there are several."""
    leaves = forest.leaves()
    found = np.zeros(forest.num_segments, np.int64)
    found[leaves] = numbered(forest.trunk[leaves])
    seen = np.zeros(forest.num_segments, bool)
    for segment in range(forest.num_segments - 1, -1, -1):
        parent = forest.parent[segment]
        if parent != NO_PARENT:
            same = not seen[parent] or found[parent] == found[segment]
            found[parent] = found[segment] if same else NO_TRUNK
            seen[parent] = True
    return found


@partial(jax.jit, static_argnames=("baseline", "scale", "prefix_credit", "decay", "node_return"))
def _tree(
    parent, leaf_return, mask, is_action, *, baseline, scale, prefix_credit, decay, node_return
):
    compare = _baseline(baseline, scale)
    if baseline == "monte_carlo":
        credit = advantages.monte_carlo_values(parent, leaf_return, mask, node_return=node_return)
    elif prefix_credit == "lambda":
        credit = advantages.lambda_prefix_credit(
            parent,
            leaf_return,
            mask,
            is_action,
            decay=decay,
            node_return=node_return,
            compare=compare,
        )
    else:
        credit = advantages.tree_credit(
            parent, leaf_return, mask, node_return=node_return, compare=compare
        )
    returns = advantages.node_returns(parent, leaf_return, mask, kind=node_return)
    statistics = advantages.group_statistics(returns, parent, mask)
    branch_child = mask & (statistics.count > 1)
    no_spread = advantages.no_spread_fraction(
        jnp.where(branch_child, returns, jnp.nan), parent, branch_child
    )
    return credit.advantage, credit.weight, statistics.spread, statistics.count, no_spread


def _inherited(forest: Forest, branch_child: np.ndarray, spread: np.ndarray) -> np.ndarray:
    """Whether the nearest branch child at or above each segment belongs to siblings that differ."""
    teaches = np.zeros(forest.num_segments, bool)
    for segment, parent in enumerate(forest.parent):
        if branch_child[segment]:
            teaches[segment] = spread[segment]
        elif parent >= 0:
            teaches[segment] = teaches[parent]
    return teaches


def path_credit(
    row: Algorithm,
    forest: Forest,
    actions: PathActions,
    penalty: np.ndarray,
    weight: np.ndarray,
    values: np.ndarray | None,
) -> tuple[np.ndarray, np.ndarray]:
    """Reward to go, or generalised advantages, of each token along its paths.

    A turn's reward arrives at its last token; the last turn of a path also receives what later
    contexts of its episode earn.

    Args:
      row: the algorithm; gamma per model token.
      forest: the data.
      actions: its paths, with undiscounted rewards that have the penalties subtracted.
      penalty: that of each token, [T].
      weight: weight of each path in the mean over paths, [L].
      values: the critic's values, [T], or None for reward to go.

    Returns:
      advantage and value target, float64 [T].
    """
    lengths = forest.lengths()
    paid = _paid(forest, actions, penalty)
    tokens: list[list[int]] = [[] for _ in weight]
    rewards: list[list[float]] = [[] for _ in weight]
    for leaf, segment, reward in zip(actions.leaf, actions.segment, paid, strict=True):
        first = int(forest.offsets[segment])
        here = range(first, first + int(lengths[segment]))
        tokens[leaf].extend(here)
        rewards[leaf].extend(-penalty[here.start : here.stop])
        rewards[leaf][-1] += reward
    width = bucket(max((len(path) for path in tokens), default=1))
    rows = bucket(max(len(tokens), 1))
    index = np.full((rows, width), -1, np.int64)
    reward = np.zeros((rows, width), np.float32)
    for number, path in enumerate(tokens):
        index[number, : len(path)] = path
        reward[number, : len(path)] = rewards[number]
    counted = index >= 0
    counted[: len(weight)] &= (weight > 0)[:, None]
    # Index -1, padding, finds the zero at the end.
    value = None if values is None else np.append(values, 0.0).astype(np.float32)[index]
    advantage, target = _path_credit(reward, value, counted, gamma=row.gamma, lam=row.gae_lambda)
    share = np.repeat(_pad(weight, rows, 0.0, np.float64)[:, None], width, axis=1)[counted]
    total = np.bincount(index[counted], share, forest.num_tokens)
    mean = [
        np.bincount(index[counted], share * np.asarray(each)[counted], forest.num_tokens)
        / np.where(total > 0, total, 1.0)
        for each in (advantage, target)
    ]
    return mean[0], mean[1]


def _paid(forest: Forest, actions: PathActions, penalty: np.ndarray) -> np.ndarray:
    """What each action of each path is paid at its last token, [P], before its own penalty.

    What is to go at an action, less what is to go at the next one of the path.
    """
    owner = forest.segment_of_token()
    own = np.bincount(owner, penalty, forest.num_segments)[actions.segment]
    following = np.append(actions.to_go[1:], 0.0)[: len(actions.leaf)]
    last = np.append(actions.leaf[1:] != actions.leaf[:-1], True)[: len(actions.leaf)]
    return actions.to_go - np.where(last, 0.0, following) + own


@partial(jax.jit, static_argnames=("gamma", "lam"))
def _path_credit(reward, value, mask, *, gamma, lam):
    if value is None:
        returns = advantages.reward_to_go(reward, mask, gamma)
        return returns, returns
    return advantages.gae(reward, value, mask, gamma, lam)


def subtree_returns(forest: Forest, leaf_return: np.ndarray) -> np.ndarray:
    """Return of each segment: that of a leaf, above it the mean of its children's; float32 [N].

    Args:
      forest: the data.
      leaf_return: return of each leaf path, [L]; NaN leaves the path out, and a segment without any
        return below it has NaN.
    """
    returns = np.full(forest.num_segments, np.nan)
    returns[forest.leaves()] = leaf_return
    size = bucket(max(forest.num_segments, 1))
    found = advantages.node_returns(
        _pad(forest.parent, size, NO_PARENT, np.int32),
        _pad(returns, size, np.nan, np.float32),
        _pad(np.ones(forest.num_segments), size, False, bool),
    )
    return np.asarray(found)[: forest.num_segments]


def _pad(values: np.ndarray, size: int, fill, dtype) -> np.ndarray:
    values = np.asarray(values).astype(dtype)
    return np.append(values, np.full(size - len(values), fill, dtype))
