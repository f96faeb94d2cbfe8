"""The parser: an action only when it literally stands on the last non-empty line."""

import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sepo_jax.domains import Kuhn
from sepo_jax.domains.parsing import last_line, parse_word

WORDS_OF_KUHN = ("PASS", "BET", "FOLD", "CALL")
LEGAL = [("PASS", "BET"), ("FOLD", "CALL")]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("BET", 1),
        ("pass", 0),
        ("I hold a king.\n\n**Bet.**\n  \n", 1),
        ("Action: BET", 1),
        ("> `_BET_`", 1),
        ("BET BET", 1),
        ("My action is: bet!", 1),
        ("BET\r\n", 1),
        ("", None),
        ("\n \t\n", None),
        ("BET\nI changed my mind.", None),
        ("PASS or BET", None),
        ("CALL", None),  # known, but not allowed here
        ("BET, not CALL", None),
        ("do not BET", None),
        ("I won't BET", None),
        ("I won’t bet", None),
        *((f"I {word} BET", None) for word in ("cant", "shouldnt", "Wouldnt", "AINT", "dont")),
        *((f"I don{mark}t BET", None) for mark in "'’‘ʼ`´＇′"),
        ("non-BET", None),
        ("non\u2011BET", None),
        ("BET-free", None),
        ("alpha\u200bBET", None),
        ("no\u200bt BET", None),
        ("BET\u0301", None),
        ("- BET", 1),
        ("-BET", 1),
        ("well-known spot: BET", 1),
        ("Final action - `BET`", 1),
        ("I want the pot: BET", 1),
        ("BETTING", None),
        ("BET2", None),
        ("ALPHABET", None),
        ("PAſſ", None),  # folds to PASS under Unicode rules
        ("ＢＥＴ", None),  # full-width letters
        ("B E T", None),
        ("B\u200bET", None),
    ],
)
def test_examples(text, expected):
    assert parse_word(text, ("PASS", "BET"), WORDS_OF_KUHN) == expected


@pytest.mark.parametrize("text", ["re-CALL", "two-fold", "two-FOLD it is", "can´t CALL"])
def test_compounds_and_negations_when_facing_a_bet(text):
    assert parse_word(text, ("FOLD", "CALL"), WORDS_OF_KUHN) is None


def stands_on_last_line(text: str, word: str) -> bool:
    """Independent of the parser: the word, bounded by no letter or digit, in ASCII case."""
    lines = [line for line in text.splitlines() if line.strip()]
    pattern = rf"(?<![^\W_]){word}(?![^\W_])"
    return bool(lines) and any(
        match.group().isascii() for match in re.finditer(pattern, lines[-1], re.IGNORECASE)
    )


def check(text: str, legal: tuple[str, str]) -> int | None:
    action = DOMAIN.parse(text, legal)
    if action is not None:
        assert action in (0, 1)
        assert stands_on_last_line(text, legal[action])
        assert not stands_on_last_line(text, legal[1 - action])
    return action


DOMAIN = Kuhn()
WORDS = """
    PASS BET FOLD CALL pass bet fold call Bet Call PASSED bets BETTING recall unfold not don't never
    I will choose my action is : ** _ ` . ! ? , ; - ( ) [ ] <b> 1 chip
"""
FRAGMENTS = [
    *WORDS.split(),
    *(" ", "  ", "\n", "\n\n", "\r\n", "\t", "\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\u200b"),
    *("é", "ſ", "ﬁ", "İ", "ß", "王", "\U0001f0cf", "\x00", "\ufeff", "Ｂ", "\ud800"),
]


# Unparsable output: 10,000 fuzzed completions, never an exception, never an invention.
def test_fuzzed_completions():
    rng = random.Random(20)
    parsed = 0
    for index in range(10000):
        glue = rng.choice(["", "", " "])
        text = glue.join(rng.choices(FRAGMENTS, k=rng.randrange(0, 12)))
        parsed += check(text, LEGAL[index % 2]) is not None
    # Both outcomes happen, so that the check above means something.
    assert 500 < parsed < 9000


@settings(deadline=None, max_examples=50)
@given(st.lists(st.text(max_size=40) | st.sampled_from(FRAGMENTS), max_size=8), st.booleans())
def test_any_text(parts, facing):
    check(" ".join(parts), LEGAL[facing])


@settings(deadline=None, max_examples=50)
@given(st.text(max_size=30), st.sampled_from(["BET", "bet", "Bet", "PASS"]))
def test_the_word_alone_on_the_last_line_is_always_found(reasoning, word):
    action = DOMAIN.parse(f"{reasoning}\n{word}", LEGAL[0])
    assert action == LEGAL[0].index(word.upper())


def test_every_unparsable_reply_is_counted():
    rng = random.Random(21)
    wrong = total = 0
    for seed in range(400):
        episode = DOMAIN.new_episode("LooseAggressive", seed)
        while not episode.done:
            text = " ".join(rng.choices(FRAGMENTS, k=6))
            wrong += DOMAIN.parse(text, episode.legal_actions()) is None
            total += 1
            episode.step(text)
        assert len(episode.rounds) == 1
        assert sum(not d.valid for d in episode.decisions) == wrong
        assert len(episode.decisions) == total
        wrong = total = 0


def test_last_line():
    assert last_line("a\nb\n \n") == "b"
    assert last_line(" \n") == ""
