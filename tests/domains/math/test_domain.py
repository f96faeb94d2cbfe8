"""The math team: its workflows event by event, rewards, tasks, figures and scripted players."""

import json
import math
import pickle
from collections import Counter

import pytest

from sepo_jax.domains.math import domain as team_math
from sepo_jax.domains.math.domain import CheckFailed, MathTeam
from sepo_jax.domains.math.experts import Experts, Guessers
from sepo_jax.domains.math.flows import WORKFLOWS
from sepo_jax.domains.math.problems import is_held_out
from sepo_jax.domains.math.roles import route_reply
from sepo_jax.domains.teams import play_workflow
from sepo_jax.names import imported

TASK = {"question": "What is 2 + 3?", "answer": "5", "kind": "chain", "difficulty": 1}


def compared(reference, answer, seconds):
    """A checker that knows a few words; see `MathTeam`."""
    return {"five": "equal", "loop": "time", "broken": "unreadable"}.get(answer, "different")


CHECKER = f"{__name__}:compared"


@pytest.fixture(autouse=True)
def own_checker(monkeypatch):
    """Has the checker's name stand for the function above, however this file was imported."""

    def found(kind, name, example):
        return compared if name == CHECKER else imported(kind, name, example)

    monkeypatch.setattr(team_math, "imported", found)


class Script:
    """Members that say what was written down for them, in order by role, and note their prompts."""

    def __init__(self, **replies):
        self.replies = {role: list(said) for role, said in replies.items()}
        self.prompts = []

    def __call__(self, kind, member, messages):
        self.prompts.append((kind, member, messages[-1]["content"]))
        return self.replies[member[0]].pop(0)


def played(script, task=TASK, **options):
    return play_workflow(MathTeam(checker=CHECKER, **options), task, 0, script)


def test_the_fixed_workflow_is_four_events_of_three_one_one_one():
    script = Script(
        solver=["2 + 3 = 5\n\\boxed{5}", "\\boxed{6}", "\\boxed{5}"],
        verifier=["<verify>approve, reject, approve</verify>"],
        selector=["<select>3</select>"],
        reviser=["\\boxed{5}"],
    )
    transcript = played(script)
    record = transcript.record
    assert record["event_kinds"] == ["solve", "verify", "select", "revise"]
    assert record["event_sizes"] == [3, 1, 1, 1]
    assert (transcript.reward, record["right"], record["malformed"]) == (1.0, True, 0)
    shown = {kind: text for kind, _, text in script.prompts}
    assert shown["verify"] == "What is 2 + 3?\n1: 5\n2: 6\n3: 5"
    assert shown["select"] == "What is 2 + 3?\n1: 5 (approve)\n2: 6 (reject)\n3: 5 (approve)"
    assert shown["revise"] == "What is 2 + 3?\n1: 5 (approve)"
    assert [member for kind, member, _ in script.prompts if kind == "solve"] == [
        ("solver", 0), ("solver", 1), ("solver", 2)
    ]  # fmt: skip
    assert json.loads(json.dumps(record)) == record


def test_the_number_of_solvers_is_the_size_of_their_event():
    for solvers in (1, 5):
        script = Script(solver=["\\boxed{5}"] * solvers, verifier=["<verify>approve</verify>"],
                        selector=["<select>1</select>"], reviser=["\\boxed{5}"])  # fmt: skip
        assert played(script, solvers=solvers).record["event_sizes"] == [solvers, 1, 1, 1]


MIXED = {
    "one approved answer ends it": (["5", "6", "5"], "approve, reject, approve", (), ()),
    "of several one is selected": (["5", "6", "7"], "approve, approve, reject",
                                   ["<select>1</select>"], ()),
    "none is corrected": (["4", "6", "7"], "reject", (), ["\\boxed{5}"]),
}  # fmt: skip


@pytest.mark.parametrize("case", MIXED)
def test_the_mixed_workflow_goes_by_the_verdicts(case):
    answers, verdicts, selector, reviser = MIXED[case]
    script = Script(
        solver=[f"\\boxed{{{answer}}}" for answer in answers],
        verifier=[f"<verify>{verdicts}</verify>"], selector=selector, reviser=reviser,
    )  # fmt: skip
    transcript = played(script, workflow="mixed")
    assert transcript.reward == 1.0
    assert transcript.record["event_sizes"] == [3, 1] + [1] * len([*selector, *reviser])
    assert not any(script.replies.values())


def test_a_routed_set_is_what_the_router_chose():
    script = Script(
        router=["<route>1, 3</route>", "<route>2</route>"],
        solver=["\\boxed{6}", "\\boxed{7}", "\\boxed{5}"],
        verifier=["<verify>reject</verify>", "<verify>approve</verify>"],
        reviser=["\\boxed{5}"],
    )
    transcript = played(script, workflow="routed")
    assert transcript.record["event_kinds"] == [
        "route", "solve", "verify", "route", "solve", "verify", "revise"
    ]  # fmt: skip
    assert transcript.record["event_sizes"] == [1, 2, 1, 1, 1, 1, 1]
    solvers = [(member[1], text) for kind, member, text in script.prompts if kind == "solve"]
    assert solvers == [
        (0, TASK["question"]), (2, TASK["question"]), (1, "What is 2 + 3?\nRejected: 6, 7")
    ]  # fmt: skip
    routes = [text for kind, _, text in script.prompts if kind == "route"]
    assert routes == [
        "What is 2 + 3?\nNo candidates yet.\nRounds left: 2",
        "What is 2 + 3?\n1: 6 (reject)\n2: 7 (reject)\nRounds left: 1",
    ]


def test_a_router_may_stop_at_once_and_one_that_says_nothing_asks_the_first():
    stopped = Script(router=["<route>stop</route>"], reviser=["\\boxed{5}"])
    assert played(stopped, workflow="routed").record["event_sizes"] == [1, 1]
    silent = Script(router=["?", "?"], solver=["\\boxed{5}"], verifier=["<verify>approve</verify>"],
                    reviser=["\\boxed{5}"])  # fmt: skip
    record = played(silent, workflow="routed").record
    assert record["event_sizes"] == [1, 1, 1, 1, 1] and record["malformed"] == 2


def test_a_solver_alone_is_one_event():
    record = played(Script(solver=["\\boxed{5}"]), workflow="single").record
    assert (record["event_sizes"], record["right"], record["calls"]) == ([1], True, 1)


def test_malformed_replies_are_tolerated_counted_and_cost_what_is_configured():
    replies = {"solver": ["?", "\\boxed{5}", ""], "verifier": ["hm"], "selector": ["9"],
               "reviser": ["well"]}  # fmt: skip
    transcript = played(Script(**replies), malformed_penalty=0.1)
    record = transcript.record
    # A missing verdict approves, no selection takes the first candidate with an answer, and no
    # revision leaves its answer.
    assert record["right"] and record["answer"] == "5"
    assert (record["malformed"], record["replies"]) == (5, 6)
    assert math.isclose(transcript.reward, 1 - 0.1 * 5)
    assert played(Script(**replies)).reward == 1.0


def test_a_team_without_an_answer_earns_nothing():
    transcript = played(Script(solver=["?"] * 3, verifier=[""], selector=[""], reviser=[""]))
    assert transcript.reward == 0.0
    assert transcript.record["outcome"] == "none" and not transcript.record["answered"]


def alone(reply, **options):
    return played(Script(solver=[reply]), workflow="single", **options)


def test_answers_that_need_the_checker_are_given_to_it():
    assert alone("\\boxed{five}").reward == 1.0
    assert alone("\\boxed{six}").reward == 0.0
    # Equal at sight: the checker says "different" of all but three words.
    assert alone("\\boxed{10/2}").reward == 1.0


def test_a_comparison_that_does_not_end_is_worth_zero_or_missing():
    transcript = alone("\\boxed{loop}")
    assert (transcript.reward, transcript.record["outcome"]) == (0.0, "time")
    assert transcript.record["unchecked"]
    with pytest.raises(CheckFailed, match="time: 'loop' compared with '5'"):
        alone("\\boxed{loop}", on_failure="missing")
    assert alone("\\boxed{six}", on_failure="missing").reward == 0.0
    for on_failure in ("zero", "missing"):  # the task is at fault, not the team
        with pytest.raises(CheckFailed, match="unreadable"):
            alone("\\boxed{broken}", on_failure=on_failure)


def test_tasks_to_train_on_and_to_be_judged_by_have_nothing_in_common():
    domain = MathTeam(difficulties=(1, 4))
    trained = domain.training_tasks(100, 0)
    judged = domain.evaluation_tasks(20, 0)
    assert len(trained) == 100 and len(judged) == 40
    assert Counter(task["difficulty"] for task in judged) == {1: 20, 4: 20}
    assert not {t["question"] for t in trained} & {t["question"] for t in judged}
    assert domain.training_tasks(100, 0) == trained != domain.training_tasks(100, 1)
    assert json.loads(json.dumps(trained)) == trained
    assert pickle.loads(pickle.dumps(domain)).evaluation_tasks(20, 0) == judged


def file_of(path, names):
    lines = [json.dumps({"problem": f"Problem {name}", "answer": "1"}) for name in names]
    path.write_text("\n".join(lines))
    return str(path)


def test_tasks_of_files(tmp_path):
    train = file_of(tmp_path / "dapo.jsonl", range(40))
    split = MathTeam(problems=train)
    trained = {task["question"] for task in split.training_tasks(200, 0)}
    judged = {task["question"] for task in split.evaluation_tasks(100, 0)}
    assert len(trained) + len(judged) == 40 and all(map(is_held_out, judged))
    tests = [file_of(tmp_path / "aime24.jsonl", range(35, 50)),
             file_of(tmp_path / "math500.jsonl", range(50, 60))]  # fmt: skip
    domain = MathTeam(problems=train, evaluation=tests)
    trained = Counter(task["question"] for task in domain.training_tasks(70, 0))
    # What is judged by is left out, and all others come before any comes again.
    assert set(trained) == {f"Problem {n}" for n in range(35)} and set(trained.values()) == {2}
    judged = domain.evaluation_tasks(10, 0)
    assert Counter(task["set"] for task in judged) == {"aime24": 10, "math500": 10}
    # Scripted players do without workings.
    assert domain.expert_traces(10, 0) and domain.baselines(judged)["oracle"]["accuracy"] == 1.0
    with pytest.raises(ValueError, match="no problem left to train on"):
        MathTeam(problems=train, evaluation=train).training_tasks(1, 0)
    with pytest.raises(FileNotFoundError, match=r"absent\.jsonl"):
        MathTeam(problems=str(tmp_path / "absent.jsonl"))


def test_a_file_has_the_same_questions_wherever_it_lies(tmp_path):
    chosen = []
    for place in ("here", "there"):
        (tmp_path / place).mkdir()
        path = file_of(tmp_path / place / "set.jsonl", range(200))
        domain = MathTeam(problems=path, evaluation=path)
        chosen.append([task["question"] for task in domain.evaluation_tasks(10, 0)])
    assert chosen[0] == chosen[1]


def record(right, replies=2, malformed=0):
    return {"right": right, "answered": True, "unchecked": False, "replies": replies,
            "malformed": malformed, "event_kinds": ["solve", "verify"], "event_sizes": [3, 1],
            "calls": 4, "active_set": 2.0}  # fmt: skip


@pytest.mark.parametrize("workflow", WORKFLOWS)
@pytest.mark.parametrize("solvers", [1, 3])
def test_the_most_outputs_are_those_of_the_longest_of_many_plays(workflow, solvers):
    team = MathTeam(workflow=workflow, solvers=solvers, rounds=2, difficulties=(1,))
    tasks = team.training_tasks(60, seed=0)
    calls = [
        play_workflow(team, task, 0, Guessers(task, number, solvers)).record["calls"]
        for number, task in enumerate(tasks)
    ]
    assert max(calls) == team.most_outputs


def test_figures_have_known_values():
    hard = {**TASK, "question": "hard", "difficulty": 2}
    tasks = [TASK] * 4 + [hard] * 4
    # One question is answered right 2 of 4 times, the other never, once without a record.
    rights = [True, True, False, False, False, False, False]
    found = MathTeam().figures(tasks, [record(right) for right in rights] + [None])
    assert found["accuracy"] == found["avg@4"] == 0.25 and found["pass@4"] == 0.5
    assert found["difficulty_1/accuracy"] == 0.5 and found["difficulty_2/accuracy"] == 0.0
    assert found["chain/accuracy"] == 0.25 and found["solvers"] == 3.0
    assert found["answered"] == 7 / 8 and found["unchecked"] == 0.0 and found["valid"] == 1.0
    assert (found["active_set"], found["events"], found["calls"]) == (2.0, 2.0, 4.0)
    # Half the width of the interval of a mean of 0.5 and 0: 1.96 * sqrt(0.125 / 2).
    assert math.isclose(found["avg@4_high"] - 0.25, 1.959964 * math.sqrt(0.125 / 2))
    assert "accuracy_low" not in found
    once = MathTeam().figures([TASK, hard], [record(True, 4, 1), None])
    assert once["accuracy"] == 0.5 and 0 < once["accuracy_low"] < 0.5
    assert once["valid"] == 0.75
    assert not any(name.startswith(("avg@", "pass@")) for name in once)
    assert MathTeam().figures([TASK], [None])["accuracy"] == 0.0


def test_scripted_players_stand_where_they_should():
    domain = MathTeam(error_rate=0.4, verifier_error_rate=0.1)
    tasks = domain.evaluation_tasks(60, 1)
    found = domain.baselines(tasks)
    accuracy = {player: figures["accuracy"] for player, figures in found.items()}
    assert accuracy["oracle"] == 1.0 and accuracy["random"] < 0.1
    # A solver is right with probability 0.6: of 180 tasks 0.6 +- 4 * 0.037.
    assert abs(accuracy["solver"] - 0.6) < 0.15
    assert accuracy["solver"] < accuracy["experts"] < 1.0
    assert found["experts"]["active_set"] == 1.5 and found["solver"]["active_set"] == 1.0
    assert all(figures["valid"] == 1.0 for figures in found.values())


@pytest.mark.parametrize("workflow", ["fixed", "mixed", "routed", "single"])
def test_expert_traces_speak_for_every_role_and_are_right(workflow):
    domain = MathTeam(workflow, error_rate=0.5, workings=False)
    traces = domain.expert_traces(300, 0)
    assert len(traces) == 300 and traces == domain.expert_traces(300, 0)
    systems = {messages[0]["content"].split(".")[0] for messages, _ in traces}
    assert len(systems) == sum(domain.roles.values())
    reasoned = domain.expert_traces(300, 0, rationale=True)
    assert max(len(reply.splitlines()) for _, reply in traces) == 1
    assert max(len(reply.splitlines()) for _, reply in reasoned) > 2
    assert [messages for messages, _ in reasoned] == [messages for messages, _ in traces]
    assert MathTeam(workflow, error_rate=0.5).expert_traces(300, 0) == reasoned


def test_traces_of_members_who_get_nothing_right_are_refused():
    options = {"workflow": "single", "error_rate": 1.0}
    with pytest.raises(ValueError, match=r"nothing to imitate: error_rate=1\.0 leaves no reply"):
        MathTeam(**options).expert_traces(4, 0)
    assert len(MathTeam(**options, imitate_errors=True).expert_traces(4, 0)) == 4
    assert MathTeam(**options).expert_traces(0, 0) == []


def test_experts_read_candidates_and_not_numbered_lines_of_the_question():
    task = TASK | {"question": "Which holds?\n1: 4 (reject)\n2: 5 (approve)"}
    for workflow in WORKFLOWS:
        played = play_workflow(MathTeam(workflow), task, 0, Experts(task, 0, 3))
        assert played.record["right"] and played.record["malformed"] == 0, workflow
        play_workflow(MathTeam(workflow), task, 0, Guessers(task, 0, 3))


def test_errors_are_imitated_where_asked_for_and_are_guesses_without_workings():
    options = {"workflow": "single", "error_rate": 0.3, "kinds": ("chain",), "difficulties": (2,)}
    replies = [reply for _, reply in MathTeam(**options).expert_traces(400, 0)]
    assert {len(reply.splitlines()) for reply in replies} == {3}
    erring = MathTeam(**options, imitate_errors=True).expert_traces(400, 0)
    guesses = [reply for _, reply in erring if len(reply.splitlines()) == 1]
    # Of 400 the share has a standard error of 0.023.
    assert abs(len(guesses) / len(erring) - 0.3) < 0.1


def test_a_router_that_errs_asks_all_solvers_at_once():
    options = {"workflow": "routed", "error_rate": 0.0, "difficulties": (1, 2)}
    traces = MathTeam(**options, router_error_rate=0.5, imitate_errors=True).expert_traces(900, 0)
    routes = [reply for messages, reply in traces if "No candidates" in messages[-1]["content"]]
    everyone = routes.count(route_reply((1, 2, 3)))
    assert everyone + routes.count(route_reply((1,))) == len(routes) > 100
    # Of 100 or more the share has a standard error of at most 0.05.
    assert abs(everyone / len(routes) - 0.5) < 0.2
    right = MathTeam(**options, router_error_rate=0.5).expert_traces(300, 0)
    assert route_reply((1, 2, 3)) not in [reply for _, reply in right]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workflow": "rooted"}, "Did you mean 'routed'"),
        ({"solvers": 0}, "solvers must be at least 1"),
        ({"rounds": 0}, "rounds must be at least 1"),
        ({"difficulties": (6,)}, "must be one or more of 1, 2, 3, 4, 5"),
        ({"kinds": ("sums",)}, "unknown kind of problem"),
        ({"on_failure": "none"}, "Allowed: missing, zero"),
        ({"error_rate": 1.5}, "error_rate=1.5 must lie between 0 and 1"),
        ({"router_error_rate": -0.1}, "router_error_rate=-0.1 must lie between 0 and 1"),
        ({"check_seconds": 0}, "check_seconds=0 one above 0"),
        ({"check_seconds": math.inf}, "check_seconds=inf one above 0"),
        ({"check_seconds": "3"}, "check_seconds='3' must be a number"),
        ({"malformed_penalty": math.nan}, "malformed_penalty=nan is a number from 0"),
        ({"malformed_penalty": None}, "malformed_penalty=None must be a number"),
        ({"check_seconds": 1e7}, "check_seconds=10000000.0 one above 0 and up to 3600"),
        ({"difficulties": (1, 1)}, "must be one or more of"),
        ({"difficulties": (1.0,)}, "must be one or more of"),
        ({"difficulties": ([1],)}, "must be one or more of"),
        ({"difficulties": 1}, "must be one or more of"),
        ({"checker": None}, "checker=None must name a function"),
        ({"checker": "math:pi"}, "checker='math:pi' must name a function"),
        ({"malformed_penalty": -1.0}, "malformed_penalty=-1.0 is a number from 0"),
        ({"checker": "nowhere:check"}, "checker='nowhere:check' must be"),
    ],
)
def test_options_out_of_range_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        MathTeam(**options)


def test_files_for_evaluation_have_names_of_their_own_and_hold_something(tmp_path):
    (tmp_path / "other").mkdir()
    one, other = (file_of(tmp_path / place / "aime.jsonl", range(3)) for place in ("", "other"))
    for evaluation in ([one, other], [one, one]):
        with pytest.raises(ValueError, match="two files have one name"):
            MathTeam(evaluation=evaluation)
    (name,) = [n for n in range(9) if not is_held_out(f"Problem {n}")][:1]
    alone = MathTeam(problems=file_of(tmp_path / "one.jsonl", [name]))
    with pytest.raises(ValueError, match=r"one\.jsonl has no problem left to be judged by"):
        alone.evaluation_tasks(5, 0)


@pytest.mark.parametrize("solvers", [1, 100])
@pytest.mark.parametrize("workflow", WORKFLOWS)
def test_teams_of_one_and_of_a_hundred_are_played(workflow, solvers):
    team = MathTeam(workflow, solvers=solvers, difficulties=(1,))
    (task,) = team.training_tasks(1, 0)
    played = play_workflow(team, task, 0, Experts(task, 0, solvers))
    assert played.record["right"] and played.record["malformed"] == 0
    if workflow in ("fixed", "mixed"):
        assert played.record["event_sizes"][0] == solvers


@pytest.mark.parametrize(
    "task",
    [None, {"question": "q"}, ["q", "a"], {"question": "q", "answer": 5}, {"question": None}],
)
def test_what_is_no_task_is_named(task):
    with pytest.raises(ValueError, match=r'a task is \{"question": text, "answer": text\}'):
        play_workflow(MathTeam(), task, 0, Script())
