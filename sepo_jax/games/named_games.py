"""Well-known zero-sum games, by name. Payoffs are the row player's."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class NamedGame:
    """A game that readers may recognise.

    Attributes:
      name: key in `NAMED`.
      title: its common name.
      payoffs: m rows of n numbers.
      row_actions, col_actions: what the players call their actions.
    """

    name: str
    title: str
    payoffs: tuple[tuple[float, ...], ...]
    row_actions: tuple[str, ...]
    col_actions: tuple[str, ...]


def _game(name: str, title: str, payoffs, row_actions: str, col_actions: str = "") -> NamedGame:
    """Actions are separated by commas; those of the columns are those of the rows unless given."""
    table = tuple(tuple(float(entry) for entry in row) for row in np.asarray(payoffs).tolist())
    rows = tuple(row_actions.split(","))
    cols = tuple(col_actions.split(",")) if col_actions else rows
    return NamedGame(name, title, table, rows, cols)


def _beats(count: int, offsets: tuple[int, ...]) -> np.ndarray:
    """Action i beats i + k (mod count) for k in offsets and loses to the others."""
    ahead = (np.arange(count) - np.arange(count)[:, None]) % count
    return np.where(ahead == 0, 0, np.where(np.isin(ahead, offsets), 1, -1))


def _mendelsohn(count: int) -> np.ndarray:
    """One more than the other number wins 1, two or more above it loses 2."""
    above = np.arange(count)[:, None] - np.arange(count)
    wins = np.where(above == 1, 1, np.where(above > 1, -2, 0))
    return wins - wins.T


_LINES = [[0, 1, 2], [3, 4, 5], [0, 3], [1, 4], [2, 5]]  # of a grid of two rows and three columns

# Sources: Blotto, Karlin, "Mathematical Methods and Theory in Games" (1959); Morra, odds and evens,
# Mendelsohn games, Ferguson, "Game Theory"; penalty kick (share of goals), Palacios-Huerta,
# "Professionals play minimax" (2003); Bismarck Sea (days of bombing), Haywood, "Military decision
# and game theory" (1954); hide and seek, von Neumann (1953); biased game, tests of OpenSpiel.
_GAMES = (
    _game("matching_pennies", "Matching Pennies", [[1, -1], [-1, 1]], "Heads,Tails"),
    _game("odds_and_evens", "Odds and Evens", [[-2, 3], [3, -4]], "One,Two"),
    _game(
        "penalty_kick",
        "Penalty Kick",
        [[0.583, 0.9497], [0.9291, 0.6992]],
        "Kick left,Kick right",
        "Dive left,Dive right",
    ),
    _game(
        "bismarck_sea",
        "Battle of the Bismarck Sea",
        [[2, 2], [1, 3]],
        "Search north,Search south",
        "Sail north,Sail south",
    ),
    _game("rock_paper_scissors", "Rock Paper Scissors", _beats(3, (2,)), "Rock,Paper,Scissors"),
    _game(
        "biased_rock_paper_scissors",
        "Biased Rock Paper Scissors",
        [[0, -0.25, 0.5], [0.25, 0, -0.05], [-0.5, 0.05, 0]],
        "Rock,Paper,Scissors",
    ),
    _game(
        "hide_and_seek",
        "Hide and Seek",
        [[1, 0, 0], [0, 2, 0], [0, 0, 3]],
        "Look in the attic,Look in the barn,Look in the cellar",
        "Hide in the attic,Hide in the barn,Hide in the cellar",
    ),
    _game(
        "rock_paper_scissors_well",
        "Rock Paper Scissors Well",
        [[0, -1, 1, -1], [1, 0, -1, 1], [-1, 1, 0, -1], [1, -1, 1, 0]],
        "Rock,Paper,Scissors,Well",
    ),
    _game(
        "morra",
        "Two-Finger Morra",
        [[0, 2, -3, 0], [-2, 0, 0, 3], [3, 0, 0, -4], [0, -3, 4, 0]],
        "Show 1 and call 1,Show 1 and call 2,Show 2 and call 1,Show 2 and call 2",
    ),
    _game(
        "colonel_blotto",
        "Colonel Blotto",
        [[4, 0, 2, 1], [0, 4, 1, 2], [1, -1, 3, 0], [-1, 1, 0, 3], [-2, -2, 2, 2]],
        "4 and 0,0 and 4,3 and 1,1 and 3,2 and 2",
        "3 and 0,0 and 3,2 and 1,1 and 2",
    ),
    # Rock beats scissors and lizard: two and four places ahead in this order.
    _game(
        "rock_paper_scissors_lizard_spock",
        "Rock Paper Scissors Lizard Spock",
        _beats(5, (2, 4)),
        "Rock,Paper,Scissors,Spock,Lizard",
    ),
    _game(
        "line_search",
        "Hide and Seek on a Grid",
        [[float(cell in line) for cell in range(6)] for line in _LINES],
        "Search top row,Search bottom row,Search left column,Search middle column,"
        "Search right column",
        "Hide top left,Hide top middle,Hide top right,Hide bottom left,Hide bottom middle,"
        "Hide bottom right",
    ),
    _game("mendelsohn", "Mendelsohn Game", _mendelsohn(6), "1,2,3,4,5,6"),
    _game(
        "seven_gestures",
        "Rock Paper Scissors Seven",
        _beats(7, (1, 2, 3)),
        "Rock,Fire,Scissors,Sponge,Paper,Air,Water",
    ),
)
NAMED = {game.name: game for game in _GAMES}
