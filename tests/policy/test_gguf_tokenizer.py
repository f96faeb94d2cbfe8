"""Tokenizers from GGUF metadata: where text is cut, special tokens, and ids back to text."""

import importlib.util
import json
from pathlib import Path

import gguf
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sepo_jax.policy import load_tokenizer, train_tokenizer
from sepo_jax.policy.formats.gguf_header import read_header
from sepo_jax.policy.formats.gguf_tokenizer import CONTROL, UNUSED, USER_DEFINED, build_tokenizer

PATH = Path("model.gguf")
SPECIAL = ("<|end|>", "<|start|>", "<think>")
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
TEXTS = ["The 12 cards cost 345 coins; it's 1999.\n\n  Don't fold!", "a1b22 c333, d4444"] * 3


def metadata(pre="smollm", **changes):
    """What a GGUF file says of a small vocabulary; `<think>` is user-defined, two rows pad."""
    made = json.loads(
        train_tokenizer(
            TEXTS, 300, SPECIAL, end_token="<|end|>", pad_token="<|end|>"
        ).backend_tokenizer.to_str()
    )["model"]
    tokens = sorted(made["vocab"], key=made["vocab"].get)
    kinds = {"<|end|>": CONTROL, "<|start|>": CONTROL, "<think>": USER_DEFINED}
    entries = {
        "model": "gpt2",
        "pre": pre,
        "tokens": [*tokens, "[PAD0]", "[PAD1]"],
        "token_type": [kinds.get(token, 1) for token in tokens] + [UNUSED] * 2,
        "merges": [" ".join(pair) for pair in made["merges"]],
        "bos_token_id": tokens.index("<|start|>"),
        "eos_token_id": tokens.index("<|end|>"),
        "padding_token_id": tokens.index("<|end|>"),
        **changes,
    }
    entries = {f"tokenizer.ggml.{key}": value for key, value in entries.items()}
    entries |= {"tokenizer.chat_template": TEMPLATE, "general.architecture": "llama"}
    return entries | {"llama.context_length": 77}


def pieces(pre, text):
    """Where `text` is cut before merging, with spaces and line ends as they were."""
    cut = build_tokenizer(PATH, metadata(pre)).backend_tokenizer.pre_tokenizer
    return [text[start:end] for _, (start, end) in cut.pre_tokenize_str(text)]


def test_each_rule_cuts_text_where_its_models_were_trained_to():
    text = "I'm 12345 x\n\n  y"
    # One space goes with what follows; digits alone, and then the space before them stays behind.
    assert pieces("gpt-2", text) == ["I", "'m", " 12345", " x", "\n\n ", " y"]
    assert pieces("smollm", text) == ["I", "'m", " ", "1", "2", "3", "4", "5", " x", "\n\n ", " y"]
    # Line ends are pieces of their own; numbers come in threes (Llama 3) or alone (Qwen).
    assert pieces("llama-bpe", text) == ["I", "'m", " ", "123", "45", " x", "\n\n", " ", " y"]
    assert pieces("qwen2", text) == ["I", "'m", " ", *"12345", " x", "\n\n", " ", " y"]
    # A combining mark (Devanagari sign i) belongs to the letter for Qwen 3.5 alone.
    assert pieces("qwen35", "क\u093fक") == ["क\u093fक"]
    assert pieces("qwen2", "क\u093fक") == ["क", "\u093fक"]


def test_special_tokens_and_template_come_along():
    tokenizer = build_tokenizer(PATH, metadata())
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<|start|>", "<|end|>")
    assert tokenizer.pad_token == "<|end|>" and tokenizer.unk_token is None
    assert tokenizer.chat_template == TEMPLATE and tokenizer.model_max_length == 77
    ids = tokenizer("1<|start|>2<think>3<|end|>").input_ids
    assert tokenizer.convert_ids_to_tokens(ids) == [
        "1",
        "<|start|>",
        "2",
        "<think>",
        "3",
        "<|end|>",
    ]
    # Thoughts are text that a reply may hold, control tokens are not.
    assert tokenizer.decode(ids, skip_special_tokens=True) == "12<think>3"


def test_rows_that_pad_the_embedding_are_no_tokens():
    entries = metadata()
    assert len(build_tokenizer(PATH, entries)) == len(entries["tokenizer.ggml.tokens"]) - 2


def test_a_start_token_is_added_where_the_file_or_the_family_says_so():
    for pre, changes, expected in (
        ("smollm", {}, False),
        ("smollm", {"add_bos_token": True}, True),
        ("llama-bpe", {}, True),
        ("llama-bpe", {"add_bos_token": False}, False),
    ):
        tokenizer = build_tokenizer(PATH, metadata(pre, **changes))
        starts = tokenizer("cards").input_ids[0] == tokenizer.bos_token_id
        assert starts is expected, (pre, changes)
        plain = tokenizer("cards", add_special_tokens=False).input_ids
        assert tokenizer.bos_token_id not in plain


ONCE = {pre: build_tokenizer(PATH, metadata(pre)) for pre in ("smollm", "llama-bpe", "gpt-2")}


@pytest.mark.parametrize("pre", ONCE)
@settings(deadline=None, max_examples=60)
@given(text=st.text(alphabet=st.sampled_from("a1 2\n\t.'é½²٣日🙂İ\u0301<|")))
def test_text_comes_back(pre, text):
    ids = ONCE[pre](text, add_special_tokens=False).input_ids
    assert ONCE[pre].decode(ids) == text


def test_a_saved_tokenizer_is_the_same(tmp_path):
    for pre, tokenizer in ONCE.items():
        tokenizer.save_pretrained(tmp_path / pre)
        again = load_tokenizer(tmp_path / pre)
        for text in [*TEXTS, "<|start|>7<think>\n", "½ 12²"]:
            assert again(text).input_ids == tokenizer(text).input_ids
        assert again.chat_template == TEMPLATE and again.eos_token_id == tokenizer.eos_token_id


@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_sentencepiece_vocabularies_are_taken_too(architecture, tmp_path):
    """Pieces with scores, no merges, bytes for what the vocabulary lacks."""
    path = tmp_path / "model.gguf"
    pieces = ["▁", "a", "c", "r", "d", "s", "ca", "rd", "card", "cards", "▁cards"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * 259 + [-1.0 - index for index in range(len(pieces))][::-1])
    writer.add_token_types([2, CONTROL, CONTROL, *[6] * 256, *[1] * len(pieces)])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_chat_template(TEMPLATE)
    for add in (writer.add_context_length, writer.add_embedding_length, writer.add_block_count):
        add(32)
    writer.add_head_count(4)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    if importlib.util.find_spec("torch") is None:  # transformers reads these with it
        with pytest.raises(ModuleNotFoundError, match="pip install torch, or pass a tokenizer"):
            build_tokenizer(path, read_header(path).metadata)
        pytest.skip("without torch there is its hint alone")
    tokenizer = build_tokenizer(path, read_header(path).metadata)
    ids = tokenizer("cards 1\nZoë").input_ids
    expected = "<s>", "▁cards" if architecture == "llama" else "cards", "▁", "<0x31>", "<0x0A>"
    assert tokenizer.convert_ids_to_tokens(ids)[:5] == list(expected)
    assert tokenizer.decode(ids, skip_special_tokens=True) == "cards 1\nZoë"
    assert tokenizer.eos_token_id == 2 and tokenizer.chat_template == TEMPLATE


def test_what_cannot_be_built_is_refused():
    absent = metadata()
    del absent["tokenizer.ggml.pre"], absent["tokenizer.ggml.merges"]
    for entries, expected in (
        ({}, "carries no tokenizer"),
        (metadata(model="bert"), "unknown tokenizer.ggml.model 'bert'"),
        (metadata("qwen"), "Did you mean 'qwen2'?"),
        (absent, "lacks tokenizer.ggml.merges, tokenizer.ggml.pre"),
    ):
        with pytest.raises(ValueError) as caught:
            build_tokenizer(PATH, entries)
        message = str(caught.value)
        assert expected in message and "model.gguf" in message and "tokenizer=" in message
