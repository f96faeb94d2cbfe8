"""Rewards of single replies to matrix games."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from sepo_jax.domains.matrix_game import VALID, Answer, anonymous, messages, reply
from sepo_jax.domains.matrix_rules import MatrixRules, game_of_task, relative_residual

RULES = MatrixRules()
PENNIES = {"arm": "named", "game": anonymous([[1, -1], [-1, 1]]).record()}


@pytest.mark.parametrize(
    ("text", "reward", "status"),
    [
        (reply([0.5, 0.5], [0.5, 0.5]), 1.0, "valid"),
        # Row heads always: the best response wins 1 more than the value, of a range of 2.
        (reply([1, 0], [0.5, 0.5]), 0.5, "valid"),
        (reply([1, 0], [1, 0]), 0.0, "valid"),
        ('{"row": [0.9, 0.9], "col": [0.5, 0.5]}', 0.0, "not_distribution"),
        ("both at random", 0.0, "not_parsable"),
        ("", 0.0, "not_parsable"),
    ],
)
def test_rewards_of_matching_pennies(text, reward, status):
    earned, record = RULES.judge(PENNIES, text)
    assert earned == pytest.approx(reward, abs=1e-12)
    assert record["status"] == status and record["valid"] == (status == "valid")
    assert record["success"] == (reward == 1.0)
    assert record["residual"] == (pytest.approx(1 - reward) if record["valid"] else None)
    assert json.loads(json.dumps(record)) == record


def test_the_prompt_is_that_of_the_game():
    assert RULES.messages(PENNIES) == messages(game_of_task(PENNIES))


@given(
    arrays(float, (3, 2), elements=st.floats(-1, 1, width=32)),
    st.lists(st.integers(1, 9), min_size=5, max_size=5),
    st.integers(-30, 30),
    st.floats(-4, 4),
)
def test_neither_unit_nor_offset_counts(table, weights, exponent, offset):
    row = tuple(weight / sum(weights[:3]) for weight in weights[:3])
    col = tuple(weight / sum(weights[3:]) for weight in weights[3:])
    answer = Answer(VALID, row, col)
    found = relative_residual(table.tolist(), answer)
    assert 0 <= found <= 1
    assert relative_residual((table * 2.0**exponent).tolist(), answer) == pytest.approx(found)
    spread = table.max() - table.min()
    if spread > 1e-3:
        moved = relative_residual((table + offset).tolist(), answer)
        assert moved == pytest.approx(found, abs=1e-9)


def test_equal_payoffs_and_extreme_ones():
    uniform = Answer(VALID, (0.5, 0.5), (0.5, 0.5))
    assert relative_residual([[7.0, 7.0], [7.0, 7.0]], uniform) == 0.0
    # max_i (A y)_i = 0.5 and min_j (x A)_j = -0.5 of the range 2, as in units of 1e300.
    assert relative_residual([[1e300, -1e300], [-1e300, 1e300]], uniform) == 0.0
    pure = Answer(VALID, (1.0, 0.0), (0.5, 0.5))
    assert relative_residual([[1e300, -1e300], [-1e300, 1e300]], pure) == pytest.approx(0.5)


@pytest.mark.parametrize("task", [None, {}, {"arm": "x"}, {"arm": "x", "game": {}}, "game"])
def test_what_is_no_task_is_refused(task):
    with pytest.raises(ValueError, match=r"a task is|a record of a matrix game has"):
        RULES.messages(task)
