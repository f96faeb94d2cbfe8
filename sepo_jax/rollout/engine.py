"""Slots that decode in step: pure functions on one state, whatever loop drives them.

A slot holds one context. Its cache has every token but the last, which is pending: a decode step
feeds the pending token, samples from the logits that follow, and the sample becomes pending. So
filling a slot computes no logits, a copy may be cut after any token, and nothing is decoded after
the last token of an action.

`apply` carries out what the host commands, `decode` samples in all slots that are in the middle of
an action. What a slot samples depends on its tokens, its key and the sizes of the arrays: not on
its place, on what other slots hold, or on the order of work. On CPU the bits do not depend either
on how much of the cache attention reads.

In the shapes, S is the number of slots, E the most tokens between two visits of the host.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp

from ..policy import (
    Policy,
    Sampling,
    fold_index,
    fork_slots,
    reset_slots,
    sample_tokens,
    token_key,
)
from ..policy import cache as caching
from ..policy.sharding import constrain
from ..sandbox.exchange import KEY_PARTS, Chunks, Commands, Report

LEAST_REACH = 256  # shorter caches are read whole


class SlotState(NamedTuple):
    """State of all slots.

    Attributes:
      cache: the policy's cache with S slots.
      pending: int32 [S], last token of the context, not in the cache.
      keys: uint32 [S, 2], from which the sampling keys of the context's tokens derive.
      token_index: int32 [S], index of the next sample's key.
      decoding: bool [S], whether the slot is in the middle of an action.
      count: int32 [S], tokens of the action so far. limit: int32 [S], most it may have.
    """

    cache: Any
    pending: chex.Array
    keys: chex.Array
    token_index: chex.Array
    decoding: chex.Array
    count: chex.Array
    limit: chex.Array


def init_slots(policy: Policy, num_slots: int, capacity: int) -> SlotState:
    """Empty slots, each with room for `capacity` tokens beside the pending one."""

    def numbers():  # each its own array: a loop may reuse the memory of every one
        return jnp.zeros(num_slots, jnp.int32)

    return lay_out(
        SlotState(
            cache=policy.init_cache(num_slots, capacity),
            pending=numbers(),
            keys=jnp.zeros((num_slots, 2), jnp.uint32),
            token_index=numbers(),
            decoding=jnp.zeros(num_slots, bool),
            count=numbers(),
            limit=numbers(),
        )
    )


def lay_out(state: SlotState, place: Callable = constrain) -> SlotState:
    """The state as a mesh keeps it: the cache as `cache.lay_out` does, the few numbers beside it on
    every device; `place` puts an array there."""
    return SlotState(caching.lay_out(state.cache, place), *map(place, state[1:]))


def apply(
    policy: Policy, params: chex.ArrayTree, state: SlotState, commands: Commands
) -> SlotState:
    """Carries out all of `commands` but its code, in the order of its fields.

    Of several widths the widest goes first, since a context is cut into wide chunks and a narrow
    rest. The host keeps contexts within the capacity; a slot that passes it all the same gives
    log-probabilities that are not finite from its next decode step on.
    """
    state = halt_and_clear(state, commands.halt, commands.clear)
    for chunks in reversed(commands.chunks):
        state = prefill(policy, params, state, chunks)
    state = fork(state, commands.fork_count, commands.forks)
    return start(state, commands.start, commands.pending, commands.keys, commands.limit)


def halt_and_clear(state: SlotState, halt: chex.Array, clear: chex.Array) -> SlotState:
    """Ends the actions of slots where bool `halt` or `clear` [S] is true; `clear` empties them."""
    return lay_out(
        state._replace(
            cache=reset_slots(state.cache, clear), decoding=state.decoding & ~(halt | clear)
        )
    )


def prefill(
    policy: Policy,
    params: chex.ArrayTree,
    state: SlotState,
    chunks: Chunks,
    reach: int | None = None,
) -> SlotState:
    """Appends the tokens of `chunks` to the slots' caches, one call after the other.

    Attention reads the first `reach` positions, static, which must hold all tokens of these slots
    after this call; None reads all.
    """

    def call(index, cache):
        tokens, lengths, slots = (part[index] for part in chunks[1:])
        return policy.append(params, cache, tokens, lengths, slots, reach)

    cache = jax.lax.fori_loop(0, chunks.calls, call, state.cache)
    return lay_out(state._replace(cache=cache))


def fork(state: SlotState, fork_count: chex.Array, forks: chex.Array) -> SlotState:
    """Copies slots; see `Commands.forks`. Those of a recurrent policy can be copied whole only."""
    return lay_out(state._replace(cache=fork_slots(state.cache, forks, fork_count)))


def start(
    state: SlotState,
    begins: chex.Array,
    pending: chex.Array,
    keys: chex.Array,
    limit: chex.Array,
) -> SlotState:
    """Begins an action in the slots where bool `begins` [S] is true; see `Commands`."""
    chex.assert_shape(keys, (*state.decoding.shape, KEY_PARTS))
    return lay_out(
        state._replace(
            pending=jnp.where(begins, pending, state.pending),
            keys=jnp.where(begins[:, None], token_key(*keys[:, :4].T), state.keys),
            token_index=jnp.where(begins, keys[:, 4], state.token_index),
            decoding=state.decoding | begins,
            count=jnp.where(begins, 0, state.count),
            limit=jnp.where(begins, limit, state.limit),
        )
    )


def reaches(capacity: int) -> tuple[int, ...]:
    """Numbers of positions that attention may read: powers of two from `LEAST_REACH` on, and all
    of the cache."""
    shorter, reach = [], LEAST_REACH
    while reach < capacity:
        shorter.append(reach)
        reach *= 2
    return (*shorter, capacity)


def decode(
    policy: Policy,
    params: chex.ArrayTree,
    state: SlotState,
    sampling: Sampling,
    end_ids: Sequence[int],
    interval: int,
    reach: int | Sequence[int],
) -> tuple[SlotState, Report]:
    """Samples up to `interval` tokens in every decoding slot; stops early when none decodes.

    An action ends with its first end token, which belongs to it, or at the slot's limit. The key of
    a token is the slot's key folded with the token's index, so tokens do not depend on how often
    the host looks, on the number of slots, or on what other slots do.

    Args:
      policy, params: the policy.
      state: the slots.
      sampling, end_ids, interval: static.
      reach: static; attention reads that many positions of a slot, which must hold all tokens of
        the decoding slots after this call. Of several, ascending, the first that does.

    Returns:
      The slots, and what they sampled. A context that passes its slot gets a `logp` that is not
      finite.
    """
    shape = (state.decoding.shape[0], interval)
    report = Report(
        tokens=jnp.zeros(shape, jnp.int32),
        logp=jnp.zeros(shape, jnp.float32),
        entropy=jnp.zeros(shape, jnp.float32),
        count=jnp.zeros(shape[0], jnp.int32),
        decoding=state.decoding,
    )
    choices = (reach,) if isinstance(reach, int) else tuple(reach)
    longest = jnp.max(jnp.where(state.decoding, state.cache.lengths, 0)) + interval
    chosen = jnp.searchsorted(jnp.asarray(choices), longest).clip(max=len(choices) - 1)
    ends = jnp.asarray(end_ids, jnp.int32)
    for index, choice in enumerate(choices):
        # Loops that are not chosen have no step: a branch would copy the cache.
        steps = jnp.where(chosen == index, interval, 0)
        state, report = _decode_within(policy, params, state, report, sampling, ends, steps, choice)
    report = report._replace(decoding=state.decoding)
    return lay_out(state), Report(*map(constrain, report))


def _decode_within(policy, params, state, report, sampling, ends, steps, reach):
    def goes_on(carry):
        step, state, _ = carry
        return (step < steps) & state.decoding.any()

    def one_token(carry):
        step, state, report = carry
        active = state.decoding
        cache, logits = policy.decode_step(params, state.cache, state.pending, active, reach)
        token_keys = fold_index(state.keys, state.token_index)
        sampled = sample_tokens(token_keys, logits, sampling)
        count = state.count + active
        ended = (sampled.token[:, None] == ends[None]).any(axis=1) | (count >= state.limit)
        state = state._replace(
            cache=cache,
            pending=jnp.where(active, sampled.token, state.pending),
            token_index=state.token_index + active,
            decoding=active & ~ended,
            count=count,
        )
        # A slot that decodes has decoded in every step so far.
        put = lambda rows, new: rows.at[:, step].set(jnp.where(active, new, 0))  # noqa: E731
        report = report._replace(
            tokens=put(report.tokens, sampled.token),
            logp=put(report.logp, sampled.logp),
            entropy=put(report.entropy, sampled.entropy),
            count=report.count + active,
        )
        return step + 1, lay_out(state), report

    _, state, report = jax.lax.while_loop(goes_on, one_token, (jnp.int32(0), state, report))
    return state, report
