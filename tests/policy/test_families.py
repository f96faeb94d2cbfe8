"""Families: config.json to fields and back, names of tensors, and settings that are refused."""

import copy
import dataclasses
import json

import pytest
from transformers import AutoConfig

from sepo_jax.policy import ModelConfig, RopeScaling
from sepo_jax.policy.formats.families import ARCHITECTURES, FAMILY_ROWS, config_fields
from sepo_jax.policy.formats.families_export import hf_config
from sepo_jax.policy.formats.families_tensors import tensor_places, text_names

SIZES = {
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 6,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 50,
    "max_position_embeddings": 640,
}
HEADS = {**SIZES, "head_dim": 12}
YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 160,
    "rope_theta": 1e6,
}
PATTERN = ["sliding_attention", "sliding_attention", "full_attention"] * 2
# One config.json of every family that uses what the family has, as transformers' class takes it.
RAW = {
    "llama": {
        **SIZES,
        "attention_bias": True,
        "rope_parameters": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 80,
            "rope_theta": 5e5,
        },
    },
    "qwen2": {
        **SIZES,
        "use_sliding_window": True,
        "sliding_window": 7,
        "max_window_layers": 4,
        "tie_word_embeddings": True,
        "rope_parameters": YARN,
    },
    "qwen3": {**HEADS, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
    "qwen3_5": {
        **HEADS,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 6,
        "linear_value_head_dim": 8,
        "full_attention_interval": 3,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1e7,
            "partial_rotary_factor": 0.5,
            "mrope_section": [1, 1, 1],
        },
    },
    "gemma3": {
        **HEADS,
        "layer_types": PATTERN,
        "sliding_window": 9,
        "query_pre_attn_scalar": 25,
        "final_logit_softcapping": 20.0,
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    },
    "gemma4": {
        **HEADS,
        "layer_types": PATTERN,
        "sliding_window": 9,
        "global_head_dim": 20,
        "num_kv_shared_layers": 3,
        "use_double_wide_mlp": True,
        "final_logit_softcapping": 30.0,
        "hidden_size_per_layer_input": 4,
        "vocab_size_per_layer_input": 50,
    },
}


def raw_config(family, **changes):
    """The content of a config.json that transformers writes."""
    row = FAMILY_ROWS[family]
    content = AutoConfig.for_model(row.model_type, **copy.deepcopy(RAW[family])).to_dict()
    return {**content, "architectures": [row.architecture], **changes}


def read(family, **changes):
    return ModelConfig(**config_fields(raw_config(family, **changes), "config.json"))


@pytest.mark.parametrize("family", RAW)
def test_round_trip(family):
    """fields -> config.json -> transformers -> config.json -> fields is the identity."""
    config = read(family)
    written = json.loads(json.dumps(hf_config(config)))
    assert ModelConfig(**config_fields(written, "config.json")) == config
    row = FAMILY_ROWS[family]
    assert written["model_type"] == row.model_type
    content = {name: value for name, value in written.items() if name != "model_type"}
    opened = AutoConfig.for_model(row.model_type, **content).to_dict()
    assert ModelConfig(**config_fields(opened, "config.json")) == config
    original = raw_config(family)
    for name in RAW[family]:
        if name in original and name not in ("rope_parameters", "max_window_layers"):
            assert opened[name] == original[name], name


def test_fields_by_hand():
    """What each family's keys mean, written out."""
    llama = read("llama")
    assert llama.attention_bias and llama.output_bias and not llama.tie_embeddings
    assert llama.rope_scaling == RopeScaling("llama3", 8.0, 1.0, 4.0, 80)
    assert llama.rope_theta == 5e5 and llama.head_dim == 12
    qwen2 = read("qwen2")
    assert qwen2.attention_bias and not qwen2.output_bias and not qwen2.query_key_norm
    assert qwen2.layer_types == ("full",) * 4 + ("sliding",) * 2 and qwen2.sliding_window == 7
    assert qwen2.rope_scaling.kind == "yarn" and qwen2.rope_scaling.original_max_positions == 160
    assert qwen2.local_rope_theta is None
    qwen3 = read("qwen3")
    assert qwen3.query_key_norm and qwen3.norm_offset == 0 and not qwen3.attention_bias
    assert qwen3.layer_types is None
    hybrid = read("qwen3_5")
    assert hybrid.layer_types == ("linear", "linear", "full") * 2
    assert hybrid.attention_gate and hybrid.norm_offset == 1 and hybrid.rotary_fraction == 0.5
    assert (hybrid.linear_key_heads, hybrid.linear_value_heads) == (2, 4)
    assert (hybrid.linear_key_head_dim, hybrid.linear_value_head_dim) == (6, 8)
    assert hybrid.linear_conv_width == 4
    gemma3 = read("gemma3")
    assert gemma3.query_scale == 0.2 and gemma3.embedding_scale == 24**0.5
    assert gemma3.post_norms and gemma3.norm_offset == 1 and gemma3.final_softcap == 20
    assert gemma3.rope_scaling == RopeScaling("linear", 8.0) and gemma3.local_rope_theta == 1e4
    assert gemma3.activation == "gelu_tanh" and gemma3.tie_embeddings
    gemma4 = read("gemma4")
    assert gemma4.query_scale == 1 and gemma4.value_norm and gemma4.norm_offset == 0
    assert (gemma4.head_dim, gemma4.full_head_dim) == (12, 20)
    assert gemma4.layer_kinds[3:] == ("sliding_shared", "sliding_shared", "full_shared")
    assert gemma4.double_wide_shared and gemma4.layer_scalar
    assert (gemma4.per_layer_embedding_size, gemma4.per_layer_vocab_size) == (4, 50)
    assert gemma4.rope_scaling.kind == "proportional" and gemma4.rotary_fraction == 0.25


def test_published_defaults_of_a_short_config():
    """Gemma 3 4B's config.json has these keys only; the rest are the defaults of its class."""
    text = {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    }
    raw = {"architectures": ["Gemma3ForConditionalGeneration"], "text_config": text}
    config = ModelConfig(**config_fields(raw, "config.json"))
    assert (config.vocab_size, config.num_heads, config.num_kv_heads) == (262_208, 8, 4)
    assert config.head_dim == 256 and config.query_scale is None and config.tie_embeddings
    assert [i for i, name in enumerate(config.layer_types) if name == "full"] == [5, 11, 17, 23, 29]
    assert config.rope_theta == 1e6 and config.local_rope_theta == 1e4
    assert config.rope_scaling == RopeScaling("linear", 8.0)


def test_earlier_spellings():
    """Rotary settings in several keys, and layer types as a pattern."""
    raw = raw_config("llama")
    rope = raw.pop("rope_parameters")
    raw |= {"rope_theta": rope.pop("rope_theta"), "rope_scaling": {**rope, "type": "llama3"}}
    assert ModelConfig(**config_fields(raw, "")) == read("llama")
    raw = raw_config("gemma3")
    del raw["rope_parameters"], raw["layer_types"], raw["_sliding_window_pattern"]
    raw |= {"rope_theta": 1e6, "rope_local_base_freq": 1e4, "sliding_window_pattern": 3}
    raw |= {"rope_scaling": {"rope_type": "linear", "factor": 8.0}}
    assert ModelConfig(**config_fields(raw, "")) == read("gemma3")
    raw = raw_config("qwen3_5")
    del raw["rope_parameters"], raw["layer_types"]
    raw |= {"rope_theta": 1e7, "partial_rotary_factor": 0.5, "full_attention_interval": 3}
    assert ModelConfig(**config_fields(raw, "")) == read("qwen3_5")
    del raw["partial_rotary_factor"]
    assert config_fields(raw, "")["rotary_fraction"] == 0.25
    raw = {**raw_config("qwen2"), "use_sliding_window": False, "layer_types": None}
    assert config_fields(raw, "")["layer_types"] is None
    raw = raw_config("gemma4")
    del raw["per_layer_config"]  # the sizes of full layers then come from global_head_dim
    assert ModelConfig(**config_fields({**raw, "global_head_dim": 20}, "")) == read("gemma4")


@pytest.mark.parametrize("family", ["qwen3_5", "gemma3", "gemma4"])
def test_text_part_of_multimodal_configs(family):
    (wrapper,) = FAMILY_ROWS[family].wrappers
    text = raw_config(family)
    del text["architectures"]
    raw = {"architectures": [wrapper], "text_config": text, "vision_config": {}}
    assert ModelConfig(**config_fields(raw, "")) == read(family)
    flipped = not text["tie_word_embeddings"]
    fields = config_fields({**raw, "tie_word_embeddings": flipped}, "")
    assert fields["tie_embeddings"] == flipped
    with pytest.raises(ValueError, match=r"here.json lacks the text_config"):
        config_fields({"architectures": [wrapper]}, "here.json")


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("llama", {"architectures": ["LlamaForCausalML"]}, "Did you mean 'LlamaForCausalLM'"),
        ("llama", {"architectures": None}, "unknown architecture None"),
        ("llama", {"model_type": "mistral"}, "model_type='mistral' is not supported"),
        ("llama", {"mlp_bias": True}, "mlp_bias=True is not supported"),
        ("llama", {"hidden_act": "gelu"}, "hidden_act='gelu' is not supported"),
        ("llama", {"hidden_size": None}, "lacks .'hidden_size'"),
        ("llama", {"hidden_size": 25}, "is no llama configuration"),
        ("llama", {"hidden_size": "24"}, "is no llama configuration"),
        ("llama", {"quantization_config": {"quant_method": "awq"}}, "quantization_config"),
        (
            "qwen3",
            {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}},
            "partial_rotary_factor=0.5",
        ),
        (
            "qwen3",
            {
                "rope_parameters": {
                    "rope_type": "longrope",
                    "factor": 4.0,
                    "short_factor": [1.0] * 6,
                    "long_factor": [2.0] * 6,
                }
            },
            "rope scaling 'longrope'",
        ),
        (
            "llama",
            {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}},
            "rope scaling 'dynamic'",
        ),
        ("qwen3", {"layer_types": ["chunked_attention"] * 6}, "chunked_attention"),
        ("qwen3_5", {"attn_output_gate": False}, "attn_output_gate=False"),
        ("gemma3", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping=50.0"),
        ("gemma3", {"use_bidirectional_attention": True}, "use_bidirectional_attention=True"),
        ("gemma3", {"hidden_activation": "gelu"}, "hidden_activation='gelu'"),
        (
            "gemma3",
            {
                "rope_parameters": {
                    "full_attention": {"rope_type": "default"},
                    "sliding_attention": {"rope_type": "linear", "factor": 2.0},
                }
            },
            "sliding_attention layers",
        ),
        ("gemma4", {"enable_moe_block": True}, "enable_moe_block=True"),
        ("gemma4", {"attention_k_eq_v": True}, "attention_k_eq_v=True"),
        ("gemma4", {"use_bidirectional_attention": "all"}, "use_bidirectional_attention='all'"),
        ("gemma4", {"per_layer_config": {"2": {"intermediate_size": 8}}}, "per_layer_config"),
        ("gemma4", {"per_layer_config": {"2": {"head_dim": 8}}}, "unequal heads"),
    ],
)
def test_what_the_decoder_lacks_is_refused(family, changes, message):
    """Each with the file and the key named."""
    with pytest.raises(ValueError, match=message) as caught:
        config_fields(raw_config(family, **changes), "model/config.json")
    assert str(caught.value).startswith("model/config.json")


def test_vision_attention_of_gemma_4_leaves_text_alone():
    assert read("gemma4", use_bidirectional_attention="vision") == read("gemma4")


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("llama", {"query_key_norm": True}, "query_key_norm=True"),
        ("llama", {"output_bias": False}, "output_bias=False"),
        ("qwen3", {"final_softcap": 30.0}, "final_softcap=30.0"),
        ("gemma3", {"embedding_scale": 1.0}, "embedding_scale=1.0"),
        ("gemma4", {"local_rope_theta": None}, "local_rope_theta=None"),
    ],
)
def test_what_a_family_cannot_express_is_not_written(family, changes, message):
    with pytest.raises(ValueError, match=message):
        hf_config(dataclasses.replace(read(family), **changes))


def test_equal_meanings_are_written():
    """None stands for a value: the reader may give either."""
    config = read("qwen3")
    for changes in (
        {"layer_types": ("full",) * 6},
        {"query_scale": 12**-0.5},
        {"sliding_window": 5},
        {"full_head_dim": 12},
    ):
        assert hf_config(dataclasses.replace(config, **changes)) == hf_config(config)


def test_tensors_of_shared_and_linear_layers():
    """Gemma 4's last layers have no keys or values of their own; a Qwen3.5 layer has one kind."""
    places = tensor_places(read("gemma4"))
    assert places["model.layers.2.self_attn.k_proj.weight"].path == (
        "layers",
        "full",
        "k_proj",
        "kernel",
    )
    shared = {name for name in places if name.startswith("model.layers.5.self_attn")}
    names = ("q_proj", "o_proj", "q_norm")
    assert shared == {f"model.layers.5.self_attn.{name}.weight" for name in names}
    place = places["model.layers.4.layer_scalar"]
    assert (place.path, place.row) == (("layers", "sliding_shared", "layer_scalar", "scale"), 1)
    places = tensor_places(read("qwen3_5"))
    assert "model.layers.2.linear_attn.A_log" not in places
    assert "model.layers.3.self_attn.q_proj.weight" not in places
    conv = places["model.layers.4.linear_attn.conv1d.weight"]
    assert conv.row == 3 and conv.stored_shape((4, 4, 56)) == (56, 1, 4)


@pytest.mark.parametrize("prefix", ["model.", "model.language_model.", "language_model.model."])
def test_names_of_multimodal_checkpoints(prefix):
    """The text model's tensors below any prefix; other parts are left out, strangers stay."""
    config = read("gemma4")
    names = tensor_places(config)
    stored = [name.replace("model.", prefix, 1) for name in names]
    others = [
        "model.vision_tower.encoder.layers.0.self_attn.q_proj.linear.weight",
        "model.audio_tower.layers.0.norm_out.weight",
        "model.embed_vision.embedding_projection.weight",
        "lm_head.weight",
        f"{prefix}layers.5.self_attn.k_proj.weight",
        f"{prefix}layers.5.self_attn.v_norm.weight",
        f"{prefix}layers.0.self_attn.rotary_emb.inv_freq",
    ]
    found = text_names(config, [*stored, *others, f"{prefix}stranger.weight"])
    assert set(found.values()) == {*names, "model.stranger.weight"}
    assert not set(others) & set(found)


def test_other_parts_are_ignored_by_family():
    assert (
        set(text_names(read("qwen3_5"), ["mtp.fc.weight", "model.visual.merger.weight"])) == set()
    )
    assert set(text_names(read("gemma3"), ["vision_tower.x", "multi_modal_projector.x"])) == set()
    assert set(text_names(read("llama"), ["vision_tower.x"])) == {"vision_tower.x"}
    untied = dataclasses.replace(read("gemma3"), tie_embeddings=False)
    assert text_names(untied, ["language_model.lm_head.weight"]) == {
        "language_model.lm_head.weight": "lm_head.weight"
    }


def test_every_architecture_has_one_family():
    assert set(ARCHITECTURES.values()) == set(FAMILY_ROWS)
    assert ARCHITECTURES["Gemma4ForConditionalGeneration"] == "gemma4"
