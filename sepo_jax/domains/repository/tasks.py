"""Repository repair: an issue, the files of a repository, and tests that judge the repair.

An episode is a conversation: the agent runs shell commands, edits files, and submits. Then tests
that failed before must pass, and tests that passed before must hold. What is here needs no
sandbox; `sandbox.repository` plays the episodes.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from sepo_jax.domains.base import Message, check_integer
from sepo_jax.domains.repository.actions import Edit, EditRefused, apply_edit
from sepo_jax.names import check_option

REWARDS = ("binary", "partial")
LEFT_OUT = "[... left out ...]"
SYSTEM = """You repair a Python repository. The last line of your reply is one action:
run: COMMAND
edit FILE: OLD -> NEW
submit
run starts a shell in the repository; only files last. edit puts NEW in place of OLD, which must occur once in FILE. submit ends the task: hidden tests judge the files. You have {turns} actions."""  # noqa: E501
LONG_FORMS = """
A command of several lines is a ```bash block. An edit of several lines is
edit FILE
<<<<<<<
OLD
=======
NEW
>>>>>>>"""
NO_ACTION = "No action. The last line must be one: run: COMMAND, edit FILE: OLD -> NEW, or submit."


@dataclass(frozen=True)
class RepairRules:
    """How episodes go.

    Attributes:
      turns: actions of an episode; when they are used up, the files count as they are.
      output_limit: characters of a command's output that are shown, half from either end.
      reward: of `REWARDS`. "binary": 1 if all tests pass, else 0. "partial": the share of the tests
        to flip that pass, if all tests to hold do, else 0.
      long_forms: whether the prompt tells of commands and edits of several lines; they are read in
        any case.

    Raises ValueError for numbers out of range and an unknown reward.
    """

    turns: int = 8
    output_limit: int = 1200
    reward: str = "binary"
    long_forms: bool = False

    def __post_init__(self):
        check_integer("turns", self.turns, minimum=1)
        check_integer("output_limit", self.output_limit, minimum=40)
        check_option("reward", self.reward, REWARDS)


@dataclass(frozen=True)
class RepositoryTask:
    """A repository with a fault.

    Attributes:
      name: of the task.
      issue: what is wrong, as its user sees it.
      files: path -> text of the sources.
      tests: path -> text of test files that are in the repository. Scoring puts them back as they
        are here.
      hidden_tests: path -> text of test files that only scoring puts there.
      fail_to_pass: names of tests, as `unittest` takes them, that fail before the repair and must
        pass after it.
      pass_to_pass: names of tests that pass before the repair and must pass after it.
      gold: edits (path, old, new) that repair it, in their order; empty where none is known.
    """

    name: str
    issue: str
    files: Mapping[str, str]
    tests: Mapping[str, str]
    hidden_tests: Mapping[str, str]
    fail_to_pass: Sequence[str]
    pass_to_pass: Sequence[str] = ()
    gold: Sequence[tuple[str, str, str]] = field(default=())

    @property
    def shown(self) -> dict[str, str]:
        """Path -> text of all that the agent finds."""
        return {**self.files, **self.tests}

    @property
    def scored(self) -> dict[str, str]:
        """Path -> text of the test files that judge."""
        return {**self.tests, **self.hidden_tests}

    def record(self) -> dict[str, Any]:
        """The task in JSON values; `read_task` reads it."""
        return json.loads(json.dumps(dataclasses.asdict(self)))


def read_task(value: Any) -> RepositoryTask:
    """The task that `RepositoryTask.record` wrote, or one of your own in that form.

    Raises:
      ValueError: a field that is missing, unknown or of another kind, a path that leads out of the
        repository, or no test to flip; the message names it.
    """
    fields = {each.name: each for each in dataclasses.fields(RepositoryTask)}
    if not isinstance(value, Mapping):
        raise ValueError(f"a repository task is an object with {', '.join(fields)}: {_said(value)}")
    for name in value:
        check_option("field of a repository task", name, fields)
    for name in ("name", "issue", "files", "tests", "hidden_tests", "fail_to_pass"):
        if name not in value:
            raise ValueError(f"a repository task needs the field {name!r}: {_said(value)}")
    for name in ("name", "issue"):
        if not isinstance(value[name], str) or not value[name].strip():
            raise ValueError(f"{name!r} of a repository task is a text: {_said(value[name])}")
    task = RepositoryTask(
        name=value["name"],
        issue=value["issue"],
        **{name: _files(name, value[name]) for name in ("files", "tests", "hidden_tests")},
        fail_to_pass=_names("fail_to_pass", value["fail_to_pass"]),
        pass_to_pass=_names("pass_to_pass", value.get("pass_to_pass", ())),
        gold=tuple(_gold_edit(edit) for edit in value.get("gold", ())),
    )
    if not task.fail_to_pass:
        raise ValueError(f"task {task.name!r} has no test in fail_to_pass, so nothing to repair")
    return task


def _files(name: str, value: Any) -> dict[str, str]:
    if not isinstance(value, Mapping) or not all(isinstance(text, str) for text in value.values()):
        raise ValueError(f"{name!r} of a repository task maps paths to texts: {_said(value)}")
    for path in value:
        parts = PurePosixPath(path).parts if isinstance(path, str) else ()
        plain = parts and str(PurePosixPath(*parts)) == path and "\0" not in path
        if not plain or path.startswith("/") or ".." in parts or parts[0] == ".git":
            raise ValueError(
                f"{name!r} of a repository task holds the path {path!r}; a path goes down from the "
                "root of the repository, such as 'src/a.py', and not into .git"
            )
    return dict(value)


def _names(name: str, value: Any) -> tuple[str, ...]:
    listed = isinstance(value, Sequence) and not isinstance(value, str)
    if not listed or not all(isinstance(each, str) and each for each in value):
        raise ValueError(f"{name!r} of a repository task is a list of names: {_said(value)}")
    return tuple(value)


def _gold_edit(value: Any) -> tuple[str, str, str]:
    listed = isinstance(value, Sequence) and not isinstance(value, str) and len(value) == 3
    if not listed or not all(isinstance(part, str) for part in value):
        raise ValueError(f"an edit in 'gold' is [path, old, new]: {_said(value)}")
    return tuple(value)


def _said(value: Any) -> str:
    return f"not {repr(value)[:80]}"


def opening(issue: str, files: Sequence[str], rules: RepairRules) -> list[Message]:
    """The first messages of an episode: [system, user]."""
    system = SYSTEM.format(turns=rules.turns) + (LONG_FORMS if rules.long_forms else "")
    listing = f"\nFiles: {' '.join(sorted(files))}" if files else ""
    return [
        {"role": "system", "content": system},
        {"role": "user", "content": f"Issue: {issue.strip()}{listing}"},
    ]


def shorten(text: str, limit: int) -> str:
    """The text, or where it has more characters than `limit` its beginning and its end."""
    if len(text) <= limit:
        return text
    head = limit // 2
    return f"{text[:head]}\n{LEFT_OUT}\n{text[len(text) - (limit - head) :]}"


def run_observation(output: str, code: int | None, ending: str, limit: int) -> str:
    """What the agent is told of a command.

    Args:
      output: what it printed.
      code: its exit code, None when it was ended.
      ending: see `sandbox.commands.Finished`.
      limit: characters of the output that are shown.
    """
    said = shorten(output.strip("\n"), limit)
    causes = {"time": "it took too long", "output": "it printed too much", "lost": "it broke off"}
    last = f"(exit {code})" if code else ""
    if ending in causes:
        last = f"(ended: {causes[ending]})"
    return "\n".join(filter(None, (said, last))) or "(no output)"


def edit_observation(path: str, line: int) -> str:
    """What the agent is told of an edit that was made."""
    return f"edited {path}, line {line}"


def with_count(observation: str, left: int) -> str:
    """An observation with a word of warning where one action is left."""
    return f"{observation}\n(1 action left)" if left == 1 else observation


def paid(rules: RepairRules, flipped: float, held: float) -> float:
    """The reward of shares of the tests to flip, and to hold, that pass."""
    if rules.reward == "partial":
        return flipped if held == 1.0 else 0.0
    return float(flipped == held == 1.0)


def oracle_replies(task: RepositoryTask) -> list[str]:
    """Replies that repair a task: look at each file to be edited, edit, submit.

    Raises:
      ValueError: the task has no gold edits.
    """
    if not task.gold:
        raise ValueError(f"task {task.name!r} has no gold edits, so no oracle can repair it")
    replies, seen = [], set()
    for path, old, new in task.gold:
        if path not in seen:
            replies.append(f"run: cat {path}")
            seen.add(path)
        replies.append(edit_reply(path, old, new))
    return [*replies, "submit"]


def edit_reply(path: str, old: str, new: str) -> str:
    """The reply that asks for an edit."""
    if "\n" in old + new or old != old.strip() or new != new.strip():
        return f"edit {path}\n<<<<<<<\n{old}\n=======\n{new}\n>>>>>>>"
    return f"edit {path}: {old} -> {new}"


def oracle_conversation(
    task: RepositoryTask, rules: RepairRules, *, rationale: bool = False
) -> list[Message]:
    """The whole episode that `oracle_replies` makes, as the sandbox would show it.

    Args:
      task: with gold edits.
      rules: of the episode.
      rationale: whether a line of reasoning goes before each action.

    Raises:
      ValueError: no gold edits, or one that does not fit.
    """
    files = task.shown
    messages = opening(task.issue, list(files), rules)
    replies = oracle_replies(task)
    edits = iter(task.gold)
    for number, reply in enumerate(replies, start=1):
        if reply.startswith("run: cat "):
            path = reply.removeprefix("run: cat ")
            reason = f"The fault may be in {path}."
            observation = run_observation(files[path], 0, "ended", rules.output_limit)
        elif reply == "submit":
            reason = "The repair is done."
        else:
            edit = next(edits)
            reason = f"This text of {edit[0]} is wrong."
            files[edit[0]], line = repaired(task.name, files[edit[0]], edit)
            observation = edit_observation(edit[0], line)
        content = f"{reason}\n{reply}" if rationale else reply
        messages.append({"role": "assistant", "content": content})
        if number < len(replies):
            shown = with_count(observation, rules.turns - number)
            messages.append({"role": "user", "content": shown})
    return messages


def repaired(name: str, text: str, edit: tuple[str, str, str]) -> tuple[str, int]:
    """A file's text after a gold edit, and the line of it; ValueError for one that does not fit."""
    path, old, new = edit
    try:
        return apply_edit(text, Edit(path, ((old, new),)))
    except EditRefused as error:
        raise ValueError(f"gold edit of task {name!r} in {path}: {error}") from error
