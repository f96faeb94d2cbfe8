"""Hugging Face directories: round trips, what transformers opens, and every kind of damage."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from transformers import AutoConfig, AutoTokenizer, GenerationConfig

from sepo_jax.policy import ModelConfig, Policy, RopeScaling, load, render, save_hf
from sepo_jax.policy.weights import INDEX_FILE, SINGLE_FILE, VALUE_HEAD_FILE

MESSAGES = [{"role": "user", "content": "Card J."}]


@pytest.fixture
def saved(tmp_path, policy, params):
    """A directory written by `save_hf`, free to damage."""
    return save_hf(tmp_path / "model", policy, params)


def edit_json(path, **changes):
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def edit_tensors(path, edit):
    tensors = load_file(path)
    edit(tensors)
    save_file(tensors, path, {"format": "pt"})


def assert_same(left, right):
    jax.tree.map(np.testing.assert_array_equal, left, right)
    assert jax.tree.structure(left) == jax.tree.structure(right)


def test_round_trip_is_exact(saved, policy, params, tokenizer):
    loaded, weights = load(saved)
    assert loaded == policy and loaded.end_ids == (1,)
    assert_same(weights, params)
    assert render(loaded.tokenizer, MESSAGES) == render(tokenizer, MESSAGES)
    assert load(saved, tokenizer=False)[0].tokenizer is None


def test_round_trip_of_every_field(tmp_path, tokenizer, make_params):
    """Untied, biased, scaled rotary positions, value head, bfloat16, several end ids."""
    config = ModelConfig(
        vocab_size=len(tokenizer) + 3,
        hidden_size=16,
        num_layers=1,
        num_heads=2,
        num_kv_heads=1,
        head_dim=6,
        intermediate_size=20,
        rope_theta=500_000.0,
        rope_scaling=RopeScaling(8.0, 1.0, 4.0, 8192),
        rms_norm_epsilon=1e-6,
        tie_embeddings=False,
        attention_bias=True,
        max_positions=256,
        param_dtype="bfloat16",
        value_head=True,
    )
    policy, params = Policy(config, tokenizer, (1, 4)), make_params(config)
    directory = save_hf(tmp_path / "model", policy, params)
    loaded, weights = load(directory, param_dtype="bfloat16")
    assert loaded == policy
    assert_same(weights, params)
    without, weights = load(directory, param_dtype="bfloat16", value_head=False)
    assert not without.config.value_head and "value_head" not in weights
    wide = load(directory)[1]["embed"]["embedding"]
    assert wide.dtype == jnp.float32


def test_transformers_opens_it(saved, policy, tokenizer):
    config = AutoConfig.from_pretrained(saved)
    assert config.architectures == ["LlamaForCausalLM"] and config.model_type == "llama"
    assert config.num_key_value_heads == policy.config.num_kv_heads
    assert config.rope_parameters["rope_theta"] == policy.config.rope_theta
    opened = AutoTokenizer.from_pretrained(saved)
    ids = opened.apply_chat_template(MESSAGES, add_generation_prompt=True, return_dict=False)
    assert ids == render(tokenizer, MESSAGES)
    assert GenerationConfig.from_pretrained(saved).eos_token_id == [1]


def test_reads_shards_and_redundant_tensors(saved, params):
    """Two shards with an index; a tied model that still carries its output projection."""
    tensors = load_file(saved / SINGLE_FILE)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(4, np.float32)
    names = sorted(tensors)
    shards = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, held in shards.items():
        save_file({name: tensors[name] for name in held}, saved / file)
    (saved / SINGLE_FILE).unlink()
    weight_map = {name: file for file, held in shards.items() for name in held}
    (saved / INDEX_FILE).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    assert_same(load(saved)[1], params)
    (saved / "b.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"b\.safetensors is absent.*model\."):
        load(saved)


def test_reads_configs_of_earlier_transformers(saved):
    """Rotary settings in two entries, and no head_dim."""
    raw = json.loads((saved / "config.json").read_text())
    for name in ("rope_parameters", "head_dim"):
        del raw[name]
    raw["rope_theta"] = 123.0
    raw["rope_scaling"] = RopeScaling(8.0, 1.0, 4.0, 8192).to_mapping()
    (saved / "config.json").write_text(json.dumps(raw))
    config = load(saved)[0].config
    assert config.rope_theta == 123.0 and config.rope_scaling.factor == 8.0
    assert config.head_dim == 8


def test_all_tensor_problems_are_named_together(saved):
    def edit(tensors):
        del tensors["model.layers.1.mlp.up_proj.weight"]
        tensors["model.extra.weight"] = np.zeros(3, np.float32)
        tensors["model.norm.weight"] = np.zeros(7, np.float32)

    edit_tensors(saved / SINGLE_FILE, edit)
    with pytest.raises(ValueError) as caught:
        load(saved)
    text = str(caught.value)
    assert "missing tensor model.layers.1.mlp.up_proj.weight" in text
    assert "unused tensor model.extra.weight in model.safetensors" in text
    assert (
        "model.norm.weight in model.safetensors has shape (7,), the config asks for (32,)" in text
    )


@pytest.mark.parametrize("keep", [4, 200, -4], ids=["header", "names", "data"])
def test_truncated_weights_are_refused(saved, keep):
    file = saved / SINGLE_FILE
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(ValueError, match=r"model\.safetensors is damaged"):
        load(saved)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["LlamaForCausalML"]}, "Did you mean 'LlamaForCausalLM'"),
        ({"architectures": None}, "unknown architecture None"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu'"),
        ({"mlp_bias": True}, "mlp_bias=True"),
        ({"hidden_size": None}, "lacks .'hidden_size'"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, "rope scaling 'yarn'"),
        ({"vocab_size": 10}, r"embed_tokens.weight in model\.safetensors has shape"),
    ],
)
def test_configs_that_do_not_fit_are_refused(saved, changes, message):
    edit_json(saved / "config.json", **changes)
    with pytest.raises(ValueError, match=message):
        load(saved)


def test_missing_and_broken_files_are_named(saved, tmp_path):
    with pytest.raises(FileNotFoundError, match="no directory"):
        load(tmp_path / "absent")
    with pytest.raises(FileNotFoundError, match="hf download some/model"):
        load("some/model")
    with pytest.raises(ValueError, match="is a file"):
        load(saved / SINGLE_FILE)
    with pytest.raises(ValueError, match="Did you mean 'remat'"):
        load(saved, remt=True)
    (saved / "tokenizer.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"tokenizer\.json"):
        load(saved)
    (saved / SINGLE_FILE).rename(saved / "pytorch_model.bin")
    with pytest.raises(FileNotFoundError, match="convert them to safetensors"):
        load(saved)
    (saved / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config\.json is not valid JSON"):
        load(saved)
    (saved / "config.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"config\.json is absent"):
        load(saved)


def test_fresh_policies(config, tokenizer):
    """A ModelConfig gives fresh parameters by the key; fields may be changed on the way."""
    policy, params = load(config, tokenizer=tokenizer, key=jax.random.key(3), num_layers=1)
    assert policy.config == dataclasses.replace(config, num_layers=1)
    assert params["layers"]["q_proj"]["kernel"].shape == (1, 32, 32)
    again = policy.init(jax.random.key(3))
    assert_same(again, params)
    with pytest.raises(ValueError, match="Did you mean 'num_layers'"):
        load(config, num_layer=2)


def test_saving_is_whole_or_nothing(tmp_path, policy, params):
    """An existing directory is kept unless asked; a failure leaves neither parts nor leftovers."""
    directory = save_hf(tmp_path / "model", policy, params)
    with pytest.raises(FileExistsError, match="overwrite=True"):
        save_hf(directory, policy, params)
    (directory / "marker").write_text("")
    save_hf(directory, policy, params, overwrite=True)
    assert not (directory / "marker").exists()

    class Broken:
        eos_token_id = 1

        def __len__(self):
            return 1

        def save_pretrained(self, path):
            raise OSError("disk full")

    broken = dataclasses.replace(policy, tokenizer=Broken())
    for target, overwrite in ((directory, True), (tmp_path / "other", False)):
        with pytest.raises(OSError, match="disk full"):
            save_hf(target, broken, params, overwrite=overwrite)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert_same(load(directory)[1], params)


def test_value_head_file_is_apart(tmp_path, policy, make_params):
    """transformers sees a plain causal model: the value head has a file of its own."""
    config = dataclasses.replace(policy.config, value_head=True)
    critic, weights = Policy(config, policy.tokenizer), make_params(config)
    directory = save_hf(tmp_path / "critic", critic, weights)
    assert not any("value" in name for name in load_file(directory / SINGLE_FILE))
    assert_same(load(directory)[1], weights)
    (directory / VALUE_HEAD_FILE).unlink()
    fresh = load(directory, value_head=True)[1]
    assert not np.any(fresh["value_head"]["kernel"])


def test_tensor_layout_by_hand(saved, params):
    """Names of the Llama format; its linear weights are [out, in], our kernels [in, out]."""
    tensors = load_file(saved / SINGLE_FILE)
    layer = {
        "input_layernorm": params["layers"]["attention_norm"]["scale"],
        "post_attention_layernorm": params["layers"]["feed_forward_norm"]["scale"],
        "self_attn.q_proj": params["layers"]["q_proj"]["kernel"],
        "self_attn.k_proj": params["layers"]["k_proj"]["kernel"],
        "self_attn.v_proj": params["layers"]["v_proj"]["kernel"],
        "self_attn.o_proj": params["layers"]["o_proj"]["kernel"],
        "mlp.gate_proj": params["layers"]["gate_proj"]["kernel"],
        "mlp.up_proj": params["layers"]["up_proj"]["kernel"],
        "mlp.down_proj": params["layers"]["down_proj"]["kernel"],
    }
    expected = {
        f"model.layers.{index}.{name}.weight": np.asarray(array[index]).T
        for name, array in layer.items()
        for index in range(2)
    }
    expected["model.embed_tokens.weight"] = params["embed"]["embedding"]
    expected["model.norm.weight"] = params["norm"]["scale"]
    assert set(tensors) == set(expected)
    for name, array in expected.items():
        np.testing.assert_array_equal(tensors[name], array, err_msg=name)
    assert tensors["model.layers.0.mlp.up_proj.weight"].shape == (48, 32)
