"""The residual follows the payoffs, the vertex of a linear program jumps: measured, not trained.

For fixed strategies x, y the residual is r_A = max_i (A y)_i - min_j (xᵀ A)_j. No entry of A y or
xᵀ A changes by more than d = max_ij |A_ij - B_ij|, so |r_A - r_B| <= 2 d.
"""

import jax
import numpy as np

from sepo_jax.evaluation.claims import Finding
from sepo_jax.evaluation.results import source_commit
from sepo_jax.games.matrix import nash_conv
from sepo_jax.games.solve import solve_zero_sum

from .base import Measured, Panel, mean_of
from .runs import Runs

SHAPES = ((2, 2), (3, 3), (4, 6), (7, 7))
DRAWS = 100_000
SEED = 0
CONSTANT = 2.0
ROUNDING = 1e-9  # of ratios, whose distances are at least 1e-4 in float64
JUMP = 1.0  # L1 move that is one, however close the payoffs; another action played purely is 2
EPSILONS = tuple(10.0**-k for k in range(1, 13))
# Row payoffs [m, n], to be multiplied by e: the paper's, in which one player has more than one
# optimal strategy, and one in which the jumping player has a single one for either sign.
JUMPS = {"[[e,0],[0,0]]": ((1, 0), (0, 0)), "[[e,e],[0,0]]": ((1, 1), (0, 0))}


def residual(payoffs: np.ndarray, row: np.ndarray, col: np.ndarray) -> np.ndarray:
    """NashConv in float64, [...]."""
    with jax.enable_x64(True):
        return np.asarray(nash_conv(payoffs, row, col))


def worst_payoffs(
    payoffs: np.ndarray, row: np.ndarray, col: np.ndarray, distance: np.ndarray
) -> np.ndarray:
    """The payoffs B within `distance` of A whose residual for (x, y) is largest.

    r_B is the largest of (B y)_i - (xᵀ B)_j over all (i, j), and each of these is largest where row
    i is raised and column j lowered by d as a whole: 2 d, less what cell (i, j) costs the player
    whose sign it does not have, 2 d min(x_i, y_j).

    Args:
      payoffs: A, [G, m, n]. row, col: x [G, m], y [G, n]. distance: d, [G].

    Returns:
      B, [G, m, n].
    """
    upper = np.einsum("gij,gj->gi", payoffs, col)
    lower = np.einsum("gij,gi->gj", payoffs, row)
    lost = np.minimum(row[:, :, None], col[:, None, :])
    gap = upper[:, :, None] - lower[:, None, :] - 2 * distance[:, None, None] * lost
    games, n = np.arange(len(payoffs)), payoffs.shape[2]
    i, j = np.divmod(gap.reshape(len(payoffs), -1).argmax(axis=1), n)
    changed = payoffs.copy()
    changed[games, i] += distance[:, None]
    changed[games, :, j] -= distance[:, None]
    # The shared cell was moved both ways; it takes the sign that costs less.
    raised = np.where(row[games, i] <= col[games, j], distance, -distance)
    changed[games, i, j] = payoffs[games, i, j] + raised
    return changed


def drawn(count: int, m: int, n: int, generator: np.random.Generator) -> tuple[np.ndarray, ...]:
    """A [G, m, n], x [G, m], y [G, n] and distances [G], from unrelated games down to 1e-4.

    Strategies are uniform over the simplex to nearly pure; one in four is pure.
    """
    payoffs = generator.uniform(-1, 1, (count, m, n))
    strategies = []
    for size in (m, n):
        mixed = generator.dirichlet(np.full(size, 0.3), count)
        pure = np.eye(size)[generator.integers(size, size=count)]
        strategies.append(np.where(generator.random(count)[:, None] < 0.25, pure, mixed))
    return payoffs, *strategies, 10 ** generator.uniform(-4, 0.3, count)


def ratios(first, second, row, col) -> np.ndarray:
    """|r_A - r_B| / max |A - B| for each game."""
    change = np.abs(residual(first, row, col) - residual(second, row, col))
    return change / np.abs(first - second).max(axis=(1, 2))


def largest_ratios(draws: int) -> dict[str, dict[str, float]]:
    """Largest ratio for random and for worst B, by size; `draws` games in all."""
    generator = np.random.default_rng(SEED)
    found: dict[str, dict[str, float]] = {"random": {}, "worst": {}}
    for m, n in SHAPES:
        payoffs, row, col, distance = drawn(draws // len(SHAPES), m, n, generator)
        noise = generator.uniform(-1, 1, payoffs.shape) * distance[:, None, None]
        others = {
            "random": payoffs + noise,
            "worst": worst_payoffs(payoffs, row, col, distance),
        }
        for kind, other in others.items():
            found[kind][f"{m}x{n}"] = float(ratios(payoffs, other, row, col).max())
    return found


def jumps(pattern: tuple[tuple[int, int], ...]) -> tuple[list[float], list[float]]:
    """What a change of sign of e does, for each of `EPSILONS`: payoffs are 2 e apart.

    Returns:
      How far the solver's vertex moves, in L1 of the player who moves more; and how much the
      residual of either vertex changes, divided by 2 e.
    """
    moves, changes = [], []
    for epsilon in EPSILONS:
        above = epsilon * np.array(pattern, float)
        games = (above, -above)
        answers = [solve_zero_sum(game) for game in games]
        first, second = answers
        moves.append(
            max(np.abs(first.row - second.row).sum(), np.abs(first.col - second.col).sum())
        )
        change = [
            abs(float(residual(games[0], a.row, a.col) - residual(games[1], a.row, a.col)))
            for a in answers
        ]
        changes.append(max(change) / (2 * epsilon))
    return moves, changes


def lipschitz(bench: Runs) -> Measured:
    """No ratio above 2, random or worst; a jump of 2 in the vertex where the residual has none.

    All of it decides but what is shown of the second example, where no solver could avoid the jump.
    """
    found = largest_ratios(2000 if bench.quick else DRAWS)
    bench.note(source_commit(), [SEED])
    moved = {name: jumps(pattern) for name, pattern in JUMPS.items()}
    paper, forced = moved
    most = {kind: max(by_size.values()) for kind, by_size in found.items()}
    least = {name: mean_of([min(moves)]) for name, (moves, _) in moved.items()}
    change = {name: mean_of([max(changes)]) for name, (_, changes) in moved.items()}
    excess = {kind: mean_of([ratio - CONSTANT]) for kind, ratio in most.items()}
    findings = [
        Finding("|r_A - r_B| / max|A - B| less 2, random B", excess["random"], "below", ROUNDING),
        Finding("the same, worst B", excess["worst"], "below", ROUNDING),
        Finding(f"least L1 move of the vertex, {paper}", least[paper], "above", JUMP),
        Finding(f"largest change of r / 2e, {paper}", change[paper], "below", CONSTANT + ROUNDING),
        Finding(f"least L1 move, {forced}", least[forced]),
        Finding(f"largest change of r / 2e, {forced}", change[forced]),
        *(Finding(f"largest ratio, {kind} B", mean_of([ratio])) for kind, ratio in most.items()),
    ]
    by_size = {f"{size}, {kind} B": [r] for kind, each in found.items() for size, r in each.items()}
    by_game = {}
    for name, (moves, changes) in moved.items():
        by_game |= {f"vertex, {name}": moves, f"r / 2e, {name}": changes}
    panels = [
        Panel("largest |r_A - r_B| / max|A - B|", by_size, CONSTANT),
        Panel("changes as e changes sign", by_game, CONSTANT),
    ]
    return Measured(findings, panels)
