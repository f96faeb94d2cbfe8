"""What a case of `parity_cases.py` is, and the settings that the cases of a family share."""

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class Case:
    """One checkpoint of transformers.

    Attributes:
      architecture: class of transformers that computes the reference.
      quirk: what of the family this case is about.
      changes: config entries on top of the family's own (`_FAMILIES`).
      without: entries that switch the quirk off and keep every tensor; the reference's logits have
        to differ under them, or the case could not tell the quirk from its absence.
      kinds: pattern of layer types, repeated over the layers ("f" full, "s" sliding, "l" linear);
        empty leaves the types to the config.
      kept: whether the case has golden files.
      vision: settings of an image encoder, for models that wrap the text model.
    """

    architecture: str
    quirk: str
    changes: dict[str, Any] = dataclasses.field(default_factory=dict)
    without: dict[str, Any] = dataclasses.field(default_factory=dict)
    kinds: str = ""
    kept: bool = True
    vision: dict[str, Any] = dataclasses.field(default_factory=dict)

    def text_config(self, more_layers: int = 0) -> dict[str, Any]:
        """Arguments of the text config, with `more_layers` layers on top."""
        settings = {**_COMMON, **_FAMILIES[self.architecture], **self.changes}
        settings["num_hidden_layers"] += more_layers
        if self.kinds:
            count = settings["num_hidden_layers"]
            kinds = (self.kinds * count)[:count]
            if self.architecture.startswith("Gemma4"):
                kinds = kinds[:-1] + "f"  # transformers insists on a full last layer
            settings["layer_types"] = [_LAYER_TYPES[kind] for kind in kinds]
        if heads := settings.pop("full_key_heads", None):
            sizes = {"head_dim": settings["global_head_dim"], "num_key_value_heads": heads}
            settings["per_layer_config"] = {
                layer: dict(sizes) for layer, kind in enumerate(kinds) if kind == "f"
            }
        return settings


_LAYER_TYPES = {"f": "full_attention", "s": "sliding_attention", "l": "linear_attention"}
_COMMON = {
    "vocab_size": 41,
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 34,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
    "rms_norm_eps": 1e-2,  # seen when it is forgotten; small states stay well conditioned
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": 3,
    "use_cache": False,
}
_DELTA = {
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 12,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 6,
    "linear_value_head_dim": 10,
    "linear_conv_kernel_dim": 4,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 900.0,
        "partial_rotary_factor": 1 / 3,
        "mrope_section": [1, 1, 0],
    },
}
GEMMA3 = {
    "num_hidden_layers": 8,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 10,
    "intermediate_size": 22,
    "query_pre_attn_scalar": 10,
    "sliding_window": 9,
    "tie_word_embeddings": True,
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
        "full_attention": {"rope_type": "default", "rope_theta": 3000.0},
    },
}
_GEMMA4 = {
    "num_hidden_layers": 4,
    "head_dim": 6,
    "global_head_dim": 8,
    "intermediate_size": 22,
    "sliding_window": 9,
    "hidden_size_per_layer_input": 0,
    "vocab_size_per_layer_input": 41,
    "tie_word_embeddings": True,
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
        "full_attention": {
            "rope_type": "proportional",
            "partial_rotary_factor": 0.5,
            "rope_theta": 300.0,
        },
    },
}
_FAMILIES = {
    "LlamaForCausalLM": {},
    "Qwen2ForCausalLM": {},
    "Qwen3ForCausalLM": {"head_dim": 10},
    "Qwen3_5ForCausalLM": _DELTA,
    "Qwen3_5ForConditionalGeneration": _DELTA,
    "Gemma3ForCausalLM": GEMMA3,
    "Gemma3ForConditionalGeneration": GEMMA3,
    "Gemma4ForCausalLM": _GEMMA4,
    "Gemma4ForConditionalGeneration": _GEMMA4,
}
