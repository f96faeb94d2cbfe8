"""ModelConfig to config.json: what `families` reads, written so that transformers opens it."""

import dataclasses
import math

from sepo_jax.policy.config import ModelConfig
from sepo_jax.policy.formats.families import (
    ACTIVATIONS,
    COMMON_FIELDS,
    FAMILY_ROWS,
    LAYER_TYPES,
    LOAD_OPTIONS,
    Family,
    config_fields,
)


def hf_config(config: ModelConfig) -> dict:
    """config.json of a ModelConfig, of its family's text model; transformers 5 opens it.

    Raises:
      ValueError: a field that the family's config.json cannot express, named.
    """
    row = FAMILY_ROWS[config.family]
    types = config.layer_types or ("full",) * config.num_layers
    content = {
        "architectures": [row.architecture],
        "model_type": row.model_type,
        row.activation_key: ACTIVATIONS[config.activation],
        **{name: getattr(config, own) for own, name in {**COMMON_FIELDS, **row.fields}.items()},
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "tie_word_embeddings": config.tie_embeddings,
        "initializer_range": config.initializer_range,
        "attention_bias": config.attention_bias,
        "layer_types": [LAYER_TYPES[name] for name in types],
        "torch_dtype": config.param_dtype,
        "dtype": config.param_dtype,
        "use_cache": True,
        **_rope_entries(row, config),
        **_extra_entries(config, types),
    }
    _check_expressed(config, content)
    return content


def _rope_entries(row: Family, config: ModelConfig) -> dict:
    scaling = config.rope_scaling.to_mapping() if config.rope_scaling else {}
    if scaling.get("rope_type") == "proportional" and scaling.get("factor") == 1.0:
        del scaling["factor"]  # transformers warns of a key it does not expect
    entry = {"rope_type": "default", **scaling, "rope_theta": config.rope_theta}
    if row.partial_rotary:
        entry["partial_rotary_factor"] = config.rotary_fraction
    # transformers 4 reads rotary settings apart from each other.
    earlier = {"rope_theta": config.rope_theta, "rope_scaling": scaling or None}
    if not row.nested_rope:
        return {"rope_parameters": entry, **({} if row.partial_rotary else earlier)}
    local = config.rope_theta if config.local_rope_theta is None else config.local_rope_theta
    both = {
        LAYER_TYPES["full"]: entry,
        LAYER_TYPES["sliding"]: {"rope_type": "default", "rope_theta": local},
    }
    if row.partial_rotary:
        return {"rope_parameters": both}
    return {"rope_parameters": both, "rope_local_base_freq": local, **earlier}


def _extra_entries(config: ModelConfig, types) -> dict:
    """Keys that one or two families have."""
    sliding = "sliding" in types
    match config.family:
        case "llama":
            return {"mlp_bias": False}
        case "qwen2" | "qwen3":
            window = {"sliding_window": config.sliding_window} if sliding else {}
            return {"use_sliding_window": sliding, "max_window_layers": config.num_layers, **window}
        case "gemma3":
            scalar = config.query_scale**-2 if config.query_scale else config.head_dim
            window = {"sliding_window": config.sliding_window} if sliding else {}
            return {"query_pre_attn_scalar": round(scalar), **window}
        case "gemma4":
            full = {"head_dim": config.head_size("full")}
            if config.full_kv_heads:
                full["num_key_value_heads"] = config.full_kv_heads
            window = {"sliding_window": config.sliding_window} if sliding else {}
            return {
                "global_head_dim": full["head_dim"],
                "per_layer_config": {
                    str(layer): dict(full) for layer, kind in enumerate(types) if kind == "full"
                },
                **window,
            }
    return {}


def _check_expressed(config: ModelConfig, content: dict) -> None:
    """Reads `content` back: whatever differs from `config` was lost."""
    back = ModelConfig(**config_fields(content, f"config.json of a {config.family} model"))
    lost = []
    for field in dataclasses.fields(ModelConfig):
        # Nothing is drawn anew when a checkpoint is read.
        if field.name in (*LOAD_OPTIONS, "initializer_range"):
            continue
        left, right = _meaning(config, field.name), _meaning(back, field.name)
        numbers = isinstance(left, float) and isinstance(right, float)
        if not (math.isclose(left, right, rel_tol=1e-9) if numbers else left == right):
            lost.append(f"{field.name}={left!r} (it would be read as {right!r})")
    if lost:
        raise ValueError(
            f"a model of family {config.family!r} cannot be saved with " + ", ".join(lost)
        )


def _meaning(config: ModelConfig, name: str):
    """A field, with None replaced by the value it stands for."""
    types = config.layer_types or ("full",) * config.num_layers
    match name:
        case "layer_types":
            return types
        case "sliding_window" | "local_rope_theta" if "sliding" not in types:
            return None
        case "local_rope_theta" if config.local_rope_theta is None:
            return None if config.rope_scaling else config.rope_theta
        case "full_head_dim":
            return config.head_size("full")
        case "full_kv_heads":
            return config.kv_heads("full")
        case "query_scale":
            return config.query_scale or config.head_dim**-0.5
    value = getattr(config, name)
    return float(value) if isinstance(value, int) and name.endswith("theta") else value
