"""Moves of repository repair, whatever holds the repository: a directory or a container."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sepo_jax.domains.repository.actions import Edit, EditRefused, Run, apply_edit, parse_action
from sepo_jax.domains.repository.tasks import (
    NO_ACTION,
    RepairRules,
    edit_observation,
    opening,
    paid,
    run_observation,
    with_count,
)
from sepo_jax.sandbox.base import ask, finish
from sepo_jax.sandbox.commands import Finished
from sepo_jax.sandbox.protocol import Turn

_NAMED = 8  # tests of a kind that a record names


class Verdict(NamedTuple):
    """How tests went.

    Attributes:
      flipped, held: shares of the tests to flip, and of those to hold, that pass; 1 of none.
      failed: "fail_to_pass" and "pass_to_pass" -> test -> why, of those that did not pass.
    """

    flipped: float
    held: float
    failed: Mapping[str, Mapping[str, str]]


def verdict(
    outcomes: Mapping[str, tuple[str, str]], to_flip: Sequence[str], to_hold: Sequence[str]
) -> Verdict:
    """The verdict of outcomes, test -> (outcome, why); a test that is not there did not pass."""
    shares, failed = [], {}
    for kind, tests in (("fail_to_pass", to_flip), ("pass_to_pass", to_hold)):
        found = {test: outcomes.get(test, ("missing", "")) for test in tests}
        wrong = {test: pair for test, pair in found.items() if pair[0] != "passed"}
        shares.append(1.0 - len(wrong) / len(found) if found else 1.0)
        failed[kind] = {test: ": ".join(filter(None, pair)) for test, pair in wrong.items()}
    return Verdict(*shares, failed)


class Repairing:
    """What environments of repository repair have in common.

    One that holds a repository says how to run a command, read and write a file, and judge; `state`
    is a dict with "turns", "invalid" and "commands" (how many so far) beside what is its own.

    Args of the moves are as in `sandbox.base.BaseEnvironment`.

    Attributes:
      rules: of the episodes.
    """

    rules: RepairRules
    state: Any

    def run_command(self, command: str) -> Finished:
        """Runs a shell command at the root of the repository."""
        raise NotImplementedError

    def read_file(self, path: str) -> str:
        """The text of a file; EditRefused where there is none that can be edited."""
        raise NotImplementedError

    def write_file(self, path: str, text: str) -> None:
        """Writes a file that `read_file` has just read."""
        raise NotImplementedError

    def judge(self) -> Verdict:
        """Runs the tests on the repository as it is."""
        raise NotImplementedError

    def situation(self) -> str:
        """A key of what the repository holds; "" where that is not known."""
        return ""

    def begin(self, issue: str, files: Sequence[str]) -> Turn:
        """The first turn of an episode, whose `state` is there already."""
        self.state |= {"turns": 0, "invalid": 0, "commands": 0}
        return ask(opening(issue, files, self.rules), observation=self._key(issue))

    def play(self, actions: Mapping[int, str]) -> Turn:
        """Plays the agent's reply."""
        state = self.state
        state["turns"] += 1
        # Half a surrogate pair has no place in file names, commands or prompts.
        action = parse_action(actions[0].encode("utf-8", "replace").decode())
        submitted = False
        if action is None:
            state["invalid"] += 1
            said = NO_ACTION
        elif isinstance(action, Run):
            state["commands"] += 1
            finished = self.run_command(action.command)
            limit = self.rules.output_limit
            said = run_observation(finished.output, finished.code, finished.ending, limit)
        elif isinstance(action, Edit):
            said = self._edit(action)
        else:
            submitted = True
        left = self.rules.turns - state["turns"]
        if submitted or left <= 0:
            return self._finish(submitted)
        said = with_count(said, left)
        return ask([{"role": "user", "content": said}], continues=True, observation=self._key(said))

    def _edit(self, action: Edit) -> str:
        try:
            text, line = apply_edit(self.read_file(action.path), action)
            self.write_file(action.path, text)
        except EditRefused as error:
            return f"not edited: {error}"
        return edit_observation(action.path, line)

    def _key(self, said: str) -> str:
        situation = self.situation()
        return f"{said} [{situation}]" if situation else ""

    def _finish(self, submitted: bool) -> Turn:
        found = self.judge()
        record = {
            "success": found.flipped == found.held == 1.0,
            "submitted": submitted,
            "turns": self.state["turns"],
            "invalid": self.state["invalid"],
            "commands": self.state["commands"],
            "fail_to_pass": found.flipped,
            "pass_to_pass": found.held,
            "failed": {
                kind: dict(list(tests.items())[:_NAMED]) for kind, tests in found.failed.items()
            },
        }
        return finish(reward=paid(self.rules, found.flipped, found.held), record=record)
