"""The search team as a domain: tasks apart, experts right, figures known, options checked."""

import json
import pickle
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sepo_jax.domains.search.domain import DEFAULT_KINDS, SearchTeam
from sepo_jax.domains.search.team import WORKFLOWS
from sepo_jax.domains.search.world import KINDS
from sepo_jax.domains.tasks import is_task_domain, missing_parts
from sepo_jax.sandbox.snapshots import content_hash


@pytest.fixture(scope="module")
def domain():
    return SearchTeam()


def asked(task):
    """What a task asks, whatever the order in which it names things."""
    return json.dumps(sorted(task["chains"]))


@pytest.mark.parametrize("held_out", ["questions", "entities"])
def test_no_question_is_both_trained_on_and_judged_by(held_out):
    domain = SearchTeam(held_out=held_out, kinds=KINDS)
    judged = domain.evaluation_tasks(20, 0)
    trained = domain.training_tasks(3000, 1)
    assert len(judged) == 20 * len(KINDS) == len({asked(task) for task in judged})
    assert not {asked(task) for task in judged} & {asked(task) for task in trained}
    # Every question that could be judged by is of the other side, not those drawn alone.
    more = {asked(task) for task in domain.evaluation_tasks(40, 7)}
    assert not more & {asked(task) for task in trained}


def test_entities_held_out_are_in_no_question_and_no_answer():
    domain = SearchTeam(held_out="entities")
    passed = [
        {name for task in tasks for chain in task["chains"] for name in domain.world.walk(chain)}
        for tasks in (domain.training_tasks(2000, 0), domain.evaluation_tasks(30, 0))
    ]
    # Years are no things.
    assert {name for name in passed[0] & passed[1] if not name.isdecimal()} == set()


def test_tasks_are_functions_of_their_seed_and_kinds_come_in_turn(domain):
    tasks = domain.training_tasks(23, 4)
    assert tasks == SearchTeam().training_tasks(23, 4) != domain.training_tasks(23, 5)
    assert [task["kind"] for task in tasks] == [*DEFAULT_KINDS * 4, *DEFAULT_KINDS[:3]]
    assert domain.training_tasks(10, 4) == tasks[:10]
    assert json.loads(json.dumps(tasks)) == tasks
    assert domain.training_tasks(0, 0) == domain.evaluation_tasks(0, 0) == []


def test_more_questions_than_there_are_to_be_judged_by_are_refused(domain):
    with pytest.raises(ValueError, match="'1_hop' to be judged by: there are"):
        domain.evaluation_tasks(2000, 0)
    with pytest.raises(ValueError, match="'compare_2' to be judged by"):
        SearchTeam(people=30, kinds=["compare_2"]).evaluation_tasks(5000, 0)


@given(
    st.sampled_from(sorted(WORKFLOWS)), st.integers(1, 5), st.integers(0, 10_000),
    st.sampled_from(KINDS),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_experts_answer_every_question_and_route_as_few_workers_as_suffice(
    workflow, workers, seed, kind
):
    domain = SearchTeam(workflow, workers, rounds=10, kinds=[kind])
    task = domain.training_tasks(1, seed)[0]
    played = domain.play(task, domain.expert(task))
    assert played.reward == 1 and played.record["valid"] == 1
    needed = [len(chain) - 1 for chain in task["chains"]]
    if workflow == "routed":
        # Every query is needed, and no round has fewer than there are walks to go on with.
        assert played.record["queries"] == sum(needed)
        if workers >= len(needed):
            sizes = [sum(need > number for need in needed) for number in range(max(needed))]
            assert played.record["query_sizes"] == sizes
    assert max(played.record["event_sizes"]) <= workers


def test_traces_hold_all_roles_and_replies_that_are_read(domain):
    traces = domain.expert_traces(200, 3)
    assert traces == domain.expert_traces(200, 3) != domain.expert_traces(200, 4)
    assert len(traces) == 200 and domain.expert_traces(0, 0) == []
    starts = {reply.split(":")[0] for _, reply in traces}
    assert starts == {"workers", "search", "enough", "answer"}
    assert all([each["role"] for each in said] == ["system", "user"] for said, _ in traces)
    reasoned = domain.expert_traces(200, 3, rationale=True)
    assert [reply.split("\n")[-1] for _, reply in reasoned] == [reply for _, reply in traces]
    assert all(reply.startswith("Missing: ") for _, reply in reasoned)


def test_traces_are_of_questions_to_train_on(domain):
    judged = {task["question"] for task in domain.evaluation_tasks(60, 0)}
    for said, _ in domain.expert_traces(400, 0):
        assert said[-1]["content"].split("\n")[0].removeprefix("Question: ") not in judged


def record(exact, f1=0.0, sizes=(1,), events=(1, 1, 1), valid=1.0):
    return {
        "exact": exact, "f1": f1, "valid": valid, "queries": sum(sizes), "rounds": len(sizes),
        "workers": sum(sizes) / len(sizes), "event_sizes": list(events), "calls": sum(events),
        "active_set": sum(events) / len(events),
    }  # fmt: skip


def test_scripted_members_err_as_often_as_asked_where_they_are_imitated():
    options = {"workflow": "fixed", "workers": 1, "kinds": ("1_hop",), "rounds": 1}
    sound = SearchTeam(**options).expert_traces(1200, seed=0)
    erring = SearchTeam(**options, error_rate=0.5).expert_traces(1200, seed=0)
    assert [shown for shown, _ in sound[::2]] == [shown for shown, _ in erring[::2]]
    searches = [(a[1], b[1]) for a, b in zip(sound[::2], erring[::2], strict=True)]
    assert all(a.startswith("search: ") and b.startswith("search: ") for a, b in searches)
    # Another thing of the same relation; of 600 the share has a standard error of 0.02.
    wrong = [(a, b) for a, b in searches if a != b]
    assert all(a.split()[-1] == b.split()[-1] for a, b in wrong)
    assert abs(len(wrong) / len(searches) - 0.5) < 0.08


def test_a_verifier_that_always_errs_sends_the_team_on_when_all_is_found():
    options = {"workflow": "fixed", "workers": 1, "kinds": ("1_hop",), "rounds": 2}
    replies = [reply for _, reply in SearchTeam(**options).expert_traces(30, seed=0)]
    assert replies[1] == "enough: yes"
    erring = SearchTeam(**options, verifier_error_rate=1.0).expert_traces(40, seed=0)
    assert erring[1][1] == "enough: no"
    with pytest.raises(ValueError, match=r"error_rate=1\.5 must lie between 0 and 1"):
        SearchTeam(error_rate=1.5)


def test_figures_of_two_questions_asked_twice(domain):
    """Right, wrong, right, and an episode that left nothing: 2 of 4; both questions right once."""
    one, two = {"question": "a", "kind": "1_hop"}, {"question": "b", "kind": "compare_2"}
    records = [
        record(True, 1.0),
        record(False, 0.5, valid=0.5),
        record(True, 1.0, sizes=(3, 1), events=(1, 3, 1, 1, 1, 1, 1)),
        None,
    ]
    found = domain.figures([one, one, two, two], records)
    expected = {
        "exact": 0.5, "f1": 2.5 / 4, "valid": 2.5 / 3, "queries": 2.0, "rounds": 4 / 3,
        "workers": 4 / 3, "active_set": (1 + 1 + 9 / 7) / 3, "events": 13 / 3, "calls": 5.0,
        "avg@2": 0.5, "pass@2": 1.0,
        "1_hop/exact": 0.5, "1_hop/f1": 0.75, "compare_2/exact": 0.5, "compare_2/f1": 0.5,
    }  # fmt: skip
    assert {name: found[name] for name in expected} == pytest.approx(expected)
    # Two episodes of a question are not two questions: only what is over questions has an interval.
    ends = {name for name in found if name.endswith(("_low", "_high"))}
    assert {name.rsplit("_", 1)[0] for name in ends} == {"avg@2", "pass@2"}


def test_figures_of_questions_asked_once_have_intervals_and_no_best_of(domain):
    tasks = domain.evaluation_tasks(2, 0)
    found = domain.figures(tasks, [record(True, 1.0)] * len(tasks))
    assert found["exact"] == 1 and found["exact_low"] < 1
    assert not any(name.startswith(("avg@", "pass@")) for name in found)


def test_baselines_are_in_the_order_of_what_they_know(domain):
    found = domain.baselines(domain.evaluation_tasks(25, 0))
    assert found["random"]["exact"] < 0.1 < found["one_query"]["exact"] < found["oracle"]["exact"]
    assert found["oracle"]["exact"] == 1 and found["one_query"]["queries"] == 1
    assert found["random"]["queries"] == 0
    # One search is enough for one hop alone.
    assert found["one_query"]["1_hop/exact"] > 0.2 > found["one_query"]["3_hops/exact"]


def test_the_reward_may_be_f1():
    team = SearchTeam(reward="f1", malformed_penalty=0)
    task = team.training_tasks(1, 0)[0]
    golden = task["answers"][0]

    def said(kind, member, messages):
        return f"answer: {golden} perhaps" if kind == "answer" else "workers: none"

    words = len(golden.split())
    assert team.play(task, said).reward == pytest.approx(2 * words / (2 * words + 1))
    assert SearchTeam().play(task, said).reward == 0


def files(tmp_path, count=40):
    """A corpus of capitals and questions about them, half of them of another kind."""
    names = [f"Land{number}" for number in range(count)]
    documents = [{"id": n, "title": n, "text": f"The capital of {n} is City{n}."} for n in names]
    questions = [
        {"question": f"capital of {name}", "answer": [f"City{name}"], "type": f"kind_{place % 2}"}
        for place, name in enumerate(names)
    ]
    paths = []
    for name, records in (("corpus", documents), ("questions", questions)):
        path = tmp_path / f"{name}.jsonl"
        path.write_text("".join(json.dumps(each) + "\n" for each in records))
        paths.append(str(path))
    return paths


def test_questions_and_documents_from_files(tmp_path):
    corpus, questions = files(tmp_path)
    team = SearchTeam(corpus=corpus, questions=questions, index_directory=str(tmp_path / "index"))
    trained = team.training_tasks(100, 0)
    judged = team.evaluation_tasks(3, 0)
    assert {task["kind"] for task in judged} == {"kind_0", "kind_1"} and len(judged) == 6
    assert not {t["question"] for t in trained} & {t["question"] for t in judged}
    # Each once before any comes again.
    size = len({task["question"] for task in trained})
    assert len({task["question"] for task in trained[:size]}) == size
    found = team.baselines(judged)
    assert set(found) == {"random", "one_query"}
    assert found["one_query"]["exact"] == 1
    assert len(list((tmp_path / "index").iterdir())) == 1
    # Experts teach on the generated world what the same team says.
    assert team.expert_traces(30, 0) == SearchTeam().expert_traces(30, 0)
    with pytest.raises(ValueError, match="no expert knows what 'capital of"):
        team.expert(judged[0])


def test_a_question_that_comes_again_counts_once(tmp_path):
    corpus, questions = files(tmp_path, 8)
    path = Path(questions)
    path.write_text(path.read_text() * 3)
    team = SearchTeam(corpus=corpus, questions=questions)
    trained = {task["question"] for task in team.training_tasks(20, 0)}
    judged = [task["question"] for kind in ("kind_0", "kind_1") for task in team._given(True)
              if task["kind"] == kind]  # fmt: skip
    assert len(judged) == len(set(judged)) == 8 - len(trained)
    with pytest.raises(ValueError, match="to be judged by: there are"):
        team.evaluation_tasks(len(judged) + 1, 0)


def test_no_answer_is_never_right(domain):
    task = {"question": "Which sign?", "answers": ["?", "the"], "kind": "own"}
    silent = domain.play(task, lambda kind, *_: "workers: none" if kind == "route" else "hm")
    assert (silent.record["exact"], silent.record["f1"], silent.record["answer"]) == (False, 0, "")
    said = domain.play(task, lambda kind, *_: "workers: none" if kind == "route" else "answer: !")
    assert said.record["exact"]


def test_a_file_to_be_judged_by_takes_its_questions_out_of_training(tmp_path):
    corpus, questions = files(tmp_path)
    some = tmp_path / "some.jsonl"
    some.write_text("".join(Path(questions).read_text().splitlines(keepends=True)[:10]))
    other = tmp_path / "other.jsonl"
    other.write_text('{"question": "capital of Land1", "golden_answers": ["CityLand1"]}')
    team = SearchTeam(corpus=corpus, questions=questions, evaluation=str(some))
    judged = {task["question"] for task in team.evaluation_tasks(10, 0)}
    assert len(judged) == 10 and {task["kind"] for task in team.evaluation_tasks(1, 0)} == {"some"}
    both = SearchTeam(corpus=corpus, questions=questions, evaluation=[str(some), str(other)])
    assert {task["kind"] for task in both.evaluation_tasks(1, 0)} == {"some", "other"}
    assert not judged & {task["question"] for task in team.training_tasks(100, 0)}
    with pytest.raises(ValueError, match="leave no question to train on"):
        SearchTeam(corpus=corpus, questions=str(some), evaluation=questions).training_tasks(1, 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workflow": "route"}, "Did you mean 'routed'"),
        ({"workers": 0}, "workers must be at least 1"),
        ({"rounds": 0}, "rounds must be at least 1"),
        ({"results": 0}, "results must be at least 1"),
        ({"snippet_words": -1}, "snippet_words must be at least 0"),
        ({"reward": "em"}, "unknown reward 'em'"),
        ({"malformed_penalty": -0.1}, "malformed_penalty=-0.1 must be 0 or more"),
        ({"malformed_penalty": float("nan")}, "must be 0 or more"),
        ({"malformed_penalty": float("inf")}, "must be 0 or more"),
        ({"malformed_penalty": "0"}, "must be 0 or more"),
        ({"people": 0}, "people must be at least 30, not 0"),
        ({"people": 29}, "people must be at least 30"),
        ({"people": 1000}, "names are enough for 384"),
        ({"world": -1}, "world must be at least 0"),
        ({"kinds": ["1_hops"]}, "Did you mean '1_hop'"),
        ({"kinds": []}, "kinds names no kind"),
        ({"kinds": "1_hop"}, r"kinds='1_hop' must list names, such as \('1_hop',\)"),
        ({"kinds": None}, "kinds=None must list names"),
        ({"held_out": "entity"}, "Did you mean 'entities'"),
        ({"questions": "a"}, "give both, or neither"),
        ({"corpus": "a"}, "give both, or neither"),
        ({"evaluation": "a"}, "needs questions, a file"),
        ({"evaluation": ["a/x", "b/x"], "questions": "q"}, "two files have one name"),
    ],
)
def test_options_that_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        SearchTeam(**options)


@pytest.mark.parametrize(
    "task",
    [
        None,
        {},
        {"question": "x"},
        {"question": 1, "answers": ["a"], "kind": ""},
        {"question": "x", "answers": [], "kind": ""},
        {"question": "x", "answers": "a", "kind": ""},
        {"question": "x", "answers": [5], "kind": ""},
        {"question": "x", "answers": None, "kind": ""},
    ],
)
def test_what_is_no_task_is_refused(domain, task):
    with pytest.raises(ValueError, match="a task of the search team is"):
        domain.play(task, lambda *_: "")


def test_the_domain_is_its_options():
    domain = SearchTeam(workers=2)
    before = pickle.dumps(domain)
    assert is_task_domain(domain) and missing_parts(domain) == []
    domain.training_tasks(5, 0)
    domain.corpus.search("x", 1)
    assert len(before) < 1500 and pickle.dumps(domain) == before
    assert content_hash(domain) == content_hash(SearchTeam(workers=2)) != content_hash(SearchTeam())
