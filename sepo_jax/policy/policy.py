"""A policy: a decoder and its tokenizer, seen by the rest of the package as pure functions."""

import dataclasses
from functools import partial
from typing import Any

import chex
import jax
import jax.numpy as jnp

from sepo_jax.policy import cache as caching
from sepo_jax.policy import decoder, decoding_form
from sepo_jax.policy.cache import Cache
from sepo_jax.policy.config import ModelConfig
from sepo_jax.policy.lora import choose
from sepo_jax.policy.scores import TokenScores, chunked_scores


@dataclasses.dataclass(frozen=True)
class Policy:
    """A bundle of pure functions of `params`; hashable, so `jit` may close over it.

    Two policies of equal config and end ids are equal: the tokenizer takes no part in any jitted
    function and is left out of the comparison.

    Attributes:
      config: sizes and numerics.
      tokenizer: of the transformers kind (`encode`, `decode`, `apply_chat_template`), or None.
      end_ids: token ids that end a reply; empty means the tokenizer's end token.
    """

    config: ModelConfig
    tokenizer: Any = dataclasses.field(default=None, compare=False, repr=False)
    end_ids: tuple[int, ...] = ()

    def __post_init__(self):
        ids = self.end_ids
        if not ids and getattr(self.tokenizer, "eos_token_id", None) is not None:
            ids = (self.tokenizer.eos_token_id,)
        object.__setattr__(self, "end_ids", tuple(int(token) for token in ids))
        tables = ["vocab_size"]
        if self.config.per_layer_embedding_size:
            # An id beyond this table alone has no row in it, and its states would be NaN.
            tables.append("per_layer_vocab_size")
        for name in tables:
            rows = getattr(self.config, name)
            if self.tokenizer is not None and len(self.tokenizer) > rows:
                raise ValueError(
                    f"the tokenizer has {len(self.tokenizer)} ids and the model {name}={rows}: "
                    f"raise {name} to at least the former"
                )

    @property
    def pad_id(self) -> int:
        """Token id that fills unused columns; no mask is ever read from it."""
        pad = getattr(self.tokenizer, "pad_token_id", None)
        return int(pad) if pad is not None else 0

    @property
    def is_recurrent(self) -> bool:
        """Whether rows must hold one path each, since a state runs along them."""
        return self.config.is_recurrent

    @property
    def num_adapters(self) -> int:
        """Adapters that lie side by side in the parameters, one an agent; 1 where all share."""
        return self.config.lora.adapters if self.config.lora is not None else 1

    def init(self, key: jax.Array) -> dict:
        """Fresh parameters, a nested dict of arrays (layers of a kind stacked on axis 0)."""
        return _init(self.config, key)

    def log_probs(
        self,
        params,
        tokens,
        positions,
        segment,
        ancestors,
        source,
        target,
        *,
        temperature=1.0,
        agent=None,
    ) -> TokenScores:
        """Log-probability and entropy of chosen tokens of packed rows.

        The distribution is softmax(logits / temperature). Vocabulary logits are formed at `source`
        columns only, about `config.logits_budget` of them at a time, so that neither direction
        holds [B, T, V] or [B, A, V] numbers; see `scores.chunked_scores`.

        Args:
          params: parameters of `init`.
          tokens, positions: int32 [B, T]; positions count along each token's own path.
          segment: int32 [B, T], row-local segment of each column, -1 on padding.
          ancestors: bool [B, S, S], [i, j] true when segment j is i or above i; None when segments
            stand alone.
          source: int32 [B, A], column whose state predicts the target; target: int32 [B, A].
            Unused entries may hold any legal index and get finite numbers.
          temperature: > 0; the same that sampled the tokens.
          agent: int32 [B, S], agent of each segment; read where agents have adapters of their own
            (`LoraConfig.agents`), and needed there.

        Returns:
          TokenScores; `logp[b, i]` belongs to `target[b, i]`.
        """
        chex.assert_rank([tokens, source], 2)
        chex.assert_equal_shape([tokens, positions, segment])
        chex.assert_equal_shape([source, target])
        config = self.config
        if agent is not None and self.num_adapters > 1:
            params = choose(config, params, agent, segment)
        hidden = decoder.hidden_states(config, params, tokens, positions, segment, ancestors)
        hidden = jnp.take_along_axis(hidden, source[:, :, None], axis=1)
        normal = decoder.final_norm(config, params, hidden)

        kernel, vocabulary_axis = decoder.vocabulary_kernel(config, params)
        logp, entropy = chunked_scores(
            normal,
            kernel,
            target,
            temperature=temperature,
            softcap=config.final_softcap,
            budget=config.logits_budget,
            vocabulary_axis=vocabulary_axis,
            precision=config.precision,
        )
        value = decoder.values(config, params, normal)
        return TokenScores(logp=logp, entropy=entropy, value=value)

    def init_cache(self, num_slots: int, capacity: int) -> Cache:
        """Empty cache of `num_slots` sequences with room for `capacity` tokens each."""
        return caching.init_cache(self.config, num_slots, capacity)

    def fuse(self, params) -> dict:
        """Parameters in decoding form; optional, saves copies when called once before a loop."""
        return decoding_form.fuse(self.config, params)

    def fuse_adapter(self, params) -> tuple[dict, ...]:
        """The adapter of parameters, to lie beside what `fuse` makes of the rest; see
        `decoding_form.fuse_adapter`."""
        return decoding_form.fuse_adapter(self.config, params)

    def prefill(self, params, cache: Cache, tokens, lengths, slots=None, reach=None):
        """Appends `lengths[s]` of `tokens` [S, W] to each slot; see `cache.append_and_score`.

        Returns:
          (cache, float32 logits [S, V] after the last real token of each row).
        """
        return caching.append_and_score(self.config, params, cache, tokens, lengths, slots, reach)

    def append(self, params, cache: Cache, tokens, lengths, slots=None, reach=None) -> Cache:
        """Appends as `prefill` and computes no logits; see `cache.append`."""
        return caching.append(self.config, params, cache, tokens, lengths, slots, reach)

    def decode_step(self, params, cache: Cache, tokens, active, reach=None):
        """Appends one token to each slot where bool `active` [S] is true.

        `reach` is static: attention reads that many positions of the cache, see `cache.append`.

        Returns:
          (cache, float32 logits [S, V]); rows of idle slots have no meaning.
        """
        chex.assert_equal_shape([tokens, active, cache.lengths])
        steps = active.astype(jnp.int32)
        return caching.append_and_score(
            self.config, params, cache, tokens[:, None], steps, reach=reach
        )


@partial(jax.jit, static_argnums=0)
def _init(config: ModelConfig, key):
    return decoder.init(config, key)
