"""Static description of a decoder: every family is a row of these fields."""

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp

from sepo_jax.names import check_option, unknown

DTYPES = {"float32": jnp.float32, "bfloat16": jnp.bfloat16}
FAMILIES = ("llama",)


@dataclasses.dataclass(frozen=True)
class RopeScaling:
    """Frequency scaling of rotary positions as published with Llama 3.1 ("llama3").

    Wavelengths (tokens) above `original_max_positions / low_freq_factor` are stretched by `factor`,
    those below `original_max_positions / high_freq_factor` are kept, those between are blended.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_positions: int

    def __post_init__(self):
        if not self.factor >= 1 or not 0 < self.low_freq_factor < self.high_freq_factor:
            raise ValueError(
                "llama3 rope scaling needs factor >= 1 and 0 < low_freq_factor < high_freq_factor; "
                f"given {self}"
            )

    @classmethod
    def from_mapping(cls, mapping: Mapping) -> "RopeScaling":
        """Reads the `rope_scaling` / `rope_parameters` entry of a Hugging Face config."""
        kind = mapping.get("rope_type", mapping.get("type"))
        if kind != "llama3":
            raise unknown("rope scaling", kind, ["default", "llama3"])
        names = ("factor", "low_freq_factor", "high_freq_factor")
        length = "original_max_position_embeddings"
        absent = [name for name in (*names, length) if mapping.get(name) is None]
        if absent:
            raise ValueError(f"rope scaling 'llama3' lacks {absent}; given {dict(mapping)}")
        return cls(*(float(mapping[name]) for name in names), int(mapping[length]))

    def to_mapping(self) -> dict:
        """The entry as Hugging Face configs write it."""
        return {
            "rope_type": "llama3",
            "factor": self.factor,
            "low_freq_factor": self.low_freq_factor,
            "high_freq_factor": self.high_freq_factor,
            "original_max_position_embeddings": self.original_max_positions,
        }


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """Sizes and numerics of one decoder; hashable, so that it can be a static argument of `jit`.

    Attributes:
      vocab_size: rows of the embedding; at least the number of the tokenizer's ids.
      hidden_size, num_layers, intermediate_size: width, depth, width of the gated part.
      num_heads, num_kv_heads: query heads, and key/value heads that groups of them share.
      head_dim: entries of one head; `hidden_size // num_heads` when None.
      rope_theta, rope_scaling: base of the rotary frequencies, and their scaling or None.
      rms_norm_epsilon: added to the mean square inside every norm.
      tie_embeddings: the output projection is the embedding, transposed.
      attention_bias: whether the query, key, value and output projections have biases.
      max_positions: longest path (tokens) the model is meant for; not enforced by the functions.
      compute_dtype, param_dtype: "float32" or "bfloat16". Norms, softmax, logits and everything a
        loss sees are float32 in both.
      cache_dtype: of keys and values kept for decoding (bfloat16 halves memory, slower on CPU).
      remat: recompute each layer in the backward pass instead of storing its inside.
      value_head: a scalar state value beside the logits (critic of PPO).
      logits_budget: entries of float32 logits that may exist at a time in `Policy.log_probs`.
      family: names the map between parameters and checkpoint tensors.

    Raises:
      ValueError: for sizes that do not fit each other and for unknown option names.
    """

    vocab_size: int
    hidden_size: int = 128
    num_layers: int = 4
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int | None = None
    intermediate_size: int = 384
    rope_theta: float = 10_000.0
    rope_scaling: RopeScaling | None = None
    rms_norm_epsilon: float = 1e-5
    tie_embeddings: bool = True
    attention_bias: bool = False
    max_positions: int = 4096
    compute_dtype: str = "float32"
    param_dtype: str = "float32"
    cache_dtype: str = "float32"
    remat: bool = False
    value_head: bool = False
    logits_budget: int = 2**21
    family: str = "llama"

    def __post_init__(self):
        if self.head_dim is None:
            object.__setattr__(self, "head_dim", self.hidden_size // max(self.num_heads, 1))
        if isinstance(self.rope_scaling, Mapping):
            object.__setattr__(self, "rope_scaling", RopeScaling.from_mapping(self.rope_scaling))
        for name in _POSITIVE:
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"ModelConfig.{name} must be a positive integer, not {value!r}")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads={self.num_heads} is not a multiple of "
                f"num_kv_heads={self.num_kv_heads}: every key/value head serves equally many"
            )
        if self.head_dim % 2:
            raise ValueError(
                f"head_dim={self.head_dim} is odd: rotary positions turn pairs of entries"
            )
        for name in ("compute_dtype", "param_dtype", "cache_dtype"):
            check_option(name, getattr(self, name), DTYPES)
        check_option("model family", self.family, FAMILIES)

    @property
    def precision(self) -> jax.lax.Precision:
        """Matrix products of float32 stay float32 on accelerators too."""
        exact = self.compute_dtype == "float32"
        return jax.lax.Precision.HIGHEST if exact else jax.lax.Precision.DEFAULT


_POSITIVE = (
    "vocab_size",
    "hidden_size",
    "num_layers",
    "num_heads",
    "num_kv_heads",
    "head_dim",
    "intermediate_size",
    "max_positions",
    "logits_budget",
)
