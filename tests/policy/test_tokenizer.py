"""Tokenizers trained on a text: lossless, repeatable, saved and loaded; several end ids."""

import types

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sepo_jax.policy import end_token_ids, load_tokenizer, train_tokenizer
from sepo_jax.policy.tokenizer import SPECIAL_TOKENS

TEXT = ["PASS or BET, FOLD or CALL"] * 4


@settings(deadline=None, max_examples=50)
@given(text=st.text(max_size=40))
def test_any_text_survives(tokenizer, text):
    """Bytes never seen in training encode and decode to the same text."""
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.decode(ids, clean_up_tokenization_spaces=False) == text
    assert all(0 <= token < len(tokenizer) for token in ids)


def test_sizes_and_special_ids(tokenizer):
    assert len(tokenizer) <= 320
    assert [tokenizer.convert_tokens_to_ids(name) for name in SPECIAL_TOKENS] == [0, 1, 2, 3, 4]
    assert tokenizer.eos_token_id == 1 and tokenizer.pad_token_id == 0
    word = train_tokenizer(TEXT, 300).encode("PASS", add_special_tokens=False)
    assert len(word) == 1, "a frequent word is one token"


def test_same_text_same_tokenizer(tmp_path):
    """Trained twice, and once saved and loaded: the same ids, template and special tokens."""
    first, second = train_tokenizer(TEXT, 300), train_tokenizer(TEXT, 300)
    assert first.get_vocab() == second.get_vocab()
    first.save_pretrained(str(tmp_path))
    loaded = load_tokenizer(tmp_path)
    sample = "BET, CALL<|end|> ünknown"
    assert loaded.encode(sample) == second.encode(sample) == first.encode(sample)
    assert loaded.chat_template == first.chat_template
    assert (loaded.eos_token_id, loaded.pad_token_id) == (1, 0)


def test_digits_of_their_own():
    """Numbers that are frequent in the text are spelled like any other; words are merged still."""
    text = ["pays +0.25 and +0.25"] * 20
    merged = train_tokenizer(text, 300)
    single = train_tokenizer(text, 300, individual_digits=True)

    def pieces(tokenizer, number):
        ids = tokenizer.encode(number, add_special_tokens=False)
        return [tokenizer.decode([token]) for token in ids]

    assert len(pieces(merged, "0.25")) < 4
    for number in ("0.25", "3.87"):
        assert pieces(single, number) == list(number)
    assert pieces(single, "pays") == ["pays"]


def test_several_end_ids(tokenizer):
    assert end_token_ids(tokenizer) == (1,)
    assert end_token_ids(tokenizer, {"eos_token_id": [7, 3]}) == (1, 3, 7)
    assert end_token_ids(None, types.SimpleNamespace(eos_token_id=5)) == (5,)
    with pytest.raises(ValueError, match="names an end token"):
        end_token_ids(None, {})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"vocab_size": 200}, "261"),
        ({"vocab_size": 300, "end_token": "</s>"}, "end token '</s>'"),
        ({"vocab_size": 300, "texts": [""]}, "no text"),
    ],
)
def test_refuses_bad_settings(arguments, message):
    with pytest.raises(ValueError, match=message):
        train_tokenizer(**{"texts": TEXT, **arguments})


def test_missing_files_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"tokenizer\.json"):
        load_tokenizer(tmp_path)
