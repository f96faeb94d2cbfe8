"""The real model: SmolLM2-135M-Instruct agrees with transformers, token for token.

`golden_smollm2.json` holds what transformers computed; where torch is installed, its model is run
again as well. Skipped where pip cannot fetch the wheel.
"""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from policy.make_smollm2_golden import CHATS, GOLDEN, NUM_TOKENS, PARAGRAPH
from script_modules import script_module

from sepo_jax.policy import follow, load, render

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """The model's directory: the one that the README's command makes, or a fresh one."""
    pytest.importorskip("gguf")
    kept = ROOT / "models" / "smollm2-135m"
    if (kept / "config.json").is_file():
        return kept
    script = script_module("get_smollm2")
    try:
        return script.get_smollm2(tmp_path_factory.mktemp("model") / "smollm2-135m")
    except ConnectionError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def model(directory):
    return load(directory)


@pytest.fixture(scope="module")
def golden():
    return json.loads(GOLDEN.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def paragraph_log_probs(model, golden):
    policy, params = model
    tokens = jnp.asarray(golden["paragraph"], jnp.int32)[None]
    columns = jnp.arange(tokens.shape[1])[None]
    score = jax.jit(policy.log_probs)
    scores = score(
        params, tokens, columns, jnp.zeros_like(tokens), None, columns[:, :-1], tokens[:, 1:]
    )
    return np.asarray(scores.logp[0])


def test_text_becomes_the_published_ids(model):
    # Ids that the makers' own tokenizer gives; digits stand alone, with their space before them.
    tokenizer = model[0].tokenizer
    for text, ids in {
        "The capital of France is": [504, 3575, 282, 4649, 314],
        "Hello world! 123": [19556, 905, 17, 216, 33, 34, 35],
        "Café déjà vu.": [51, 1939, 2756, 32564, 90, 16739, 386, 101, 30],
        "  multiple   spaces": [216, 2701, 256, 5600],
        "<|im_start|>user\n": [1, 4093, 198],
        "<|endoftext|><|im_end|>": [0, 2],
    }.items():
        assert tokenizer(text).input_ids == ids
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (1, 2, 2)
    assert model[0].end_ids == (2,) and len(tokenizer) == 49152
    # A digit of any script and a fraction are digits too, and never share a piece with a space.
    assert tokenizer(" ²").input_ids == [216, *tokenizer("²").input_ids]
    assert tokenizer(" ½").input_ids == [216, *tokenizer("½").input_ids]


def test_text_comes_back(model):
    tokenizer = model[0].tokenizer
    for text in (
        "3.14159 and 2,718 or 10^6; ½ + ² = ٣",
        "\n\n\tdef f(x):\r\n    return x  # two  spaces \n",
        "naïve Zoë 日本語 नमस्ते שלום 🙂👩‍👩‍👧 e\u0301 \u200b|",
        "I'm they'll DON'T <|im_start|>system<|im_end|> <|im_start",
        " ",
        "",
    ):
        ids = tokenizer(text, add_special_tokens=False).input_ids
        assert tokenizer.decode(ids) == text
        assert 1 not in ids or "<|im_start|>" in text


def test_chats_become_the_same_prompts(model, golden):
    for chat, expected in zip(CHATS, golden["chats"], strict=True):
        assert list(render(model[0].tokenizer, chat)) == expected["prompt"]
    assert model[0].tokenizer(PARAGRAPH, add_special_tokens=False).input_ids == golden["paragraph"]


def test_what_follows_a_reply_is_what_the_template_writes(model):
    tokenizer = model[0].tokenizer
    later = [{"role": "user", "content": "And of Spain?"}]
    text = "<|im_end|>\n<|im_start|>user\nAnd of Spain?<|im_end|>\n<|im_start|>assistant\n"
    expected = tokenizer(text, add_special_tokens=False).input_ids
    end = tokenizer.eos_token_id
    for reply in ("Paris.", "", "  blank", "\ufffd<|im_end|>"):
        talk = [*CHATS[0], {"role": "assistant", "content": reply}]
        assert follow(tokenizer, talk, later, ended=False) == expected
        assert [end, *follow(tokenizer, talk, later, ended=True)] == expected


def test_greedy_replies_equal_those_of_transformers(model, golden):
    """Ten prompts of different lengths in ten slots, 64 tokens each."""
    policy, params = model
    chats = golden["chats"]
    lengths = np.array([len(chat["prompt"]) for chat in chats], np.int32)
    prompts = np.zeros((len(chats), lengths.max()), np.int32)
    for row, chat in zip(prompts, chats, strict=True):
        row[: len(chat["prompt"])] = chat["prompt"]
    params = policy.fuse(params)
    cache = policy.init_cache(len(chats), int(lengths.max()) + NUM_TOKENS)
    step = jax.jit(policy.decode_step)
    cache, logits = jax.jit(policy.prefill)(params, cache, prompts, lengths)
    active = jnp.ones(len(chats), bool)
    replies = []
    for _ in range(NUM_TOKENS):
        tokens = jnp.argmax(logits, axis=-1).astype(jnp.int32)
        replies.append(np.asarray(tokens))
        cache, logits = step(params, cache, tokens, active)
    # The best two logits are never closer than 0.01, far above the rounding of either side.
    assert min(chat["margin"] for chat in chats) > 0.01
    np.testing.assert_array_equal(np.stack(replies, 1), [chat["tokens"] for chat in chats])


def test_log_probabilities_of_a_paragraph_agree(paragraph_log_probs, golden):
    np.testing.assert_allclose(paragraph_log_probs, golden["log_probs"], rtol=0, atol=1e-3)
    assert np.isfinite(paragraph_log_probs).all()


def test_transformers_gives_the_golden_again(directory, golden, paragraph_log_probs):
    torch = pytest.importorskip("torch")
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(str(directory), dtype=torch.float32).eval()
    with torch.no_grad():
        # Greedy token for token: each is the most likely one after all before it. The three chats
        # that come closest to a tie.
        for chat in sorted(golden["chats"], key=lambda chat: chat["margin"])[:3]:
            path = torch.tensor([chat["prompt"] + chat["tokens"][:-1]])
            logits = model(path, logits_to_keep=NUM_TOKENS).logits[0]
            assert logits.argmax(-1).tolist() == chat["tokens"]
        tokens = torch.tensor(golden["paragraph"])
        scores = model(tokens[None]).logits[0, :-1].log_softmax(-1)
        log_probs = scores.gather(1, tokens[1:, None])[:, 0].numpy()
    np.testing.assert_allclose(paragraph_log_probs, log_probs, rtol=0, atol=1e-3)
