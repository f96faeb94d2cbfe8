"""A team that answers questions by searching documents: router, workers, verifier, answerer.

A round of search goes: the router names the workers that are needed, these write their queries in
parallel, which is one event, and what they find joins the evidence. The verifier then says whether
the evidence suffices; if not, another round begins. At the end the answerer answers. All see the
question and the evidence so far; what is retrieved is shown to them, and is nobody's output.
"""

import itertools
import re
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sepo_jax.domains.base import Message
from sepo_jax.domains.search.data import Corpus
from sepo_jax.domains.teams import Ask, Event, Member, Replies, ask, event, system, user

ROUTER, WORKER, VERIFIER, ANSWERER = "router", "worker", "verifier", "answerer"
ROUTE, SEARCH, VERIFY, ANSWER = "route", "search", "verify", "answer"
LONGEST_QUERY = LONGEST_ANSWER = 300  # characters
NOTHING_FOUND = "Found: nothing yet."
_ABOUT = "about the {nth} thing that the question names"
_SYSTEM = {
    ROUTER: "You direct a search team. Worker i looks up what is still missing "
    + _ABOUT.format(nth="i-th")
    + ". Name the fewest workers that are needed now. Reply with their numbers, such as "
    "workers: 1 2, or with workers: none to stop.",
    WORKER: "You search documents for a team. Look up what is still missing to answer the "
    "question. Reply with a few words to search for, such as search: Lake Como country.",
    VERIFIER: "You check the evidence of a search team. Does it suffice to answer the question? "
    "Reply with enough: yes, or enough: no.",
    ANSWERER: "You answer for a search team, from its evidence and as briefly as you can. Reply "
    "with answer: and the answer, such as answer: Lake Como.",
}
_ROUTED = re.compile(r"\W*workers?\W*:(.*)", re.IGNORECASE)
_NUMBERS = re.compile(r"\d+(?:(?:\s*[,;&]\s*|\s+and\s+|\s+)\d+)*", re.IGNORECASE)
_QUERY = re.compile(r"\W*search\W*[:>](.*)", re.IGNORECASE)
_VERDICT = re.compile(r"\W*(?:enough\W+)?(yes|no)\W*", re.IGNORECASE)
_ANSWER = re.compile(r"\W*answer\W*[:>](.*)", re.IGNORECASE)
_TAG_AT_END = re.compile(r"</\w{1,20}>\s*$")
_MARKUP = " \t*_`\"'“”"


class Order(NamedTuple):
    """Who is asked when.

    Attributes:
      routed_first: whether a router picks the workers of the first round; else all search.
      routed_later: whether it picks those of the rounds after.
      verified_first: whether the verifier is asked before the first round too.
    """

    routed_first: bool
    routed_later: bool
    verified_first: bool


WORKFLOWS = {
    "routed": Order(True, True, False),
    "mixed": Order(False, True, False),
    "fixed": Order(False, False, False),
    # Of Dr. MAS: the verifier sends the question to the answerer or to the searching agents, of
    # which there is one with `workers=1`.
    "verified": Order(False, False, True),
}


@dataclass(frozen=True)
class Team:
    """How a team works.

    Attributes:
      order: when routers and verifiers are asked.
      workers: how many there are.
      rounds: rounds of search until the answerer answers with what there is.
      results: documents that a query brings at most.
      snippet_words: words of a document that are shown at most; 0 for all.
    """

    order: Order
    workers: int
    rounds: int
    results: int
    snippet_words: int

    @property
    def roles(self) -> dict[str, int]:
        """Role -> how many members it has, of the roles that are ever asked."""
        found = {ROUTER: 1, WORKER: self.workers, VERIFIER: 1, ANSWERER: 1}
        routed = self.order.routed_first or self.order.routed_later
        return found if routed else {role: n for role, n in found.items() if role != ROUTER}

    @property
    def most_outputs(self) -> int:
        """How many outputs an episode has at most."""
        order, later = self.order, self.rounds - 1
        verdicts = later + order.verified_first
        routes = order.routed_first + later * order.routed_later
        return verdicts + routes + self.rounds * self.workers + 1


@dataclass
class Work:
    """What came of a question so far.

    Attributes:
      question: in words.
      evidence: id of a document -> how it is shown, in the order found.
      query_sizes: queries of each round. queries: all of them.
      verdicts: of the verifier: whether it found the evidence enough.
      replies, malformed: how many there were, and how many of them no one can read.
      answer: of the answerer; "" where it gave none.
    """

    question: str
    evidence: dict[str, str] = field(default_factory=dict)
    query_sizes: list[int] = field(default_factory=list)
    queries: list[str] = field(default_factory=list)
    verdicts: list[bool] = field(default_factory=list)
    replies: int = 0
    malformed: int = 0
    answer: str = ""

    def read(self, found: Any, otherwise: Any) -> Any:
        """What was read of a reply; `otherwise`, and a malformed reply more, where it is None."""
        self.replies += 1
        self.malformed += found is None
        return otherwise if found is None else found


def team_work(team: Team, corpus: Corpus, question: str) -> Generator[Event, Replies, Work]:
    """The events of a question (`domains.teams.TeamDomain.workflow`); returns what came of it.

    Replies that cannot be read are counted and stand for: all workers, of the router; no query, of
    a worker; enough, of the verifier; no answer, of the answerer.
    """
    work, order = Work(question), team.order
    for number in range(team.rounds):
        if number or order.verified_first:
            replies = yield _asked(team, work, VERIFY, VERIFIER)
            work.verdicts.append(work.read(read_verdict(replies[VERIFIER, 0]), True))
            if work.verdicts[-1]:
                break
        chosen: Sequence[int] = range(team.workers)
        if order.routed_later if number else order.routed_first:
            replies = yield _asked(team, work, ROUTE, ROUTER)
            chosen = work.read(read_workers(replies[ROUTER, 0], team.workers), chosen)
            if not chosen:
                break
        replies = yield _asked(team, work, SEARCH, WORKER, chosen)
        _search(team, corpus, work, [replies[WORKER, index] for index in chosen])
    replies = yield _asked(team, work, ANSWER, ANSWERER)
    work.answer = work.read(read_answer(replies[ANSWERER, 0]), "")
    return work


def _search(team: Team, corpus: Corpus, work: Work, replies: Sequence[str]) -> None:
    """Reads the queries of a round and adds what they find to the evidence."""
    queries = [work.read(read_query(reply), "") for reply in replies]
    work.query_sizes.append(len(queries))
    work.queries += queries
    for query in queries:
        for document in corpus.search(query, team.results):
            work.evidence.setdefault(document.id, document.shown(team.snippet_words))


def _asked(team: Team, work: Work, kind: str, role: str, members: Sequence[int] = (0,)) -> Event:
    asks: dict[Member, Ask] = {}
    for index in members:
        numbered = role == WORKER and team.workers > 1
        asks[role, index] = ask(
            role_messages(role, work, index if numbered else None),
            legal_actions=_legal_actions(role, team.workers),
        )
    return event(kind, asks)


def role_messages(role: str, work: Work, index: int | None = None) -> list[Message]:
    """What a member is shown: its role, the question, the evidence and, where it is one worker of
    several, what it is to look for."""
    found = ["Found:", *(f"- {each}" for each in work.evidence.values())]
    lines = [f"Question: {work.question}", *(found if work.evidence else [NOTHING_FOUND])]
    if index is not None:
        nth = ("first", "second", "third", "fourth", "fifth")
        named = nth[index] if index < len(nth) else f"{index + 1}-th"
        missing = _ABOUT.format(nth=named)
        lines.append(f"You are worker {index + 1}: look up what is missing {missing}.")
    return [system(_SYSTEM[role]), user("\n".join(lines))]


def _legal_actions(role: str, workers: int) -> tuple[str, ...]:
    if role == VERIFIER:
        return ("enough: yes", "enough: no")
    if role == ROUTER and workers <= 5:
        sets = [
            chosen
            for size in range(workers + 1)
            for chosen in itertools.combinations(range(workers), size)
        ]
        return tuple(map(routing, sets))
    return ()


def routing(chosen: Sequence[int]) -> str:
    """The router's reply that names these workers, which count from 0."""
    return f"workers: {' '.join(str(index + 1) for index in chosen) or 'none'}"


def read_workers(reply: str, workers: int) -> tuple[int, ...] | None:
    """The workers that the router names, from 0 and each once; () for none of them, None for what
    cannot be read."""

    def named(line: str) -> tuple[int, ...] | None:
        match = _ROUTED.fullmatch(line)
        said = match[1].strip(_MARKUP + ".[]()") if match else ""
        if said.lower() == "none":
            return ()
        # Longer rows name somebody twice or nobody; they are not worth matching.
        longest = 100 + 6 * workers
        if len(said) > longest or not said.isascii() or not _NUMBERS.fullmatch(said):
            return None
        numbers = [int(each) for each in re.findall(r"\d+", said)]
        known = all(1 <= number <= workers for number in numbers)
        return tuple(sorted({number - 1 for number in numbers})) if known else None

    return _last(reply, named)


def read_query(reply: str) -> str | None:
    """What a worker searches for, None for what cannot be read."""
    return _last(reply, lambda line: _said(_QUERY, line, LONGEST_QUERY))


def read_verdict(reply: str) -> bool | None:
    """Whether the verifier finds the evidence enough, None for what cannot be read."""

    def said(line: str) -> bool | None:
        match = _VERDICT.fullmatch(line)
        return match[1].lower() == "yes" if match else None

    return _last(reply, said)


def read_answer(reply: str) -> str | None:
    """The answer, None for what cannot be read; "<answer>...</answer>" is read too."""
    return _last(reply, lambda line: _said(_ANSWER, line, LONGEST_ANSWER))


def _said(pattern: re.Pattern[str], line: str, longest: int) -> str | None:
    match = pattern.fullmatch(_TAG_AT_END.sub("", line))
    # Half surrogate pairs are no text, and could not be recorded.
    words = match[1].encode("utf-8", "replace").decode().strip(_MARKUP) if match else ""
    return words[:longest].strip() or None


def _last(reply: str, read: Callable[[str], Any]) -> Any:
    """What `read` makes of the last line that it can read; what is before it is reasoning."""
    for line in reversed(reply.splitlines()):
        found = read(line.strip())
        if found is not None:
            return found
    return None
