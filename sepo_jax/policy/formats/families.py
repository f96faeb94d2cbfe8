"""Model families: how a Hugging Face config.json becomes ModelConfig fields.

A family is a row of `FAMILY_ROWS`. Fields that a config.json leaves out take the published defaults
of the configuration class in transformers.
"""

import copy
import dataclasses
import math
from collections.abc import Mapping

from sepo_jax.names import unknown
from sepo_jax.policy.rope_scaling import RopeScaling

# What a user may choose when loading; everything else is a fact of the checkpoint.
LOAD_OPTIONS = (
    "compute_dtype",
    "param_dtype",
    "cache_dtype",
    "remat",
    "value_head",
    "logits_budget",
    "lora",
)
LAYER_TYPES = {  # own name: name in config.json
    "full": "full_attention",
    "sliding": "sliding_attention",
    "linear": "linear_attention",
}
ACTIVATIONS = {"silu": "silu", "gelu_tanh": "gelu_pytorch_tanh"}
COMMON_FIELDS = {  # ModelConfig field: key of config.json
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "intermediate_size": "intermediate_size",
    "rms_norm_epsilon": "rms_norm_eps",
    "max_positions": "max_position_embeddings",
}
_SIZES = ("hidden_size", "num_hidden_layers", "intermediate_size")
_ALL_SIZES = (*_SIZES, "vocab_size", "num_attention_heads", "max_position_embeddings")
_VISION = r"^(model\.)?(vision_tower|multi_modal_projector|visual)\."


@dataclasses.dataclass(frozen=True)
class Family:
    """One row of the table.

    Attributes:
      model_type: name of the text configuration class in transformers.
      architecture: class name of the text model, read and written.
      wrappers: class names of models around it whose config.json keeps its part in `text_config`.
      required: keys that config.json must hold.
      constants: ModelConfig fields that every model of the family has.
      fields: further ModelConfig fields, each with its key of config.json.
      supported: values that a key may have, where others mean arithmetic this decoder lacks.
      partial_rotary: whether positions may turn a part of each head only.
      nested_rope: rotary settings are given for each layer type apart.
      sliding: whether layers may be sliding.
      activation_key: key that names the activation.
      output_bias: the attention's output projection has a bias where the others do.
      ignored: patterns of tensors that the text model does not use.
    """

    model_type: str
    architecture: str
    wrappers: tuple[str, ...] = ()
    required: tuple[str, ...] = _ALL_SIZES
    constants: Mapping = dataclasses.field(default_factory=dict)
    fields: Mapping = dataclasses.field(default_factory=dict)
    supported: Mapping = dataclasses.field(default_factory=dict)
    partial_rotary: bool = False
    nested_rope: bool = False
    sliding: bool = True
    activation_key: str = "hidden_act"
    output_bias: bool = True
    ignored: tuple[str, ...] = ()


FAMILY_ROWS = {
    "llama": Family("llama", "LlamaForCausalLM", supported={"mlp_bias": (False,)}, sliding=False),
    "qwen2": Family(
        "qwen2", "Qwen2ForCausalLM", constants={"attention_bias": True}, output_bias=False
    ),
    "qwen3": Family("qwen3", "Qwen3ForCausalLM", constants={"query_key_norm": True}),
    "qwen3_5": Family(
        "qwen3_5_text",
        "Qwen3_5ForCausalLM",
        ("Qwen3_5ForConditionalGeneration",),
        constants={"query_key_norm": True, "norm_offset": 1.0, "attention_gate": True},
        fields={
            "linear_key_heads": "linear_num_key_heads",
            "linear_value_heads": "linear_num_value_heads",
            "linear_key_head_dim": "linear_key_head_dim",
            "linear_value_head_dim": "linear_value_head_dim",
            "linear_conv_width": "linear_conv_kernel_dim",
        },
        supported={"attn_output_gate": (True,)},
        partial_rotary=True,
        sliding=False,
        ignored=(_VISION, r"^(model\.)?mtp\."),
    ),
    "gemma3": Family(
        "gemma3_text",
        "Gemma3ForCausalLM",
        ("Gemma3ForConditionalGeneration",),
        required=_SIZES,
        constants={"query_key_norm": True, "norm_offset": 1.0, "post_norms": True},
        fields={"final_softcap": "final_logit_softcapping"},
        supported={"attn_logit_softcapping": (None,), "use_bidirectional_attention": (False, None)},
        nested_rope=True,
        activation_key="hidden_activation",
        ignored=(_VISION,),
    ),
    "gemma4": Family(
        "gemma4_text",
        "Gemma4ForCausalLM",
        ("Gemma4ForConditionalGeneration",),
        required=_SIZES,
        constants={
            "query_key_norm": True,
            "value_norm": True,
            "post_norms": True,
            "layer_scalar": True,
            "query_scale": 1.0,
        },
        fields={
            "final_softcap": "final_logit_softcapping",
            "num_kv_shared_layers": "num_kv_shared_layers",
            "double_wide_shared": "use_double_wide_mlp",
            "per_layer_embedding_size": "hidden_size_per_layer_input",
            "per_layer_vocab_size": "vocab_size_per_layer_input",
        },
        supported={
            "enable_moe_block": (False,),
            "attention_k_eq_v": (False,),
            "use_bidirectional_attention": (None, "vision"),  # "vision" leaves text causal
        },
        partial_rotary=True,
        nested_rope=True,
        activation_key="hidden_activation",
        ignored=(_VISION, r"^(model\.)?(audio_tower|embed_vision|embed_audio)\."),
    ),
}
ARCHITECTURES = {
    architecture: name
    for name, row in FAMILY_ROWS.items()
    for architecture in (row.architecture, *row.wrappers)
}


def config_fields(raw: Mapping, where) -> dict:
    """ModelConfig fields that the content of a config.json describes.

    Args:
      raw: the content; a multimodal model's text part is taken from its `text_config`.
      where: file that errors name.

    Raises:
      ValueError: unknown architecture, keys that are absent, settings this decoder does not have,
        naming the file and the key.
    """
    named = raw.get("architectures")
    architecture = named[0] if isinstance(named, list) and named else named
    if not isinstance(architecture, str) or architecture not in ARCHITECTURES:
        raise ValueError(f"{where}: {unknown('architecture', architecture, ARCHITECTURES)}")
    family = ARCHITECTURES[architecture]
    row = FAMILY_ROWS[family]
    if raw.get("quantization_config"):
        raise ValueError(
            f"{where}: quantization_config is not supported: load the model's unquantised weights, "
            "or a GGUF file of it"
        )
    text = raw
    if architecture in row.wrappers:
        text = raw.get("text_config")
        if not isinstance(text, Mapping):
            raise ValueError(f"{where} lacks the text_config of a {architecture}")
        if raw.get("tie_word_embeddings") is not None:
            text = {**text, "tie_word_embeddings": raw["tie_word_embeddings"]}
    absent = [name for name in row.required if text.get(name) is None]
    if absent:
        raise ValueError(f"{where} lacks {absent}")
    parsed = _published(row.model_type, text, where)
    try:
        return _fields(family, row, parsed)
    except (ValueError, TypeError) as error:  # TypeError: an entry of another type
        raise ValueError(f"{where}: {error}") from error


def _published(model_type: str, text: Mapping, where):
    """The configuration object of transformers, which knows every default of the family."""
    from transformers import AutoConfig

    given = text.get("model_type")
    if given not in (None, model_type):
        raise ValueError(f"{where}: model_type={given!r} is not supported, only {model_type!r}")
    content = {name: copy.deepcopy(text[name]) for name in text if name != "model_type"}
    try:
        parsed = AutoConfig.for_model(model_type, **content)
        # A trained length beside the rotary settings counts from the second call on, which models
        # of transformers make themselves.
        parsed.standardize_rope_params()
        return parsed
    except Exception as error:
        raise ValueError(f"{where} is no {model_type} configuration: {error}") from error


def _fields(family: str, row: Family, parsed) -> dict:
    for name, values in row.supported.items():
        value = getattr(parsed, name, values[0])
        if value not in values:
            raise ValueError(f"{name}={value!r} is not supported, only {list(values)}")
    activation = getattr(parsed, row.activation_key)
    names = {"swish": "silu", **{name: own for own, name in ACTIVATIONS.items()}}
    if activation not in names:
        raise ValueError(
            f"{row.activation_key}={activation!r} is not supported, only {sorted(names)}"
        )
    layers = _layer_fields(row, parsed)  # refuses layers that differ in more than their heads
    fields = {own: getattr(parsed, name) for own, name in {**COMMON_FIELDS, **row.fields}.items()}
    bias = bool(row.constants.get("attention_bias", getattr(parsed, "attention_bias", False)))
    fields.update(
        family=family,
        activation=names[activation],
        tie_embeddings=bool(parsed.tie_word_embeddings),
        attention_bias=bias,
        output_bias=bias and row.output_bias,
        **layers,
        **_rope_fields(row, parsed),
    )
    if family.startswith("gemma"):
        fields["embedding_scale"] = fields["hidden_size"] ** 0.5
    if family == "gemma3":
        scalar = parsed.query_pre_attn_scalar
        fields["query_scale"] = None if scalar == fields["head_dim"] else scalar**-0.5
    if family == "gemma4" and not fields["per_layer_embedding_size"]:
        fields.update(per_layer_embedding_size=0, per_layer_vocab_size=0)
    return {**fields, **row.constants}


def _layer_fields(row: Family, parsed) -> dict:
    """Layer types and the heads of each."""
    total = parsed.num_hidden_layers
    names = {name: own for own, name in LAYER_TYPES.items()}
    given = getattr(parsed, "layer_types", None) or [LAYER_TYPES["full"]] * total
    for name in given:
        if name not in names:
            raise unknown("layer type of layer_types", name, names)
    types = tuple(names[name] for name in given)
    if "sliding" in types and not row.sliding:
        raise ValueError(f"sliding layers are not part of {row.architecture}")
    fields = {
        "layer_types": None if set(types) == {"full"} else types,
        "sliding_window": parsed.sliding_window if "sliding" in types else None,
    }
    heads = parsed.num_attention_heads
    if row.model_type != "gemma4_text":
        size = getattr(parsed, "head_dim", None) or parsed.hidden_size // heads
        kv_heads = getattr(parsed, "num_key_value_heads", None) or heads
        return {**fields, "head_dim": size, "num_kv_heads": kv_heads}
    other = set(parsed.per_layer_attributes or ()) - {"head_dim", "num_key_value_heads"}
    if other:
        raise ValueError(f"per_layer_config with {sorted(other)} is not supported, only head sizes")
    found = {}
    for kind, layer in zip(types, parsed.per_layer_config, strict=True):
        sizes = (layer.head_dim, layer.num_key_value_heads)
        if found.setdefault(kind, sizes) != sizes:
            raise ValueError(f"per_layer_config gives {LAYER_TYPES[kind]} layers unequal heads")
    size, kv_heads = found.get("sliding", found["full"])
    full_size, full_kv_heads = found["full"]
    return {
        **fields,
        "head_dim": size,
        "num_kv_heads": kv_heads,
        "full_head_dim": None if full_size == size else full_size,
        "full_kv_heads": None if full_kv_heads == kv_heads else full_kv_heads,
    }


def _rope_fields(row: Family, parsed) -> dict:
    """Rotary settings; transformers has brought earlier spellings into `rope_parameters`."""
    rope, fields = parsed.rope_parameters, {}
    if row.nested_rope:
        local = rope.get(LAYER_TYPES["sliding"]) or {}
        rope = rope.get(LAYER_TYPES["full"]) or {}
        if LAYER_TYPES["sliding"] in parsed.layer_types:
            kind, fraction = local.get("rope_type"), local.get("partial_rotary_factor", 1.0)
            if kind != "default" or fraction != 1.0:
                raise ValueError(
                    f"rope_parameters of sliding_attention layers ({local}) are not supported, "
                    "only rope_type 'default' of the whole head"
                )
            fields["local_rope_theta"] = _rope_theta(local)
    kind, fraction = rope.get("rope_type", "default"), rope.get("partial_rotary_factor", 1.0)
    if fraction != 1.0 and not row.partial_rotary:
        raise ValueError(f"partial_rotary_factor={fraction} is not supported, only 1.0")
    if fraction != 1.0 and row.nested_rope and kind != "proportional":
        # transformers takes no part of the head here, or one of another size
        raise ValueError(
            f"partial_rotary_factor={fraction} with rope_type {kind!r} is not supported in "
            "full_attention layers, only with 'proportional'"
        )
    scaling = None if kind == "default" else RopeScaling.from_mapping(rope)
    fields.update(
        rope_theta=_rope_theta(rope), rope_scaling=scaling, rotary_fraction=float(fraction)
    )
    return fields


def _rope_theta(rope: Mapping) -> float:
    theta = rope.get("rope_theta")
    if not isinstance(theta, int | float) or not 0 < theta < math.inf:
        raise ValueError(f"rope_theta must be a positive number, not {theta!r}, in {dict(rope)}")
    return float(theta)
