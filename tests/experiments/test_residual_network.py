"""The network that is trained on the residual: its symmetries, its gradient, its training."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from script_modules import script_module

from sepo_jax.evaluation.matrix_domain import MatrixBenchmark
from sepo_jax.games.matrix import nash_conv

network = script_module("claims.residual_network")
control = script_module("claims.residual_control")
SMALL = network.Training(steps=120, batch=64, learning_rate=1e-2, width=12, depth=2)
# Compiled, as in training: a gradient can be right step by step and wrong when it is fused.
LOSS = jax.jit(partial(network.mean_residual, SMALL.network))
LOSS_AND_GRADIENT = jax.jit(jax.value_and_grad(LOSS))
SHAPES = [(2, 2), (3, 4), (5, 5)]


@pytest.fixture(scope="module")
def params():
    mask = jnp.ones(2, bool)
    return SMALL.network.init(jax.random.key(3), jnp.zeros((2, 2)), mask, mask)


def game(shape, seed=0):
    return np.random.default_rng(seed).uniform(-1, 1, shape)


def play(params, *games):
    return network.play_games(SMALL, params, games)


@pytest.mark.parametrize("shape", SHAPES)
def test_answers_follow_a_permutation_of_the_actions(params, shape):
    table = game(shape)
    rows, cols = (np.random.default_rng(1).permutation(size) for size in shape)
    (row, col), (permuted_row, permuted_col) = play(params, table, table[np.ix_(rows, cols)])
    np.testing.assert_allclose(permuted_row, row[rows], atol=1e-5)
    np.testing.assert_allclose(permuted_col, col[cols], atol=1e-5)
    assert np.ptp(row) > 1e-3  # actions are told apart at all


@pytest.mark.parametrize("shape", SHAPES)
def test_answers_follow_a_swap_of_seats_and_no_change_of_unit(params, shape):
    table = game(shape)
    (row, col), swapped, scaled = play(params, table, -table.T, 7 * table - 3)
    for own, other, same in zip((row, col), reversed(swapped), scaled, strict=True):
        np.testing.assert_allclose(other, own, atol=1e-5)
        np.testing.assert_allclose(same, own, atol=1e-5)


def padded(table, size, fill):
    wide = np.full((size, size), fill)
    wide[: table.shape[0], : table.shape[1]] = table
    return wide, *(np.arange(size) < count for count in table.shape)


@pytest.mark.slow
@pytest.mark.parametrize("fill", [50.0, np.nan])
@pytest.mark.parametrize("shape", SHAPES[:2])
def test_padding_changes_neither_answer_nor_loss_nor_gradient(params, shape, fill):
    table = game(shape)
    whole = [np.ones(size, bool) for size in shape]
    wide = padded(table, 5, fill)
    plain = SMALL.network.apply(params, table, *whole)
    for own, other in zip(plain, SMALL.network.apply(params, *wide), strict=True):
        np.testing.assert_allclose(other[: own.size], own, atol=1e-6)
        assert (np.asarray(other[own.size :]) == 0).all()
    loss, gradient = LOSS_AND_GRADIENT(params, table[None], *(mask[None] for mask in whole))
    other_loss, other = LOSS_AND_GRADIENT(params, *(array[None] for array in wide))
    assert other_loss == pytest.approx(float(loss), abs=1e-6)
    jax.tree.map(partial(np.testing.assert_allclose, atol=1e-5), other, gradient)


def test_the_loss_is_the_residual_relative_to_the_range(params):
    tables = 4 * np.stack([game((3, 3), seed) for seed in range(5)]) + 1
    masks = np.ones((5, 3), bool)
    row, col = (np.asarray(each) for each in SMALL.network.apply(params, tables, masks, masks))
    expected = np.asarray(nash_conv(tables, row, col)) / np.ptp(tables, axis=(1, 2))
    loss = LOSS(params, tables, masks, masks)
    assert loss == pytest.approx(expected.mean(), rel=1e-5)
    # All payoffs equal: every profile is an equilibrium.
    assert LOSS(params, np.ones((5, 3, 3)), masks, masks) == 0


def moved(params, direction, step):
    return jax.tree.map(lambda leaf, change: leaf + step * change, params, direction)


def test_the_gradient_is_that_of_finite_differences(params):
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), params)
        payoffs, mask = network.drawn_games(jax.random.key(0), 16)
        payoffs = jnp.asarray(payoffs, jnp.float64)
        _, gradient = LOSS_AND_GRADIENT(wide, payoffs, mask, mask)
        leaves, tree = jax.tree.flatten(gradient)
        for seed in range(3):
            draws = np.random.default_rng(seed)
            direction = tree.unflatten([draws.normal(size=leaf.shape) for leaf in leaves])
            slope = sum(
                float((a * b).sum())
                for a, b in zip(leaves, jax.tree.leaves(direction), strict=True)
            )
            ends = [
                float(LOSS(moved(wide, direction, step), payoffs, mask, mask))
                for step in (1e-6, -1e-6)
            ]
            assert (ends[0] - ends[1]) / 2e-6 == pytest.approx(slope, rel=1e-4, abs=1e-7)
            assert abs(slope) > 1e-4


def test_games_to_train_on_are_of_both_sizes_and_never_alike():
    payoffs, mask = network.drawn_games(jax.random.key(0), 9)
    assert payoffs.shape == (9, 3, 3) and np.asarray(mask.sum(1)).tolist() == [2] * 5 + [3] * 4
    assert -1 <= payoffs.min() < -0.8 and 0.8 < payoffs.max() <= 1
    # No payoff is one of the hundredths of the benchmark.
    assert np.abs(100 * payoffs - np.round(100 * payoffs)).min() > 1e-4
    other, _ = network.drawn_games(jax.random.key(1), 9)
    assert (np.asarray(payoffs) != np.asarray(other)).all()


@pytest.mark.slow
def test_training_lowers_the_residual_of_games_it_has_not_seen():
    arms = ("dense/2", "dense/3", "dense/4")
    domain = MatrixBenchmark(arms=arms)
    tasks = domain.evaluation_tasks(40, seed=1)
    params, losses = network.train_residual(SMALL, 0)
    assert losses.shape == (SMALL.steps,) and losses[-10:].mean() < losses[:3].mean() / 3
    again, _ = network.train_residual(SMALL, 0)
    other, _ = network.train_residual(SMALL, 1)
    kernels = [jax.tree.leaves(each)[1] for each in (params, again, other)]
    assert (kernels[0] == kernels[1]).all() and not (kernels[0] == kernels[2]).all()
    figures = control.control_figures(SMALL, 0, domain, tasks)
    best = domain.baselines(tasks)["best_pure"]
    for arm in arms:
        assert figures[f"{arm}/valid"] == 1.0
    assert figures["dense/2/success"] > best["dense/2/success"] + 0.1
    assert figures["dense/3/residual"] < best["dense/3/residual"] / 2
    assert figures["loss"] == pytest.approx(float(losses[-12:].mean()))
