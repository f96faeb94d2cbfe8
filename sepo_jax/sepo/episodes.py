"""Finished episodes of one step as arrays: what rewards and metrics are computed from.

Shapes: E episodes, R rounds (or decisions). Three pools play three roles: the train pool measures
utility, the exploiter pool exploitability, the collusive pool collusion (SEPO, arXiv 2605.30854;
the definitions are in `reward`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sepo_jax.domains import Played
from sepo_jax.domains.base import Episode
from sepo_jax.domains.checks import POOLS
from sepo_jax.names import check_option, unknown
from sepo_jax.sandbox.episodes import EpisodeResult

TRAIN, EXPLOITER, COLLUSIVE = 0, 1, 2
UNITS = ("round", "decision")


@dataclass(frozen=True, eq=False)
class EpisodeArrays:
    """Episodes of one step. Optional fields may be left out.

    Attributes:
      own, opponent: float64 [E, R], payoffs of a round in the domain's units.
      harmful: float64 [E, R], what the collusion rate averages.
      externality: float64 [E, R], welfare cost.
      mask: bool [E, R], rounds that were played. An episode without any is missing (a sandbox
        that died, say): it enters no mean and its rewards are 0 and to be masked.
      pool: int [E], TRAIN, EXPLOITER or COLLUSIVE.
      opponent_id: int [E], one id per (pool, opponent); by default the pool itself.
      group: int [E], the train rollout an episode belongs to: a train episode has its own value,
        an auxiliary episode that of the rollout it was played for (credit "per_rollout" only).
      invalid: float64 [E, R], number of unparsable replies.
      decisions: float64 [E, R], number of decisions of the agent.
      weight: float64 [E], weight in every mean; 1 for sampled episodes, a probability where
        outcomes are enumerated.
      opponent_names: name of each opponent id, for reports.

    Raises:
      ValueError: shapes that do not agree, NaN or infinity in a played round, unknown pools or
        ids that are no integers, an opponent id in two pools, weights that are negative or not
        finite, an opponent whose present episodes all weigh 0.
    """

    own: np.ndarray
    opponent: np.ndarray
    harmful: np.ndarray
    externality: np.ndarray
    mask: np.ndarray
    pool: np.ndarray
    opponent_id: np.ndarray | None = None
    group: np.ndarray | None = None
    invalid: np.ndarray | None = None
    decisions: np.ndarray | None = None
    weight: np.ndarray | None = None
    opponent_names: tuple[str, ...] = field(default=())

    def __post_init__(self):
        def put(name, value, dtype):
            if dtype is np.int64:
                _check_whole(name, value)
            object.__setattr__(self, name, np.asarray(value, dtype))

        put("mask", self.mask, bool)
        put("pool", self.pool, np.int64)
        shape, rows = self.mask.shape, self.mask.shape[:1]
        put("invalid", np.zeros(shape) if self.invalid is None else self.invalid, np.float64)
        put("decisions", self.mask if self.decisions is None else self.decisions, np.float64)
        put("weight", np.ones(rows) if self.weight is None else self.weight, np.float64)
        put("opponent_id", self.pool if self.opponent_id is None else self.opponent_id, np.int64)
        if self.group is not None:
            put("group", self.group, np.int64)
        for name in ("own", "opponent", "harmful", "externality", "invalid", "decisions"):
            put(name, getattr(self, name), np.float64)
            _check_shape(name, getattr(self, name), shape)
            if not np.isfinite(getattr(self, name)[self.mask]).all():
                episode = int(np.argwhere(~np.isfinite(getattr(self, name)) & self.mask)[0][0])
                raise ValueError(
                    f"{name} of episode {episode} is not finite; mask out rounds that failed"
                )
        for name in ("pool", "opponent_id", "weight", "group"):
            if getattr(self, name) is not None:
                _check_shape(name, getattr(self, name), rows)
        self._check_ids()

    def _check_ids(self) -> None:
        if not np.isin(self.pool, (TRAIN, EXPLOITER, COLLUSIVE)).all():
            raise ValueError(f"pool must hold 0, 1 or 2 ({POOLS}), not {np.unique(self.pool)}")
        if not (np.isfinite(self.weight) & (self.weight >= 0)).all():
            raise ValueError("weight must be finite and not negative; leave episodes out by mask")
        for opponent in np.unique(self.opponent_id):
            members = self.opponent_id == opponent
            weights = self.weight[members & self.present]
            if weights.size and not weights.any():
                raise ValueError(
                    f"the episodes of opponent {self.name_of(opponent)} all have weight 0, so no "
                    "mean over them exists; mask them out instead"
                )
            pools = np.unique(self.pool[members])
            if len(pools) > 1:
                raise ValueError(
                    f"opponent_id {opponent} is in pools {[POOLS[p] for p in pools]}; an opponent "
                    "of two pools needs two ids"
                )

    @property
    def num_episodes(self) -> int:
        """E, missing episodes included."""
        return self.mask.shape[0]

    @property
    def present(self) -> np.ndarray:
        """bool [E]: at least one round was played."""
        return self.mask.any(axis=1)

    def episode_mean(self, values: np.ndarray) -> np.ndarray:
        """Mean of `values` [E, R] over the rounds played of each episode, [E]; 0 where none."""
        total = np.where(self.mask, values, 0.0).sum(axis=1)
        return total / np.maximum(self.mask.sum(axis=1), 1)

    def members(self, *pools: int) -> np.ndarray:
        """bool [E]: present episodes of the given pools."""
        return self.present & np.isin(self.pool, pools)

    def name_of(self, opponent: int) -> str:
        """Name of an opponent id, or the id itself as text."""
        names = self.opponent_names
        return names[opponent] if 0 <= opponent < len(names) else str(opponent)


def _check_whole(name: str, value) -> None:
    numbers = np.asarray(value)
    whole = numbers.dtype.kind in "iu" or numbers.size == 0
    if not whole and not (numbers.dtype.kind == "f" and (numbers == np.rint(numbers)).all()):
        raise ValueError(f"{name} must hold integers, not {numbers.ravel()[:5].tolist()} ...")


def _check_shape(name: str, array: np.ndarray, shape: tuple[int, ...]) -> None:
    if array.shape != shape:
        raise ValueError(f"{name} has shape {list(array.shape)}, expected {list(shape)}")


def from_results(results: Sequence[EpisodeResult]) -> list[Played]:
    """Episodes of a rollout over `sandbox.domain_environments`, for `from_episodes`.

    One that failed, or was cut before its end, has no rounds and no decisions: it is missing.

    Raises:
      ValueError: an episode that was cut because its next prompt did not fit.
    """
    full = [index for index, result in enumerate(results) if result.status == "context_full"]
    if full:
        raise ValueError(
            f"a prompt of episode {full[0]} and of {len(full) - 1} others leaves no room for a "
            "reply: raise the capacity of the engine's contexts (rollout.capacity)"
        )
    return [
        Played(result.request.seed, _opponent_name(result.request.task["opponent"]), (), ())
        if result.record is None
        else Played.from_record(result.record)
        for result in results
    ]


def _opponent_name(opponent: Any) -> str:
    if isinstance(opponent, str):
        return opponent
    return getattr(opponent, "name", type(opponent).__name__)


def from_episodes(
    episodes: Sequence[Episode | Played],
    pools: Sequence[str | int],
    groups: Sequence[int] | None = None,
    *,
    unit: str = "round",
) -> EpisodeArrays:
    """Arrays of finished episodes.

    Args:
      episodes: finished episodes; one opponent id is given to each (pool, opponent name).
      pools: "train", "exploiter" or "collusive" (or the constant) of each episode.
      groups: train rollout of each episode (see `EpisodeArrays.group`).
      unit: what a column is. "round": a round of the game, so that figures are per round (per
        hand in Kuhn poker). "decision": a decision of the agent, which takes the results of its
        round if it is the last of that round, and 0 otherwise; the authors' code averages so.

    Finished episodes without rounds are missing (see `EpisodeArrays.mask`).

    Raises:
      ValueError: an unfinished episode, an unknown pool, sequences of different lengths; with
        unit "decision" a round in which the agent decided nothing, whose payoffs would be lost.
    """
    check_option("unit", unit, UNITS)
    if len(pools) != len(episodes) or (groups is not None and len(groups) != len(episodes)):
        lengths = (len(episodes), len(pools), None if groups is None else len(groups))
        raise ValueError(f"episodes, pools and groups must have one length, not {lengths}")
    pool = np.array([_pool_index(value) for value in pools], np.int64)
    names: dict[str, int] = {}
    opponent_id = np.empty(len(episodes), np.int64)
    tables = []
    for index, episode in enumerate(episodes):
        if not episode.done:
            raise ValueError(f"episode {index} (seed {episode.seed}) is not finished")
        name = f"{POOLS[pool[index]]}/{episode.opponent_name}"
        opponent_id[index] = names.setdefault(name, len(names))
        undecided = set(range(len(episode.rounds))) - {d.round for d in episode.decisions}
        if unit == "decision" and undecided:
            raise ValueError(
                f"round {min(undecided)} of episode {index} (seed {episode.seed}) has no decision "
                "of the agent, so unit 'decision' would drop its payoffs; use unit='round'"
            )
        tables.append(_columns(episode, unit))
    width = max((len(table) for table in tables), default=0)
    values = np.zeros((len(episodes), width, 6))
    mask = np.zeros((len(episodes), width), bool)
    for index, table in enumerate(tables):
        values[index, : len(table)] = table
        mask[index, : len(table)] = True
    own, opponent, harmful, externality, invalid, decisions = np.moveaxis(values, -1, 0)
    return EpisodeArrays(
        own=own,
        opponent=opponent,
        harmful=harmful,
        externality=externality,
        mask=mask,
        pool=pool,
        opponent_id=opponent_id,
        group=None if groups is None else np.asarray(groups, np.int64),
        invalid=invalid,
        decisions=decisions,
        opponent_names=tuple(names),
    )


def _pool_index(value: str | int) -> int:
    if isinstance(value, str):
        check_option("pool", value, POOLS)
        return POOLS.index(value)
    if value not in (TRAIN, EXPLOITER, COLLUSIVE):
        raise unknown("pool", value, POOLS)
    return int(value)


def _columns(episode: Episode | Played, unit: str) -> np.ndarray:
    """[R, 6]: own, opponent, harmful, externality, invalid, decisions of one episode."""
    size = len(episode.rounds)
    results = np.array(
        [[r.own, r.opponent, r.harmful, r.externality] for r in episode.rounds], float
    ).reshape(size, 4)
    # Decisions of a round without a result count for nothing.
    decided = [decision for decision in episode.decisions if decision.round < size]
    rounds = np.array([decision.round for decision in decided], int)
    invalid = np.array([not decision.valid for decision in decided], float)
    if unit == "round":
        counts = [np.bincount(rounds, part, size) for part in (invalid, np.ones_like(invalid))]
        return np.column_stack([results, *counts])
    last = np.diff(rounds, append=-1) != 0
    spread = np.where(last[:, None], results[rounds], 0.0)
    return np.column_stack([spread, invalid, np.ones_like(invalid)])
