"""The forest data model: structure, refusals, concatenation, building."""

import doctest
import subprocess
import sys

import numpy as np
import pytest

import sepo_jax.forest.builder as builder_module
from sepo_jax.forest import (
    NO_EPISODE,
    NO_EVENT,
    NO_PARENT,
    NO_TRUNK,
    ForestBuilder,
    concatenate,
    equal,
    observation_hash,
)


def branching():
    """prompt(0) -> action(1) -> observation(2) -> actions(3, 4); prompt(0) -> action(5)."""
    builder = ForestBuilder({"task": "toy"})
    prompt = builder.add([1, 2, 3], group=4)
    first = builder.add([4, 5], prompt, is_action=True, behavior_logp=[-1, -2], reward=1.0)
    seen = builder.add([6], first)
    builder.add([7], seen, is_action=True, behavior_logp=[-3])
    builder.add([8, 9], seen, is_action=True, behavior_logp=[-4, -5])
    builder.add([10], prompt, is_action=True, truncated=True)
    return builder.build()


def test_structure():
    forest = branching()
    assert (forest.num_segments, forest.num_tokens) == (6, 10)
    np.testing.assert_array_equal(forest.offsets, [0, 3, 5, 6, 7, 9, 10])
    np.testing.assert_array_equal(forest.leaves(), [3, 4, 5])
    np.testing.assert_array_equal(forest.children(0), [1, 5])
    np.testing.assert_array_equal(forest.children(NO_PARENT), [0])
    np.testing.assert_array_equal(forest.child_count(), [2, 1, 2, 0, 0, 0])
    assert forest.path(4) == [0, 1, 2, 4]
    # Positions run along the path: 3 prompt tokens, 2 of the action, 1 of the observation.
    np.testing.assert_array_equal(forest.starts(), [0, 3, 5, 6, 6, 3])
    np.testing.assert_array_equal(forest.tree(), np.zeros(6))
    np.testing.assert_array_equal(forest.segment_of_token(), [0, 0, 0, 1, 1, 2, 3, 4, 4, 5])
    np.testing.assert_array_equal(forest.segment_tokens(4), [8, 9])


def test_builder_defaults():
    forest = branching()
    np.testing.assert_array_equal(forest.group, [4] * 6)
    np.testing.assert_array_equal(forest.turn, [0, 0, 1, 1, 1, 0])
    # Every leaf is an episode of its own; inner segments have none.
    np.testing.assert_array_equal(forest.episode[forest.leaves()], [0, 1, 2])
    # Leaves below one first action are of one trunk.
    np.testing.assert_array_equal(forest.trunk, [-1, -1, -1, 1, 1, 5])
    assert forest.episode[1] == NO_EPISODE and (forest.event == NO_EVENT).all()
    # Siblings saw the same tokens; other segments did not.
    assert forest.observation[3] == forest.observation[4] != forest.observation[1]
    assert forest.observation[1] == forest.observation[5]
    np.testing.assert_array_equal(forest.behavior_logp[[0, 3, 4, 8]], [0, -1, -2, -5])


def test_builder_keeps_given_episodes_apart_from_its_own():
    builder = ForestBuilder()
    prompt = builder.add([1])
    for episode in (7, 7, None, None):
        fields = {} if episode is None else {"episode": episode}
        builder.add([2], prompt, is_action=True, **fields)
    np.testing.assert_array_equal(builder.build().episode, [NO_EPISODE, 7, 7, 8, 9])


def test_builder_names_the_trunk_of_a_leaf_as_beside_it():
    builder = ForestBuilder()
    prompt = builder.add([1])
    for trunks in ((None, 7, None), (None, None)):
        first = builder.add([2], prompt, is_action=True)
        for trunk in trunks:
            fields = {} if trunk is None else {"trunk": trunk}
            builder.add([3], first, is_action=True, **fields)
    forest = builder.build()
    trunks = forest.trunk[forest.leaves()]
    assert trunks[:3].tolist() == [7, 7, 7] and trunks[3] == trunks[4] != 7


def test_builder_sets_late_rewards():
    builder = ForestBuilder()
    action = builder.add([2], builder.add([1]), is_action=True)
    builder.set(action, reward=np.nan)
    assert np.isnan(builder.build().reward[action])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tokens": [1], "rewrad": 1.0}, "Did you mean 'reward'"),
        ({"tokens": [1], "parent": 3}, "parent 3 does not exist; 0 segments"),
        (
            {"tokens": [1, 2], "behavior_logp": [-1.0]},
            r"behavior_logp has shape \(1,\) for 2 tokens",
        ),
    ],
)
def test_builder_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        ForestBuilder().add(**arguments)


def test_set_refuses_unknown_field():
    builder = ForestBuilder()
    with pytest.raises(ValueError, match="unknown segment field 'turns'"):
        builder.set(builder.add([1]), turns=1)


@pytest.mark.parametrize(
    ("field", "segment", "value", "message"),
    [
        ("parent", 2, 2, "segment 2 has a parent that does not precede it"),
        ("parent", 2, -2, "segment 2 has a parent that does not precede it"),
        ("parent", 1, NO_PARENT, "segment 1 is an action without a parent"),
        ("group", 3, 9, "segment 3 is in another group than its parent"),
        ("episode", 4, NO_EPISODE, "segment 4 is a leaf without an episode"),
        ("trunk", 4, NO_TRUNK, "segment 4 is a leaf without a trunk"),
        ("event", 3, -7, "segment 3 has a negative event"),
        ("event", 2, 0, "segment 2 is a member of an event but no action"),
        ("event", 3, 0, "segment 3 is a member of an event of size 0"),
        ("event_size", 3, 2, "segment 3 has an event_size but no event"),
        ("offsets", 2, 3, "segment 1 has no tokens"),
        ("offsets", 6, 9, "offsets run from 0 to 9; expected 0 to 10"),
    ],
)
def test_validate_names_the_segment(field, segment, value, message):
    forest = branching()
    array = getattr(forest, field).copy()
    array[segment] = value
    with pytest.raises(ValueError, match=message):
        forest.replace(**{field: array}).validate()


def test_validate_refuses_wrong_arrays():
    forest = branching()
    with pytest.raises(ValueError, match=r"'reward' is float64 \(6,\); expected .* float32 \(6,\)"):
        forest.replace(reward=forest.reward.astype(np.float64)).validate()
    with pytest.raises(ValueError, match=r"'entropy' is float32 \(9,\); .* float32 \(10,\)"):
        forest.replace(entropy=forest.entropy[1:]).validate()


def test_validate_refuses_contradicting_events():
    def joined(**second):
        builder = ForestBuilder()
        fields = {"event": 0, "event_size": 2, "event_type": 5}
        for group, more in enumerate(({}, second)):
            fields |= more
            own = builder.add([1], group=fields.pop("group", 0))
            builder.add([2], own, is_action=True, **fields)
            if group and more.get("event_size") == 1:
                builder.add([2], own, is_action=True, **fields)
        return builder.build()

    joined()
    with pytest.raises(ValueError, match="segment 3 differs in event_size"):
        joined(event_size=3)
    with pytest.raises(ValueError, match="segment 3 differs in event_type"):
        joined(event_type=6)
    with pytest.raises(ValueError, match="segment 3 differs in group"):
        joined(group=1)
    builder = ForestBuilder()
    prompt = builder.add([1])
    for _ in range(2):
        builder.add([2], prompt, is_action=True, event=0, event_size=1)
    with pytest.raises(ValueError, match="more members than its event_size"):
        builder.build()


@pytest.mark.parametrize("name", ["episode", "trunk"])
def test_validate_refuses_an_episode_or_a_trunk_in_two_groups(name):
    """Trees of one trunk are compared: two prompts that name the same one must not be."""
    builder = ForestBuilder()
    for group in range(2):
        builder.add([2], builder.add([1], group=group), is_action=True, **{name: 5})
    with pytest.raises(ValueError, match=f"segment 3 shares its {name} with a leaf of another"):
        builder.build()


def test_equal_sees_every_field():
    forest = branching()
    assert equal(forest, branching())
    assert not equal(forest, forest.replace(metadata={}))
    for name in ("tokens", "reward", "turn", "truncated"):
        array = getattr(forest, name).copy()
        array[-1] = 1 - array[-1]
        assert not equal(forest, forest.replace(**{name: array}))
    missing = forest.reward.copy()
    missing[1] = np.nan
    assert equal(forest.replace(reward=missing), forest.replace(reward=missing.copy()))


def test_concatenate_keeps_trees_groups_and_episodes_apart(random_forest):
    first, second = random_forest(0, events=True), random_forest(1, events=True)
    joined = concatenate([first, second]).validate()
    assert joined.num_segments == first.num_segments + second.num_segments
    cut = first.num_segments
    np.testing.assert_array_equal(joined.segment_tokens(cut + 2), second.segment_tokens(2))
    for name in ("group", "episode", "trunk", "event"):
        ids = getattr(joined, name)
        assert not set(ids[:cut][ids[:cut] >= 0]) & set(ids[cut:][ids[cut:] >= 0]), name
    assert joined.path(cut + 1) == [cut + s for s in second.path(1)]
    assert joined.metadata == {"forests": [{"seed": 0}, {"seed": 1}]}


def test_concatenate_can_keep_groups(random_forest):
    first, second = random_forest(0), random_forest(1)
    joined = concatenate([first, second], same_groups=True)
    np.testing.assert_array_equal(joined.group, np.concatenate([first.group, second.group]))
    with pytest.raises(ValueError, match="at least one forest"):
        concatenate([])


def test_concatenate_one_is_the_same(random_forest):
    forest = random_forest(3)
    assert equal(concatenate([forest]), forest)


def test_observation_hash_is_stable_across_processes():  # C09: independent of PYTHONHASHSEED
    command = "from sepo_jax.forest import observation_hash as h; print(h('J check'))"
    known = observation_hash("J check")
    assert 0 <= known < 2**63
    assert observation_hash([1, 2]) == observation_hash(np.array([1, 2], np.int64))
    assert observation_hash([1, 2]) != observation_hash([2, 1])
    result = subprocess.run(
        [sys.executable, "-c", command],
        env={"PYTHONHASHSEED": "123", "JAX_PLATFORMS": "cpu", "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(result.stdout) == known


def test_the_example_of_the_builder_runs():
    result = doctest.testmod(builder_module)
    assert result.attempted > 0 and result.failed == 0
