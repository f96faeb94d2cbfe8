"""Matrix games as text: tasks, prompts, canonical replies."""

import dataclasses
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sepo_jax.domains.matrix_game import (
    Answer,
    MatrixTask,
    anonymous,
    messages,
    named,
    parse,
    relabelled,
    reply,
)

PENNIES = ((1.0, -1.0), (-1.0, 1.0))
NAMED = named(PENNIES, "Matching pennies", ("heads", "tails"), ("heads", "tails"))


def test_a_prompt_word_for_word():
    system, user = messages(named([[1, -0.25, 3]], "Toll", ["go"], ["a", "b c", "d"]))
    assert (system["role"], user["role"]) == ("system", "user")
    for said in ("zero-sum", "row player", "column player", '{"row": [', '"col": ['):
        assert said in system["content"]
    assert user["content"] == (
        "Game: Toll\nColumns: a, b c, d\nRows with payoffs:\ngo: +1.00 -0.25 +3.00"
    )


def test_named_and_anonymous_prompts_differ_in_words_alone():
    (first, second), (same, other) = messages(NAMED), messages(anonymous(PENNIES))
    assert first == same
    renamed = second["content"].replace("Matching pennies", "anonymous")
    renamed = renamed.replace("Columns: heads, tails", "Columns: B1, B2")
    renamed = renamed.replace("heads:", "A1:").replace("tails:", "A2:")
    assert renamed == other["content"]


def test_relabelled():
    game = named([[1, 2], [3, 4], [5, 6]], "G", ("a", "b", "c"), ("x", "y"))
    swapped = relabelled(game)
    assert swapped == MatrixTask(game.payoffs, ("b", "c", "a"), ("y", "x"), "G")
    neutral = relabelled(game, "neutral")
    assert neutral == dataclasses.replace(anonymous(game.payoffs), title="G")
    with pytest.raises(ValueError, match=r"unknown how 'swaped'.*Did you mean 'swapped'"):
        relabelled(game, "swaped")


TABLES = st.integers(1, 4).flatmap(
    lambda n: st.lists(
        st.lists(st.floats(-1e300, 1e300), min_size=n, max_size=n), min_size=1, max_size=4
    )
)


@settings(deadline=None, max_examples=200)
@given(TABLES)
def test_tasks_go_through_json_and_prompts_hold_the_payoffs(payoffs):
    task = anonymous(payoffs)
    assert MatrixTask.from_record(json.loads(json.dumps(task.record()))) == task
    assert hash(task) == hash(anonymous(np.array(payoffs)))
    lines = messages(task)[1]["content"].splitlines()[3:]
    shown = [[float(cell) for cell in line.partition(": ")[2].split(" ")] for line in lines]
    assert shown == payoffs


@pytest.mark.parametrize(
    ("payoffs", "shown"),
    [
        ([[0.1 + 0.2 - 0.3 + 0.29]], "+0.29000000000000004"),  # not 0.29
        ([[-0.0, 1]], "+0.00 +1.00"),
        ([[1e-9, 1]], "+1e-09 +1.0"),
        ([[1e12, -0.5]], "+1000000000000.0 -0.5"),
        ([[1000000.25 - 1, 7]], "+999999.25 +7.00"),
    ],
)
def test_every_scale_is_shown_exactly(payoffs, shown):
    assert messages(anonymous(payoffs))[1]["content"].endswith(f"A1: {shown}")


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ([1.0], "1.00"),
        ([1 / 3] * 3, "0.34, 0.33, 0.33"),  # equal remainders: the first action
        ([1 / 6, 1 / 2, 1 / 3], "0.17, 0.50, 0.33"),  # remainders .67, 0, .33 of a hundredth
        ([0.29, 0.71], "0.29, 0.71"),  # 100 * 0.29 is 28.999999999999996
        ([0.0, 1.0], "0.00, 1.00"),
        ([0.005, 0.995], "0.01, 0.99"),
        ([1 / 7] * 7, "0.15, 0.15, 0.14, 0.14, 0.14, 0.14, 0.14"),
    ],
)
def test_replies_by_hand(row, text):
    assert reply(row, [1.0]) == f'{{"row": [{text}], "col": [1.00]}}'


WEIGHTS = st.lists(st.floats(0, 1), min_size=1, max_size=16).filter(lambda w: sum(w) > 1e-6)


@settings(deadline=None, max_examples=300)
@given(WEIGHTS, WEIGHTS)
def test_replies_round_by_less_than_they_promise_and_parse_back(first, second):
    row, col = (np.array(weights) / sum(weights) for weights in (first, second))
    text = reply(row, col)
    said = json.loads(text)
    answer = parse(text, len(row), len(col))
    assert answer.valid
    for exact, printed, read in ((row, said["row"], answer.row), (col, said["col"], answer.col)):
        hundredths = [round(100 * share) for share in printed]
        assert sum(hundredths) == 100 and np.allclose(printed, np.array(hundredths) / 100, atol=0)
        assert np.abs(printed - exact).max() < 0.01
        assert np.abs(printed - exact).sum() <= len(exact) / 200 + 1e-9
        assert read == pytest.approx(printed, abs=1e-12)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: anonymous([]), r"payoffs have 0 rows of lengths \[\]; give m rows of n numbers"),
        (lambda: anonymous([[]]), r"1 rows of lengths \[0\]"),
        (lambda: anonymous([[1, 2], [3]]), r"2 rows of lengths \[1, 2\]"),
        (lambda: anonymous([1, 2]), "must be rows of numbers"),
        (lambda: anonymous([["x"]]), "must be rows of numbers"),
        (lambda: anonymous([[float("nan")]]), "NaN or infinity"),
        (lambda: anonymous([[10**400]]), "must be rows of numbers"),
        (lambda: anonymous([["1", "2"]]), "must be rows of numbers"),
        (lambda: anonymous("12"), "must be rows of numbers, not '12'"),
        (lambda: named(PENNIES, "G", None, "ab"), "row_actions must be 2 different labels.*None"),
        (lambda: named(PENNIES, "G", "ab", [["a"], ["b"]]), "col_actions must be 2 different"),
        (lambda: Answer("valid"), "a valid one has both vectors"),
        (lambda: Answer("valid", (1.0,)), "a valid one has both vectors"),
        (lambda: Answer("not_parsable", (1.0,), (1.0,)), "any other none"),
        (lambda: Answer("vald"), "unknown status 'vald'. Did you mean 'valid'"),
        (lambda: named(PENNIES, "", "ab", "ab"), "needs a title; use anonymous"),
        (lambda: named(PENNIES, "two\nlines", "ab", "ab"), "title must be one line"),
        (lambda: named(PENNIES, "G", "abc", "ab"), "row_actions must be 2 different labels"),
        (lambda: named(PENNIES, "G", "ab", "aa"), "col_actions must be 2 different labels"),
        (lambda: named(PENNIES, "G", ("a", ""), "ab"), "row_actions must be 2 different labels"),
        (lambda: MatrixTask.from_record({"payoffs": [[1]]}), "payoffs, row_actions, col_actions"),
        (lambda: MatrixTask.from_record([1]), r"a record of a matrix game has .*got \[1\]"),
        (lambda: reply([0.5, 0.6], [1]), "row must be probabilities that sum to 1"),
        (lambda: reply([1], [float("nan")]), "col must be probabilities"),
        (lambda: reply([1.5, -0.5], [1]), "row must be probabilities"),
        (lambda: reply([], [1]), "row must be probabilities"),
        (lambda: parse("", 0, 2), "m must be at least 1, not 0"),
        (lambda: parse("", 2, 1.5), "n must be an integer, not 1.5"),
    ],
)
def test_bad_input(make, message):
    with pytest.raises(ValueError, match=message):
        make()
