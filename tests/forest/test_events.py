"""Events in batches: whole through packing, parts and any order of episodes, else refused."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sepo_jax.forest import (
    NO_EVENT,
    ForestBuilder,
    check_events_whole,
    concatenate,
    pack,
    pack_sharing_prefixes,
)


def add_episode(builder, rng, number, group, roots):
    """A solver set below a root that all episodes of a group share, then events of other roles."""
    event = int(rng.integers(1, 4))
    if group not in roots:
        roots[group] = builder.add([group, 1, 1], group=group)
    fields = {"is_action": True, "episode": number}
    for member in range(event):
        length = int(rng.integers(1, 4))
        builder.add(
            np.full(length, 5 + member), roots[group], event=2 * number, event_size=event, **fields
        )
    alone = builder.add([group, 2], group=group)
    if rng.random() < 0.7:
        builder.add([9, number], alone, event=2 * number + 1, event_size=1, agent=1, **fields)
    else:  # a draft of no event
        builder.add([9, number], alone, agent=1, **fields)


def episodes(seed, count, groups):
    rng, builder, roots = np.random.default_rng(seed), ForestBuilder(), {}
    for number in rng.permutation(count):
        add_episode(builder, rng, int(number), int(number) % groups, roots)
    return builder.build()


def packed_events(forest, batch):
    """Events of each part as sets of segments, by what the batch says."""
    rows = batch.event.shape[-2:]
    found = []
    for ids, segments in zip(
        batch.event.reshape(-1, *rows), batch.segment_index.reshape(-1, *rows), strict=True
    ):
        for local in set(ids[ids >= 0].tolist()):
            found.append(frozenset(segments[ids == local].tolist()))
    return found


@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 10_000),
    count=st.integers(1, 12),
    groups=st.integers(1, 8),
    parts=st.sampled_from([None, 1, 2, 8]),
    layout=st.sampled_from(["pack", "alone", "prefixes"]),
)
def test_events_are_whole_in_every_batch(seed, count, groups, parts, layout):
    forest = episodes(seed, count, groups)
    options = {"row_length": 12, "parts": parts}
    if layout == "prefixes":
        batch = pack_sharing_prefixes(forest, **options)
    else:
        batch = pack(forest, one_path_per_row=layout == "alone", **options)
    check_events_whole(forest, batch)
    expected = {
        frozenset(np.flatnonzero(forest.event == event).tolist())
        for event in set(forest.event.tolist()) - {NO_EVENT}
    }
    found = packed_events(forest, batch)
    assert len(found) == len(expected) and set(found) == expected


def crowded(batch):
    """Part, row and place of a member of an event of several."""
    for place in np.argwhere(batch.event >= 0):
        if batch.event_size[tuple(place)] > 1:
            return tuple(place)
    raise AssertionError("no event of several members")


def test_a_batch_that_splits_an_event_is_refused():
    forest = episodes(3, 8, 8)
    apart = pack(forest, row_length=6, parts=4, at_least={"B": 16}, one_path_per_row=True)
    part, row, place = crowded(apart)
    event = int(forest.event[apart.segment_index[part, row, place]])
    # Rows dealt otherwise: the row of one member changes places with an empty one elsewhere.
    moved = {name: np.array(array) for name, array in apart.items()}
    other = (part + 1) % 4
    for name in ("event", "segment_index"):
        moved[name][other, 15], moved[name][part, row] = (
            apart[name][part, row],
            apart[name][other, 15],
        )
    with pytest.raises(ValueError, match=rf"event {event} is split: members are in parts"):
        check_events_whole(forest, apart.replace(**moved))
    # Rows left out.
    kept = apart.replace(event=np.array(apart.event))
    kept.event[part, row] = NO_EVENT
    with pytest.raises(ValueError, match=rf"event {event} is split: 1 of its .* are not in"):
        check_events_whole(forest, kept)
    # Another number.
    renamed = apart.replace(event=np.array(apart.event))
    renamed.event[part, row, place] = 77
    with pytest.raises(ValueError, match=rf"event {event} is split: .* numbered"):
        check_events_whole(forest, renamed)
    merged = apart.replace(event=np.where(apart.event >= 0, 0, NO_EVENT))
    with pytest.raises(ValueError, match=r"share number 0"):
        check_events_whole(forest, merged)


def test_whole_events_may_be_left_out_and_incomplete_ones_pass():
    forest = episodes(3, 8, 8)
    batch = pack(forest, row_length=12)
    part = batch.replace(event=np.array(batch.event))
    part.event[part.event == 0] = NO_EVENT
    check_events_whole(forest, part)
    short = forest.replace(event_size=np.where(forest.event >= 0, 4, 0).astype(np.int32))
    check_events_whole(short, pack(short, row_length=12, parts=2))


def test_members_of_one_event_have_one_policy_version():
    builder = ForestBuilder()
    root = builder.add([1])
    for version in (0, 1):
        builder.add(
            [2], root, is_action=True, event=0, event_size=2, episode=0, policy_version=version
        )
    with pytest.raises(ValueError, match="segment 2 differs in policy_version"):
        builder.build()


def test_joined_forests_keep_their_events_apart():
    forest = concatenate([episodes(0, 3, 2), episodes(1, 4, 3)])
    batch = pack(forest, row_length=12, parts=2)
    check_events_whole(forest, batch)
    assert len(packed_events(forest, batch)) == len(set(forest.event.tolist()) - {NO_EVENT})
