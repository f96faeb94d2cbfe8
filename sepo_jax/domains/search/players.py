"""Scripted members of the search team: experts of every role, and players to compare with.

A player is a function of the kind of event, the member and what it is shown; so is a policy.
"""

import random
import re
from collections.abc import Mapping, Sequence
from typing import Any

from sepo_jax.domains.base import Message, stream
from sepo_jax.domains.search.data import Corpus
from sepo_jax.domains.search.team import ANSWER, ROUTE, SEARCH, VERIFY, routing
from sepo_jax.domains.search.world import COMPARED, World
from sepo_jax.domains.teams import Answer, Member

Walk = tuple[str, ...]
"""A thing, then relations."""
_NAMES = re.compile(r"(?:[A-Z0-9]\w*)(?: [A-Z0-9]\w*)*")


def shown_question(messages: Sequence[Message]) -> str:
    """The question that the prompt of a member asks."""
    return messages[-1]["content"].split("\n", 1)[0].removeprefix("Question: ")


def shown_evidence(messages: Sequence[Message]) -> list[str]:
    """The documents that the prompt of a member shows."""
    lines = messages[-1]["content"].split("\n")
    return [line.removeprefix("- ") for line in lines if line.startswith("- ")]


class Expert:
    """Knows what the walks of a question need, and nothing that is not shown: each walk goes on
    from what the evidence tells.

    The router names the workers whose walk is not at its end. Worker i searches for the next fact
    of the i-th walk; where that is at its end or does not exist, of one that is not.

    A worker that errs searches for the same fact of another thing, a verifier that errs says the
    opposite.

    Args:
      world: of the question.
      task: with "chains" (`search.world.World.task`).
      workers: of the team.
      rationale: whether a line that says what is missing goes before each reply.
      error_rate, verifier_error_rate: probabilities that a worker and that the verifier errs.
      seed: decides who errs.

    Raises:
      ValueError: a task without chains, which no expert knows.
    """

    def __init__(
        self,
        world: World,
        task: Mapping[str, Any],
        workers: int,
        rationale: bool = False,
        error_rate: float = 0.0,
        verifier_error_rate: float = 0.0,
        seed: int = 0,
    ):
        if "chains" not in task:
            raise ValueError(
                f"no expert knows what {task.get('question')!r} needs; experts play questions of "
                "the generated world alone"
            )
        self._world, self._workers, self._rationale = world, workers, rationale
        self._chains = [tuple(chain) for chain in task["chains"]]
        self._error_rate, self._verifier_error_rate = error_rate, verifier_error_rate
        self._rng = stream(seed, "search experts", task["question"])

    def __call__(self, kind: str, member: Member, messages: Sequence[Message]) -> str:
        evidence = shown_evidence(messages)
        ends = [self._end(chain, evidence) for chain in self._chains]
        missing = {place: walk for place, walk in enumerate(ends) if len(walk) > 1}
        reason = "; ".join(f"{walk[1]} of {walk[0]}" for walk in missing.values()) or "nothing"
        before = f"Missing: {reason}.\n" if self._rationale else ""
        return before + self._reply(kind, member[1], ends, missing)

    def _reply(
        self, kind: str, index: int, ends: Sequence[Walk], missing: Mapping[int, Walk]
    ) -> str:
        if kind == VERIFY:
            errs = self._rng.random() < self._verifier_error_rate
            return f"enough: {'no' if bool(missing) != errs else 'yes'}"
        if kind == ANSWER:
            return f"answer: {self._answer(ends)}"
        assigned = self._assigned(missing)
        if kind == ROUTE:
            return routing(sorted(assigned))
        # All walks may be at their ends where nobody was asked before a search.
        others = list(assigned.values()) or [ends[0]]
        walk = assigned.get(index, others[index % len(others)])
        if len(walk) > 1 and self._rng.random() < self._error_rate:
            walk = (self._other(*walk[:2]), walk[1])
        return f"search: {' '.join(walk[:2])}"

    def _other(self, thing: str, relation: str) -> str:
        """Another thing that has the relation."""
        having = [name for name, facts in self._world.facts.items() if relation in facts]
        return self._rng.choice([name for name in having if name != thing])

    def _assigned(self, missing: Mapping[int, Walk]) -> dict[int, Walk]:
        """Worker -> what it searches for: the walk of its number, else one that has no worker of
        its own."""
        own = {place: walk for place, walk in missing.items() if place < self._workers}
        free = [index for index in range(self._workers) if index not in own]
        others = [walk for place, walk in missing.items() if place >= self._workers]
        return own | dict(zip(free, others, strict=False))

    def _end(self, chain: Walk, evidence: Sequence[str]) -> Walk:
        """Where a walk is by the evidence, and the relations that are still to go; the person, not
        the year, where a comparison's walk is at its end."""
        place, relations = chain[0], chain[1:]
        while relations:
            fact = self._world.statement(place, relations[0])
            if not any(line.startswith(f"{place} ") and fact in line for line in evidence):
                break
            if relations[0] == COMPARED:
                return (place,)
            place, relations = self._world.facts[place][relations[0]], relations[1:]
        return (place, *relations)

    def _answer(self, ends: Sequence[Walk]) -> str:
        """Where the walk is, or who of a comparison was born first; the first thing named where
        that is not known."""
        if len(ends) == 1 or any(len(end) > 1 for end in ends):
            return ends[0][0]
        people = [end[0] for end in ends]
        return min(people, key=lambda person: self._world.facts[person][COMPARED])


def one_query(kind: str, member: Member, messages: Sequence[Message]) -> str:
    """Searches once, for the words of the question; answers with the last name that the question
    does not hold in the sentence that has most words in common with it."""
    question = shown_question(messages)
    if kind == ROUTE:
        return routing([0])
    if kind == SEARCH:
        return f"search: {question}"
    if kind == VERIFY:
        return f"enough: {'yes' if shown_evidence(messages) else 'no'}"
    words = set(re.findall(r"\w+", question.lower()))
    best, most = "nothing", -1
    for sentence in re.split(r"(?<=[.!?])\s+", " ".join(shown_evidence(messages))):
        common = len(words.intersection(re.findall(r"\w+", sentence.lower())))
        names = [name for name in _NAMES.findall(sentence) if name not in question]
        if names and common > most:
            best, most = names[-1], common
    return f"answer: {best}"


def random_title(corpus: Corpus, rng: random.Random) -> Answer:
    """A player that stops at once and answers with the title of some document."""

    def answer(kind: str, member: Member, messages: Sequence[Message]) -> str:
        if kind == ROUTE:
            return routing([])
        if kind == SEARCH:
            return "search: nothing"
        if kind == VERIFY:
            return "enough: yes"
        document = rng.choice(corpus.documents)
        return f"answer: {document.title or document.text}"

    return answer
