"""Workflows of a team that solves problems: who is asked, in what order, and what follows.

- fixed: all solvers at once; the verifier judges their candidates; the selector chooses one; the
  reviser gives the answer. Events of sizes K, 1, 1, 1.
- mixed: all solvers and the verifier; what follows depends on the verdicts. A single approved
  answer is the team's; of several the selector chooses; where there is none the reviser corrects.
- routed: the router names the solvers to ask, or stops; the verifier judges what they say. The
  reviser gives the answer when the router stops or no round is left.
- single: one solver, whose answer is the team's; what the others stand beside.

A candidate joins what later roles are shown, chosen in the end or not, so all solvers of a round
are members of one event.
"""

import dataclasses
from collections.abc import Callable, Generator, Sequence

from sepo_jax.domains.math import roles
from sepo_jax.domains.math.roles import Candidate
from sepo_jax.domains.teams import Event, Replies, event

Play = Generator[Event, Replies, str | None]
"""Events of a workflow, which returns the team's answer."""


@dataclasses.dataclass(frozen=True)
class Rules:
    """Sizes of a workflow.

    Attributes:
      solvers: how many there are.
      rounds: how often the router may have solvers asked.
      shown: characters of each candidate's reply that other roles see; 0 for its answer alone.
    """

    solvers: int = 3
    rounds: int = 2
    shown: int = 0


@dataclasses.dataclass
class Notes:
    """What is counted on the way.

    Attributes:
      replies: of all roles.
      malformed: those that could not be read as what was asked.
      candidates: of the solvers, in order, with their verdicts.
    """

    replies: int = 0
    malformed: int = 0
    candidates: list[Candidate] = dataclasses.field(default_factory=list)

    def count(self, readable: bool) -> None:
        """Counts a reply."""
        self.replies += 1
        self.malformed += not readable


def fixed(rules: Rules, question: str, notes: Notes) -> Play:
    """Solve, verify, select, revise."""
    yield from _candidates(rules, question, notes, range(1, rules.solvers + 1))
    chosen = yield from _selected(rules, question, notes, notes.candidates)
    return (yield from _revised(rules, question, notes, [chosen]))


def mixed(rules: Rules, question: str, notes: Notes) -> Play:
    """Solve and verify; then select, revise, or neither."""
    yield from _candidates(rules, question, notes, range(1, rules.solvers + 1))
    approved = [each for each in notes.candidates if each.approved and each.answer]
    if not approved:
        return (yield from _revised(rules, question, notes, notes.candidates))
    if len({each.answer for each in approved}) > 1:
        return (yield from _selected(rules, question, notes, approved)).answer
    return approved[0].answer


def routed(rules: Rules, question: str, notes: Notes) -> Play:
    """Rounds of routing, solving and verifying, then revising."""
    for left in range(rules.rounds, 0, -1):
        chosen = yield from _route(rules, question, notes, left)
        if not chosen:
            break
        yield from _candidates(rules, question, notes, chosen)
    return (yield from _revised(rules, question, notes, notes.candidates))


def single(rules: Rules, question: str, notes: Notes) -> Play:
    """One solver alone."""
    alone = dataclasses.replace(rules, solvers=1)
    notes.candidates = yield from _solved(alone, question, notes, [1])
    return notes.candidates[0].answer


WORKFLOWS: dict[str, Callable[[Rules, str, Notes], Play]] = {
    "fixed": fixed,
    "mixed": mixed,
    "routed": routed,
    "single": single,
}


def roles_of(workflow: str, rules: Rules) -> dict[str, int]:
    """Role -> most members of it that a workflow ever asks."""
    if workflow == "single":
        return {"solver": 1}
    found = {"solver": rules.solvers, "verifier": 1}
    if workflow == "routed":
        return {"router": 1, **found, "reviser": 1}
    return {**found, "selector": 1, "reviser": 1}


def most_outputs(workflow: str, rules: Rules) -> int:
    """How many outputs an episode of a workflow has at most."""
    judged = rules.solvers + 1
    counts = {
        "fixed": judged + 2,
        "mixed": judged + 1,
        "routed": rules.rounds * (1 + judged) + 1,
        "single": 1,
    }
    return counts[workflow]


def _solved(
    rules: Rules, question: str, notes: Notes, numbers: Sequence[int]
) -> Generator[Event, Replies, list[Candidate]]:
    """Candidates of these solvers, who are told which answers were rejected."""
    rejected = [each.answer for each in notes.candidates if each.approved is False and each.answer]
    rejected = list(dict.fromkeys(rejected))
    asks = {
        ("solver", number - 1): roles.solve_prompt(question, number, rules.solvers, rejected)
        for number in numbers
    }
    replies = yield event("solve", asks)
    found = [roles.read_candidate(index + 1, replies[role, index]) for role, index in asks]
    for candidate in found:
        notes.count(candidate.answer is not None)
    return found


def _candidates(
    rules: Rules, question: str, notes: Notes, numbers: Sequence[int]
) -> Generator[Event, Replies, None]:
    """Has these solvers asked and their candidates judged, and adds them to the notes."""
    found = yield from _solved(rules, question, notes, numbers)
    member = ("verifier", 0)
    said = yield event("verify", {member: roles.verify_prompt(question, found, rules.shown)})
    verdicts, readable = roles.read_verdicts(said[member], len(found))
    notes.count(readable)
    notes.candidates += [
        candidate._replace(approved=verdict)
        for candidate, verdict in zip(found, verdicts, strict=True)
    ]


def _selected(
    rules: Rules, question: str, notes: Notes, candidates: Sequence[Candidate]
) -> Generator[Event, Replies, Candidate]:
    """The selector's choice; the first approved candidate where it makes none."""
    member = ("selector", 0)
    said = yield event("select", {member: roles.select_prompt(question, candidates, rules.shown)})
    chosen = roles.read_selection(said[member], len(candidates))
    notes.count(chosen is not None)
    return candidates[chosen] if chosen is not None else _first(candidates)


def _revised(rules: Rules, question: str, notes: Notes, candidates: Sequence[Candidate]) -> Play:
    """The reviser's answer; that of the first approved candidate where it gives none."""
    member = ("reviser", 0)
    said = yield event("revise", {member: roles.revise_prompt(question, candidates, rules.shown)})
    answer = roles.read_candidate(0, said[member]).answer
    notes.count(answer is not None)
    if answer is None and candidates:
        return _first(candidates).answer
    return answer


def _route(
    rules: Rules, question: str, notes: Notes, left: int
) -> Generator[Event, Replies, tuple[int, ...]]:
    """Solvers that the router chose; where it names none, the first one to begin with, else it
    stops."""
    member = ("router", 0)
    prompt = roles.route_prompt(question, notes.candidates, rules.solvers, left, rules.shown)
    said = yield event("route", {member: prompt})
    chosen = roles.read_route(said[member], rules.solvers)
    notes.count(chosen is not None)
    if chosen is None:
        return () if notes.candidates else (1,)
    return chosen


def _first(candidates: Sequence[Candidate]) -> Candidate:
    """The first candidate, of those with an answer, of those approved, as far as there are any."""
    answered = [each for each in candidates if each.answer] or list(candidates)
    return next((each for each in answered if each.approved), answered[0])
