"""The matrix-game benchmark as a domain to train on: small games, judged on all arms."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..domains.base import Message, check_integer, derive_seed
from ..domains.matrix_game import NOT_PARSABLE, Answer, anonymous, messages, reply, workings
from ..domains.matrix_rules import MatrixRules, game_of_task
from ..games.solve import solve_zero_sum
from ..names import check_option
from ..sandbox.environments import task_environments
from ..sandbox.protocol import EnvironmentFactory
from .matrix_benchmark import Scores, score_answers, score_baselines, summarise
from .matrix_tasks import ARMS, benchmark_tasks, training_payoffs

EXPERTS = ("solver", "worked", "random")


class MatrixBenchmark:
    """Zero-sum matrix games (`domains.tasks.TaskDomain`).

    Trains on dense anonymous games of some sizes, alike often; is judged by the benchmark, which
    has no game in common with them. The expert "solver" answers with the solver's equilibrium;
    where there are several, with the vertex that `games.solve` returns. The expert "worked" writes
    the best replies of `matrix_game.workings` before the same answer. The expert "random" answers
    with strategies drawn whatever the game, half of them pure, the others uniform in the simplex:
    they teach the form of an answer and nothing of play, for a policy that is to find play by
    reinforcement learning and could not be rewarded for replies that nobody can read.

    Args:
      sizes: of the square games to train on; a size named twice comes twice as often.
      arms: of `matrix_tasks.ARMS`, to be judged by; empty for all.
      expert: of `EXPERTS`.

    Raises:
      ValueError: no sizes, a size below 1, an unknown arm or expert.
    """

    name = "matrix"
    game = None

    def __init__(
        self, sizes: Sequence[int] = (2, 3), arms: Sequence[str] = (), expert: str = "solver"
    ):
        self.sizes = tuple(check_integer("size", size, minimum=1) for size in sizes)
        if not self.sizes:
            raise ValueError("sizes names no size to train on; give one or more, such as (2, 3)")
        self.arms = tuple(check_option("arm", arm, ARMS) for arm in arms) or ARMS
        self.expert = check_option("expert", expert, EXPERTS)

    def environments(self) -> EnvironmentFactory:
        """Environments that ask a game and reward the reply."""
        return task_environments(MatrixRules())

    def training_tasks(self, count: int, seed: int) -> list[dict[str, Any]]:
        """Games to train on, sizes in turn."""
        return [_task(f"dense/{len(table)}", table) for table in self._games(count, seed)]

    def evaluation_tasks(self, count: int, seed: int) -> list[dict[str, Any]]:
        """`count` games of each arm."""
        chosen = benchmark_tasks(count, seed=seed, arms=self.arms)
        return [
            {"arm": arm, "game": game.task.record()}
            for arm, games in chosen.items()
            for game in games
        ]

    def expert_traces(
        self, num_decisions: int, seed: int, *, rationale: bool = False
    ) -> list[tuple[list[Message], str]]:
        """Prompts of training games and the expert's answers; there is no rationale."""
        games = self._games(num_decisions, seed)
        traces: list[Any] = [None] * len(games)
        for size in dict.fromkeys(self.sizes):
            places = [place for place, table in enumerate(games) if len(table) == size]
            if not places:
                continue
            tables = np.stack([games[place] for place in places])
            for place, row, col in zip(places, *self._answers(tables, seed), strict=True):
                task = anonymous(games[place].tolist())
                first = f"{workings(task)}\n" if self.expert == "worked" else ""
                traces[place] = (messages(task), first + reply(row, col))
        return traces

    def _answers(self, games: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """The expert's row and column strategies [G, n] of games [G, n, n]."""
        if self.expert != "random":
            solution = solve_zero_sum(games)
            return solution.row, solution.col
        count, _, size = games.shape
        draws = np.random.default_rng([derive_seed(seed, "answers"), size])
        pure = draws.random((2, count, 1)) < 0.5
        vertices = np.eye(size)[draws.integers(size, size=(2, count))]
        row, col = np.where(pure, vertices, draws.dirichlet(np.ones(size), (2, count)))
        return row, col

    def figures(self, tasks: Sequence[Any], records: Sequence[Any]) -> dict[str, float]:
        """Figures of each arm as "<arm>/<figure>", see `flat_figures`; no record counts as a reply
        that cannot be read."""
        payoffs = [np.array(game_of_task(task).payoffs) for task in tasks]
        answers = [_answer(record) for record in records]
        return flat_figures(score_answers(payoffs, answers), [task["arm"] for task in tasks])

    def baselines(self, tasks: Sequence[Any]) -> Mapping[str, Mapping[str, float]]:
        """Figures of uniform play, the best pure profile and the exact solver."""
        payoffs = [np.array(game_of_task(task).payoffs) for task in tasks]
        arms = [task["arm"] for task in tasks]
        found = score_baselines(payoffs)
        names = {"uniform": "uniform", "best_pure": "best_pure", "best_known": "exact"}
        return {label: flat_figures(found[name], arms) for label, name in names.items()}

    def _games(self, count: int, seed: int) -> list[np.ndarray]:
        """The first `count` training games of a seed, sizes in turn."""
        check_integer("count", count, minimum=0)
        each = -(-count // len(self.sizes))
        seed = derive_seed(seed, "games") % 2**31
        of_size = {}
        for size in dict.fromkeys(self.sizes):
            number = max(each * self.sizes.count(size), 1)
            of_size[size] = iter(training_payoffs(number, size, size, seed=seed))
        return [next(of_size[size]) for _ in range(each) for size in self.sizes][:count]


def flat_figures(scores: Scores, arms: Sequence[str]) -> dict[str, float]:
    """For each arm success, valid, success_given_valid, residual and reward; figures of valid
    replies are left out where there is none."""
    flat: dict[str, float] = {}
    for row in summarise(scores, arms):
        found = {
            "success": row.success.value,
            "valid": row.valid.value,
            "reward": row.reward,
            "success_given_valid": row.success_given_valid and row.success_given_valid.value,
            "residual": row.residual and row.residual.mean,
            "row_residual": row.row_residual and row.row_residual.mean,
        }
        flat |= {f"{row.group}/{k}": float(v) for k, v in found.items() if v is not None}
    return flat


def _task(arm: str, table: np.ndarray) -> dict[str, Any]:
    return {"arm": arm, "game": anonymous(table.tolist()).record()}


def _answer(record: Any) -> Answer:
    if record is None:
        return Answer(NOT_PARSABLE)
    row, col = record["row"], record["col"]
    return Answer(record["status"], row and tuple(row), col and tuple(col))
