"""Text in, text out: replies of a policy, and log-probabilities of given replies.

For trying a policy out. Training and evaluation use the slots of `rollout`, which keep many
episodes decoding side by side.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sepo_jax.policy.chat import render
from sepo_jax.policy.policy import Policy
from sepo_jax.policy.sampling import Sampling, fold_index, sample_tokens, token_key

Prompt = str | Sequence[Mapping[str, str]]
WHOLE_SOFTMAX = Sampling()
_TILE = 32  # lengths are rounded up to it, so that few programs are compiled


class Reply(NamedTuple):
    """A sampled reply.

    Attributes:
      text: without the end token. tokens: int32 [n], with it where the reply ended.
      logp: float32 [n], log-probability of each token under the distribution it was drawn from.
    """

    text: str
    tokens: np.ndarray
    logp: np.ndarray


def generate(
    policy: Policy,
    params,
    prompts: Sequence[Prompt],
    *,
    max_tokens: int = 128,
    sampling: Sampling = WHOLE_SOFTMAX,
    seed: int = 0,
) -> list[Reply]:
    """One reply to each prompt, decoded side by side; the same seed gives the same replies.

    Args:
      policy, params: with a tokenizer; params in training form, with or without an adapter.
      prompts: chats as lists of {"role", "content"}, or plain texts.
      max_tokens: most tokens of a reply.
      sampling: `Sampling(greedy=True)` for the most probable tokens.
      seed: of all draws.

    Raises:
      ValueError: one prompt given in place of a list, an empty one, or one that leaves no room.
    """
    ids = [_tokens(policy, prompt) for prompt in _several(prompts)]
    longest = max(map(len, ids), default=0)
    if max_tokens < 1 or longest + max_tokens > policy.config.max_positions:
        raise ValueError(
            f"max_tokens={max_tokens} after a prompt of {longest} tokens: 1 to "
            f"{policy.config.max_positions - longest} fit the policy's "
            f"{policy.config.max_positions} positions"
        )
    if not ids:
        return []
    width = _rounded(longest)
    padded = np.full((len(ids), width), policy.pad_id, np.int32)
    for row, prompt in zip(padded, ids, strict=True):
        row[: len(prompt)] = prompt
    lengths = np.array([len(prompt) for prompt in ids], np.int32)
    tokens, logp, counts = jax.device_get(
        _decode(policy, params, padded, lengths, _rounded(max_tokens), max_tokens, sampling, seed)
    )
    replies = []
    for row, count in enumerate(counts):
        drawn = tokens[row, :count]
        ended = count and int(drawn[-1]) in policy.end_ids
        text = policy.tokenizer.decode(drawn[: count - ended], skip_special_tokens=True)
        replies.append(Reply(text, drawn, logp[row, :count]))
    return replies


@partial(jax.jit, static_argnames=("policy", "room", "sampling"))
def _decode(policy: Policy, params, prompts, lengths, room: int, limit, sampling, seed):
    """Tokens and log-probabilities [S, room], and how many of them each row has, int32 [S]."""
    rows = len(lengths)
    params = policy.fuse(params)
    cache = policy.init_cache(rows, prompts.shape[1] + room)
    cache, logits = policy.prefill(params, cache, prompts, lengths)
    keys = token_key(seed, 0, jnp.arange(rows), 0)
    ends = jnp.asarray(policy.end_ids, jnp.int32)

    def goes_on(carry):
        step, _, _, active, *_ = carry
        return (step < limit) & active.any()

    def one_token(carry):
        step, cache, logits, active, tokens, logp, counts = carry
        drawn = sample_tokens(fold_index(keys, jnp.full(rows, step)), logits, sampling)
        tokens = tokens.at[:, step].set(jnp.where(active, drawn.token, 0))
        logp = logp.at[:, step].set(jnp.where(active, drawn.logp, 0.0))
        cache, logits = policy.decode_step(params, cache, drawn.token, active)
        ended = (drawn.token[:, None] == ends[None]).any(axis=1)
        return step + 1, cache, logits, active & ~ended, tokens, logp, counts + active

    start = (
        jnp.int32(0),
        cache,
        logits,
        jnp.ones(rows, bool),
        jnp.zeros((rows, room), jnp.int32),
        jnp.zeros((rows, room), jnp.float32),
        jnp.zeros(rows, jnp.int32),
    )
    *_, tokens, logp, counts = jax.lax.while_loop(goes_on, one_token, start)
    return tokens, logp, counts


def text_log_probs(
    policy: Policy, params, prompt: Prompt, reply: str, *, temperature: float = 1.0
) -> np.ndarray:
    """Log-probability of each token of `reply` and its end token after `prompt`, float32 [n].

    Raises:
      ValueError: an empty prompt.
    """
    before = _tokens(policy, prompt)
    ids = policy.tokenizer.encode(reply, add_special_tokens=False)
    return token_log_probs(policy, params, before, [*ids, *policy.end_ids[:1]], temperature)


def token_log_probs(policy: Policy, params, prompt, reply, temperature: float = 1.0) -> np.ndarray:
    """Log-probability of each id of `reply` [n] after the ids of `prompt` [at least 1]; [n]."""
    row = np.array([[*prompt, *reply]], np.int32)
    spare = _rounded(row.shape[1]) - row.shape[1]
    segment = np.pad(np.zeros_like(row), ((0, 0), (0, spare)), constant_values=-1)
    row = np.pad(row, ((0, 0), (0, spare)))
    positions = np.arange(row.shape[1], dtype=np.int32)[None]
    source = np.zeros((1, _rounded(len(reply))), np.int32)
    target = np.zeros_like(source)
    source[0, : len(reply)] = np.arange(len(prompt) - 1, len(prompt) + len(reply) - 1)
    target[0, : len(reply)] = reply
    scores = _scores(policy, params, row, positions, segment, source, target, temperature)
    return np.asarray(scores.logp)[0, : len(reply)]


@partial(jax.jit, static_argnames="policy")
def _scores(policy, params, tokens, positions, segment, source, target, temperature):
    return policy.log_probs(
        params, tokens, positions, segment, None, source, target, temperature=temperature
    )


def _several(prompts) -> list[Prompt]:
    one = isinstance(prompts, str) or (prompts and isinstance(prompts[0], Mapping))
    if one:
        raise ValueError("prompts is a list of prompts; put a single one in a list")
    return list(prompts)


def _tokens(policy: Policy, prompt: Prompt) -> list[int]:
    if policy.tokenizer is None:
        raise ValueError("this policy has no tokenizer; load it with one")
    if isinstance(prompt, str):
        ids = list(policy.tokenizer.encode(prompt))
    else:
        ids = list(render(policy.tokenizer, prompt))
    if not ids:
        raise ValueError(f"prompt {prompt!r} has no token; the first reply token needs one before")
    return ids


def _rounded(count: int) -> int:
    return -(-count // _TILE) * _TILE
