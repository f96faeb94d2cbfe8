"""Sizes of a step that the data of a real run decides, for a dry run that has no data."""

import dataclasses
from typing import Any

from ..domains.teams import is_team
from ..domains.teams import seats as team_seats
from .decisions import OF_ROUNDS
from .sepo_stage import SepoStage
from .settings import Settings
from .setup import domain_class, make_domain, model_config


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Sizes of a step that the data of a real run decides.

    Attributes:
      rows: rows of one update, over all devices and micro-batches together.
      row_length: token columns of a row.
      actions: action tokens of a row.
      segments: segments of a row; each action is one, and a leaf.
      capacity: tokens that a slot has room for.
      sampled: tokens that are decoded in a step; 0 where it plays nothing.
      given: tokens that are prefilled in a step.
    """

    rows: int
    row_length: int
    actions: int
    segments: int
    capacity: int
    sampled: int = 0
    given: int = 0

    def __post_init__(self):
        for field in dataclasses.fields(self):
            value, least = getattr(self, field.name), 0 if field.name in ("sampled", "given") else 1
            if value < least:
                raise ValueError(f"{field.name} must be at least {least}, got {value}")
        if self.actions >= self.row_length:
            raise ValueError(
                f"a row of {self.row_length} tokens has no room for {self.actions} action tokens "
                "and a prompt: lower actions or raise row_length"
            )


def default_sizes(
    settings: Settings,
    *,
    rows: int | None = None,
    row_length: int | None = None,
    actions: int | None = None,
) -> Sizes:
    """Sizes of a step by the config, where not given: the most there can be.

    Contexts are as long as a slot has room for, as many in a row as fit, none of which has anything
    in common with another; a recurrent policy takes one a row. In a stage on tasks there is one an
    episode, of a team as many as it has outputs; half of its tokens are replies of
    `max_action_tokens`, each behind something given. In a stage on games there is one a decision
    where decisions of the same round are compared, with one reply; where they share prompts it is
    one row for each group: a prompt and its `rollouts_per_group` replies. With supervised steps
    alone, one row for each example of a batch.
    """
    given = {"rows": rows, "row_length": row_length, "actions": actions}
    if settings.sepo.steps and not settings.rl.steps:
        sizes = _of_games(settings, given)
    elif settings.rl.steps:
        sizes = _of_tasks(settings, given)
    else:
        length = row_length or settings.rollout.row_length
        most = min(settings.rollout.max_action_tokens, max(length - 1, 1))
        sizes = Sizes(settings.sft.batch_size, length, most, 2, settings.rollout.capacity)
    return dataclasses.replace(
        sizes, **{name: value for name, value in given.items() if value is not None}
    )


def _row_length(settings: Settings, given: dict[str, Any]) -> tuple[int, int]:
    """Columns of a row, and the longest contexts that it has room for."""
    length, capacity = given["row_length"], settings.rollout.capacity
    recurrent = model_config(settings.policy).is_recurrent
    if length is None:
        length = settings.rollout.row_length
        length = min(length, capacity) if recurrent else length
    return length, 1 if recurrent else max(length // capacity, 1)


def _of_tasks(settings: Settings, given: dict[str, Any]) -> Sizes:
    rollout, rl = settings.rollout, settings.rl
    length, in_a_row = _row_length(settings, given)
    contexts = rl.tasks_per_step * rl.rollouts_per_task
    if is_team(domain_class(settings.domain.name)):
        domain = make_domain(settings.domain)
        contexts *= getattr(domain, "most_outputs", len(team_seats(domain)))
    reply, capacity = rollout.max_action_tokens, rollout.capacity
    most = max(length // 2, min(reply, length - 1))
    sampled = contexts * max(capacity // 2, min(reply, capacity - 1))
    return Sizes(
        rows=-(-contexts // in_a_row),
        row_length=length,
        actions=most,
        segments=2 * -(-most // reply) + 1,
        capacity=capacity,
        sampled=sampled,
        given=contexts * capacity - sampled,
    )


def _of_games(settings: Settings, given: dict[str, Any]) -> Sizes:
    rollout, sepo = settings.rollout, settings.sepo
    plan = SepoStage(settings, None, make_domain(settings.domain)).plan
    by_round = sepo.group_by in OF_ROUNDS
    trained = played = 0
    for game, task in enumerate(plan.tasks):
        rounds = getattr(task.domain, "rounds", 1) if by_round else 1
        for pool, names in plan.pools[game].items():
            decisions = len(names) * plan.episodes(game, pool) * rounds
            played += decisions
            trained += decisions if sepo.credit == "credited" or pool == "train" else 0
    length, in_a_row = _row_length(settings, given)
    reply, replies = rollout.max_action_tokens, 1
    if not by_round:
        replies = sepo.rollouts_per_group
        in_a_row, trained = 1, -(-trained // replies)
    sampled = min(reply, rollout.capacity - 1) * played
    return Sizes(
        rows=-(-trained // in_a_row),
        row_length=length,
        actions=min(in_a_row * replies * reply, max(length - 1, 1)),
        segments=2 * in_a_row if by_round else replies + 1,
        capacity=rollout.capacity,
        sampled=sampled,
        given=played * rollout.capacity - sampled,
    )
