"""Prompts that begin alike share columns, and nothing else changes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sepo_jax.forest import ForestBuilder, fill, pack, pack_sharing_prefixes
from sepo_jax.forest.prefixes import merge_prefixes

PROMPTS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), min_size=1, max_size=6)


def forest_of(prompts, replies=2):
    builder = ForestBuilder()
    for number, prompt in enumerate(prompts):
        root = builder.add(prompt, group=number)
        for reply in range(replies):
            builder.add([10 + number, 30 + reply], parent=root, is_action=True, reward=float(reply))
    return builder.build()


def contexts(batch, forest):
    """By action token of the forest: what it sees (tokens in order of position), and its target."""
    seen = {}
    rows = batch.tokens.reshape(-1, batch.tokens.shape[-1])
    flat = {
        name: np.asarray(batch[name]).reshape(len(rows), -1)
        for name in ("positions", "segment", "source", "target", "token_index", "primary")
    }
    ancestors = batch.ancestors.reshape(len(rows), *batch.ancestors.shape[-2:])
    for row, tokens in enumerate(rows):
        for action in np.flatnonzero(flat["primary"][row]):
            column = flat["source"][row, action]
            here = flat["segment"][row]
            related = ancestors[row][here[column], np.maximum(here, 0)] & (here >= 0)
            visible = np.flatnonzero(related & (np.arange(len(tokens)) <= column))
            visible = visible[np.argsort(flat["positions"][row][visible])]
            assert flat["positions"][row][visible].tolist() == list(range(len(visible)))
            seen[int(flat["token_index"][row, action])] = (
                tokens[visible].tolist(),
                int(flat["target"][row, action]),
            )
    assert len(seen) == forest.lengths()[forest.is_action].sum()
    return seen


@settings(deadline=None, max_examples=50)
@given(prompts=PROMPTS, row_length=st.sampled_from([8, 64]), parts=st.sampled_from([None, 2]))
def test_every_action_has_the_context_it_has_without_sharing(prompts, row_length, parts):
    forest = forest_of(prompts)
    shared = pack_sharing_prefixes(forest, row_length=row_length, parts=parts)
    plain = pack(forest, row_length=row_length, parts=parts)
    assert contexts(shared, forest) == contexts(plain, forest)


@settings(deadline=None, max_examples=50)
@given(prompts=PROMPTS)
def test_a_token_is_repeated_only_at_the_end_of_a_prompt(prompts):
    """No two segments below one parent begin alike, but for prompts that end there."""
    merged = merge_prefixes(forest_of(prompts, replies=1)).forest.validate()
    given = [
        (int(merged.parent[s]), merged.segment_tokens(s).tolist())
        for s in range(merged.num_segments)
        if not merged.is_action[s]
    ]
    for index, (parent, tokens) in enumerate(given):
        for other_parent, other in given[:index]:
            if parent == other_parent and tokens[0] == other[0]:
                assert 1 in (len(tokens), len(other))


@settings(deadline=None, max_examples=30)
@given(prompts=PROMPTS)
def test_fields_are_filled_as_without_sharing(prompts):
    forest = forest_of(prompts)
    generator = np.random.default_rng(0)
    arrays = {
        "advantage": generator.normal(size=forest.num_tokens),
        "segment_weight": generator.normal(size=forest.num_segments),
        "path_weight": generator.normal(size=len(forest.leaves())),
    }

    def by_place(batch, index, real, values):
        return dict(zip(batch[index][batch[real]], batch[values][batch[real]], strict=True))

    found = []
    for make in (pack, pack_sharing_prefixes):
        batch = fill(make(forest, row_length=64), **arrays)
        fields = (
            ("token_index", "primary", "advantage"),
            ("segment_index", "segment_mask", "segment_weight"),
            ("path_index", "path_mask", "path_weight"),
        )
        found.append([by_place(batch, *field) for field in fields])
    assert found[0] == found[1]


def test_three_prompts_with_one_beginning():
    """5 6 7 | 5 6 8 | 9: columns 5 6, 9, 7, 8 and replies, where `pack` has 5 6 twice."""
    forest = forest_of([[5, 6, 7], [5, 6, 8], [9]], replies=1)
    merged = merge_prefixes(forest)
    spans = [merged.forest.segment_tokens(s).tolist() for s in range(4)]
    assert spans == [[5, 6], [9], [7], [8]]
    assert merged.forest.parent[:4].tolist() == [-1, -1, 0, 0]
    assert merged.segment[:4].tolist() == [-1, 4, 0, 2]
    assert merged.forest.num_tokens == forest.num_tokens - 2


def test_equal_prompts_keep_their_last_token():
    merged = merge_prefixes(forest_of([[1, 2, 3]] * 3, replies=1))
    assert [merged.forest.segment_tokens(s).tolist() for s in range(4)] == [[1, 2], [3], [3], [3]]


def test_trees_of_events_stay_apart_in_several_parts():
    builder = ForestBuilder()
    for member in range(4):
        root = builder.add([1, 2, 3], group=0)
        builder.add(
            [7],
            parent=root,
            is_action=True,
            event=member // 2,
            event_size=2,
            event_type=0,
            agent=member % 2,
        )
    forest = builder.build()
    batch = pack_sharing_prefixes(forest, row_length=16, parts=2)
    plain = pack(forest, row_length=16, parts=2)
    np.testing.assert_array_equal(batch.tokens, plain.tokens)
    together = pack_sharing_prefixes(forest, row_length=16, parts=1)
    assert sorted(together.event[together.event >= 0]) == [0, 0, 1, 1]


def test_a_path_longer_than_the_row_is_refused():
    with pytest.raises(ValueError, match="row_length=4"):
        pack_sharing_prefixes(forest_of([[1, 2, 3], [1, 2, 4]]), row_length=4)
