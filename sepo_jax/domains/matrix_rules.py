"""Rewards of replies to matrix games, for environments that play them one by one."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from sepo_jax.domains.base import Message
from sepo_jax.domains.matrix_game import Answer, MatrixTask, messages, parse

THRESHOLD = 0.1  # a success has at most this two-sided residual, relative to the range
ROUNDING = 1e-9  # a residual of exactly the threshold is a success


class MatrixRules:
    """Rules of zero-sum matrix games (`domains.tasks.SingleTurnRules`).

    A task is {"arm": any name, "game": `MatrixTask.record()`}. A valid reply earns
    1 - residual, the NashConv of its two strategies relative to the payoff range; any other 0.
    """

    name = "matrix"

    def messages(self, task: Any) -> list[Message]:
        """The prompt; ValueError for what is no task."""
        return messages(game_of_task(task))

    def judge(self, task: Any, text: str) -> tuple[float, dict[str, Any]]:
        """Reward of a reply; its record says whether it could be read, and its strategies."""
        game = game_of_task(task)
        return judge_answer(game, parse(text, *game.shape))


def judge_answer(game: MatrixTask, answer: Answer) -> tuple[float, dict[str, Any]]:
    """Reward and record of an answer, see `MatrixRules`."""
    residual = relative_residual(game.payoffs, answer) if answer.valid else None
    return 0.0 if residual is None else 1.0 - residual, {
        "status": answer.status,
        "valid": answer.valid,
        "success": residual is not None and residual <= THRESHOLD + ROUNDING,
        "residual": residual,
        "row": None if answer.row is None else list(answer.row),
        "col": None if answer.col is None else list(answer.col),
    }


def game_of_task(task: Any) -> MatrixTask:
    """The game that a task shows; ValueError for what is none."""
    if not isinstance(task, dict) or set(task) != {"arm", "game"}:
        raise ValueError(f'a task is {{"arm": name, "game": record}}, not {repr(task)[:80]}')
    return MatrixTask.from_record(task["game"])


def relative_residual(payoffs: Sequence[Sequence[float]], answer: Answer) -> float:
    """(max_i (A y)_i - min_j (xᵀ A)_j) / (max A - min A) of a valid answer, in [0, 1]; 0 where all
    payoffs are equal."""
    table = unit_range(np.asarray(payoffs, np.float64))
    gap = (table @ np.asarray(answer.col)).max() - (np.asarray(answer.row) @ table).min()
    return float(np.clip(gap, 0.0, 1.0))


def unit_range(table: np.ndarray) -> np.ndarray:
    """(A - min) / (max - min) of payoffs [m, n], 0 where all are equal; the power of two comes
    first: no range overflows or is denormal."""
    scaled = np.ldexp(table, -np.frexp(np.abs(table).max())[1])
    low, high = scaled.min(), scaled.max()
    return (scaled - low) / (high - low) if high > low else np.zeros_like(table)
