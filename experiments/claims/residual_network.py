"""A small network that is trained on the residual itself: no language, no sampling, no reward.

It reads payoffs and answers with both players' strategies; the loss is the two-sided residual of
its answer, differentiated. Its layers are exchangeable (Hartford et al. 2018, arXiv 1803.02879):
they treat all rows alike and all columns alike, so that one set of parameters plays games of any
size, and whoever permutes a game's actions permutes its answer. The column player is the row player
of the game -Aᵀ, so both answer with the same network.

    params, losses = train_residual(Training(), seed=0)
    answers = play_games(Training(), params, payoffs)   # games of any sizes -> [(row, col), ...]
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from sepo_jax.games.matrix import nash_conv
from sepo_jax.training.matrix_configs import TRAINED

_LOW = -1e30  # logit of an action that is not there


class Training(NamedTuple):
    """Numbers of network and training: Adam behind a global-norm clip, cosine decay to 0.

    Attributes:
      steps: updates. batch: fresh games of each, as many of every size in `TRAINED`.
      learning_rate: the first. width, depth: features and layers of the network.
    """

    steps: int = 4000
    batch: int = 256
    learning_rate: float = 3e-3
    width: int = 32
    depth: int = 4

    @property
    def network(self) -> "ResidualNetwork":
        """The network of these sizes."""
        return ResidualNetwork(self.width, self.depth)


def pooled(cells: chex.Array, valid: chex.Array, axis: tuple[int, ...]) -> chex.Array:
    """Mean and soft maximum Σ_k softmax(c)_k c_k of the valid cells c along `axis`, feature by
    feature; 0 where there are none.

    A hard maximum would not do: its compiled gradient compares cells for equality with a maximum
    of cells that were computed anew and rounded otherwise, and loses terms.

    Args:
      cells: [..., m, n, features]. valid: bool[..., m, n, 1]. axis: is kept with length 1.

    Returns:
      [..., 2 features], in the shape of `cells` otherwise but for `axis`.
    """
    count = jnp.maximum(valid.sum(axis, keepdims=True), 1)
    real = jnp.where(valid, cells, 0)
    weight = jnp.where(valid, jax.nn.softmax(jnp.where(valid, cells, _LOW), axis), 0)
    mean, most = real.sum(axis, keepdims=True) / count, (weight * real).sum(axis, keepdims=True)
    return jnp.concatenate([mean, most], axis=-1)


class ExchangeableLayer(nn.Module):
    """Each cell from itself, its row, its column and all cells, the last three `pooled`.

    [..., m, n, any] -> [..., m, n, features].
    """

    features: int

    @nn.compact
    def __call__(self, cells: chex.Array, valid: chex.Array) -> chex.Array:
        total = nn.Dense(self.features)(cells)
        for axis in ((-2,), (-3,), (-3, -2)):
            total += nn.Dense(self.features, use_bias=False)(pooled(cells, valid, axis))
        return total


class RowPlayer(nn.Module):
    """Logits of the row player's actions, [..., m], from payoffs [..., m, n] in [-1, 1]."""

    width: int
    depth: int

    @nn.compact
    def __call__(self, payoffs: chex.Array, valid: chex.Array) -> chex.Array:
        valid = valid[..., None]
        cells = ExchangeableLayer(self.width)(payoffs[..., None], valid)
        for _ in range(self.depth - 1):
            cells += ExchangeableLayer(self.width)(nn.gelu(nn.LayerNorm()(cells)), valid)
        rows = pooled(nn.gelu(nn.LayerNorm()(cells)), valid, (-2,))[..., 0, :]
        return nn.Dense(1)(rows)[..., 0]


class ResidualNetwork(nn.Module):
    """Both players' strategies in a zero-sum game; neither scale nor offset of payoffs matters.

    Attributes:
      width, depth: features and layers.
    """

    width: int
    depth: int

    @nn.compact
    def __call__(
        self, payoffs: chex.Array, row_mask: chex.Array, col_mask: chex.Array
    ) -> tuple[chex.Array, chex.Array]:
        """Strategies [..., m] and [..., n], 0 off the masks, of payoffs [..., m, n]."""
        valid = row_mask[..., :, None] & col_mask[..., None, :]
        table = symmetric_range(payoffs, valid)
        player = RowPlayer(self.width, self.depth)
        logits = (
            player(table, valid),
            player(-jnp.swapaxes(table, -1, -2), jnp.swapaxes(valid, -1, -2)),
        )
        row, col = (
            jax.nn.softmax(jnp.where(mask, each, _LOW))
            for mask, each in zip((row_mask, col_mask), logits, strict=True)
        )
        return row, col


def symmetric_range(payoffs: chex.Array, valid: chex.Array) -> chex.Array:
    """Payoffs moved to [-1, 1] game by game; 0 off the valid cells and in constant games."""
    cells = (-2, -1)
    low = jnp.where(valid, payoffs, jnp.inf).min(cells, keepdims=True)
    high = jnp.where(valid, payoffs, -jnp.inf).max(cells, keepdims=True)
    spread = high - low
    moved = (2 * payoffs - low - high) / jnp.where(spread > 0, spread, 1)
    return jnp.where(valid & (spread > 0), moved, 0)


def mean_residual(
    network: ResidualNetwork,
    params: chex.ArrayTree,
    payoffs: chex.Array,
    row_mask: chex.Array,
    col_mask: chex.Array,
) -> chex.Array:
    """The loss: mean over games [G, m, n] of the two-sided residual relative to the range."""
    row, col = network.apply(params, payoffs, row_mask, col_mask)
    table = symmetric_range(payoffs, row_mask[..., :, None] & col_mask[..., None, :])
    return nash_conv(table, row, col, row_mask, col_mask).mean() / 2


def drawn_games(key: chex.PRNGKey, count: int) -> tuple[chex.Array, chex.Array]:
    """Games to train on, payoffs uniform in [-1, 1]: [count, m, m] and bool[count, m] masks of
    both players, sizes in blocks.

    Payoffs are not rounded to hundredths as those of the benchmark are, so none is one of its.
    """
    most = max(TRAINED)
    sizes = jnp.repeat(jnp.array(TRAINED), -(-count // len(TRAINED)))[:count]
    payoffs = jax.random.uniform(key, (count, most, most), minval=-1.0, maxval=1.0)
    return payoffs, jnp.arange(most)[None] < sizes[:, None]


@partial(jax.jit, static_argnums=0)
def train_residual(training: Training, seed: chex.Array) -> tuple[chex.ArrayTree, chex.Array]:
    """Trained parameters, and the loss of every step before its update, [steps]."""
    network, start = training.network, jax.random.key(seed)
    game, mask = jnp.zeros((2, 2)), jnp.ones(2, bool)
    params = network.init(jax.random.fold_in(start, 0), game, mask, mask)
    schedule = optax.cosine_decay_schedule(training.learning_rate, training.steps)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(schedule))

    def step(state, number):
        params, moments = state
        payoffs, mask = drawn_games(jax.random.fold_in(start, number), training.batch)
        loss, gradient = jax.value_and_grad(partial(mean_residual, network))(
            params, payoffs, mask, mask
        )
        updates, moments = optimizer.update(gradient, moments)
        return (optax.apply_updates(params, updates), moments), loss

    state = (params, optimizer.init(params))
    (params, _), losses = jax.lax.scan(step, state, 1 + jnp.arange(training.steps))
    return params, losses


def play_games(
    training: Training, params: chex.ArrayTree, payoffs: Sequence[np.ndarray]
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Strategies of both players, float64[m] and [n], for games [m, n] of any sizes."""
    most = tuple(max(table.shape[axis] for table in payoffs) for axis in (0, 1))
    padded = np.zeros((len(payoffs), *most), np.float32)
    masks = [np.zeros((len(payoffs), size), bool) for size in most]
    for number, table in enumerate(payoffs):
        m, n = table.shape
        padded[number, :m, :n] = table
        masks[0][number, :m], masks[1][number, :n] = True, True
    found = jax.jit(training.network.apply)(params, padded, *masks)
    answers = []
    for number, table in enumerate(payoffs):
        pair = [
            np.asarray(strategies[number, :size], np.float64)
            for strategies, size in zip(found, table.shape, strict=True)
        ]
        answers.append(tuple(strategy / strategy.sum() for strategy in pair))
    return answers
