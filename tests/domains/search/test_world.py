"""The generated world: its questions are answered again from nothing but documents and words."""

import re
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sandbox.elsewhere import result, start

from sepo_jax.domains.base import stream
from sepo_jax.domains.search.world import (
    COMPARISONS,
    HOPS,
    KINDS,
    LEAST_PEOPLE,
    MOST_PEOPLE,
    World,
    make_world,
    question_text,
)

WORLDS = st.builds(make_world, st.integers(0, 5), st.sampled_from([LEAST_PEOPLE, 61, 120]))


def told_facts(world):
    """(thing, relation) -> value and document, as the documents tell them."""
    found = {}
    for document in world.documents:
        name = document.title
        for relation, value in re.findall(r"(\w+): ([^.]+)\.", document.text):
            found.setdefault((name, relation.lower()), []).append((value, document.id))
        for year in re.findall(rf"{name} was born in (\d+)\.", document.text):
            found.setdefault((name, "born"), []).append((year, document.id))
    return found


def reader(facts):
    """A function from a question in words to its answer and the documents it needs."""

    def thing(words, used):
        match = re.fullmatch(r"the (\w+) of (.+)", words)
        if match is None:
            return words
        ((value, document),) = facts[thing(match[2], used), match[1]]
        used.add(document)
        return value

    def read(question):
        used = set()
        if question.startswith("Name "):
            return thing(question.removeprefix("Name ").removesuffix("."), used), used
        listed = question.removeprefix("Who was born first: ").removesuffix("?")
        people = [thing(words, used) for words in re.split(r", | or ", listed)]
        years = {}
        for person in people:
            ((years[person], document),) = facts[person, "born"]
            used.add(document)
        first = min(years.values())
        (oldest,) = [person for person, year in years.items() if year == first]
        return oldest, used

    return read


def some_questions(world, seed):
    rng = stream(seed, "test")
    for kind in HOPS:
        yield from rng.sample(world.lookups[kind], 10)
    for kind in COMPARISONS:
        drawn = world.comparisons(rng, kind)
        yield from (next(drawn) for _ in range(5))


@given(WORLDS, st.integers(0, 99))
@settings(max_examples=15, deadline=None)
def test_answers_follow_from_the_documents_alone(world, seed):
    read = reader(told_facts(world))
    for question in some_questions(world, seed):
        task = world.task(question)
        answer, used = read(task["question"])
        assert [answer] == task["answers"], task
        # A walk of h relations is told by h documents, no fewer.
        relations = sum(len(chain) - 1 for chain in question.chains)
        assert len(used) == relations == HOPS.get(question.kind, relations)
        # No question of a lookup names its own answer.
        assert question.kind not in HOPS or answer not in task["question"]


@given(WORLDS)
@settings(max_examples=15, deadline=None)
def test_every_fact_is_told_once_and_by_the_thing_itself(world):
    told = told_facts(world)
    assert {key: [value for value, _ in values] for key, values in told.items()} == {
        (name, relation): [value]
        for name, facts in world.facts.items()
        for relation, value in facts.items()
    }
    others = [each for each in world.documents if ":" not in each.text and "born" not in each.text]
    assert len(others) > len(world.documents) / 8
    assert all(each.title not in world.kinds for each in others)


@given(WORLDS)
@settings(max_examples=15, deadline=None)
def test_no_fact_connects_the_parts_and_each_holds_every_kind(world):
    for name, facts in world.facts.items():
        for value in facts.values():
            assert value.isdecimal() or world.parts[value] == world.parts[name]
    counts = Counter((world.kinds[name], part) for name, part in world.parts.items())
    assert len(counts) == 10
    assert counts["person", 0] == pytest.approx(2 * counts["person", 1], abs=2)


def test_all_kinds_are_there_in_the_smallest_and_the_largest_world():
    for people in (LEAST_PEOPLE, MOST_PEOPLE):
        world = make_world(1, people)
        for part in (0, 1):
            of_part = [
                q.kind for each in world.lookups.values() for q in each if world.part(q) == part
            ]
            drawn = [next(world.comparisons(stream(0), kind, (part,))) for kind in COMPARISONS]
            assert all(world.part(question) == part for question in drawn)
            assert {*of_part, *(question.kind for question in drawn)} == set(KINDS)


@pytest.mark.parametrize("people", [LEAST_PEOPLE - 1, MOST_PEOPLE + 1, 50.5])
def test_worlds_that_cannot_be_made(people):
    with pytest.raises(ValueError, match="people"):
        World(0, people)


def test_a_walk_that_the_world_does_not_know_is_named():
    world = make_world(0)
    work = next(name for name, kind in world.kinds.items() if kind == "work")
    with pytest.raises(ValueError, match="no seat of"):
        world.walk((work, "seat"))
    with pytest.raises(ValueError, match="no author of 'Nobody'"):
        world.walk(("Nobody", "author"))


def described(seed: int) -> list:
    """Documents and some questions of a world, as another process has them."""
    world = World(seed, 60)
    questions = [question_text(question) for question in some_questions(world, 0)]
    return [*map(tuple, world.documents), questions]


def test_a_world_is_a_function_of_its_number():
    here = described(3)
    processes = [start(described, 3, hash_seed=seed) for seed in (1, 4242)]
    assert [result(process) for process in processes] == [here, here]
    assert described(4) != here
