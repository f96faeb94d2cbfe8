"""The team at work: what replies are read as, who is asked when, and what members are shown."""

import itertools
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from team_workflows import compared_walks

from sepo_jax.domains.search.domain import SearchTeam
from sepo_jax.domains.search.team import (
    WORKFLOWS,
    read_answer,
    read_query,
    read_verdict,
    read_workers,
    routing,
)
from sepo_jax.domains.search.world import Question


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ("workers: 1 3", (0, 2)),
        ("Two things are open.\n**Workers: 3, 1**", (0, 2)),
        ("worker: 2", (1,)),
        ("workers: 1 and 2.", (0, 1)),
        ("workers: 2 2", (1,)),
        ("workers: [1, 2]", (0, 1)),
        ("workers: none", ()),
        ("workers: 1\nworkers: 2\nThat is all.", (1,)),
        ("workers: 4", None),
        ("workers: 0", None),
        ("workers: 1, perhaps 2", None),
        ("workers:", None),
        ("workers: -1", None),
        ("workers: 1.5", None),
        ("workers: ²", None),
        ("1 2", None),
        ("", None),
    ],
)
def test_routes(reply, expected):
    assert read_workers(reply, 3) == expected


def test_every_route_is_read_as_it_is_written():
    for workers in (10, 40, 100, 1000):
        assert read_workers(routing(range(workers)), workers) == tuple(range(workers))
    for workers in range(1, 6):
        for size in range(workers + 1):
            for chosen in itertools.combinations(range(workers), size):
                assert read_workers(routing(chosen), workers) == chosen


@pytest.mark.parametrize(
    ("read", "reply", "expected"),
    [
        (read_query, "search: Ada Brook born", "Ada Brook born"),
        (read_query, "The author is missing.\n> Search: `Red River author`", "Red River author"),
        (read_query, "<search>Red River</search>", "Red River"),
        (read_query, "search:", None),
        (read_query, "research: x", None),
        (read_query, "search: \ud800 river", "? river"),
        (read_verdict, "enough: yes", True),
        (read_verdict, "It lacks a year.\nEnough: **no**.", False),
        (read_verdict, "no", False),
        (read_verdict, "enough: yes\nenough: no", False),
        (read_verdict, "enough: yes and no", None),
        (read_verdict, "not enough", None),
        (read_answer, "answer: Ada Brook", "Ada Brook"),
        (read_answer, 'So it is she.\n**Answer:** "Ada Brook"', "Ada Brook"),
        (read_answer, "<answer>Ada Brook</answer>", "Ada Brook"),
        (read_answer, "answer: a: b > c", "a: b > c"),
        (read_answer, "Ada Brook", None),
        (read_answer, "answer: ", None),
    ],
)
def test_replies_are_read_from_the_last_line_that_says_something(read, reply, expected):
    assert read(reply) == expected


HOSTILE = [
    "answer: " * 20_000,
    "search: " + "</a>   " * 20_000 + "x",
    "workers: " + "1 " * 50_000,
    "workers: " + "9" * 50_000,
    "enough: " + "*" * 100_000 + "x",
    "*" * 100_000,
    "\n" * 100_000,
    "answer: \x00\u202e\ud800" * 1000,
]


@given(st.text() | st.sampled_from(["workers: {}", "search: {}", "answer: {}"]).flatmap(
    lambda form: st.text().map(form.format)
))  # fmt: skip
def test_any_reply_is_read_or_not_and_nothing_else(reply):
    for read in (read_query, read_answer):
        said = read(reply)
        assert said is None or (0 < len(said) <= 300 and said.encode())
    assert read_verdict(reply) in (None, True, False)
    workers = read_workers(reply, 3)
    assert workers is None or set(workers) <= {0, 1, 2}


@pytest.mark.parametrize("reply", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_replies_cost_neither_time_nor_the_episode(reply):
    domain = SearchTeam(people=30, rounds=2)
    started = time.process_time()
    played = domain.play(domain.training_tasks(1, 0)[0], lambda *_: reply)
    assert time.process_time() - started < 5
    assert played.record["exact"] is False
    assert played.reward == -0.01 * played.record["malformed"] <= 0


@pytest.fixture(scope="module")
def domain():
    return SearchTeam()


DIRECT, BY_AUTHOR, BY_FOUNDER = ("born",), ("author", "born"), ("founder", "born")


@pytest.mark.parametrize(
    ("walks", "searches", "events"),
    [
        ((BY_AUTHOR, DIRECT), [2, 1], [1, 2, 1, 1, 1, 1, 1]),
        ((DIRECT, BY_AUTHOR, BY_FOUNDER), [3, 2], [1, 3, 1, 1, 2, 1, 1]),
    ],
)
def test_the_events_of_a_scripted_episode(domain, walks, searches, events):
    """A question of a direct and an indirect walk needs two workers, then one; of three walks of
    which two are indirect, three and then two."""
    task = compared_walks(domain, *walks)
    played = domain.play(task, domain.expert(task))
    record = played.record
    assert played.reward == 1 and record["answer"] == task["answers"][0]
    assert record["query_sizes"] == searches
    assert record["event_sizes"] == events
    assert record["event_kinds"] == [
        *("route", "search", "verify", "route", "search", "verify", "answer")
    ]
    of_workers = [sorted(event.asks) for event, _ in played.events if event.kind == "search"]
    open_at_first = [("worker", place) for place in range(len(walks))]
    open_later = [("worker", place) for place, walk in enumerate(walks) if len(walk) > 1]
    assert of_workers == [open_at_first, open_later]
    # As many documents were found as were searched for, and none of them said anything.
    assert len(record["found"]) == sum(searches)
    assert record["calls"] == sum(events)
    assert {role for event, _ in played.events for role, _ in event.asks} == set(domain.roles)


def test_all_workers_of_a_round_are_asked_in_one_state(domain):
    """None sees another's query or find of the same round: they differ in their numbers alone."""
    task = compared_walks(domain, DIRECT, BY_AUTHOR, BY_FOUNDER)
    played = domain.play(task, domain.expert(task))
    for event, _ in played.events:
        shown = {
            tuple(
                line for line in asked.messages[-1]["content"].split("\n") if "worker" not in line
            )
            for asked in event.asks.values()
        }
        assert len(shown) == 1
    last = played.events[-1][0].asks["answerer", 0].messages[-1]["content"].split("\n- ")
    assert len(last) == 1 + 5


def shape(played):
    return [(event.kind, len(event.asks)) for event, _ in played.events]


def test_workflows_ask_whom_they_say():
    """A question of two hops: which events there are, and how many are asked, is worked out by
    hand for three workers."""
    search, verify, route, answer = ("search", 3), ("verify", 1), ("route", 1), ("answer", 1)
    one = ("search", 1)
    expected = {
        "routed": [route, one, verify, route, one, verify, answer],
        "mixed": [search, verify, route, one, verify, answer],
        "fixed": [search, verify, search, verify, answer],
        "verified": [verify, search, verify, search, verify, answer],
    }
    assert set(expected) == set(WORKFLOWS)
    for workflow, events in expected.items():
        team = SearchTeam(workflow, kinds=["2_hops"])
        task = team.training_tasks(1, 0)[0]
        played = team.play(task, team.expert(task))
        assert shape(played) == events, workflow
        assert played.reward == 1
        assert ("router" in team.roles) == (route in events)


def test_dr_mas_is_the_verified_team_of_one_worker():
    team = SearchTeam("verified", workers=1, kinds=["3_hops"])
    assert team.roles == {"worker": 1, "verifier": 1, "answerer": 1}
    task = team.training_tasks(1, 0)[0]
    played = team.play(task, team.expert(task))
    assert set(played.record["event_sizes"]) == {1} and played.reward == 1
    assert "You are worker" not in played.events[1][0].asks["worker", 0].messages[-1]["content"]


def always(**replies):
    return lambda kind, member, messages: replies[kind]


def test_rounds_end_when_they_are_used_up_and_the_verifier_is_not_asked_in_vain():
    team = SearchTeam(rounds=2)
    task = team.training_tasks(1, 0)[0]
    script = always(route="workers: 2", search="search: x", verify="enough: no", answer="answer: x")
    played = team.play(task, script)
    assert [kind for kind, _ in shape(played)] == [
        *("route", "search", "verify", "route", "search", "answer")
    ]
    assert played.record["rounds"] == 2 and played.record["queries"] == 2


def test_a_router_may_stop_at_once():
    team = SearchTeam()
    task = team.training_tasks(1, 0)[0]
    script = always(route="workers: none", answer=f"answer: {task['answers'][0]}")
    played = team.play(task, script)
    assert shape(played) == [("route", 1), ("answer", 1)]
    assert played.reward == 1 and played.record["workers"] is None


def test_replies_that_cannot_be_read_are_counted_cost_something_and_stand_for_something():
    team = SearchTeam(malformed_penalty=0.25)
    task = team.training_tasks(1, 0)[0]
    played = team.play(task, always(route="?", search="?", verify="?", answer="?"))
    # All workers search for nothing, then the verifier's silence counts as enough.
    assert shape(played) == [("route", 1), ("search", 3), ("verify", 1), ("answer", 1)]
    record = played.record
    assert (record["malformed"], record["valid"], record["found"]) == (6, 0, [])
    assert played.reward == -6 * 0.25
    right = always(
        route="?", search="search: x", verify="?", answer=f"answer: {task['answers'][0]}"
    )
    assert team.play(task, right).reward == 1 - 2 * 0.25


def test_a_document_is_shown_once_and_cut_where_asked():
    team = SearchTeam("fixed", snippet_words=2, results=3)
    title = next(each.title for each in team.world.documents if "Author" in each.text)
    script = always(search=f"search: {title}", verify="enough: yes", answer="answer: x")
    played = team.play(team.training_tasks(1, 0)[0], script)
    shown = played.events[1][0].asks["verifier", 0].messages[-1]["content"].split("\n- ")[1:]
    assert len(shown) == len(set(shown)) <= 3 and f"{title} ..." in shown
    assert played.record["found"] == list(dict.fromkeys(played.record["found"]))


def test_experts_know_no_more_than_is_shown(domain):
    """Without evidence an expert searches for what the question names; a document of something
    else changes nothing."""
    lookup = domain.world.lookups["2_hops"][0]
    task = domain.world.task(Question("2_hops", lookup.chains))
    expert = domain.expert(task)
    start, first = lookup.chains[0][:2]
    asked = f"Question: {task['question']}"
    empty = [{"role": "user", "content": f"{asked}\nFound: nothing yet."}]
    news = [{"role": "user", "content": f"{asked}\nFound:\n- {start} news: {start} met nobody."}]
    for messages in (empty, news):
        assert expert("search", ("worker", 0), messages) == f"search: {start} {first}"
        assert expert("verify", ("verifier", 0), messages) == "enough: no"
        assert expert("route", ("router", 0), messages) == "workers: 1"


@pytest.mark.parametrize("workflow", WORKFLOWS)
@pytest.mark.parametrize("workers", [1, 100])
def test_teams_of_one_and_of_a_hundred_are_played(workflow, workers):
    team = SearchTeam(workflow, workers=workers, people=30, kinds=["2_hops"])
    (task,) = team.training_tasks(1, 0)
    played = team.play(task, team.expert(task))
    assert played.reward == 1 and played.record["malformed"] == 0
    if workflow in ("fixed", "verified"):
        assert set(played.record["query_sizes"]) == {workers}


@pytest.mark.parametrize("workflow", WORKFLOWS)
@pytest.mark.parametrize("workers", [1, 3])
def test_the_most_outputs_are_those_of_a_team_that_never_has_enough(workflow, workers):
    team = SearchTeam(workflow=workflow, workers=workers, rounds=3, people=30)
    said = {
        "route": routing(range(workers)),
        "search": "search: x",
        "verify": "enough: no",
        "answer": "answer: x",
    }
    (task,) = team.training_tasks(1, seed=0)
    played = team.play(task, lambda kind, member, messages: said[kind])
    assert played.record["calls"] == team.most_outputs
