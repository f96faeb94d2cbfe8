"""The gated delta rule: chunks equal the definition, gradients too, padding does not exist."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sepo_jax.policy.delta_rule import (
    causal_convolution,
    gated_delta_rule,
    gated_delta_step,
    unit_lower_inverse,
)

pytestmark = pytest.mark.usefixtures("compile_fast")
ROWS, KEY_HEADS, VALUE_HEADS, KEY_SIZE, VALUE_SIZE = 2, 2, 4, 5, 3


def draw(length, seed=0, rows=ROWS, decay=1.0):
    """Queries, keys, values, log decays, step sizes and a state; decays of about `decay`."""
    generator = np.random.default_rng(seed)
    normal = lambda *shape: generator.normal(size=shape).astype(np.float32)  # noqa: E731
    keys = (rows, length, KEY_HEADS, KEY_SIZE)
    values = (rows, length, VALUE_HEADS, VALUE_SIZE)
    return (
        normal(*keys),
        normal(*keys),
        normal(*values),
        -decay * np.abs(normal(*values[:3])),
        1 / (1 + np.exp(-2 * normal(*values[:3]))),
        normal(rows, VALUE_HEADS, KEY_SIZE, VALUE_SIZE),
    )


@jax.jit
def sequential(query, key, value, log_decay, beta, state):
    """The definition, column by column."""

    def step(state, token):
        output, state = gated_delta_step(*token, state)
        return state, output

    columns = [jnp.moveaxis(array, 1, 0) for array in (query, key, value, log_decay, beta)]
    state, outputs = jax.lax.scan(step, state, tuple(columns))
    return jnp.moveaxis(outputs, 0, 1), state


chunked = jax.jit(gated_delta_rule, static_argnames="chunk")


def literal(query, key, value, log_decay, beta, state):
    """The equations of the module's docstring, float64, one row, head and token at a time."""
    outputs, state = np.zeros(value.shape), np.array(state, np.float64)
    unit = lambda x: x / math.sqrt(float(x @ x) + 1e-6)  # noqa: E731
    group = value.shape[2] // key.shape[2]
    for row, t, head in np.ndindex(value.shape[:3]):
        k = unit(np.float64(key[row, t, head // group]))
        q = unit(np.float64(query[row, t, head // group])) / math.sqrt(key.shape[-1])
        memory = math.exp(log_decay[row, t, head]) * state[row, head]
        memory += np.outer(k, beta[row, t, head] * (value[row, t, head] - memory.T @ k))
        state[row, head], outputs[row, t, head] = memory, memory.T @ q
    return outputs, state


def close(ours, theirs, rtol=1e-5, atol=2e-6):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol, atol), ours, theirs)


def columns(arrays, where):
    """The same columns of everything but the state (last)."""
    return [array[:, where] for array in arrays[:-1]]


# Identities.


@pytest.mark.parametrize("length, chunk", [(1, 4), (2, 64), (7, 1), (12, 4), (13, 5), (45, 36)])
def test_chunks_and_steps_are_the_definition(length, chunk):
    arrays = draw(length)
    expected = literal(*arrays)
    close(sequential(*arrays), expected)
    close(chunked(*arrays, chunk=chunk), expected)


@settings(deadline=None, max_examples=12)
@given(cut=st.sampled_from([1, 6, 12]), seed=st.integers(0, 99))
def test_two_calls_with_the_state_carried_are_one(cut, seed):
    arrays = draw(13, seed)
    outputs, state = chunked(*columns(arrays, slice(cut)), arrays[-1], chunk=4)
    rest, state = chunked(*columns(arrays, slice(cut, None)), state, chunk=4)
    close((jnp.concatenate([outputs, rest], axis=1), state), sequential(*arrays))


def test_columns_that_neither_decay_nor_correct_change_nothing():
    arrays = draw(9)
    real = np.arange(9) % 3 != 1
    quiet = [array * real[None, :, None] for array in arrays[3:5]]
    outputs, state = chunked(*arrays[:3], *quiet, arrays[-1], chunk=4)
    close((outputs[:, real], state), sequential(*columns(arrays, real), arrays[-1]))


def test_rows_are_independent():
    arrays = draw(6, rows=3)
    one = lambda *row: gated_delta_rule(*(array[None] for array in row), chunk=4)  # noqa: E731
    alone = jax.jit(jax.vmap(one))
    close(jax.tree.map(lambda array: array[:, 0], alone(*arrays)), chunked(*arrays, chunk=4))


def test_value_heads_share_the_key_head_of_their_group():
    query, key, *rest = draw(6)
    group = VALUE_HEADS // KEY_HEADS
    wide = [np.repeat(array, group, axis=2) for array in (query, key)]
    close(chunked(query, key, *rest, chunk=4), chunked(*wide, *rest, chunk=4))


@pytest.mark.parametrize("forget", [-1e4, -np.inf])
def test_a_token_that_forgets_everything_starts_afresh_without_loss(forget):
    arrays = draw(24, decay=0.01)
    arrays[3][:, 11] = forget
    outputs, state = chunked(*arrays, chunk=16)
    fresh = sequential(*columns(arrays, slice(11, None)), np.zeros_like(arrays[-1]))
    close((outputs[:, 11:], state), fresh)
    close(outputs, sequential(*arrays)[0])


def test_inverse_times_matrix_is_one():
    for size in (1, 13, 40):  # the last one by halves
        below = np.tril(np.random.default_rng(size).uniform(-0.3, 0.3, (3, size, size)), -1)
        inverse = jax.jit(unit_lower_inverse)(below.astype(np.float32))
        product = np.asarray(inverse) @ (below + np.eye(size)[None])
        close(product, np.broadcast_to(np.eye(size), below.shape), atol=1e-4)


@pytest.mark.parametrize("left, right", [(0, 0), (3, 0), (0, 3), (2, 1), (6, 0), (0, 6)])
def test_convolution_sees_no_padding(left, right):
    generator = np.random.default_rng(1)
    inputs, kernel = generator.normal(size=(2, 5, 3)), generator.normal(size=(4, 3))
    before = generator.normal(size=(2, 3, 3))
    # The plain definition: the state in front, no padding.
    whole = np.concatenate([before, inputs], axis=1)
    sums = sum(kernel[i] * whole[:, i : i + 5] for i in range(4))
    padded = np.pad(inputs, ((0, 0), (left, right), (0, 0)), constant_values=np.nan)
    real = np.broadcast_to(np.isfinite(padded[..., 0]), padded.shape[:2])
    as_given = [jnp.asarray(array, jnp.float32) for array in (padded, kernel, before)]
    outputs, after = jax.jit(causal_convolution)(*as_given, jnp.asarray(real))
    close(outputs[:, left : left + 5], sums / (1 + np.exp(-sums)))
    close(after, whole[:, -3:])
    assert np.isfinite(outputs).all()


def test_convolution_of_padding_alone_keeps_the_state_and_rows_differ():
    state = jnp.arange(18.0).reshape(3, 3, 2)
    inputs = 100 + jnp.arange(24.0).reshape(3, 4, 2)
    real = jnp.array([[False] * 4, [True, False, False, False], [False, False, True, True]])
    _, after = causal_convolution(inputs, jnp.ones((4, 2)), state, real)
    close(after[0], state[0])
    close(after[1], jnp.concatenate([state[1, 1:], inputs[1, :1]]))
    close(after[2], jnp.concatenate([state[2, 2:], inputs[2, 2:]]))


# Gradients.


@pytest.mark.parametrize("decay", [0.1, 30.0])
def test_gradients_are_those_of_the_definition(decay):
    arrays = draw(13, decay=decay)
    weights = draw(13, seed=5)

    def gradients(rule):
        def loss(*arrays):
            outputs, state = rule(*arrays)
            return jnp.sum(outputs * weights[2]) + jnp.sum(state * weights[5])

        return jax.jit(jax.grad(loss, argnums=tuple(range(6))))(*arrays)

    ours = gradients(lambda *given: gated_delta_rule(*given, chunk=4))
    close(ours, gradients(sequential), rtol=1e-4, atol=1e-5)
    assert all(np.abs(array).max() > 1e-3 for array in ours)


def test_gradients_stay_finite_under_padding_zeros_and_strong_decay():
    arrays = [array.copy() for array in draw(12)]
    for array in arrays[:5]:
        array[:, :5] = 0  # left padding: keys of length 0, no decay, no step
    arrays[3][:, 7:] = -1e4
    loss = lambda *given: jnp.sum(gated_delta_rule(*given, chunk=8)[0] ** 2)  # noqa: E731
    for array in jax.jit(jax.grad(loss, argnums=tuple(range(6))))(*arrays):
        assert np.isfinite(array).all()


def test_inverse_has_the_derivative_of_the_inverse():
    below = np.tril(np.random.default_rng(0).normal(size=(6, 6)), -1).astype(np.float32)
    weight = np.random.default_rng(1).normal(size=(6, 6)).astype(np.float32)
    total = lambda x: jnp.sum(weight * unit_lower_inverse(jnp.tril(x, -1)))  # noqa: E731
    ours = jax.jit(jax.grad(total))(below)
    # d tr(W^T X) = -tr(W^T X dA X), so the gradient is -X^T W X^T, below the diagonal.
    inverse = np.linalg.inv(np.eye(6) + below)
    close(ours, np.tril(-inverse.T @ weight @ inverse.T, -1), rtol=1e-4, atol=1e-4)


def test_convolution_gradient_by_hand():
    # One channel, width 2, state 0, inputs (1, 2), kernel (a, b): sums s = (b, a + 2 b).
    # silu'(s) = sigmoid(s) (1 + s (1 - sigmoid(s))); with f the sum of outputs,
    # df/da = silu'(a + 2 b), df/db = silu'(b) + 2 silu'(a + 2 b), df/dstate = a silu'(b).
    a, b = 0.5, -0.3
    slope = lambda s: (g := 1 / (1 + math.exp(-s))) * (1 + s * (1 - g))  # noqa: E731

    def total(kernel, state):
        inputs, real = jnp.array([[[1.0], [2.0]]]), jnp.ones((1, 2), bool)
        return jnp.sum(causal_convolution(inputs, kernel, state, real)[0])

    kernel, state = jax.grad(total, argnums=(0, 1))(jnp.array([[a], [b]]), jnp.zeros((1, 1, 1)))
    second = slope(a + 2 * b)
    close(kernel[:, 0], np.array([second, slope(b) + 2 * second]))
    close(state[0, 0], np.array([a * slope(b)]))


# Known answers.


@pytest.mark.parametrize("rule", [sequential, chunked], ids=["steps", "chunks"])
def test_three_tokens_by_hand(rule):
    # Dk = 2, Dv = 1, S_0 = (4, 0), keys of length 1 (epsilon shifts them by 5e-7).
    # 1: g = log 1/2, k = (1, 0), v = 6, beta = 1/2: S decays to (2, 0), answers 2;
    #    d = (6 - 2) / 2 = 2, S = (4, 0); q = (1, 0) asks (divided by sqrt 2): o = 4 / sqrt 2.
    # 2: g = 0, k = (0.6, 0.8), v = 0.4, beta = 1: answers 2.4, d = -2, S = (2.8, -1.6);
    #    q = (0, 1): o = -1.6 / sqrt 2.
    # 3: g = log 1/4, beta = 0: S = (0.7, -0.4); q = (3, 4), unit (0.6, 0.8): o = 0.1 / sqrt 2.
    query = np.array([[1, 0], [0, 1], [3, 4]], np.float32)[None, :, None]
    key = np.array([[2, 0], [3, 4], [0, 5]], np.float32)[None, :, None]
    value = np.array([6, 0.4, 9], np.float32)[None, :, None, None]
    log_decay = np.log(np.array([0.5, 1, 0.25], np.float32))[None, :, None]
    beta = np.array([0.5, 1, 0], np.float32)[None, :, None]
    state = np.array([4, 0], np.float32)[None, None, :, None]
    outputs, state = rule(query, key, value, log_decay, beta, state)
    close(outputs.ravel(), np.array([4, -1.6, 0.1]) / math.sqrt(2), atol=1e-5)
    close(state.ravel(), np.array([0.7, -0.4]), atol=1e-5)


def test_a_written_value_is_read_back():
    # beta = 1 and no decay: asking with the key just written gives its value / sqrt(Dk).
    _, key, value, *_, state = draw(5)
    calm = np.zeros(value.shape[:3], np.float32)
    outputs, _ = chunked(key, key, value, calm, calm + 1, state, chunk=4)
    close(outputs, value / math.sqrt(KEY_SIZE), rtol=1e-4, atol=1e-5)


def test_convolution_by_hand():
    # Width 2: sums are older * 1 + newer * 10, state 7 before inputs 1, 2.
    inputs, kernel = jnp.array([[[1.0], [2.0]]]), jnp.array([[1.0], [10.0]])
    real = jnp.ones((1, 2), bool)
    outputs, state = causal_convolution(inputs, kernel, jnp.array([[[7.0]]]), real)
    sums = np.array([17.0, 21.0])
    close(outputs.ravel(), sums / (1 + np.exp(-sums)))
    assert state.ravel() == 2


@pytest.mark.parametrize("decay", [0.1, 20.0])
def test_agrees_with_the_torch_functions_of_transformers(decay):
    torch = pytest.importorskip("torch")
    theirs = pytest.importorskip("transformers.models.qwen3_5.modeling_qwen3_5")
    arrays = draw(21, decay=decay)
    *tensors, state = (torch.tensor(np.asarray(array)) for array in arrays)
    options = {"output_final_state": True, "use_qk_l2norm_in_kernel": True}
    for rule, more in (
        (theirs.torch_chunk_gated_delta_rule, {"chunk_size": 8}),
        (theirs.torch_recurrent_gated_delta_rule, {}),
    ):
        expected = rule(*tensors, initial_state=state, **options, **more)
        expected = tuple(tensor.numpy() for tensor in expected)
        close(chunked(*arrays, chunk=8), expected, atol=1e-5)
        close(sequential(*arrays), expected, atol=1e-5)


# Bad input.


@pytest.mark.parametrize(
    "place, change",
    [
        (0, lambda x: x[..., :-1]),  # queries and keys of different sizes
        (2, lambda x: x[:, :, :-1]),  # 3 value heads for 2 key heads
        (3, lambda x: x[:, :-1]),  # a decay for every token
        (4, lambda x: x[..., None]),  # one step size a head
        (5, lambda x: x[:1]),  # a state for every row
        (5, lambda x: x.swapaxes(2, 3)),  # keys first
    ],
)
def test_shapes_that_do_not_fit_are_refused(place, change):
    arrays = list(draw(4))
    arrays[place] = change(arrays[place])
    with pytest.raises(AssertionError):
        gated_delta_rule(*arrays)


def test_a_chunk_holds_at_least_one_token():
    with pytest.raises(ValueError, match="chunk=0"):
        gated_delta_rule(*draw(4), chunk=0)


@pytest.mark.parametrize("place", range(4))
def test_convolution_refuses_other_shapes(place):
    arrays = [jnp.ones((2, 5, 3)), jnp.ones((4, 3)), jnp.ones((2, 3, 3)), jnp.ones((2, 5), bool)]
    arrays[place] = arrays[place][:-1]
    with pytest.raises(AssertionError):
        causal_convolution(*arrays)
