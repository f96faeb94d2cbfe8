"""What branching does to the policy gradient: expectation, bias and variance of every estimator.

The gradient of one prompt is what training would apply: its forest goes through
`credit.assign_credit`, is packed and filled, and the objective is differentiated by the
log-probability of each decision, where sampler and trainer agree. A tabular softmax policy turns
these slopes into a gradient by its logits, in float64. The slopes are float32, so expectations over
every outcome are exact to about 1e-7 of the returns, and to rounding of float64 where all numbers
that occur are binary fractions (such as probabilities of 1/4, whole returns, and two siblings).

Shapes: G groups (prompts), O observations, A actions, P = O A logits.
"""

import dataclasses
import functools
import warnings
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..algorithms import Algorithm, get_algorithm
from ..credit import assign_credit
from ..domains.arguments import check_integer
from ..domains.decision_process import DecisionProcess, Exact
from ..forest import Batch, batch_sizes, bucket, concatenate, fill, pack
from ..objective import make_objective
from ..policy import TokenScores
from .branching_trees import Block, Group, block_forest, blocks

_CHUNK = 4096  # segments of a forest that credit is assigned to at once
# With this reduction the whole loss of a prompt is divided by a constant, and its trees' path
# weights add up to it.
_SUM = "sequence_sum_mean"
ESTIMATORS: dict[str, Algorithm] = {
    "tree": get_algorithm("bpo", reduce=_SUM),
    "lambda": get_algorithm("bpo", reduce=_SUM, prefix_credit="lambda"),
    "none": get_algorithm("bpo", reduce=_SUM, prefix_credit="none"),
    "vineppo": get_algorithm("vineppo", reduce=_SUM),
    "tree_grpo": get_algorithm("tree_grpo"),
    "tree_grpo_sum": get_algorithm("tree_grpo", compare="root_plus_tree"),
    "gigpo": get_algorithm("gigpo"),
    "rloo": get_algorithm("rloo"),
    "grpo": get_algorithm("grpo"),
}
"""Rows to compare; of rows that compare siblings with the reduction that keeps them unbiased."""


class _Given:
    """A policy whose parameters are the log-probabilities themselves, [B, A]."""

    def log_probs(self, params, *_, **__) -> TokenScores:
        return TokenScores(logp=params, entropy=jnp.zeros_like(params), value=None)


def gradients(
    row: str | Algorithm, process: DecisionProcess, policy: np.ndarray, groups: Sequence[Group]
) -> np.ndarray:
    """Gradient by the logits that one prompt gives under a row of the table, float64 [G, O, A].

    It points uphill: minus the derivative of the loss.
    """
    row, policy = get_algorithm(row), process.check_policy(policy)
    found = np.zeros((len(groups), *policy.shape))
    known = blocks(process, groups)
    packed = _packed(known)
    shares = _shares(known)
    # One size for all, so that they share a compilation.
    width = bucket(max(len(rows) for share in shares for _, rows in share))
    for share in shares:
        for (number, rows), credit in zip(share, _credit(row, process, known, share), strict=True):
            block = known[number]
            slopes = _slopes(row, block, packed[number], credit, width)
            found[block.index[rows]] = _by_logits(process, policy, block, rows, slopes)
    return found


def advantages(
    row: str | Algorithm, process: DecisionProcess, groups: Sequence[Group]
) -> list[list[np.ndarray]]:
    """Advantages that a row gives, group -> path of `Group.paths` -> [decisions of the path]."""
    row, found = get_algorithm(row), [[] for _ in groups]
    known = blocks(process, groups)
    for share in _shares(known):
        for (number, rows), credit in zip(share, _credit(row, process, known, share), strict=True):
            block = known[number]
            of_decision = credit["advantage"][:, block.template.offsets[block.decision]]
            for index, values in zip(block.index[rows], np.float64(of_decision), strict=True):
                lengths = [len(path.actions) for path in groups[index].paths()]
                found[index] = np.split(values, np.cumsum(lengths)[:-1])
    return found


def _shares(known: Sequence[Block]) -> list[list[tuple[int, np.ndarray]]]:
    """Parts of blocks whose credit is assigned together, as (number of the block, its rows)."""
    shares: list[list[tuple[int, np.ndarray]]] = [[]]
    free = _CHUNK
    for number, block in enumerate(known):
        size, first, count = block.template.num_segments, 0, len(block.index)
        while first < count:
            if free < size and shares[-1]:
                shares.append([])
                free = _CHUNK
            last = min(first + max(free // size, 1), count)
            shares[-1].append((number, np.arange(first, last)))
            free -= size * (last - first)
            first = last
    return shares


def _credit(
    row: Algorithm,
    process: DecisionProcess,
    known: Sequence[Block],
    share: Sequence[tuple[int, np.ndarray]],
) -> list[dict[str, np.ndarray]]:
    """Credit of each part of a share, the fields of `Credit` as [groups, size]."""
    parts = [block_forest(process, known[number], rows) for number, rows in share]
    with warnings.catch_warnings():
        # A single tree has nothing to be compared with at its root, which is then meant.
        warnings.filterwarnings("ignore", message=".*whose advantage is 0")
        warnings.filterwarnings("ignore", message="nothing to learn from")
        arrays = assign_credit(row, concatenate(parts)).arrays()
    sizes = {name: [part.num_tokens for part in parts] for name in arrays}
    sizes["segment_weight"] = [part.num_segments for part in parts]
    sizes["path_weight"] = sizes["path_advantage"] = [len(part.leaves()) for part in parts]
    cut = {name: np.split(each, np.cumsum(sizes[name])[:-1]) for name, each in arrays.items()}
    return [
        {name: pieces[place].reshape(len(rows), -1) for name, pieces in cut.items()}
        for place, (_, rows) in enumerate(share)
    ]


def _packed(known: Sequence[Block]) -> list[Batch]:
    """The forest of each block in one row, all rows of one shape: they share compilations."""
    length = max(block.template.num_tokens for block in known)
    sizes = [batch_sizes(pack(block.template, row_length=length)) for block in known]
    most = {axis: max(size[axis] for size in sizes) for axis in "BTSAQ"}
    return [pack(block.template, row_length=length, at_least=most) for block in known]


def _slopes(
    row: Algorithm, block: Block, batch: Batch, credit: dict[str, np.ndarray], width: int
) -> np.ndarray:
    """Minus the derivative of each group's loss by the log-probability of each decision, [G, n]."""
    count = len(credit["advantage"])
    filled = [
        fill(batch, **{name: c[group] for name, c in credit.items()}) for group in range(count)
    ]
    filled += [filled[-1]] * (width - count)
    changed = {name: np.stack([each[name] for each in filled]) for name in credit}
    slope = np.asarray(_differentiate(_objective_half(row), batch, changed), np.float64)[:count]
    token = np.asarray(batch.token_index).ravel()
    of_token = np.zeros((count, block.template.num_tokens))
    of_token[:, token[token >= 0]] = slope.reshape(count, -1)[:, token >= 0]
    return of_token[:, block.template.offsets[block.decision]]


@functools.partial(jax.jit, static_argnames="row")
def _differentiate(row: Algorithm, batch: Batch, changed: dict[str, jax.Array]) -> jax.Array:
    objective = make_objective(row, _Given())

    def gain(logp: jax.Array, fields: dict[str, jax.Array]) -> jax.Array:
        return -objective(logp, batch.replace(**fields))[0]

    return jax.vmap(jax.grad(gain), (None, 0))(batch.behavior_logp, changed)


def _objective_half(row: Algorithm) -> Algorithm:
    """The row with a fixed choice of all that only credit reads: one compilation for many rows."""
    return dataclasses.replace(
        row,
        name="",
        compare="root" if row.compares_trajectories else "parent",
        baseline="mean",
        scale="none",
        returns="episode",
        gamma=1.0,
        prefix_credit="tree",
        lambda_prefix=0.0,
        node_return="subtree_mean",
        segment_weight="uniform",
        observation_weight=1.0,
        source="",
    )


def _by_logits(
    process: DecisionProcess, policy: np.ndarray, block: Block, rows: np.ndarray, slopes: np.ndarray
) -> np.ndarray:
    """Sum over decisions of slope times the score, [G, O, A]: the score of action a at observation
    o is 1 at (o, a) minus the policy's row at o."""
    seen, actions = process.observation[block.states[rows]], block.actions[rows]
    group = np.broadcast_to(np.arange(len(slopes))[:, None], slopes.shape)
    taken = np.zeros((len(slopes), *policy.shape))
    np.add.at(taken, (group, seen, actions), slopes)
    return taken - taken.sum(axis=-1, keepdims=True) * policy


class Moments(NamedTuple):
    """Expectation and variance of a gradient estimate of one prompt.

    Attributes:
      mean: [O, A].
      covariance: of the flat gradient, [P, P].
      norm_mean, norm_variance: of its Euclidean norm.
      steps: expected number of decisions played in the environment.
      leaves: expected number of episodes played to the end.
    """

    mean: np.ndarray
    covariance: np.ndarray
    norm_mean: float
    norm_variance: float
    steps: float
    leaves: float

    @property
    def variance(self) -> float:
        """Trace of the covariance: mean squared distance from the mean."""
        return float(np.trace(self.covariance))

    @property
    def noise(self) -> float:
        """Variance over the squared norm of the mean: free of the scale of the estimate."""
        return self.variance / float((self.mean**2).sum())

    def noise_per_step(self) -> float:
        """Noise of an average over prompts that together take one step of the environment.

        A batch of b prompts has 1 / b of the variance of one and takes b times its steps, so the
        ratio of two of these is that of the variances at matched environment steps.
        """
        return self.noise * self.steps


def moments(groups: Sequence[Group], found: np.ndarray) -> Moments:
    """Moments of `gradients` [G, O, A] over groups with their chances."""
    chance = np.array([group.chance for group in groups])
    if abs(chance.sum() - 1) > 1e-9:
        raise ValueError(
            f"the chances of the groups add up to {chance.sum()}, not 1; pass all of them"
        )
    flat = found.reshape(len(groups), -1)
    mean, norm = chance @ flat, np.linalg.norm(flat, axis=1)
    centred = flat - mean
    norm_mean = float(chance @ norm)
    return Moments(
        mean=mean.reshape(found.shape[1:]),
        covariance=(centred * chance[:, None]).T @ centred,
        norm_mean=norm_mean,
        norm_variance=float(chance @ (norm - norm_mean) ** 2),
        steps=float(chance @ [group.steps() for group in groups]),
        leaves=float(chance @ [len(group.paths()) for group in groups]),
    )


def norm_noise(found: np.ndarray, prompts: int) -> float:
    """Variance of the norm of a batch gradient over its squared mean.

    Of one prompt it says little: a division by the standard deviation of the group's returns makes
    the norms of single prompts alike without making their sum any better.

    Args:
      found: `gradients` of sampled groups, [G, O, A]; a rest that fills no batch is left out.
      prompts: over which a batch averages; there must be two batches.
    """
    batches = len(found) // check_integer("prompts", prompts, minimum=1)
    if batches < 2:
        raise ValueError(
            f"{len(found)} groups make {batches} batches of {prompts}; give two or more"
        )
    flat = found[: batches * prompts].reshape(batches, prompts, -1).mean(axis=1)
    norm = np.linalg.norm(flat, axis=1)
    return float(norm.var(ddof=1) / norm.mean() ** 2)


class Bias(NamedTuple):
    """How far an expected gradient is from the exact one, both as vectors.

    Attributes:
      relative: |mean - exact| / |exact|.
      scale: factor s by which the exact gradient comes closest to the mean.
      direction: |mean - s exact| / |mean|, the sine of the angle between them; 0 where the mean is
        the exact gradient up to its length, 1 where it says nothing of it.
    """

    relative: float
    scale: float
    direction: float


def bias(mean: np.ndarray, gradient: np.ndarray) -> Bias:
    """Bias of an estimate's expectation [O, A] against the exact gradient [O, A], not 0."""
    size, length = np.linalg.norm(gradient), np.linalg.norm(mean)
    if not size > 0:
        raise ValueError("the exact gradient is 0: nothing to compare an estimate with")
    scale = float((mean * gradient).sum() / size**2)
    off = np.linalg.norm(mean - scale * gradient)
    return Bias(
        relative=float(np.linalg.norm(mean - gradient) / size),
        scale=scale,
        direction=float(off / length) if length > 0 else 1.0,
    )


def predicted_ratio(exact: Exact, depth: int, continuations: int, samples: int) -> float:
    """Predicted ratio of the variances of advantages at a branch point and of independent samples.

    Leave-one-out over K continuations of s_t has E[A^2] = K / (K - 1) E[Var(R | s_t)], over N
    independent samples N / (N - 1) Var(R). Below 1, the paper's comparison holds at this decision.

    Args:
      exact: what the policy earns.
      depth: t, the decision that is forked.
      continuations: K, at least 2.
      samples: N, at least 2.
    """
    if min(continuations, samples) < 2:
        raise ValueError(
            f"continuations={continuations} and samples={samples} must both be 2 or more: one has "
            "no others to be compared with"
        )
    factor = continuations / (continuations - 1) / (samples / (samples - 1))
    return factor * float(exact.within[depth]) / exact.variance


def mixture(first: Moments, second: Moments, share: float = 0.5) -> Moments:
    """Moments of `share` of one estimate plus the rest of another from samples of its own: the mix
    of root comparison and local comparison is one half "rloo" on independent samples and one half
    "none" on trees.

    The norm's moments are not known from those of the parts: nan.
    """
    if not 0 <= share <= 1:
        raise ValueError(f"share={share} must lie between 0 and 1")
    rest = 1 - share
    return Moments(
        mean=share * first.mean + rest * second.mean,
        covariance=share**2 * first.covariance + rest**2 * second.covariance,
        norm_mean=float("nan"),
        norm_variance=float("nan"),
        steps=first.steps + second.steps,
        leaves=first.leaves + second.leaves,
    )
