"""Hugging Face directories: round trips, what transformers opens, and every kind of damage."""

import dataclasses
import json
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from checkpoint_edits import assert_same, edit_json
from safetensors.numpy import load_file
from transformers import AutoConfig, AutoTokenizer, GenerationConfig

from sepo_jax.policy import ModelConfig, Policy, RopeScaling, load, render, save_hf
from sepo_jax.policy.config import LoraConfig
from sepo_jax.policy.formats.hugging_face import read_config
from sepo_jax.policy.formats.weights import SINGLE_FILE, VALUE_HEAD_FILE

MESSAGES = [{"role": "user", "content": "Card J."}]


@pytest.fixture
def saved(tmp_path, policy, params):
    """A directory written by `save_hf`, free to damage."""
    return save_hf(tmp_path / "model", policy, params)


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
        rope_scaling=RopeScaling("llama3", 8.0, 1.0, 4.0, 8192),
        rms_norm_epsilon=1e-6,
        tie_embeddings=False,
        attention_bias=True,
        output_bias=True,
        max_positions=256,
        param_dtype="bfloat16",
        value_head=True,
    )
    policy, params = Policy(config, tokenizer, (1, 4)), make_params(config)
    directory = save_hf(tmp_path / "model", policy, params)
    loaded, weights = load(directory)  # bfloat16 stays bfloat16
    assert loaded == policy and read_config(directory) == config
    assert_same(weights, params)
    without, weights = load(directory, value_head=False)
    assert not without.config.value_head and "value_head" not in weights
    options = {"param_dtype": "float32", "remat": "dots", "lora": LoraConfig(rank=2)}
    wide, weights = load(directory, **options)
    assert wide.config == dataclasses.replace(config, **options)
    assert {leaf.dtype for leaf in jax.tree.leaves(weights)} == {jnp.dtype("float32")}
    np.testing.assert_array_equal(
        weights["embed"]["embedding"], params["embed"]["embedding"].astype(jnp.float32)
    )


def test_transformers_opens_it(saved, policy, tokenizer):
    config = AutoConfig.from_pretrained(saved)
    assert config.architectures == ["LlamaForCausalLM"] and config.model_type == "llama"
    assert config.num_key_value_heads == policy.config.num_kv_heads
    assert config.rope_parameters["rope_theta"] == policy.config.rope_theta
    opened = AutoTokenizer.from_pretrained(saved)
    ids = opened.apply_chat_template(MESSAGES, add_generation_prompt=True, return_dict=False)
    assert ids == render(tokenizer, MESSAGES)
    assert GenerationConfig.from_pretrained(saved).eos_token_id == [1]


def test_reads_configs_of_earlier_transformers(saved):
    """Rotary settings in two entries, and no head_dim."""
    raw = json.loads((saved / "config.json").read_text())
    for name in ("rope_parameters", "head_dim"):
        del raw[name]
    raw["rope_theta"] = 123.0
    raw["rope_scaling"] = RopeScaling("llama3", 8.0, 1.0, 4.0, 8192).to_mapping()
    (saved / "config.json").write_text(json.dumps(raw))
    config = load(saved)[0].config
    assert config.rope_theta == 123.0 and config.rope_scaling.factor == 8.0
    assert config.head_dim == 8


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["LlamaForCausalML"]}, "Did you mean 'LlamaForCausalLM'"),
        ({"architectures": None}, "unknown architecture None"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu'"),
        ({"mlp_bias": True}, "mlp_bias=True"),
        ({"hidden_size": None}, "lacks .'hidden_size'"),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 4.0}}, "rope scaling 'dynamic'"),
        ({"vocab_size": 10}, r"embed_tokens.weight in model\.safetensors has shape"),
    ],
)
def test_configs_that_do_not_fit_are_refused(saved, changes, message):
    edit_json(saved / "config.json", **changes)
    with pytest.raises(ValueError, match=message):
        load(saved, tokenizer=False)


def test_missing_and_broken_files_are_named(saved, tmp_path):
    with pytest.raises(FileNotFoundError, match="no directory"):
        load(tmp_path / "absent")
    with pytest.raises(FileNotFoundError, match="no directory"):
        load(tmp_path / "absent.gguf")
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
    assert params["layers"]["full"]["q_proj"]["kernel"].shape == (1, 32, 32)
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


def test_hub_models_fail_with_one_line(monkeypatch, tmp_path):
    """No such model or no network: soon, with its name and what to do, and no chain."""
    monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    began = time.monotonic()
    with pytest.raises(FileNotFoundError, match="hf download") as caught:
        load("sepo-jax-nobody/no-such-model")
    assert time.monotonic() - began < 30
    text = str(caught.value)
    assert "sepo-jax-nobody/no-such-model" in text and "\n" not in text
    assert caught.value.__suppress_context__


def test_hub_models_come_from_this_machine_first(monkeypatch, saved):
    """A whole copy is used as it is; one without weights is fetched."""
    asked = []

    def fetch(hub_id, local_files_only=False, **_):
        asked.append((hub_id, local_files_only))
        return str(saved)

    monkeypatch.setattr("huggingface_hub.snapshot_download", fetch)
    assert load("some/model")[0].config.hidden_size == 32
    assert asked == [("some/model", True)]
    (saved / SINGLE_FILE).unlink()
    with pytest.raises(FileNotFoundError, match="holds neither"):
        load("some/model")
    assert asked[1:] == [("some/model", True), ("some/model", False)]


def test_config_alone(saved, policy):
    """Without weights the dtype is the one config.json names."""
    assert read_config(saved, remat="layer") == dataclasses.replace(policy.config, remat="layer")
    edit_json(saved / "config.json", dtype="bfloat16")
    assert read_config(saved).param_dtype == "float32"
    (saved / SINGLE_FILE).unlink()
    assert read_config(saved).param_dtype == "bfloat16"


def test_unknown_adapter_targets_are_refused_before_weights_are_read(saved):
    with pytest.raises(ValueError, match="Did you mean 'q_proj'"):
        load(saved, lora=LoraConfig(targets=("q_prj",)))
