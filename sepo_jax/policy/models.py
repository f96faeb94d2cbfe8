"""Published models by name: hub id and ModelConfig.

`load(name)` fetches the weights; the configs alone serve dry runs and memory estimates. The hub ids
are those of the chat-tuned checkpoints where a base model of the same sizes exists too.
Sources: the config.json of each hub id.
"""

from typing import NamedTuple

from sepo_jax.policy.config import ModelConfig
from sepo_jax.policy.rope_scaling import RopeScaling


class NamedModel(NamedTuple):
    """A published model: where its weights are, and its config."""

    hub_id: str
    config: ModelConfig


_QWEN = {"rope_theta": 1_000_000.0, "rms_norm_epsilon": 1e-6, "param_dtype": "bfloat16"}
_QWEN2 = {
    **_QWEN,
    "family": "qwen2",
    "num_kv_heads": 2,
    "max_positions": 32_768,
    "attention_bias": True,
}
_QWEN3 = {
    **_QWEN,
    "family": "qwen3",
    "vocab_size": 151_936,
    "num_layers": 36,
    "num_heads": 32,
    "num_kv_heads": 8,
    "head_dim": 128,
    "max_positions": 40_960,
    "query_key_norm": True,
}
_GEMMA = {
    "vocab_size": 262_144,
    "hidden_size": 2560,
    "intermediate_size": 10_240,
    "num_heads": 8,
    "head_dim": 256,
    "rope_theta": 1_000_000.0,
    "local_rope_theta": 10_000.0,
    "rms_norm_epsilon": 1e-6,
    "max_positions": 131_072,
    "query_key_norm": True,
    "post_norms": True,
    "activation": "gelu_tanh",
    "embedding_scale": 2560**0.5,
    "param_dtype": "bfloat16",
}
_FIVE_TO_ONE = ("sliding",) * 5 + ("full",)

MODELS = {
    "smollm2-135m": NamedModel(
        "HuggingFaceTB/SmolLM2-135M-Instruct",
        ModelConfig(
            vocab_size=49_152,
            hidden_size=576,
            intermediate_size=1536,
            num_layers=30,
            num_heads=9,
            num_kv_heads=3,
            rope_theta=100_000.0,
            max_positions=8192,
            param_dtype="bfloat16",
        ),
    ),
    "llama-3.1-8b": NamedModel(
        "meta-llama/Llama-3.1-8B-Instruct",
        ModelConfig(
            vocab_size=128_256,
            hidden_size=4096,
            intermediate_size=14_336,
            num_layers=32,
            num_heads=32,
            num_kv_heads=8,
            rope_theta=500_000.0,
            rope_scaling=RopeScaling("llama3", 8.0, 1.0, 4.0, 8192),
            max_positions=131_072,
            tie_embeddings=False,
            param_dtype="bfloat16",
        ),
    ),
    "qwen2.5-3b": NamedModel(
        "Qwen/Qwen2.5-3B-Instruct",
        ModelConfig(
            vocab_size=151_936,
            hidden_size=2048,
            intermediate_size=11_008,
            num_layers=36,
            num_heads=16,
            **_QWEN2,
        ),
    ),
    "qwen2.5-7b": NamedModel(
        "Qwen/Qwen2.5-7B-Instruct",
        ModelConfig(
            vocab_size=152_064,
            hidden_size=3584,
            intermediate_size=18_944,
            num_layers=28,
            num_heads=28,
            tie_embeddings=False,
            **{**_QWEN2, "num_kv_heads": 4},
        ),
    ),
    "qwen3-4b": NamedModel(
        "Qwen/Qwen3-4B",
        ModelConfig(hidden_size=2560, intermediate_size=9728, **_QWEN3),
    ),
    "qwen3-8b": NamedModel(
        "Qwen/Qwen3-8B",
        ModelConfig(hidden_size=4096, intermediate_size=12_288, tie_embeddings=False, **_QWEN3),
    ),
    "qwen3.5-4b": NamedModel(
        "Qwen/Qwen3.5-4B",
        ModelConfig(
            vocab_size=248_320,
            hidden_size=2560,
            intermediate_size=9216,
            num_layers=32,
            num_heads=16,
            num_kv_heads=4,
            head_dim=256,
            layer_types=(("linear",) * 3 + ("full",)) * 8,
            linear_key_heads=16,
            linear_value_heads=32,
            linear_key_head_dim=128,
            linear_value_head_dim=128,
            linear_conv_width=4,
            rotary_fraction=0.25,
            max_positions=262_144,
            query_key_norm=True,
            norm_offset=1.0,
            attention_gate=True,
            family="qwen3_5",
            **{**_QWEN, "rope_theta": 10_000_000.0},
        ),
    ),
    "gemma-3-4b": NamedModel(
        "google/gemma-3-4b-it",
        ModelConfig(
            **{**_GEMMA, "vocab_size": 262_208},
            num_layers=34,
            num_kv_heads=4,
            layer_types=(_FIVE_TO_ONE * 6)[:34],
            sliding_window=1024,
            rope_scaling=RopeScaling("linear", 8.0),
            norm_offset=1.0,
            family="gemma3",
        ),
    ),
    "gemma-4-e4b-it": NamedModel(
        "google/gemma-4-E4B-it",
        ModelConfig(
            **_GEMMA,
            num_layers=42,
            num_kv_heads=2,
            layer_types=_FIVE_TO_ONE * 7,
            sliding_window=512,
            rope_scaling=RopeScaling("proportional"),
            rotary_fraction=0.25,
            full_head_dim=512,
            query_scale=1.0,
            value_norm=True,
            final_softcap=30.0,
            num_kv_shared_layers=18,
            per_layer_embedding_size=256,
            per_layer_vocab_size=262_144,
            layer_scalar=True,
            family="gemma4",
        ),
    ),
}
