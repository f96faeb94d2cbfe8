"""Scripted members of a team that solves problems: experts whose solvers err at a chosen rate, and
players to compare with."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sepo_jax.domains.base import Message
from sepo_jax.domains.math import roles
from sepo_jax.domains.math.answers import plain_equal, plain_number
from sepo_jax.domains.seeds import stream
from sepo_jax.domains.teams import Member

_LISTED = re.compile(rf"(\d+): (.*?)(?: \(({roles.APPROVE}|{roles.REJECT})\))?")
_GUESSES = 100


class Experts:
    """Members that know the answer of a task; `teams.Answer`.

    Solvers, and the reviser where it corrects, err independently of each other, and the verifier on
    each candidate. Who errs in solving gives a number near the right one, without workings. The
    selector takes the first approved candidate, the reviser repeats an approved one and solves the
    problem where there is none. The router asks more solvers the harder a problem is, stops once a
    candidate is approved, and asks all of them else; one that errs asks all of them at once.

    Args:
      task: of `domains.math.domain`.
      seed: decides who errs.
      solvers: how many there are.
      error_rate: probability that a solver errs.
      verifier_error_rate: probability that a verdict is wrong.
      router_error_rate: probability that a router asks all solvers at first.
      workings: whether solvers, and revisers who correct, write them before their answers.

    Attributes:
      erred: whether the last reply was wrong.
    """

    def __init__(
        self,
        task: Mapping[str, Any],
        seed: int,
        solvers: int,
        error_rate: float = 0.0,
        verifier_error_rate: float = 0.0,
        router_error_rate: float = 0.0,
        workings: bool = False,
    ):
        self._task, self._rng = task, stream(seed, "experts", task["question"])
        self._solvers, self._workings = solvers, workings
        self._error_rate, self._verifier_error_rate = error_rate, verifier_error_rate
        self._router_error_rate = router_error_rate
        self.erred = False

    def __call__(self, kind: str, member: Member, messages: Sequence[Message]) -> str:
        """The reply of a member."""
        replies: dict[str, Callable[[str], str]] = {
            "solve": self._solve,
            "verify": self._verify,
            "select": self._select,
            "revise": self._revise,
            "route": self._route,
        }
        self.erred = False
        # The question may have numbered lines of its own.
        return replies[kind](messages[-1]["content"].removeprefix(self._task["question"]))

    def _is_right(self, answer: str | None) -> bool:
        """Whether an answer is, at sight, the right one."""
        if answer is None:
            return False
        return answer == self._task["answer"] or bool(plain_equal(self._task["answer"], answer))

    def _solve(self, shown: str) -> str:
        answer = self._task["answer"]
        if self._errs(self._error_rate):
            return roles.answer_reply(self._slip(answer))
        return roles.answer_reply(answer, self._task.get("workings", ()) if self._workings else ())

    def _errs(self, rate: float) -> bool:
        errs = self._rng.random() < rate
        self.erred |= errs
        return errs

    def _slip(self, answer: str) -> str:
        """A wrong answer near the right one."""
        value = plain_number(answer)
        if value is None:
            return str(self._rng.randrange(_GUESSES))
        return str(value + self._rng.choice([-10, -2, -1, 1, 2, 10]))

    def _verify(self, shown: str) -> str:
        verdicts = []
        for answer, _ in listed(shown):
            verdicts.append(self._is_right(answer) != self._errs(self._verifier_error_rate))
        return roles.verdict_reply(verdicts)

    def _select(self, shown: str) -> str:
        verdicts = [approved for _, approved in listed(shown)]
        return roles.selection_reply(verdicts.index(True) if True in verdicts else 0)

    def _revise(self, shown: str) -> str:
        approved = [answer for answer, verdict in listed(shown) if verdict and answer]
        if approved:
            return roles.answer_reply(approved[0])
        return self._solve(shown)

    def _route(self, shown: str) -> str:
        candidates = listed(shown)
        if any(verdict for _, verdict in candidates):
            return roles.route_reply(())
        wanted = self._solvers
        if not candidates and not self._errs(self._router_error_rate):
            wanted = min(max((self._task.get("difficulty", 0) + 1) // 2, 1), self._solvers)
        return roles.route_reply(range(1, wanted + 1))


class Guessers:
    """Members that reply in form and know nothing; `teams.Answer`. Solvers and revisers guess a
    number below 100, the others draw alike from what they may say."""

    def __init__(self, task: Mapping[str, Any], seed: int, solvers: int):
        self._question, self._solvers = task["question"], solvers
        self._rng = stream(seed, "guessers", self._question)

    def __call__(self, kind: str, member: Member, messages: Sequence[Message]) -> str:
        """The reply of a member."""
        count = len(listed(messages[-1]["content"].removeprefix(self._question)))
        if kind == "verify":
            return roles.verdict_reply([self._rng.random() < 0.5 for _ in range(count)])
        if kind == "select":
            return roles.selection_reply(self._rng.randrange(count))
        if kind == "route":
            everyone = range(1, self._solvers + 1)
            return roles.route_reply([each for each in everyone if self._rng.random() < 0.5])
        return roles.answer_reply(str(self._rng.randrange(_GUESSES)))


def listed(shown: str) -> list[tuple[str | None, bool | None]]:
    """Answers and verdicts of the candidates in a text of `math.roles.listed`."""
    found: list[tuple[str | None, bool | None]] = []
    for line in shown.splitlines():
        match = _LISTED.fullmatch(line)
        if match and int(match[1]) == len(found) + 1:
            answer = None if match[2] == "no answer" else match[2]
            found.append((answer, None if match[3] is None else match[3] == roles.APPROVE))
    return found
