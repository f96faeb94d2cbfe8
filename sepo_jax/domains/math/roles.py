"""Roles of a team that solves problems: what each is asked, and what its reply says.

Replies are read tolerantly: the last tag or box counts, text before it is free reasoning, and what
cannot be read gives None or a default that each function names.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

from sepo_jax.domains.base import Message
from sepo_jax.domains.math.answers import as_text, final_answer, last_tagged
from sepo_jax.domains.parsing import last_line, parse_numbers
from sepo_jax.domains.teams import system, user

APPROVE, REJECT, STOP = "approve", "reject", "stop"
_SOLVE = "You are solver {number} of {count}. Solve the problem. End with \\boxed{{answer}}."
_VERIFY = (
    "Check each candidate answer. End with a verdict for each in order, approve or reject, such as "
    "<verify>approve, reject</verify>."
)
_SELECT = "Choose the best candidate answer. End with its number, such as <select>2</select>."
_REVISE = (
    "Give the final answer to the problem. Correct the candidates where they are wrong. End with "
    "\\boxed{answer}."
)
_ROUTE = (
    "Choose which of the solvers 1 to {count} work on the problem next, or stop. End with their "
    "numbers, such as <route>1, 2</route>, or <route>stop</route>."
)
_VERDICT = re.compile(rf"\b({APPROVE}|{REJECT})(?:d|s|ed)?\b", re.IGNORECASE)
_NEGATED = re.compile(r"\b(?:not|never|cannot|neither)\b|n't\b", re.IGNORECASE)


class Candidate(NamedTuple):
    """A solver's contribution.

    Attributes:
      number: of the solver, from 1.
      answer: in normal form; None where the reply gives none.
      reply: whole.
      approved: whether the verifier let it pass; None before it spoke.
    """

    number: int
    answer: str | None
    reply: str
    approved: bool | None = None


def solve_prompt(
    question: str, number: int, count: int, rejected: Sequence[str] = ()
) -> list[Message]:
    """What a solver is asked.

    Args:
      question: the problem.
      number, count: which solver of how many, from 1.
      rejected: answers that the verifier turned down.
    """
    note = f"\nRejected: {', '.join(rejected)}" if rejected else ""
    return [system(_SOLVE.format(number=number, count=count)), user(question + note)]


def verify_prompt(question: str, candidates: Sequence[Candidate], shown: int) -> list[Message]:
    """What the verifier is asked; `shown` characters of each candidate's reply go with it."""
    return [system(_VERIFY), user(f"{question}\n{listed(candidates, shown)}")]


def select_prompt(question: str, candidates: Sequence[Candidate], shown: int) -> list[Message]:
    """What the selector is asked; arguments as in `verify_prompt`."""
    return [system(_SELECT), user(f"{question}\n{listed(candidates, shown)}")]


def revise_prompt(question: str, candidates: Sequence[Candidate], shown: int) -> list[Message]:
    """What the reviser is asked, with the candidates it may rely on or correct."""
    return [system(_REVISE), user(f"{question}\n{listed(candidates, shown)}".strip())]


def route_prompt(
    question: str, candidates: Sequence[Candidate], count: int, rounds_left: int, shown: int
) -> list[Message]:
    """What the router is asked, with what is known and how often solvers can still be asked."""
    known = listed(candidates, shown) or "No candidates yet."
    asked = f"{question}\n{known}\nRounds left: {rounds_left}"
    return [system(_ROUTE.format(count=count)), user(asked)]


def listed(candidates: Sequence[Candidate], shown: int) -> str:
    """Candidates a line each: place from 1, answer, verdict, and the end of the reply.

    Args:
      candidates: in order.
      shown: characters of each reply; 0 for answers alone.
    """
    lines = []
    for place, candidate in enumerate(candidates, start=1):
        line = f"{place}: {candidate.answer or 'no answer'}"
        if candidate.approved is not None:
            line += f" ({APPROVE if candidate.approved else REJECT})"
        if shown:
            line += f"\n{candidate.reply[-shown:]}"
        lines.append(line)
    return "\n".join(lines)


def read_candidate(number: int, reply: str) -> Candidate:
    """A solver's reply."""
    return Candidate(number, final_answer(reply), as_text(reply))


def read_verdicts(reply: str, count: int) -> tuple[list[bool], bool]:
    """Verdicts on `count` candidates, and whether the reply gave one for each.

    A single verdict is for all. A missing one counts as approval, as does one that is negated.
    """
    tag = last_tagged("verify", reply)
    text = last_line(reply) if tag is None else tag
    found = [] if _NEGATED.search(text) else [word.lower() for word in _VERDICT.findall(text)]
    if len(found) == 1:
        found *= count
    verdicts = [word == APPROVE for word in found[:count]]
    return verdicts + [True] * (count - len(verdicts)), len(found) == count


def read_selection(reply: str, count: int) -> int | None:
    """Index of the chosen candidate; None where the reply names none of them."""
    tag = last_tagged("select", reply)
    numbers = parse_numbers(reply if tag is None else tag, 1)
    if numbers is None or not 1 <= numbers[0] <= count:
        return None
    return numbers[0] - 1


def read_route(reply: str, count: int) -> tuple[int, ...] | None:
    """Numbers of the chosen solvers, ascending, each once; () to stop; None for neither.

    Numbers of solvers that do not exist are passed over; "1-3" names all three. A stop that is
    negated is none.
    """
    tag = last_tagged("route", reply)
    text = last_line(reply) if tag is None else tag
    digits = rf"(\d{{1,{len(str(count))}}})"
    # A full stop may follow a number; a decimal is none, nor are both ends of a range one number.
    named = rf"(?<![\w.-]){digits}(?:\s?[-–]\s?{digits})?(?!\w|\.\d|\s?[-–]\s?\d)"
    ends = [(int(first), int(last or first)) for first, last in re.findall(named, text)]
    ranges = (range(max(first, 1), min(last, count) + 1) for first, last in ends)
    chosen = sorted({number for each in ranges for number in each})
    if chosen:
        return tuple(chosen)
    stops = re.search(rf"\b{STOP}\b", text, re.IGNORECASE) and not _NEGATED.search(text)
    return () if stops else None


def verdict_reply(verdicts: Sequence[bool]) -> str:
    """The canonical reply of a verifier."""
    return f"<verify>{', '.join(APPROVE if each else REJECT for each in verdicts)}</verify>"


def selection_reply(index: int) -> str:
    """The canonical reply of a selector that chooses the candidate at an index."""
    return f"<select>{index + 1}</select>"


def route_reply(numbers: Sequence[int]) -> str:
    """The canonical reply of a router that asks these solvers, or stops where there are none."""
    return f"<route>{', '.join(map(str, numbers)) or STOP}</route>"


def answer_reply(answer: str, workings: Sequence[str] = ()) -> str:
    """The canonical reply of a solver or reviser."""
    return "\n".join([*workings, f"\\boxed{{{answer}}}"])
