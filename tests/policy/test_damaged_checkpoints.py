"""Checkpoints with odd or damaged content: refused with the file named, and nothing is run."""

import dataclasses
import json
import shutil
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from checkpoint_edits import assert_same, edit_json, edit_tensors
from safetensors.numpy import load_file, save_file

from sepo_jax.policy import load, save_hf, train_tokenizer
from sepo_jax.policy.config import LoraConfig
from sepo_jax.policy.formats.families import config_fields
from sepo_jax.policy.formats.peft_files import load_peft, save_peft
from sepo_jax.policy.formats.weights import INDEX_FILE, SINGLE_FILE, VALUE_HEAD_FILE, all_finite
from sepo_jax.policy.lora import init_adapter

NORM = "model.norm.weight"


@pytest.fixture
def saved(tmp_path, policy, params):
    """A directory written by `save_hf`, free to damage."""
    return save_hf(tmp_path / "model", policy, params)


def split(directory, other=lambda weight_map: None):
    """Turns the weights into two shards; `other` may change what the index says."""
    tensors = load_file(directory / SINGLE_FILE)
    (directory / SINGLE_FILE).unlink()
    files = {name: f"{index % 2}.safetensors" for index, name in enumerate(tensors)}
    for file in set(files.values()):
        held = {name: tensors[name] for name in tensors if files[name] == file}
        save_file(held, directory / file, {"format": "pt"})
    other(files)
    (directory / INDEX_FILE).write_text(json.dumps({"weight_map": files}))


@pytest.mark.parametrize("dtype", [np.float32, np.float16, jnp.bfloat16])
def test_finite_numbers_are_told_from_others(dtype):
    limits = jnp.finfo(dtype)
    plain = [0.0, -0.0, 1.0, float(limits.max), float(limits.min), float(limits.tiny)]
    assert all_finite(np.asarray([plain] * 3, np.float32).astype(dtype).T)
    assert all_finite(np.zeros((0, 3), dtype))
    for odd in (np.nan, -np.nan, np.inf, -np.inf):
        many = np.zeros((3, 100_000), dtype)
        many[2, -1] = odd
        assert not all_finite(many)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_no_numbers_are_refused(saved, value):
    edit_tensors(saved / SINGLE_FILE, lambda tensors: tensors[NORM].__setitem__(1, value))
    with pytest.raises(ValueError, match=r"model\.norm\.weight in .*model\.safetensors holds inf"):
        load(saved)


def test_value_heads_that_are_no_numbers_are_refused(tmp_path, policy, make_params):
    config = dataclasses.replace(policy.config, value_head=True)
    critic = dataclasses.replace(policy, config=config)
    directory = save_hf(tmp_path / "critic", critic, make_params(config))
    kernel = load_file(directory / VALUE_HEAD_FILE)["kernel"]
    for odd, message in ((kernel * np.nan, "NaN"), (kernel.astype(np.int8), "stored as I8")):
        edit_tensors(
            directory / VALUE_HEAD_FILE, lambda tensors, odd=odd: tensors.update(kernel=odd)
        )
        with pytest.raises(ValueError, match=message):
            load(directory)


def test_one_file_is_read_before_an_index(saved, params):
    """As in transformers: the index may be left from an earlier, larger model."""
    shutil.copy(saved / SINGLE_FILE, saved.parent / "kept")
    split(saved)
    for shard in saved.glob("[01].safetensors"):
        shard.unlink()
    with pytest.raises(FileNotFoundError, match="is absent"):
        load(saved)
    shutil.copy(saved.parent / "kept", saved / SINGLE_FILE)
    assert_same(load(saved)[1], params)


def test_an_index_whose_shards_contradict_each_other(saved, params):
    split(saved, lambda files: files.update({NORM: "0.safetensors"}))
    assert_same(load(saved)[1], params)  # what the index says is wrong, what lies there is not
    for name in "01":  # the same tensor in both
        edit_tensors(saved / f"{name}.safetensors", lambda held: held.update({NORM: np.ones(32)}))
    with pytest.raises(ValueError, match=r"norm\.weight lies in .*0\.safe.* and in .*1\.safe"):
        load(saved)
    (saved / INDEX_FILE).write_text(json.dumps({"weight_map": {NORM: 5}}))
    with pytest.raises(
        ValueError, match=r"index\.json names no file for model\.norm\.weight but 5"
    ):
        load(saved)


@pytest.mark.parametrize("named", [5, {"a": 1}, [["a"]], [], ""])
def test_architectures_of_another_type(saved, named):
    edit_json(saved / "config.json", architectures=named)
    with pytest.raises(ValueError, match=r"config\.json: unknown architecture"):
        load(saved)
    edit_json(saved / "config.json", architectures="LlamaForCausalLM")
    assert load(saved)[0].config.family == "llama"


def test_sizes_that_do_not_fit_each_other_name_the_file(saved):
    edit_json(saved / "config.json", max_position_embeddings=0)
    with pytest.raises(ValueError, match=r"config\.json: ModelConfig\.max_positions must be"):
        load(saved)


def test_a_trained_length_beside_the_rotary_settings(saved):
    """transformers prefers it to the one inside, and to max_position_embeddings."""
    rope = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    changes = {"rope_scaling": rope, "original_max_position_embeddings": 16}
    content = json.loads((saved / "config.json").read_text())
    del content["rope_parameters"]
    (saved / "config.json").write_text(json.dumps({**content, **changes}))
    assert load(saved, tokenizer=False)[0].config.rope_scaling.original_max_positions == 16


@pytest.mark.parametrize(
    ("rope", "message"),
    [
        ({"rope_theta": None}, "rope_theta must be a positive number, not None"),
        ({"rope_theta": 0.0}, "rope_theta must be a positive number, not 0"),
        ({"rope_theta": [1]}, r"rope_theta must be a positive number, not \[1\]"),
        ({"rope_type": "linear", "factor": []}, "float"),
        ({"rope_type": []}, "unhashable"),
    ],
)
def test_rotary_settings_of_another_type_name_the_file(saved, rope, message):
    rope = {"rope_type": "default", "rope_theta": 100.0, **rope}
    edit_json(saved / "config.json", rope_parameters=rope, rope_theta=None, rope_scaling=None)
    with pytest.raises(ValueError, match=rf"config\.json.*{message}"):
        load(saved)


def test_tokenizers_that_cannot_be_used(saved, policy, params):
    large = train_tokenizer(["some text"], 300)
    large.add_tokens([f"<{index}>" for index in range(100)])
    large.save_pretrained(saved)
    with pytest.raises(ValueError, match=r"model: the tokenizer has \d+ ids and the model vocab"):
        load(saved)
    edit_json(saved / "generation_config.json", eos_token_id="x")
    with pytest.raises(ValueError, match=r"/model: invalid literal"):
        load(saved)
    for file, content in (("tokenizer_config.json", "{"), ("tokenizer.json", "{}")):
        (saved / file).write_text(content)
        with pytest.raises(ValueError, match=r"model holds no tokenizer that can be read"):
            load(saved)
    edit_json(saved / "generation_config.json", eos_token_id=1)
    assert_same(load(saved, tokenizer=policy.tokenizer)[1], params)


def test_code_of_a_checkpoint_is_never_run(saved, monkeypatch):
    """Neither silently nor after a question on the terminal."""
    (saved / "strange.py").write_text("raise SystemExit('this ran')")
    auto_map = {"AutoTokenizer": ["strange.Tokenizer", None]}
    edit_json(saved / "tokenizer_config.json", auto_map=auto_map, tokenizer_class="Tokenizer")
    monkeypatch.setattr("builtins.input", lambda _: pytest.fail("asked"))
    with pytest.raises(ValueError, match="contains custom code"):
        load(saved)


def test_paths_of_every_form(saved, params, policy, monkeypatch):
    """Spaces, a slash at the end, relative, below the home directory, links as in the hub cache."""
    monkeypatch.chdir(saved.parent)
    monkeypatch.setenv("HOME", str(saved.parent))
    save_hf("~/two words", policy, params)
    blobs, snapshot = saved.parent / "blobs", saved.parent / "snapshot"
    blobs.mkdir(), snapshot.mkdir()
    for index, file in enumerate(sorted(saved.iterdir())):
        shutil.copy(file, blobs / str(index))
        (snapshot / file.name).symlink_to(f"../blobs/{index}")
    for path in ("two words", "./two words/", "~/two words", snapshot, "snapshot"):
        assert_same(load(path, tokenizer=False)[1], params)
    assert not (saved.parent / "~").exists()


def test_gguf_without_its_package_is_a_user_error(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "gguf", None)
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    with pytest.raises(ValueError, match=r"model\.gguf: .*pip install 'sepo_jax\[gguf\]'"):
        load(tmp_path / "model.gguf")


def test_adapters_that_are_no_numbers_are_refused(tmp_path, policy, params, monkeypatch):
    config = dataclasses.replace(policy.config, lora=LoraConfig(rank=2, targets="q_proj"))
    adapter = init_adapter(config, params, jax.random.key(0))
    monkeypatch.setenv("HOME", str(tmp_path))
    directory = save_peft("~/a", dataclasses.replace(policy, config=config), adapter, "base")
    assert directory == tmp_path / "a"
    assert_same(load_peft("~/a", policy.config)[1], adapter)
    file = directory / "adapter_model.safetensors"
    whole = file.read_bytes()
    for change, message in (
        (lambda array: array * np.nan, "holds infinite numbers or NaN"),
        (lambda array: array.astype(np.int8), "is stored as int8"),
    ):
        file.write_bytes(whole)

        def edit(tensors, change=change):
            name = max(tensors)
            tensors[name] = change(tensors[name])

        edit_tensors(file, edit)
        with pytest.raises(ValueError, match=rf"layers\.1.*lora_B.weight {message}"):
            load_peft(directory, policy.config)
    for odd in ({"r": 0}, {"lora_alpha": []}, {"lora_alpha": "x"}):
        edit_json(directory / "adapter_config.json", **{"r": 2, "lora_alpha": 32, **odd})
        with pytest.raises(ValueError, match=r"adapter_config\.json: "):
            load_peft(directory, policy.config)


def test_a_part_of_the_head_turns_in_proportional_layers_alone():
    """transformers reads a factor of Gemma 4's unscaled layers past; neither reading is guessed."""
    rope = {"rope_type": "default", "rope_theta": 500.0}
    raw = {
        "architectures": ["Gemma4ForCausalLM"],
        "hidden_size": 24,
        "num_hidden_layers": 2,
        "intermediate_size": 8,
        "layer_types": ["sliding_attention", "full_attention"],
        "rope_parameters": {"sliding_attention": rope, "full_attention": dict(rope)},
    }
    full = raw["rope_parameters"]["full_attention"]
    assert config_fields(raw, "x")["rotary_fraction"] == 1.0
    full["partial_rotary_factor"] = 0.5
    with pytest.raises(ValueError, match=r"partial_rotary_factor=0\.5 with rope_type 'default'"):
        config_fields(raw, "x")
    full["rope_type"] = "proportional"
    assert config_fields(raw, "x")["rotary_fraction"] == 0.5
