"""Sampling by inverse CDF with one uniform number per slot, and the keys those numbers come from.

What is reported of a sampled token is its log-probability under the distribution it was drawn from:
after the legal list, the temperature and the truncation. Without truncation that is what
`Policy.log_probs` computes at the same temperature, so an unchanged policy has ratio 1.
"""

import dataclasses

import chex
import jax
import jax.numpy as jnp

from sepo_jax.policy.scores import token_scores


@dataclasses.dataclass(frozen=True)
class Sampling:
    """How a token is drawn from logits; static and hashable.

    Order of operations: legal list, then temperature, then `top_k`, then `top_p`.

    Attributes:
      temperature: > 0, divides the logits. For the most probable token use `greedy`.
      top_k: keep that many most probable tokens (ties by lower id); 0 keeps all.
      top_p: keep the most probable tokens until their mass reaches it, in (0, 1]; 1 keeps all.
      greedy: take the most probable token (ties by lower id); log-probability and entropy reported
        are those of the untruncated distribution at `temperature`.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    greedy: bool = False

    def __post_init__(self):
        if not 0 < self.temperature < float("inf"):
            raise ValueError(
                f"temperature must be positive and finite, not {self.temperature}; "
                "for the most probable token pass greedy=True"
            )
        if self.top_k < 0 or self.top_k != int(self.top_k):
            raise ValueError(f"top_k must be a whole number >= 0 (0 keeps all), not {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be in (0, 1] (1 keeps all), not {self.top_p}")

    def check_trainable(self) -> None:
        """Raises ValueError when tokens drawn so cannot be scored by `Policy.log_probs`.

        Truncated distributions differ from the ones training scores, which would show as ratios
        away from 1 on an unchanged policy.
        """
        options = {"top_k": self.top_k > 0, "top_p": self.top_p < 1, "greedy": self.greedy}
        wrong = [f"{name}={getattr(self, name)}" for name, is_set in options.items() if is_set]
        if wrong:
            raise ValueError(
                f"training rollouts cannot use {', '.join(wrong)}: the trainer scores the whole "
                "distribution at a temperature. Leave these at their defaults, and use them for "
                "evaluation only"
            )


@chex.dataclass(frozen=True)
class Sampled:
    """One draw per slot: token int32 [S]; its logp and entropy (nats), float32 [S]."""

    token: jax.Array
    logp: jax.Array
    entropy: jax.Array


def sample_tokens(
    uniform: jax.Array,
    logits: jax.Array,
    sampling: Sampling = Sampling(),
    allowed: jax.Array | None = None,
) -> Sampled:
    """Draws one token per slot: the first token whose cumulative probability exceeds `uniform`.

    Args:
      uniform: float32 [S] in [0, 1). logits: float32 [S, V].
      sampling: static settings.
      allowed: bool [S, V], tokens that may be drawn; None allows all. A slot where nothing is
        allowed gets log-probability -inf.

    Returns:
      Sampled. Forbidden and truncated tokens are never drawn, whatever `uniform` is.
    """
    chex.assert_rank([uniform, logits], [1, 2])
    if allowed is not None:
        chex.assert_equal_shape([logits, allowed])
        logits = jnp.where(allowed, logits, -jnp.inf)
    if sampling.greedy:
        token = jnp.argmax(logits, axis=-1)
    else:
        logits = truncate(logits, sampling)
        token = _inverse_cdf(uniform, logits, sampling.temperature)
    token = token.astype(jnp.int32)
    logp, entropy = token_scores(logits, token, sampling.temperature)
    return Sampled(token=token, logp=logp, entropy=entropy)


def truncate(logits: jax.Array, sampling: Sampling) -> jax.Array:
    """`logits` [S, V] with -inf wherever top_k or top_p (at the temperature) drops a token."""
    rows, vocabulary = logits.shape
    top_k = min(sampling.top_k, vocabulary) or vocabulary
    if top_k == vocabulary and sampling.top_p == 1:
        return logits
    best, order = jax.lax.top_k(logits, top_k)
    keep = best > -jnp.inf
    if sampling.top_p < 1:
        mass = jax.nn.softmax((best - best[:, :1]) / sampling.temperature, axis=-1)
        before = jnp.cumsum(mass, axis=-1) - mass
        keep = keep & (before < sampling.top_p)
    slots = jnp.arange(rows)[:, None]
    kept = jnp.zeros((rows, vocabulary), bool).at[slots, order].set(keep)
    return jnp.where(kept, logits, -jnp.inf)


def _inverse_cdf(uniform, logits, temperature):
    """First token whose cumulative probability exceeds `uniform`, in two levels of about sqrt(V).

    Sums over blocks choose the block, the cumulative sum inside it chooses the token; a token of
    weight 0 is never chosen, even where rounding moves a cumulative sum.
    """
    rows, vocabulary = logits.shape
    block = 1 << ((vocabulary - 1).bit_length() + 1) // 2
    peak = jnp.max(logits, axis=-1, keepdims=True)
    weights = jnp.exp((logits - peak) / temperature)
    weights = jnp.pad(weights, ((0, 0), (0, -vocabulary % block))).reshape(rows, -1, block)
    sums = jnp.sum(weights, axis=-1)
    goal = uniform * jnp.sum(sums, axis=-1)
    chosen, goal = _first_above(goal, sums)
    inside = jnp.take_along_axis(weights, chosen[:, None, None], axis=1)[:, 0]
    token, _ = _first_above(goal, inside)
    return jnp.minimum(chosen * block + token, vocabulary - 1)


def _first_above(goal, weights):
    """Index of the first positive entry [S, n] whose running sum passes `goal`, and the rest."""
    total = jnp.cumsum(weights, axis=-1)
    positive = weights > 0
    hit = (total > goal[:, None]) & positive
    count = weights.shape[-1]
    last = count - 1 - jnp.argmax(positive[:, ::-1], axis=-1)
    index = jnp.where(jnp.any(hit, axis=-1), jnp.argmax(hit, axis=-1), last)
    below = jnp.take_along_axis(total - weights, index[:, None], axis=-1)[:, 0]
    return index, goal - below


def token_key(seed, step, prompt, member) -> jax.Array:
    """Raw uint32 key [..., 2] of one trajectory, from what names it and nothing else.

    The four integers may be arrays of one shape or scalars. Neither the order of a loop, nor the
    number of slots, devices or processes takes part, so neither changes what is sampled; every
    member of every prompt of every step draws its own numbers.
    """
    parts = [jnp.asarray(part).astype(jnp.uint32) for part in (seed, step, prompt, member)]
    shape = jnp.broadcast_shapes(*(part.shape for part in parts))
    seed, *rest = (jnp.broadcast_to(part, shape).reshape(-1) for part in parts)
    keys = jax.vmap(jax.random.PRNGKey)(seed)
    for part in rest:
        keys = jax.vmap(jax.random.fold_in)(keys, part)
    return keys.reshape(*shape, 2)


def token_uniform(keys: jax.Array, token_index: jax.Array) -> jax.Array:
    """The uniform number in (0, 1) of token `token_index` [S] of trajectories with `keys` [S, 2].

    float32 with 23 random bits, at the middle of its cell, so that it is unbiased and never 0 or 1.
    """
    chex.assert_rank([keys, token_index], [2, 1])
    folded = jax.vmap(jax.random.fold_in)(keys, token_index.astype(jnp.uint32))
    bits = jax.vmap(lambda key: jax.random.bits(key, dtype=jnp.uint32))(folded)
    return ((bits >> 9).astype(jnp.float32) + 0.5) * jnp.float32(2**-23)
