"""The host loop over the engine: requests in, completions out, slots refilled as they finish."""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np

from ..forest import bucket
from ..policy import Policy, Sampling
from .engine import admit, decode, init_slots


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
        state = decode(
            policy,
            params,
            state,
            options.sampling,
            tuple(policy.end_ids),
            options.exchange_interval,
        )
        finished = _finished(state, occupied, tuple(policy.end_ids))
        for slot, completion in finished:
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


def _admit_wave(policy, params, state, wave, options, capacity, seed, step):
    prompts = list(dict.fromkeys(request.prompt for request in wave.values()))
    row = {prompt: index for index, prompt in enumerate(prompts)}
    lengths = np.zeros(bucket(len(prompts)), np.int32)
    lengths[: len(prompts)] = [len(prompt) for prompt in prompts]
    width = min(bucket(max(int(lengths.max()), SHORTEST_WIDTH)), capacity)
    tokens = np.zeros((len(lengths), width), np.int32)
    for index, prompt in enumerate(prompts):
        tokens[index, : len(prompt)] = prompt
    source = np.full(options.slots, -1, np.int32)
    key_ids = np.zeros((options.slots, 5), np.int32)
    for slot, request in wave.items():
        source[slot] = row[request.prompt]
        first_token = request.turn * options.max_action_tokens
        key_ids[slot] = (seed, step, request.group, request.member, first_token)
    return admit(
        policy,
        params,
        state,
        jnp.asarray(tokens),
        jnp.asarray(lengths),
        jnp.asarray(source),
        jnp.asarray(key_ids),
        capacity,
    )


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
