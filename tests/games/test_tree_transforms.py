"""Tree quantities under batching, jit, vmap, chunking and precision; their gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sepo_jax.games import (
    KUHN,
    LEDUC,
    Decision,
    Leaf,
    best_response,
    best_response_values,
    compile_game,
    expected_values,
    gains,
    nash_conv,
    tree,
)
from sepo_jax.games.kuhn import equilibrium_policy
from sepo_jax.games.leduc import leduc

# Batches and transformations.


@pytest.mark.parametrize("name", ["expected_values", "best_response_values", "gains", "nash_conv"])
def test_batched_equals_looped_vmapped_and_jitted(oracle, name):
    function = getattr(tree, name)
    policies = oracle.random_policies(KUHN, 6, pure=0.2).astype(np.float32)
    batched = function(KUHN, policies)
    looped = jnp.stack([function(KUHN, policy) for policy in policies])
    np.testing.assert_allclose(batched, looped, atol=1e-6)
    np.testing.assert_allclose(jax.vmap(lambda p: function(KUHN, p))(policies), looped, atol=1e-6)
    np.testing.assert_allclose(jax.jit(lambda p: function(KUHN, p))(policies), looped, atol=1e-6)
    square = function(KUHN, policies.reshape(2, 3, 12, 2))
    np.testing.assert_allclose(square.reshape(batched.shape), looped, atol=1e-6)


def test_permuting_a_batch_permutes_results(oracle):
    policies = oracle.random_policies(KUHN, 8)
    order = np.random.default_rng(0).permutation(8)
    np.testing.assert_allclose(
        gains(KUHN, policies[order]), np.asarray(gains(KUHN, policies))[order], atol=1e-7
    )


def test_batches_larger_than_a_chunk(oracle, monkeypatch):
    policies = oracle.random_policies(KUHN, 11, pure=0.1).astype(np.float32)
    whole = [gains(KUHN, policies), best_response(KUHN, policies), nash_conv(KUHN, policies)]
    monkeypatch.setattr(tree, "CHUNK_ELEMENTS", 4 * 26)  # four policies at a time
    jax.clear_caches()
    chunked = [gains(KUHN, policies), best_response(KUHN, policies), nash_conv(KUHN, policies)]
    jax.clear_caches()
    for one, other in zip(whole, chunked, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


def test_empty_batch():
    assert expected_values(KUHN, np.zeros((0, 12, 2))).shape == (0, 2)
    assert best_response(KUHN, np.zeros((3, 0, 12, 2))).shape == (3, 0, 12, 2)


def test_precision():
    policy = equilibrium_policy(1 / 5)
    assert expected_values(KUHN, policy).dtype == jnp.float32
    assert expected_values(KUHN, np.eye(2, dtype=int)[np.zeros(12, int)]).dtype == jnp.float32
    with jax.enable_x64(True):
        values = expected_values(KUHN, policy)
        assert values.dtype == jnp.float64
        np.testing.assert_allclose(values, [-1 / 18, 1 / 18], rtol=1e-14)
        np.testing.assert_allclose(
            nash_conv(LEDUC, LEDUC.legal_mask / LEDUC.legal_mask.sum(1, keepdims=True)),
            1709 / 360,
            rtol=1e-14,
        )


def test_numpy_passes_agree_with_jax(oracle):
    game = leduc(merge_suits=True)
    (policy,) = oracle.random_policies(game, 1, pure=0.2)
    for quantity, function in (
        ("expected", expected_values),
        ("best", best_response_values),
        ("gains", gains),
        ("response", best_response),
    ):
        on_host = tree.evaluate_on_host(game, quantity, policy)
        np.testing.assert_allclose(on_host, function(game, policy), atol=1e-5)


# Gradients.


def test_gradient_is_reach_times_action_value():
    # One player, two steps: value = p (q * 3 + (1 - q) * 5) + (1 - p) * 2, so the derivative by
    # the entry of "a" is 3 q + 5 (1 - q), and by the later entries 3 p and 5 p.
    late = Decision(0, "late", (Leaf((3, -3)), Leaf((5, -5))))
    game = compile_game(Decision(0, "early", (late, Leaf((2, -2)))))
    p, q = 0.25, 0.75
    policy = jnp.array([[p, 1 - p], [q, 1 - q]])
    gradient = jax.grad(lambda table: expected_values(game, table)[0])(policy)
    known = [[3 * q + 5 * (1 - q), 2], [3 * p, 5 * p]]
    np.testing.assert_allclose(gradient, known, rtol=1e-6)


@pytest.mark.parametrize("seed", [11, 14])
def test_gradient_against_finite_differences(oracle, random_games, seed):
    root, game = random_games[seed]
    with jax.enable_x64(True):
        policy = jnp.asarray(oracle.random_policies(game, 1, seed)[0])
        gradient = jax.jacobian(lambda table: expected_values(game, table)[0])(policy)
        for row, column in np.argwhere(game.legal_mask):
            step = np.zeros(policy.shape)
            step[row, column] = 1e-5
            # Outside the simplex the checks of public calls would refuse: recursion has none.
            up = oracle.expected(root, game, np.asarray(policy) + step)[0]
            down = oracle.expected(root, game, np.asarray(policy) - step)[0]
            np.testing.assert_allclose(gradient[row, column], (up - down) / 2e-5, atol=1e-8)


def test_values_and_gradients_are_finite_where_nothing_is_reached(oracle):
    policies = jnp.asarray(oracle.random_policies(KUHN, 3, pure=0.9))
    for function in (expected_values, best_response_values, gains):

        def total(table, function=function):
            return function(KUHN, table)[..., 0].sum()

        value, gradient = jax.value_and_grad(total)(policies)
        assert np.isfinite(value) and np.isfinite(gradient).all()
