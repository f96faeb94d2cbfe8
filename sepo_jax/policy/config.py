"""Static description of a decoder: every family is a row of these fields."""

import dataclasses
from collections import Counter
from collections.abc import Mapping

import jax
import jax.numpy as jnp

from sepo_jax.names import check_option
from sepo_jax.policy.rope_scaling import RopeScaling

DTYPES = {"float32": jnp.float32, "bfloat16": jnp.bfloat16}
FAMILIES = ("llama", "qwen2", "qwen3", "qwen3_5", "gemma3", "gemma4")
LAYER_TYPES = ("full", "sliding", "linear")
REMAT = ("none", "layer", "dots")
ACTIVATIONS = ("silu", "gelu_tanh")


@dataclasses.dataclass(frozen=True)
class LoraConfig:
    """Low-rank adapters on chosen projections; Hu et al. 2021, arXiv 2106.09685.

    Attributes:
      rank: inner size of every adapter.
      alpha: the product of the two factors is multiplied by alpha / rank.
      targets: names of adapted projections, e.g. "q_proj", or "all" for every projection of the
        layers; `lora.init_adapter` checks them.
      rank_stabilised: divide alpha by the root of the rank instead (arXiv 2312.03732).
      agents: ids of the agents (`forest.Forest.agent`) that have an adapter each, in the order in
        which these lie side by side; with one or none all share one adapter.
    """

    rank: int = 16
    alpha: float = 32.0
    targets: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj")
    rank_stabilised: bool = False
    agents: tuple[int, ...] = ()

    def __post_init__(self):
        targets = (self.targets,) if isinstance(self.targets, str) else tuple(self.targets)
        object.__setattr__(self, "targets", targets)
        if not isinstance(self.rank, int) or self.rank < 1:
            raise ValueError(f"LoraConfig.rank must be a positive integer, not {self.rank!r}")
        if not self.alpha > 0:
            raise ValueError(f"LoraConfig.alpha must be positive, not {self.alpha!r}")
        if not self.targets:
            raise ValueError("LoraConfig.targets is empty: name at least one projection")
        object.__setattr__(self, "agents", tuple(map(int, self.agents)))
        if len(set(self.agents)) < len(self.agents):
            raise ValueError(f"LoraConfig.agents={self.agents} names an agent twice")

    @property
    def scale(self) -> float:
        """Factor of the adapter's product."""
        return self.alpha / (self.rank**0.5 if self.rank_stabilised else self.rank)

    @property
    def adapters(self) -> int:
        """How many adapters lie side by side."""
        return max(len(self.agents), 1)


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """Sizes and numerics of one decoder; hashable, so that it can be a static argument of `jit`.

    Attributes:
      vocab_size: rows of the embedding; at least the number of the tokenizer's ids.
      hidden_size, num_layers, intermediate_size: width, depth, width of the gated part.
      num_heads, num_kv_heads: query heads, and key/value heads that groups of them share.
      head_dim: entries of one head; `hidden_size // num_heads` when None.
      layer_types: "full" (attention to everything before), "sliding" (to the last
        `sliding_window` positions) or "linear" (gated delta rule) a layer; all "full" when None.
      sliding_window: positions a sliding layer sees, its own included.
      rope_theta, rope_scaling: base of the rotary frequencies, and their scaling or None.
      local_rope_theta: base in sliding layers, unscaled; None means that of the full layers.
      rotary_fraction: share of a head's entries that positions turn, in full layers.
      rms_norm_epsilon: added to the mean square inside every norm.
      norm_offset: norms multiply by `norm_offset + scale`.
      post_norms: norms after attention and after the feed-forward part, before they are added.
      query_key_norm: norms of every query and key head before rotation.
      value_norm: a norm without scale of every value head.
      activation: of the gate, "silu" or "gelu_tanh".
      embedding_scale: multiplies embeddings where they enter the layers.
      query_scale: multiplies products of queries and keys; `head_dim ** -0.5` when None.
      final_softcap: logits become c tanh(logits / c); None leaves them.
      tie_embeddings: the output projection is the embedding, transposed.
      initializer_range: standard deviation of fresh embeddings and of an output projection.
      attention_bias, output_bias: biases of query, key, value; of the attention's output.
      attention_gate: the query projection gives a gate beside each query head, whose sigmoid
        multiplies what attention mixed.
      full_head_dim, full_kv_heads: head size and key/value heads of full layers where they differ.
      num_kv_shared_layers: that many last layers use the keys and values of the last layer of
        their type before them.
      double_wide_shared: these layers have a feed-forward part of twice the width.
      per_layer_embedding_size, per_layer_vocab_size: width and rows of the embedding that gives
        every layer an input of its own; 0 for none.
      layer_scalar: every layer's output is multiplied by a stored number.
      linear_*: heads, head sizes and convolution width of linear layers.
      max_positions: longest path (tokens) the model is meant for; not enforced by the functions.
      compute_dtype, param_dtype: "float32" or "bfloat16". Norms, softmax, logits and everything a
        loss sees are float32 in both.
      cache_dtype: of keys and values kept for decoding (bfloat16 halves memory, slower on CPU).
      remat: what the backward pass recomputes: "none", each "layer" whole, or each layer but its
        matrix products ("dots").
      value_head: a scalar state value beside the logits (critic of PPO).
      logits_budget: entries of float32 logits that may exist at a time in `Policy.log_probs`.
      family: names the map between parameters and checkpoint tensors.
      lora: adapters that parameters may carry beside their kernels; None for none.

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
    layer_types: tuple[str, ...] | None = None
    sliding_window: int | None = None
    rope_theta: float = 10_000.0
    rope_scaling: RopeScaling | None = None
    local_rope_theta: float | None = None
    rotary_fraction: float = 1.0
    rms_norm_epsilon: float = 1e-5
    norm_offset: float = 0.0
    post_norms: bool = False
    query_key_norm: bool = False
    value_norm: bool = False
    activation: str = "silu"
    embedding_scale: float = 1.0
    query_scale: float | None = None
    final_softcap: float | None = None
    tie_embeddings: bool = True
    initializer_range: float = 0.02
    attention_bias: bool = False
    output_bias: bool = False
    attention_gate: bool = False
    full_head_dim: int | None = None
    full_kv_heads: int | None = None
    num_kv_shared_layers: int = 0
    double_wide_shared: bool = False
    per_layer_embedding_size: int = 0
    per_layer_vocab_size: int = 0
    layer_scalar: bool = False
    linear_key_heads: int = 0
    linear_value_heads: int = 0
    linear_key_head_dim: int = 0
    linear_value_head_dim: int = 0
    linear_conv_width: int = 0
    max_positions: int = 4096
    compute_dtype: str = "float32"
    param_dtype: str = "float32"
    cache_dtype: str = "float32"
    remat: str = "none"
    value_head: bool = False
    logits_budget: int = 2**21
    family: str = "llama"
    lora: LoraConfig | None = None

    def __post_init__(self):
        put = lambda name, value: object.__setattr__(self, name, value)  # noqa: E731
        if self.head_dim is None:
            put("head_dim", self.hidden_size // max(self.num_heads, 1))
        if isinstance(self.rope_scaling, Mapping):
            put("rope_scaling", RopeScaling.from_mapping(self.rope_scaling))
        if isinstance(self.lora, Mapping):
            put("lora", LoraConfig(**self.lora))
        if self.layer_types is not None:
            put("layer_types", tuple(self.layer_types))
        self._check_options()
        self._check_heads()
        self._check_layers()

    def _check_options(self):
        for name in _POSITIVE:
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"ModelConfig.{name} must be a positive integer, not {value!r}")
        for name in ("compute_dtype", "param_dtype", "cache_dtype"):
            check_option(name, getattr(self, name), DTYPES)
        check_option("model family", self.family, FAMILIES)
        check_option("remat", self.remat, REMAT)
        check_option("activation", self.activation, ACTIVATIONS)
        for name in ("query_scale", "final_softcap"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"ModelConfig.{name} must be positive or None, not {value!r}")
        if not 0 < self.rotary_fraction <= 1:
            raise ValueError(f"rotary_fraction={self.rotary_fraction} is not in (0, 1]")

    def _check_heads(self):
        for kind in dict.fromkeys(self.layer_kinds):
            if kind == "linear":
                continue
            heads, size = self.kv_heads(kind), self.head_size(kind)
            if self.num_heads % heads:
                raise ValueError(
                    f"num_heads={self.num_heads} is not a multiple of "
                    f"num_kv_heads={heads}: every key/value head serves equally many"
                )
            if size % 2:
                raise ValueError(f"head_dim={size} is odd: rotary positions turn pairs of entries")

    def _check_layers(self):
        types = self.layer_types
        if types is not None:
            if len(types) != self.num_layers:
                raise ValueError(
                    f"layer_types names {len(types)} layers, num_layers={self.num_layers}"
                )
            for name in types:
                check_option("layer type", name, LAYER_TYPES)
        types = types or ("full",)
        if set(types) == {"linear"}:
            raise ValueError("a decoder needs at least one attention layer; all are linear")
        if "sliding" in types and (self.sliding_window is None or self.sliding_window < 1):
            raise ValueError(
                f"sliding layers need sliding_window >= 1, not {self.sliding_window!r}"
            )
        own = types[: self.num_layers - self.num_kv_shared_layers]
        if self.num_kv_shared_layers and ("linear" in types or set(types) - set(own)):
            raise ValueError(
                f"num_kv_shared_layers={self.num_kv_shared_layers} leaves a layer type of "
                f"{types} without keys and values to share"
            )
        if "linear" in types:
            for name in _LINEAR:
                if getattr(self, name) < 1:
                    raise ValueError(f"linear layers need {name} >= 1, not {getattr(self, name)}")
            if self.linear_value_heads % self.linear_key_heads:
                raise ValueError(
                    f"linear_value_heads={self.linear_value_heads} is not a multiple of "
                    f"linear_key_heads={self.linear_key_heads}"
                )
        if self.per_layer_embedding_size and self.per_layer_vocab_size < 1:
            raise ValueError("per_layer_embedding_size needs per_layer_vocab_size >= 1")

    @property
    def precision(self) -> jax.lax.Precision:
        """Matrix products of float32 stay float32 on accelerators too."""
        exact = self.compute_dtype == "float32"
        return jax.lax.Precision.HIGHEST if exact else jax.lax.Precision.DEFAULT

    @property
    def is_recurrent(self) -> bool:
        """Whether a layer carries a state over a row, so that a row holds one path."""
        return "linear" in (self.layer_types or ())

    @property
    def layer_kinds(self) -> tuple[str, ...]:
        """Kind of every layer; layers of a kind have parameters of the same shapes."""
        types = self.layer_types or ("full",) * self.num_layers
        own = self.num_layers - self.num_kv_shared_layers
        return types[:own] + tuple(f"{name}_shared" for name in types[own:])

    @property
    def kind_counts(self) -> dict[str, int]:
        """Number of layers of each kind, in the order of their first layer."""
        return dict(Counter(self.layer_kinds))

    def place(self, layer: int) -> tuple[str, int]:
        """Kind of a layer, and its row in the stacked parameters of that kind."""
        kinds = self.layer_kinds
        return kinds[layer], kinds[:layer].count(kinds[layer])

    def kv_source(self, layer: int) -> int:
        """The layer whose keys and values `layer` reads: itself unless it shares them."""
        kinds = self.layer_kinds
        if not kinds[layer].endswith("_shared"):
            return layer
        wanted = kinds[layer].removesuffix("_shared")
        return max(index for index in range(layer) if kinds[index] == wanted)

    def cache_row(self, layer: int) -> int:
        """Which of the kept keys and values an attention layer reads, in the order of layers."""
        own = [index for index, kind in enumerate(self.layer_kinds) if kind in ("full", "sliding")]
        return own.index(self.kv_source(layer))

    def head_size(self, kind: str) -> int:
        """Entries of one head in layers of `kind`."""
        return (kind.startswith("full") and self.full_head_dim) or self.head_dim

    def kv_heads(self, kind: str) -> int:
        """Key/value heads in layers of `kind`."""
        return (kind.startswith("full") and self.full_kv_heads) or self.num_kv_heads

    def feed_forward_size(self, kind: str) -> int:
        """Width of the gated part in layers of `kind`."""
        wide = self.double_wide_shared and kind.endswith("_shared")
        return self.intermediate_size * (2 if wide else 1)


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
_LINEAR = (
    "linear_key_heads",
    "linear_value_heads",
    "linear_key_head_dim",
    "linear_value_head_dim",
    "linear_conv_width",
)
