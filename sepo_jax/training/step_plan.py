"""Which episodes a step plays: every opponent of every game, and which of them measure what."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..domains.base import Opponent
from ..rollout import members
from ..sandbox.episodes import EpisodeRequest
from .decisions import OF_DEALS
from .settings import Settings
from .tasks import BEST_RESPONSE, Task, played_pools


class Seat(NamedTuple):
    """One episode of a step.

    Attributes:
      request: what to play; episodes of one group are compared.
      game: place of its game among the tasks.
      pool: "train", "exploiter" or "collusive".
      rollout: the train episode of its game that it belongs to.
    """

    request: EpisodeRequest
    game: int
    pool: str
    rollout: int


class StepPlan:
    """The episodes of any step.

    Attributes:
      pools: for each task, pool -> names of its opponents.
    """

    def __init__(self, settings: Settings, tasks: Sequence[Task]):
        """A plan; ValueError for opponents that no game has, or numbers that do not agree."""
        sepo = settings.sepo
        if sepo.groups_per_opponent < 2 or sepo.groups_per_opponent % 2:
            raise ValueError(
                f"sepo.groups_per_opponent={sepo.groups_per_opponent} must be even: seats "
                "alternate from one initial state to the next, and both must weigh the same"
            )
        if sepo.exploiter_episodes > 1 and sepo.credit == "credited":
            raise ValueError(
                f"sepo.exploiter_episodes={sepo.exploiter_episodes} is of the modes whose "
                "auxiliary episodes only measure, per_rollout and shared; with credit 'credited' "
                "raise sepo.groups_per_opponent"
            )
        self.settings, self.tasks = settings, tasks
        self.pools = played_pools(settings, tasks)

    def seats(self, step: int, responders: Mapping[str, Opponent]) -> list[Seat]:
        """All pools of all games: `groups_per_opponent` initial states an opponent,
        `rollouts_per_group` episodes from each, seats alternating.

        Args:
          step: index of the step, from 0.
          responders: game -> opponent that stands for "best_response" there.
        """
        sepo, seats = self.settings.sepo, []
        # Groups of an opponent's deals are numbered within a stride that no opponent exceeds.
        stride = sepo.exploiter_episodes * max(map(self._rollouts, range(len(self.tasks))))
        number = 0
        for game, task in enumerate(self.tasks):
            rollouts, trained = self._rollouts(game), 0
            for pool, names in self.pools[game].items():
                for name in names:
                    opponent: Any = name
                    if name == BEST_RESPONSE:
                        opponent = responders[task.name]
                    for index in range(self.episodes(game, pool)):
                        deal = index // sepo.rollouts_per_group
                        # Further episodes of a rollout change seats with each lap over all of them.
                        seat = (deal + index // rollouts) % 2
                        request = EpisodeRequest(
                            {"opponent": opponent, "seat": seat, **task.label},
                            seed=episode_seed(self.settings.seed, step, number, deal),
                            group=number * stride + deal if sepo.group_by in OF_DEALS else number,
                        )
                        rollout = trained if pool == "train" else index % rollouts
                        trained += pool == "train"
                        seats.append(Seat(request, game, pool, rollout))
                    number += 1
        places = members([seat.request.group for seat in seats])
        return [
            seat._replace(request=dataclasses.replace(seat.request, member=member))
            for seat, member in zip(seats, places, strict=True)
        ]

    def _rollouts(self, game: int) -> int:
        """Train episodes of a game."""
        return len(self.pools[game]["train"]) * self.episodes(game, "train")

    def episodes(self, game: int, pool: str) -> int:
        """Episodes against one opponent of a pool."""
        sepo = self.settings.sepo
        count = sepo.groups_per_opponent * sepo.rollouts_per_group
        if pool == "train":
            return count
        if sepo.credit == "per_rollout":
            count = self._rollouts(game)
        return count * sepo.exploiter_episodes


def episode_seed(seed: int, step: int, opponent: int, deal: int) -> int:
    """Seed of an episode's chance moves, shared by the episodes of one initial state."""
    state = np.random.SeedSequence([seed, step, opponent, deal]).generate_state(1)
    return int(state[0])
