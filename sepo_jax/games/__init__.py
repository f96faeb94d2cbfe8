"""Exact game theory on arrays.

- `matrix`: NashConv, exploitability and best-response gains of batches of matrix games.
- `solve`, `exact`: equilibria of zero-sum matrix games, in certified floats (numpy or JAX) and in
  fractions.
- `generate`, `named_games`: random and well-known matrix games, padding, disjoint splits.
- `tree`: two-player games in extensive form, compiled to arrays: values, best responses, NashConv
  of batches of policies. `compiler` says what rules must offer, `explicit` writes small games by
  hand, `open_spiel` brings in OpenSpiel's.
- `equilibrium`: equilibria of constant-sum tree games by linear programming, CFR and CFR+.
- `kuhn`, `leduc`: two poker games.

NashConv is the sum of both players' best-response gains and 0 exactly at a Nash equilibrium;
exploitability is half of it and defined for constant-sum games only.
"""

from sepo_jax.games import generate, matrix
from sepo_jax.games import leduc as _leduc
from sepo_jax.games.compiler import CHANCE, State, TreeGame, compile_game
from sepo_jax.games.equilibrium import (
    TreeEquilibrium,
    cfr,
    cfr_plus,
    check_equilibrium,
    solve_sequence_form,
)
from sepo_jax.games.exact import ExactEquilibrium, solve_exact
from sepo_jax.games.explicit import Chance, Decision, Leaf, from_matrix
from sepo_jax.games.kuhn import KUHN
from sepo_jax.games.open_spiel import from_open_spiel
from sepo_jax.games.solve import Equilibrium, solve_zero_sum
from sepo_jax.games.tree import (
    best_response,
    best_response_values,
    check_policy,
    expected_values,
    exploitability,
    gains,
    nash_conv,
    normal_form,
)

__all__ = [
    "CHANCE",
    "KUHN",
    "LEDUC",
    "Chance",
    "Decision",
    "Equilibrium",
    "ExactEquilibrium",
    "Leaf",
    "State",
    "TreeEquilibrium",
    "TreeGame",
    "best_response",
    "best_response_values",
    "cfr",
    "cfr_plus",
    "check_equilibrium",
    "check_policy",
    "compile_game",
    "expected_values",
    "exploitability",
    "from_matrix",
    "from_open_spiel",
    "gains",
    "generate",
    "matrix",
    "nash_conv",
    "normal_form",
    "solve_exact",
    "solve_sequence_form",
    "solve_zero_sum",
]


def __getattr__(name: str) -> TreeGame:
    # Compiled on first use, as in `leduc`.
    if name == "LEDUC":
        return _leduc.LEDUC
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
