"""The family of Kuhn equilibria against the game, and distances to it."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sepo_jax.evaluation import nash_conv_of_table, table_from_named
from sepo_jax.evaluation import nash_family as family
from sepo_jax.games.kuhn import KUHN, equilibrium_policy


@given(st.floats(0, 1 / 3))
@settings(deadline=None, max_examples=30)
def test_every_member_is_an_equilibrium_and_the_games_own(alpha):
    table = table_from_named(KUHN, family.kuhn_member(alpha)).table
    exact = nash_conv_of_table(KUHN, table)
    assert abs(exact) < 1e-12
    assert exact.values[0] == pytest.approx(family.KUHN_VALUE_TO_FIRST, abs=1e-12)
    np.testing.assert_allclose(table, equilibrium_policy(alpha), atol=1e-12)


def test_uniform_baseline_is_the_games_own():
    assert float(nash_conv_of_table(KUHN, KUHN.uniform_policy())) == pytest.approx(
        family.KUHN_UNIFORM_NASH_CONV, abs=1e-12
    )


@given(st.floats(0, 1 / 3))
@settings(deadline=None, max_examples=30)
def test_a_member_is_its_own_nearest(alpha):
    found = family.compare_to_kuhn_family(family.kuhn_member(alpha))
    assert found.alpha == pytest.approx(alpha, abs=1e-9)
    assert found.root_mean_square < 1e-9
    assert all(row.outside == 0 for row in found.rows.values())


def test_nearest_member_beats_a_grid():
    generator = np.random.default_rng(0)
    for _ in range(20):
        table = {name: [1 - p, p] for name, p in zip(KUHN.infoset_names, generator.random(12))}  # noqa: B905
        found = family.compare_to_kuhn_family(table)
        for alpha in np.linspace(0, 1 / 3, 50):
            member = family.kuhn_member(alpha)
            distance = np.mean([(table[n][1] - member[n][1]) ** 2 for n in table]) ** 0.5
            assert found.root_mean_square <= distance + 1e-12


def test_inside_every_range_is_not_yet_an_equilibrium():
    # J bets 1/3 and K never: each inside its own range, but J calls for alpha 1/3 and K for 0.
    table = family.kuhn_member(0.0) | {"J": [2 / 3, 1 / 3]}
    found = family.compare_to_kuhn_family(table)
    assert all(row.outside == 0 for row in found.rows.values())
    assert found.root_mean_square > 0.05
    assert nash_conv_of_table(KUHN, table_from_named(KUHN, table).table) > 0.01


def test_deviations_are_measured_from_the_range():
    table = family.kuhn_member(0.2) | {"Q": [0.75, 0.25], "Kb": [0.1, 0.9], "J": [0.5, 0.5]}
    rows = family.compare_to_kuhn_family(table).rows
    assert rows["Q"].outside == pytest.approx(0.25)
    assert rows["Kb"].outside == pytest.approx(0.1)
    assert rows["J"].outside == pytest.approx(0.5 - 1 / 3)
    assert rows["K"].outside == 0


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({}, "none given"),
        ({"A": [0.5, 0.5]}, "'A'"),
        ({"J": [0.5, math.nan]}, "two finite"),
        ({"J": [0.2, 0.3, 0.5]}, "two finite"),
        ({"J": [5, -3]}, "two finite"),
        ({"J": [5, -4]}, "two finite"),
        ({"K": [0.7, 0.7]}, "sum to 1"),
        ({"J": [math.inf, 0.5]}, "two finite"),
    ],
)
def test_other_tables_are_refused(table, message):
    with pytest.raises(ValueError, match=message):
        family.compare_to_kuhn_family(table)


def test_alpha_outside_the_family_is_refused():
    with pytest.raises(ValueError, match="0 <= alpha <= 1/3"):
        family.kuhn_member(0.5)
