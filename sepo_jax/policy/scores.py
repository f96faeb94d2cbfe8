"""Log-probability and entropy of tokens, one formula for sampler and trainer.

`token_scores` takes logits that exist; `chunked_scores` takes what they are made of and never holds
more than a piece of them.
"""

from functools import partial
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero

# Pieces of the vocabulary are multiples of this many entries: whole tiles of a matrix unit.
TILE = 128


@chex.dataclass(frozen=True)
class TokenScores:
    """What a policy says of given tokens; float32 [B, A] each.

    Attributes:
      logp: log-probability of each target. entropy: of the whole next-token distribution, nats.
      value: state value before the target; None without a value head.
    """

    logp: jax.Array
    entropy: jax.Array
    value: jax.Array | None


def token_scores(logits, target, temperature=1.0) -> tuple[jax.Array, jax.Array]:
    """Log-probability of `target` [...] and entropy under softmax(logits / temperature).

    logp = z_t - log sum exp z and H = log sum exp z - sum p z, z = (logits - max) / temperature.
    Entries of -inf (forbidden tokens) have probability 0, add nothing to the entropy and leave
    every gradient finite: the product p z never sees them.
    """
    peak = jax.lax.stop_gradient(jnp.max(logits, axis=-1, keepdims=True))
    allowed = logits > -jnp.inf
    scaled = (jnp.where(allowed, logits, peak) - peak) / temperature
    weights = jnp.where(allowed, jnp.exp(scaled), 0.0)
    total = jnp.sum(weights, axis=-1)
    log_total = jnp.log(total)
    entropy = log_total - jnp.sum(weights * scaled, axis=-1) / total
    chosen = jnp.take_along_axis(scaled, target[..., None], axis=-1)[..., 0]
    legal = jnp.take_along_axis(allowed, target[..., None], axis=-1)[..., 0]
    return jnp.where(legal, chosen - log_total, -jnp.inf), entropy


def chunked_scores(
    normal,
    kernel,
    target,
    *,
    temperature=1.0,
    softcap: float | None = None,
    budget: int,
    vocabulary_axis: int,
    precision: Any = None,
) -> tuple[jax.Array, jax.Array]:
    """`token_scores` of logits that are never held whole, forwards or backwards.

    The distribution is softmax(cap(normal @ kernel) / temperature), cap(z) = c tanh(z / c). The
    vocabulary is walked in pieces: peak, sum and weighted sum of the exponentials are carried from
    one to the next, rescaled whenever the peak rises (Milakov and Gimelshein 2018, algorithm 3).
    With p the distribution, t the target, H the entropy and T the temperature, the gradient is

        d logp / d z_v = (1[v = t] - p_v) cap'(z_v) / T,
        d H / d z_v = -p_v (log p_v + H) cap'(z_v) / T.

    A kernel that is differentiated costs four products of the size of the logits: the backward pass
    forms each piece once more and writes that piece of the kernel's gradient. A kernel that is not
    (an adapter is trained) costs two, or three when the entropy is differentiated too: the gradient
    of a row is then one vector for each of its two scores, summed up with the scores themselves,
    and nothing is formed again. On the CPU neither is slower than storing the logits (512 rows,
    V = 49,152, H = 576), so logits within the budget go the same way, in one piece.

    Only reverse mode, first derivatives. The temperature is a setting: no gradient reaches it.

    Args:
      normal: normed states [..., H]; the products run in its dtype and are summed in float32.
      kernel: the output projection [H, V], or an embedding [V, H] that serves as one.
      target: int [...], each in [0, V).
      temperature: scalar > 0; may be traced.
      softcap: c > 0, or None for logits as they are.
      budget: entries of float32 logits that may exist at a time; a few arrays of that size do. A
        piece is never narrower than `TILE` entries of the vocabulary.
      vocabulary_axis: the kernel's axis of length V: 1 for [H, V], 0 for [V, H].
      precision: of the products.

    Returns:
      (log-probability, entropy in nats), float32 [...] each; gradients have the dtypes of `normal`
      and `kernel`.

    Raises:
      ValueError: for a budget below 1, a softcap of 0 or less and an axis that is neither 0 nor 1.
    """
    _check(normal, kernel, target, temperature, softcap, budget, vocabulary_axis)
    width = _piece_width(target.size, kernel.shape[vocabulary_axis], budget)
    plan = _Plan(vocabulary_axis, width, softcap, precision)
    temperature = jax.lax.stop_gradient(jnp.asarray(temperature, jnp.float32))
    rows = normal.reshape(target.size, normal.shape[-1])
    logp, entropy = _scores(plan, rows, kernel, target.reshape(-1), temperature)
    return logp.reshape(target.shape), entropy.reshape(target.shape)


def _check(normal, kernel, target, temperature, softcap, budget, vocabulary_axis):
    chex.assert_rank(kernel, 2)
    chex.assert_rank(temperature, 0)
    if vocabulary_axis not in (0, 1):
        raise ValueError(
            "vocabulary_axis must be 0 (a kernel [V, H]) or 1 (a kernel [H, V]), "
            f"not {vocabulary_axis!r}"
        )
    chex.assert_shape(normal, (*target.shape, kernel.shape[1 - vocabulary_axis]))
    if budget < 1:
        raise ValueError(f"budget must be at least one logit, not {budget!r}")
    if softcap is not None and not softcap > 0:
        raise ValueError(f"softcap must be positive, or None for no cap; not {softcap!r}")


class _Plan(NamedTuple):
    """What is static: the kernel's vocabulary axis, entries of a piece, softcap, precision."""

    axis: int
    width: int
    softcap: float | None
    precision: Any


def _piece_width(rows: int, vocabulary: int, budget: int) -> int:
    """Entries of a piece: whole tiles, pieces about equal, `rows` times them within the budget."""
    fit = max(budget // max(rows, 1) // TILE, 1) * TILE
    pieces = -(-vocabulary // fit)
    tiles = -(-vocabulary // (pieces * TILE))
    return min(tiles * TILE, vocabulary)


def _product(plan: _Plan, left, right, left_axis: int, right_axis: int):
    contract = (((left_axis,), (right_axis,)), ((), ()))
    return jax.lax.dot_general(
        left, right, contract, precision=plan.precision, preferred_element_type=jnp.float32
    )


class _Piece(NamedTuple):
    """One piece of the vocabulary: w entries from `start`, and their scaled logits.

    kernel: [H, w] or [w, H]. logits: cap(z) / T, [N, w]. slope: cap'(z) / T, scalar or [N, w].
    own: bool [1, w], False where the piece before holds the entry too (the last piece ends with the
    vocabulary and reaches back). hit: bool [N, w], the entry is the row's target.
    """

    start: jax.Array
    kernel: jax.Array
    logits: jax.Array
    slope: jax.Array
    own: jax.Array
    hit: jax.Array


def _form_piece(plan: _Plan, normal, kernel, target, temperature, index) -> _Piece:
    start = jnp.minimum(index * plan.width, kernel.shape[plan.axis] - plan.width)
    part = jax.lax.dynamic_slice_in_dim(kernel, start, plan.width, plan.axis).astype(normal.dtype)
    logits = _product(plan, normal, part, 1, 1 - plan.axis)
    slope = 1 / temperature
    if plan.softcap is not None:
        bent = jnp.tanh(logits / plan.softcap)
        logits, slope = plan.softcap * bent, (1 - jnp.square(bent)) / temperature
    entry = (start + jnp.arange(plan.width))[None]
    own, hit = entry >= index * plan.width, entry == target[:, None]
    return _Piece(start, part, logits / temperature, slope, own, hit)


def _over_pieces(plan: _Plan, kernel, step, carry):
    pieces = -(-kernel.shape[plan.axis] // plan.width)
    if pieces == 1:
        return step(carry, 0)
    return jax.lax.scan(lambda carry, i: (step(carry, i), None), carry, jnp.arange(pieces))[0]


class _Sums(NamedTuple):
    """Sums over the entries seen so far, [N] each, with s = logit - peak and w = exp(s).

    total: of w. weighted: of w s. others: of w without the target. chosen: the target's logit.
    state: of w slope kernel without the target, [N, H]; weighted_state: of w s slope kernel, the
    same; both None where no gradient is gathered on the way.
    """

    peak: jax.Array
    total: jax.Array
    weighted: jax.Array
    others: jax.Array
    chosen: jax.Array
    state: jax.Array | None
    weighted_state: jax.Array | None


def _sum_up(plan: _Plan, normal, kernel, target, temperature, with_states: bool) -> _Sums:
    """The sums over the whole vocabulary, a piece at a time."""

    def step(seen: _Sums, index) -> _Sums:
        piece = _form_piece(plan, normal, kernel, target, temperature, index)
        peak = jnp.maximum(seen.peak, jnp.max(piece.logits, axis=1))
        scaled = piece.logits - peak[:, None]
        weights = jnp.where(piece.own, jnp.exp(scaled), 0.0)
        others = jnp.where(piece.hit, 0.0, weights)
        shift = seen.peak - peak
        shrink = jnp.exp(shift)
        inside = jnp.clip(target - piece.start, 0, plan.width - 1)
        chosen = jnp.take_along_axis(piece.logits, inside[:, None], axis=1)[:, 0]
        found = target - piece.start == inside
        state = weighted_state = None
        if with_states:

            def mix(weights):
                mixed = (weights * piece.slope).astype(normal.dtype)
                return _product(plan, mixed, piece.kernel, 1, plan.axis)

            fade, moved = shrink[:, None], shift[:, None]
            state = fade * seen.state + mix(others)
            weighted_state = fade * (seen.weighted_state + moved * seen.state)
            weighted_state += mix(others * scaled)
        return _Sums(
            peak=peak,
            total=shrink * seen.total + jnp.sum(weights, axis=1),
            weighted=shrink * (seen.weighted + shift * seen.total)
            + jnp.sum(weights * scaled, axis=1),
            others=shrink * seen.others + jnp.sum(others, axis=1),
            chosen=jnp.where(found, chosen, seen.chosen),
            state=state,
            weighted_state=weighted_state,
        )

    zeros = jnp.zeros(target.shape, jnp.float32)
    # Finite, so that the first shift times a sum of zero is zero.
    lowest = jnp.full(target.shape, jnp.finfo(jnp.float32).min / 2)
    states = jnp.zeros(normal.shape, jnp.float32) if with_states else None
    start = _Sums(lowest, zeros, zeros, zeros, zeros, states, states)
    return _over_pieces(plan, kernel, step, start)


def _finish(sums: _Sums):
    """(logp, entropy, log sum exp of the logits less the peak) of sums over the vocabulary."""
    log_total = jnp.log(sums.total)
    return sums.chosen - sums.peak - log_total, log_total - sums.weighted / sums.total, log_total


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _scores(plan: _Plan, normal, kernel, target, temperature):
    return _finish(_sum_up(plan, normal, kernel, target, temperature, False))[:2]


def _scores_forward(plan: _Plan, normal, kernel, target, temperature):
    # Decided while tracing: XLA cannot drop one of two results of a loop that computes both.
    frozen = not kernel.perturbed
    inputs = (normal.value, kernel.value, target.value, temperature.value)
    sums = _sum_up(plan, *inputs, frozen)
    logp, entropy, log_total = _finish(sums)
    if frozen:
        return (logp, entropy), _row_gradients(plan, *inputs, sums)
    return (logp, entropy), (*inputs, sums.peak + log_total, entropy)


def _row_gradients(plan: _Plan, normal, kernel, target, temperature, sums: _Sums):
    """(d logp / d normal, d entropy / d normal), [N, H] each in the dtype of `normal`.

    The target's own term stands apart, with 1 - p_t summed from the others: a confident policy's
    gradient would drown in the rounding of p_t otherwise.
    """
    logp, entropy, log_total = _finish(sums)
    own = jnp.moveaxis(jnp.take(kernel, target, axis=plan.axis), plan.axis, 0)
    own = own.astype(normal.dtype).astype(jnp.float32)
    slope = 1 / temperature
    if plan.softcap is not None:
        slope *= 1 - jnp.square(sums.chosen * temperature / plan.softcap)
    of_logp = (slope * sums.others)[:, None] * own - sums.state
    surprise = slope * jnp.exp(logp) * (logp + entropy)
    of_entropy = sums.weighted_state + (entropy - log_total)[:, None] * sums.state
    total = sums.total[:, None]
    rows = of_logp / total, -surprise[:, None] * own - of_entropy / total
    return tuple(row.astype(normal.dtype) for row in rows)


def _scores_backward(plan: _Plan, kept, cotangents):
    needed = [None if isinstance(one, SymbolicZero) else one for one in cotangents]
    if len(kept) == 2:
        rows = jnp.zeros(kept[0].shape, jnp.float32)
        for one, row in zip(needed, kept, strict=True):
            rows = rows if one is None else rows + one[:, None] * row.astype(jnp.float32)
        return rows.astype(kept[0].dtype), None, None, None
    normal, kernel, target, temperature, log_sum, entropy = kept
    of_logp, of_entropy = needed

    def step(gradients, index):
        of_normal, of_kernel = gradients
        piece = _form_piece(plan, normal, kernel, target, temperature, index)
        logp = piece.logits - log_sum[:, None]
        chance = jnp.exp(logp)
        slope = jnp.zeros(())
        if of_logp is not None:
            slope += of_logp[:, None] * (piece.hit - chance)
        if of_entropy is not None:
            slope -= of_entropy[:, None] * chance * (logp + entropy[:, None])
        slope = jnp.where(piece.own, slope * piece.slope, 0.0).astype(normal.dtype)
        of_normal += _product(plan, slope, piece.kernel, 1, plan.axis)
        pair = (slope, normal) if plan.axis == 0 else (normal, slope)
        fresh = _product(plan, *pair, 0, 0).astype(kernel.dtype)
        # Entries that the piece before has done already get exactly 0 here.
        place = (piece.start, plan.width, plan.axis)
        fresh += jax.lax.dynamic_slice_in_dim(of_kernel, *place)
        of_kernel = jax.lax.dynamic_update_slice_in_dim(of_kernel, fresh, piece.start, plan.axis)
        return of_normal, of_kernel

    zeros = (jnp.zeros(normal.shape, jnp.float32), jnp.zeros_like(kernel))
    of_normal, of_kernel = _over_pieces(plan, kernel, step, zeros)
    return of_normal.astype(normal.dtype), of_kernel, None, None


_scores.defvjp(_scores_forward, _scores_backward, symbolic_zeros=True)
