"""Well-known games have their known values."""

from fractions import Fraction

import numpy as np
import pytest

from sepo_jax.games import matrix, solve_exact
from sepo_jax.games.generate import NAMED, NamedGame

KICK = [Fraction(entry, 10_000) for entry in (5830, 9497, 9291, 6992)]
# Mixed 2x2 games: (a d - b c) / (a + d - b - c).
KICK_VALUE = (KICK[0] * KICK[3] - KICK[1] * KICK[2]) / (KICK[0] + KICK[3] - KICK[1] - KICK[2])
VALUES = {
    "matching_pennies": 0,
    "odds_and_evens": Fraction(1, 12),  # Ferguson: 7/12 one, 5/12 two
    "penalty_kick": KICK_VALUE,
    "bismarck_sea": 2,  # saddle point: both go north
    "rock_paper_scissors": 0,
    "biased_rock_paper_scissors": 0,
    "hide_and_seek": Fraction(6, 11),  # 1 / (1 + 1/2 + 1/3)
    "rock_paper_scissors_well": 0,
    "morra": 0,
    "colonel_blotto": Fraction(14, 9),
    "rock_paper_scissors_lizard_spock": 0,
    "line_search": Fraction(1, 2),  # two lines cover the grid, no fewer
    "mendelsohn": 0,
    "seven_gestures": 0,
}
# Optimal row strategies, in games that have just one.
ROWS = {
    "matching_pennies": [Fraction(1, 2)] * 2,
    "odds_and_evens": [Fraction(7, 12), Fraction(5, 12)],
    "rock_paper_scissors": [Fraction(1, 3)] * 3,
    "biased_rock_paper_scissors": [Fraction(1, 16), Fraction(10, 16), Fraction(5, 16)],
    "hide_and_seek": [Fraction(6, 11), Fraction(3, 11), Fraction(2, 11)],
    "rock_paper_scissors_well": [0, Fraction(1, 3), Fraction(1, 3), Fraction(1, 3)],
    "colonel_blotto": [Fraction(4, 9), Fraction(4, 9), 0, 0, Fraction(1, 9)],
    "rock_paper_scissors_lizard_spock": [Fraction(1, 5)] * 5,
    "mendelsohn": [Fraction(1, 4), Fraction(1, 2), Fraction(1, 4), 0, 0, 0],
    "seven_gestures": [Fraction(1, 7)] * 7,
}


def solved(game):
    """In the decimals that the payoffs are written with."""
    return solve_exact([[Fraction(repr(entry)) for entry in row] for row in game.payoffs])


@pytest.mark.parametrize("name", NAMED)
def test_known_values(name):
    solution = solved(NAMED[name])
    assert solution.value == VALUES[name]
    if name in ROWS:
        assert list(solution.row) == ROWS[name]


def test_published_frequencies_of_penalty_kicks():
    solution = solved(NAMED["penalty_kick"])
    # Palacios-Huerta (2003): kickers left 38.54%, goalkeepers left 41.99%.
    assert round(float(solution.row[0]), 4) == 0.3854
    assert round(float(solution.col[0]), 4) == 0.4199


def test_games_are_complete_and_of_the_promised_sizes():
    assert len(NAMED) >= 8
    sizes = set()
    for name, game in NAMED.items():
        assert isinstance(game, NamedGame) and game.name == name and game.title
        m, n = np.shape(game.payoffs)
        sizes |= {m, n}
        for actions, size in ((game.row_actions, m), (game.col_actions, n)):
            assert len(set(actions)) == size and all(actions)
        assert np.ptp(np.array(game.payoffs)) > 0
    assert sizes == {2, 3, 4, 5, 6, 7}


def test_games_of_gestures_are_symmetric():
    for name, game in NAMED.items():
        if name.startswith(("rock", "biased", "morra", "mendelsohn", "seven")):
            matrix.require_symmetric(game.payoffs)
            assert game.row_actions == game.col_actions


def test_who_beats_whom():
    game = NAMED["rock_paper_scissors_lizard_spock"]
    beats = {
        "Rock": {"Scissors", "Lizard"},
        "Paper": {"Rock", "Spock"},
        "Scissors": {"Paper", "Lizard"},
        "Lizard": {"Spock", "Paper"},
        "Spock": {"Scissors", "Rock"},
    }
    for action, row in zip(game.row_actions, game.payoffs, strict=True):
        wins = {other for other, gain in zip(game.col_actions, row, strict=True) if gain > 0}
        assert wins == beats[action]
