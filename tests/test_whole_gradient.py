"""The whole gradient, exact by enumeration: forests, packing, credit and objective together.

A decision process of two Bernoulli actions with reward R[a1, a2]. Every outcome of sampling and
branching is built as a forest, packed and differentiated; outcomes are weighted by their
probability. The sum must be the gradient of the expected return.
"""

import itertools
import warnings
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sepo_jax.algorithms import get_algorithm
from sepo_jax.credit import prepare
from sepo_jax.forest import ForestBuilder
from sepo_jax.objective import make_objective
from sepo_jax.policy import TokenScores

PROMPT = 2  # tokens 0 and 1 are the actions
SIZES = {"B": 1, "T": 16, "S": 16, "A": 16, "Q": 8}


pytestmark = pytest.mark.usefixtures("compile_fast")


class BernoulliPolicy(NamedTuple):
    """P(action 1) = sigmoid of params[0] at first, of params[1 + a1] after action a1."""

    def log_probs(
        self, params, tokens, positions, segment, ancestors, source, target, *, temperature, **_
    ):
        state = jnp.where(tokens == PROMPT, 0, 1 + tokens)
        logit = params[jnp.take_along_axis(state, source, axis=-1)] / temperature
        logp = jax.nn.log_sigmoid(jnp.where(target == 1, logit, -logit))
        return TokenScores(logp=logp, entropy=jnp.zeros_like(logp), value=None)


PARAMS = jnp.array([-np.log(3.0), 0.3, -0.8])  # the first action is 1 with probability 1/4
P = np.asarray(jax.nn.sigmoid(PARAMS), np.float64)


def probability(first, *second):
    """Of a first action and of independent second actions after it."""
    chosen = P[0] if first else 1 - P[0]
    for action in second:
        chosen *= P[1 + first] if action else 1 - P[1 + first]
    return chosen


def exact_gradient(reward):
    """Of sum over a1, a2 of p(a1) p(a2 | a1) R[a1, a2]; d sigmoid = p (1 - p)."""
    after = [(1 - P[1 + a]) * reward[a, 0] + P[1 + a] * reward[a, 1] for a in (0, 1)]
    slope = P * (1 - P)
    return np.array(
        [
            slope[0] * (after[1] - after[0]),
            (1 - P[0]) * slope[1] * (reward[0, 1] - reward[0, 0]),
            P[0] * slope[2] * (reward[1, 1] - reward[1, 0]),
        ]
    )


def add_tree(builder, prompt, reward, first, seconds):
    if prompt is None:
        prompt = builder.add([PROMPT])
    trunk = builder.add([first], prompt, is_action=True, behavior_logp=[np.log(probability(first))])
    for action in seconds:
        logp = np.log(probability(first, action) / probability(first))
        builder.add(
            [action], trunk, is_action=True, behavior_logp=[logp], reward=reward[first, action]
        )


def outcomes(branches):
    """Every tree and its probability; `branches(first)` continuations are sampled."""
    for first in (0, 1):
        for seconds in itertools.product((0, 1), repeat=branches(first)):
            yield (first, seconds), probability(first, *seconds)


def expected_gradient(row, reward, *, trees, branches, shared_prompt=False):
    """Minus the expected gradient of the loss over all outcomes of `trees` trees of a prompt."""
    batches, chances = [], []
    for sampled in itertools.product(list(outcomes(branches)), repeat=trees):
        builder = ForestBuilder()
        prompt = builder.add([PROMPT]) if shared_prompt else None
        for (first, seconds), _ in sampled:
            add_tree(builder, prompt, reward, first, seconds)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            batch, _ = prepare(row, builder.build(), row_length=16, at_least=SIZES)
        batches.append(batch)
        chances.append(np.prod([chance for _, chance in sampled]))
    assert np.sum(chances) == pytest.approx(1.0)
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *batches)
    gradients = gradient_of(row)(PARAMS, stacked)
    return -np.einsum("o,op->p", chances, np.asarray(gradients, np.float64))


def gradient_of(row, cache={}):  # noqa: B006  (compiled functions are shared between tests)
    key = (row.ratio, row.surrogate, row.reduce)
    if key not in cache:
        objective = make_objective(row, BernoulliPolicy())
        loss = lambda params, batch: objective(params, batch)[0]  # noqa: E731
        cache[key] = jax.jit(jax.vmap(jax.grad(loss), in_axes=(None, 0)))
    return cache[key]


REWARDS = {
    "first action only": np.array([[0.0, 0.0], [1.0, 1.0]]),
    "both": np.array([[0.3, -1.0], [2.0, 0.7]]),
}
TWO = lambda first: 2  # noqa: E731
SOMETIMES = lambda first: 3 if first else 1  # noqa: E731  (branch where action 1 led)


def bpo(**changes):
    """The row of BPO with a reduction that divides by a constant: paths' weights add up to 1."""
    return get_algorithm("bpo", reduce="sequence_sum_mean", **changes)


def test_the_counterexample():
    # The return is the first action: J = p, dJ = p (1 - p) = 3/16 at p = 1/4. Both children of the
    # branch point earn the same, so what is propagated from there is 0 identically.
    reward = REWARDS["first action only"]
    assert exact_gradient(reward)[0] == pytest.approx(3 / 16)
    tree = expected_gradient(bpo(), reward, trees=2, branches=TWO)
    np.testing.assert_allclose(tree, [3 / 16, 0, 0], atol=1e-6)
    for credit in ("lambda", "none"):
        propagated = expected_gradient(bpo(prefix_credit=credit), reward, trees=2, branches=TWO)
        np.testing.assert_allclose(propagated, [0, 0, 0], atol=1e-6)


@pytest.mark.parametrize("reward", REWARDS.values(), ids=REWARDS)
@pytest.mark.parametrize("node_return", ["subtree_mean", "leaf"])
@pytest.mark.parametrize("shared_prompt", [False, True])
def test_tree_credit_is_unbiased(reward, node_return, shared_prompt):
    result = expected_gradient(
        bpo(node_return=node_return), reward, trees=2, branches=TWO, shared_prompt=shared_prompt
    )
    np.testing.assert_allclose(result, exact_gradient(reward), atol=1e-5)


def test_tree_credit_is_unbiased_where_only_some_states_branch():
    reward = REWARDS["both"]
    exact = exact_gradient(reward)
    result = expected_gradient(bpo(), reward, trees=2, branches=SOMETIMES)
    np.testing.assert_allclose(result, exact, atol=1e-5)
    # Without the path weights the states that branch count more often than they are visited.
    uniform = expected_gradient(bpo(segment_weight="uniform"), reward, trees=2, branches=SOMETIMES)
    assert np.abs(uniform / uniform[0] - exact / exact[0]).max() > 0.1


@pytest.mark.parametrize("shared_prompt", [False, True])
def test_local_credit_misses_the_trunk(shared_prompt):
    reward = REWARDS["both"]
    for credit in ("lambda", "none"):
        result = expected_gradient(
            bpo(prefix_credit=credit), reward, trees=2, branches=TWO, shared_prompt=shared_prompt
        )
        # Right below the branch point, nothing above it.
        np.testing.assert_allclose(result, [0, *exact_gradient(reward)[1:]], atol=1e-5)


def test_one_tree_of_a_prompt_is_not_enough():
    reward = REWARDS["both"]
    result = expected_gradient(bpo(), reward, trees=1, branches=TWO)
    np.testing.assert_allclose(result, [0, *exact_gradient(reward)[1:]], atol=1e-5)


@pytest.mark.parametrize(
    ("name", "changes", "share"),
    [
        ("reinforce", {"reduce": "sequence_sum_mean"}, 1.0),
        ("rloo", {}, 1.0),
        ("rloo", {"ratio": "token", "reduce": "sequence_sum_mean"}, 1.0),
        # The group's mean holds the sample itself: (G - 1) / G of the gradient, G = 2.
        ("dr_grpo", {"constant_length": 1}, 0.5),
        ("bpo", {"reduce": "sequence_sum_mean"}, 1.0),
    ],
)
def test_independent_samples_are_unbiased(name, changes, share):
    row = get_algorithm(name, **changes)
    for reward in REWARDS.values():
        result = expected_gradient(row, reward, trees=2, branches=lambda first: 1)
        np.testing.assert_allclose(result, share * exact_gradient(reward), atol=1e-5)
