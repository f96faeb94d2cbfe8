"""Sampling as a race between tokens, and the keys that its random numbers come from.

Every token of weight w finishes after a time drawn from the exponential distribution with mean 1/w,
and the first wins: token i with probability w_i / sum(w). Rounding moves the result only where the
first two are as good as level, so slot counts and array shapes, which change the last bits of the
logits, practically never change a token. (A running sum of probabilities is not like that: all its
boundaries move together.) The race is run twice, between blocks of about sqrt(V) tokens and inside
the winner, which needs 2 sqrt(V) random numbers in place of V.

What is reported of a sampled token is its log-probability under the distribution it was drawn from:
after the legal list, the temperature and the truncation. Without truncation that is what
`Policy.log_probs` computes at the same temperature, so an unchanged policy has ratio 1.
"""

import dataclasses
from functools import partial

import chex
import jax
import jax.numpy as jnp

from sepo_jax.policy.scores import token_scores

_GENERATOR = "threefry2x32"  # whatever jax_default_prng_impl says: rbg mixes keys under vmap


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
        if not jnp.finfo(jnp.float32).tiny <= self.temperature < float("inf"):
            raise ValueError(
                "temperature must be positive and finite, and no smaller than float32 numbers are, "
                f"not {self.temperature}; for the most probable token pass greedy=True"
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
    keys: jax.Array,
    logits: jax.Array,
    sampling: Sampling = Sampling(),
    allowed: jax.Array | None = None,
) -> Sampled:
    """Draws one token per slot.

    Args:
      keys: uint32 [S, 2], of `fold_index`. logits: float32 [S, V].
      sampling: static settings.
      allowed: bool [S, V], tokens that may be drawn; None allows all. A slot where nothing is
        allowed gets log-probability -inf.

    Returns:
      Sampled. Forbidden and truncated tokens are never drawn, whatever the key.
    """
    chex.assert_rank([keys, logits], [2, 2])
    if allowed is not None:
        chex.assert_equal_shape([logits, allowed])
        logits = jnp.where(allowed, logits, -jnp.inf)
    if sampling.greedy:
        token = jnp.argmax(logits, axis=-1)
    else:
        logits = truncate(logits, sampling)
        token = _race(keys, logits, sampling.temperature)
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


def _race(keys, logits, temperature):
    """The winner among tokens of weight exp(logits / temperature), in two rounds."""
    rows, vocabulary = logits.shape
    block = 1 << ((vocabulary - 1).bit_length() + 1) // 2
    peak = jnp.max(logits, axis=-1, keepdims=True)
    weights = jnp.exp((logits - peak) / temperature)
    weights = jnp.pad(weights, ((0, 0), (0, -vocabulary % block))).reshape(rows, -1, block)
    blocks = weights.shape[1]
    draws = jax.vmap(lambda key: jax.random.bits(key, (blocks + block,), jnp.uint32))(_typed(keys))
    times = _exponential(draws)
    # The first to finish has the largest weight over time; weight 0 never finishes.
    chosen = jnp.argmax(jnp.sum(weights, axis=-1) / times[:, :blocks], axis=-1)
    inside = jnp.take_along_axis(weights, chosen[:, None, None], axis=1)[:, 0]
    token = jnp.argmax(inside / times[:, blocks:], axis=-1)
    return jnp.minimum(chosen * block + token, vocabulary - 1)


def _exponential(bits):
    """Times in (0, inf) of mean 1 from uint32 `bits`; short ones, which decide, are fine."""
    uniform = (bits.astype(jnp.float32) + 0.5) * jnp.float32(2**-32)
    return -jnp.log1p(-jnp.minimum(uniform, jnp.float32(1 - 2**-24)))


def token_key(seed, step, prompt, member) -> jax.Array:
    """Raw uint32 key [..., 2] of one trajectory, from what names it and nothing else.

    The four integers may be arrays of one shape or scalars. Neither the order of a loop, nor the
    number of slots, devices or processes takes part, so neither changes what is sampled; every
    member of every prompt of every step draws its own numbers.
    """
    parts = [jnp.asarray(part).astype(jnp.uint32) for part in (seed, step, prompt, member)]
    shape = jnp.broadcast_shapes(*(part.shape for part in parts))
    seed, *rest = (jnp.broadcast_to(part, shape).reshape(-1) for part in parts)
    keys = jax.vmap(partial(jax.random.key, impl=_GENERATOR))(seed)
    for part in rest:
        keys = jax.vmap(jax.random.fold_in)(keys, part)
    return jax.random.key_data(keys).reshape(*shape, 2)


def fold_index(keys: jax.Array, token_index: jax.Array) -> jax.Array:
    """Keys uint32 [S, 2] of the tokens `token_index` [S] of trajectories with `keys` [S, 2]."""
    chex.assert_rank([keys, token_index], [2, 1])
    folded = jax.vmap(jax.random.fold_in)(_typed(keys), token_index.astype(jnp.uint32))
    return jax.random.key_data(folded)


def _typed(keys: jax.Array) -> jax.Array:
    return jax.random.wrap_key_data(keys, impl=_GENERATOR)
