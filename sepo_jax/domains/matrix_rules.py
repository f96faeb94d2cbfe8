"""Rewards of replies to matrix games, for environments that play them one by one."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from sepo_jax.domains.base import Message
from sepo_jax.domains.matrix_game import Answer, MatrixTask, messages, parse


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
        answer = parse(text, *game.shape)
        reward = 1.0 - relative_residual(game.payoffs, answer) if answer.valid else 0.0
        success = answer.valid and reward >= 0.9 - 1e-9
        return reward, {
            "status": answer.status,
            "valid": answer.valid,
            "success": success,
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
    table = np.asarray(payoffs, np.float64)
    table = np.ldexp(table, -np.frexp(np.abs(table).max())[1])  # no range overflows
    low, high = table.min(), table.max()
    if high == low:
        return 0.0
    table = (table - low) / (high - low)
    gap = (table @ np.asarray(answer.col)).max() - (np.asarray(answer.row) @ table).min()
    return float(np.clip(gap, 0.0, 1.0))
