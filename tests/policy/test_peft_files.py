"""Adapters go to peft's files and back; the peft library agrees where it is installed."""

import dataclasses
import json
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from sepo_jax.policy import ModelConfig, Policy, load
from sepo_jax.policy.config import LoraConfig
from sepo_jax.policy.formats.hugging_face import read_config
from sepo_jax.policy.formats.peft_files import export, load_peft, save_peft
from sepo_jax.policy.formats.weights import parameter_shapes
from sepo_jax.policy.lora import attach, init_adapter, merge

GOLDEN = Path(__file__).with_name("golden_peft")
WEIGHTS = "adapter_model.safetensors"
SETTINGS = "adapter_config.json"
KINDS = {
    "llama": {"num_layers": 3},
    "qwen3_5": {
        "num_layers": 5,
        "layer_types": ("linear", "full", "linear", "linear", "full"),
        "linear_key_heads": 2,
        "linear_value_heads": 4,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
        "linear_conv_width": 4,
        "attention_gate": True,
    },
    "gemma4": {
        "num_layers": 6,
        "layer_types": ("sliding", "full") * 3,
        "sliding_window": 4,
        "num_kv_shared_layers": 2,
        "full_head_dim": 8,
        "full_kv_heads": 1,
        "per_layer_embedding_size": 6,
        "per_layer_vocab_size": 31,
    },
}


def make_config(family="llama", **lora) -> ModelConfig:
    return ModelConfig(
        vocab_size=31,
        hidden_size=16,
        num_heads=4,
        num_kv_heads=2,
        intermediate_size=20,
        family=family,
        lora=LoraConfig(**{"rank": 3, "alpha": 5.0, "targets": ("all",), **lora}),
        **KINDS[family],
    )


def random_adapter(config, seed=0):
    """An adapter of `config` with random entries, by NumPy, which compiles nothing."""
    shapes = parameter_shapes(config)
    leaves = jax.eval_shape(lambda key: init_adapter(config, shapes, key), jax.random.key(0))
    generator = np.random.default_rng(seed)
    return jax.tree.map(
        lambda leaf: jnp.asarray(generator.normal(size=leaf.shape).astype(leaf.dtype)), leaves
    )


def equal(left, right):
    assert jax.tree.structure(left) == jax.tree.structure(right)
    jax.tree.map(np.testing.assert_array_equal, left, right)


@pytest.fixture
def saved(tmp_path):
    """A directory that `save_peft` wrote for two targets, and its config."""
    config = make_config(targets=("q_proj", "down_proj"))
    directory = tmp_path / "adapter"
    save_peft(directory, Policy(config), random_adapter(config), "some/base")
    return directory, config


# Identities


@pytest.mark.parametrize("path", ["model", "model.language_model"])
@pytest.mark.parametrize("family", KINDS)
def test_round_trip_of_every_kind(family, path, tmp_path):
    config = make_config(family, rank_stabilised=family == "gemma4")
    adapter = random_adapter(config)
    save_peft(tmp_path / "out", Policy(config), adapter, "base", decoder_path=path)
    lora, restored = load_peft(tmp_path / "out", dataclasses.replace(config, lora=None))
    equal(restored, adapter)
    assert (lora.rank, lora.alpha, lora.scale) == (3, 5.0, config.lora.scale)
    named = dataclasses.replace(config, lora=lora)
    equal(random_adapter(named), adapter)  # the targets read stand for the same places


@settings(deadline=None, max_examples=8)
@given(
    targets=st.sets(st.sampled_from(["q_proj", "v_proj", "o_proj", "up_proj"]), min_size=1),
    rank=st.integers(1, 4),
    alpha=st.floats(0.5, 64, width=32),
)
def test_round_trip_of_any_settings(tmp_path_factory, targets, rank, alpha):
    directory = tmp_path_factory.mktemp("peft") / "out"
    config = make_config(targets=tuple(sorted(targets)), rank=rank, alpha=alpha)
    adapter = random_adapter(config)
    save_peft(directory, Policy(config), adapter, "base")
    lora, restored = load_peft(directory, config)
    assert (lora.rank, lora.alpha, set(lora.targets)) == (rank, alpha, targets)
    equal(restored, adapter)


def test_exported_directories_hold_the_merged_weights_and_the_adapter(tmp_path):
    policy, params, adapter, _ = golden()
    export(tmp_path / "merged", policy, params, adapter, form="merged")
    plain, merged = load(tmp_path / "merged", tokenizer=False)
    assert plain.config == dataclasses.replace(policy.config, lora=None)
    equal(merged, merge(policy.config, attach(params, adapter)))
    export(tmp_path / "apart", policy, params, adapter, form="adapter", base_name="tiny")
    equal(load_peft(tmp_path / "apart", policy.config)[1], adapter)


# Known answers


def test_names_shapes_and_settings(saved):
    directory, config = saved
    tensors = load_file(directory / WEIGHTS)
    prefix = "base_model.model.model.layers"
    assert {name: array.shape for name, array in tensors.items()} == {
        f"{prefix}.{layer}.{module}.{matrix}.weight": shape
        for layer in range(3)
        for module, matrix, shape in [
            ("self_attn.q_proj", "lora_A", (3, 16)),
            ("self_attn.q_proj", "lora_B", (16, 3)),
            ("mlp.down_proj", "lora_A", (3, 20)),
            ("mlp.down_proj", "lora_B", (16, 3)),
        ]
    }
    adapter = random_adapter(config)["layers"]["full"]["down_proj"]
    name = f"{prefix}.2.mlp.down_proj.lora_A.weight"
    np.testing.assert_array_equal(tensors[name], np.asarray(adapter["lora_a"][2]).T)
    written = json.loads((directory / SETTINGS).read_text())
    assert written["target_modules"] == ["down_proj", "q_proj"]
    assert (written["peft_type"], written["r"], written["lora_alpha"]) == ("LORA", 3, 5)
    assert written["base_model_name_or_path"] == "some/base"
    assert all(file.stat().st_mode & 0o777 == 0o644 for file in directory.iterdir())


def golden():
    """The golden policy with its adapter, the parameters of both, and the tokens."""
    policy, params = load(GOLDEN / "base", tokenizer=False)
    lora, adapter = load_peft(GOLDEN / "adapter", policy.config)
    config = dataclasses.replace(policy.config, lora=lora)
    tokens = jnp.asarray(load_file(GOLDEN / "logits.safetensors")["tokens"], jnp.int32)
    return dataclasses.replace(policy, config=config), params, adapter, tokens


@partial(jax.jit, static_argnums=0)
def last_logits(policy, params, tokens):
    """What `prefill` says comes after whole rows."""
    rows, width = tokens.shape
    cache = policy.init_cache(rows, width)
    return policy.prefill(params, cache, tokens, jnp.full(rows, width))[1]


def assert_logits(policy, params, tokens, expected, plain_row, score):
    """Scores of every token and the last logits of `prefill` are those of `expected` [B, T, V]."""
    tokens = jnp.asarray(tokens, jnp.int32)
    logp = np.asarray(jax.nn.log_softmax(expected, axis=-1))
    chosen = np.take_along_axis(logp[:, :-1], np.asarray(tokens)[:, 1:, None], axis=-1)[..., 0]
    result = score(policy, params, *plain_row(tokens))
    np.testing.assert_allclose(result.logp, chosen, atol=1e-5)
    last = last_logits(policy, params, tokens)
    np.testing.assert_allclose(last, expected[:, -1], atol=1e-5)


def test_golden_adapter_of_peft_gives_its_logits(plain_row, score):
    policy, params, adapter, tokens = golden()
    assert policy.config.lora == LoraConfig(3, 5.0, ("q_proj", "v_proj", "down_proj"))
    expected = load_file(GOLDEN / "logits.safetensors")
    attached = attach(params, adapter)
    assert_logits(policy, attached, tokens, expected["adapted"], plain_row, score)
    assert_logits(policy, params, tokens, expected["base"], plain_row, score)
    assert np.abs(expected["adapted"] - expected["base"]).max() > 0.5


def test_adapters_of_other_towers_are_passed_over(saved):
    directory, config = saved
    tensors = load_file(directory / WEIGHTS)
    inner = {
        name.replace("model.layers", "model.language_model.layers"): array
        for name, array in tensors.items()
    }
    other = "base_model.model.model.vision_tower.layers.0.self_attn.q_proj.lora_A.weight"
    inner[other] = np.zeros((3, 4), np.float32)
    rewrite(directory, inner)
    gemma = dataclasses.replace(config, family="gemma3")
    equal(load_peft(directory, gemma)[1], random_adapter(config))


# The peft library itself


@pytest.fixture(scope="module")
def peft_cases():
    pytest.importorskip("torch")
    pytest.importorskip("peft")
    from policy import make_golden_peft

    return make_golden_peft


def test_peft_opens_our_adapter(peft_cases, tmp_path, plain_row, score):
    import peft

    model = peft_cases.tiny_llama(seed=3)
    model.save_pretrained(tmp_path / "base")
    policy, params = load(tmp_path / "base", tokenizer=False)
    lora = LoraConfig(rank=4, alpha=6.0, targets=("all",), rank_stabilised=True)
    policy = dataclasses.replace(policy, config=dataclasses.replace(policy.config, lora=lora))
    adapter = jax.tree.map(lambda leaf: 0.2 * leaf, random_adapter(policy.config))
    save_peft(tmp_path / "adapter", policy, adapter, str(tmp_path / "base"))
    plain = peft_cases.logits_of(model)
    wrapped = peft.PeftModel.from_pretrained(model, str(tmp_path / "adapter")).eval()
    expected = peft_cases.logits_of(wrapped)
    assert np.abs(expected - plain).max() > 0.1
    assert_logits(policy, attach(params, adapter), peft_cases.TOKENS, expected, plain_row, score)


@pytest.mark.parametrize(
    "targets", ["all-linear", r".*\.self_attn\.(k|o)_proj", ["gate_proj", "self_attn.q_proj"]]
)
def test_we_open_what_peft_wrote(targets, peft_cases, tmp_path, plain_row, score):
    model = peft_cases.tiny_llama(seed=4)
    model.save_pretrained(tmp_path / "base")
    policy, params = load(tmp_path / "base", tokenizer=False)
    wrapped = peft_cases.adapted(model, target_modules=targets, use_rslora=True)
    wrapped.peft_config["default"].base_model_name_or_path = str(tmp_path / "base")
    wrapped.save_pretrained(tmp_path / "adapter")
    lora, adapter = load_peft(tmp_path / "adapter", policy.config)
    assert lora.rank_stabilised
    policy = dataclasses.replace(policy, config=dataclasses.replace(policy.config, lora=lora))
    expected = peft_cases.logits_of(wrapped)
    assert_logits(policy, attach(params, adapter), peft_cases.TOKENS, expected, plain_row, score)


@pytest.mark.filterwarnings("error:Found missing adapter keys")
@pytest.mark.parametrize("case", ["qwen3_5-grouped", "gemma4-e4b", "gemma4-vision"])
def test_every_module_is_one_of_transformers(case, peft_cases, tmp_path):
    """peft finds a place for each matrix, misses none, and hands the same ones back."""
    import peft
    from policy.parity_cases import CASES
    from policy.parity_models import build_model

    model = build_model(CASES[case], seed=0)
    model.save_pretrained(tmp_path / "base")
    lora = LoraConfig(rank=2, alpha=4.0, targets=("all",))
    config = dataclasses.replace(read_config(tmp_path / "base"), lora=lora)
    adapter = random_adapter(config)
    path = "model.language_model" if CASES[case].vision else "model"
    out = tmp_path / "adapter"
    save_peft(out, Policy(config), adapter, str(tmp_path / "base"), decoder_path=path)
    wrapped = peft.PeftModel.from_pretrained(model, str(out))
    wrapped.save_pretrained(tmp_path / "again")
    equal(load_peft(tmp_path / "again", config)[1], adapter)


# Bad input


def rewrite(directory, tensors):
    save_file(tensors, str(directory / WEIGHTS), {"format": "pt"})


def change_settings(directory, **changes):
    file = directory / SETTINGS
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def test_every_complaint_at_once(saved):
    directory, config = saved
    tensors = load_file(directory / WEIGHTS)
    prefix = "base_model.model.model.layers"
    del tensors[f"{prefix}.1.self_attn.q_proj.lora_B.weight"]
    tensors[f"{prefix}.0.mlp.down_proj.lora_A.weight"] = np.zeros((2, 20), np.float32)
    tensors[f"{prefix}.9.self_attn.q_proj.lora_A.weight"] = np.zeros((3, 16), np.float32)
    tensors["base_model.model.lm_head.lora_A.weight"] = np.zeros((3, 16), np.float32)
    rewrite(directory, tensors)
    with pytest.raises(ValueError) as caught:
        load_peft(directory, config)
    message = str(caught.value)
    for part in (
        "missing lora_b of layers.1.self_attn.q_proj",
        "layers.0.mlp.down_proj.lora_A.weight has shape (2, 20)",
        "(3, 20)",
        "unused tensor base_model.model.model.layers.9.self_attn.q_proj.lora_A.weight",
        "unused tensor base_model.model.lm_head.lora_A.weight",
    ):
        assert part in message
    assert message.count("\n") == 4


def test_target_without_any_tensor_is_missing(saved):
    directory, config = saved
    change_settings(directory, target_modules=["q_proj", "down_proj", "o_proj"])
    with pytest.raises(ValueError, match=r"missing lora_a of layers\.0\.self_attn\.o_proj"):
        load_peft(directory, config)


@pytest.mark.parametrize(
    "change",
    [
        {"use_dora": True},
        {"rank_pattern": {"q_proj": 8}},
        {"modules_to_save": ["lm_head"]},
        {"bias": "all"},
        {"layers_to_transform": [0]},
        {"fan_in_fan_out": True},
        {"init_lora_weights": "pissa"},
        {"an_option_to_come": 3},
    ],
    ids=lambda change: next(iter(change)),
)
def test_unsupported_options_are_named(change, saved):
    directory, config = saved
    change_settings(directory, **change)
    with pytest.raises(ValueError, match=next(iter(change))):
        load_peft(directory, config)


def test_unreadable_directories(saved, tmp_path):
    directory, config = saved
    with pytest.raises(FileNotFoundError, match=SETTINGS):
        load_peft(tmp_path / "nothing", config)
    change_settings(directory, peft_type="IA3")
    with pytest.raises(ValueError, match="IA3"):
        load_peft(directory, config)
    change_settings(directory, peft_type="LORA", r=None)
    with pytest.raises(ValueError, match="lacks"):
        load_peft(directory, config)
    change_settings(directory, r=3)
    (directory / WEIGHTS).write_bytes(b"")
    with pytest.raises(ValueError, match="damaged"):
        load_peft(directory, config)
    (directory / WEIGHTS).unlink()
    with pytest.raises(FileNotFoundError, match=WEIGHTS):
        load_peft(directory, config)
    (directory / SETTINGS).write_text("{")
    with pytest.raises(ValueError, match="no JSON object"):
        load_peft(directory, config)


def test_adapter_of_another_model(saved):
    directory, config = saved
    rewrite(directory, {"base_model.model.transformer.h.0.attn.lora_A.weight": np.zeros((3, 4))})
    change_settings(directory, target_modules="all-linear")
    with pytest.raises(ValueError, match="adapts no projection"):
        load_peft(directory, config)


def test_existing_directory_stays(saved):
    directory, config = saved
    file = directory / WEIGHTS
    before = file.read_bytes()
    with pytest.raises(FileExistsError, match="overwrite=True"):
        save_peft(directory, Policy(config), random_adapter(config, 1), "base")
    assert file.read_bytes() == before
    save_peft(directory, Policy(config), random_adapter(config, 1), "base", overwrite=True)
    assert file.read_bytes() != before
    assert [path.name for path in directory.parent.iterdir()] == ["adapter"]


def test_adapter_that_is_not_the_configs(tmp_path):
    config = make_config(targets=("q_proj", "down_proj"))
    adapter = random_adapter(config)
    other = make_config(targets=("q_proj",))
    with pytest.raises(ValueError, match=r"layers\.full\.down_proj"):
        save_peft(tmp_path / "out", Policy(other), adapter, "base")
    other = make_config(targets=("q_proj", "down_proj"), rank=2)
    with pytest.raises(ValueError, match=r"rank \[3\]"):
        save_peft(tmp_path / "out", Policy(other), adapter, "base")
    assert not list(tmp_path.iterdir())


def test_export_forms(tmp_path):
    config = make_config()
    with pytest.raises(ValueError, match="merged"):
        export(tmp_path / "out", Policy(config), {}, form="marged")
    with pytest.raises(ValueError, match="no adapter"):
        export(tmp_path / "out", Policy(config), {}, form="adapter")
    assert not list(tmp_path.iterdir())
