"""Instances of SWE-bench: read from JSONL with all that can be wrong, run and scored."""

import json

import pytest

from sepo_jax.domains.repository.actions import Run, Submit, parse_action
from sepo_jax.domains.repository.swe_bench import (
    changed_files,
    files_with_tests,
    patch_conversation,
    patch_replies,
    read_instances,
    read_outcomes,
    scoring_command,
    split,
)
from sepo_jax.domains.repository.tasks import RepairRules

PATCH = """diff --git a/a.py b/a.py
--- a/a.py
+++ b/a.py
@@ -1 +1 @@
-x = 1
+x = 2
"""
TEST_PATCH = """diff --git a/tests/test_a.py b/tests/test_a.py
--- a/tests/test_a.py
+++ b/tests/test_a.py
@@ -1 +1,2 @@
 import a
+assert a.x == 2
diff --git a/tests/data.json b/tests/data.json
new file mode 100644
--- /dev/null
+++ b/tests/data.json
@@ -0,0 +1 @@
+{}
diff --git a/tests/old.py b/tests/old.py
deleted file mode 100644
--- a/tests/old.py
+++ /dev/null
@@ -1 +0,0 @@
-y = 1
"""
RECORD = {
    "repo": "owner/name",
    "instance_id": "owner__name-12",
    "base_commit": "abc",
    "patch": PATCH,
    "test_patch": TEST_PATCH,
    "problem_statement": "x is 1.",
    "hints_text": "",
    "created_at": "2024-01-01T00:00:00Z",
    "version": "1.0",
    "FAIL_TO_PASS": '["tests/test_a.py::test_x"]',
    "PASS_TO_PASS": "[]",
    "environment_setup_commit": "abc",
    "difficulty": "<15 min fix",
}


def write(path, *records):
    lines = [record if isinstance(record, str) else json.dumps(record) for record in records]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def instance_of(path, **change):
    (found,) = read_instances(write(path, RECORD | change)).values()
    return found


def test_instances_are_read_in_their_order(tmp_path):
    second = RECORD | {"instance_id": "b__c-1", "PASS_TO_PASS": ["t"], "image": "mine:1"}
    found = read_instances(write(tmp_path / "a.jsonl", RECORD, "", second))
    assert list(found) == ["owner__name-12", "b__c-1"]
    first, last = found.values()
    assert first.fail_to_pass == ("tests/test_a.py::test_x",) and first.pass_to_pass == ()
    assert first.image == "swebench/sweb.eval.x86_64.owner_1776_name-12:latest"
    assert last.pass_to_pass == ("t",) and last.image == "mine:1"


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ("{", "line 2: not JSON: .* at column 2"),
        ("[]", r"line 2: expected a JSON object, not \[\]"),
        ("[" * 100_000, "line 2: (JSON nested too deeply|not JSON)"),
        ({k: v for k, v in RECORD.items() if k != "patch"}, "line 2: the field 'patch' is missing"),
        (RECORD | {"patch": 3}, "'patch' is a text, not 3"),
        (RECORD | {"FAIL_TO_PASS": "test_a"}, "'FAIL_TO_PASS' is a list in JSON, not \"test_a\""),
        (RECORD | {"PASS_TO_PASS": "{}"}, r"'PASS_TO_PASS' is a list of test names, not {}"),
        (RECORD | {"PASS_TO_PASS": [1]}, r"'PASS_TO_PASS' is a list of test names, not \[1\]"),
        (RECORD | {"FAIL_TO_PASS": "[]"}, "names no test, so there is nothing to repair"),
        (RECORD | {"test_patch": ""}, "'test_patch' is no diff"),
        (RECORD | {"instance_id": ""}, "'instance_id' is empty"),
        (RECORD | {"image": 3}, "'image' is a text, not 3"),
        (RECORD, "instance 'owner__name-12' comes a second time"),
    ],
)
def test_a_line_that_is_no_instance_is_named(record, message, tmp_path):
    path = write(tmp_path / "a.jsonl", RECORD, record)
    with pytest.raises(ValueError, match=message) as caught:
        read_instances(path)
    assert str(path) in str(caught.value)


def test_a_file_that_is_none_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="of SWE-bench instances, one JSON object a line"):
        read_instances(tmp_path / "absent.jsonl")
    with pytest.raises(ValueError, match="is empty"):
        read_instances(write(tmp_path / "a.jsonl", " "))
    (tmp_path / "b.jsonl").write_bytes(b'{"repo": "\xff"}\n')
    with pytest.raises(ValueError, match="line 1: not UTF-8 at byte 11"):
        read_instances(tmp_path / "b.jsonl")


def test_the_files_of_diffs(tmp_path):
    instance = instance_of(tmp_path / "a.jsonl")
    assert changed_files(TEST_PATCH) == ["tests/test_a.py", "tests/data.json", "tests/old.py"]
    assert files_with_tests(instance) == ["tests/test_a.py"]


def test_every_repository_runs_its_tests_its_own_way(tmp_path):
    command = scoring_command(instance_of(tmp_path / "a.jsonl"))
    assert "python -m pytest --rootdir=. -p sepo_jax_reporter -q tests/test_a.py >" in command
    django = scoring_command(instance_of(tmp_path / "a.jsonl", repo="django/django"))
    assert "./tests/runtests.py" in django and django.endswith("--parallel 1 test_a 2>&1")
    sympy = scoring_command(instance_of(tmp_path / "a.jsonl", repo="sympy/sympy"))
    assert sympy.endswith("bin/test -C --verbose tests/test_a.py 2>&1")


def outcomes(path, repo, output):
    found = read_outcomes(instance_of(path, repo=repo), output)
    return {test: outcome for test, (outcome, _) in found.items()}


def test_prints_are_no_verdicts_of_pytest(tmp_path):  # C14
    lines = [
        {"test": "t.py::a", "outcome": "passed"},
        {"test": "t.py::b[x y]", "outcome": "passed"},
        {"test": "t.py::c", "outcome": "passed"},
        {"test": "t.py::c", "outcome": "failed"},
        {"test": "t.py::c", "outcome": "passed"},
    ]
    output = "t.py::d PASSED\nPASSED t.py::d\n3\n{}\n" + "\n".join(map(json.dumps, lines))
    assert outcomes(tmp_path / "a.jsonl", "a/b", output) == {
        "t.py::a": "passed",
        "t.py::b[x": "passed",
        "t.py::b[x y]": "passed",
        "t.py::c": "failed",
    }


DJANGO = """test_a (m.tests.Case) ... ok
test_b (m.tests.Case) ... FAIL
test_c (m.tests.Case) ... skipped 'no database'
test_d (m.tests.Case)
It does what it should. ... ok
test_e (m.tests.Case) ... some noise
more noise
ok
test_f (m.tests.Case) ... expected failure
test_g (m.tests.Case) ... ERROR
test_h (m.tests.Case) ... noise without an end
ok, this is no verdict
"""


def test_lines_of_unittest_are_read_with_noise_between(tmp_path):  # C14
    assert outcomes(tmp_path / "a.jsonl", "django/django", DJANGO) == {
        "test_a (m.tests.Case)": "passed",
        "test_b (m.tests.Case)": "failed",
        "test_c (m.tests.Case)": "skipped",
        "test_d (m.tests.Case)": "passed",
        "It does what it should.": "passed",
        "test_e (m.tests.Case)": "passed",
        "test_f (m.tests.Case)": "passed",
        "test_g (m.tests.Case)": "failed",
    }


def test_lines_of_sympy_are_read(tmp_path):
    output = "sympy/a.py[4] \ntest_a ok\ntest_b F\ntest_c E\ntest_d f  [FAIL]\nattest_e ok\n"
    assert outcomes(tmp_path / "a.jsonl", "sympy/sympy", output) == {
        "test_a": "passed", "test_b": "failed", "test_c": "failed", "test_d": "passed"
    }  # fmt: skip


def test_the_known_patch_is_a_reply(tmp_path):
    instance = instance_of(tmp_path / "a.jsonl")
    apply, submit = map(parse_action, patch_replies(instance))
    assert isinstance(apply, Run) and PATCH.strip() in apply.command and submit == Submit()
    messages = patch_conversation(instance, RepairRules(long_forms=True))
    assert [m["role"] for m in messages] == ["system", "user", "assistant", "user", "assistant"]
    assert messages[1]["content"] == "Issue: x is 1." and messages[3]["content"] == "(no output)"


def test_instances_to_judge_by_are_not_trained_on():
    names = [f"n{number:02}" for number in range(10)]
    judged, trained = split(names, evaluation=True), split(names, evaluation=False)
    assert judged == ["n00", "n04", "n08"] and sorted(judged + trained) == names
