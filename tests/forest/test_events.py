"""Events in batches: whole through packing, parts and any order of episodes, else refused."""

import itertools

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
    """A set of solvers, each below a root that all episodes of a group share or below one of its
    own, then events of other roles."""
    event = int(rng.integers(1, 4))
    if group not in roots:
        roots[group] = builder.add([group, 1, 1], group=group)
    fields = {"is_action": True, "episode": number}
    for member in range(event):
        length = int(rng.integers(1, 4))
        shares = rng.random() < 0.5
        root = roots[group] if shares else builder.add([group, 3 + member], group=group)
        tokens = np.full(length, 5 + member)
        builder.add(tokens, root, event=2 * number, event_size=event, **fields)
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
    # Parts are micro-batches of devices: 16 are two of each of eight.
    parts=st.sampled_from([None, 1, 2, 8, 16]),
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


def shuffled(forest, rng):
    """The same segments in another order, parents before their children."""
    order, waiting = [], list(rng.permutation(forest.num_segments))
    while waiting:
        ready = [s for s in waiting if forest.parent[s] < 0 or forest.parent[s] in order]
        order.append(int(ready[0]))
        waiting.remove(ready[0])
    builder, place = ForestBuilder(), {-1: -1}
    names = ("group", "episode", "agent", "event", "event_size", "turn")
    for segment in order:
        fields = {name: getattr(forest, name)[segment] for name in names}
        place[segment] = builder.add(
            forest.segment_tokens(segment),
            place[int(forest.parent[segment])],
            is_action=forest.is_action[segment],
            **fields,
        )
    return builder.build(), order


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 10_000), parts=st.sampled_from([None, 2, 8]))
def test_events_are_whole_in_any_order_of_segments(seed, parts):
    """Members of several events one between the other, as no rollout writes them."""
    forest = episodes(seed, 6, 3)
    mixed, order = shuffled(forest, np.random.default_rng(seed))
    batch = pack(mixed, row_length=12, parts=parts)
    check_events_whole(mixed, batch)
    found = {frozenset(order[s] for s in members) for members in packed_events(mixed, batch)}
    plain = pack(forest, row_length=12, parts=parts)
    assert found == set(packed_events(forest, plain))


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 10_000), how=st.sampled_from(["rows", "parts", "left out", "repeated"]))
def test_batches_whose_rows_are_dealt_otherwise_are_refused_exactly_where_they_split(seed, how):
    """Any dealing of rows: refused if and only if members of one event come apart."""
    rng = np.random.default_rng(seed)
    forest = episodes(seed, 6, 3)
    batch = pack(forest, row_length=8, parts=2, one_path_per_row=True)
    events, segments = np.array(batch.event), np.array(batch.segment_index)
    parts, rows, _ = events.shape
    # A name for each event, the same in every part, so that moving rows mixes no two of them.
    events = np.where(events >= 0, forest.event[segments], NO_EVENT)
    dealt = [(part, row) for part in range(parts) for row in range(rows)]
    if how == "rows":
        dealt = [dealt[n] for part in range(parts) for n in rows * part + rng.permutation(rows)]
    elif how == "parts":
        dealt = [dealt[n] for n in rng.permutation(len(dealt))]
    elif how == "left out":
        dealt[rng.integers(len(dealt))] = (-1, -1)
    else:
        dealt[rng.integers(len(dealt))] = dealt[rng.integers(len(dealt))]
    made = {"event": [], "segment_index": []}
    for part, row in dealt:
        empty = part < 0
        made["event"].append(np.full_like(events[0, 0], NO_EVENT) if empty else events[part, row])
        made["segment_index"].append(
            np.full_like(segments[0, 0], -1) if empty else segments[part, row]
        )
    made = {name: np.stack(each).reshape(batch.event.shape) for name, each in made.items()}
    members = [
        sorted(made["segment_index"][part][made["event"][part] >= 0].tolist())
        for part in range(parts)
    ]
    names = {int(event) for event in forest.event[forest.event >= 0]}
    whole = all(
        sorted(itertools.chain(*members)).count(segment) <= 1
        for segment in range(forest.num_segments)
    )
    for name in names:
        its = set(np.flatnonzero(forest.event == name).tolist())
        whole &= any(its <= set(part) for part in members) or not any(its & set(p) for p in members)
    if whole:
        check_events_whole(forest, batch.replace(**made))
    else:
        with pytest.raises(ValueError, match=r"event \d+ (is split|has segment \d+ twice)"):
            check_events_whole(forest, batch.replace(**made))


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


def test_a_batch_of_something_else_is_refused():
    forest = episodes(3, 8, 8)
    batch = pack(forest, row_length=12)
    with pytest.raises(ValueError, match="give the forest that the batch was packed from"):
        check_events_whole(episodes(3, 2, 2), batch)
    plain = forest.replace(
        event=np.full_like(forest.event, NO_EVENT), event_size=np.zeros_like(forest.event_size)
    )
    with pytest.raises(ValueError, match="in an event, and the forest does not"):
        check_events_whole(plain, batch)
    for wrong in (batch.event[0], batch.event[:, :1], np.zeros(())):
        with pytest.raises(ValueError, match="a batch has one of each"):
            check_events_whole(forest, batch.replace(event=wrong))


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
