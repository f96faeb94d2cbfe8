"""Slots that decode in step: pure functions on one state, whatever loop drives them.

A slot holds one context: its cache, the logits of its next token, its own key. `admit` fills slots
with prompts, `share` copies them to further slots that asked for the same, `decode` samples in all
slots that are decoding, a fixed number of tokens at a time. Each is compiled once for every bucket
of shapes and updates the donated state in place.

In the shapes, S is the number of slots, V the vocabulary, L the token limit of an action, P the
number of distinct prompts of an admission, W their padded width, C the slots that share them.
"""

from functools import partial
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp

from ..policy import (
    Policy,
    Sampling,
    fork_slots,
    reset_slots,
    sample_tokens,
    token_key,
    token_uniform,
)


class SlotState(NamedTuple):
    """State of all slots.

    Attributes:
      cache: the policy's cache with S slots.
      logits: float32 [S, V], of the next token.
      keys: uint32 [S, 2], key of the episode in the slot.
      token_index: int32 [S], index of the next token within its episode's stream of keys.
      decoding: bool [S], whether the slot is in the middle of an action.
      count: int32 [S], tokens of the action so far.
      tokens: int32 [S, L]; logp, entropy: float32 [S, L], of the action's tokens.
    """

    cache: Any
    logits: chex.Array
    keys: chex.Array
    token_index: chex.Array
    decoding: chex.Array
    count: chex.Array
    tokens: chex.Array
    logp: chex.Array
    entropy: chex.Array


def init_slots(policy: Policy, num_slots: int, capacity: int, max_action_tokens: int) -> SlotState:
    """Empty slots, each with room for `capacity` tokens of prompt and action together."""
    shape = (num_slots, max_action_tokens)
    return SlotState(
        cache=policy.init_cache(num_slots, capacity),
        logits=jnp.zeros((num_slots, policy.config.vocab_size), jnp.float32),
        keys=jnp.zeros((num_slots, 2), jnp.uint32),
        token_index=jnp.zeros(num_slots, jnp.int32),
        decoding=jnp.zeros(num_slots, bool),
        count=jnp.zeros(num_slots, jnp.int32),
        tokens=jnp.zeros(shape, jnp.int32),
        logp=jnp.zeros(shape, jnp.float32),
        entropy=jnp.zeros(shape, jnp.float32),
    )


@partial(jax.jit, static_argnames="policy", donate_argnames="state")
def admit(
    policy: Policy,
    params: chex.ArrayTree,
    state: SlotState,
    prompts: chex.Array,
    lengths: chex.Array,
    slots: chex.Array,
    key_ids: chex.Array,
) -> SlotState:
    """Starts an action in slot `slots[p]` on prompt p; the other slots stay as they are.

    Args:
      policy, params: the policy.
      state: the slots.
      prompts: int32 [P, W], padded on the right.
      lengths: int32 [P], tokens of each prompt, 0 for a padding row.
      slots: int32 [P], distinct; S for a padding row.
      key_ids: int32 [S, 5]: seed, step, prompt id, member and first token index of a slot that
        starts, from which its key derives; never its place or the order of work.
    """
    chex.assert_rank([prompts, lengths], [2, 1])
    chex.assert_equal_shape([lengths, slots])
    taken = _chosen(state, slots)
    # Attention of a prompt reads nothing beyond its own columns.
    cache, logits = policy.prefill(
        params, reset_slots(state.cache, taken), prompts, lengths, slots, reach=prompts.shape[1]
    )
    state = state._replace(cache=cache, logits=state.logits.at[slots].set(logits, mode="drop"))
    return _start(state, taken, key_ids)


@partial(jax.jit, donate_argnames="state")
def share(
    state: SlotState, source: chex.Array, slots: chex.Array, key_ids: chex.Array
) -> SlotState:
    """Starts an action in slot `slots[c]` on the prompt that slot `source[c]` was just admitted on.

    Args:
      source: int32 [C]. slots: int32 [C], distinct; S for a padding entry.
      key_ids: as in `admit`.
    """
    chex.assert_equal_shape([source, slots])
    state = state._replace(
        cache=fork_slots(state.cache, source, slots=slots),
        logits=state.logits.at[slots].set(state.logits[source], mode="drop"),
    )
    return _start(state, _chosen(state, slots), key_ids)


def _chosen(state: SlotState, slots: chex.Array) -> chex.Array:
    return jnp.zeros_like(state.decoding).at[slots].set(True, mode="drop")


def _start(state: SlotState, taken: chex.Array, key_ids: chex.Array) -> SlotState:
    chex.assert_shape(key_ids, (*state.decoding.shape, 5))
    return state._replace(
        keys=jnp.where(taken[:, None], token_key(*key_ids[:, :4].T), state.keys),
        token_index=jnp.where(taken, key_ids[:, 4], state.token_index),
        decoding=state.decoding | taken,
        count=jnp.where(taken, 0, state.count),
    )


@partial(
    jax.jit,
    static_argnames=("policy", "sampling", "end_ids", "num_tokens", "reach"),
    donate_argnames="state",
)
def decode(
    policy: Policy,
    params: chex.ArrayTree,
    state: SlotState,
    sampling: Sampling,
    end_ids: tuple[int, ...],
    num_tokens: int,
    reach: int | None = None,
) -> SlotState:
    """Samples up to `num_tokens` tokens in every decoding slot.

    Attention reads the first `reach` positions of a slot, which must hold all its tokens after
    this call; None reads all.

    An action ends with its first end token, which belongs to it, or at L tokens. The key of a
    token is the slot's key folded with the token's index, so tokens do not depend on how often
    the host looks, on the number of slots, or on what other slots do.
    """
    limit = state.tokens.shape[1]
    ends = jnp.asarray(end_ids, jnp.int32)

    def one_token(_, state: SlotState) -> SlotState:
        uniform = token_uniform(state.keys, state.token_index)
        sampled = sample_tokens(uniform, state.logits, sampling)
        active = state.decoding
        here = active[:, None] & (jnp.arange(limit)[None] == state.count[:, None])
        cache, logits = policy.decode_step(params, state.cache, sampled.token, active, reach)
        count = state.count + active
        ended = (sampled.token[:, None] == ends[None]).any(axis=1) | (count >= limit)
        return state._replace(
            cache=cache,
            logits=jnp.where(active[:, None], logits, state.logits),
            token_index=state.token_index + active,
            decoding=active & ~ended,
            count=count,
            tokens=jnp.where(here, sampled.token[:, None], state.tokens),
            logp=jnp.where(here, sampled.logp[:, None], state.logp),
            entropy=jnp.where(here, sampled.entropy[:, None], state.entropy),
        )

    return jax.lax.fori_loop(0, num_tokens, one_token, state)
