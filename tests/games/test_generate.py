"""Generators of matrix games: what is kept and what is not, splits, ranges, bad input."""

import itertools

import jax
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from sepo_jax.games import solve_zero_sum
from sepo_jax.games.generate import (
    content_hash,
    dense,
    pad_dominated,
    pad_random,
    permute,
    perturb,
    split,
)

KEY = jax.random.key(0)
# By core size: shapes of the padded games.
CORES = {2: ((4, 4), (8, 5)), 3: ((8, 8), (12, 12)), 4: ((6, 9), (5, 4)), 5: ((7, 7), (9, 12))}


def core_of(padded):
    """Cells of the core in the padded games [..., m0, n0]."""
    rows = np.take_along_axis(padded.payoffs, padded.row_index[..., :, None], axis=-2)
    return np.take_along_axis(rows, padded.col_index[..., None, :], axis=-1)


# Dominated padding keeps the solution, random padding does not.


@pytest.mark.parametrize(
    ("size", "m", "n"),
    [(size, *shape) for size, shapes in CORES.items() for shape in shapes],
)
def test_dominated_padding_keeps_value_and_strategies(size, m, n):
    games = dense(jax.random.key(size), 1000, size, size)
    padded = pad_dominated(jax.random.key(m + n), games, m, n)
    core, whole = solve_zero_sum(games), solve_zero_sum(padded.payoffs)
    assert max(core.relative_nash_conv.max(), whole.relative_nash_conv.max()) <= 1e-12
    np.testing.assert_allclose(whole.value, padded.scale * core.value + padded.offset, atol=1e-12)
    # No equilibrium plays what was added; on the rest the unique equilibrium is that of the core.
    row = np.take_along_axis(whole.row, padded.row_index, axis=-1)
    col = np.take_along_axis(whole.col, padded.col_index, axis=-1)
    np.testing.assert_allclose(row.sum(-1), 1, atol=1e-12)
    np.testing.assert_allclose(col.sum(-1), 1, atol=1e-12)
    assert core.unique.mean() > 0.9
    np.testing.assert_allclose(row[core.unique], core.row[core.unique], atol=1e-9)
    np.testing.assert_allclose(col[core.unique], core.col[core.unique], atol=1e-9)


@pytest.mark.parametrize(("scale", "offset"), [(1e-9, 0), (1e12, 0), (1, 1e6), (1e12, 1e15)])
def test_dominated_padding_in_any_unit(scale, offset):
    games = scale * dense(KEY, 50, 3, 3) + offset
    padded = pad_dominated(KEY, games, 6, 6, gap=(0.1 * scale, 0.5 * scale))
    solution, core = solve_zero_sum(padded.payoffs), solve_zero_sum(games)
    found = (solution.value - padded.offset) / padded.scale
    np.testing.assert_allclose(found, core.value, atol=1e-7 * scale)
    played = np.take_along_axis(solution.row, padded.row_index, axis=-1)
    np.testing.assert_allclose(played.sum(-1), 1, atol=1e-12)


def test_dominated_padding_of_other_shapes():
    games = dense(KEY, 200, 2, 3)
    padded = pad_dominated(KEY, games, 5, 3)
    values = solve_zero_sum(padded.payoffs).value
    core = solve_zero_sum(games).value
    np.testing.assert_allclose(values, padded.scale * core + padded.offset, atol=1e-12)
    same = pad_dominated(KEY, games, 2, 3)
    np.testing.assert_allclose(core_of(same), games, atol=1e-15)


def test_random_padding_changes_value_and_support():
    games = dense(KEY, 1000, 3, 3)
    padded = pad_random(KEY, games, 8, 8)
    np.testing.assert_array_equal(core_of(padded), games)
    core, whole = solve_zero_sum(games), solve_zero_sum(padded.payoffs)
    assert (np.abs(whole.value - core.value) < 1e-3).mean() < 0.02
    on_core = np.take_along_axis(whole.row, padded.row_index, axis=-1).sum(-1)
    assert (on_core > 1 - 1e-9).mean() < 0.05
    # Values say the same as NashConv: the core's strategies can be exploited in most games.
    assert on_core.mean() < 0.7


# What the returned fields say.


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 10**6), shape=st.sampled_from([(1, 1, 3, 2), (2, 3, 4, 4)]))
def test_padding_says_where_the_core_went_and_how_it_was_scaled(seed, shape):
    m0, n0, m, n = shape
    key = jax.random.key(seed)
    games = dense(key, 6, m0, n0, decimals=None).reshape(2, 3, m0, n0)
    for padded in (pad_dominated(key, games, m, n), pad_random(key, games, m, n)):
        assert padded.payoffs.shape == (2, 3, m, n) and padded.scale.shape == (2, 3)
        scale, offset = padded.scale[..., None, None], padded.offset[..., None, None]
        np.testing.assert_allclose(core_of(padded), scale * games + offset, atol=1e-15)
        for index, size in ((padded.row_index, m), (padded.col_index, n)):
            assert ((index >= 0) & (index < size)).all()
            assert (np.diff(np.sort(index, axis=-1), axis=-1) > 0).all()


def test_dominated_padding_keeps_the_range_of_the_core():
    games = dense(KEY, 500, 3, 3)
    padded = pad_dominated(KEY, games, 12, 12).payoffs
    for bound in (np.min, np.max):
        np.testing.assert_allclose(bound(padded, (1, 2)), bound(games, (1, 2)), atol=1e-12)
    # The range of a constant game cannot be kept.
    constant = pad_dominated(KEY, np.full((1, 2, 2), 7.0), 3, 3)
    assert constant.scale == 1 and constant.offset == 0 and np.ptp(constant.payoffs) >= 0.1
    np.testing.assert_allclose(solve_zero_sum(constant.payoffs).value, 7)


def test_added_actions_are_dominated_by_the_gap():
    games = np.zeros((50, 2, 2))
    padded = pad_dominated(KEY, games, 2, 3, gap=(0.25, 0.5))
    added = np.take_along_axis(padded.payoffs, 3 - padded.col_index.sum(-1)[:, None, None], axis=-1)
    assert added.min() >= 0.25 and added.max() <= 0.5
    padded = pad_dominated(KEY, games, 3, 2, gap=(0.25, 0.5))
    added = np.take_along_axis(padded.payoffs, 3 - padded.row_index.sum(-1)[:, None, None], axis=-2)
    assert added.min() >= -0.5 and added.max() <= -0.25


def test_places_of_the_core_are_evenly_spread():
    padded = pad_dominated(KEY, np.zeros((3000, 1, 1)), 3, 4)
    rows = np.bincount(padded.row_index[:, 0], minlength=3) / 3000
    cols = np.bincount(padded.col_index[:, 0], minlength=4) / 3000
    np.testing.assert_allclose(rows, 1 / 3, atol=0.05)  # 5 standard deviations
    np.testing.assert_allclose(cols, 1 / 4, atol=0.05)


def test_permutations_give_the_input_back():
    games = dense(KEY, 40, 4, 3)
    payoffs, rows, cols = permute(KEY, games)
    for game, permuted, row, col in zip(games, payoffs, rows, cols, strict=True):
        np.testing.assert_array_equal(permuted, game[row][:, col])
    assert len({tuple(row) for row in rows}) > 10  # drawn for each game
    np.testing.assert_allclose(
        solve_zero_sum(payoffs).value, solve_zero_sum(games).value, atol=1e-12
    )


def test_noise_is_bounded_and_moves_values_by_no_more():
    games = dense(KEY, 300, 3, 4)
    noisy = perturb(KEY, games, 0.1)
    change = noisy - games
    assert np.abs(change).max() <= 0.1 and np.abs(change).max() > 0.099
    moved = np.abs(solve_zero_sum(noisy).value - solve_zero_sum(games).value)
    assert moved.max() <= 0.1 + 1e-12
    np.testing.assert_array_equal(perturb(KEY, games, 0), games)


# Dense games.


def test_entries_are_uniform_and_rounded():
    games = dense(KEY, 4000, 5, 5)
    assert games.shape == (4000, 5, 5) and games.dtype == np.float64
    assert games.min() == -1 and games.max() == 1
    np.testing.assert_array_equal(games, np.round(games, 2))
    assert not (np.signbit(games) & (games == 0)).any()
    # Mean 0 and variance 1/3 of U[-1, 1], 5 standard errors each.
    assert abs(games.mean()) < 5 * np.sqrt(1 / 3 / games.size)
    assert abs((games**2).mean() - 1 / 3) < 5 * np.sqrt(4 / 45 / games.size)
    whole = dense(KEY, 100, 2, 2, low=3, high=9, decimals=0)
    assert set(np.unique(whole)) == set(range(3, 10))
    exact = dense(KEY, 100, 2, 2, decimals=None)
    assert len(np.unique(exact)) == 400 and (exact != np.round(exact, 8)).all()


def test_pure_saddle_points_are_as_frequent_as_theory_says():
    # i.i.d. continuous payoffs have a saddle point with probability m! n! / (m + n - 1)!.
    for size, share in ((2, 2 / 3), (3, 3 / 10)):
        games = dense(KEY, 20_000, size, size, decimals=None)
        saddle = games.min(axis=2).max(axis=1) == games.max(axis=1).min(axis=1)
        assert abs(saddle.mean() - share) < 5 * np.sqrt(share * (1 - share) / 20_000)


def test_keys_decide_everything():
    other = jax.random.key(1)
    games = dense(KEY, 5, 3, 3)
    for function in (
        lambda key: dense(key, 5, 3, 3),
        lambda key: pad_dominated(key, games, 5, 5).payoffs,
        lambda key: pad_random(key, games, 5, 5).payoffs,
        lambda key: perturb(key, games, 0.1),
        lambda key: permute(key, games)[0],
    ):
        np.testing.assert_array_equal(function(KEY), function(KEY))
        assert not np.array_equal(function(KEY), function(other))


def philox(counter, key):
    """Four words of Philox 4x64 after ten rounds, from the definition (Salmon et al., SC 2011)."""
    mask, (c0, c1, c2, c3), (k0, k1) = 2**64 - 1, counter, key
    for _ in range(10):
        first, second = 0xD2E7470EE14C6C93 * c0, 0xCA5A826395121157 * c2
        c0, c1 = (second >> 64) ^ c1 ^ k0, second & mask
        c2, c3 = (first >> 64) ^ c3 ^ k1, first & mask
        k0, k1 = (k0 + 0x9E3779B97F4A7C15) & mask, (k1 + 0xBB67AE8584CAA73B) & mask
    return c0, c1, c2, c3


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_numbers_are_those_of_philox_under_the_bits_of_the_key(impl):
    # The known answer that its authors give for counter 0 and key 0.
    assert philox((0, 0, 0, 0), (0, 0))[0] == 0x16554D9ECA36314C
    key = jax.random.key(12345, impl=impl)
    words = [int(word) for word in jax.random.key_data(key)] + [0, 0]
    pair = words[0] + (words[1] << 32), words[2] + (words[3] << 32)
    # Numpy counts from 1; 53 bits make a number below 1.
    raw = [word for block in (1, 2) for word in philox((block, 0, 0, 0), pair)]
    expected = [2 * (word >> 11) / 2**53 - 1 for word in raw]
    np.testing.assert_array_equal(dense(key, 2, 2, 2, decimals=None).ravel(), expected)


def test_drawing_compiles_nothing():
    seen = []

    def listen(name, *_, **__):
        seen.append(name)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        jax.jit(lambda x: x + 1)(np.zeros(17)).block_until_ready()
        compiled = [name for name in seen if "compile" in name]
        assert compiled  # the listener hears compilations
        seen.clear()
        games = dense(KEY, 3, 2, 2)
        pad_dominated(KEY, games, 4, 5)
        pad_random(KEY, games, 5, 4)
        permute(KEY, perturb(KEY, games, 0.1))
        assert not set(compiled) & set(seen)
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


def test_empty_batches():
    games = dense(KEY, 0, 2, 2)
    assert games.shape == (0, 2, 2)
    assert pad_dominated(KEY, games, 3, 3).payoffs.shape == (0, 3, 3)
    assert [part.size for part in split(games, [0.5, 0.5], seed=0)] == [0, 0]


# Hashes and splits.


def test_hashes_are_of_contents():
    whole = [[1, 0], [-2, 3]]
    known = content_hash(whole)
    assert len(known) == 16 and int(known, 16) >= 0
    for kind in (np.int8, np.int64, np.float32, np.float64):
        assert content_hash(np.array(whole, kind)) == known
    assert content_hash([[1, -0.0], [-2, 3]]) == known
    assert content_hash(np.asfortranarray(np.array(whole))) == known
    others = [[[1, 0], [-2, 3.0000001]], [[0, 1], [-2, 3]], [[1, 0, -2, 3]], [[1], [0], [-2], [3]]]
    assert len({known, *map(content_hash, others)}) == 5


def test_many_games_have_many_hashes():
    rng = np.random.default_rng(0)
    games = rng.integers(-1, 2, (5000, 3, 3))
    number = len(np.unique(games.reshape(5000, 9), axis=0))
    assert len({content_hash(game) for game in games}) == number


@settings(deadline=None, max_examples=100)
@given(
    games=arrays(
        np.int8, st.tuples(st.integers(0, 40), st.just(2), st.just(2)), elements=st.integers(0, 1)
    ),
    shares=st.sampled_from([[1.0], [0.5, 0.5], [0.8, 0.1, 0.1], [0.0, 1.0], [0.3, 0.0, 0.7]]),
    seed=st.integers(-(2**70), 2**70),
)
@example(games=np.zeros((30, 2, 2), np.int8), shares=[0.5, 0.5], seed=0)
def test_parts_are_disjoint_by_hash(games, shares, seed):
    parts = split(games, shares, seed=seed)
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(len(games)))
    names = [{content_hash(games[index]) for index in part} for part in parts]
    for one, other in itertools.combinations(names, 2):
        assert not one & other
    assert all(not part.size for part, share in zip(parts, shares, strict=True) if share == 0)


def test_parts_depend_on_the_game_and_the_seed_alone():
    games = dense(KEY, 1000, 2, 2)
    whole = split(games, [0.7, 0.3], seed=3)
    alone = split(games[500:], [0.7, 0.3], seed=3)
    np.testing.assert_array_equal(alone[1] + 500, whole[1][whole[1] >= 500])
    assert not np.array_equal(split(games, [0.7, 0.3], seed=4)[1], whole[1])
    # Shares hold to 5 standard deviations.
    assert abs(whole[1].size / 1000 - 0.3) < 5 * np.sqrt(0.21 / 1000)


# Bad input.


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: dense(KEY, -1, 2, 2), "count=-1"),
        (lambda: dense(KEY, 1, 0, 2), "m=0"),
        (lambda: dense(jax.random.split(KEY, 3), 1, 2, 2), r"keys of shape \[3\]; give a single"),
        (lambda: dense(KEY, 1, 2, 2, low=1, high=1), "low=1, high=1"),
        (lambda: dense(KEY, 1, 2, 2, high=np.inf), "high=inf"),
        (lambda: dense(KEY, 1, 2, 2, low=-1e308, high=1e308), "with a finite difference"),
        (lambda: dense(0, 1, 2, 2), r"0 is no key; give one such as jax.random.key\(0\)"),
        (lambda: dense(None, 1, 2, 2), "None is no key"),
        *(
            (
                lambda units=units: pad_dominated(KEY, units, 3, 3),
                "give gap in units of the payoffs",
            )
            # Among the last the amounts are lost, among the first the core, or both in an offset.
            for units in (
                np.eye(2) * 1e-9,
                np.eye(2) * 1e12,
                np.eye(2) + 1e13,
                np.full((2, 2), 1e17),
            )
        ),
        (lambda: pad_dominated(KEY, np.zeros((3, 3)), 2, 4), "at least 3x3"),
        (lambda: pad_random(KEY, np.zeros((3, 3)), 4, 2), "at least 3x3"),
        (lambda: pad_dominated(KEY, np.zeros((2, 2)), 3, 3, gap=(0, 1)), r"gap=\(0, 1\)"),
        (lambda: pad_dominated(KEY, np.zeros((2, 2)), 3, 3, gap=(2, 1)), "smallest <= largest"),
        (lambda: pad_dominated(KEY, np.full((2, 2), np.nan), 3, 3), "NaN or infinity"),
        (lambda: pad_random(KEY, np.zeros(3), 3, 3), r"\[3\]"),
        (lambda: perturb(KEY, np.zeros((2, 2)), -0.1), "size=-0.1"),
        (lambda: perturb(KEY, np.full((2, 2), np.inf), 0.1), "NaN or infinity"),
        (lambda: permute(KEY, np.zeros((0, 2))), r"\[0, 2\]"),
        (lambda: content_hash(np.zeros((1, 2, 2))), r"\[1, 2, 2\]"),
        (lambda: content_hash([[np.nan]]), "NaN"),
        (lambda: split(np.zeros((2, 2)), [1.0], seed=0), r"expected \[count, m, n\]"),
        (lambda: split(np.zeros((1, 2, 2)), [0.5, 0.4], seed=0), "sum to 0.9"),
        (lambda: split(np.zeros((1, 2, 2)), [1.5, -0.5], seed=0), "none below 0"),
        (lambda: split(np.zeros((1, 2, 2)), [np.nan], seed=0), "shares"),
        (lambda: split(np.zeros((1, 2, 2)), [], seed=0), "one share a part"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
