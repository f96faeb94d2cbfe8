"""Kept keys and values in blocks and segments are those of a plain array of positions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sepo_jax.policy import fork_slots, segments
from sepo_jax.policy.cache import init_cache

SLOTS, HEADS, SIZE, CAPACITY = 3, 2, 4, 600


@pytest.mark.parametrize(
    ("capacity", "counts", "positions"),
    [
        (12, (1,), 12),
        (128, (1,), 128),
        (129, (1, 1), 256),
        (512, (1, 1, 2), 512),
        (600, (1, 1, 2, 1), 640),
        (4096, (1, 1, 2, 4, 8, 16), 4096),
    ],
)
def test_segments_double_and_hold_the_capacity(capacity, counts, positions):
    assert segments.block_counts(capacity) == counts
    keys, values = segments.init_segments(SLOTS, HEADS, SIZE, capacity, jnp.float32)
    assert segments.starts(keys)[-1] == positions
    block = min(capacity, 128)
    assert [part.shape for part in keys] == [(SLOTS, HEADS, n, SIZE, block) for n in counts]
    assert [part.shape for part in values] == [(SLOTS, HEADS, n, block, SIZE) for n in counts]


def drawn(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def plain(parts, values):
    """A layer's keys or values as [S, K, positions, D]."""
    axes = (0, 1, 2, 3, 4) if values else (0, 1, 2, 4, 3)
    return np.concatenate(
        [np.transpose(part, axes).reshape(SLOTS, HEADS, -1, SIZE) for part in parts], axis=2
    )


@jax.jit
def put(keys, values, key, value, slots, positions):
    return segments.write(keys, values, key, value, slots, positions)


def test_what_is_written_lies_at_its_positions_and_nothing_else_changes():
    stored = segments.init_segments(SLOTS, HEADS, SIZE, CAPACITY, jnp.float32)
    key, value = drawn(2, 300, HEADS, SIZE), drawn(2, 300, HEADS, SIZE, seed=1)
    # Rows that cross several ends of segments; the last positions, and slot 7, do not exist.
    positions = np.stack([np.arange(100, 400), np.arange(400, 700)]).astype(np.int32)
    written = put(*stored, key, value, np.array([[2], [0]]), positions)
    written = put(*written, key[:1], value[:1], np.array([[7]]), positions[:1])
    for parts, rows, is_value in zip(written, (key, value), (False, True), strict=True):
        expected = np.zeros((SLOTS, HEADS, 640, SIZE), np.float32)
        expected[2, :, 100:400] = rows[0].swapaxes(0, 1)
        expected[0, :, 400:640] = rows[1, :240].swapaxes(0, 1)
        np.testing.assert_array_equal(plain(parts, is_value), expected)


@pytest.mark.parametrize("window", [None, 200])
@pytest.mark.parametrize("used", [2, 4])
def test_attention_is_the_softmax_over_the_positions_up_to_its_own(window, used):
    stored = segments.init_segments(SLOTS, HEADS, SIZE, CAPACITY, jnp.float32)
    shapes = [[part.shape for part in parts] for parts in stored]
    keys, values = (
        tuple(3 * drawn(*shape, seed=index) for index, shape in enumerate(sizes))
        for sizes in shapes
    )
    queries = drawn(2, 2, 6, SIZE)  # 2 rows of 2 tokens, 3 query heads a key head
    positions, rows = np.array([[3, 4], [199, 200]]), np.array([2, 0])
    mixed = segments.attend(
        queries, keys[:used], values[:used], lambda array: array[rows], positions,
        scale=0.7, window=window, precision="highest",
    )  # fmt: skip
    for row, slot in enumerate(rows):
        for token, position in enumerate(positions[row]):
            first = 0 if window is None else max(0, position - window + 1)
            for head in range(6):
                seen = slice(first, position + 1)
                key = plain(keys, False)[slot, head // 3, seen].astype(np.float64)
                scores = np.exp(0.7 * key @ queries[row, token, head])
                value = plain(values, True)[slot, head // 3, seen]
                expected = scores @ value / scores.sum()
                found = mixed[row, token, head * SIZE : (head + 1) * SIZE]
                np.testing.assert_allclose(found, expected, atol=2e-5)


def test_a_copy_takes_the_segments_that_it_needs(policy):
    cache = init_cache(policy.config, SLOTS, CAPACITY)
    cache = jax.tree.map(lambda leaf: jnp.asarray(drawn(*leaf.shape)), cache)
    cache = cache.replace(lengths=jnp.array([600, 300, 5]))
    # Two are carried out: the second cuts what the first put there.
    forks = jnp.array([[1, 2, 200], [2, 2, 150], [0, 1, -1]], jnp.int32)
    forked = jax.jit(fork_slots)(cache, forks, 2)
    np.testing.assert_array_equal(forked.lengths, [600, 300, 150])
    for before, after in zip(cache.keys[1], forked.keys[1], strict=True):
        np.testing.assert_array_equal(after[:2], before[:2])
    same = [bool((part[2] == part[1]).all()) for part in forked.values[0]]
    kept = [
        bool((after[2] == before[2]).all())
        for before, after in zip(cache.values[0], forked.values[0], strict=True)
    ]
    assert same == [True, True, False, False] and kept == [False, False, True, True]
