"""Whether the tasks of repository repair are sound: their tests must say the same every time."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from sepo_jax.domains.base import check_integer
from sepo_jax.sandbox.protocol import Environment, Turn


class Checked(NamedTuple):
    """Tasks by whether they can be trained on.

    Attributes:
      sound: tasks whose tests behaved in every run.
      quarantined: (task, reason) of the others.
    """

    sound: list[Any]
    quarantined: list[tuple[Any, str]]


def check_tasks(
    environment: Environment,
    tasks: Sequence[Any],
    oracle: Callable[[Any], Sequence[str]],
    times: int = 5,
) -> Checked:
    """Plays every task `times` times without a repair and `times` times with the known one.

    A task is sound when the unrepaired repository fails all tests that are to flip and passes all
    that are to hold, and the repaired one passes all, each time.

    Args:
      environment: of repository repair; left in the midst of an episode.
      tasks: its tasks.
      oracle: task -> the replies of the known repair.
      times: runs of each kind; a test that fails by chance in a share p of runs is missed with
        probability (1 - p)^times or less.

    Raises:
      ValueError: times is below 1.
      SandboxError: there is no sandbox to run anything in.
    """
    check_integer("times", times, minimum=1)
    found = Checked([], [])
    for task in tasks:
        reason = _fault(environment, task, oracle, times)
        if reason:
            found.quarantined.append((task, reason))
        else:
            found.sound.append(task)
    return found


def _fault(
    environment: Environment, task: Any, oracle: Callable[[Any], Sequence[str]], times: int
) -> str:
    """Why a task is not sound; "" for one that is."""
    try:
        replies = list(oracle(task))
        for run in range(1, times + 1):
            of_run = f"in run {run} of {times}"
            before = _play(environment, task, ["submit"]).record
            if before["fail_to_pass"] != 0.0:
                return f"a test that is to flip passes before the repair, {of_run}"
            if before["pass_to_pass"] != 1.0:
                some = _some(before["failed"]["pass_to_pass"])
                return f"a test that is to hold fails before the repair, {of_run}: {some}"
            after = _play(environment, task, replies).record
            if not after["success"]:
                failed = {**after["failed"]["fail_to_pass"], **after["failed"]["pass_to_pass"]}
                return f"a test fails after the known repair, {of_run}: {_some(failed)}"
    except ValueError as error:
        return f"it cannot be played: {error}"
    return ""


def _play(environment: Environment, task: Any, replies: Sequence[str]) -> Turn:
    """The last turn of an episode of these replies; ValueError where they do not end it."""
    turn = environment.reset(task, 0)
    for reply in replies:
        if turn.done:
            raise ValueError(f"an episode ends before the {len(replies)} replies of the oracle do")
        turn = environment.step({0: reply})
    if not turn.done:
        raise ValueError("the replies of the oracle do not end an episode")
    return turn


def _some(failed: Mapping[str, str]) -> str:
    return "; ".join(f"{test} ({why})" for test, why in list(failed.items())[:3])
