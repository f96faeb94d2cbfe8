"""Records of trees: they say what the forest and its credit say."""

import dataclasses
import json
import math

import numpy as np
import pytest
from grown_trees import decode, grow

from sepo_jax.algorithms import get_algorithm
from sepo_jax.credit import assign_credit, subtree_returns
from sepo_jax.domains.corridor import Corridor
from sepo_jax.evaluation.tree_layout import children_of, lay_out
from sepo_jax.evaluation.tree_record import (
    TEXT_LIMIT,
    TOKEN_LIMIT,
    token_pieces,
    tree_record,
)
from sepo_jax.forest.returns import path_actions
from sepo_jax.rollout import build_forest

CORRIDOR = Corridor(length=5, early=1)
TASKS = CORRIDOR.training_tasks(3, 0)


def anything(episode, rng):
    return str(rng.choice(episode.legal_actions()))


def recorded(results, row="bpo", **options):
    """(record, forest, credit) of results."""
    forest, row = build_forest(results), get_algorithm(row)
    credit = assign_credit(row, forest)
    return tree_record(results, forest, credit, row, decode=decode, **options), forest, credit


def below(record, number):
    return [record["segments"][child] for child in children_of(record["segments"])[number]]


@pytest.mark.parametrize(
    ("points", "continuations", "trunks"),
    [((), 1, 2), ((0, 2), 4, 1), ((1, 3), 3, 2), ((0, 1, 2, 3), 2, 3), ((0, 1, 2, 3, 4), 7, 1)],
)
def test_a_record_has_every_leaf_and_their_weights(points, continuations, trunks):
    results = grow(CORRIDOR, TASKS[0], anything, points, continuations, trunks=trunks)
    record, _, _ = recorded(results)
    assert json.loads(json.dumps(record, allow_nan=False)) == record
    leaves, segments = record["leaves"], record["segments"]
    assert len(leaves) == trunks * (1 + len(points) * (continuations - 1)) == len(results)
    assert sum(leaf["trunk"] for leaf in leaves) == trunks
    assert sum(leaf["weight"] for leaf in leaves) == pytest.approx(1, abs=1e-5)
    children = children_of(segments)
    assert [s["leaves"] for s in segments if s["parent"] < 0] == [len(leaves)]
    assert sum(not each for each in children) == len(leaves)
    for leaf, result in zip(leaves, results, strict=True):
        assert leaf["return"] == pytest.approx(sum(paid.get(0, 0) for paid in result.rewards))
        weight, number = 1.0, leaf["segment"]
        assert segments[number]["text"] == result.actions[-1].text
        while (above := segments[number]["parent"]) >= 0:
            weight /= len(children[above])
            number = above
        assert leaf["weight"] == pytest.approx(weight, rel=1e-5)
    places = lay_out(segments)
    assert places.rows == len(leaves)
    taken = {box.row for box, own in zip(places.boxes, children, strict=True) if not own}
    assert taken == set(range(len(leaves)))


def test_returns_of_branch_points_and_advantages_are_those_of_the_credit():
    results = grow(CORRIDOR, TASKS[0], anything, (0, 2), 4, trunks=2)
    record, forest, credit = recorded(results)
    segments = record["segments"]
    points = 0
    for number, segment in enumerate(segments):
        children = below(record, number)
        points += len(children) > 1
        if children:
            mean = np.mean([child["return"] for child in children])
            assert segment["return"] == pytest.approx(mean, abs=1e-6)
            assert segment["leaves"] == sum(child["leaves"] for child in children)
    assert points == 3  # the prompt, and one further down in each tree
    offsets = forest.offsets
    for number, segment in enumerate(segments):
        if segment["kind"] == "given":
            continue
        tokens = credit.advantage[offsets[number] : offsets[number + 1]]
        assert tokens == pytest.approx(segment["advantage"], abs=1e-6)
        assert segment["weight"] == pytest.approx(credit.segment_weight[number], abs=1e-6)
        # By hand: the nearest branch child at or above it, less the mean of its siblings.
        while len(siblings := below(record, segments[number]["parent"])) == 1:
            number = segments[segments[number]["parent"]]["parent"]
        others = [s["return"] for s in siblings if s is not segments[number]]
        expected = segments[number]["return"] - np.mean(others)
        assert segment["advantage"] == pytest.approx(expected, abs=1e-5)
    assert len({s["advantage"] for s in segments if s["kind"] == "action"}) > 3


@pytest.mark.parametrize("row", ["grpo", "rloo", "vineppo", "tree_grpo", "reinforce", "gigpo"])
def test_advantages_are_those_of_the_row_that_trains(row):
    results = grow(CORRIDOR, TASKS[1], anything, (1,), 4)
    record, forest, credit = recorded(results, row)
    actions = [s for s in record["segments"] if s["kind"] == "action"]
    owner = forest.segment_of_token()
    means = np.bincount(owner, credit.advantage) / forest.lengths()
    shown = [segment["advantage"] for segment in actions]
    assert shown == pytest.approx(means[forest.is_action], abs=1e-6)
    assert record["algorithm"]["name"] == row
    paths = [leaf["advantage"] for leaf in record["leaves"]]
    assert paths == pytest.approx(credit.path_advantage, abs=1e-6)


def test_the_prompt_whose_returns_differ_most_is_kept():
    groups = []
    for number, task in enumerate(TASKS):
        right = number != 1

        def reply(episode, rng, right=right):
            return episode.right_action() if right else anything(episode, rng)

        groups += grow(CORRIDOR, task, reply, (0, 1), 3, group=number)
    record, forest, _ = recorded(groups)
    earned, group = path_actions(forest).episode, forest.group[forest.leaves()]
    assert earned[group != 1] == pytest.approx(1)
    shown = [leaf["return"] for leaf in record["leaves"]]
    assert shown == pytest.approx(earned[group == 1])
    assert record["prompts"] == 3


def test_texts_tokens_and_entropies_are_what_was_sampled():
    results = grow(CORRIDOR, TASKS[0], anything, (2,), 2)
    record, forest, _ = recorded(results)
    actions = [action for result in results for action in result.actions]
    actions = list(dict.fromkeys(actions))
    shown = [s for s in record["segments"] if s["kind"] == "action"]
    for segment, action in zip(shown, actions, strict=True):
        assert segment["text"] == action.text
        assert "".join(segment["pieces"]) == action.text + "<end>"
        assert segment["logp"] == pytest.approx(action.logp, rel=1e-3)
        assert segment["entropies"] == pytest.approx(action.entropy, rel=1e-3)
        assert segment["entropy"] == pytest.approx(action.entropy[0], rel=1e-5)
        given = record["segments"][segment["parent"]]
        assert given["messages"] == [[m["role"], m["content"]] for m in action.prompt.messages]
    assert record["tokens"]["once"] == forest.num_tokens
    paths = [forest.path(int(leaf)) for leaf in forest.leaves()]
    assert record["tokens"]["per_leaf"] == sum(forest.lengths()[path].sum() for path in paths)
    record, _, _ = recorded(results, entropy_of="mean")
    first = next(s for s in record["segments"] if s["kind"] == "action")
    assert first["entropy"] == pytest.approx(actions[0].entropy.mean(), rel=1e-5)


def test_long_texts_are_cut_and_counted():
    def long(episode, rng):
        return anything(episode, rng) + "e" * TEXT_LIMIT

    record, _, _ = recorded(grow(CORRIDOR, TASKS[0], long, (1,), 2))
    for segment in record["segments"]:
        if segment["kind"] == "given":
            continue
        characters, tokens = segment["cut"]
        assert len(segment["text"]) == TEXT_LIMIT and len(segment["pieces"]) == TOKEN_LIMIT
        assert characters in (3, 4, 5) and tokens == segment["tokens"] - TOKEN_LIMIT > 0
    assert len(json.dumps(record)) < 4 * len(record["segments"]) * TEXT_LIMIT


def test_a_character_of_several_tokens_stands_at_its_last():
    ids = list("a🙂é".encode())
    assert token_pieces(ids, decode) == ["a", "", "", "", "🙂", "", "é"]
    assert token_pieces([0xF0, 0x9F], decode) == ["", "\ufffd"]
    # Bytes that are no text are shown as such, and do not swallow what follows.
    assert token_pieces([0xFF] * 4 + [97], decode)[3:] == ["\ufffd" * 4, "a"]
    assert token_pieces([7, 1], None) == ["7", "1"]


def test_a_missing_return_is_null_and_left_out_of_the_means():
    results = grow(CORRIDOR, TASKS[0], anything, (1,), 4)
    paid = (*results[2].rewards[:-1], {0: math.nan})
    results[2] = dataclasses.replace(results[2], rewards=paid)
    record, forest, _ = recorded(results)
    assert [leaf["return"] is None for leaf in record["leaves"]] == [False, False, True, False]
    point = next(s for n, s in enumerate(record["segments"]) if len(below(record, n)) > 1)
    counted = [leaf["return"] for leaf in record["leaves"] if leaf["return"] is not None]
    assert point["return"] == pytest.approx(np.mean(counted), abs=1e-6)
    nothing = subtree_returns(forest, np.full(4, np.nan))
    assert np.isnan(nothing).all()


def test_failed_episodes_are_not_there():
    results = grow(CORRIDOR, TASKS[0], anything, (1,), 4)
    results[3] = dataclasses.replace(results[3], status="failed", actions=())
    record, _, _ = recorded(results)
    assert len(record["leaves"]) == 3
    assert [leaf["weight"] for leaf in record["leaves"]] == pytest.approx([1 / 3] * 3, abs=1e-6)


def test_results_of_another_forest_are_refused():
    results = grow(CORRIDOR, TASKS[0], anything, (1,), 2)
    forest, row = build_forest(results), get_algorithm("bpo")
    with pytest.raises(ValueError, match="hold 5 actions and the forest 9; give the results"):
        tree_record(results[:1], forest, assign_credit(row, forest), row)
