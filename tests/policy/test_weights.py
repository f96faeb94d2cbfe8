"""Checkpoint tensors: every family's layout, shards, dtypes, memory, and every kind of damage."""

import dataclasses
import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from checkpoint_edits import assert_same, edit_tensors
from safetensors.numpy import load_file, save_file

from sepo_jax.policy import ModelConfig, Policy, RopeScaling, load, save_hf
from sepo_jax.policy.formats.families_tensors import copy_strips
from sepo_jax.policy.formats.weights import INDEX_FILE, SINGLE_FILE, parameter_shapes


@pytest.fixture
def saved(tmp_path, policy, params):
    """A directory written by `save_hf`, free to damage."""
    return save_hf(tmp_path / "model", policy, params)


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


def test_tensor_layout_by_hand(saved, params):
    """Names of the Llama format; its linear weights are [out, in], our kernels [in, out]."""
    tensors = load_file(saved / SINGLE_FILE)
    layer = {
        "input_layernorm": params["layers"]["full"]["attention_norm"]["scale"],
        "post_attention_layernorm": params["layers"]["full"]["feed_forward_norm"]["scale"],
        "self_attn.q_proj": params["layers"]["full"]["q_proj"]["kernel"],
        "self_attn.k_proj": params["layers"]["full"]["k_proj"]["kernel"],
        "self_attn.v_proj": params["layers"]["full"]["v_proj"]["kernel"],
        "self_attn.o_proj": params["layers"]["full"]["o_proj"]["kernel"],
        "mlp.gate_proj": params["layers"]["full"]["gate_proj"]["kernel"],
        "mlp.up_proj": params["layers"]["full"]["up_proj"]["kernel"],
        "mlp.down_proj": params["layers"]["full"]["down_proj"]["kernel"],
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


FAMILIES = {
    "qwen2": {"attention_bias": True, "layer_types": ("full", "full", "sliding"), "head_dim": 4},
    "qwen3": {"query_key_norm": True, "attention_bias": True, "output_bias": True, "head_dim": 6},
    "qwen3_5": {
        "layer_types": ("linear", "linear", "full"),
        "query_key_norm": True,
        "norm_offset": 1.0,
        "attention_gate": True,
        "rotary_fraction": 0.5,
        "head_dim": 8,
        "linear_key_heads": 1,
        "linear_value_heads": 2,
        "linear_key_head_dim": 6,
        "linear_value_head_dim": 4,
        "linear_conv_width": 4,
        "tie_embeddings": False,
    },
    "gemma3": {
        "layer_types": ("sliding", "full", "sliding"),
        "local_rope_theta": 100.0,
        "query_key_norm": True,
        "norm_offset": 1.0,
        "post_norms": True,
        "activation": "gelu_tanh",
        "embedding_scale": 4.0,
        "head_dim": 6,
    },
    "gemma4": {
        "layer_types": ("sliding", "full", "full"),
        "local_rope_theta": 100.0,
        "query_key_norm": True,
        "value_norm": True,
        "post_norms": True,
        "activation": "gelu_tanh",
        "embedding_scale": 4.0,
        "query_scale": 1.0,
        "head_dim": 6,
        "full_head_dim": 8,
        "num_kv_shared_layers": 1,
        "double_wide_shared": True,
        "per_layer_embedding_size": 2,
        "per_layer_vocab_size": 9,
        "layer_scalar": True,
        "rotary_fraction": 0.25,
        "rope_scaling": RopeScaling("proportional"),
    },
}


def family_policy(family):
    """A tiny policy of a family, and parameters that are all different numbers."""
    config = ModelConfig(
        vocab_size=9,
        hidden_size=16,
        num_layers=3,
        num_heads=2,
        num_kv_heads=1,
        intermediate_size=12,
        sliding_window=5,
        family=family,
        **FAMILIES[family],
    )
    if "sliding" not in (config.layer_types or ()):
        config = dataclasses.replace(config, sliding_window=None)
    generator = np.random.default_rng(0)
    draw = lambda leaf: jnp.asarray(generator.normal(size=leaf.shape), leaf.dtype)  # noqa: E731
    return Policy(config, end_ids=(1,)), jax.tree.map(draw, parameter_shapes(config))


@pytest.mark.parametrize("family", FAMILIES)
def test_round_trip_of_every_family(tmp_path, family):
    policy, params = family_policy(family)
    loaded, weights = load(save_hf(tmp_path / "model", policy, params), tokenizer=False)
    assert loaded.config == policy.config
    assert_same(weights, params)


@pytest.mark.parametrize(
    ("family", "prefix", "wrapper", "others"),
    [
        (
            "gemma3",
            "language_model.model.",
            "Gemma3ForConditionalGeneration",
            ["vision_tower.vision_model.x", "multi_modal_projector.x"],
        ),
        (
            "gemma4",
            "model.language_model.",
            "Gemma4ForConditionalGeneration",
            ["model.audio_tower.x", "model.language_model.layers.2.self_attn.k_proj.weight"],
        ),
    ],
)
def test_text_part_of_a_multimodal_checkpoint(tmp_path, family, prefix, wrapper, others):
    policy, params = family_policy(family)
    directory = save_hf(tmp_path / "model", policy, params)
    tensors = load_file(directory / SINGLE_FILE)
    tensors = {name.replace("model.", prefix, 1): array for name, array in tensors.items()}
    extra = {name: np.zeros(3, np.float32) for name in others}
    save_file({**tensors, **extra}, directory / SINGLE_FILE, {"format": "pt"})
    text = json.loads((directory / "config.json").read_text())
    del text["architectures"]
    raw = {"architectures": [wrapper], "model_type": family, "text_config": text}
    (directory / "config.json").write_text(json.dumps(raw))
    (directory / "generation_config.json").unlink()
    loaded, weights = load(directory, tokenizer=False)
    assert loaded.config == policy.config and loaded.end_ids == (1,)
    assert_same(weights, params)
    extra["model.stranger"] = np.zeros(3, np.float32)
    save_file({**tensors, **extra}, directory / SINGLE_FILE, {"format": "pt"})
    with pytest.raises(ValueError, match=r"unused tensor model\.stranger"):
        load(directory, tokenizer=False)


def test_convolution_layout_by_hand(tmp_path):
    """Torch has [channels, 1, width]; the kernel is [width, channels]."""
    policy, params = family_policy("qwen3_5")
    tensors = load_file(save_hf(tmp_path / "model", policy, params) / SINGLE_FILE)
    stored = tensors["model.layers.1.linear_attn.conv1d.weight"]
    kernel = params["layers"]["linear"]["conv"]["kernel"]
    channels = 2 * 6 + 2 * 4
    assert stored.shape == (channels, 1, 4) and kernel.shape == (2, 4, channels)
    assert stored[5, 0, 3] == kernel[1, 3, 5]


def test_shards_are_written_and_read(tmp_path, policy, params):
    """Files of the size asked for, named and indexed as transformers does."""
    directory = save_hf(tmp_path / "model", policy, params, shard_bytes=40_000)
    index = json.loads((directory / INDEX_FILE).read_text())
    files = sorted(set(index["weight_map"].values()))
    assert len(files) > 2 and not (directory / SINGLE_FILE).exists()
    assert files[0] == f"model-00001-of-{len(files):05}.safetensors"
    sizes = [sum(array.nbytes for array in load_file(directory / f).values()) for f in files]
    largest = 4 * policy.config.vocab_size * policy.config.hidden_size
    assert all(size <= 40_000 or size == largest for size in sizes)
    assert sum(sizes) == index["metadata"]["total_size"]
    assert_same(load(directory)[1], params)


def test_stored_dtypes(saved, params):
    """float16 is widened to float32; whatever holds no weights is refused by name."""

    def halve(tensors):
        tensors.update({name: array.astype(np.float16) for name, array in tensors.items()})

    edit_tensors(saved / SINGLE_FILE, halve)
    policy, weights = load(saved)
    assert policy.config.param_dtype == "float32"
    np.testing.assert_array_equal(
        weights["norm"]["scale"], params["norm"]["scale"].astype(jnp.float16).astype(jnp.float32)
    )
    name = "model.layers.0.mlp.up_proj.weight"
    edit_tensors(
        saved / SINGLE_FILE, lambda tensors: tensors.update({name: np.ones((48, 32), np.int8)})
    )
    with pytest.raises(ValueError, match=rf"{name} in model\.safetensors is stored as I8"):
        load(saved)


def test_each_tensor_keeps_its_dtype_unless_one_is_chosen(tmp_path):
    """Qwen3.5 checkpoints are bfloat16 but for the decay and the norm of linear layers."""
    policy, params = family_policy("qwen3_5")
    directory = save_hf(tmp_path / "model", policy, params)

    def narrow(tensors):
        for name, array in tensors.items():
            if not name.endswith(("A_log", "linear_attn.norm.weight")):
                tensors[name] = array.astype(jnp.bfloat16)

    edit_tensors(directory / SINGLE_FILE, narrow)
    loaded, weights = load(directory, tokenizer=False)
    assert loaded.config.param_dtype == "bfloat16"
    linear = weights["layers"]["linear"]
    assert linear["delta"]["a_log"].dtype == linear["delta_norm"]["scale"].dtype == jnp.float32
    assert linear["conv"]["kernel"].dtype == linear["delta"]["dt_bias"].dtype == jnp.bfloat16
    again = load(save_hf(tmp_path / "again", loaded, weights), tokenizer=False)[1]
    assert_same(again, weights)
    assert jax.tree.map(lambda leaf: leaf.dtype, again) == jax.tree.map(
        lambda leaf: leaf.dtype, weights
    )
    chosen = load(directory, tokenizer=False, param_dtype="bfloat16")[1]
    assert {leaf.dtype for leaf in jax.tree.leaves(chosen)} == {jnp.dtype("bfloat16")}


@pytest.mark.parametrize("shape", [(3, 200), (130, 64), (2, 3, 70), (5,), (1, 1)])
def test_copies_in_strips_are_copies(shape):
    source = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    for dtype in (np.float32, jnp.bfloat16):
        target = np.zeros(shape[::-1], dtype)
        copy_strips(target, source.T)
        np.testing.assert_array_equal(target, source.T.astype(dtype))
        if dtype == np.float32:
            same = np.zeros(shape[::-1], np.float32)
            copy_strips(same, source.astype(jnp.bfloat16).T)
            np.testing.assert_array_equal(same, source.astype(jnp.bfloat16).T)


def test_tied_output_projection_must_be_the_embedding(saved):
    def edit(tensors):
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"] + 1

    edit_tensors(saved / SINGLE_FILE, edit)
    with pytest.raises(ValueError, match=r"lm_head\.weight in .* differs from the embedding"):
        load(saved)


def test_a_tensor_given_twice_is_refused(saved):
    def edit(tensors):
        tensors["model.language_model.norm.weight"] = tensors["model.norm.weight"]

    edit_tensors(saved / SINGLE_FILE, edit)
    with pytest.raises(ValueError, match="is there as model"):
        load(saved)


def test_shards_that_lack_what_the_index_says(saved):
    tensors = load_file(saved / SINGLE_FILE)
    (saved / SINGLE_FILE).rename(saved / "a.safetensors")
    weight_map = dict.fromkeys(tensors, "a.safetensors")
    (saved / INDEX_FILE).write_text(json.dumps({"weight_map": weight_map}))
    edit_tensors(saved / "a.safetensors", lambda tensors: tensors.pop("model.norm.weight"))
    with pytest.raises(ValueError, match=r"missing tensor model\.norm\.weight.*a\.safetensors"):
        load(saved)
    (saved / INDEX_FILE).write_text("[]")
    with pytest.raises(ValueError, match="is not a safetensors index"):
        load(saved)


def test_a_file_cut_off_names_its_first_lost_tensor(saved):
    """safetensors orders tensors by name within a dtype, so the last one is the final norm."""
    file = saved / SINGLE_FILE
    file.write_bytes(file.read_bytes()[:-4])
    with pytest.raises(
        ValueError, match=r"model\.safetensors is damaged.*model\.norm\.weight is cut"
    ):
        load(saved)


def test_adapters_and_strange_trees_are_not_saved(tmp_path, policy, params):
    full = params["layers"]["full"]
    adapter = {"lora_a": jnp.zeros((2, 32, 1)), "lora_b": jnp.zeros((2, 1, 32))}
    inside = {**full, "q_proj": {**full["q_proj"], **adapter}}
    with pytest.raises(ValueError, match="merge or detach first"):
        save_hf(tmp_path / "model", policy, {**params, "layers": {"full": inside}})
    without = {name: module for name, module in full.items() if name != "q_proj"}
    with pytest.raises(ValueError, match=r"q_proj.*absent instead of"):
        save_hf(tmp_path / "model", policy, {**params, "layers": {"full": without}})
    assert list(tmp_path.iterdir()) == []


MEMORY = """
import sys
from sepo_jax.policy import load

def memory(key):
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith(key))

load(sys.argv[1], tokenizer=False)  # whatever loading imports
before = memory("VmRSS")
load(sys.argv[2], tokenizer=False)
print((memory("VmHWM") - before) * 1024)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_loading_takes_little_more_than_one_copy(tmp_path):
    """Peak memory of a process grows by less than 1.35 copies of a model of 190 MB."""
    small = ModelConfig(vocab_size=8, hidden_size=8, num_layers=1, param_dtype="bfloat16")
    large = dataclasses.replace(
        small, vocab_size=12_000, hidden_size=1024, num_layers=9, intermediate_size=1600
    )
    large = dataclasses.replace(large, num_heads=8, num_kv_heads=8, head_dim=128)
    size = 0
    for name, config in (("small", small), ("large", large)):
        params = jax.tree.map(
            lambda leaf: np.ones(leaf.shape, leaf.dtype), parameter_shapes(config)
        )
        save_hf(tmp_path / name, Policy(config), params)
        size = sum(leaf.nbytes for leaf in jax.tree.leaves(params))
    assert 180e6 < size < 210e6
    command = [sys.executable, "-c", MEMORY, tmp_path / "small", tmp_path / "large"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    grown = int(done.stdout)
    assert 0.9 * size < grown < 1.35 * size
