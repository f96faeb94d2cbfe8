"""Scores of answers to zero-sum matrix games, beside those of uniform, pure and exact play.

    scores = score_answers(payoffs, answers)            # arrays [G], a game each
    rows = summarise(scores, arms)                      # a row an arm, rates with intervals
    rewards = residual_reward(payoffs, answers)         # for training

Residuals are divided by the payoff range of their game (max - min), so that no scale or offset of
the payoffs changes them. Whether an answer can be read at all is a column of its own: strategy is
judged given a valid answer, too.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from ..domains.matrix_game import NOT_PARSABLE, VALID, Answer, parse, reply
from ..domains.matrix_rules import ROUNDING, THRESHOLD, unit_range
from ..games import matrix
from ..games.solve import Equilibrium, solve_zero_sum
from ..sepo.metrics import Estimate, rate
from .statistics import Interval, bootstrap_interval

THRESHOLDS = tuple(hundredths / 100 for hundredths in range(51))
_nash_conv = jax.jit(matrix.nash_conv)

Payoffs = Sequence[Any] | np.ndarray
"""G games: an array [G, m, n], or arrays [m_g, n_g] of any sizes."""


@dataclass(frozen=True)
class Scores:
    """Scores of G answers, arrays [G]; residuals are NaN where the answer is not valid.

    Attributes:
      parsable: whether two vectors stood in the reply. valid: whether they are strategies.
      residual: two-sided residual (max_i (A y)_i - min_j (xᵀ A)_j) / range, in [0, 1].
      row_residual: the row player's share of it, (v - min_j (xᵀ A)_j) / range with the game value
        v, in [0, 1].
    """

    parsable: np.ndarray
    valid: np.ndarray
    residual: np.ndarray
    row_residual: np.ndarray

    def success(self, threshold: float = THRESHOLD) -> np.ndarray:
        """bool[G]: a valid answer of a two-sided residual of at most `threshold` of the range."""
        # NaN fails.
        return self.residual <= threshold + ROUNDING

    @property
    def reward(self) -> np.ndarray:
        """1 - min(1, residual) of valid answers, 0 of all others, float64[G]."""
        return np.where(self.valid, 1 - np.minimum(1, self.residual), 0.0)


def score_answers(payoffs: Payoffs, answers: Sequence[Answer]) -> Scores:
    """Scores of one answer to each game.

    In a game of equal payoffs every profile is an equilibrium: all residuals are 0.

    Args:
      payoffs: the games.
      answers: what `domains.matrix_game.parse` read, in the same order.

    Raises:
      ValueError: no games, another number of answers, a game that is no finite table, or a valid
        answer that is no pair of strategies of its game.
    """
    games, valid, row, col = _profiles(payoffs, answers)
    residual = games.nash_conv(row, col)
    lower = np.einsum("gij,gi->gj", games.table, row)
    lower = np.where(games.cols, lower, np.inf).min(axis=1)
    row_residual = np.maximum(games.solution().value - lower, 0)
    return Scores(
        parsable=np.array([answer.status != NOT_PARSABLE for answer in answers]),
        valid=valid,
        residual=np.where(valid, residual, np.nan),
        row_residual=np.where(valid, row_residual, np.nan),
    )


def residual_reward(payoffs: Payoffs, answers: Sequence[Answer]) -> np.ndarray:
    """1 - min(1, two-sided residual / payoff range) of a valid answer, 0 of any other; float64[G].

    A game of equal payoffs gives 1 for every valid answer. Args and errors as in `score_answers`.
    """
    games, valid, row, col = _profiles(payoffs, answers)
    return np.where(valid, 1 - np.minimum(1, games.nash_conv(row, col)), 0.0)


def uniform_answer(table: np.ndarray) -> Answer:
    """Every action equally likely."""
    m, n = table.shape
    return Answer(VALID, (1 / m,) * m, (1 / n,) * n)


def best_pure_answer(table: np.ndarray) -> Answer:
    """The pure profile of least two-sided residual: each player's maximin action.

    The residual of (i, j) is max_k A_kj - min_k A_ik, so the players' choices do not depend on
    each other; where there is a saddle point, this is one. Ties go to the first action.
    """
    row, col = table.min(axis=1).argmax(), table.max(axis=0).argmin()
    m, n = table.shape
    return Answer(VALID, tuple(np.eye(m)[row].tolist()), tuple(np.eye(n)[col].tolist()))


def has_saddle(payoffs: np.ndarray) -> np.ndarray:
    """Whether some cell of a game [..., m, n] is the least of its row and the greatest of its
    column, bool[...]."""
    return payoffs.min(axis=-1).max(axis=-1) >= payoffs.max(axis=-2).min(axis=-1)


def saddle_answer(table: np.ndarray) -> Answer:
    """A pure saddle point where there is one, uniform play where there is none."""
    return best_pure_answer(table) if has_saddle(table) else uniform_answer(table)


def baseline_answers(payoffs: Payoffs) -> dict[str, list[Answer]]:
    """Answers to every game by name: "uniform", "saddle", "best_pure" as the functions above, and
    "exact", the solver's equilibrium as a reply prints it, in two decimals."""
    tables = [np.asarray(table, np.float64) for table in payoffs]
    solution = _Games.of(tables).solution()
    exact = []
    for table, row, col in zip(tables, solution.row, solution.col, strict=True):
        m, n = table.shape
        exact.append(parse(reply(row[:m], col[:n]), m, n))
    return {
        "uniform": [uniform_answer(table) for table in tables],
        "saddle": [saddle_answer(table) for table in tables],
        "best_pure": [best_pure_answer(table) for table in tables],
        "exact": exact,
    }


def score_baselines(payoffs: Payoffs) -> dict[str, Scores]:
    """Scores of all `baseline_answers`, by name."""
    return {name: score_answers(payoffs, each) for name, each in baseline_answers(payoffs).items()}


@dataclass(frozen=True)
class Row:
    """What one group of answers comes to.

    Attributes:
      group: its name. count: number of games.
      parsable, valid, success: shares of all answers, with Wilson's intervals.
      success_given_valid: share of the valid answers; None without any.
      residual, row_residual: means over valid answers, relative to the range, with bootstrap
        intervals; None without any.
      reward: mean of `Scores.reward` over all answers.
      curve: threshold -> share of all answers that succeed at it.
    """

    group: str
    count: int
    parsable: Estimate
    valid: Estimate
    success: Estimate
    success_given_valid: Estimate | None
    residual: Interval | None
    row_residual: Interval | None
    reward: float
    curve: dict[float, float]

    def record(self) -> dict[str, Any]:
        """The row in JSON values: a rate as [share, low, high], likewise a mean."""
        rates = {
            name: None if found is None else [found.value, found.low, found.high]
            for name in ("parsable", "valid", "success", "success_given_valid")
            for found in [getattr(self, name)]
        }
        means: dict[str, Any] = {}
        for name in ("residual", "row_residual"):
            found = getattr(self, name)
            ends = () if found is None else (found.mean, found.low, found.high)
            # A single answer has no interval.
            means[name] = [x if np.isfinite(x) else None for x in ends] or None
        curve = {f"{threshold:g}": share for threshold, share in self.curve.items()}
        return {
            "group": self.group,
            "count": self.count,
            **rates,
            **means,
            "reward": self.reward,
            "curve": curve,
        }


def summarise(
    scores: Scores,
    groups: Sequence[str],
    *,
    threshold: float = THRESHOLD,
    thresholds: Sequence[float] = THRESHOLDS,
    seed: int = 0,
) -> list[Row]:
    """One row for each group, in order of first appearance.

    Intervals speak of other games drawn the same way; where a group holds variants of few games
    (the named ones), of other variants.

    Args:
      scores: of G answers.
      groups: name of the group of each, [G].
      threshold: of success, relative to the range.
      thresholds: of the curve.
      seed: of the bootstrap.

    Raises:
      ValueError: another number of group names than of scores, or a negative threshold.
    """
    names = np.asarray(list(groups), object)
    if names.shape != scores.valid.shape:
        raise ValueError(f"{len(names)} group names for {len(scores.valid)} scores; give one each")
    if min(threshold, *thresholds, threshold) < 0:
        raise ValueError(f"thresholds are shares of the range, not negative: {list(thresholds)}")
    return [
        _row(scores, names == name, name, threshold, thresholds, seed)
        for name in dict.fromkeys(names.tolist())
    ]


def _row(scores: Scores, here: np.ndarray, name: str, threshold, thresholds, seed: int) -> Row:
    """The row of the answers where bool[G] `here` is true."""
    count, valid = int(here.sum()), here & scores.valid
    success, known = scores.success(threshold), int(valid.sum())
    residuals = (scores.residual[valid], scores.row_residual[valid])
    means = [bootstrap_interval(values, seed=seed) if known else None for values in residuals]
    return Row(
        group=name,
        count=count,
        parsable=rate(int(scores.parsable[here].sum()), count),
        valid=rate(known, count),
        success=rate(int(success[here].sum()), count),
        success_given_valid=rate(int(success[valid].sum()), known) if known else None,
        residual=means[0],
        row_residual=means[1],
        reward=float(scores.reward[here].mean()),
        curve={float(each): float(scores.success(each)[here].mean()) for each in thresholds},
    )


def _profiles(payoffs: Payoffs, answers: Sequence[Answer]) -> tuple:
    """The games, bool[G] of the valid answers, and their strategies, uniform where not valid."""
    games, answers = _Games.of(payoffs), list(answers)
    if len(answers) != len(games.table):
        raise ValueError(f"{len(answers)} answers to {len(games.table)} games; give one for each")
    valid = np.array([answer.valid for answer in answers])
    return games, valid, *games.profile([(a.row, a.col) if a.valid else None for a in answers])


@dataclass(frozen=True)
class _Games:
    """Games of any sizes in one array, payoffs moved to [0, 1]; constant games are 0.

    Attributes:
      table: float64[G, M, N], 0 on padding.
      rows, cols: bool[G, M], bool[G, N], True on real actions.
    """

    table: np.ndarray
    rows: np.ndarray
    cols: np.ndarray

    @classmethod
    def of(cls, payoffs: Payoffs) -> "_Games":
        tables = [np.asarray(table, np.float64) for table in payoffs]
        if not tables:
            raise ValueError("no games to score; give at least one payoff table")
        for number, table in enumerate(tables):
            if table.ndim != 2 or 0 in table.shape or not np.isfinite(table).all():
                raise ValueError(
                    f"game {number} must be a table [m, n] of finite numbers, not of shape "
                    f"{list(table.shape)}: {repr(table.tolist())[:200]}"
                )
        shape = tuple(max(table.shape[axis] for table in tables) for axis in (0, 1))
        padded = np.zeros((len(tables), *shape))
        rows, cols = (np.zeros((len(tables), size), bool) for size in shape)
        for number, table in enumerate(tables):
            m, n = table.shape
            padded[number, :m, :n] = unit_range(table)
            rows[number, :m], cols[number, :n] = True, True
        return cls(padded, rows, cols)

    def profile(self, strategies) -> tuple[np.ndarray, np.ndarray]:
        """Strategies [G, M] and [G, N] of pairs of vectors; uniform ones in place of None."""
        row = self.rows / self.rows.sum(axis=1, keepdims=True)
        col = self.cols / self.cols.sum(axis=1, keepdims=True)
        for number, pair in enumerate(strategies):
            if pair is None:
                continue
            sizes = (int(self.rows[number].sum()), int(self.cols[number].sum()))
            if (len(pair[0]), len(pair[1])) != sizes:
                raise ValueError(
                    f"answer {number} has {len(pair[0])} and {len(pair[1])} probabilities for a "
                    f"game of {sizes[0]} by {sizes[1]} actions"
                )
            row[number, : sizes[0]], col[number, : sizes[1]] = pair
        return row, col

    def nash_conv(self, row: np.ndarray, col: np.ndarray) -> np.ndarray:
        """Two-sided residual relative to the range, float64[G], at least 0."""
        arrays = (self.table, row, col, self.rows, self.cols)
        matrix.check_profile(*arrays)
        with jax.enable_x64(True):
            return np.maximum(np.asarray(_nash_conv(*arrays)), 0)

    def solution(self) -> Equilibrium:
        """Equilibria of all games, values in the moved payoffs."""
        return solve_zero_sum(self.table, self.rows, self.cols)
