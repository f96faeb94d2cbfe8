"""Events in batches: whole in one part, or refused."""

import numpy as np

from sepo_jax.forest.batch import Batch
from sepo_jax.forest.data import NO_EVENT, Forest


def check_events_whole(forest: Forest, batch: Batch) -> None:
    """Refuses a batch that splits an event.

    The ratio of an event is that of all its members together, and micro-batches and devices each
    see one part. `pack` keeps events whole; a batch that was cut, sampled or dealt otherwise may
    not. An event that misses a member in the forest itself passes: the objective drops it.

    Args:
      forest: what the batch was packed from.
      batch: `[rows, ...]`, or `[..., rows, ...]` with axes of parts before.

    Raises:
      ValueError: members of one event in several parts or under several numbers, twice, or some of
        them left out; two events under one number in a part; or another forest's batch. It names an
        event.
    """
    events, segments = np.asarray(batch.event), np.asarray(batch.segment_index)
    if events.shape != segments.shape or events.ndim < 2:
        raise ValueError(
            f"events have shape {events.shape} and segments {segments.shape}; a batch has one of "
            "each, [..., rows, segments]"
        )
    rows = events.shape[-2:]
    part, *place = np.nonzero(events.reshape(-1, *rows) != NO_EVENT)
    local = events.reshape(-1, *rows)[part, *place]
    segment = segments.reshape(-1, *rows)[part, *place]
    _refuse_others(forest, segment)
    event = forest.event[segment]
    where = np.stack([part, local], axis=1)
    seen: dict[int, tuple[int, int]] = {}
    taken: dict[tuple[int, int], int] = {}
    for number, (here, name) in zip(event.tolist(), where.tolist(), strict=True):
        first = seen.setdefault(number, (here, name))
        if first != (here, name):
            raise ValueError(
                f"event {number} is split: members are in parts {first[0]} and {here}, numbered "
                f"{first[1]} and {name}. A part must hold all members of an event: make batches "
                "with forest.pack(parts=...), which keeps them together"
            )
        if taken.setdefault((here, name), number) != number:
            raise ValueError(
                f"events {taken[here, name]} and {number} share number {name} in part {here}; make "
                "batches with forest.pack"
            )
    _refuse_lost(forest, segment)


def _refuse_others(forest: Forest, packed: np.ndarray) -> None:
    """Raises where a packed member is none of the forest's, or is packed twice."""
    known = (packed >= 0) & (packed < forest.num_segments)
    known[known] = forest.event[packed[known]] != NO_EVENT
    if not known.all():
        raise ValueError(
            f"the batch has segment {int(packed[~known][0])} in an event, and the forest does not: "
            "give the forest that the batch was packed from"
        )
    members, times = np.unique(packed, return_counts=True)
    if (times > 1).any():
        twice = int(members[np.argmax(times)])
        raise ValueError(
            f"event {int(forest.event[twice])} has segment {twice} twice: a batch holds every "
            "member once; draw episodes before packing, not rows after it"
        )


def _refuse_lost(forest: Forest, packed: np.ndarray) -> None:
    """Raises where an event has members both among the packed segments and elsewhere."""
    absent = np.isin(forest.event, forest.event[packed])
    absent[packed] = False
    lost = np.flatnonzero(absent)
    if len(lost):
        event = int(forest.event[lost[0]])
        missing, size = (int((each == event).sum()) for each in (forest.event[lost], forest.event))
        raise ValueError(
            f"event {event} is split: {missing} of its {size} members are not in the batch. Leave "
            "an event out whole or not at all: choose episodes before packing, not rows after it"
        )
