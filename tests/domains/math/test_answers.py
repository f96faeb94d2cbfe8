"""Where answers stand in replies, their normal form, and what is equal at sight."""

import time
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sepo_jax.domains.math.answers import (
    MAX_ANSWER,
    final_answer,
    last_tagged,
    normal_form,
    plain_equal,
    plain_number,
)

REPLIES = {
    "so x = 5.\n\\boxed{5}": "5",
    "\\boxed{1} or rather \\boxed{2}": "2",
    "\\boxed{\\frac{1}{2}}": "\\frac{1}{2}",
    "\\boxed {3}": "3",
    "\\boxed{\\boxed{5}}": "5",
    "\\boxed{1} and \\boxed{2": "1",  # the second does not close
    "\\boxed{\\{1, 2\\}}": "\\{1, 2\\}",
    "{{{ \\boxed{5}": "5",
    "}}} \\boxed{5}": "5",
    "<answer> 3/4 </answer>": "3/4",
    "Answer: **7**.": "7",
    "The answer is $3/4$.": "3/4",
    "final answer = \\dfrac{1}{2}\n": "\\frac{1}{2}",
    "Answer: 1\nAnswer: 2\nbye": "2",
    "Answer: 1\n\\boxed{2}": "2",  # boxes come first
}
NO_REPLIES = ("", "5", "nothing", "\\boxed{}", "\\boxed{ }", "Answer:", "Answering: 5", "\\boxed{5",
              "\\boxed{" + "1" * (MAX_ANSWER + 1) + "}")  # fmt: skip


@pytest.mark.parametrize("reply", REPLIES)
def test_the_last_answer_of_a_reply_is_found(reply):
    assert final_answer(reply) == REPLIES[reply]


@pytest.mark.parametrize("reply", NO_REPLIES)
def test_replies_without_an_answer_give_none(reply):
    assert final_answer(reply) is None


@pytest.mark.parametrize(
    "piece",
    ["\\boxed{", "{", "}", "<answer>", "</answer>", "answer ", "\\", "$", "\\boxed{}", " ", "the "],
)
def test_replies_of_any_length_are_read_in_a_time_that_grows_with_it(piece):
    started = time.process_time()
    final_answer(piece * (200_000 // len(piece)))
    assert time.process_time() - started < 5  # one that grew with its square took 21


def test_the_last_pair_of_tags_counts():
    pairs = {
        "<verify>a</verify> <VERIFY>b</verify>": "b",
        "<verify>a<verify>b</verify>": "a<verify>b",
        "<verify>a</verify>b</verify><verify>c": "a",
        "</verify><verify></verify>": "",
    }
    for reply, found in pairs.items():
        assert last_tagged("verify", reply) == found
    for reply in ("", "verify", "<verify>a", "a</verify>", "<select>a</select>"):
        assert last_tagged("verify", reply) is None


def test_half_characters_cannot_be_recorded_and_are_replaced():
    assert final_answer("\\boxed{\ud8001}") == "?1"


FORMS = {
    "$5$": "5",
    "\\boxed{5}": "5",
    "\\( 5 \\).": "5",
    "\\left(1, 2\\right)": "(1, 2)",
    "\u22123": "-3",
    "\\dfrac{1}{2}": "\\frac{1}{2}",
    "5\\,000": "5000",
    "5,\\!000": "5,000",
    "11,\\! 111,\\!111": "11,111,111",
    "(5,\\!x)": "(5, x)",
    "\\sin\\,x": "\\sin x",
    "\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}": "\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}",
    "1\\\\, 2\\\\left": "1\\\\, 2\\\\left",
    "1\\\\\\dfrac{1}{2}\\\\dfrac": "1\\\\\\frac{1}{2}\\\\dfrac",
    "**7**": "7",
    "$5$ and $6$": "$5$ and $6$",
    "\\leftarrow": "\\leftarrow",
}


@pytest.mark.parametrize("text", FORMS)
def test_normal_forms(text):
    assert normal_form(text) == FORMS[text]


PIECES = st.sampled_from(["$", "\\boxed{", "}", "{", "\\(", "\\)", ".", " ", "5", "\\,", "*", "-",
                          "\\left", "\\dfrac", "\\\\", "\\!", ",", "555", "\n", "x"])  # fmt: skip


@given(st.lists(PIECES, max_size=12).map("".join))
def test_a_normal_form_is_its_own(text):
    form = normal_form(text)
    assert normal_form(form) == form
    assert len(form) <= len(text)


NUMBERS = {
    "12": 12, "-3": -3, "+4": 4, "007": 7, "3/4": Fraction(3, 4), "-6/8": Fraction(-3, 4),
    "\\frac{1}{2}": Fraction(1, 2), "-\\frac{1}{2}": Fraction(-1, 2),
    "\\frac{-1}{2}": Fraction(-1, 2), "4/2": 2,
}  # fmt: skip


def test_plain_numbers_have_their_values():
    for text, value in NUMBERS.items():
        assert plain_number(text) == value, text
    for text in ("1/0", "1.5", "1,000", "x", "", "1/2/3", "--1", "-\\frac{-1}{2}", "²", "٣", "1 2"):
        assert plain_number(text) is None, text


@given(st.fractions(), st.fractions())
def test_plain_numbers_are_equal_where_their_values_are(left, right):
    assert plain_equal(str(left), str(right)) == (left == right)
    doubled = f"{2 * left.numerator}/{2 * left.denominator}"
    assert plain_equal(str(left), doubled) is (True if len(doubled) < 80 else None)


def test_what_needs_the_library_is_left_to_it():
    assert plain_equal("0.5", "0.5") is True
    for pair in (("0.5", "1/2"), ("0.5", "0.50"), ("x", "x"), ("50", "50%"), ("5", "x = 5")):
        assert plain_equal(*pair) is None
