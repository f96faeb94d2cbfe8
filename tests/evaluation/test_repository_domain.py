"""Repository repair as a domain: tasks of two kinds, figures, baselines, expert decisions."""

import json
import math
import pickle
from pathlib import Path

import pytest

from sepo_jax.domains.repository.actions import parse_action
from sepo_jax.domains.repository.bundle import NAMES, variants
from sepo_jax.domains.repository.tasks import oracle_conversation
from sepo_jax.evaluation.repository_domain import HELD_OUT, RepositoryRepair
from sepo_jax.policy import train_tokenizer
from sepo_jax.sandbox.container_repository import ContainerRepository
from sepo_jax.sandbox.repository import task_of
from sepo_jax.sandbox.repository_checks import Checked, write_quarantine
from sepo_jax.training.settings import DomainSettings
from sepo_jax.training.setup import corpus, make_domain

KNOWN = [name for name in NAMES if name not in HELD_OUT]


def test_tasks_to_judge_by_are_never_trained_on():
    domain = RepositoryRepair()
    trained = domain.training_tasks(500, seed=3)
    judged = domain.evaluation_tasks(40, seed=3)
    assert len(judged) == 80
    key = json.dumps
    assert not set(map(key, trained)) & set(map(key, judged))
    assert len(set(map(key, judged))) == 80
    assert {task["repository"] for task in trained} == set(KNOWN)
    assert {task["repository"] for task in judged[40:]} == set(HELD_OUT)
    assert all(task["variant"] in variants(task["repository"], True) for task in judged[:40])
    assert len(domain.evaluation_tasks(1000, 0)) == 4 * len(KNOWN) + 16 * len(HELD_OUT)


def test_tasks_are_functions_of_the_seed():
    for make in ("training_tasks", "evaluation_tasks"):
        first, again, other = (getattr(RepositoryRepair(), make)(20, seed) for seed in (1, 1, 2))
        assert first == again != other
        assert json.loads(json.dumps(first)) == first


def record(**change):
    whole = {
        "success": True, "submitted": True, "turns": 3, "invalid": 0, "commands": 1,
        "fail_to_pass": 1.0, "pass_to_pass": 1.0,
        "failed": {"fail_to_pass": {}, "pass_to_pass": {}},
    }  # fmt: skip
    return whole | change


def test_figures_by_kind():
    known, new = {"repository": KNOWN[0], "variant": 1}, {"repository": HELD_OUT[0], "variant": 1}
    failed = record(success=False, submitted=False, turns=5, invalid=2, fail_to_pass=0.5)
    tasks, records = [known, new, {**known, "variant": 2}], [record(), failed, None]
    found = RepositoryRepair().figures(tasks, records)
    assert found["success"] == 1 / 3 and found["known/success"] == 0.5 and found["new/success"] == 0
    assert found["submitted"] == 0.5 and found["turns"] == 4.0 and found["valid"] == 6 / 8
    assert found["new/valid"] == 3 / 5 and found["new/fail_to_pass"] == 0.5
    # Wilson's interval of 1 of 3: centre (1/3 + z^2/6) / (1 + z^2/3), z = 1.96.
    assert math.isclose(found["success_low"], 0.0615, abs_tol=1e-3)
    assert math.isclose(found["success_high"], 0.7923, abs_tol=1e-3)
    repeated = RepositoryRepair().figures([known, known], [record(), None])
    assert repeated["success"] == 0.5 and not any(name.endswith("_low") for name in repeated)
    nothing = RepositoryRepair().figures([known], [None])
    assert nothing["success"] == 0.0 and "turns" not in nothing


def test_baselines_are_played():
    domain = RepositoryRepair()
    tasks = domain.evaluation_tasks(2, seed=0)
    found = domain.baselines(tasks)
    assert found["nothing"]["success"] == 0.0 and found["oracle"]["success"] == 1.0
    assert found["nothing"]["pass_to_pass"] == 1.0 and found["nothing"]["turns"] == 1.0
    assert found["oracle"]["new/success"] == 1.0 and found["oracle"]["valid"] == 1.0
    assert domain.figures(tasks, [None] * 4)["success"] == 0.0


@pytest.mark.parametrize("rationale", [False, True])
def test_expert_decisions_hold_all_messages_so_far(rationale):
    domain = RepositoryRepair()
    traces = domain.expert_traces(40, seed=5, rationale=rationale)
    assert len(traces) == 40
    for messages, reply in traces:
        roles = [message["role"] for message in messages]
        assert roles == ["system", "user", *["assistant", "user"] * ((len(roles) - 2) // 2)]
        assert parse_action(reply) is not None
        assert (len(reply.splitlines()) == 2) == rationale
    # A decision later in an episode goes on from the one before.
    (first, reply), (second, _) = traces[:2]
    assert second[: len(first)] == first and second[len(first)]["content"] == reply
    learned = domain.expert_traces(400, seed=5, rationale=rationale)
    shown = {str(messages) for messages, reply in learned if reply.endswith("submit")}
    judged = {
        str(oracle_conversation(task_of(task), domain.rules, rationale=rationale)[:-1])
        for task in domain.evaluation_tasks(200, 0)
    }
    assert len(shown) > 50 and not shown & judged


def test_an_episode_fits_a_tiny_policys_context():
    domain = make_domain(DomainSettings("repository"))
    tokenizer = train_tokenizer(corpus(domain, seed=42), 512)
    lengths = []
    for messages, reply in domain.expert_traces(200, seed=7):
        if reply == "submit":
            texts = [*(message["content"] for message in messages), reply]
            lengths.append(sum(len(tokenizer.encode(text)) for text in texts))
    assert max(lengths) < 700, max(lengths)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"held_out": ["carts"]}, "Did you mean 'cart'"),
        ({"held_out": NAMES}, "held_out names all repositories"),
        ({"turns": 0}, "turns must be at least 1"),
        ({"reward": "all"}, "unknown reward 'all'"),
    ],
)
def test_options_that_are_none_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        RepositoryRepair(**options)


def test_options_reach_the_environment(tmp_path):
    settings = DomainSettings("repository", options={"turns": 3, "output_limit": 50})
    domain = make_domain(settings)
    environment = pickle.loads(pickle.dumps(domain.environments()))(tmp_path)
    assert environment.rules == domain.rules and environment.rules.turns == 3
    prompt = environment.reset(domain.training_tasks(1, 0)[0], 0).prompts[0]
    assert prompt.messages[0]["content"].endswith("You have 3 actions.")
    environment.close()


RECORD = {
    "repo": "a/b", "base_commit": "c", "problem_statement": "It breaks.",
    "patch": "diff --git a/a.py b/a.py\n--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n-x\n+y\n",
    "test_patch": "diff --git a/t.py b/t.py\n--- a/t.py\n+++ b/t.py\n@@ -1 +1 @@\n-x\n+y\n",
    "FAIL_TO_PASS": '["t.py::a"]', "PASS_TO_PASS": "[]",
}  # fmt: skip


def test_instances_are_tasks_of_their_own_kind(tmp_path):
    path = tmp_path / "instances.jsonl"
    lines = [json.dumps(RECORD | {"instance_id": f"a__b-{n}"}) for n in range(8)]
    path.write_text("\n".join(lines))
    domain = RepositoryRepair(instances=str(path), turns=25)
    judged = domain.evaluation_tasks(5, 0)
    assert judged == [{"instance_id": "a__b-0"}, {"instance_id": "a__b-4"}]
    trained = {task["instance_id"] for task in domain.training_tasks(50, 0)}
    assert trained == {f"a__b-{n}" for n in (1, 2, 3, 5, 6, 7)}
    assert domain.figures(judged, [record(), None])["instances/success"] == 0.5
    assert domain.baselines(judged) == {}
    (messages, reply), (longer, last) = domain.expert_traces(2, 0)
    assert "<<<<<<<" in messages[0]["content"] and "git apply" in reply
    assert len(longer) == 4 and last == "submit"
    environment = domain.environments()(Path(tmp_path))
    assert isinstance(environment, ContainerRepository) and environment.rules == domain.rules
    with pytest.raises(FileNotFoundError, match="no file"):
        RepositoryRepair(instances=str(tmp_path / "absent"))


def listing(path, tasks):
    return str(write_quarantine(path, Checked([], [(task, "flaky") for task in tasks]), times=1))


def test_quarantined_tasks_are_neither_trained_on_nor_judged_by(tmp_path, caplog):
    every = RepositoryRepair()
    name, known = KNOWN[0], every.evaluation_tasks(1, 0)[0]
    whole = [task for task in every.tasks() if task["repository"] == KNOWN[1]]
    out = [{"variant": variants(name, False)[0], "repository": name}, known, *whole]
    path = listing(tmp_path / "out.json", out)
    domain = make_domain(DomainSettings("repository", options={"quarantined": path}))
    assert f"{path}: {len(out)} of 320 tasks are left out" in caplog.text
    trained, judged = domain.training_tasks(2000, 0), domain.evaluation_tasks(1000, 0)
    left = [task for task in every.tasks() if task not in out]
    assert {json.dumps(task) for task in trained + judged} == set(map(json.dumps, left))
    assert domain.tasks() == every.tasks()  # a check of all of them writes a whole file
    assert all(message for message, _ in domain.expert_traces(20, 0))


def test_tasks_are_drawn_as_before_where_none_is_left_out(tmp_path):
    domain = RepositoryRepair(quarantined=listing(tmp_path / "none.json", []))
    for make in ("training_tasks", "evaluation_tasks"):
        assert getattr(domain, make)(50, 3) == getattr(RepositoryRepair(), make)(50, 3)


def test_quarantined_instances_leave_the_split_as_it_is(tmp_path):
    path = tmp_path / "instances.jsonl"
    path.write_text("\n".join(json.dumps(RECORD | {"instance_id": f"a__b-{n}"}) for n in range(8)))
    out = listing(tmp_path / "out.json", [{"instance_id": f"a__b-{n}"} for n in (0, 5)])
    domain = RepositoryRepair(instances=str(path), quarantined=out)
    assert domain.evaluation_tasks(5, 0) == [{"instance_id": "a__b-4"}]
    trained = {task["instance_id"] for task in domain.training_tasks(50, 0)}
    assert trained == {f"a__b-{n}" for n in (1, 2, 3, 6, 7)}
    assert domain.oracle({"instance_id": "a__b-0"})[-1] == "submit"


def test_files_that_do_not_fit_the_tasks_are_refused(tmp_path):
    strange = listing(tmp_path / "a.json", [{"instance_id": "a__b-0"}])
    with pytest.raises(ValueError, match=r"lists .*a__b-0.*, which is no task of this domain"):
        RepositoryRepair(quarantined=strange)
    everything = listing(tmp_path / "b.json", RepositoryRepair().tasks())
    with pytest.raises(ValueError, match="lists 320 of 320 tasks, which leaves none"):
        RepositoryRepair(quarantined=everything)
    (tmp_path / "c.json").write_text('{"format": 2}')
    with pytest.raises(ValueError, match="has format 2"):
        RepositoryRepair(quarantined=str(tmp_path / "c.json"))
