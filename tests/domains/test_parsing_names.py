"""Numbers that stand beside names on the last line, in any order of the names."""

import time

import pytest

from sepo_jax.domains.parsing import parse_named_numbers, parse_numbers

NAMES = ("Books", "Hats", "Balls")


@pytest.mark.parametrize(
    "text",
    [
        "Books: 1, Hats: 2, Balls: 0",
        "Books 1, Hats 2, Balls 0",
        "**Books:** 1, **Hats:** 2, **Balls:** 0.",
        "My demand: books=1; hats=2; balls=0",
        '{"Books": 1, "Hats": 2, "Balls": 0}',
        "I demand 1 book, 2 hats, and 0 balls.",
        "1 Books 2 Hats 0 Balls",
        "**2** hats, **1** book & **0** balls",  # in another order
        "\\boxed{1 \\text{ Book}, 2 \\text{ Hats}, 0 \\text{ Balls}}",
    ],
)
def test_named_numbers(text):
    assert parse_named_numbers(text, NAMES) == (1, 2, 0)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1 2 0",
        "Books, Hats, Balls: 1 2 0",
        "Books: 1, Hats: 2",
        "Books: 1, Hats: 2, Hats: 0",
        "Books: 1, Hats: 2, Balls: 0, Books: 1",
        "1 book, hats: 2, 0 balls",
        "notebooks: 1, hats: 2, balls: 0",
        "1 bookshelf, 2 hats, 0 balls",
        "Books1, Hats2, Balls0",
        "-1 book, 2 hats, 0 balls",
        "Books: 1, Hats: -2, Balls: 0",
        "Books: 1.5, Hats: 2, Balls: 0",
        "Books: 1, Hats: 2, Balls: 0%",
        "Books: 1, Hats: 2, Balls: 01",
        "not 1 book, 2 hats, 0 balls",
        "1 book, 2 hats or 0 balls",
        "more than 1 book, 2 hats, 0 balls",
        "1 book, 2 hats, 0 balls in round 2",
        "1 book, 2 hats, 0 balls\nThat is fair.",
        "Books 2, Hats 3, Balls 5. Pool: Books 4, Hats 3, Balls 1.",
    ],
)
def test_named_numbers_that_are_none(text):
    assert parse_named_numbers(text, NAMES) is None


@pytest.mark.parametrize(
    "text",
    [
        *(f"Books: 1{gap * 5000}x" for gap in (" ", "*", " *", ", ")),
        *(f"{word * 2000}1" for word in ("Books ", "1, ", "$", "\\boxed{", "n!", "</", "and , ")),
    ],
)
def test_long_lines_are_read_quickly(text):
    start = time.process_time()
    assert parse_named_numbers(text, NAMES) is parse_numbers(text, 3) is None
    assert time.process_time() - start < 2.0  # milliseconds; a search gone wrong takes minutes
