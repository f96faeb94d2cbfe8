"""Scripted players of Kuhn poker, written as tables of action probabilities.

The SEPO sources (2605.30854) name these players without saying how they play, so the tables of
`opponent_tables` and `expert_tables` are this project's reading of the names. `faithful=True` keeps
the one slip of the published code that changes the game: its NashApprox calls with a queen after
check-bet one time in three, where the equilibrium with alpha = 1/3 needs two times in three.
"""

from collections.abc import Sequence

CARDS = "JQK"
FIRST_INFOSETS = tuple(card + history for history in ("", "pb") for card in CARDS)
SECOND_INFOSETS = tuple(card + history for history in ("p", "b") for card in CARDS)
INFOSETS = FIRST_INFOSETS + SECOND_INFOSETS


def _table(**rows: Sequence[float]) -> dict[str, tuple[float, float]]:
    """A table from the probabilities of action 1 with J, Q and K at each history."""
    histories = {"open": "", "after_pass": "p", "facing_bet": "b", "after_pass_bet": "pb"}
    return {
        card + histories[row]: (1.0 - aggressive, aggressive)
        for row, values in rows.items()
        for card, aggressive in zip(CARDS, map(float, values), strict=True)
    }


def nash_approx_table(alpha: float = 1 / 3, faithful: bool = False) -> dict:
    """A member of the equilibrium family of Kuhn poker, alpha in [0, 1/3].

    First mover: bets J with alpha, never Q, K with 3 alpha; after check-bet calls Q with
    1/3 + alpha. Second mover: bets J after a pass with 1/3, calls Q with 1/3. With
    `faithful` the Q call after check-bet stays at 1/3, as in the authors' code.
    """
    if not 0.0 <= alpha <= 1 / 3:
        raise ValueError(f"alpha must lie in [0, 1/3], not {alpha}")
    return _table(
        open=(alpha, 0, min(1.0, 3 * alpha)),
        after_pass_bet=(0, 1 / 3 if faithful else 1 / 3 + alpha, 1),
        after_pass=(1 / 3, 0, 1),
        facing_bet=(0, 1 / 3, 1),
    )


def _same(open_row: Sequence[float], call_row: Sequence[float]) -> dict:
    """A table that bets by one row and calls by another, whatever the seat."""
    return _table(open=open_row, after_pass=open_row, facing_bet=call_row, after_pass_bet=call_row)


def opponent_tables(faithful: bool = False) -> dict[str, dict]:
    """What each scripted opponent plays, by name.

    TightPassive never bets and calls with a king only. LooseAggressive bets most hands and calls
    wide. AlwaysBet bets and calls with everything. MaxExploiter bluffs every jack, bets every king
    and never pays off with a jack.
    """
    return {
        "NashApprox": nash_approx_table(faithful=faithful),
        "TightPassive": _same((0, 0, 0), (0, 0, 1)),
        "LooseAggressive": _same((0.75, 0.75, 1), (0.25, 0.75, 1)),
        "AlwaysBet": _same((1, 1, 1), (1, 1, 1)),
        "MaxExploiter": _same((1, 0, 1), (0, 1, 1)),
    }


def expert_tables(faithful: bool = False) -> dict[str, dict]:
    """What each expert of the warm start plays, by name.

    TightValue bets and calls with a king only. PotControl never opens, bets a king after a pass,
    and calls half of its queens. AlwaysPassQ is NashApprox that never puts a chip in with a queen.
    """
    nash = nash_approx_table(faithful=faithful)
    return {
        "NashApprox": nash,
        "TightValue": _same((0, 0, 1), (0, 0, 1)),
        "PotControl": _table(
            open=(0, 0, 0),
            after_pass=(0, 0, 1),
            facing_bet=(0, 0.5, 1),
            after_pass_bet=(0, 0.5, 1),
        ),
        "RandomLegal": _same((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
        "AlwaysPassQ": {
            name: (1.0, 0.0) if name.startswith("Q") else row for name, row in nash.items()
        },
    }


EXPERT_WEIGHTS = {
    "NashApprox": 0.45,
    "TightValue": 0.25,
    "PotControl": 0.20,
    "RandomLegal": 0.08,
    "AlwaysPassQ": 0.02,
}
"""Mixture of the paper's warm start (SEPO, authors' data generator)."""
