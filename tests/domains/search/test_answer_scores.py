"""Exact match and F1: values worked out by hand, and what holds for any texts."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sepo_jax.domains.search.answer_scores import exact_match, f1_score, normalised

WORDS = st.lists(st.sampled_from(["red", "Red,", "the", "a", "river", "of", "1,931", ""]))
TEXTS = WORDS.map(" ".join)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The  Red River!", "red river"),
        ("an apple, a day", "apple day"),
        # Punctuation goes first and leaves no space: words of either side join.
        ("U.S.A.", "usa"),
        ("twenty-one", "twentyone"),
        # Articles go last: what punctuation parted from one is one by then.
        ('"A" side', "side"),
        # Only whole words are articles.
        ("theatre another Ana", "theatre another ana"),
        # Other scripts' punctuation stays, as in the script.
        ("l’eau", "l’eau"),
        ("the", ""),
    ],
)
def test_normalised(text, expected):
    assert normalised(text) == expected


@pytest.mark.parametrize(
    ("answer", "golden", "exact", "f1"),
    [
        ("The Red River.", ["red river"], 1, 1),
        # 2 words in common, of 3 and of 2: 2 * 2 / 5.
        ("old red river", ["red river"], 0, 4 / 5),
        # Order does not count in F1: all 2 of 2 and 2.
        ("river red", ["Red River"], 0, 1),
        # "red" twice against once: 1 in common, of 2 and of 1.
        ("red red", ["red"], 0, 2 / 3),
        # The best of several: 0 for the first, 2 * 1 / 3 for the second.
        ("Lund city", ["Oslo", "Lund"], 0, 2 / 3),
        ("Oslo", ["Lund", "oslo"], 1, 1),
        ("nothing", ["Lund"], 0, 0),
        # Nothing is left of either, or of one.
        ("the", ["a"], 1, 1),
        ("the", ["Lund"], 0, 0),
        ("", ["Lund"], 0, 0),
    ],
)
def test_known_scores(answer, golden, exact, f1):
    assert exact_match(answer, golden) == exact
    assert math.isclose(f1_score(answer, golden), f1)


@given(TEXTS, st.lists(TEXTS, min_size=1, max_size=3), TEXTS)
def test_what_holds_for_any_texts(answer, golden, more):
    exact, f1 = exact_match(answer, golden), f1_score(answer, golden)
    assert 0 <= f1 <= 1 and exact <= f1
    assert exact_match(golden[0], golden) == f1_score(golden[0], golden) == 1
    # Another golden answer never lowers a score, and against one answer F1 has two equal sides.
    assert f1_score(answer, [*golden, more]) >= f1
    assert f1_score(answer, [more]) == f1_score(more, [answer])
    assert exact_match(answer, [more]) == exact_match(more, [answer])


@pytest.mark.parametrize("golden", ["Lund", [], ()])
def test_golden_answers_are_a_list(golden):
    for score in (exact_match, f1_score):
        with pytest.raises(ValueError, match="a list of one or more texts"):
            score("Lund", golden)
