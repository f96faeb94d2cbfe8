"""GGUF files: tensors, config and refusals, against files made by the gguf package's own writer."""

import json
import struct
import sys

import gguf
import jax
import numpy as np
import pytest
from gguf import MODEL_ARCH
from gguf import GGMLQuantizationType as Kind
from safetensors.numpy import load_file

from sepo_jax.policy import ModelConfig, Policy, RopeScaling, load, save_hf
from sepo_jax.policy.formats.gguf import open_gguf
from sepo_jax.policy.formats.weights import parameter_shapes

ARCH = {
    "llama": MODEL_ARCH.LLAMA,
    "qwen2": MODEL_ARCH.QWEN2,
    "qwen3": MODEL_ARCH.QWEN3,
    "gemma3": MODEL_ARCH.GEMMA3,
}
SIZES = {
    "vocab_size": 40,
    "hidden_size": 32,
    "num_layers": 6,
    "num_heads": 4,
    "num_kv_heads": 2,
    "head_dim": 8,
    "intermediate_size": 64,
    "max_positions": 256,
    "rms_norm_epsilon": 1e-5,
}
LLAMA3 = RopeScaling(
    kind="llama3",
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_positions=64,
)
CONFIGS = {
    "llama": ModelConfig(**SIZES, tie_embeddings=True, rope_theta=1e5),
    "llama_scaled": ModelConfig(**SIZES, tie_embeddings=False, rope_scaling=LLAMA3),
    "qwen2": ModelConfig(**SIZES, family="qwen2", attention_bias=True, tie_embeddings=False),
    "qwen3": ModelConfig(**SIZES, family="qwen3", query_key_norm=True),
    "gemma3": ModelConfig(
        **SIZES,
        family="gemma3",
        query_key_norm=True,
        norm_offset=1.0,
        post_norms=True,
        activation="gelu_tanh",
        embedding_scale=32**0.5,
        sliding_window=9,
        layer_types=("sliding",) * 5 + ("full",),
        local_rope_theta=1e4,
        rope_theta=1e6,
        rope_scaling=RopeScaling(kind="linear", factor=8.0),
    ),
}


def interleaved(rows, heads):
    """llama.cpp's order of the rows of one projection: halves (i, i + D/2) become pairs."""
    halves = rows.reshape(heads, 2, rows.shape[0] // heads // 2, -1)
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(rows.shape))


def write_metadata(writer, config):
    writer.add_context_length(config.max_positions)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_heads)
    writer.add_head_count_kv(config.num_kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_epsilon)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_eos_token_id(3)
    if config.sliding_window:
        writer.add_sliding_window(config.sliding_window)
    if config.rope_scaling and config.rope_scaling.kind == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(config.rope_scaling.factor)


def write_gguf(path, config, tensors, kind=Kind.F32, change=None):
    """A file as llama.cpp's converter writes it, of tensors by their Hugging Face names.

    Args:
      kind: quantisation of the matrices.
      change: function of the writer called before tensors are added.
    """
    names = gguf.get_tensor_name_map(ARCH[config.family], config.num_layers)
    writer = gguf.GGUFWriter(path, config.family)
    write_metadata(writer, config)
    if change:
        change(writer)
    for name, array in tensors.items():
        array = np.asarray(array, np.float32)
        heads = {"q_proj": config.num_heads, "k_proj": config.num_kv_heads}
        heads = heads.get(name.split(".")[-2])
        if heads and config.family == "llama":
            array = interleaved(array, heads)
        if name.endswith("norm.weight") and config.family == "gemma3":
            array = array + 1
        stored = kind if array.ndim == 2 else Kind.F32
        own = names.get_name(name, try_suffixes=(".weight", ".bias"))
        data = array if stored == Kind.F32 else gguf.quantize(array, stored)
        writer.add_tensor(own, data, raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A function name -> (config, Hugging Face directory, its tensors), made once each."""
    made = {}

    def make(name):
        if name not in made:
            config = CONFIGS[name]
            generator = np.random.default_rng(len(made))
            params = jax.tree.map(
                lambda leaf: generator.normal(0, 0.3, leaf.shape).astype(np.float32),
                parameter_shapes(config),
            )
            directory = tmp_path_factory.mktemp("model") / name
            save_hf(directory, Policy(config), params)
            made[name] = (config, directory, load_file(directory / "model.safetensors"))
        return made[name]

    return make


def divisors(config):
    """Of the rotary frequencies under Llama 3 scaling, as llama.cpp's converter stores them."""
    scaling, half = config.rope_scaling, config.head_dim // 2
    result = []
    for index in range(half):
        turns = scaling.original_max_positions * config.rope_theta ** (-index / half) / (2 * np.pi)
        if turns > scaling.high_freq_factor:
            result.append(1.0)
        elif turns < scaling.low_freq_factor:
            result.append(scaling.factor)
        else:
            share = (turns - scaling.low_freq_factor) / (
                scaling.high_freq_factor - scaling.low_freq_factor
            )
            result.append(1 / ((1 - share) / scaling.factor + share))
    return np.array(result, np.float32)


def test_rows_in_halves_rotate_as_rows_in_pairs_did():
    # q . k after rotation is what positions mean; both orders of rows must give the same products.
    heads, width, size = 3, 8, 5
    generator = np.random.default_rng(0)
    projection = {name: generator.normal(size=(heads * width, size)) for name in "qk"}
    inputs = {name: generator.normal(size=size) for name in "qk"}
    angles = 0.7 * 100.0 ** (-np.arange(width // 2) / (width // 2))

    def rotate(vector, angles, pairs):
        first, second = (vector[:, ::2], vector[:, 1::2]) if pairs else np.split(vector, 2, axis=1)
        turned = np.exp(1j * angles) * (first + 1j * second)
        return np.concatenate([turned.real, turned.imag], axis=1)

    products = []
    for pairs in (False, True):
        rows = {
            name: interleaved(array, heads) if pairs else array
            for name, array in projection.items()
        }
        query = rotate((rows["q"] @ inputs["q"]).reshape(heads, width), 3 * angles, pairs)
        key = rotate((rows["k"] @ inputs["k"]).reshape(heads, width), angles, pairs)
        products.append((query * key).sum(axis=1))
    np.testing.assert_allclose(products[0], products[1], rtol=1e-12)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_file_loads_as_the_checkpoint_it_was_made_of(name, checkpoint, tmp_path):
    config, directory, tensors = checkpoint(name)

    def change(writer):
        if name == "llama_scaled":
            writer.add_tensor("rope_freqs.weight", divisors(config))

    write_gguf(tmp_path / "model.gguf", config, tensors, change=change)
    policy, params = load(tmp_path / "model.gguf", tokenizer=False)
    expected_policy, expected = load(directory, tokenizer=False)
    assert policy.config == expected_policy.config == config
    assert policy.end_ids == (3,)
    # Subtracting the 1 that Gemma's norms are stored with costs the last bits.
    close = 1e-6 if name == "gemma3" else 0
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=close), params, expected
    )


@pytest.mark.parametrize("name", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_quantised_tensors_read_as_their_decoded_values(name, checkpoint, tmp_path):
    config, _, tensors = checkpoint("llama")
    write_gguf(tmp_path / "model.gguf", config, tensors, kind=Kind[name])
    opened = open_gguf(tmp_path / "model.gguf")
    plain = {"F16": "float16", "BF16": "bfloat16"}.get(name, "float32")
    step = {"F16": 2**-11, "BF16": 2**-8, "Q8_0": 2**-7}.get(name, 2**-3)  # of the largest entry
    for tensor, array in tensors.items():
        stored = opened.tensors[tensor]
        read = stored.read()
        assert stored.shape == read.shape == array.shape
        assert stored.dtype == str(read.dtype) == (plain if array.ndim == 2 else "float32")
        read = read.astype(np.float32)
        if array.ndim == 2:  # rows are quantised one by one, so their order does not matter
            again = gguf.dequantize(gguf.quantize(array, Kind[name]), Kind[name])
            np.testing.assert_array_equal(read, again)
        assert np.abs(read - array).max() <= step * np.abs(array).max()
    assert opened.quantizations[name] == sum(array.ndim == 2 for array in tensors.values())


def write_raw(path, kind, data):
    """A file whose `output.weight` holds the given bytes in a type that has no encoder."""
    config = CONFIGS["llama"]

    def change(writer):
        writer.add_tensor("output.weight", data, raw_dtype=kind)

    write_gguf(path, config, {"model.embed_tokens.weight": np.zeros((40, 32))}, change=change)


def test_a_k_quant_block_by_hand(tmp_path):
    # Q4_K: 256 entries in 8 groups of 32; entry = d * scale[group] * nibble - dmin * min[group].
    # Groups 2j and 2j + 1 take the low and high nibbles of bytes 32 j to 32 j + 31 behind the head
    # of two float16 (d, dmin) and twelve bytes: scales 0-3, minima 0-3, then for groups 4-7 a byte
    # with the scale in the low and the minimum in the high nibble.
    head = np.array([0.5, 0.25], np.float16).tobytes()
    scales = bytes([1, 2, 3, 4, 0, 1, 2, 3, 0x05, 0x16, 0x27, 0x38])
    block = np.frombuffer(head + scales + bytes([0x21] * 128), np.uint8)
    scale, minimum = np.array([1, 2, 3, 4, 5, 6, 7, 8]), np.array([0, 1, 2, 3, 0, 1, 2, 3])
    expected = 0.5 * scale * np.array([1, 2] * 4) - 0.25 * minimum
    write_raw(tmp_path / "model.gguf", Kind.Q4_K, np.stack([block, block]))
    stored = open_gguf(tmp_path / "model.gguf").tensors["lm_head.weight"]
    assert stored.shape == (2, 256)
    np.testing.assert_array_equal(stored.read(), np.repeat(expected, 32)[None].repeat(2, axis=0))


def test_every_read_gives_an_array_of_its_own(checkpoint, tmp_path):
    config, _, tensors = checkpoint("llama")
    write_gguf(tmp_path / "model.gguf", config, tensors)
    stored = open_gguf(tmp_path / "model.gguf").tensors["model.norm.weight"]
    stored.read()[:] = 0
    np.testing.assert_array_equal(stored.read(), tensors["model.norm.weight"])


def test_end_ids_of_texts_turns_and_messages_are_all_taken(checkpoint, tmp_path):
    config, _, tensors = checkpoint("llama")
    write_gguf(tmp_path / "model.gguf", config, tensors, change=lambda w: w.add_eot_token_id(7))
    assert open_gguf(tmp_path / "model.gguf").config["eos_token_id"] == [3, 7]


def test_a_model_without_output_projection_is_tied(checkpoint, tmp_path):
    for name in ("llama", "llama_scaled"):
        config, _, tensors = checkpoint(name)
        write_gguf(tmp_path / f"{name}.gguf", config, tensors)
        opened = open_gguf(tmp_path / f"{name}.gguf")
        assert opened.config["tie_word_embeddings"] is config.tie_embeddings
        assert ("lm_head.weight" in opened.tensors) is not config.tie_embeddings


def refusal(path):
    with pytest.raises(ValueError) as caught:
        open_gguf(path)
    message = str(caught.value)
    assert str(path) in message and "\n" not in message
    return message


def test_absent_and_foreign_files_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"absent\.gguf"):
        open_gguf(tmp_path / "absent.gguf")
    for content in (b"", b"GG", b"PK\x03\x04 a zip file", json.dumps({"a": 1}).encode()):
        (tmp_path / "model.gguf").write_bytes(content)
        assert "no GGUF file" in refusal(tmp_path / "model.gguf")


def test_other_versions_and_byte_orders_are_refused(tmp_path):
    for version in (struct.pack("<I", 1), struct.pack("<I", 9)):
        (tmp_path / "model.gguf").write_bytes(b"GGUF" + version + bytes(64))
        assert "version" in refusal(tmp_path / "model.gguf")
    (tmp_path / "model.gguf").write_bytes(b"GGUF" + struct.pack(">I", 3) + bytes(64))
    assert "byte order" in refusal(tmp_path / "model.gguf")


def test_a_file_cut_off_anywhere_is_refused(checkpoint, tmp_path):
    config, _, tensors = checkpoint("llama")
    write_gguf(tmp_path / "whole.gguf", config, tensors)
    content = (tmp_path / "whole.gguf").read_bytes()
    last = open_gguf(tmp_path / "whole.gguf")
    assert last.tensors.keys() == tensors.keys()
    path = tmp_path / "model.gguf"
    for size in (*range(4, 600, 37), 2000):
        path.write_bytes(content[:size])
        assert "cut off" in refusal(path)
    path.write_bytes(content[:-200])
    message = refusal(path)
    assert "tensor blk.5." in message or "tensor output_norm" in message  # the last ones written


def test_damaged_heads_are_refused(checkpoint, tmp_path):
    config, _, tensors = checkpoint("llama")
    path = tmp_path / "model.gguf"
    write_gguf(path, config, tensors)
    content = bytearray(path.read_bytes())
    for position, value in ((8, 2**40), (16, 2**40), (24, 2**62)):  # counts, length of a text
        damaged = bytearray(content)
        damaged[position : position + 8] = struct.pack("<Q", value)
        path.write_bytes(damaged)
        assert "damaged or cut off" in refusal(path)


def test_unknown_architectures_and_settings_are_refused(checkpoint, tmp_path):
    config, _, tensors = checkpoint("llama")
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llamb")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    message = refusal(path)
    assert "Did you mean 'llama'?" in message and "gemma3, llama, qwen2, qwen3" in message
    for change, expected in (
        (lambda writer: writer.add_expert_count(8), "experts"),
        (lambda writer: writer.add_rope_dimension_count(4), "4 of 8"),
        (lambda writer: writer.add_rope_scaling_type(gguf.RopeScalingType.LONGROPE), "factor"),
        (lambda writer: writer.add_uint16("split.count", 3), "3 parts"),
        (
            lambda writer: writer.add_tensor("rope_freqs.weight", np.arange(1, 5, dtype="f4")),
            "rope_freqs.weight",
        ),
    ):
        write_gguf(path, config, tensors, change=change)
        assert expected in refusal(path)


def test_missing_metadata_is_named(tmp_path):
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_head_count(4)
    writer.add_embedding_length(32)
    writer.add_tensor("token_embd.weight", np.zeros((4, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert "lacks the metadata llama.block_count" in refusal(path)


def test_a_quantisation_without_decoder_is_refused(tmp_path):
    write_raw(tmp_path / "model.gguf", Kind.Q8_K, np.zeros((2, 292), np.uint8))
    message = refusal(tmp_path / "model.gguf")
    assert "output.weight" in message and "Q8_K" in message


def test_tensors_that_the_model_does_not_have_are_named(checkpoint, tmp_path):
    config, _, tensors = checkpoint("llama")
    path = tmp_path / "model.gguf"
    extra = lambda writer: writer.add_tensor("blk.0.extra.weight", np.zeros(4, "f4"))  # noqa: E731
    kept = {name: array for name, array in tensors.items() if name != "model.norm.weight"}
    write_gguf(path, config, kept, change=extra)
    with pytest.raises(ValueError) as caught:
        load(path, tokenizer=False)
    message = str(caught.value)
    assert "blk.0.extra.weight" in message and "model.norm.weight" in message


def test_without_the_package_one_line_says_how_to_get_it(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(ImportError, match=r"pip install 'sepo_jax\[gguf\]'"):
        open_gguf(tmp_path / "model.gguf")
