"""Packing: nothing is lost, everything sees its own path, events stay whole."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sepo_jax.forest import (
    ForestBuilder,
    batch_sizes,
    bucket,
    check_events_whole,
    equal,
    fill,
    pack,
    paths,
    unpack,
)

SEEDS = st.integers(0, 10_000)
LENGTHS = st.sampled_from([0, 2, 7, 40])  # room beyond the longest path
PARTS = st.sampled_from([None, 1, 2, 3])


def longest_path(forest):
    lengths = forest.lengths()
    return max(int(lengths[forest.path(int(leaf))].sum()) for leaf in forest.leaves())


def rows_of(batch):
    """The batch with the axes before the rows merged: [(row as a dict of arrays)]."""
    lead = batch.tokens.ndim - 1
    flat = {name: array.reshape(-1, *array.shape[lead:]) for name, array in batch.items()}
    return [{name: array[i] for name, array in flat.items()} for i in range(len(flat["tokens"]))]


def context_of(row, action):
    """Tokens that the prediction of an action token sees, in the order of their positions."""
    source = row["source"][action]
    sees = (
        (row["segment"] >= 0)
        & row["ancestors"][row["segment"][source]][np.maximum(row["segment"], 0)]
        & (row["positions"] <= row["positions"][source])
    )
    columns = np.flatnonzero(sees)
    return row["tokens"][columns[np.argsort(row["positions"][columns])]].tolist()


def team_forest(num_events=4, members=2, length=1):
    """Events whose members sit in trees of their own, as in a team of agents."""
    builder = ForestBuilder()
    for event in range(num_events):
        for agent in range(members):
            prompt = builder.add([1, agent], group=event, agent=agent)
            builder.add(
                np.full(length, event), prompt, is_action=True, event=event, event_size=members
            )
    return builder.build()


@settings(deadline=None, max_examples=50)
@given(seed=SEEDS, room=LENGTHS, parts=PARTS, events=st.booleans(), one_path=st.booleans())
def test_unpack_inverts_pack(random_forest, seed, room, parts, events, one_path):
    forest = random_forest(seed, events=events)
    length = longest_path(forest) + room
    batch = pack(forest, row_length=length, parts=parts, one_path_per_row=one_path)
    assert equal(unpack(batch, forest), forest)
    separate = paths(forest)
    batch = pack(separate, row_length=longest_path(forest) + room, parts=parts)
    assert equal(unpack(batch, separate), separate)


@settings(deadline=None, max_examples=50)
@given(seed=SEEDS, room=LENGTHS, parts=PARTS, one_path=st.booleans())
def test_every_action_token_sees_exactly_its_path(random_forest, seed, room, parts, one_path):
    forest = random_forest(seed)
    length = longest_path(forest) + room
    batch = pack(forest, row_length=length, parts=parts, one_path_per_row=one_path)
    owner = forest.segment_of_token()
    counted = np.zeros(forest.num_tokens, int)
    for row in rows_of(batch):
        for action in np.flatnonzero(row["action_mask"]):
            token = row["token_index"][action]
            segment = owner[token]
            assert row["target"][action] == forest.tokens[token]
            assert row["behavior_logp"][action] == forest.behavior_logp[token]
            assert row["segment_index"][row["action_segment"][action]] == segment
            above = [forest.segment_tokens(s) for s in forest.path(segment)[:-1]]
            start = forest.offsets[segment]
            expected = np.concatenate([*above, forest.tokens[start:token]]).tolist()
            assert context_of(row, action) == expected
            counted[token] += row["primary"][action]
    np.testing.assert_array_equal(counted, forest.is_action[owner])


@settings(deadline=None, max_examples=50)
@given(seed=SEEDS, room=LENGTHS, parts=PARTS)
def test_every_path_lives_whole_in_one_row(random_forest, seed, room, parts):
    forest = random_forest(seed)
    leaves = forest.leaves()
    seen = []
    for row in rows_of(pack(forest, row_length=longest_path(forest) + room, parts=parts)):
        for place in np.flatnonzero(row["path_mask"]):
            leaf = leaves[row["path_index"][place]]
            held = row["segment_index"][row["path"][:, place]]
            assert held.tolist() == forest.path(int(leaf))
            assert row["truncated"][place] == forest.truncated[held].any()
            seen.append(leaf)
        real = row["segment_index"] >= 0
        assert len(set(row["segment_index"][real])) == real.sum()  # no segment twice in a row
        assert not row["path"][:, ~row["path_mask"]].any()
    assert sorted(seen) == leaves.tolist()


@settings(deadline=None, max_examples=50)
@given(seed=SEEDS, room=LENGTHS, parts=PARTS)
def test_one_path_per_row_is_the_path_and_nothing_else(random_forest, seed, room, parts):
    forest = random_forest(seed)
    length = longest_path(forest) + room
    seen = []
    for row in rows_of(pack(forest, row_length=length, parts=parts, one_path_per_row=True)):
        places = row["path_index"][row["path_mask"]]
        real = row["segment"] >= 0
        if not len(places):
            assert not real.any()
            continue
        (place,) = places
        path = forest.path(int(forest.leaves()[place]))
        expected = np.concatenate([forest.segment_tokens(segment) for segment in path])
        # From column 0 on, without gaps, so that a state can run along the row.
        assert real.tolist() == [True] * len(expected) + [False] * (len(real) - len(expected))
        np.testing.assert_array_equal(row["tokens"][real], expected)
        np.testing.assert_array_equal(row["positions"][real], np.arange(len(expected)))
        np.testing.assert_array_equal(
            row["source"][row["action_mask"]] + 1,
            np.flatnonzero(forest.is_action[row["segment_index"][row["segment"]]] & real),
        )
        seen.append(place)
    assert sorted(seen) == list(range(len(forest.leaves())))


@settings(deadline=None, max_examples=25)
@given(
    num_events=st.integers(1, 6),
    members=st.integers(1, 3),
    length=st.integers(1, 2),
    room=st.sampled_from([0, 3, 10]),
    parts=st.sampled_from([1, 2, 4]),
)
def test_events_stay_in_one_part(num_events, members, length, room, parts):
    forest = team_forest(num_events, members, length)
    batch = pack(forest, row_length=2 + length + room, parts=parts)
    found = []
    for part in range(parts):
        here = batch.event[part] >= 0
        ids = batch.event[part][here]
        assert sorted(set(ids)) == list(range(len(set(ids))))  # local and dense
        for local in set(ids):
            segments = batch.segment_index[part][batch.event[part] == local]
            assert len(segments) == members  # whole
            assert len(set(forest.event[segments])) == 1  # and unmixed
            found.append(int(forest.event[segments][0]))
        assert (batch.event_size[part][here] == members).all()
        assert (batch.event_size[part][~here] == 0).all()
    assert sorted(found) == list(range(num_events))


def test_an_event_that_fits_no_part_is_refused():
    forest = team_forest(num_events=1, members=4)
    pack(forest, row_length=3, rows=4, parts=2)
    with pytest.raises(ValueError, match=r"share events and must stay in one part.*rows=2"):
        pack(forest, row_length=3, rows=2, parts=2)


def test_repeated_ancestors_are_context_only():
    builder = ForestBuilder()
    trunk = builder.add([2, 2], builder.add([1]), is_action=True, event=0, event_size=1)
    for token in range(4):
        builder.add([3, token], trunk, is_action=True)
    forest = builder.build()
    batch = pack(forest, row_length=7)
    assert batch.tokens.shape == (2, 7)  # 3 tokens of context and two branches of 2 in each row
    np.testing.assert_array_equal(batch.action_mask.sum(-1), [6, 6])
    np.testing.assert_array_equal(batch.primary.sum(-1), [6, 4])
    np.testing.assert_array_equal(batch.segment_mask.sum(-1), [3, 2])
    assert (batch.event >= 0).sum() == 1  # the copy is no second member
    np.testing.assert_array_equal(batch.path_mask.sum(-1), [2, 2])


@pytest.mark.parametrize(("size", "rows"), [(1, [1, 1]), (2, [2, 0])])
def test_only_events_of_several_members_keep_a_tree_in_one_part(size, rows):
    builder = ForestBuilder()
    prompt = builder.add([1] * 4)
    for number in range(4):
        builder.add([2, 3], prompt, is_action=True, event=number // size, event_size=size)
    forest = builder.build()
    batch = pack(forest, row_length=8, parts=2)  # two replies in a row
    np.testing.assert_array_equal(batch.path_mask.any(-1).sum(-1), rows)
    assert (batch.event >= 0).sum() == 4 and batch.primary.sum() == 8
    check_events_whole(forest, batch)


def test_packing_three_samples_gives_the_rows_of_one():  # B02: lengths 3, 1, 4
    builder = ForestBuilder()
    for number, length in enumerate((3, 1, 4)):
        builder.add(np.arange(length) + 1, builder.add([0]), is_action=True, group=0)
        assert len(builder) == 2 * (number + 1)
    forest = builder.build()
    together = rows_of(pack(forest, row_length=16))
    alone = rows_of(pack(forest, row_length=5))
    assert len(together) == 1 and len(alone) >= 3

    def seen(rows):
        return sorted(
            (
                int(row["token_index"][a]),
                context_of(row, a),
                int(row["positions"][row["source"][a]]),
            )
            for row in rows
            for a in np.flatnonzero(row["primary"])
        )

    assert seen(together) == seen(alone)
    assert len(seen(alone)) == 8


def test_sampled_ids_are_what_is_trained_on():  # B04: ids that a tokenizer would merge survive
    builder = ForestBuilder()
    builder.add([1, 2], builder.add([9]), is_action=True)
    batch = pack(builder.build(), row_length=4)
    assert batch.target[batch.action_mask].tolist() == [1, 2]


def test_refusals():
    builder = ForestBuilder()
    builder.add([2] * 5, builder.add([1] * 3), is_action=True)
    forest = builder.build()
    with pytest.raises(ValueError, match="segment 1 has 8 tokens, more than row_length=7"):
        pack(forest, row_length=7)
    two = team_forest(num_events=2, members=1)
    with pytest.raises(ValueError, match=r"do not fit.*rows=1 of row_length=3"):
        pack(two, row_length=3, rows=1)
    with pytest.raises(ValueError, match=r"at_least names the axes.*\['rows'\]"):
        pack(forest, row_length=8, at_least={"rows": 3})
    with pytest.raises(ValueError, match="holds 3 tokens of a forest; the forest given has 8"):
        unpack(pack(team_forest(1, 1), row_length=8), forest)


def test_sizes_repeat():  # H01: few shapes, so few compilations
    shapes = set()
    for samples in range(40, 49):
        builder = ForestBuilder()
        prompt = builder.add([1, 2])
        for sample in range(samples):
            builder.add([3] * (1 + sample % 3), prompt, is_action=True)
        shapes.add(tuple(batch_sizes(pack(builder.build(), row_length=128)).items()))
    assert len(shapes) <= 2
    ladder = sorted({bucket(n) for n in range(1, 100)})
    assert ladder == [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128]
    assert bucket(0) == 1
    with pytest.raises(ValueError, match="at least 0, got -1"):
        bucket(-1)


def test_at_least_repeats_the_shapes_of_an_earlier_batch(random_forest):
    large = pack(random_forest(0, trees=6), row_length=64)
    small = pack(random_forest(1, trees=1, depth=1), row_length=64, at_least=batch_sizes(large))
    for name, array in large.items():
        assert small[name].shape == array.shape, name


def test_parts_are_balanced():
    builder = ForestBuilder()
    for _ in range(8):
        builder.add([3] * 4, builder.add([1]), is_action=True)
    batch = pack(builder.build(), row_length=10, parts=4)
    np.testing.assert_array_equal(batch.primary.sum((-1, -2)), [8, 8, 8, 8])


def test_fill():
    forest = team_forest(num_events=3, members=1, length=2)
    batch = pack(forest, row_length=8)
    tokens = np.arange(forest.num_tokens, dtype=np.float32)
    segments = np.arange(forest.num_segments) / 10
    filled = fill(batch, advantage=tokens, segment_weight=segments, path_weight=[5.0, 6.0, 7.0])
    real = batch.action_mask
    np.testing.assert_array_equal(filled.advantage[real], tokens[batch.token_index[real]])
    assert not filled.advantage[~real].any()
    known = batch.segment_index >= 0
    expected = np.float32(segments)[batch.segment_index[known]]
    np.testing.assert_array_equal(filled.segment_weight[known], expected)
    np.testing.assert_array_equal(
        filled.path_weight[batch.path_mask], 5 + batch.path_index[batch.path_mask]
    )
    with pytest.raises(ValueError, match="'tokens' cannot be filled; one of behavior_logp"):
        fill(batch, tokens=tokens)
    with pytest.raises(ValueError, match=r"'advantage' has shape \(3,\); the batch refers to 12"):
        fill(batch, advantage=tokens[:3])


def test_paths_keep_returns():
    builder = ForestBuilder()
    prompt = builder.add([1])
    trunk = builder.add([2], prompt, is_action=True, reward=1.0, event=0, event_size=1)
    for reward in (3.0, 4.0):
        builder.add([5], trunk, is_action=True, reward=reward)
    # Two contexts of one episode that share a rewarded segment.
    shared = builder.add([6], builder.add([1], group=1), is_action=True, reward=10.0)
    for _ in range(2):
        builder.add([7], shared, is_action=True, episode=50)
    separate = paths(builder.build())
    assert separate.child_count().max() == 1
    earned = {}
    for leaf in separate.leaves():
        episode = int(separate.episode[leaf])
        earned.setdefault(episode, 0.0)
        earned[episode] += float(separate.reward[separate.path(int(leaf))].sum())
    assert sorted(earned.values()) == [4.0, 5.0, 10.0]
    assert (separate.event >= 0).sum() == 1


def test_an_empty_forest_packs():
    batch = pack(ForestBuilder().build(), row_length=4)
    assert not batch.action_mask.any() and batch_sizes(batch)["B"] == 1
