"""Gated delta rule: a matrix memory that decays and is corrected token by token.

Each value head keeps a matrix S [Dk, Dv] that answers a key with a value. A token first lets S
decay, then moves the answer to its own key towards its own value, then asks with its query:

    d_t = beta_t (v_t - exp(g_t) S_{t-1}^T k_t)
    S_t = exp(g_t) S_{t-1} + k_t d_t^T
    o_t = S_t^T q_t

with g_t <= 0 the log decay, beta_t in [0, 1] the step size, k_t and q_t of unit length (the query
further divided by sqrt(Dk)). `gated_delta_step` is this definition for one token,
`gated_delta_rule` gives the same numbers for whole rows by matrix products over chunks of tokens.
`causal_convolution` is the short convolution over queries, keys and values that comes before.
Source: Yang et al., Gated Delta Networks (arXiv 2412.06464), sections 3.1 to 3.4.

In the shape descriptions, B is rows, T tokens, K key heads, V value heads (a multiple of K;
consecutive ones share a key head), Dk and Dv their sizes; N is chunks, G value heads a key head.
"""

import chex
import jax
import jax.numpy as jnp

PRECISION = jax.lax.Precision.HIGHEST  # the memory sums thousands of tokens: keep float32 whole


def _product(left: jax.Array, right: jax.Array) -> jax.Array:
    return jnp.matmul(left, right, precision=PRECISION)


def causal_convolution(
    inputs: jax.Array, kernel: jax.Array, state: jax.Array, real: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Convolution of every channel with its own past, then silu; padding does not exist for it.

    output_t = silu(sum_i kernel[i] x_{t - (width - 1) + i}), where x runs through the state and
    then through the real columns only.

    Args:
      inputs: [B, T, C]. kernel: [width, C], the last row weighs the token itself.
      state: [B, width - 1, C], the inputs before the first real column; zeros at the start.
      real: bool [B, T]; the true columns of a row are adjacent (padding left, right or both). A row
        may be all padding.

    Returns:
      Outputs [B, T, C] of the inputs' dtype (columns of padding: finite, without meaning) and the
      last width - 1 inputs of state and real columns, of the state's dtype.
    """
    chex.assert_rank([inputs, kernel, state, real], [3, 2, 3, 2])
    rows, length, channels = inputs.shape
    history = kernel.shape[0] - 1
    chex.assert_shape(kernel, (None, channels))
    chex.assert_shape(state, (rows, history, channels))
    chex.assert_shape(real, (rows, length))
    wide = jnp.where(real[..., None], inputs.astype(jnp.float32), 0.0)
    wide = jnp.pad(wide, ((0, 0), (history, 0), (0, 0)))
    # The state belongs directly before the first real column, wherever that is.
    first = jnp.argmax(real, axis=1)
    place = jax.vmap(lambda row, past, start: jax.lax.dynamic_update_slice(row, past, (start, 0)))
    wide = place(wide, state.astype(jnp.float32), first)
    taps = kernel.astype(jnp.float32)[:, None, None, :]
    total = sum(taps[i] * wide[:, i : i + length] for i in range(history + 1))
    end = first + jnp.sum(real, axis=1)
    take = jax.vmap(lambda row, start: jax.lax.dynamic_slice_in_dim(row, start, history))
    return jax.nn.silu(total).astype(inputs.dtype), take(wide, end).astype(state.dtype)


def _unit(vectors: jax.Array, epsilon: float = 1e-6) -> jax.Array:
    """Vectors of length 1 along the last axis, float32: x / sqrt(sum(x^2) + epsilon)."""
    wide = vectors.astype(jnp.float32)
    return wide * jax.lax.rsqrt(jnp.sum(jnp.square(wide), axis=-1, keepdims=True) + epsilon)


def _check_shapes(query, key, value, log_decay, beta, state, leading: int) -> None:
    """Asserts the shapes of both forms; `leading` axes come before the heads."""
    rank = leading + 2
    chex.assert_rank([query, key, value, log_decay, beta, state], [rank] * 3 + [rank - 1] * 2 + [4])
    chex.assert_equal_shape([query, key])
    chex.assert_equal_shape_prefix([key, value], leading)
    chex.assert_equal_shape([log_decay, beta])
    chex.assert_shape(beta, value.shape[:-1])
    chex.assert_shape(state, (value.shape[0], value.shape[-2], key.shape[-1], value.shape[-1]))
    chex.assert_is_divisible(value.shape[-2], key.shape[-2])


def gated_delta_step(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    log_decay: jax.Array,
    beta: jax.Array,
    state: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """One token of every row: the definition above, float32 inside.

    Args:
      query, key: [B, K, Dk], of any length (normalised here). value: [B, V, Dv].
      log_decay, beta: [B, V]; both 0 leave the state as it is.
      state: [B, V, Dk, Dv].

    Returns:
      Outputs [B, V, Dv] and the next state, both float32.
    """
    _check_shapes(query, key, value, log_decay, beta, state, leading=1)
    group = value.shape[-2] // key.shape[-2]
    key = jnp.repeat(_unit(key), group, axis=1)
    query = jnp.repeat(_unit(query), group, axis=1) * query.shape[-1] ** -0.5
    state = state.astype(jnp.float32)
    decay = jnp.exp(log_decay.astype(jnp.float32))[..., None]
    # One pass over the memory answers key and query: q^T S_t = exp(g) q^T S_{t-1} + (q^T k) d^T.
    asked = jnp.stack([key, query], axis=2)
    answers = decay[..., None] * _product(asked, state)
    change = beta.astype(jnp.float32)[..., None] * (value.astype(jnp.float32) - answers[:, :, 0])
    output = answers[:, :, 1] + jnp.sum(query * key, axis=-1, keepdims=True) * change
    return output, decay[..., None] * state + key[..., None] * change[:, :, None, :]


def gated_delta_rule(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    log_decay: jax.Array,
    beta: jax.Array,
    state: jax.Array,
    *,
    chunk: int = 64,
) -> tuple[jax.Array, jax.Array]:
    """Whole rows: the numbers of `gated_delta_step` column by column, in chunks of C tokens.

    With D_ij = exp(g_{j+1} + ... + g_i) for j <= i and b_i = exp(g_1 + ... + g_i) inside a chunk,
    the corrections d of all its tokens solve one unit lower triangular system,

        d_i + beta_i sum_{j<i} D_ij (k_i^T k_j) d_j = beta_i (v_i - b_i S^T k_i),

    whose two right sides (v and k) are solved for all chunks at once; a scan over chunks then does

        o_i = b_i S^T q_i + sum_{j<=i} D_ij (q_i^T k_j) d_j,    S' = b_C S + sum_j D_Cj k_j d_j^T.

    Exponents are sums of log decays, never differences of such sums: all are <= 0, and a token that
    forgets everything (minus infinity) costs no precision. O(T chunk) products and memory.

    Args:
      query, key: [B, T, K, Dk], of any length (normalised here). value: [B, T, V, Dv].
      log_decay, beta: [B, T, V]; both 0 on padding, which then leaves the state as it is.
      state: [B, V, Dk, Dv] before the first column.
      chunk: tokens that one system couples; any T is allowed.

    Returns:
      Outputs [B, T, V, Dv] and the state after the last column, both float32.

    Raises:
      ValueError: for a chunk below 1.
    """
    _check_shapes(query, key, value, log_decay, beta, state, leading=2)
    if chunk < 1:
        raise ValueError(f"chunk={chunk}: a chunk holds at least 1 token")
    rows, length, heads, size = key.shape
    if length == 1:
        tokens = (array[:, 0] for array in (query, key, value, log_decay, beta))
        output, state = gated_delta_step(*tokens, state)
        return output[:, None], state
    chunk = min(chunk, length)
    group, value_size = value.shape[2] // heads, value.shape[3]

    def grouped(array):
        wide = array.astype(jnp.float32)
        return _split(wide.reshape(rows, length, heads, group, *array.shape[3:]), chunk, axis=4)

    parts = _chunk_parts(
        _split(_unit(query) * size**-0.5, chunk, axis=3),
        _split(_unit(key), chunk, axis=3),
        grouped(value),
        grouped(log_decay),
        grouped(beta),
    )
    state = state.astype(jnp.float32).reshape(rows, heads, group, size, value_size)
    state, outputs = jax.lax.scan(_next_chunk, state, parts)
    # [N, B, K, G, C, Dv] -> [B, N, C, K, G, Dv]
    outputs = outputs.transpose(1, 0, 4, 2, 3, 5).reshape(rows, -1, heads * group, value_size)
    return outputs[:, :length], state.reshape(rows, heads * group, size, value_size)


@jax.custom_jvp
def unit_lower_inverse(below: jax.Array) -> jax.Array:
    """(I + A)^-1 for strictly lower triangular A [..., n, n], by products of matrices alone.

    With X and Y the inverses of the diagonal halves and L the part of A below them, the inverse is
    [[X, 0], [-Y L X, Y]]; both halves are inverted together. With the A of `gated_delta_rule` its
    entries stay within [-1, 1]: up to factors in [0, 1], they are k_i^T P k_j for a product P of
    contractions. The derivative is -X dA X for the whole inverse X.
    """
    # XLA's batched triangular solve can wait for ever on a CPU of two cores; products do not.
    size = below.shape[-1]
    if size <= 16 or size % 2:
        return _small_inverse(below)
    half = size // 2
    # Behind the other leading axes: in front of one that a mesh splits, XLA's simplifier for TPUs
    # aborts the process.
    blocks = jnp.stack([below[..., :half, :half], below[..., half:, half:]], axis=-3)
    first, second = jnp.moveaxis(unit_lower_inverse(blocks), -3, 0)
    link = _product(_product(second, below[..., half:, :half]), first)
    rows = [[first, jnp.zeros_like(link)], [-link, second]]
    return jnp.concatenate([jnp.concatenate(row, axis=-1) for row in rows], axis=-2)


def _small_inverse(below: jax.Array) -> jax.Array:
    """The same by doubling the blocks of one matrix: X - X L X, L coupling blocks in pairs."""
    size = below.shape[-1]
    index = jnp.arange(size)
    shape = (1,) * (below.ndim - 2) + (size, size)
    inverse = jnp.broadcast_to(jnp.eye(size, dtype=below.dtype).reshape(shape), below.shape)
    block = 1
    while block < size:
        part = index // block
        coupled = (part[:, None] == part[None, :] + 1) & (part[:, None] % 2 == 1)
        link = jnp.where(coupled.reshape(shape), below, 0.0)
        inverse = inverse - (link if block == 1 else _product(_product(inverse, link), inverse))
        block *= 2
    return inverse


@unit_lower_inverse.defjvp
def _unit_lower_inverse_jvp(primals, tangents):
    inverse = unit_lower_inverse(*primals)
    return inverse, -_product(_product(inverse, tangents[0]), inverse)


def _split(array: jax.Array, chunk: int, axis: int) -> jax.Array:
    """[B, T, heads.., ...] -> [N, B, heads.., chunk, ...], zeros after T; chunk lands on `axis`."""
    rows, length = array.shape[:2]
    array = jnp.pad(array, ((0, 0), (0, -length % chunk)) + ((0, 0),) * (array.ndim - 2))
    array = jnp.moveaxis(array.reshape(rows, -1, chunk, *array.shape[2:]), 1, 0)
    return jnp.moveaxis(array, 2, axis)


def _chunk_parts(query, key, value, log_decay, beta) -> tuple[jax.Array, ...]:
    """What a chunk contributes whatever the state before it.

    Args:
      query, key: [N, B, K, C, Dk] unit length. value: [N, B, K, G, C, Dv].
      log_decay, beta: [N, B, K, G, C].

    Returns:
      Arrays [N, B, K, G, ...]: corrections for an empty state [C, Dv] and what a state takes off
      them [C, Dk]; scores among the tokens [C, C]; queries and keys weighted by the decay since the
      chunk's start and until its end [C, Dk]; decay of the whole chunk [].
    """
    chunk = key.shape[-2]
    ones = (1,) * (log_decay.ndim - 1)
    before = jnp.tril(jnp.ones((chunk, chunk), bool), -1).reshape(*ones, chunk, chunk)
    later = before.swapaxes(-1, -2)
    # reach_ij = g_{j+1} + ... + g_i, summed as such.
    reach = jnp.cumsum(jnp.where(before, log_decay[..., None], 0.0), axis=-2)
    decay = jnp.exp(jnp.where(later, -jnp.inf, reach))
    since_start = jnp.exp(jnp.cumsum(log_decay, axis=-1))[..., None]
    beta = beta[..., None]

    turned = key.swapaxes(-1, -2)
    overlap = _product(key, turned)[:, :, :, None]
    scores = _product(query, turned)[:, :, :, None] * decay
    key, query = key[:, :, :, None], query[:, :, :, None]
    right = jnp.concatenate([beta * value, beta * since_start * key], axis=-1)
    inverse = unit_lower_inverse(jnp.where(before, beta * overlap * decay, 0.0))
    solved = _product(inverse, right)
    fresh, taken = jnp.split(solved, [value.shape[-1]], axis=-1)
    until_end = decay[..., -1, :, None]
    return fresh, taken, scores, since_start * query, until_end * key, since_start[..., -1, 0]


def _next_chunk(state, parts):
    """Carries the memory [B, K, G, Dk, Dv] over one chunk; gives the chunk's outputs."""
    fresh, taken, scores, query, key, decay = parts
    change = fresh - _product(taken, state)
    outputs = _product(query, state)
    outputs = outputs + _product(scores, change)
    added = _product(key.swapaxes(-1, -2), change)
    return decay[..., None, None] * state + added, outputs
