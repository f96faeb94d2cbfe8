"""What scripts score in match play: uniform play and a domain's experts, without any model.

Figures of a policy stand beside these. They are of the same episodes: deals, seats and opponents
are those of `matches.match_play` with the same seed.
"""

import math
import random
from collections.abc import Callable, Sequence
from typing import Any

from ..domains.base import Opponent, View
from ..domains.seeds import stream
from ..sepo import SepoWeights
from .match_rows import POOLS, Matches, matches_of, pool_requests

# Scripts reply legally and no sandbox fails them: that is no measurement.
_NOT_MEASURED = ("legal_rate", "failed_rollouts")


class UniformPlayer:
    """Plays every legal action with the same probability."""

    name = "uniform"

    def reset(self, rng: random.Random) -> None:
        """Starts an episode with its random stream."""
        self._rng = rng

    def act(self, view: View) -> int:
        """Index of a legal action."""
        return self._rng.randrange(len(view.legal_actions))


def scripted_play(
    domain: Any,
    player: Callable[[], Opponent],
    *,
    episodes: int = 200,
    seed: int = 0,
    weights: SepoWeights | Sequence[float],
    pools: Sequence[str] = POOLS,
) -> Matches:
    """`matches.match_play` of a script in the agent's place.

    Args:
      domain: a domain with pools.
      player: makes the script, one an episode.
      episodes, seed, weights, pools: as there.

    Raises:
      ValueError: fewer than 2 episodes, or an unknown pool.
    """
    requests = pool_requests(domain, pools, episodes, seed)
    played = []
    for request in (each for batch in requests.values() for each in batch):
        script, episode = player(), domain.new_episode(seed=request.seed, **request.task)
        script.reset(stream(request.seed, "agent"))
        while not episode.done:
            view = episode.view()
            episode.step(view.legal_actions[script.act(view)])
        played.append(episode)
    return matches_of(domain, requests, played, weights, seed)


def scripted_baselines(
    domain: Any, *, episodes: int, seed: int, weights: SepoWeights | Sequence[float]
) -> dict[str, dict[str, float]]:
    """Figures of uniform play, and of the expert whose safety score is highest.

    The highest of several estimates is biased upwards, by less than the width of its interval.

    Args:
      domain: a domain with pools and experts.
      episodes, seed, weights: as in `scripted_play`.

    Returns:
      {"uniform": figures, "expert/<name>": figures}; without experts the first alone.
    """
    options: dict[str, Any] = {"episodes": episodes, "seed": seed, "weights": weights}

    def figures(player: Callable[[], Opponent]) -> dict[str, float]:
        found = scripted_play(domain, player, **options).figures
        measured = (name for name in found if not name.startswith(_NOT_MEASURED))
        return {name: found[name] for name in measured}

    experts = {name: figures(factory) for name, (_, factory) in domain.experts.items()}
    baselines = {"uniform": figures(UniformPlayer)}
    if experts:
        best = max(experts, key=lambda name: experts[name].get("safety", -math.inf))
        baselines[f"expert/{best}"] = experts[best]
    return baselines
