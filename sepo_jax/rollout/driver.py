"""The host loop over the engine: requests in, completions out, slots refilled as they finish."""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import chex
import jax
import numpy as np

from ..forest import bucket
from ..policy import Policy, Sampling
from .engine import admit, decode, init_slots, share


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
