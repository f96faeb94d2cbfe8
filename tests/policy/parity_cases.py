"""Tiny models of every family, one quirk each, that transformers and this package must agree on.

Data alone, without torch; `parity_models.py` makes the models.
"""

from typing import Any

from policy.parity_families import GEMMA3, Case


def _rope(kind: str, **settings) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 5000.0, **settings}}


def _windows(full: dict[str, Any] | None = None, sliding: dict[str, Any] | None = None) -> dict:
    """Rotary settings of the two layer types of Gemma, with some entries replaced."""
    own = GEMMA3["rope_parameters"]
    return {
        "rope_parameters": {
            "sliding_attention": {**own["sliding_attention"], **(sliding or {})},
            "full_attention": {**own["full_attention"], **(full or {})},
        }
    }


_PLAIN_ROPE = _rope("default")
_SHORT = {"num_hidden_layers": 2}
_UNWINDOWED = {"sliding_window": 64}
_PER_LAYER = {"hidden_size_per_layer_input": 6}

_LLAMA = {
    "llama-plain": Case("LlamaForCausalLM", "untied, grouped query heads", {}),
    "llama-tied": Case(
        "LlamaForCausalLM",
        "tied; one key head; a head size of its own",
        {"tie_word_embeddings": True, "num_key_value_heads": 1, "head_dim": 10},
    ),
    "llama-biases": Case(
        "LlamaForCausalLM", "biases of all four projections", {"attention_bias": True}
    ),
    "llama-rope-llama3": Case(
        "LlamaForCausalLM",
        "llama3 scaling with kept, blended and stretched frequencies",
        _rope(
            "llama3",
            factor=8.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=32,
        )
        | _SHORT,
        _PLAIN_ROPE,
    ),
    "llama-rope-linear": Case(
        "LlamaForCausalLM",
        "positions divided by a factor",
        _rope("linear", factor=4.0) | _SHORT,
        _PLAIN_ROPE,
    ),
    "llama-rope-yarn": Case(
        "LlamaForCausalLM",
        "YaRN: frequencies between two bounds blended, longer queries and keys",
        {
            **_rope("yarn", factor=4.0, original_max_position_embeddings=32, beta_fast=8.0),
            "head_dim": 12,
        },
        _PLAIN_ROPE,
    ),
    "llama-rope-yarn-attention": Case(
        "LlamaForCausalLM",
        "YaRN with an attention factor of its own",
        {
            **_rope("yarn", factor=4.0, original_max_position_embeddings=32, attention_factor=0.7),
            **_SHORT,
        },
        _rope("yarn", factor=4.0, original_max_position_embeddings=32),
    ),
}
_QWEN = {
    "qwen2-untied": Case("Qwen2ForCausalLM", "biases of query, key and value alone", {}),
    "qwen2-tied": Case("Qwen2ForCausalLM", "tied", {"tie_word_embeddings": True, **_SHORT}),
    "qwen2-sliding": Case(
        "Qwen2ForCausalLM",
        "the layers above max_window_layers see a window",
        {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 2},
        _UNWINDOWED,
    ),
    "qwen3-untied": Case("Qwen3ForCausalLM", "norms of queries and keys; head size of its own", {}),
    "qwen3-tied": Case(
        "Qwen3ForCausalLM",
        "tied, with biases of all four projections",
        {"tie_word_embeddings": True, "attention_bias": True, **_SHORT},
    ),
    "qwen3-sliding": Case(
        "Qwen3ForCausalLM",
        "the layers above max_window_layers see a window",
        {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1},
        _UNWINDOWED,
        kept=False,
    ),
    "qwen3_5-equal": Case(
        "Qwen3_5ForCausalLM",
        "as many value heads as key heads; untied; five layers of a period of four",
        {"num_hidden_layers": 5},
    ),
    "qwen3_5-grouped": Case(
        "Qwen3_5ForCausalLM",
        "three value heads a key head; tied; full layer first",
        {"linear_num_value_heads": 6, "linear_value_head_dim": 4, "tie_word_embeddings": True},
        kinds="fll",
    ),
    "qwen3_5-rotary": Case(
        "Qwen3_5ForCausalLM",
        "most layers full: gate of the attention and a rotated part of half a head",
        {
            **_rope("default", partial_rotary_factor=0.5, mrope_section=[1, 1, 1]),
            "num_hidden_layers": 3,
        },
        _rope("default", partial_rotary_factor=1.0, mrope_section=[2, 2, 2]),
        kinds="flf",
    ),
    "qwen3_5-convolution": Case(
        "Qwen3_5ForCausalLM",
        "a convolution of three tokens; biases in the full layers",
        {"linear_conv_kernel_dim": 3, "attention_bias": True, "num_hidden_layers": 3},
        kinds="llf",
    ),
    "qwen3_5-vision": Case(
        "Qwen3_5ForConditionalGeneration",
        "text model inside the one that sees images",
        _SHORT,
        kinds="lf",
        vision={
            "depth": 1,
            "hidden_size": 8,
            "intermediate_size": 8,
            "num_heads": 2,
            "patch_size": 2,
            "out_hidden_size": 24,
            "num_position_embeddings": 16,
        },
    ),
}
_GEMMA = {
    "gemma3-tied": Case(
        "Gemma3ForCausalLM",
        "five sliding layers to a full one, two layers beyond the last full one",
        {},
        _UNWINDOWED,
    ),
    "gemma3-untied": Case(
        "Gemma3ForCausalLM",
        "untied",
        {"tie_word_embeddings": False, "num_hidden_layers": 3},
        kinds="sf",
    ),
    "gemma3-rope": Case(
        "Gemma3ForCausalLM",
        "linear scaling of the full layers alone",
        {**_windows(full={"rope_type": "linear", "factor": 8.0}), "num_hidden_layers": 3},
        _windows(),
        kinds="sf",
    ),
    "gemma3-local-rope": Case(
        "Gemma3ForCausalLM",
        "sliding layers have frequencies of their own",
        {"num_hidden_layers": 3},
        _windows(sliding={"rope_theta": 3000.0}),
        kinds="ssf",
    ),
    "gemma3-query-scale": Case(
        "Gemma3ForCausalLM",
        "queries scaled by another number than the head size",
        {"query_pre_attn_scalar": 3, "num_hidden_layers": 3},
        {"query_pre_attn_scalar": 10},
        kinds="sf",
    ),
    "gemma3-softcap": Case(
        "Gemma3ForCausalLM",
        "logits bounded by a tanh; biases",
        {"final_logit_softcapping": 2.5, "attention_bias": True, "num_hidden_layers": 3},
        {"final_logit_softcapping": None},
        kinds="fs",
    ),
    "gemma3-vision": Case(
        "Gemma3ForConditionalGeneration",
        "text model inside the one that sees images",
        _SHORT,
        kinds="sf",
        vision={
            "model_type": "siglip_vision_model",
            "hidden_size": 8,
            "intermediate_size": 8,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "image_size": 4,
            "patch_size": 2,
        },
    ),
    "gemma4-plain": Case(
        "Gemma4ForCausalLM",
        "larger heads in full layers, layer scalars, no per-layer input, nothing shared",
        {},
        _UNWINDOWED,
        kinds="ssf",
    ),
    "gemma4-untied": Case(
        "Gemma4ForCausalLM",
        "untied; one key head; biases",
        {
            "tie_word_embeddings": False,
            "num_key_value_heads": 1,
            "attention_bias": True,
            "num_hidden_layers": 3,
        },
        kinds="sf",
    ),
    "gemma4-rope": Case(
        "Gemma4ForCausalLM",
        "a quarter of the frequency pairs of full layers turn, and the rest stand still",
        _windows(
            full={"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 300.0}
        )
        | {**_SHORT, "global_head_dim": 16},
        _windows(full={"rope_theta": 300.0}),
        kinds="sf",
    ),
    "gemma4-key-heads": Case(
        "Gemma4ForCausalLM",
        "fewer key heads in full layers",
        {"num_hidden_layers": 3, "full_key_heads": 1},
        kinds="fs",
    ),
    "gemma4-per-layer": Case(
        "Gemma4ForCausalLM", "per-layer inputs", {**_PER_LAYER, "num_hidden_layers": 3}, kinds="ssf"
    ),
    "gemma4-per-layer-vocabulary": Case(
        "Gemma4ForCausalLM",
        "per-layer inputs for the first ids of the vocabulary alone",
        {**_PER_LAYER, **_SHORT, "vocab_size_per_layer_input": 29},
        kinds="sf",
    ),
    "gemma4-shared": Case(
        "Gemma4ForCausalLM",
        "the last three layers reuse keys and values of both layer types",
        {"num_hidden_layers": 6, "num_kv_shared_layers": 3},
        _UNWINDOWED,
        kinds="sfs",
    ),
    "gemma4-shared-wide": Case(
        "Gemma4ForCausalLM",
        "the layers that reuse have a feed-forward part of twice the width",
        {"num_hidden_layers": 4, "num_kv_shared_layers": 2, "use_double_wide_mlp": True},
        kinds="sf",
    ),
    "gemma4-wide-alone": Case(
        "Gemma4ForCausalLM",
        "asked for twice the width with no layer that reuses",
        {"use_double_wide_mlp": True, "num_hidden_layers": 3},
        kinds="sf",
        kept=False,
    ),
    "gemma4-softcap": Case(
        "Gemma4ForCausalLM",
        "logits bounded by a tanh",
        {"final_logit_softcapping": 2.5, "num_hidden_layers": 3},
        {"final_logit_softcapping": None},
        kinds="sf",
    ),
    "gemma4-e4b": Case(
        "Gemma4ForCausalLM",
        "all at once, as in E4B",
        {
            **_PER_LAYER,
            "num_hidden_layers": 6,
            "num_kv_shared_layers": 2,
            "final_logit_softcapping": 30.0,
            "use_double_wide_mlp": True,
        },
        kinds="ssf",
    ),
    "gemma4-vision": Case(
        "Gemma4ForConditionalGeneration",
        "text model inside the one that sees images",
        {**_PER_LAYER, "num_hidden_layers": 3, "num_kv_shared_layers": 1, "pad_token_id": 0},
        kinds="sf",
        vision={
            "hidden_size": 8,
            "intermediate_size": 8,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "head_dim": 4,
            "patch_size": 2,
            "position_embedding_size": 16,
            "use_clipped_linears": True,
        },
    ),
}
CASES = {**_LLAMA, **_QWEN, **_GEMMA}
