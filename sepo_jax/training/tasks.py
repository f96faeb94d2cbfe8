"""The games of a run as its stages and its judge see them: what each is, and what it weighs."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from ..domains.joint import games_of
from ..domains.tasks import is_task_domain
from ..games import TreeGame
from ..names import check_option, unknown
from ..sepo import OBJECTIVES, SepoWeights, payoff_scale, without_penalties
from .settings import Settings
from .setup import game_of

BEST_RESPONSE = "best_response"
_WEIGHTS = ("exploitability", "collusion", "externality")


@dataclasses.dataclass(frozen=True)
class Task:
    """One game of a run.

    Attributes:
      name: of the game.
      domain: its rules. game: its compiled tree, or None.
      weights: of the rewards in training.
      judged: of the safety score.
      scale: s, see `sepo.payoff_scale`.
      label: what tasks of the environments hold beside opponent and seat: {"game": name} in a run
        over several games, nothing in one over a single game.
    """

    name: str
    domain: Any
    game: TreeGame | None
    weights: SepoWeights
    judged: SepoWeights
    scale: float
    label: Mapping[str, str]

    @property
    def prefix(self) -> str:
        """What keys of this game's figures begin with: "" for a single game, else "<name>/"."""
        return f"{self.name}/" if self.label else ""

    def prefixed(self, figures: Mapping[str, Any]) -> dict[str, Any]:
        """Figures under this game's keys."""
        return {f"{self.prefix}{name}": value for name, value in figures.items()}


def make_tasks(settings: Settings, domain: Any) -> tuple[Task, ...]:
    """A task for each game of a domain.

    Raises:
      ValueError: a domain of tasks; weights of a game that is not there, other than three numbers,
        or negative; an unknown objective.
    """
    if is_task_domain(domain):
        raise ValueError(
            f"domain {domain.name!r} has tasks and no games to play matches in: a run is judged on "
            "them at the end of every stage, see its summary.json and report.html"
        )
    sepo, games = settings.sepo, games_of(domain)
    check_option("sepo.objective", sepo.objective, OBJECTIVES)
    for name in sepo.game_weights:
        check_option("game of sepo.game_weights", name, games)
    shared = (sepo.exploitability_weight, sepo.collusion_weight, sepo.externality_weight)
    tasks = []
    for name, game in games.items():
        chosen = _three(f"sepo.game_weights of {name}", sepo.game_weights.get(name, shared))
        judged = _three("evaluation.weights", settings.evaluation.weights or chosen)
        weights = SepoWeights(*chosen, settings.domain.invalid_penalty)
        tasks.append(
            Task(
                name=name,
                domain=game,
                game=game_of(game),
                weights=weights if sepo.objective == "sepo" else without_penalties(weights),
                judged=SepoWeights(*judged),
                scale=payoff_scale(game.max_payoff),
                label={"game": name} if len(games) > 1 else {},
            )
        )
    return tuple(tasks)


def _three(option: str, values: Any) -> tuple[float, float, float]:
    numbers = isinstance(values, Sequence) and not isinstance(values, str)
    if not numbers or len(values) != 3 or not all(isinstance(v, int | float) for v in values):
        raise ValueError(
            f"{option} must be three numbers, the weights of {', '.join(_WEIGHTS)}, not {values!r}"
        )
    return tuple(float(value) for value in values)


def played_pools(settings: Settings, tasks: Sequence[Task]) -> list[dict[str, tuple[str, ...]]]:
    """For each task, pool -> names of the opponents that a step plays, the train pool first.

    A pool that no weight of the game needs is left out. In a run over several games each takes the
    names that it has, and one that has none plays all of its pool.

    Raises:
      ValueError: a name that no game has in that pool.
    """
    chosen = {
        "train": settings.sepo.train_pool,
        "exploiter": settings.sepo.exploiter_pool,
        "collusive": settings.sepo.collusive_pool,
    }
    known = [{pool: _known(task, pool) for pool in chosen} for task in tasks]
    for pool, names in chosen.items():
        allowed = list(dict.fromkeys(name for each in known for name in each[pool]))
        for name in names:
            if name not in allowed:
                raise unknown(f"opponent of the {pool} pool", name, allowed)
    played = []
    for task, each in zip(tasks, known, strict=True):
        wanted = {
            "train": 1.0,
            "exploiter": task.weights.exploitability,
            "collusive": task.weights.collusion,
        }
        played.append(
            {
                pool: tuple(name for name in names if name in each[pool])
                or tuple(task.domain.pools[pool])
                for pool, names in chosen.items()
                if wanted[pool]
            }
        )
    return played


def _known(task: Task, pool: str) -> tuple[str, ...]:
    special = (BEST_RESPONSE,) if pool == "exploiter" and task.game is not None else ()
    return (*task.domain.pools[pool], *special)


def mean_over_games(figures: Mapping[str, Any], tasks: Sequence[Task], name: str) -> dict[str, Any]:
    """{name: mean over the games} of one figure of each; {} where a game lacks it, or is alone."""
    values = [figures.get(f"{task.prefix}{name}", math.nan) for task in tasks]
    mean = sum(values) / len(values)
    return {name: mean} if len(tasks) > 1 and math.isfinite(mean) else {}
