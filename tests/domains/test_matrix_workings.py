"""Best replies as text."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from sepo_jax.domains.matrix_game import anonymous, named, parse, workings
from sepo_jax.games import matrix


def read(text):
    """{action: best reply} of either player, columns first."""
    return [dict(pair.split(": ") for pair in half.split(", ")) for half in text.split("; ")]


@pytest.mark.parametrize(
    ("payoffs", "text"),
    [
        # 0.25 > 0.24 and 0.92 > -0.59; the column player takes the smaller of each row.
        ([[0.25, 0.92], [0.24, -0.59]], "B1: A1, B2: A1; A1: B1, A2: B2"),
        ([[1, -1], [-1, 1]], "B1: A1, B2: A2; A1: B2, A2: B1"),  # a cycle: no pure equilibrium
        ([[0, 0], [0, 0]], "B1: A1, B2: A1; A1: B1, A2: B1"),  # of equals the earlier
        ([[3]], "B1: A1; A1: B1"),
        ([[1, 2, 0]], "B1: A1, B2: A1, B3: A1; A1: B3"),
    ],
)
def test_known_games(payoffs, text):
    assert workings(anonymous(payoffs)) == text


def test_named_games_are_worked_under_their_names():
    game = named([[0, -1, 1], [1, 0, -1], [-1, 1, 0]], "RPS", *[["Rock", "Paper", "Scissors"]] * 2)
    assert workings(game).startswith("Rock: Paper, Paper: Scissors, Scissors: Rock; Rock: Paper")


@settings(deadline=None)
@given(
    arrays.arrays(
        np.float64,
        st.tuples(st.integers(1, 5), st.integers(1, 5)),
        elements=st.integers(-99, 99).map(lambda hundredths: hundredths / 100),
    )
)
def test_each_reply_is_best_and_mutual_ones_are_equilibria(table):
    m, n = table.shape
    text = workings(anonymous(table.tolist()))
    to_columns, to_rows = read(text)
    assert not parse(text, m, n).valid
    for column in range(n):
        row = int(to_columns[f"B{column + 1}"][1:]) - 1
        assert table[row, column] == table[:, column].max()
        if to_rows[f"A{row + 1}"] == f"B{column + 1}":
            gap = matrix.nash_conv(table, np.eye(m)[row], np.eye(n)[column])
            assert float(gap) == pytest.approx(0.0, abs=1e-6)
    for row in range(m):
        column = int(to_rows[f"A{row + 1}"][1:]) - 1
        assert table[row, column] == table[row].min()
