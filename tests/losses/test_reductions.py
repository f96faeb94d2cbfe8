"""Reductions: worked numbers, and invariance to padding, order and splitting."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sepo_jax import losses
from sepo_jax.losses import Mean

VALUES = jnp.array([[0.1, 0.2, 0.3], [0.4, 0.5, 0.6]])
MASK = jnp.array([[1, 1, 0], [1, 1, 1]], bool)
ROWS = jnp.array([[0] * 3, [1] * 3])

# Every reduction as (values, mask, sequence ids, number of ids) -> Mean.
REDUCTIONS = {
    "token_mean": lambda v, m, s, n: losses.token_mean(v, m),
    "sequence_mean": losses.sequence_mean,
    "sequence_sum_mean": losses.sequence_sum_mean,
    "constant_length": lambda v, m, s, n: losses.constant_length(
        v, m, 3, losses.count_sequences(m, s, n)
    ),
    "event_mean": lambda v, m, s, n: losses.event_mean(v, m),
}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("token_mean", 0.36),  # 1.8 / 5
        ("sequence_mean", 0.325),  # (.15 + .5) / 2
        ("constant_length", 0.30),  # 1.8 / (3 * 2)
        ("sequence_sum_mean", 0.90),  # (.3 + 1.5) / 2
    ],
)
def test_worked_numbers(name, expected):  # A13
    np.testing.assert_allclose(REDUCTIONS[name](VALUES, MASK, ROWS, 2).value, expected, rtol=1e-6)


def test_further_numbers():
    # 1.8 / (3.14 * 2); .3 / 4, the row without tokens is not counted; 1 + 2 + 4 + 6.
    got = losses.constant_length(VALUES, MASK, 3.14, 2).value
    np.testing.assert_allclose(got, 0.2866242, rtol=1e-6)
    values, mask = jnp.array([[0.1, 0.2], [0.3, 0.4]]), jnp.array([[1, 1], [0, 0]], bool)
    sequences = losses.count_sequences(mask, ROWS[:, :2], 2)
    np.testing.assert_allclose(losses.constant_length(values, mask, 4, sequences).value, 0.075)
    values = jnp.array([[1.0, 2, 30], [4, 50, 6]])
    mask = jnp.array([[1, 1, 0], [1, 0, 1]], bool)
    assert losses.masked_sum(values, mask) == 13
    # Four devices hold the same rows: the sum is 52, the mean stays that of one device.
    parts = jax.vmap(
        lambda _: jax.lax.psum(losses.token_mean(values, mask), "data"), axis_name="data"
    )(jnp.arange(4))
    assert parts.sum[0] == 52 and parts.value[0] == 13 / 4


def test_weights_are_in_numerator_and_denominator():
    weight = jnp.array([[2.0, 1.0, jnp.nan], [0.5, 0.0, 1.0]])
    got = losses.token_mean(VALUES, MASK, weight)
    np.testing.assert_allclose(got.value, (0.2 + 0.2 + 0.2 + 0 + 0.6) / 4.5, rtol=1e-6)


def test_means_add_by_their_parts():
    # Sums 10 and 2 over 4 and 1: 12 / 5 = 2.4, where the mean of means would be 2.25.
    assert (Mean(10, 4) + Mean(2, 1)).value == 2.4
    assert (Mean(jnp.array([1.0, 0]), jnp.array([2.0, 0])) + Mean(3.0, 2.0)).value.tolist() == [
        1,
        1.5,
    ]
    assert jax.tree.map(lambda x: 2 * x, Mean(3, 2)) == Mean(6, 4)


def test_empty_mean_is_exactly_zero_with_zero_gradient():  # A05, A22
    assert Mean(0, 0).value == 0 and Mean(np.float32(0), np.float32(0)).value == 0
    gradient = jax.grad(lambda s, c: Mean(s, c).value, argnums=(0, 1))(0.0, 0.0)
    assert jnp.isfinite(jnp.array(gradient)).all() and gradient[0] == 0


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_nothing_to_count_gives_zero_loss_and_gradient(name, dtype):  # A05
    values = jnp.full((2, 3), jnp.nan, dtype)

    def loss(values):
        return REDUCTIONS[name](values, jnp.zeros((2, 3), bool), ROWS, 2).value

    value, gradient = jax.value_and_grad(loss)(values)
    assert value == 0 and value.dtype == jnp.float32
    assert not gradient.any()


@pytest.mark.parametrize("name", REDUCTIONS)
def test_masked_row_adds_nothing_to_numerator_or_denominator(name):  # A05, A06
    # Two rows of loss 1 and lengths 4 and 12; the second was truncated and is masked out.
    values = jnp.ones((2, 12)).at[1].set(jnp.nan)
    mask = (jnp.arange(12) < 4)[None] & jnp.array([True, False])[:, None]
    rows = jnp.broadcast_to(jnp.array([[0], [1]]), (2, 12))

    def loss(values):
        return REDUCTIONS[name](values, mask, rows, 2).value

    value, gradient = jax.value_and_grad(loss)(values)
    alone = REDUCTIONS[name](values[:1, :4], mask[:1, :4], rows[:1, :4], 1).value
    assert value == alone
    assert value == {"constant_length": np.float32(4 / 3), "sequence_sum_mean": 4.0}.get(name, 1.0)
    assert not gradient[1].any() and not gradient[0, 4:].any() and gradient[0, :4].all()


@pytest.mark.parametrize("name", REDUCTIONS)
def test_gradients_against_closed_form(name):
    gradient = jax.grad(lambda v: REDUCTIONS[name](v, MASK, ROWS, 2).value)(VALUES)
    per_row = {
        "token_mean": [1 / 5, 1 / 5],
        "event_mean": [1 / 5, 1 / 5],
        "sequence_mean": [1 / 4, 1 / 6],
        "sequence_sum_mean": [1 / 2, 1 / 2],
        "constant_length": [1 / 6, 1 / 6],
    }[name]
    np.testing.assert_allclose(gradient, np.where(MASK, np.array(per_row)[:, None], 0), rtol=1e-6)


def test_nan_at_a_counted_token_stays_visible():
    for reduce in REDUCTIONS.values():
        assert jnp.isnan(reduce(VALUES.at[0, 0].set(jnp.nan), MASK, ROWS, 2).value)


def value_and_gradient(name, values, mask, rows, parts):
    """Loss over micro-batches: counts are summed first, gradients of sums are accumulated."""
    reduce = REDUCTIONS[name]
    pieces = [(values[part], mask[part], rows[part]) for part in parts]
    count = sum(reduce(*piece, 4).count for piece in pieces)
    loss, gradient = 0.0, jnp.zeros_like(values)
    for part, (v, m, r) in zip(parts, pieces, strict=True):
        part_loss, part_gradient = jax.value_and_grad(
            lambda v, m=m, r=r: reduce(v, m, r, 4).sum / count
        )(v)
        loss, gradient = loss + part_loss, gradient.at[part].set(part_gradient)
    return loss, gradient


@pytest.mark.parametrize("name", REDUCTIONS)
def test_micro_batches_add_up_to_the_whole_batch(name):  # A14
    lengths = jnp.array([[1], [9], [2], [8]])
    mask = jnp.arange(10)[None] < lengths
    values = jnp.sin(jnp.arange(40.0)).reshape(4, 10)
    rows = jnp.broadcast_to(jnp.arange(4)[:, None], (4, 10))
    whole = value_and_gradient(name, values, mask, rows, [slice(0, 4)])
    for size in (2, 1):
        parts = [slice(start, start + size) for start in range(0, 4, size)]
        split = value_and_gradient(name, values, mask, rows, parts)
        np.testing.assert_allclose(split[0], whole[0], atol=1e-6)
        np.testing.assert_allclose(split[1], whole[1], atol=1e-6)


@pytest.mark.parametrize("name", REDUCTIONS)
@settings(deadline=None, max_examples=15)
@given(
    values=st.lists(st.floats(-4, 4, width=32), min_size=12, max_size=12),
    mask=st.lists(st.booleans(), min_size=12, max_size=12),
    order=st.permutations(range(4)),
    columns=st.permutations(range(3)),
)
def test_order_of_rows_and_columns_does_not_matter(name, values, mask, order, columns):
    values, mask = jnp.array(values).reshape(4, 3), jnp.array(mask).reshape(4, 3)
    rows = jnp.broadcast_to(jnp.arange(4)[:, None], (4, 3))
    index = np.ix_(order, columns)

    def loss(values, mask, rows):
        return REDUCTIONS[name](values, mask, rows, 4).value

    value, gradient = jax.value_and_grad(loss)(values, mask, rows)
    other, moved = jax.value_and_grad(loss)(values[index], mask[index], rows[index])
    np.testing.assert_allclose(other, value, atol=1e-5)
    np.testing.assert_allclose(moved, gradient[index], atol=1e-6)


@pytest.mark.parametrize("name", REDUCTIONS)
def test_padding_columns_change_nothing(name):  # A20
    def loss(values, mask, rows):
        return REDUCTIONS[name](values, mask, rows, 2).value

    value, gradient = jax.value_and_grad(loss)(VALUES, MASK, ROWS)
    wide = ((0, 0), (0, 61))
    padded = (
        jnp.pad(VALUES, wide, constant_values=jnp.nan),
        jnp.pad(MASK, wide),
        jnp.pad(ROWS, wide, constant_values=-1),
    )
    padded_value, padded_gradient = jax.value_and_grad(loss)(*padded)
    np.testing.assert_allclose(padded_value, value, rtol=1e-6)
    np.testing.assert_allclose(padded_gradient[:, :3], gradient, rtol=1e-6)
    assert not padded_gradient[:, 3:].any()


@pytest.mark.parametrize("name", ["token_mean", "sequence_mean", "sequence_sum_mean"])
def test_packing_sequences_into_one_row_changes_nothing(name):
    packed = REDUCTIONS[name](VALUES.reshape(1, 6), MASK.reshape(1, 6), ROWS.reshape(1, 6), 2)
    np.testing.assert_allclose(
        packed.value, REDUCTIONS[name](VALUES, MASK, ROWS, 2).value, rtol=1e-6
    )


def test_tokens_of_no_sequence_are_not_counted():
    rows = jnp.array([[0] * 3, [-1] * 3])
    np.testing.assert_allclose(losses.sequence_mean(VALUES, MASK, rows, 2).value, 0.15, rtol=1e-6)
    np.testing.assert_allclose(losses.sequence_sum_mean(VALUES, MASK, rows, 2).value, 0.3)
    assert losses.count_sequences(MASK, rows, 2) == 1


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions_map_over_a_leading_axis(name):
    stacked = (jnp.stack([VALUES, 2 * VALUES]), jnp.stack([MASK, MASK]), jnp.stack([ROWS, ROWS]))
    mapped = jax.vmap(lambda v, m, r: REDUCTIONS[name](v, m, r, 2))(*stacked)
    single = REDUCTIONS[name](VALUES, MASK, ROWS, 2).value
    np.testing.assert_allclose(mapped.value, [single, 2 * single], rtol=1e-6)


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="length is 0"):
        losses.constant_length(VALUES, MASK, 0, 2)
    with pytest.raises(AssertionError):
        losses.token_mean(VALUES, MASK.astype(jnp.float32))
    with pytest.raises(AssertionError):
        losses.token_mean(VALUES, MASK[:1])
    with pytest.raises(AssertionError):
        losses.sequence_mean(VALUES, MASK, ROWS[:, :1], 2)
