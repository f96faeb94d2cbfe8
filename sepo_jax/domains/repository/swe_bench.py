"""Instances of SWE-bench, read from its JSONL files, and how each repository runs its tests.

Fields and rules are those of SWE-bench (arXiv 2310.06770) and of its Verified subset: an instance
is resolved when all tests of FAIL_TO_PASS and of PASS_TO_PASS pass.
"""

import json
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sepo_jax.domains.base import Message
from sepo_jax.domains.json_lines import read_json_lines, short
from sepo_jax.domains.repository.tasks import RepairRules, opening, run_observation

_TEXTS = ("instance_id", "repo", "base_commit", "problem_statement", "patch", "test_patch")
_LISTS = ("FAIL_TO_PASS", "PASS_TO_PASS")
_IMAGE = "swebench/sweb.eval.x86_64.{name}:latest"
_END_OF_PATCH = "END_OF_PATCH"
_NO_TESTS = re.compile(r"\.(?:json|png|csv|txt|md|jpe?g|pkl|ya?ml|toml)$")


@dataclass(frozen=True)
class Instance:
    """An issue of a real repository.

    Attributes:
      instance_id: its name, such as "django__django-11099".
      repo: owner and name of the repository.
      base_commit: the commit to be repaired.
      problem_statement: the issue.
      patch: the repair that was made, a diff.
      test_patch: the diff that adds the tests which judge.
      fail_to_pass, pass_to_pass: names of tests, as the repository's test runner prints them.
      image: of the container that holds the repository and all it needs.
    """

    instance_id: str
    repo: str
    base_commit: str
    problem_statement: str
    patch: str
    test_patch: str
    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]
    image: str


def read_instances(path: str | os.PathLike) -> dict[str, Instance]:
    """Instances of a file, by their names in its order.

    Args:
      path: UTF-8, a JSON object a line. FAIL_TO_PASS and PASS_TO_PASS are lists, or texts that hold
        such a list in JSON. "image" may name another image than the published one.

    Raises:
      FileNotFoundError: no such file.
      ValueError: what a line lacks or has of another kind, or an instance that comes twice; the
        message names file and line.
    """
    found: dict[str, Instance] = {}

    def read(record: Mapping[str, Any]) -> None:
        instance = _instance(record)
        if instance.instance_id in found:
            raise ValueError(f"instance {instance.instance_id!r} comes a second time")
        found[instance.instance_id] = instance

    for _ in read_json_lines(path, "SWE-bench instances", read):
        pass
    return found


def _instance(record: Mapping[str, Any]) -> Instance:
    for name in (*_TEXTS, *_LISTS):
        if name not in record:
            raise ValueError(f"the field {name!r} is missing")
    for name in _TEXTS:
        if not isinstance(record[name], str):
            raise ValueError(f"{name!r} is a text, not {short(record[name])}")
    tests = {name: _names(name, record[name]) for name in _LISTS}
    if not record["instance_id"]:
        raise ValueError("'instance_id' is empty")
    if not tests["FAIL_TO_PASS"]:
        raise ValueError("'FAIL_TO_PASS' names no test, so there is nothing to repair")
    if not _files_of(record["test_patch"]):
        raise ValueError("'test_patch' is no diff that changes a file")
    image = record.get("image") or _IMAGE.format(
        name=record["instance_id"].replace("__", "_1776_").lower()
    )
    if not isinstance(image, str):
        raise ValueError(f"'image' is a text, not {short(image)}")
    texts = {name: record[name] for name in _TEXTS}
    return Instance(
        **texts, fail_to_pass=tests[_LISTS[0]], pass_to_pass=tests[_LISTS[1]], image=image
    )


def _names(name: str, value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (json.JSONDecodeError, RecursionError):
            raise ValueError(f"{name!r} is a list in JSON, not {short(value)}") from None
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise ValueError(f"{name!r} is a list of test names, not {short(value)}")
    return tuple(value)


def _files_of(patch: str) -> list[str]:
    """Files that a diff leaves changed or new."""
    return re.findall(r"^\+\+\+ b/(\S.*?)\s*$", patch, re.MULTILINE)


def changed_files(patch: str) -> list[str]:
    """All files that a diff touches, those that it removes as well."""
    pairs = re.findall(r"^diff --git a/(\S+) b/(\S+)$", patch, re.MULTILINE)
    return list(dict.fromkeys(path for pair in pairs for path in pair))


def files_with_tests(instance: Instance) -> list[str]:
    """Files of the test patch that hold tests."""
    return [path for path in _files_of(instance.test_patch) if not _NO_TESTS.search(path)]


def scoring_command(instance: Instance) -> str:
    """The shell command that runs an instance's test files at the root of its repository.

    What it prints is read by `read_outcomes`; that of pytest comes with the plug-in `REPORTER`,
    where no print can be taken for a verdict.
    """
    files = files_with_tests(instance)
    if instance.repo == "django/django":
        labels = [
            path.removeprefix("tests/").removesuffix(".py").replace("/", ".") for path in files
        ]
        command = "./tests/runtests.py --verbosity 2 --settings=test_sqlite --parallel 1"
        return f"{command} {shlex.join(labels)} 2>&1"
    if instance.repo == "sympy/sympy":
        warnings = "PYTHONWARNINGS=ignore::UserWarning,ignore::SyntaxWarning"
        return f"{warnings} bin/test -C --verbose {shlex.join(files)} 2>&1"
    command = f"python -m pytest --rootdir=. -p {REPORTER_NAME} -q {shlex.join(files)}"
    quiet = f"PYTHONPATH={REPORTER_PLACE} {command} >/dev/null 2>&1"
    return f"{quiet}; cat {REPORTER_PLACE}/outcomes"


REPORTER_PLACE, REPORTER_NAME = ".git/sepo_jax", "sepo_jax_reporter"
# Runs under whatever Python and pytest an instance has, from 2.7 and 3.0 on.
REPORTER = """import io, json, os

PLACE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "outcomes")


def pytest_runtest_logreport(report):
    if report.when != "call" and report.outcome == "passed":
        return
    outcome = report.outcome
    if hasattr(report, "wasxfail"):
        outcome = "passed" if outcome == "skipped" else "failed"
    with io.open(PLACE, "ab") as file:
        line = json.dumps({"test": report.nodeid, "outcome": outcome})
        file.write(line.encode("utf-8") + b"\\n")
"""
_VERDICTS = {"ok": "passed", "OK": "passed", "FAIL": "failed", "ERROR": "failed"}
_VERDICTS |= {"expected failure": "passed", "unexpected success": "failed", "skipped": "skipped"}


def read_outcomes(instance: Instance, output: str) -> dict[str, tuple[str, str]]:
    """Test -> (outcome, why) by what `scoring_command` printed; "failed" wins over "passed"."""
    readers = {"django/django": _unittest_outcomes, "sympy/sympy": _sympy_outcomes}
    found: dict[str, tuple[str, str]] = {}
    for test, outcome in readers.get(instance.repo, _pytest_outcomes)(output):
        if found.get(test, ("", ""))[0] != "failed":
            found[test] = (outcome, "")
    return found


def _pytest_outcomes(output: str) -> list[tuple[str, str]]:
    found = []
    for line in output.splitlines():
        try:
            entry = json.loads(line)
            test, outcome = entry["test"], entry["outcome"]
        except (ValueError, KeyError, TypeError):
            continue
        # SWE-bench cuts names at their first blank.
        found += [(name, outcome) for name in dict.fromkeys((test, test.split(" ")[0]))]
    return found


def _unittest_outcomes(output: str) -> list[tuple[str, str]]:
    """By lines "test_a (module.Class) ... ok", where the verdict may come on a later line."""
    found, before, waiting = [], "", ()
    for line in output.splitlines():
        head, dots, tail = line.partition(" ... ")
        words = next((word for word in _VERDICTS if tail.strip().startswith(word)), None)
        if dots:
            # A test with a docstring has its name on the line before.
            named = re.fullmatch(r"\w+ \([\w.]+\)", before)
            waiting = (head, before) if named else (head,)
        elif line.strip() in _VERDICTS:
            words = line.strip()
        if words is not None:
            found += [(name, _VERDICTS[words]) for name in waiting]
            waiting = ()
        before = line.strip()
    return found


def _sympy_outcomes(output: str) -> list[tuple[str, str]]:
    verdicts = {"ok": "passed", "F": "failed", "E": "failed", "f": "passed", "s": "skipped"}
    lines = re.findall(r"^(test_\w+) +(ok|F|E|f|s)\b", output, re.MULTILINE)
    return [(test, verdicts[word]) for test, word in lines]


def patch_replies(instance: Instance) -> list[str]:
    """Replies that apply an instance's own patch and submit."""
    patch = instance.patch.rstrip("\n")
    command = f"git apply - <<'{_END_OF_PATCH}'\n{patch}\n{_END_OF_PATCH}"
    return [f"```bash\n{command}\n```", "submit"]


def patch_conversation(instance: Instance, rules: RepairRules) -> list[Message]:
    """The episode that `patch_replies` makes."""
    apply, submit = patch_replies(instance)
    said = run_observation("", 0, "ended", rules.output_limit)
    return [
        *opening(instance.problem_statement, (), rules),
        {"role": "assistant", "content": apply},
        {"role": "user", "content": said},
        {"role": "assistant", "content": submit},
    ]


def split(names: Sequence[str] | Mapping[str, Any], evaluation: bool) -> list[str]:
    """Instances to be judged by, every fourth by name, or those to train on."""
    return [name for at, name in enumerate(sorted(names)) if (at % 4 == 0) == evaluation]
