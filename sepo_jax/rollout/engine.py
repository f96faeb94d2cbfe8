"""Slots that decode in step: pure functions on one state, whatever loop drives them.

A slot holds one context: its cache, the logits of its next token, its own key. `admit` fills slots
with prompts (a prompt that several slots share is computed once and copied), `decode` samples in
all slots that are decoding, a fixed number of tokens at a time. Both are compiled once for every
bucket of shapes.

In the shapes, S is the number of slots, V the vocabulary, L the token limit of an action, P the
number of distinct prompts of an admission, W their padded width.
"""

from functools import partial
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp

from ..policy import Policy, Sampling, sample_tokens, token_key, token_uniform


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


@partial(jax.jit, static_argnames=("policy", "capacity"), donate_argnames="state")
def admit(
    policy: Policy,
    params: chex.ArrayTree,
    state: SlotState,
    prompts: chex.Array,
    lengths: chex.Array,
    source: chex.Array,
    key_ids: chex.Array,
    capacity: int,
) -> SlotState:
    """Starts actions: slot s takes prompt `source[s]`, or stays as it is where that is -1.

    Args:
      policy, params: the policy.
      state: the slots.
      prompts: int32 [P, W], padded on the right.
      lengths: int32 [P], tokens of each prompt, 0 for a padding row.
      source: int32 [S].
      key_ids: int32 [S, 5]: seed, step, prompt id, member and first token index, from which the
        slot's key derives; never its place or the order of work.
      capacity: tokens a slot has room for.
    """
    num_slots = state.decoding.shape[0]
    chex.assert_rank([prompts, lengths, source, key_ids], [2, 1, 1, 2])
    chex.assert_shape(source, (num_slots,))
    chex.assert_shape(key_ids, (num_slots, 5))
    prompt_cache, logits = policy.prefill(
        params, policy.init_cache(prompts.shape[0], capacity), prompts, lengths
    )
    taken = source >= 0
    index = jnp.maximum(source, 0)
    fresh = token_key(*key_ids[:, :4].T)

    def place(old, new):
        mask = taken.reshape((num_slots,) + (1,) * (old.ndim - 1))
        return jnp.where(mask, new[index], old)

    return state._replace(
        cache=jax.tree.map(place, state.cache, prompt_cache),
        logits=jnp.where(taken[:, None], logits[index], state.logits),
        keys=jnp.where(taken[:, None], fresh, state.keys),
        token_index=jnp.where(taken, key_ids[:, 4], state.token_index),
        decoding=state.decoding | taken,
        count=jnp.where(taken, 0, state.count),
    )


@partial(
    jax.jit,
    static_argnames=("policy", "sampling", "end_ids", "num_tokens"),
    donate_argnames="state",
)
def decode(
    policy: Policy,
    params: chex.ArrayTree,
    state: SlotState,
    sampling: Sampling,
    end_ids: tuple[int, ...],
    num_tokens: int,
) -> SlotState:
    """Samples up to `num_tokens` tokens in every decoding slot.

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
        cache, logits = policy.decode_step(params, state.cache, sampled.token, active)
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
