"""Expectation of tree credit, exact, by enumerating every outcome of tiny decision processes.

A process is a sequence of binary actions; the policy takes 1 with a probability that depends on
the history. Its parameters are one logit per history, so the score of an action is `a - p` at its
history, and the exact gradient of J = E[R] is known in closed form:
`dJ / dlogit[h] = P(reach h) p(1 - p) (E[R | h, 1] - E[R | h, 0])`.

The estimate is `sum over nodes of weight * advantage * score`: weights are path weights, the
denominator is the constant 1. Its expectation is taken over every outcome of every sampled node.
"""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sepo_jax import advantages

ROOT = 0
CREDITS = {
    "tree": advantages.tree_credit,
    "lambda": advantages.lambda_prefix_credit,
    "monte_carlo": advantages.monte_carlo_values,
}


class Process:
    """Binary decisions: `probability[h]` of action 1 and `reward[path]`, h and path as tuples."""

    def __init__(self, probability, reward):
        self.probability, self.reward = probability, reward
        self.histories = sorted(probability)

    def chance(self, path):
        factors = [
            self.probability[path[:i]] if a else 1 - self.probability[path[:i]]
            for i, a in enumerate(path)
        ]
        return np.prod(factors)

    def gradient(self):
        """Exact dJ / dlogit of every history, in the order of `histories`."""

        def value(prefix):
            below = [path for path in self.reward if path[: len(prefix)] == prefix]
            return sum(self.chance(path) * self.reward[path] for path in below) / self.chance(
                prefix
            )

        return np.array(
            [
                self.chance(h) * p * (1 - p) * (value((*h, 1)) - value((*h, 0)))
                for h, p in sorted(self.probability.items())
            ]
        )


def outcomes(process, parent, exists=lambda node, history: True):
    """Every outcome of a tree rollout as arrays (chance, leaf_return, mask, score).

    Node 0 is the virtual root; every other node samples one action given its ancestors' actions.
    `exists(node, history)` says whether a node is sampled, from what happened before it only.
    """
    size, depth = len(parent), len(process.histories[-1]) + 1
    rows = []

    def visit(node, actions, chance):
        if node == size:
            rows.append((chance, *read(actions)))
            return
        history = path_to(node, actions)[:-1]
        if None in history or not exists(node, history):
            visit(node + 1, [*actions, None], chance)
            return
        for action in (0, 1):
            p = process.probability[history]
            visit(node + 1, [*actions, action], chance * (p if action else 1 - p))

    def path_to(node, actions):
        path = []
        while node != ROOT:
            path.append(actions[node] if node < len(actions) else None)
            node = parent[node]
        return tuple(reversed(path))

    def read(actions):
        leaf_return, mask = np.full(size, np.nan), np.zeros(size, bool)
        score = np.zeros((size, len(process.histories)))
        mask[ROOT] = True
        for node in range(1, size):
            path = path_to(node, actions)
            if path[-1] is None:
                continue
            mask[node] = True
            score[node, process.histories.index(path[:-1])] = (
                path[-1] - process.probability[path[:-1]]
            )
            if len(path) == depth:
                leaf_return[node] = process.reward[path]
        return leaf_return, mask, score

    visit(1, [None], 1.0)
    chance, leaf_return, mask, score = (np.array(x) for x in zip(*rows, strict=True))
    np.testing.assert_allclose(chance.sum(), 1)
    return chance, leaf_return.astype(np.float32), mask, score


@functools.cache
def batched(credit, node_return):
    """A compiled credit over a batch of outcomes of one shape of tree."""
    one = functools.partial(CREDITS[credit], node_return=node_return)
    return jax.jit(jax.vmap(one, (None, 0, 0)))


def moments(credit, parent, sampled, *, node_return="subtree_mean", weigh=True):
    """Expectation and variance of the estimate, `[histories]` each."""
    chance, leaf_return, mask, score = sampled
    parent = jnp.array(parent, jnp.int32)
    result = batched(credit, node_return)(parent, jnp.array(leaf_return), jnp.array(mask))
    coefficient = np.array(result.advantage, np.float64)
    if weigh:
        coefficient = coefficient * np.array(result.weight)
    estimate = np.einsum("on,onh->oh", coefficient, score)
    mean = chance @ estimate
    return mean, chance @ (estimate - mean) ** 2


QUARTER = {(): 0.25, (0,): 0.25, (1,): 0.25}
# The counterexample: R = a1 + a2 with p = 1/4 everywhere. The first action adds 1 to the return
# whatever follows, so the true gradient at the first step is p (1 - p) * 1 = 3/16; each second
# history is reached with its own probability: 3/4 * 3/16 and 1/4 * 3/16.
TWO_STEPS = Process(QUARTER, {(a, b): a + b for a in (0, 1) for b in (0, 1)})
# Virtual root, two trunks, each forks into two at the second step: trees_per_prompt = 2, K = 2.
TWO_TRUNKS = [-1, 0, 0, 1, 1, 2, 2]
ONE_TRUNK = [-1, 0, 1, 1]


def test_true_gradient_of_the_counterexample():
    np.testing.assert_allclose(TWO_STEPS.gradient(), [3 / 16, 9 / 64, 3 / 64])


def test_tree_credit_gives_the_whole_gradient_of_the_counterexample():
    sampled = outcomes(TWO_STEPS, TWO_TRUNKS)
    assert len(sampled[0]) == 64  # two first and four second actions
    mean, _ = moments("tree", TWO_TRUNKS, sampled)
    np.testing.assert_allclose(mean, [3 / 16, 9 / 64, 3 / 64], atol=1e-6)


def test_lambda_prefix_credit_gives_nothing_to_the_earlier_step():
    sampled = outcomes(TWO_STEPS, ONE_TRUNK)
    mean, variance = moments("lambda", ONE_TRUNK, sampled)
    # Not identically 0, but 0 on average; the local gradient at the branch is right.
    np.testing.assert_allclose(mean, [0, 9 / 64, 3 / 64], atol=1e-6)
    assert variance[0] > 0.01


def test_one_tree_without_a_comparison_at_the_root_gives_nothing_to_the_earlier_step():
    mean, _ = moments("tree", ONE_TRUNK, outcomes(TWO_STEPS, ONE_TRUNK))
    np.testing.assert_allclose(mean, [0, 9 / 64, 3 / 64], atol=1e-6)


# Rewards without any structure, and probabilities that depend on the history.
RANDOM = np.random.default_rng(7)
TWO_RANDOM = Process(
    {(): 0.3, (0,): 0.6, (1,): 0.2},
    {path: RANDOM.normal() for path in itertools.product((0, 1), repeat=2)},
)
THREE_RANDOM = Process(
    {
        history: RANDOM.uniform(0.15, 0.85)
        for length in range(3)
        for history in itertools.product((0, 1), repeat=length)
    },
    {path: RANDOM.normal() for path in itertools.product((0, 1), repeat=3)},
)


def always(node, history):
    return True


SHAPES = {
    "no_branch": (TWO_RANDOM, [-1, 0, 0, 1, 2], always),
    "both_trunks": (TWO_RANDOM, TWO_TRUNKS, always),
    "one_trunk_of_two": (TWO_RANDOM, [-1, 0, 0, 1, 1, 1, 2], always),
    # Node 4 is forked only after action 1: chosen by the past, not by looking ahead.
    "adaptive": (TWO_RANDOM, TWO_TRUNKS, lambda node, h: node not in (4, 6) or h[0] == 1),
    # Trunk 1 forks at both later steps, the first one only after action 0; trunk 2 is a chain.
    "nested": (
        THREE_RANDOM,
        [-1, 0, 0, 1, 1, 2, 3, 3, 4, 5],
        lambda node, h: node != 4 or h[0] == 0,
    ),
    # The third action is forked three times below the trunk's own continuation.
    "deep": (THREE_RANDOM, [-1, 0, 0, 1, 2, 3, 3, 3, 4], always),
}


@functools.cache
def sampled_shape(name):
    return outcomes(*SHAPES[name])


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("node_return", advantages.NODE_RETURNS)
def test_tree_credit_is_unbiased_wherever_branches_do_not_look_ahead(name, node_return):
    process, parent, _ = SHAPES[name]
    mean, _ = moments("tree", parent, sampled_shape(name), node_return=node_return)
    np.testing.assert_allclose(mean, process.gradient(), atol=2e-6)


def test_without_path_weights_forked_states_count_too_often():
    process, parent, _ = SHAPES["adaptive"]
    mean, _ = moments("tree", parent, sampled_shape("adaptive"), weigh=False)
    # The first step is sampled twice, states after action 1 four times, after action 0 twice.
    np.testing.assert_allclose(mean, process.gradient() * [2, 2, 4], atol=2e-6)


def test_a_fork_chosen_by_looking_ahead_is_biased():
    # The fork is kept only where the trunk's own second action was 1, as a choice made on the
    # finished backbone can do. Weights cannot mend that.
    process, parent = TWO_RANDOM, TWO_TRUNKS
    chance, leaf_return, mask, score = outcomes(process, parent)
    mask = mask.copy()
    for trunk, fork in ((3, 4), (5, 6)):
        mask[:, fork] = score[:, trunk].sum(-1) > 0
    mean, _ = moments("tree", parent, (chance, leaf_return, mask, score))
    assert np.abs(mean - process.gradient()).max() > 0.01


def test_subtree_means_lower_the_variance():
    _, parent, _ = SHAPES["both_trunks"]
    sampled = sampled_shape("both_trunks")
    _, mean_variance = moments("tree", parent, sampled)
    _, leaf_variance = moments("tree", parent, sampled, node_return="leaf")
    assert mean_variance[0] < leaf_variance[0]
    np.testing.assert_allclose(mean_variance[1:], leaf_variance[1:], rtol=1e-5)


def test_monte_carlo_values_shrink_by_their_own_sample():
    # The step's own return is half of V(state) with two continuations: half of the gradient.
    mean, _ = moments("monte_carlo", TWO_TRUNKS, outcomes(TWO_STEPS, TWO_TRUNKS))
    np.testing.assert_allclose(mean, TWO_STEPS.gradient() / 2, atol=1e-6)


def test_missing_returns_that_do_not_depend_on_the_actions_keep_the_local_gradient():  # A04
    # The first fork's return is lost: its sibling becomes a chain that inherits, still unbiased.
    process, parent = TWO_RANDOM, TWO_TRUNKS
    chance, leaf_return, mask, score = outcomes(process, parent)
    leaf_return = leaf_return.copy()
    leaf_return[:, 3] = np.nan
    mean, _ = moments("tree", parent, (chance, leaf_return, mask, score))
    np.testing.assert_allclose(mean, process.gradient(), atol=2e-6)
