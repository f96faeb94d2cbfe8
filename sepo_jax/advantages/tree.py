"""Credit on trees of segments: returns of nodes, path weights, advantages of branch children.

A tree is one array `parent`, int32 `[N]`: parents come before their children, -1 has no parent
(padding too). The samples of one prompt hang under one root, a virtual one when they are separate
trees, so that independent samples are children of a branch point like any others. A node counts
where the mask is True and a leaf below it has a return; NaN is a missing return, and its leaf is
left out of every mean, count and weight. A branch point is a node with two or more counted
children. The counted child of lowest index is the trunk's own continuation, the others are forks.

All credits are `(parent, leaf_return, mask, *, ...) -> TreeCredit`, hence interchangeable.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from sepo_jax.advantages.baselines import group_mean, leave_one_out
from sepo_jax.names import check_option

NODE_RETURNS = ("subtree_mean", "leaf")


class TreeCredit(NamedTuple):
    """Credit of each node, float32 `[N]`, 0 where a node does not count.

    Attributes:
      advantage: advantage of every token of the segment.
      weight: share of the segment in the gradient (`path_weight`).
    """

    advantage: chex.Array
    weight: chex.Array


@functools.partial(jax.jit, static_argnames="kind")
def node_returns(
    parent: chex.Array,
    leaf_return: chex.Array,
    mask: chex.Array,
    *,
    kind: str = "subtree_mean",
) -> chex.Array:
    """Return of every node from the returns of the leaves.

    `subtree_mean`: the mean over the returns of its counted children, recursively, so a child
    that forked more often counts no more. `leaf`: the return of the leaf in which the node's
    trunk ends, a single sample with the same expectation and a larger variance.

    Args:
      parent: int32 `[N]`, parents before children, -1 for none.
      leaf_return: return of the whole path to each leaf, `[N]`, NaN where missing; read only at
        leaves, which are the nodes that no other node names as its parent.
      mask: the node exists, bool `[N]`.
      kind: `"subtree_mean"` or `"leaf"`.

    Returns:
      float32 `[N]`; NaN where a node does not count.

    Raises:
      ValueError: unknown `kind`.
    """
    check_option("node return", kind, NODE_RETURNS)
    chex.assert_rank(parent, 1)
    chex.assert_equal_shape([parent, leaf_return, mask])
    chex.assert_type([parent, mask], [int, bool])
    size = parent.size
    above = jnp.where(parent >= 0, parent, size)  # slot `size` collects what has no parent
    is_leaf = jnp.ones(size + 1, bool).at[above].set(False)[:size]
    start = jnp.where(is_leaf, jnp.asarray(leaf_return, jnp.float32), jnp.nan)
    counts = mask & ~jnp.isnan(start)

    def visit(state, node):
        mean, count = state
        up, value = above[node], mean[node]
        counted = mask[node] & (count[node] > 0)
        # A running mean of equal values is that value exactly, which a sum divided is not.
        # Forks are visited before the trunk, which has the lowest index and has the last word.
        step = (value - mean[up]) / (count[up] + 1)
        merged = value if kind == "leaf" else mean[up] + step
        mean = mean.at[up].set(jnp.where(counted, merged, mean[up]))
        return (mean, count.at[up].add(counted.astype(jnp.int32))), None

    mean = jnp.append(jnp.where(counts, start, 0.0), 0.0)
    count = jnp.append(counts.astype(jnp.int32), 0)
    (mean, count), _ = jax.lax.scan(visit, (mean, count), jnp.arange(size), reverse=True)
    return jnp.where(mask & (count[:size] > 0), mean[:size], jnp.nan)


def path_weight(parent: chex.Array, mask: chex.Array) -> chex.Array:
    """Product of 1/K over the branch points above each node, K their number of children.

    Undoes the over-sampling of states that were forked: the weights of the leaves below a root
    add up to 1, and each token's expected weight is the probability of reaching it.

    Args:
      parent: int32 `[N]`, parents before children, -1 for none.
      mask: the node counts, bool `[N]`; others are not among the K children.

    Returns:
      float32 `[N]`: 1 at roots, 0 where masked and below a masked node.
    """
    chex.assert_rank(parent, 1)
    chex.assert_equal_shape([parent, mask])
    chex.assert_type([parent, mask], [int, bool])
    count = _siblings(parent, mask)
    root = mask & (parent < 0)
    share = jnp.where(mask & ~root, 1.0 / jnp.maximum(count, 1), 0.0)
    return _along(parent, share, root.astype(jnp.float32))


def tree_credit(
    parent: chex.Array,
    leaf_return: chex.Array,
    mask: chex.Array,
    *,
    node_return: str = "subtree_mean",
    compare: Callable[[chex.Array, chex.Array, chex.Array], chex.Array] = leave_one_out,
) -> TreeCredit:
    """Sibling comparison at every branch point, carried down to the next branch point.

    The child c of a branch point has `A[c] = R[c] - mean of its siblings' R` (leave one out); a
    segment that is an only child takes the advantage of the nearest branch child above it; without
    a branch point above, 0. Weights are `path_weight`.

    `sum over tokens of weight * A * grad logp` is an unbiased estimate of the gradient of the
    expected return when the root has two or more children, branch points are chosen without
    looking ahead, and the sum is divided by a constant: given the state at a branch point its
    siblings' returns are independent of c, so the baseline adds 0 in expectation. Local comparison
    alone leaves out every token above the first branch point, and no reuse of local advantages
    brings these back (`lambda_prefix_credit`). Sibling baselines: BPO, arXiv 2607.14171; weights
    and the comparison at the root are this package's.

    Args:
      parent: int32 `[N]`, parents before children, -1 for none.
      leaf_return: return of the whole path to each leaf, `[N]`, NaN where missing.
      mask: the node exists, bool `[N]`.
      node_return: `"subtree_mean"` or `"leaf"`, see `node_returns`.
      compare: `(returns, group, mask) -> advantage` among siblings; any baseline of this package.

    Returns:
      `TreeCredit` of arrays `[N]`.
    """
    local, siblings, counted = _local_credit(parent, leaf_return, mask, node_return, compare)
    branch_child = counted & (siblings > 1)
    inherits = (counted & ~branch_child).astype(jnp.float32)
    advantage = _along(parent, inherits, jnp.where(branch_child, local, 0.0))
    return TreeCredit(advantage, path_weight(parent, counted))


def lambda_prefix_credit(
    parent: chex.Array,
    leaf_return: chex.Array,
    mask: chex.Array,
    is_action: chex.Array | None = None,
    *,
    decay: float = 0.95,
    node_return: str = "subtree_mean",
    compare: Callable[[chex.Array, chex.Array, chex.Array], chex.Array] = leave_one_out,
) -> TreeCredit:
    """Branch advantages propagated to the shared prefix with a discount, as BPO's paper does.

    As `tree_credit`, plus for every branch point further along the node's trunk
    `decay^d * A[trunk child of that branch point]`, d the number of actions from the node to that
    child (1 for the last action before the branch). BPO, arXiv 2607.14171.

    The paper does not say how several branch points add up on one prefix (here: a sum) nor which
    sibling a prefix counted once takes (here: the trunk's own continuation; the sum over all
    siblings is 0 identically). Given the prefix, A has expectation 0, so the propagated part
    teaches earlier actions nothing on average: it is here to reproduce, `tree_credit` to train.

    Args:
      parent: int32 `[N]`, parents before children, -1 for none.
      leaf_return: return of the whole path to each leaf, `[N]`, NaN where missing.
      mask: the node exists, bool `[N]`.
      is_action: the segment is one action, bool `[N]`; None for all. Others cost no discount.
      decay: lambda, in [0, 1]; 0 is no prefix credit.
      node_return: `"subtree_mean"` or `"leaf"`.
      compare: comparison among siblings, as in `tree_credit`.

    Returns:
      `TreeCredit` of arrays `[N]`.
    """
    local, siblings, counted = _local_credit(parent, leaf_return, mask, node_return, compare)
    credit = tree_credit(parent, leaf_return, mask, node_return=node_return, compare=compare)
    size = parent.size
    slot = jnp.where(counted & (parent >= 0), parent, size)
    trunk = jax.ops.segment_min(jnp.arange(size), slot, size)
    has_trunk = counted & (trunk < size)
    trunk = jnp.where(has_trunk, trunk, -1)
    steps = jnp.ones(size, jnp.float32) if is_action is None else is_action.astype(jnp.float32)
    discount = jnp.where(has_trunk, jnp.power(decay, steps)[trunk], 0.0)
    ahead = jnp.where(siblings > 1, local, 0.0)[trunk]
    prefix = _along(trunk, discount, discount * ahead)
    return credit._replace(advantage=credit.advantage + prefix)


def monte_carlo_values(
    parent: chex.Array,
    leaf_return: chex.Array,
    mask: chex.Array,
    *,
    node_return: str = "subtree_mean",
) -> TreeCredit:
    """Credit by Monte Carlo values: `A = r + V(next state) - V(state)`.

    V of a state is the mean return of the continuations sampled from it: the node return of the
    segment that leads to it. With returns of whole paths r is part of V(next state), and a step is
    what lies between two branch points. VinePPO, arXiv 2410.01679, with the tree's own
    continuations in place of extra rollouts: the step's own sample is among those of V(state), so
    the expectation shrinks by (K - 1) / K.

    Args:
      parent: int32 `[N]`, parents before children, -1 for none.
      leaf_return: return of the whole path to each leaf, `[N]`, NaN where missing.
      mask: the node exists, bool `[N]`.
      node_return: `"subtree_mean"` or `"leaf"`.

    Returns:
      `TreeCredit` of arrays `[N]`.
    """
    # The mean over siblings, itself included, is the parent's node return.
    return tree_credit(parent, leaf_return, mask, node_return=node_return, compare=group_mean)


def _local_credit(parent, leaf_return, mask, node_return, compare):
    """Advantage among siblings, number of counted siblings (itself included), counted nodes."""
    returns = node_returns(parent, leaf_return, mask, kind=node_return)
    counted = ~jnp.isnan(returns)
    return compare(returns, parent, counted), _siblings(parent, counted), counted


def _siblings(parent, mask):
    """Number of counted children of each node's parent, 0 without a parent."""
    slot = jnp.where(parent >= 0, parent, parent.size)
    children = jax.ops.segment_sum(mask.astype(jnp.int32), slot, parent.size)
    return jnp.where(parent >= 0, children[parent], 0)


@jax.jit
def _along(pointer, factor, increment):
    """`x[i] = increment[i] + factor[i] * x[pointer[i]]`, x = 0 beyond pointer -1.

    By pointer doubling: after k rounds every node has absorbed its next 2^k ancestors.
    """
    size = pointer.size
    pointer = jnp.append(jnp.where(pointer >= 0, pointer, size), size)
    factor, increment = jnp.append(factor, 0.0), jnp.append(increment, 0.0)

    def double(_, state):
        pointer, factor, increment = state
        increment = increment + factor * increment[pointer]
        return pointer[pointer], factor * factor[pointer], increment

    state = (pointer, factor, increment)
    return jax.lax.fori_loop(0, size.bit_length(), double, state)[2][:size]
