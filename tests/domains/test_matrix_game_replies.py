"""The parser of matrix games: two vectors only where they literally stand, for any completion."""

import random
import re
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sepo_jax.domains.matrix_game import (
    NOT_DISTRIBUTION,
    NOT_PARSABLE,
    STATUSES,
    VALID,
    anonymous,
    messages,
    parse,
    reply,
)

ANSWER = '{"row": [0.25, 0.75], "col": [0.5, 0.5]}'
EARLIER = '{"row": [1, 0], "col": [0, 1]}'


@pytest.mark.parametrize(
    "text",
    [
        ANSWER,
        '{"col": [0.5, 0.5], "row": [0.25, 0.75]}',
        "{'ROW': [.25, .75], 'Col': [5e-1, 0.50]}",
        '{"row": ["25%", "75%"], "column": ["50 %", "50%"]}',
        '{"row": [1/4, 3/4], "col": ["1/2", "1 / 2"]}',
        "row = (0.25, 0.75); col = (0.5, 0.5)",
        '{\n  "row": [\n    0.25,\n    0.75\n  ],\n  "col": [\n    0.5,\n    0.5,\n  ]\n}',
        f"Let me think. The value is [0.1].\n```json\n{ANSWER}\n```\nHope that helps: [1, 2]!",
        f"First guess {EARLIER}. Better:\n{ANSWER}",
        f'{ANSWER}\nTemplate: {{"row": [...], "col": [p, 1 - p]}}',
        f'{ANSWER} {{"row": [1, 0], "col": [0,',
        f'{ANSWER} {{"row": [1, 0]}}',
        "**Row player**: [0.25 0.75]\n\n**Column player**: [0.5 0.5].",
        "Row strategy: [+0.25; 0.75] and the column strategy: [0.5; 0.5]",
        "row_player: [0.25, 0.75], col_player: [0.5, 0.5]",
        'ROWS: ["0.25", "0.75"]\r\nColumns: [`0.5`, **0.5**]',
    ],
)
def test_what_is_read(text):
    answer = parse(text, 2, 2)
    assert answer.valid
    assert answer.row == (0.25, 0.75) and answer.col == (0.5, 0.5)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "I would mix evenly.",
        "[0.25, 0.75], [0.5, 0.5]",  # whose?
        '{"row": [0.25, 0.75]}',
        '{"row": [0.25, 0.75], "row": [0.5, 0.5]}',
        '{"row": [0.25, 0.75], "col": [0.5, 0.5',  # cut
        '{"row": [0.25, 0.75], "col": [0.5, x]}',
        '{"row": [0.25, 0.75], "col": [[0.5, 0.5]]}',
        '{"row": {"A1": 0.25, "A2": 0.75}, "col": {"B1": 0.5, "B2": 0.5}}',
        '{"row": "0.25, 0.75", "col": "0.5, 0.5"}',
        '{"row": [0.25, 0.75]} {"col": [0.5, 0.5]}',  # of two objects
        "Row: [0.25, 0.75] loses to anything but column: [0.5, 0.5]",
        "arrow: [0.25, 0.75], protocol: [0.5, 0.5]",
        '{"row": [0.25, ٠.75], "col": [0.5, 0.5]}',  # another script's digit
        '{"row": [0.25, , 0.75], "col": [0.5, 0.5]}',
        '{"row": [1_0, 0], "col": [0.5, 0.5]}',
        '{"row": [0x1, 0], "col": [0.5, 0.5]}',
    ],
)
def test_what_is_not_parsable(text):
    assert parse(text, 2, 2).status == NOT_PARSABLE


@pytest.mark.parametrize(
    "vector",
    [
        "0.25, 0.75, 0",  # another length
        "",
        "1",
        "-0.25, 1.25",
        "\u22120.25, 1.25",
        "NaN, 1",
        "Infinity, 0",
        "1/0, 1",
        "1e999, 0",
        "0.5, 0.4899",  # sum off by more than 0.01
        "0.5, 0.5101",
        "0, 0",
        "25, 75",
        "1%, 1",
    ],
)
def test_what_is_no_distribution(vector):
    for text in (f"row: [{vector}], col: [0.5, 0.5]", f"col: [{vector}], row: [0.5, 0.5]"):
        answer = parse(f"{ANSWER} or rather {text}", 2, 2)  # the last one counts
        assert answer.status == NOT_DISTRIBUTION or vector == "1%, 1"
        assert (answer.row is None) == (answer.col is None) == (not answer.valid)


def test_sums_within_a_hundredth_are_divided_out():
    answer = parse('{"row": [0.33, 0.33, 0.33], "col": [0.5, 0.51]}', 3, 2)
    assert answer.row == pytest.approx([1 / 3] * 3, abs=1e-12)
    assert answer.col == pytest.approx([50 / 101, 51 / 101], abs=1e-12)
    assert str(parse('{"row": [1, -0], "col": [1, 0]}', 2, 2).row[1]) == "0.0"


@pytest.mark.parametrize(
    "text",
    [
        "row " * 100_000,
        "row: [" * 100_000,
        "row: [" + "1," * 200_000,
        "row: [" + "1" * 200_000 + "], col: [1]",
        ('row: [1]' + ", the" * 4000) * 10,
        "[" * 100_000,
        '{"row":' * 50_000,
        "col" + " " * 200_000 + ": [1]",
    ],
)  # fmt: skip
def test_long_texts_take_no_long_time(text):  # the run's time limit would show it
    assert parse(text, 1, 1).status == NOT_PARSABLE


# Independent of the parser: lists in brackets whose entries, read one by one as fractions, are the
# answer before it was divided by its sum.
def stand_in(text: str, vector: tuple[float, ...]) -> bool:
    for inside in re.findall(r"[\[(]([^\[\]()]*)[\])]", text.replace("\u2212", "-")):
        entries = [e for e in re.split(r"[,;\s\"'`*]+", inside) if e]
        try:
            numbers = [plain_number(entry) for entry in entries]
        except (ValueError, ZeroDivisionError, OverflowError):
            continue
        total = sum(numbers)
        if len(numbers) == len(vector) and abs(total - 1) <= Fraction(10001, 10**6):
            pairs = zip(numbers, vector, strict=True)
            if all(abs(float(a / total) - b) < 1e-9 for a, b in pairs):
                return True
    return False


def plain_number(entry: str) -> Fraction:
    over, _, under = entry.rstrip("%").partition("/")
    number = Fraction(float(over)) / Fraction(float(under or 1))
    return number / 100 if entry.endswith("%") else number


def check(text: str, m: int, n: int) -> str:
    answer = parse(text, m, n)
    assert answer.status in STATUSES
    if answer.valid:
        assert len(answer.row) == m and len(answer.col) == n
        assert all(abs(sum(v) - 1) < 1e-12 and min(v) >= 0 for v in (answer.row, answer.col))
        assert stand_in(text, answer.row) and stand_in(text, answer.col)
        assert re.search("row", text, re.IGNORECASE) and re.search("col", text, re.IGNORECASE)
    else:
        assert answer.row is None and answer.col is None
    return answer.status


PIECES = """
    row col column "row" "col" 'row' : , = [ ] { } ( ) [0.5,0.5] [0.25,0.75] [1,0] [1/2,1/2]
    [50%,50%] [0.5,0.6] [nan,1] [-1,2] [1] [] {"row": "col": ], 0.5 0.25 1 0 % / . - e9 ``` and the
    player's ** [...] not NaN Infinity ]} \u2212 \u0660 \ud800 \u200b \x00
"""
FRAGMENTS = [*PIECES.split(), " ", "\n", "\r\n", "\t", "\u2028", "é", "王"]


def random_answer(rng: random.Random, m: int, n: int) -> str:
    vectors = []
    for size in (m, n):
        weights = [rng.random() ** 3 + 1e-9 for _ in range(size)]
        vectors.append([weight / sum(weights) for weight in weights])
    return reply(*vectors)


def corrupted(rng: random.Random, text: str) -> str:
    """The reply with a few characters lost, doubled, swapped or replaced, or cut, or doubled."""
    for _ in range(rng.randrange(4)):
        place, kind = rng.randrange(len(text) + 1), rng.randrange(5)
        rest = text[place:]
        text = (
            text[:place]
            + (
                rest[1:],
                rest[:1] + rest,
                rest[1:2] + rest[:1] + rest[2:],
                rng.choice(FRAGMENTS) + rest[1:],
                rng.choice(FRAGMENTS) + rest,
            )[kind]
        )
    if rng.random() < 0.2:
        text = text[: rng.randrange(len(text) + 1)]
    return (
        text if rng.random() < 0.7 else f"{text}{rng.choice(FRAGMENTS)}{text[rng.randrange(9) :]}"
    )


# 10,000 fuzzed completions: never an exception, never an invention.
def test_fuzzed_completions():
    rng = random.Random(6)
    counts = dict.fromkeys(STATUSES, 0)
    for number in range(10_000):
        m, n = rng.randrange(1, 4), rng.randrange(1, 4)
        if number % 2:
            text = rng.choice(["", " "]).join(rng.choices(FRAGMENTS, k=rng.randrange(20)))
        else:
            text = corrupted(rng, random_answer(rng, m, n))
        counts[check(text, m, n)] += 1
    # All outcomes happen, so that the check above means something.
    assert min(counts[VALID], counts[NOT_PARSABLE]) > 1000 and counts[NOT_DISTRIBUTION] > 300


@settings(deadline=None, max_examples=300)
@given(st.lists(st.text(max_size=20) | st.sampled_from(FRAGMENTS), max_size=12))
def test_any_text(parts):
    check("".join(parts), 2, 2)
    check(" ".join(parts), 1, 2)


@settings(deadline=None, max_examples=200)
@given(st.text(max_size=60), st.randoms(use_true_random=False), st.integers(1, 12))
def test_a_reply_on_a_last_line_is_always_found(reasoning, rng, size):
    text = random_answer(rng, size, size)
    assert parse(f"{reasoning}\n{text}", size, size) == parse(text, size, size)
    assert parse(text, size, size).valid


def test_no_prompt_answers_itself():
    """Nothing in a prompt is read as an answer; the example of its form is of a 3 by 2 game, so
    that an echo of it answers no square one."""
    system, user = (each["content"] for each in messages(anonymous([[1, -1], [-1, 1]])))
    assert parse(user, 2, 2).status == NOT_PARSABLE
    assert parse(system, 3, 2).valid
    assert all(not parse(system, size, size).valid for size in range(1, 13))
