"""The solver in JAX: known games in both float types, the numpy solver, invariances, bad input."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from zero_sum_games import KNOWN, NASHPY_39, RPS, check, ragged

from sepo_jax.games import device_solver, solve, solve_zero_sum

DTYPES = {"float64": 1e-12, "float32": 1e-5}  # relative NashConv of known games
SIZE = 16


def on_device(payoffs, *masks, **options):
    return solve_zero_sum(payoffs, *masks, method="device", **options)


@pytest.fixture(scope="module")
def mixed():
    """120 games of all sizes up to 5x5: list of arrays."""
    rng = np.random.default_rng(0)
    sizes = rng.integers(1, 6, (120, 2))
    return [rng.uniform(-1, 1, size).round(2) for size in sizes]


# Known answers.


@pytest.mark.parametrize("dtype", DTYPES)
def test_known_games(dtype):
    table, rows, cols = ragged([payoffs for payoffs, *_ in KNOWN.values()], SIZE)
    found = on_device(table, rows, cols, dtype=dtype)
    assert not found.exact.any()  # floats alone are good enough
    for g, (name, (payoffs, value, *strategies)) in enumerate(KNOWN.items()):
        m, n = np.shape(payoffs)
        row, col = found.row[g, :m], found.col[g, :n]
        spread = np.ptp(np.asarray(payoffs, float))
        gap = (np.asarray(payoffs) @ col).max() - (row @ np.asarray(payoffs)).min()
        assert -1e-12 * spread <= gap <= DTYPES[dtype] * spread + 1e-12, name
        loose = 1e-9 if dtype == "float64" else 1e-5
        scale = max(1, np.abs(payoffs).max())
        np.testing.assert_allclose(found.value[g], value, atol=loose * scale, err_msg=name)
        for strategy, known in zip((row, col), strategies, strict=True):
            if known is not None:
                np.testing.assert_allclose(strategy, known, atol=10 * loose, err_msg=name)


@pytest.mark.parametrize(("scale", "offset"), [(1e-9, 0), (1e12, 0), (1, 1e6), (1e-310, 0)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_scales_and_offsets(scale, offset, dtype):
    found = on_device(np.array([[4.0, 1.0], [1.0, 2.0]]) * scale + offset, dtype=dtype)
    loose = 1e-9 if dtype == "float64" else 1e-5
    np.testing.assert_allclose(found.row, [1 / 4, 3 / 4], atol=loose)
    np.testing.assert_allclose(found.col, [1 / 4, 3 / 4], atol=loose)
    np.testing.assert_allclose(found.value - offset, 7 / 4 * scale, rtol=1e-5)
    assert found.relative_nash_conv <= DTYPES[dtype] and not found.exact


def test_symmetric_games():
    found = on_device(NASHPY_39, symmetric=True)
    np.testing.assert_array_equal(found.row, found.col)
    check(NASHPY_39, found)


# Beside the numpy solver.


def test_equal_to_the_numpy_solver(mixed):
    arrays = ragged(mixed, 5)
    found, known = on_device(*arrays), solve_zero_sum(*arrays)
    np.testing.assert_allclose(found.value, known.value, atol=1e-13)
    np.testing.assert_array_equal(found.unique, known.unique)
    assert 0.3 < found.unique.mean() <= 1
    for one, other in ((found.row, known.row), (found.col, known.col)):
        np.testing.assert_allclose(one[known.unique], other[known.unique], atol=1e-12)


def test_float32_claims_uniqueness_only_where_it_holds():
    rng = np.random.default_rng(5)
    games = np.concatenate(
        [rng.integers(-1, 2, (300, 3, 3)), rng.uniform(-1, 1, (300, 3, 3)).round(2)]
    )
    found, exact = on_device(games, dtype="float32"), solve_zero_sum(games, method="exact")
    assert not (found.unique & ~exact.unique).any()
    assert found.unique[300:].mean() > 0.9
    np.testing.assert_allclose(found.value, exact.value, atol=1e-5)


def test_float32_answers_are_certified_in_float64():
    games = np.random.default_rng(6).uniform(-1, 1, (500, 4, 4))
    found = on_device(games, dtype="float32")
    assert found.row.dtype == found.value.dtype == np.float64
    check(games, found, 1e-5)
    upper = np.einsum("gij,gj->gi", games, found.col).max(-1)
    lower = np.einsum("gij,gi->gj", games, found.row).min(-1)
    np.testing.assert_allclose(found.nash_conv, upper - lower, atol=1e-14)
    strict = on_device(games[:40], dtype="float32", tolerance=1e-9)
    assert strict.exact.any() and strict.relative_nash_conv.max() <= 1e-9


# Invariances.


def test_padding_is_never_read(mixed):
    base = on_device(*ragged(mixed, 5))
    for junk in (np.nan, 1e30, -7.0):
        table, rows, cols = ragged(mixed, 5, junk)
        found = on_device(table, rows, cols)
        assert (found.row[~rows] == 0).all() and (found.col[~cols] == 0).all()
        np.testing.assert_array_equal(found.row, base.row)
        np.testing.assert_array_equal(found.value, base.value)


def test_powers_of_two_leave_strategies_bit_for_bit_alike():
    games = np.random.default_rng(1).uniform(-1, 1, (50, 4, 3))
    one = on_device(games)
    for exponent in (-60, -1, 3, 60):
        other = on_device(np.ldexp(games, exponent))
        np.testing.assert_array_equal(one.row, other.row)
        np.testing.assert_array_equal(one.col, other.col)
        np.testing.assert_array_equal(np.ldexp(one.value, exponent), other.value)


def test_seat_swap_negates_values():
    games = np.random.default_rng(2).integers(-2, 3, (100, 4, 3)).astype(float)
    swapped = on_device(-np.swapaxes(games, 1, 2))
    np.testing.assert_allclose(swapped.value, -on_device(games).value, atol=1e-12)


def test_neighbours_and_chunks_do_not_matter(monkeypatch):
    games = np.random.default_rng(3).uniform(-1, 1, (70, 5, 5))
    whole = on_device(games)
    np.testing.assert_array_equal(on_device(games[33]).row, whole.row[33])
    reversed_order = on_device(games[::-1])
    np.testing.assert_array_equal(reversed_order.row[::-1], whole.row)
    monkeypatch.setitem(solve.CHUNK_ELEMENTS, "device", 16 * 42)
    np.testing.assert_array_equal(on_device(games).row, whole.row)
    monkeypatch.setattr(device_solver, "CACHE_BYTES", 8 * 42 * 16)
    np.testing.assert_allclose(on_device(games).row, whole.row, atol=1e-14)


def test_shapes_are_kept_and_few_programs_are_compiled():
    assert on_device(np.zeros((0, 3, 3))).row.shape == (0, 3)
    found = on_device(np.tile(np.array(RPS, float), (2, 3, 1, 1)))
    assert found.row.shape == (2, 3, 3) and found.value.shape == (2, 3)
    games = np.random.default_rng(4).uniform(-1, 1, (128, 3, 3))
    before = device_solver._solve._cache_size()
    for count in (1, 5, 17, 100, 128):
        on_device(games[:count])
    assert device_solver._solve._cache_size() - before <= 1  # all fit in the same chunk


def test_float_type_of_the_program_is_left_alone():
    on_device(RPS)
    assert jnp.zeros(1).dtype == jnp.float32 and not jax.config.jax_enable_x64
    with jax.enable_x64(True):
        assert on_device(RPS, dtype="float32").relative_nash_conv <= 1e-5
        assert jnp.zeros(1).dtype == jnp.float64


# Bad input.


def test_bad_input():
    with pytest.raises(ValueError, match=r"unknown dtype 'float16'.*float32, float64"):
        on_device(RPS, dtype="float16")
    with pytest.raises(ValueError, match=r"'simplex' works in float64.*'float32'"):
        solve_zero_sum(RPS, dtype="float32")
    with pytest.raises(ValueError, match="NaN or infinity"):
        on_device([[1, np.nan], [0, 1]])
    with pytest.raises(ValueError, match="device"):
        solve_zero_sum(RPS, method="devices")
