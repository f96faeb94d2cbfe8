"""Names of checkpoint tensors and their places in the parameter tree, for every family.

Torch linear weights are [out, in] and turn into kernels [in, out]; layers of a kind are stacked on
axis 0, so a tensor of layer i lies at `config.place(i)`.
"""

import dataclasses
import re
from collections.abc import Iterable

import numpy as np

from sepo_jax.policy.config import ModelConfig
from sepo_jax.policy.formats.families import FAMILY_ROWS

# Written by some exporters although they follow from the config.
REDUNDANT = ("rotary_emb.inv_freq",)
# Multimodal checkpoints keep the text model below one of these.
_PREFIXES = (
    ("model.language_model.lm_head.", "lm_head."),
    ("model.language_model.", "model."),
    ("language_model.lm_head.", "lm_head."),
    ("language_model.model.", "model."),
)
_STRIP = 64
_ATTENTION = {f"self_attn.{name}": name for name in ("q_proj", "k_proj", "v_proj", "o_proj")}
_FEED_FORWARD = {f"mlp.{name}": name for name in ("gate_proj", "up_proj", "down_proj")}
_DELTA = {
    f"linear_attn.{name}": name
    for name in ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "out_proj")
}
_PER_LAYER = {
    "per_layer_input_gate": "per_layer_gate",
    "per_layer_projection": "per_layer_projection",
}
_PRE_NORMS = {
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "feed_forward_norm",
}
_BOTH_NORMS = {
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "feed_forward_norm",
    "post_feedforward_layernorm": "post_feed_forward_norm",
}


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a checkpoint tensor lives.

    Attributes:
      path: in the parameters.
      row: of the stacked leaf; None when the tensor is the whole leaf.
      layout: of the checkpoint's tensor: "same", "transposed" ([out, in]), or "conv"
        ([channels, 1, width] for a leaf [width, channels]).
    """

    path: tuple[str, ...]
    row: int | None = None
    layout: str = "same"

    def stored_shape(self, leaf_shape: tuple[int, ...]) -> tuple[int, ...]:
        """Shape the checkpoint's tensor must have, given the leaf's."""
        shape = tuple(leaf_shape if self.row is None else leaf_shape[1:])
        if self.layout == "conv":
            return (shape[1], 1, shape[0])
        return shape[::-1] if self.layout == "transposed" else shape

    def from_stored(self, tensor: np.ndarray) -> np.ndarray:
        """A view of the checkpoint's tensor with the axes of the parameters."""
        if self.layout == "conv":
            return tensor[:, 0, :].T
        return tensor.T if self.layout == "transposed" else tensor

    def to_stored(self, leaf: np.ndarray) -> np.ndarray:
        """The checkpoint's tensor, contiguous, of the leaf."""
        array = leaf if self.row is None else leaf[self.row]
        if self.layout == "conv":
            array = array.T[:, None, :]
        elif self.layout == "transposed":
            stored = np.empty(array.shape[::-1], array.dtype)
            copy_strips(stored, array.T)
            return stored
        return np.ascontiguousarray(array)


def copy_strips(target: np.ndarray, source: np.ndarray) -> None:
    """target[...] = source, several times faster than that for a transposed matrix.

    Strips of 64 columns keep the lines of memory that a transposition rereads in the cache; equal
    dtypes are moved as integers, which NumPy does faster than bfloat16.
    """
    if target.dtype == source.dtype:
        bits = f"u{target.dtype.itemsize}"
        target, source = target.view(bits), source.view(bits)
    if source.ndim < 2:
        target[...] = source
        return
    for start in range(0, source.shape[-1], _STRIP):
        strip = (..., slice(start, start + _STRIP))
        target[strip] = source[strip]


def tensor_places(config: ModelConfig) -> dict[str, Place]:
    """Every tensor of a text checkpoint of this config, by name."""
    places = {
        "model.embed_tokens.weight": Place(("embed", "embedding")),
        "model.norm.weight": Place(("norm", "scale")),
    }
    if not config.tie_embeddings:
        places["lm_head.weight"] = Place(("lm_head", "kernel"), layout="transposed")
    if config.per_layer_embedding_size:
        places |= {
            "model.embed_tokens_per_layer.weight": Place(("per_layer_embed", "embedding")),
            "model.per_layer_model_projection.weight": Place(
                ("per_layer_projection", "kernel"), layout="transposed"
            ),
            "model.per_layer_projection_norm.weight": Place(("per_layer_norm", "scale")),
        }
    for layer in range(config.num_layers):
        kind, row = config.place(layer)
        for name, path, layout in _layer_tensors(config, kind):
            places[f"model.layers.{layer}.{name}"] = Place(("layers", kind, *path), row, layout)
    return places


def _layer_tensors(config: ModelConfig, kind: str):
    """Yields (name below the layer, path below the kind, layout) of one layer's tensors."""
    kernels, norms = dict(_FEED_FORWARD), dict(_BOTH_NORMS if config.post_norms else _PRE_NORMS)
    biases = []
    if kind == "linear":
        kernels |= _DELTA
        norms["linear_attn.norm"] = "delta_norm"
        yield "linear_attn.conv1d.weight", ("conv", "kernel"), "conv"
        yield "linear_attn.A_log", ("delta", "a_log"), "same"
        yield "linear_attn.dt_bias", ("delta", "dt_bias"), "same"
    else:
        own = ("q_proj", "o_proj") if kind.endswith("_shared") else tuple(_ATTENTION.values())
        kernels |= {name: module for name, module in _ATTENTION.items() if module in own}
        if config.attention_bias:
            biases += [module for module in own if module != "o_proj"]
        if config.output_bias:
            biases.append("o_proj")
        if config.query_key_norm:
            norms["self_attn.q_norm"] = "q_norm"
            if "k_proj" in own:
                norms["self_attn.k_norm"] = "k_norm"
    if config.per_layer_embedding_size:
        kernels |= _PER_LAYER
        norms["post_per_layer_input_norm"] = "per_layer_norm"
    if config.layer_scalar:
        yield "layer_scalar", ("layer_scalar", "scale"), "same"
    for name, module in norms.items():
        yield f"{name}.weight", (module, "scale"), "same"
    for name, module in kernels.items():
        yield f"{name}.weight", (module, "kernel"), "transposed"
        if module in biases:
            yield f"{name}.bias", (module, "bias"), "same"


def text_names(config: ModelConfig, names: Iterable[str]) -> dict[str, str]:
    """Name in the text model of every checkpoint tensor that belongs to it.

    Left out are the tensors of other parts of a multimodal model, those that follow from the
    config, a tied model's output projection, and keys and values of layers that share them.
    """
    patterns = [re.compile(pattern) for pattern in FAMILY_ROWS[config.family].ignored]
    unused = {
        f"model.layers.{layer}.self_attn.{part}."
        for layer, kind in enumerate(config.layer_kinds)
        if kind.endswith("_shared")
        for part in ("k_proj", "v_proj", "k_norm", "v_norm")
    }
    kept = {}
    for name in names:
        if name.endswith(REDUNDANT) or any(pattern.match(name) for pattern in patterns):
            continue
        plain = _plain_name(name)
        if plain == "lm_head.weight" and config.tie_embeddings:
            continue
        if plain.rpartition(".")[0] + "." in unused:
            continue
        kept[name] = plain
    return kept


def _plain_name(name: str) -> str:
    for prefix, plain in _PREFIXES:
        if name.startswith(prefix):
            return plain + name.removeprefix(prefix)
    return name
