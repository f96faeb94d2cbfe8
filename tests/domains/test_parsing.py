"""The parser: an action only when it literally stands on the last non-empty line."""

import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sepo_jax.domains import Kuhn
from sepo_jax.domains.parsing import last_line, named_in_order, parse_numbers, parse_word

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


@pytest.mark.parametrize("end", ["```", "~~~", "</answer>", "</final_answer>\n```\n \n"])
def test_lines_that_only_close_something_are_passed_over(end):
    assert last_line(f"<answer>\nBET\n{end}") == "BET"
    assert parse_word(f"```text\nBET\n{end}", ("PASS", "BET")) == 1
    assert parse_numbers(f"```\n5\n{end}", 1) == (5,)
    assert last_line(f"{end.splitlines()[0]}\n") == end.splitlines()[0]
    for other in ("<answer>", "```text", "---", "``", "x</answer>", "</s 5>"):
        assert last_line(f"BET\n{other}") == other


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("5", 5),
        ("I take my share.\n\n**5**\n  \n", 5),
        ("My demand: 5.", 5),
        ("demand=5", 5),
        ("I demand 5 (a fair share).", 5),
        ("_5_", 5),
        ("Fine. `5`!", 5),
        ("“5”", 5),
        *((f"{left}5{right}", 5) for left, right in ("«»", "「」", "【】", "（）")),
        ("答案：5。", 5),
        ("### 5", 5),
        ("• 5", 5),
        ("Half each → 5", None),  # "half" leaves the number open
        ("So → 5", 5),
        ("\\boxed{5}", 5),
        ("My answer: $\\boxed{\\text{5}}$.", 5),
        ("$$\\boxed{5}$$", 5),
        ("\\[ \\mathbf{5} \\]", 5),
        ("\\(5\\)", 5),
        ("$ 5 $", 5),
        ("<answer>5</answer>", 5),
        ("<b>Demand:</b> 5", 5),
        ("0", 0),
        ("999999999", 999999999),
        ("", None),
        ("five", None),
        ("5\nThat is fair.", None),
        ("5 of 10", None),
        ("5 5", None),
        ("5 or six", None),
        *((f"{sign}5", None) for sign in "+-\u2212\u2013\u2014\u2010\u2011±~≈<>≤≥$/.,^"),
        *((f"- {number}", None) for number in ("5", "**5**", "(5)")),
        ("-(5)", None),
        ("-**5**", None),
        ("minus 5", None),
        ("negative 5", None),
        ("more than 5", None),
        ("5.5", None),
        (".5", None),
        ("5.x", None),
        ("5/x", None),
        ("5 / x", None),
        ("5 - x", None),
        ("5%", None),
        ("5 percent", None),
        ("5 and a half", None),
        ("5 thousand", None),
        ("05", None),
        ("00", None),
        ("1000000000", None),
        ("9" * 5000, None),
        ("5th", None),
        ("x5", None),
        ("x_5", None),
        ("f(5)", None),
        ("5_x", None),
        ("not 5", None),
        ("never 5", None),
        ("I won't take 5", None),
        ("I don´t take 5", None),
        ("５", None),
        ("٥", None),
        ("5²", None),
        ("5½", None),
        ("5 五", None),
        ("5\u0301", None),
        ("5\ufe0f\u20e3", None),
        ("\u200b5", None),
        ("5\u200b", None),
        *((f"\\boxed{{{inner}}}", None) for inner in ("-5", "x^5", "5x", "5%", "5.5", "\\not 5")),
        ("-\\boxed{5}", None),
        ("\\sqrt{5}", None),
        ("\\sqrt{\\text{5}}", None),
        ("\\boxed{5}^x", None),
        ("\\boxed{5}\\%", None),
        ("-$5$", None),
        ("$-5$", None),
        ("I pay $5 and keep a $", None),
        ("-<b>5</b>", None),
        ("5<b>th</b>", None),
        ("x<b>5</b>", None),
        ("<s>5</s>", None),
        ("<del>5</del>", None),
        ("~~5~~", None),
        ("1. Take everything", None),
        ("1) Take everything", None),
    ],
)
def test_one_number(text, expected):
    assert parse_numbers(text, 1) == (None if expected is None else (expected,))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1 2 0", (1, 2, 0)),
        ("1, 2, 0", (1, 2, 0)),
        ("1,2,0", (1, 2, 0)),
        ("[1, 2, 0]", (1, 2, 0)),
        ("(1; 2; 0)", (1, 2, 0)),
        ("I demand **[1, 2, 0]**.", (1, 2, 0)),
        ("Demand: 12 3 40 items", (12, 3, 40)),
        ("1 2", None),
        ("1 2 0 3", None),
        ("1 2 0 in round 3", None),
        ("12 0", None),
        ("1-2-0", None),
        ("1 -2 0", None),
        ("1/2/0", None),
        ("1.2.0", None),
        ("1, 2.5, 0", None),
        ("1, 2, 0.5", None),
        ("1 book, 2 hats, 0 balls", None),  # named items may come in another order
        ("2 hats, 1 book, 0 balls", None),
        ("1 or 2 0", None),
        ("1,200, 3, 4", None),
        ("[1, 2, 0] and [0, 2, 1]", None),
        ("not [1, 2, 0]", None),
        ("[-1, 2, 0]", None),
        ("[1, 2, 00]", None),
    ],
)
def test_three_numbers(text, expected):
    assert parse_numbers(text, 3) == expected


def test_a_comma_of_thousands_is_no_separator():
    assert parse_numbers("1,200", 2) is None
    assert parse_numbers("1, 200", 2) == (1, 200)
    assert parse_numbers("1,20", 2) == (1, 20)


def test_count_of_numbers():
    with pytest.raises(ValueError, match="count must be at least 1, not 0"):
        parse_numbers("5", 0)


NUMBER_FRAGMENTS = [
    *FRAGMENTS,
    *"0123456789",
    *("10", "[1, 2, 0]", "1, 2, 0", "-1", "+", "/", ".5", "%", "½", "٣", "５", "²", "or", "half"),
]


# The digits of the line, read by a rule of its own, are the numbers of the answer.
def test_fuzzed_numbers():
    rng = random.Random(22)
    parsed = 0
    for index in range(10000):
        count = (1, 3)[index % 2]
        glue = rng.choice(["", " ", " "])
        text = glue.join(rng.choices(NUMBER_FRAGMENTS, k=rng.randrange(0, 7)))
        numbers = parse_numbers(text, count)
        if numbers is not None:
            parsed += 1
            line = [line for line in text.splitlines() if line.strip()][-1]
            assert re.findall("[0-9]+", line) == [str(number) for number in numbers]
            assert len(numbers) == count
            assert not re.search(r"[-+/%½٣５²]\s*[0-9]|[0-9][-+/%½٣５²a-zA-Z]", line)
    assert 200 < parsed < 5000


@settings(deadline=None, max_examples=100)
@given(
    st.text(max_size=30),
    st.lists(st.integers(0, 999), min_size=1, max_size=4),
    st.sampled_from([" ", ", ", "; "]),
    st.sampled_from(["{}", "[{}]", "({})", "**{}**", "{}.", "My answer: {}"]),
)
def test_numbers_alone_on_the_last_line_are_always_found(reasoning, numbers, glue, frame):
    line = frame.format(glue.join(map(str, numbers)))
    assert parse_numbers(f"{reasoning}\n{line}", len(numbers)) == tuple(numbers)


@settings(deadline=None, max_examples=100)
@given(st.text(max_size=40), st.integers(1, 4))
def test_numbers_in_any_text(text, count):
    numbers = parse_numbers(text, count)
    if numbers is not None:
        assert re.findall("[0-9]+", last_line(text)) == [str(number) for number in numbers]


@pytest.mark.parametrize(
    "text",
    [
        *(
            "~~DEFECT~~",
            "<s>DEFECT</s>",
            "<del>DEFECT</del>",
            "!DEFECT",
            "\u00acDEFECT",
            "!= DEFECT",
        ),
        *("I refuse to DEFECT", "Anything but DEFECT", "Instead of DEFECT", "Avoid DEFECT"),
        *("Neither, nor DEFECT", "Without DEFECT"),
    ],
)
def test_a_word_struck_out_or_turned_down_is_none(text):
    assert parse_word(text, ["COOPERATE", "DEFECT"]) is None
    assert parse_word("DEFECT!", ["COOPERATE", "DEFECT"]) == 1


@pytest.mark.parametrize(
    "text", ["!= 5", "5 per cent", "5 billion", "above 5", "below 5", "double 5", "refuse 5"]
)
def test_a_number_that_is_another_or_none(text):
    assert parse_numbers(text, 1) is None


def test_names_in_order():
    names = ("Books", "Hats", "Balls")
    assert named_in_order("1 2 0", names) and named_in_order("books, hats, balls: 1 2 0", names)
    assert named_in_order("Books and balls", names)
    assert not named_in_order("Hats, Books, Balls: 1 2 0", names)
    assert not named_in_order("1 2 0 (hats, books, balls)", names)
