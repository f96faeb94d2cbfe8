"""Whether the tasks of repository repair are sound: their tests must say the same every time.

`evaluation.quarantine` keeps those that are not in a file.
"""

import itertools
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, NamedTuple

from sepo_jax.domains.arguments import check_integer
from sepo_jax.sandbox.protocol import Answer, Call, Pool, SandboxError, Turn

_Moves = Generator[tuple[str, Any], Answer, Any]
"""Yields calls as (kind, payload), and is sent their answers."""


class Checked(NamedTuple):
    """Tasks by whether they can be trained on.

    Attributes:
      sound: tasks whose tests behaved in every run.
      quarantined: (task, reason) of the others.
    """

    sound: list[Any]
    quarantined: list[tuple[Any, str]]


def check_tasks(
    pool: Pool,
    tasks: Sequence[Any],
    oracle: Callable[[Any], Sequence[str]],
    times: int = 5,
    *,
    at_once: int = 1,
    done: Callable[[], Any] = lambda: None,
) -> Checked:
    """Plays every task `times` times without a repair and `times` times with the known one.

    A task is sound when the unrepaired repository fails all tests that are to flip and passes all
    that are to hold, and the repaired one passes all, each time.

    Args:
      pool: environments of repository repair, for this check alone until it returns.
      tasks: of these environments.
      oracle: task -> the replies of the known repair; ValueError where there is none.
      times: runs of each kind; a test that fails by chance in a share p of runs is missed with
        probability (1 - p)^times or less.
      at_once: tasks that are played at a time.
      done: called after each task.

    Raises:
      ValueError: times or at_once is below 1.
      SandboxError: there is no sandbox to run anything in: none of the tasks could be played.
    """
    check_integer("times", times, minimum=1)
    check_integer("at_once", at_once, minimum=1)
    numbers, waiting = itertools.count(), iter(range(len(tasks)))
    played: dict[int, _Moves] = {}
    reasons: dict[int, str] = {}
    broken: list[str] = []

    def go_on(place: int, answer: Answer | None) -> None:
        try:
            kind, payload = played[place].send(answer)
        except StopIteration as end:
            reasons[place] = end.value
            del played[place]
            pool.submit(Call(next(numbers), place, "close"))
            done()
        else:
            pool.submit(Call(next(numbers), place, kind, payload))

    while len(reasons) < len(tasks):
        for place in itertools.islice(waiting, at_once - len(played)):
            played[place] = _fault(tasks[place], oracle, times)
            go_on(place, None)
        pool.wait(1.0)
        for answer in pool.take():
            if answer.failure and not answer.failure.message.startswith("ValueError"):
                broken.append(answer.failure.message)
            go_on(answer.episode, answer)
    if tasks and len(broken) == len(tasks):
        raise SandboxError(f"none of {len(tasks)} tasks can be played; the first: {broken[0]}")
    found = Checked([], [])
    for place, task in enumerate(tasks):
        if reasons[place]:
            found.quarantined.append((task, reasons[place]))
        else:
            found.sound.append(task)
    return found


def _fault(task: Any, oracle: Callable[[Any], Sequence[str]], times: int) -> _Moves:
    """Why a task is not sound; "" for one that is."""
    try:
        replies = list(oracle(task))
        for run in range(1, times + 1):
            of_run = f"in run {run} of {times}"
            before = (yield from _play(task, ["submit"])).record
            if before["fail_to_pass"] != 0.0:
                return f"a test that is to flip passes before the repair, {of_run}"
            if before["pass_to_pass"] != 1.0:
                some = _some(before["failed"]["pass_to_pass"])
                return f"a test that is to hold fails before the repair, {of_run}: {some}"
            after = (yield from _play(task, replies)).record
            if not after["success"]:
                failed = {**after["failed"]["fail_to_pass"], **after["failed"]["pass_to_pass"]}
                return f"a test fails after the known repair, {of_run}: {_some(failed)}"
    except ValueError as error:
        return f"it cannot be played: {error}"
    return ""


def _play(task: Any, replies: Sequence[str]) -> _Moves:
    """The last turn of an episode of these replies; ValueError where they do not end it."""
    turn = _turn_of((yield "reset", (task, 0)))
    for reply in replies:
        if turn.done:
            raise ValueError(f"an episode ends before the {len(replies)} replies of the oracle do")
        turn = _turn_of((yield "step", {0: reply}))
    if not turn.done:
        raise ValueError("the replies of the oracle do not end an episode")
    return turn


def _turn_of(answer: Answer) -> Turn:
    if answer.failure is not None:
        raise ValueError(f"{answer.failure.message} ({answer.failure.kind})")
    return answer.turn


def _some(failed: Mapping[str, str]) -> str:
    return "; ".join(f"{test} ({why})" for test, why in list(failed.items())[:3])
