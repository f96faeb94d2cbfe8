"""Sizes of a step that the data of a real run decides, for a dry run that has no data."""

import dataclasses

from ..domains.teams import is_team
from ..domains.teams import seats as team_seats
from .sepo_stage import SepoStage
from .settings import Settings
from .setup import domain_class, make_domain


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Sizes of a step that the data of a real run decides.

    Attributes:
      rows: rows of one update, over all devices and micro-batches together.
      row_length: token columns of a row.
      actions: action tokens of a row.
      segments: segments of a row; each action is one, and a leaf.
      capacity: tokens that a slot has room for.
    """

    rows: int
    row_length: int
    actions: int
    segments: int
    capacity: int

    def __post_init__(self):
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value < 1:
                raise ValueError(f"{field.name} must be at least 1, got {value}")
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
    """Sizes of a step by the config, where not given.

    One row for each group: a prompt and its `rollouts_per_group` replies of `max_action_tokens`. In
    a stage on tasks the most there can be: episodes as long as a slot has room for, as many in a
    row as fit, none of which has anything in common with another, and of a team as many contexts an
    episode as it has outputs; half of a row's tokens are replies of `max_action_tokens`, each
    behind something given. With supervised steps alone, one row for each example of a batch.
    """
    rollout, replies = settings.rollout, 1
    groups = settings.sft.batch_size
    length = rollout.row_length if row_length is None else row_length
    if settings.rl.steps and not settings.sepo.steps:
        contexts = settings.rl.tasks_per_step * settings.rl.rollouts_per_task
        if is_team(domain_class(settings.domain.name)):
            domain = make_domain(settings.domain)
            contexts *= getattr(domain, "most_outputs", len(team_seats(domain)))
        most = max(length // 2, min(rollout.max_action_tokens, length - 1))
        turns = -(-most // rollout.max_action_tokens)
        return Sizes(
            rows=-(-contexts // max(length // rollout.capacity, 1)) if rows is None else rows,
            row_length=length,
            actions=most if actions is None else actions,
            segments=2 * turns + 1,
            capacity=rollout.capacity,
        )
    if settings.sepo.steps:
        domain = make_domain(settings.domain)
        credited = settings.sepo.credit == "credited"
        opponents = sum(
            len(names)
            for pools in SepoStage(settings, None, domain).plan.pools
            for pool, names in pools.items()
            if credited or pool == "train"
        )
        groups = opponents * settings.sepo.groups_per_opponent
        replies = settings.sepo.rollouts_per_group
    if actions is None:
        actions = min(replies * rollout.max_action_tokens, max(length - 1, 1))
    return Sizes(
        rows=groups if rows is None else rows,
        row_length=length,
        actions=actions,
        segments=replies + 1,
        capacity=rollout.capacity,
    )
