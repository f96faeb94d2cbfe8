"""Trees: returns of nodes, path weights, credits, against plain recursion on random trees."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sepo_jax import advantages

NAN = float("nan")
# Under jit, because a compiled credit is what every test calls many times.
CREDITS = {
    "tree": jax.jit(advantages.tree_credit),
    "lambda": jax.jit(advantages.lambda_prefix_credit),
    "monte_carlo": jax.jit(advantages.monte_carlo_values),
    "population": jax.jit(
        functools.partial(
            advantages.tree_credit,
            compare=functools.partial(advantages.group_mean, scale="population"),
        )
    ),
}


def tree(parent, leaf_return, mask=None):
    parent = jnp.array(parent, jnp.int32)
    mask = jnp.ones(parent.shape, bool) if mask is None else jnp.array(mask, bool)
    return parent, jnp.array(leaf_return, jnp.float32), mask


# A virtual root with two trunks; trunk 1 forks into 3, 4 and 5, trunk 2 into 6 and 7, and 7 goes
# on as a chain through 8 to 9.
PARENT = [-1, 0, 0, 1, 1, 1, 2, 2, 7, 8]
LEAF_RETURN = [NAN, NAN, NAN, 1, 2, 6, 0, NAN, NAN, 4]


def test_a_known_tree():
    credit = CREDITS["tree"](*tree(PARENT, LEAF_RETURN))
    # Trunks: 3 and 2. Below trunk 1: 1 - 4, 2 - 3.5, 6 - 1.5. Below trunk 2: 0 - 4, 4 - 0.
    want = [0, 1, -1, -3, -1.5, 4.5, -4, 4, 4, 4]
    np.testing.assert_allclose(credit.advantage, want, rtol=1e-6)
    sixth, quarter = 1 / 6, 1 / 4
    want = [1, 0.5, 0.5, sixth, sixth, sixth, quarter, quarter, quarter, quarter]
    np.testing.assert_allclose(credit.weight, want, rtol=1e-6)
    returns = advantages.node_returns(*tree(PARENT, LEAF_RETURN))
    np.testing.assert_allclose(returns, [2.5, 3, 2, 1, 2, 6, 0, 4, 4, 4], rtol=1e-6)
    leaf = advantages.node_returns(*tree(PARENT, LEAF_RETURN), kind="leaf")
    np.testing.assert_array_equal(leaf, [1, 1, 0, 1, 2, 6, 0, 4, 4, 4])


def test_monte_carlo_credit_is_the_difference_of_values():
    arguments = tree(PARENT, LEAF_RETURN)
    value = advantages.node_returns(*arguments)
    # r + V(next) - V(here) at branch children; the chain below 7 carries on its advantage.
    want = np.array(value - value[arguments[0]])
    want[[0, 8, 9]] = 0, want[7], want[7]
    np.testing.assert_allclose(
        CREDITS["monte_carlo"](*arguments).advantage, want, rtol=1e-6, atol=1e-6
    )


def test_independent_samples_are_leave_one_out():
    # One root, N children, no other branching: RLOO, with weights 1/N.
    returns = [0.5, 1.0, -2.0, 4.0]
    credit = advantages.tree_credit(*tree([-1, 0, 0, 0, 0], [NAN, *returns]))
    units = jnp.array(returns), jnp.zeros(4, jnp.int32), jnp.ones(4, bool)
    np.testing.assert_array_equal(credit.advantage[1:], advantages.leave_one_out(*units))
    np.testing.assert_array_equal(credit.weight, [1, 0.25, 0.25, 0.25, 0.25])
    scaled = CREDITS["population"](*tree([-1, 0, 0, 0, 0], [NAN, *returns]))
    np.testing.assert_array_equal(
        scaled.advantage[1:], advantages.group_mean(*units, scale="population")
    )


@pytest.mark.parametrize("name", CREDITS)
def test_a_chain_without_branch_points_has_no_credit(name):
    credit = CREDITS[name](*tree([-1, *range(9)], [NAN] * 9 + [5]))
    np.testing.assert_array_equal(credit, [[0] * 10, [1] * 10])


def test_lambda_credit_discounts_along_the_trunk():
    # Root, action 1, observation 2, action 3, then a fork into 4 (trunk) and 5; 4 forks again into
    # 6 (trunk) and 7. Returns 1, 3 below 4 and 6 at 5, so A[4] = -4, A[5] = 4, A[6] = -2, A[7] = 2.
    arguments = tree([-1, 0, 1, 2, 3, 3, 4, 4], [NAN, NAN, NAN, NAN, NAN, 6, 1, 3])
    action = jnp.array([0, 1, 0, 1, 1, 1, 1, 1], bool)
    credit = CREDITS["lambda"](*arguments, action, decay=0.5)
    own = [0, 0, 0, 0, -4, 4, -2, 2]
    # Action 3 is one action before 4 and two before 6: -2 - 0.5. Observation 2 and action 1 are one
    # more before both, the root another one.
    prefix = [-0.625, -1.25, -1.25, -2.5, -1, 0, 0, 0]
    np.testing.assert_allclose(credit.advantage, np.add(own, prefix), rtol=1e-6)
    without = CREDITS["lambda"](*arguments, action, decay=0.0)
    np.testing.assert_array_equal(without.advantage, own)


@pytest.mark.parametrize("name", CREDITS)
@pytest.mark.parametrize("value", [0.1, 0.3, 0.35, 0.95, 1 / 3])
def test_equal_returns_give_exactly_zero(name, value):  # A01
    # Subtree means of unequal depth and width are compared with single leaves.
    arguments = tree(PARENT, [value] * 10)
    np.testing.assert_array_equal(CREDITS[name](*arguments).advantage, np.zeros(10))
    if name == "tree":  # fused or not
        np.testing.assert_array_equal(advantages.tree_credit(*arguments).advantage, np.zeros(10))


@pytest.mark.parametrize("name", CREDITS)
def test_missing_leaf_equals_a_tree_without_it(name):  # A04
    missing = list(LEAF_RETURN)
    missing[4] = NAN
    credit = CREDITS[name](*tree(PARENT, missing))
    keep = np.array([i for i in range(10) if i != 4])
    names = {-1: -1} | {old: new for new, old in enumerate(keep)}
    without = CREDITS[name](*tree([names[PARENT[i]] for i in keep], np.array(LEAF_RETURN)[keep]))
    np.testing.assert_allclose(np.array(credit)[:, keep], np.array(without), rtol=1e-6)
    np.testing.assert_array_equal(np.array(credit)[:, 4], [0, 0])


@pytest.mark.parametrize("name", CREDITS)
def test_a_branch_with_one_survivor_becomes_a_chain(name):  # A04
    missing = list(LEAF_RETURN)
    missing[6] = NAN
    credit = CREDITS[name](*tree(PARENT, missing))
    np.testing.assert_array_equal(credit.advantage[7:], np.full(3, credit.advantage[2]))
    np.testing.assert_array_equal(credit.weight[6:], [0, 0.5, 0.5, 0.5])
    nothing = CREDITS[name](*tree(PARENT, [NAN] * 10))
    np.testing.assert_array_equal(nothing, np.zeros((2, 10)))


@pytest.mark.parametrize("name", CREDITS)
def test_padding_nodes_change_nothing(name):  # A20
    arguments = tree(PARENT, LEAF_RETURN)
    credit = CREDITS[name](*arguments)
    wide = [jnp.pad(x, (0, 6), constant_values=fill) for x, fill in zip(arguments, (-1, 9, 0))]  # noqa: B905
    padded = CREDITS[name](*wide)
    np.testing.assert_allclose(np.array(padded)[:, :10], np.array(credit), rtol=1e-6)
    assert not np.array(padded)[:, 10:].any()


@pytest.mark.parametrize("name", CREDITS)
def test_inner_returns_are_not_read(name):
    poisoned = [7.0 if np.isnan(r) else r for r in LEAF_RETURN]
    one, other = (CREDITS[name](*tree(PARENT, r)) for r in (LEAF_RETURN, poisoned))
    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("name", CREDITS)
def test_credits_map_over_a_leading_axis_under_jit(name):
    first, second = tree(PARENT, LEAF_RETURN), tree([-1, *range(9)], range(10))
    stacked = [jnp.stack(pair) for pair in zip(first, second, strict=True)]
    mapped = jax.vmap(CREDITS[name])(*stacked)
    np.testing.assert_allclose(np.array(mapped)[:, 0], np.array(CREDITS[name](*first)), rtol=1e-6)
    np.testing.assert_allclose(np.array(mapped)[:, 1], np.array(CREDITS[name](*second)))


@st.composite
def random_trees(draw, size=10):
    parent = [-1] + [draw(st.integers(-1 if i < 3 else 0, i - 1)) for i in range(1, size)]
    leaf_return = draw(
        st.lists(st.one_of(st.floats(-4, 4, width=32), st.just(NAN)), min_size=size, max_size=size)
    )
    return parent, leaf_return


def plain_credit(parent, leaf_return):
    """Returns, advantages and weights by recursion over lists of children."""
    size = len(parent)
    returns, advantage, weight = np.full(size, np.nan), np.zeros(size), np.zeros(size)
    children = [[c for c in range(size) if parent[c] == i] for i in range(size)]
    for node in reversed(range(size)):
        below = [returns[c] for c in children[node] if not np.isnan(returns[c])]
        if not children[node]:
            returns[node] = leaf_return[node]
        elif below:
            returns[node] = np.mean(below)
    for node in range(size):
        if np.isnan(returns[node]):
            continue
        up = parent[node]
        if up < 0:
            weight[node] = 1
            continue
        others = [returns[c] for c in children[up] if c != node and not np.isnan(returns[c])]
        weight[node] = weight[up] / (len(others) + 1)
        advantage[node] = returns[node] - np.mean(others) if others else advantage[up]
    return returns, advantage, weight


@settings(deadline=None, max_examples=40)
@given(random_trees())
def test_credit_agrees_with_plain_recursion(drawn):
    arguments = tree(*drawn)
    returns, advantage, weight = plain_credit(*drawn)
    np.testing.assert_allclose(advantages.node_returns(*arguments), returns, atol=1e-5)
    credit = CREDITS["tree"](*arguments)
    np.testing.assert_allclose(credit.advantage, advantage, atol=1e-5)
    np.testing.assert_allclose(credit.weight, weight, rtol=1e-6)


@settings(deadline=None, max_examples=25)
@given(random_trees())
def test_weights_of_the_leaves_of_a_root_add_up_to_one(drawn):
    parent, _, mask = tree(*drawn)
    weight = jax.jit(advantages.path_weight)(parent, mask)
    inner = {p for p in drawn[0] if p >= 0}
    leaves = [i for i in range(len(drawn[0])) if i not in inner]
    roots = drawn[0].count(-1)
    np.testing.assert_allclose(weight[jnp.array(leaves)].sum(), roots, rtol=1e-6)


@pytest.mark.parametrize("name", ["tree", "monte_carlo", "population"])
def test_siblings_advantages_add_up_to_zero(name):
    # With a single branch, prefix credit summed over the siblings cancels identically.
    credit = CREDITS[name](*tree(PARENT, LEAF_RETURN))
    for siblings in ([1, 2], [3, 4, 5], [6, 7]):
        np.testing.assert_allclose(credit.advantage[jnp.array(siblings)].sum(), 0, atol=1e-6)


def test_bad_input_is_refused():
    parent, leaf_return, mask = tree(PARENT, LEAF_RETURN)
    with pytest.raises(ValueError, match=r"'mean'. Did you mean 'subtree_mean'"):
        advantages.tree_credit(parent, leaf_return, mask, node_return="mean")
    with pytest.raises(AssertionError):
        advantages.node_returns(parent, leaf_return[:-1], mask)
    with pytest.raises(AssertionError):
        advantages.node_returns(parent.astype(jnp.float32), leaf_return, mask)
    with pytest.raises(AssertionError):
        advantages.path_weight(parent, mask.astype(jnp.float32))
