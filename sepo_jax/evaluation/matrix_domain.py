"""The matrix-game benchmark as a domain to train on: small games, judged on all arms."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..domains.arguments import check_integer
from ..domains.base import Message
from ..domains.matrix_game import NOT_PARSABLE, Answer, anonymous, messages, reply, workings
from ..domains.matrix_rules import MatrixRules, game_of_task, judge_answer
from ..domains.seeds import derive_seed
from ..domains.tasks import Curve
from ..games.solve import solve_zero_sum
from ..names import check_option
from ..sandbox.environments import task_environments
from ..sandbox.protocol import EnvironmentFactory
from .matrix_benchmark import (
    Row,
    Scores,
    baseline_answers,
    has_saddle,
    score_answers,
    summarise,
)
from .matrix_tasks import ARMS, benchmark_tasks, training_payoffs

EXPERTS = ("solver", "worked", "random")
# Players of `matrix_benchmark.baseline_answers` by their names in a run.
_BASELINES = {"uniform": "uniform", "best_pure": "best_pure", "best_known": "exact"}
_MOST_PAYOFFS = 2**27  # drawn at once, 1 GiB
_OF_ALL_GAMES = ("success", "success_low", "success_high", "valid", "valid_low", "valid_high")


class MatrixBenchmark:
    """Zero-sum matrix games (`domains.tasks.CurvedTaskDomain`).

    Trains on dense anonymous games of some sizes, alike often; is judged by the benchmark, which
    has no game in common with them. The expert "solver" answers with the solver's equilibrium;
    where there are several, with the vertex that `games.solve` returns. The expert "worked" writes
    the best replies of `matrix_game.workings` before the same answer. The expert "random" answers
    with uniform play of a drawn set of actions whatever the game: they teach the form of an answer
    and nothing of play, for a policy that is to find play by reinforcement learning and could not
    be rewarded for replies that nobody can read.

    Args:
      sizes: of the square games to train on; a size named twice comes twice as often.
      arms: of `matrix_tasks.ARMS`, to be judged by; empty for all.
      expert: of `EXPERTS`.
      mixed_share: share of the games to train on that have no pure equilibrium; None for games as
        they are drawn, of which a third at size 2 and seven in ten at size 3 have none.

    Raises:
      ValueError: no sizes, a size below 1, an unknown arm or expert, a share outside [0, 1], or one
        for games of size 1, all of which have a pure equilibrium.
    """

    name = "matrix"
    game = None

    def __init__(
        self,
        sizes: Sequence[int] = (2, 3),
        arms: Sequence[str] = (),
        expert: str = "solver",
        mixed_share: float | None = None,
    ):
        self.sizes = tuple(check_integer("size", size, minimum=1) for size in sizes)
        if not self.sizes:
            raise ValueError("sizes names no size to train on; give one or more, such as (2, 3)")
        self.arms = tuple(check_option("arm", arm, ARMS) for arm in arms) or ARMS
        self.expert = check_option("expert", expert, EXPERTS)
        if mixed_share is not None and not (0 <= mixed_share <= 1 and min(self.sizes) > 1):
            raise ValueError(
                f"mixed_share={mixed_share!r} with sizes {self.sizes}: it is a share from 0 to 1 "
                "of games of two or more actions; None takes games as they are drawn"
            )
        self.mixed_share = mixed_share

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
        # Each set but the empty one is as likely as any other: the bits of a number above 0.
        sets = draws.integers(1, 2**size, size=(2, count, 1))
        chosen = (sets >> np.arange(size)) & 1
        row, col = chosen / chosen.sum(-1, keepdims=True)
        return row, col

    def figures(self, tasks: Sequence[Any], records: Sequence[Any]) -> dict[str, float]:
        """Figures of each arm as "<arm>/<figure>", see `flat_figures`, and "success" and "valid"
        of all games together; no record counts as a reply that cannot be read.

        Intervals are left out where a game is asked several times in a row: replies to one game
        say little of others.
        """
        scores = _scores(tasks, records)
        ends = not any(task == before for before, task in itertools.pairwise(tasks))
        (whole,) = summarise(scores, ["all"] * len(tasks))
        overall = flat_figures(whole, ends)
        found = {name: overall[name] for name in _OF_ALL_GAMES if name in overall}
        for row in summarise(scores, [task["arm"] for task in tasks]):
            found |= {f"{row.group}/{key}": v for key, v in flat_figures(row, ends).items()}
        return found

    def curves(self, tasks: Sequence[Any], records: Sequence[Any]) -> dict[str, Curve]:
        """Success by the size of dense games, where there are several; and for each arm the share
        of all games that would be solved at other thresholds of success."""
        found_rows = summarise(_scores(tasks, records), [task["arm"] for task in tasks])
        rows = {row.group: row for row in found_rows}
        sizes = sorted(int(arm.partition("/")[2]) for arm in rows if arm.startswith("dense/"))
        found = {}
        if len(sizes) > 1:
            solved = [rows[f"dense/{size}"].success.value for size in sizes]
            found["Success by size, dense games"] = Curve(
                sizes, solved, "rows and columns", "success"
            )
        for arm, row in rows.items():
            found[f"Success by threshold, {arm}"] = Curve(
                list(row.curve),
                list(row.curve.values()),
                "largest NashConv, share of the range",
                "success",
            )
        return found

    def baseline_records(self, tasks: Sequence[Any]) -> dict[str, list[dict[str, Any]]]:
        """What uniform play, the best pure profile and the exact solver would record."""
        games = [game_of_task(task) for task in tasks]
        answers = baseline_answers([game.payoffs for game in games])
        return {
            player: [judge_answer(*pair)[1] for pair in zip(games, answers[name], strict=True)]
            for player, name in _BASELINES.items()
        }

    def baselines(self, tasks: Sequence[Any]) -> Mapping[str, Mapping[str, float]]:
        """Figures of the players of `baseline_records`."""
        played = self.baseline_records(tasks)
        return {player: self.figures(tasks, records) for player, records in played.items()}

    def _games(self, count: int, seed: int) -> list[np.ndarray]:
        """The first `count` training games of a seed, sizes in turn."""
        check_integer("count", count, minimum=0)
        each = -(-count // len(self.sizes))
        seed = derive_seed(seed, "games") % 2**31
        of_size = {}
        for size in dict.fromkeys(self.sizes):
            number = max(each * self.sizes.count(size), 1)
            of_size[size] = iter(self._of_size(number, size, seed))
        return [next(of_size[size]) for _ in range(each) for size in self.sizes][:count]

    def _of_size(self, count: int, size: int, seed: int) -> np.ndarray:
        """Training games [count, size, size], with and without pure equilibria by `mixed_share`
        evenly spread, each kind in the order drawn."""
        if self.mixed_share is None:
            return training_payoffs(count, size, size, seed=seed)
        places = np.arange(count + 1) * self.mixed_share + 1e-9
        kinds = np.diff(np.floor(places)).astype(bool)
        drawn = count
        while True:
            games = training_payoffs(drawn, size, size, seed=seed)
            mixed = ~has_saddle(games)
            if mixed.sum() >= kinds.sum() and (~mixed).sum() >= (~kinds).sum():
                break
            drawn *= 2
            if drawn * size * size > _MOST_PAYOFFS:
                raise ValueError(
                    f"mixed_share={self.mixed_share}: of {len(mixed)} games of size {size} "
                    f"{mixed.sum()} have no pure equilibrium, too few of one kind for {count} "
                    "games; take a share nearer to that, or None"
                )
        chosen = np.empty((count, size, size))
        chosen[kinds], chosen[~kinds] = games[mixed][: kinds.sum()], games[~mixed][: (~kinds).sum()]
        return chosen


def flat_figures(row: Row, ends: bool) -> dict[str, float]:
    """Success, valid, success_given_valid, residual, row_residual and reward of a group of answers;
    figures of valid replies are left out where there is none.

    Args:
      row: of the group.
      ends: whether to add "<figure>_low" and "<figure>_high" of those that have an interval.
    """
    flat: dict[str, float] = {}
    record = row.record()
    for name in ("success", "valid", "success_given_valid", "residual", "row_residual"):
        if record[name] is None:
            continue
        value, low, high = record[name]
        flat[name] = float(value)
        if ends and low is not None and high is not None:
            flat |= {f"{name}_low": float(low), f"{name}_high": float(high)}
    return flat | {"reward": row.reward}


def _scores(tasks: Sequence[Any], records: Sequence[Any]) -> Scores:
    payoffs = [np.array(game_of_task(task).payoffs) for task in tasks]
    return score_answers(payoffs, [_answer(record) for record in records])


def _task(arm: str, table: np.ndarray) -> dict[str, Any]:
    return {"arm": arm, "game": anonymous(table.tolist()).record()}


def _answer(record: Any) -> Answer:
    if record is None:
        return Answer(NOT_PARSABLE)
    row, col = record["row"], record["col"]
    return Answer(record["status"], row and tuple(row), col and tuple(col))
