"""Prompts in, replies out; and log-probabilities of given replies.

For trying a policy out, and for whatever asks once: each prompt is an episode of one action.
"""

import operator
from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

import chex
import jax
import numpy as np

from ..forest import Batch, ForestBuilder, bucket, pack
from ..policy import Policy, Sampling, TokenScores, render
from ..sandbox.base import BaseEnvironment, finish
from ..sandbox.episodes import Action, EpisodeRequest
from ..sandbox.protocol import Prompt, Turn
from .driver import WHOLE_SOFTMAX, EngineOptions
from .play import check_tokens, play

Text = str | Sequence[Mapping[str, str]]
_MOST_SLOTS = 64


class Reply(NamedTuple):
    """A sampled reply.

    Attributes:
      text: without the end token. tokens: int32 [n], with it where the reply ended.
      logp: float32 [n], log-probability of each token under the distribution it was drawn from.
    """

    text: str
    tokens: np.ndarray
    logp: np.ndarray


class _AsksOnce(BaseEnvironment):
    """Shows its task, which is token ids; any reply ends it."""

    def start(self, task: Sequence[int], seed: int) -> Turn:
        return Turn({0: Prompt(tokens=tuple(task))})

    def play(self, actions: Mapping[int, str]) -> Turn:
        return finish()


def complete(
    policy: Policy,
    params: chex.ArrayTree,
    prompts: Sequence[Sequence[int]],
    options: EngineOptions,
    *,
    samples: int = 1,
    seed: int,
    step: int = 0,
    progress: str = "",
) -> list[tuple[Action, ...]]:
    """Replies to prompts of token ids; no tokenizer is needed.

    Args:
      policy, params: the policy.
      prompts: token ids, each at least one.
      options: sizes of the engine and sampling.
      samples: replies to each prompt.
      seed, step: with the place of a prompt and of its reply they fix the sample.
      progress: label of a progress bar, see `play`; "" for none.

    Returns:
      For each prompt its `samples` replies.

    Raises:
      ValueError: fewer than one sample, a prompt that is no list of token ids or has none, an id
        that the policy does not have, or a prompt that leaves no room in a slot.
    """
    if samples < 1:
        raise ValueError(f"samples must be at least 1, got {samples}")
    prompts = [_token_ids(number, prompt) for number, prompt in enumerate(prompts)]
    for number, prompt in enumerate(prompts):
        if not prompt:
            raise ValueError(
                f"prompt {number} has no token; the first reply token needs one before"
            )
        check_tokens(prompt, policy.config.vocab_size, ValueError)
    requests = [
        EpisodeRequest(prompt, seed=0, group=group, member=member)
        for group, prompt in enumerate(prompts)
        for member in range(samples)
    ]
    results = play(
        policy, params, requests, _AsksOnce, options, seed=seed, step=step, progress=progress
    ).results
    actions = [result.actions[0] for result in results]
    return [tuple(actions[first : first + samples]) for first in range(0, len(actions), samples)]


def generate(
    policy: Policy,
    params: chex.ArrayTree,
    prompts: Sequence[Text],
    *,
    max_tokens: int = 128,
    sampling: Sampling = WHOLE_SOFTMAX,
    seed: int = 0,
    progress: str = "",
) -> list[Reply]:
    """One reply to each prompt; the same seed gives the same replies.

    Args:
      policy, params: with a tokenizer; params in training form, with or without an adapter.
      prompts: chats as lists of {"role", "content"}, or plain texts.
      max_tokens: most tokens of a reply.
      sampling: `Sampling(greedy=True)` for the most probable tokens.
      seed: of all draws.
      progress: label of a progress bar, see `play`; "" for none.

    Raises:
      ValueError: one prompt given in place of a list, an empty one, or one that leaves no room.
    """
    ids = [_tokens(policy, prompt) for prompt in _several(prompts)]
    longest, positions = max(map(len, ids), default=0), policy.config.max_positions
    if max_tokens < 1 or longest + max_tokens > positions:
        raise ValueError(
            f"max_tokens={max_tokens} after a prompt of {longest} tokens: 1 to "
            f"{positions - longest} fit the policy's {positions} positions"
        )
    options = EngineOptions(
        slots=min(bucket(max(len(ids), 1)), _MOST_SLOTS),
        capacity=min(bucket(longest + max_tokens), positions),
        max_action_tokens=max_tokens,
        sampling=sampling,
    )
    replies = complete(policy, params, ids, options, seed=seed, progress=progress)
    return [Reply(action.text, action.tokens, action.logp) for (action,) in replies]


def text_log_probs(
    policy: Policy, params: chex.ArrayTree, prompt: Text, reply: str, *, temperature: float = 1.0
) -> np.ndarray:
    """Log-probability of each token of `reply` and its end token after `prompt`, float32 [n].

    Raises:
      ValueError: an empty prompt, a text longer than the policy's positions, or a temperature that
        is not positive.
    """
    before = _tokens(policy, prompt)
    ids = policy.tokenizer.encode(reply, add_special_tokens=False)
    return token_log_probs(policy, params, before, [*ids, *policy.end_ids[:1]], temperature)


def token_log_probs(
    policy: Policy,
    params: chex.ArrayTree,
    prompt: Sequence[int],
    reply: Sequence[int],
    temperature: float = 1.0,
) -> np.ndarray:
    """Log-probability of each id of `reply` [n] after the ids of `prompt` [at least 1]; [n]."""
    Sampling(temperature)  # refuses what is none
    length, positions = len(prompt) + len(reply), policy.config.max_positions
    if length > positions:
        raise ValueError(
            f"prompt and reply have {length} tokens and the policy {positions} positions; shorten "
            "them"
        )
    builder = ForestBuilder()
    builder.add(reply, builder.add(prompt), is_action=True)
    # Sizes from a ladder: a program for each of them, not for each length.
    batch = pack(builder.build(), row_length=bucket(length), one_path_per_row=True)
    scores = _scores(policy, params, batch, temperature)
    return np.asarray(scores.logp)[batch.primary]


@partial(jax.jit, static_argnames="policy")
def _scores(policy: Policy, params, batch: Batch, temperature) -> TokenScores:
    return policy.log_probs(
        params,
        batch.tokens,
        batch.positions,
        batch.segment,
        batch.ancestors,
        batch.source,
        batch.target,
        temperature=temperature,
    )


def _token_ids(number: int, prompt: Sequence[int]) -> tuple[int, ...]:
    try:
        return tuple(map(operator.index, prompt))
    except TypeError:
        raise ValueError(
            f"prompt {number} must be a list of token ids, got {repr(prompt)[:80]}"
        ) from None


def _several(prompts) -> list[Text]:
    one = isinstance(prompts, str) or (prompts and isinstance(prompts[0], Mapping))
    if one:
        raise ValueError("prompts is a list of prompts; put a single one in a list")
    return list(prompts)


def _tokens(policy: Policy, prompt: Text) -> list[int]:
    if policy.tokenizer is None:
        raise ValueError("this policy has no tokenizer; load it with one")
    if isinstance(prompt, str):
        ids = list(policy.tokenizer.encode(prompt))
    else:
        ids = list(render(policy.tokenizer, prompt))
    if not ids:
        raise ValueError(f"prompt {prompt!r} has no token; the first of a reply needs one before")
    return ids
