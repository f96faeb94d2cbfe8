"""The host loop over slots that decode in step: requests in, completions out.

Slots are filled with prompts by `admit`, copied to others that asked for the same by `share`, and
sampled by `decode`. In the shapes, S is the number of slots, V the vocabulary, L the token limit of
an action, P the number of distinct prompts of an admission, W their padded width, C the slots that
share them.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from ..forest import bucket
from ..policy import (
    Policy,
    Sampling,
    reset_slots,
    sample_tokens,
    token_key,
    fold_index,
)


@dataclass(frozen=True)
class Request:
    """A prompt to complete.

    Attributes:
      prompt: token ids.
      group, member, turn: who asks; with the seed and step they fix the sampling keys.
      owner: handed back with the completion.
    """

    prompt: tuple[int, ...]
    group: int
    member: int
    turn: int = 0
    owner: int = 0


@dataclass(frozen=True)
class Completion:
    """A sampled action.

    Attributes:
      tokens: int32 [n], with the end token when there is one.
      logp, entropy: float32 [n], of the distribution each token was sampled from.
      truncated: whether the token limit, not an end token, ended it.
    """

    tokens: np.ndarray
    logp: np.ndarray
    entropy: np.ndarray
    truncated: bool


WHOLE_SOFTMAX = Sampling()
SHORTEST_WIDTH = 16  # prompts below it share one compiled admission
LEAST_REACH = 256  # shorter caches are read whole


@dataclass(frozen=True)
class EngineOptions:
    """Sizes of the engine and how it samples.

    Attributes:
      slots: contexts decoded at once.
      max_action_tokens: token limit of an action.
      exchange_interval: tokens decoded between two visits of the host.
      sampling: temperature and truncation.
    """

    slots: int = 64
    max_action_tokens: int = 8
    exchange_interval: int = 4
    sampling: Sampling = WHOLE_SOFTMAX

    def __post_init__(self):
        for name in ("slots", "max_action_tokens", "exchange_interval"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")


def run_requests(
    policy: Policy,
    params: chex.ArrayTree,
    requests: Iterable[Request],
    on_completion: Callable[[Request, Completion], Iterable[Request]],
    options: EngineOptions,
    *,
    seed: int,
    step: int = 0,
) -> None:
    """Completes requests, and those that `on_completion` answers with, until none is left.

    Args:
      policy, params: the policy.
      requests: the first requests.
      on_completion: called with a request and its completion; returns further requests.
      options: sizes and sampling.
      seed, step: fold into every sampling key.

    Raises:
      ValueError: a prompt with no token, with an id outside the vocabulary, or one the policy has
        no positions for.
    """
    params = _fuse(policy, params)
    pending = deque(requests)
    occupied: dict[int, Request] = {}
    held: dict[int, int] = {}  # tokens in each occupied slot, at most
    capacity, state = 0, None
    while pending or occupied:
        free = [slot for slot in range(options.slots) if slot not in occupied]
        if pending and free:
            wave = {slot: pending.popleft() for slot in free[: len(pending)]}
            needed = _needed(policy, wave.values(), options)
            if needed > capacity:
                # A slot in use keeps its size until it is free; put the wave back and drain.
                if occupied:
                    pending.extendleft(reversed(wave.values()))
                    wave = {}
                else:
                    capacity = needed
                    state = init_slots(policy, options.slots, capacity, options.max_action_tokens)
            if wave:
                state = _admit_wave(policy, params, state, wave, options, capacity, seed, step)
                occupied.update(wave)
                held.update({slot: len(request.prompt) for slot, request in wave.items()})
        state = decode(
            policy,
            params,
            state,
            options.sampling,
            tuple(policy.end_ids),
            options.exchange_interval,
            _reach(held.values(), options, capacity),
        )
        held = {slot: length + options.exchange_interval for slot, length in held.items()}
        finished = _finished(state, occupied, tuple(policy.end_ids))
        for slot, completion in finished:
            del held[slot]
            pending.extend(on_completion(occupied.pop(slot), completion))


@partial(jax.jit, static_argnames="policy")
def _fuse(policy: Policy, params: chex.ArrayTree) -> chex.ArrayTree:
    return policy.fuse(params)


def _needed(policy: Policy, requests: Iterable[Request], options: EngineOptions) -> int:
    longest = 0
    for request in requests:
        if not request.prompt:
            raise ValueError(f"request of group {request.group} has an empty prompt")
        vocabulary = policy.config.vocab_size
        if min(request.prompt) < 0 or max(request.prompt) >= vocabulary:
            wrong = next(token for token in request.prompt if not 0 <= token < vocabulary)
            raise ValueError(
                f"request of group {request.group} has token id {wrong} in its prompt; the "
                f"policy's vocabulary has ids 0 to {vocabulary - 1}: was the prompt made by "
                f"another tokenizer?"
            )
        longest = max(longest, len(request.prompt))
    if longest + options.max_action_tokens > policy.config.max_positions:
        raise ValueError(
            f"a prompt of {longest} tokens and {options.max_action_tokens} action tokens exceed "
            f"the policy's {policy.config.max_positions} positions; shorten one of them"
        )
    needed = max(longest, SHORTEST_WIDTH) + options.max_action_tokens
    return min(bucket(needed), policy.config.max_positions)


def _admit_wave(policy, params, state, wave: dict[int, Request], options, capacity, seed, step):
    """Starts a wave of requests by slot; each distinct prompt is computed in one slot."""
    first: dict[tuple[int, ...], int] = {}
    copies = []
    for slot, request in wave.items():
        source = first.setdefault(request.prompt, slot)
        if source != slot:
            copies.append((source, slot))
    lengths = np.zeros(bucket(len(first)), np.int32)
    lengths[: len(first)] = [len(prompt) for prompt in first]
    width = min(bucket(max(int(lengths.max()), SHORTEST_WIDTH)), capacity)
    prompts = np.zeros((len(lengths), width), np.int32)
    slots = np.full(len(lengths), options.slots, np.int32)
    for index, (prompt, slot) in enumerate(first.items()):
        prompts[index, : len(prompt)] = prompt
        slots[index] = slot
    key_ids = np.zeros((options.slots, 5), np.int32)
    for slot, request in wave.items():
        first_token = request.turn * options.max_action_tokens
        key_ids[slot] = (seed, step, request.group, request.member, first_token)
    state = admit(policy, params, state, prompts, lengths, slots, key_ids)
    if copies:
        copies += [(0, options.slots)] * (bucket(len(copies)) - len(copies))
        source, slots = np.array(copies, np.int32).T
        state = share(state, source, slots, key_ids)
    return state


def _reach(lengths: Iterable[int], options: EngineOptions, capacity: int) -> int | None:
    """Positions that attention must read in the next tokens: powers of two from `LEAST_REACH` on,
    so that few are compiled; None for the whole cache."""
    needed = max(lengths) + options.exchange_interval
    reach = max(LEAST_REACH, 1 << (needed - 1).bit_length())
    return reach if reach < capacity else None


def _finished(state, occupied, end_ids) -> list[tuple[int, Completion]]:
    decoding, count, tokens, logp, entropy = jax.device_get(
        (state.decoding, state.count, state.tokens, state.logp, state.entropy)
    )
    finished = []
    for slot in occupied:
        if decoding[slot]:
            continue
        n = int(count[slot])
        completion = Completion(
            tokens=tokens[slot, :n].copy(),
            logp=logp[slot, :n].copy(),
            entropy=entropy[slot, :n].copy(),
            truncated=int(tokens[slot, n - 1]) not in end_ids,
        )
        finished.append((slot, completion))
    return finished


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
        cache=jax.tree.map(
            lambda array: array.at[slots].set(array[source], mode="drop"), state.cache
        ),
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
        token_keys = fold_index(state.keys, state.token_index)
        sampled = sample_tokens(token_keys, state.logits, sampling)
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
