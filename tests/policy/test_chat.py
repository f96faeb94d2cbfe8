"""Chat rendering: extension of earlier ids, refusal of rewritten turns, reply masks."""

import copy

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sepo_jax.policy import TemplateNotExtending, completion_mask, extend, follow, render

PROMPT = [{"role": "system", "content": "Kuhn."}, {"role": "user", "content": "Card J."}]
REPLY = {"role": "assistant", "content": "PASS"}
LATER = [{"role": "user", "content": "Card Q."}]


def test_render_by_hand(tokenizer):
    """Role token, content, end token; the assistant's role token opens the reply."""
    end, system, user, assistant = (
        tokenizer.convert_tokens_to_ids(f"<|{name}|>")
        for name in ("end", "system", "user", "assistant")
    )
    words = [tokenizer.encode(message["content"]) for message in PROMPT]
    closed = [system, *words[0], end, user, *words[1], end]
    assert render(tokenizer, PROMPT, add_generation_prompt=False) == closed
    assert render(tokenizer, PROMPT) == [*closed, assistant]


def test_sampled_ids_are_kept(tokenizer):
    """A reply sampled letter by letter: its ids stay, though its text encodes to others. # B04"""
    letters = [tokenizer.encode(letter)[0] for letter in "PASS"]
    assert tokenizer.encode("PASS") != letters and tokenizer.decode(letters) == "PASS"
    held = [*render(tokenizer, PROMPT), *letters, tokenizer.eos_token_id]
    before, after = [*PROMPT, REPLY], [*PROMPT, REPLY, *LATER]
    fresh = extend(tokenizer, held, before, after)
    text = tokenizer.decode([*held, *fresh])
    assert text == tokenizer.decode(render(tokenizer, after))
    assert fresh == render(tokenizer, LATER)
    # A reply cut before its end token: the template's end token is part of what follows.
    assert extend(tokenizer, held[:-1], before, after) == [tokenizer.eos_token_id, *fresh]


@settings(deadline=None, max_examples=30)
@given(reply=st.text(max_size=12), note=st.text(max_size=12), ended=st.booleans())
def test_extension_reads_as_the_whole(tokenizer, reply, note, ended):
    """Earlier ids and new ids together decode to the conversation rendered at once."""
    before = [*PROMPT, {"role": "assistant", "content": reply}]
    after = [*before, {"role": "user", "content": note}]
    held = [*render(tokenizer, PROMPT), *tokenizer.encode(reply, add_special_tokens=False)]
    held += [tokenizer.eos_token_id] * ended
    fresh = extend(tokenizer, held, before, after)
    assert tokenizer.decode([*held, *fresh]) == tokenizer.decode(render(tokenizer, after))


def test_what_follows_a_reply_by_hand(tokenizer):
    """The next messages and the role token of the next reply; the end token when it was cut."""
    before = [*PROMPT, REPLY]
    assert follow(tokenizer, before, LATER, ended=True) == render(tokenizer, LATER)
    cut = follow(tokenizer, before, LATER, ended=False)
    assert cut == [tokenizer.eos_token_id, *render(tokenizer, LATER)]
    # Another end token ends the reply in this one's place, and this one is then what is dropped.
    ended = follow(tokenizer, before, LATER, True, end_ids=(0, tokenizer.eos_token_id))
    assert ended == render(tokenizer, LATER)
    assert follow(tokenizer, before, LATER, True, end_ids=(0,)) == cut


@settings(deadline=None, max_examples=60)
@given(
    reply=st.lists(st.integers(0, 319), max_size=6),
    note=st.text(max_size=12).filter(lambda text: "<|" not in text),
    ended=st.booleans(),
)
def test_any_sampled_ids_are_followed(tokenizer, reply, note, ended):
    """Special tokens, halves of characters, leading blanks: what follows is the same. # B04"""
    text = tokenizer.decode(reply, skip_special_tokens=True)
    before = [*PROMPT, {"role": "assistant", "content": text}]
    further = [{"role": "user", "content": note}]
    fresh = follow(tokenizer, before, further, ended)
    assert fresh == follow(tokenizer, [*PROMPT, REPLY], further, ended)
    held = [*render(tokenizer, PROMPT), *reply, *[tokenizer.eos_token_id] * ended]
    whole = tokenizer.decode(held) + tokenizer.decode(fresh)
    assert whole.endswith(f"<|end|><|user|>{note}<|end|><|assistant|>")
    # Exactly one end token between the reply and what follows.
    between = [*held, *fresh][len(held) - ended :]
    assert between[0] == tokenizer.eos_token_id != between[1]


def test_a_template_that_strips_is_followed_and_one_that_rewrites_is_not(tokenizer):  # B04
    stripping, forgetful, dropping = (copy.deepcopy(tokenizer) for _ in range(3))
    stripping.chat_template = tokenizer.chat_template.replace(
        "message['content']", "message['content'] | trim"
    )
    blanks = [*PROMPT, {"role": "assistant", "content": "  \n PASS "}]
    assert follow(stripping, blanks, LATER, True) == render(stripping, LATER)
    forgetful.chat_template = tokenizer.chat_template.replace(
        "message['content']",
        "(message['content'] if loop.last else message['content'].split('.')[-1])",
    )
    with pytest.raises(TemplateNotExtending, match=r"once turn 3 \(user\) follows"):
        follow(forgetful, [*PROMPT, REPLY], LATER, True)
    # One that drops a reply only when another reply has followed it.
    dropping.chat_template = (
        "{% for m in messages %}{% if m.role != 'assistant' or loop.index0 >= messages | length - 3"
        " %}{{ '<|' + m.role + '|>' + m.content + '<|end|>' }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )
    talk = [*PROMPT, REPLY]
    assert follow(dropping, talk, LATER, True) == render(dropping, LATER)
    with pytest.raises(TemplateNotExtending, match="separate contexts"):
        follow(dropping, [*talk, *LATER, REPLY], LATER, True)


def test_a_reply_is_followed_by_something(tokenizer):
    with pytest.raises(ValueError, match="must end with a reply"):
        follow(tokenizer, PROMPT, LATER, True)
    with pytest.raises(ValueError, match="messages are empty"):
        follow(tokenizer, [*PROMPT, REPLY], [], True)


def test_rewriting_template_is_refused(tokenizer):
    """A template that drops earlier reasoning does not extend the ids: turn 2 is named. # B04"""
    forgetful = copy.deepcopy(tokenizer)
    forgetful.chat_template = (
        "{% for m in messages %}{{ '<|' + m.role + '|>' }}"
        "{% if m.role == 'assistant' and not loop.last %}{{ m.content.split('.')[-1] }}"
        "{% else %}{{ m.content }}{% endif %}{{ '<|end|>' }}{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )
    reply = {"role": "assistant", "content": "I hold J.PASS"}
    held = [*render(forgetful, PROMPT), *forgetful.encode(reply["content"]), 1]
    with pytest.raises(TemplateNotExtending, match=r"turn 2 \(assistant\)"):
        extend(forgetful, held, [*PROMPT, reply], [*PROMPT, reply, *LATER])
    kept = extend(tokenizer, held, [*PROMPT, reply], [*PROMPT, reply, *LATER])
    assert kept == render(tokenizer, LATER)


def test_mismatched_conversations_are_refused(tokenizer):
    """A changed, absent or misquoted turn is named; nothing to add is said."""
    held = [*render(tokenizer, PROMPT), *tokenizer.encode("PASS"), 1]
    before = [*PROMPT, REPLY]
    changed = [PROMPT[0], {"role": "user", "content": "Card K."}, REPLY, *LATER]
    with pytest.raises(TemplateNotExtending, match=r"turn 1 \(user\).*different"):
        extend(tokenizer, held, before, changed)
    with pytest.raises(TemplateNotExtending, match=r"turn 2 \(assistant\).*absent"):
        extend(tokenizer, held, before, PROMPT)
    with pytest.raises(TemplateNotExtending, match="no message follows"):
        extend(tokenizer, held, before, before)
    stripped = [*PROMPT, {"role": "assistant", "content": "pass"}]
    with pytest.raises(TemplateNotExtending, match=r"turn 2 \(assistant\)"):
        extend(tokenizer, held, stripped, [*stripped, *LATER])


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "empty"),
        ("Card J.", "not str"),
        ({"role": "user", "content": "x"}, "not dict"),
        ([{"role": "user"}], "message 0"),
        ([PROMPT[0], {"role": "user", "content": 3}], "message 1"),
    ],
)
def test_refuses_other_forms_of_messages(tokenizer, messages, message):
    with pytest.raises(ValueError, match=message):
        render(tokenizer, messages)


def test_a_template_is_required(tokenizer):
    plain = copy.deepcopy(tokenizer)
    plain.chat_template = None
    for missing in (plain, None):
        with pytest.raises(ValueError, match="no chat template"):
            render(missing, PROMPT)


def test_completion_mask_known_answers():
    """The first end token counts, later ones do not, even where padding has the end id. # B01"""
    tokens = [[5, 6, 0, 0], [5, 6, 7, 8], [0, 0, 0, 0]]
    expected = [[1, 1, 1, 0], [1, 1, 1, 1], [1, 0, 0, 0]]
    np.testing.assert_array_equal(completion_mask(tokens, [0]), np.array(expected, bool))
    np.testing.assert_array_equal(completion_mask(tokens[1], (7, 6)), [True, True, False, False])
    cut = completion_mask(tokens, [0], lengths=[2, 3, 4])
    np.testing.assert_array_equal(cut.sum(1), [2, 3, 1])
