"""config.json of a model from the metadata of its GGUF file."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_HEAD_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
_GEMMA_NORMS = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}


@dataclasses.dataclass(frozen=True)
class Architecture:
    """How files of one `general.architecture` differ from Hugging Face checkpoints.

    Attributes:
      name, model_type: as config.json has them.
      layer: module names inside a layer, by the names in the file.
      interleaved: query and key rows lie in rotary pairs instead of halves.
      norm_offset: what is added to stored norm scales.
    """

    name: str
    model_type: str
    layer: Mapping[str, str]
    interleaved: bool = False
    norm_offset: float = 0.0


ARCHITECTURES = {
    "llama": Architecture("LlamaForCausalLM", "llama", _LAYER, interleaved=True),
    "qwen2": Architecture("Qwen2ForCausalLM", "qwen2", _LAYER),
    "qwen3": Architecture("Qwen3ForCausalLM", "qwen3", {**_LAYER, **_HEAD_NORMS}),
    "gemma3": Architecture(
        "Gemma3ForCausalLM",
        "gemma3_text",
        {**_LAYER, **_HEAD_NORMS, **_GEMMA_NORMS},
        norm_offset=1.0,
    ),
}
_GEMMA3_PATTERN = 6  # every sixth layer sees the whole path
_GEMMA3_27B_LAYERS = 62


def hf_config(
    path: Path,
    metadata: Mapping[str, Any],
    shapes: Mapping[str, tuple[int, ...]],
    frequencies: np.ndarray | None,
) -> dict[str, Any]:
    """config.json as published checkpoints of the architecture have it.

    Args:
      path: the file; errors name it.
      metadata: the file's metadata.
      shapes: of all tensors, by their names in the file.
      frequencies: the tensor `rope_freqs.weight` [head_dim / 2] that divides rotary frequencies.

    Raises:
      ValueError: missing metadata, or a setting that is not supported.
    """
    prefix = metadata["general.architecture"]
    architecture = ARCHITECTURES[prefix]
    read = _Metadata(path, metadata, prefix)
    if read("expert_count", 0):
        raise ValueError(f"{path}: mixtures of experts are not supported")
    if "token_embd.weight" not in shapes:
        raise ValueError(f"{path} has no tensor token_embd.weight")
    heads, hidden = read.integer("attention.head_count"), read.integer("embedding_length")
    head_dim = read("attention.key_length", read("rope.dimension_count", hidden // heads))
    if read("rope.dimension_count", head_dim) != head_dim:
        raise ValueError(
            f"{path}: rotary positions over {read('rope.dimension_count')} of {head_dim} entries "
            f"are not supported for {prefix}"
        )
    ids = {name: metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("bos", "padding")}
    # A float32 cannot hold 1e-5; the nearest short decimal is what the checkpoint says.
    config = {
        "architectures": [architecture.name],
        "model_type": architecture.model_type,
        "vocab_size": shapes["token_embd.weight"][0],
        "hidden_size": hidden,
        "num_hidden_layers": read.integer("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": read.integer("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "intermediate_size": read.integer("feed_forward_length"),
        "rms_norm_eps": _decimal(read("attention.layer_norm_rms_epsilon")),
        "max_position_embeddings": read.integer("context_length"),
        "rope_theta": _decimal(read("rope.freq_base", 1e6 if prefix == "gemma3" else 1e4)),
        "rope_scaling": _rope_scaling(read, frequencies),
        "tie_word_embeddings": "output.weight" not in shapes,
        "bos_token_id": ids["bos"],
        "eos_token_id": _end_ids(metadata),
        "pad_token_id": ids["padding"],
    }
    if prefix == "gemma3":
        return {**config, **_gemma3(read, config)}
    config["hidden_act"] = "silu"
    if prefix == "llama":
        config.update(attention_bias="blk.0.attn_q.bias" in shapes, mlp_bias=False)
    if prefix == "qwen3":
        config["attention_bias"] = "blk.0.attn_q.bias" in shapes
    return config


class _Metadata:
    """Metadata of one architecture; a key without a default must be there."""

    def __init__(self, path: Path, metadata: Mapping[str, Any], prefix: str):
        self.path, self.metadata, self.prefix = path, metadata, prefix

    def __call__(self, key: str, *default):
        name = f"{self.prefix}.{key}"
        if name not in self.metadata and not default:
            raise ValueError(f"{self.path} lacks the metadata {name}")
        return self.metadata.get(name, *default)

    def integer(self, key: str, *default) -> int:
        """One number for all layers; files may repeat it for each."""
        value = self(key, *default)
        if isinstance(value, list):
            if len(set(value)) != 1:
                raise ValueError(
                    f"{self.path}: {self.prefix}.{key} differs between layers: {value}"
                )
            value = value[0]
        return int(value)


def _gemma3(read: _Metadata, config: Mapping[str, Any]) -> dict[str, Any]:
    layers, heads = config["num_hidden_layers"], config["num_attention_heads"]
    pattern = read("attention.sliding_window_pattern", _GEMMA3_PATTERN)
    if isinstance(pattern, list):
        sliding = [bool(entry) for entry in pattern]
    else:
        sliding = [(layer + 1) % pattern != 0 for layer in range(layers)]
    # The file does not hold the scale of queries; the 27B model alone divides by hidden / heads.
    scalar = config["head_dim"] if layers != _GEMMA3_27B_LAYERS else config["hidden_size"] // heads
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window": read.integer("attention.sliding_window"),
        "layer_types": ["sliding_attention" if entry else "full_attention" for entry in sliding],
        "rope_local_base_freq": _decimal(read("rope.freq_base_swa", 10_000.0)),
        "query_pre_attn_scalar": scalar,
        "final_logit_softcapping": read("final_logit_softcapping", None),
        "attn_logit_softcapping": None,
        "attention_bias": False,
    }


def _rope_scaling(read: _Metadata, frequencies: np.ndarray | None) -> dict[str, Any] | None:
    if frequencies is not None:
        return _llama3_scaling(read, np.asarray(frequencies, np.float64))
    kind = read("rope.scaling.type", "none")
    if kind == "none":
        return None
    scaling = {"rope_type": kind, "factor": _decimal(read("rope.scaling.factor"))}
    if kind == "linear":
        return scaling
    if kind == "yarn":
        original = read.integer("rope.scaling.original_context_length")
        return {**scaling, "original_max_position_embeddings": original}
    raise ValueError(
        f"{read.path}: {read.prefix}.rope.scaling.type {kind!r} is not supported, only none, "
        "linear, yarn and Llama 3's"
    )


def _llama3_scaling(read: _Metadata, divisors: np.ndarray) -> dict[str, Any] | None:
    """The settings whose divisors these are: every published model blends from 1 to 4.

    With wavelengths w = 2 pi theta^(2i/D) and s = (original / w - low) / (high - low) cut to
    [0, 1], frequency i is divided by 1 / ((1 - s) / factor + s). Several `original` give the same
    divisors only when no frequency lies between, and then they are the same model.
    """
    if np.all(divisors == 1):
        return None
    theta = read("rope.freq_base", 1e4)
    wavelengths = 2 * np.pi * theta ** (np.arange(divisors.size) / divisors.size)
    factor, low, high = float(divisors.max()), 1.0, 4.0
    for original in (2**power for power in range(6, 24)):
        blend = np.clip((original / wavelengths - low) / (high - low), 0, 1)
        if np.allclose(1 / ((1 - blend) / factor + blend), divisors, rtol=1e-5, atol=0):
            return {
                "rope_type": "llama3",
                "factor": _decimal(factor),
                "low_freq_factor": low,
                "high_freq_factor": high,
                "original_max_position_embeddings": original,
            }
    raise ValueError(
        f"{read.path}: the divisors in tensor rope_freqs.weight are not those of Llama 3 scaling "
        f"with low_freq_factor {low:g} and high_freq_factor {high:g}; others are not supported"
    )


def _end_ids(metadata: Mapping[str, Any]) -> int | list[int] | None:
    """Ids that end a text, a turn or a message; one alone is not in a list."""
    ids = [metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
    ids = list(dict.fromkeys(token for token in ids if token is not None))
    return ids if len(ids) > 1 else (ids[0] if ids else None)


def _decimal(value: float) -> float:
    """The shortest decimal of a float32: 1e-5 instead of 9.999999747378752e-06."""
    return float(str(np.float32(value)))
