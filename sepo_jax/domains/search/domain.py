"""Questions that a team answers by searching documents, of a generated world or from files."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any

from sepo_jax.domains.arguments import check_integer, check_names, check_rates
from sepo_jax.domains.base import Message
from sepo_jax.domains.figures import sampled_figures, task_figures
from sepo_jax.domains.search.answer_scores import exact_match, f1_score
from sepo_jax.domains.search.data import Corpus, open_corpus, opened_questions
from sepo_jax.domains.search.players import Expert, one_query, random_title
from sepo_jax.domains.search.team import WORKFLOWS, Team, Work, team_work
from sepo_jax.domains.search.world import (
    HOPS,
    KINDS,
    PARTS,
    Question,
    World,
    check_world,
    make_world,
)
from sepo_jax.domains.seeds import derive_seed, stream
from sepo_jax.domains.teams import Answer, Transcript, Workflow, play_workflow, team_figures
from sepo_jax.names import check_option

REWARDS = ("exact", "f1")
HELD_OUT = ("questions", "entities")
DEFAULT_KINDS = ("1_hop", "2_hops", "3_hops", "compare_2", "compare_3")
_TRIES = 5000  # draws of comparisons until there are too few
_EVALUATED_OF = 3  # of so many questions one is to be judged by, where they are parted by question
# Figure -> what counts for an episode that left no record: no answer.
_FIGURES = {
    "exact": False,
    "f1": 0.0,
    "valid": None,
    "queries": None,
    "rounds": None,
    "workers": None,
}


class SearchTeam:
    """Question answering by a team that searches (`domains.teams.TeamDomain`).

    A task is {"question", "answers", "kind"}; of the generated world with "chains", what has to be
    walked (`search.world.Question`). The workflow is `search.team.team_work`; the team is paid the
    score of its answer, less a penalty for replies that cannot be read.

    Without files, questions and documents are those of a generated world; experts play these alone.

    Args:
      workflow: of `search.team.WORKFLOWS`.
      workers: how many search in parallel at most.
      rounds: rounds of search at most.
      results: documents that a query brings at most.
      snippet_words: words of a document that are shown at most; 0 for all.
      reward: of an answer, "exact" match or "f1".
      malformed_penalty: taken off for each reply that cannot be read; in Dr. MAS 0.01.
      kinds: of `search.world.KINDS`, of the generated world's questions.
      people: of the generated world, which grows with them. world: its number.
      held_out: what questions of the generated world are parted by that are trained on and judged
        by: "questions" for different questions about the same things, "entities" for questions
        about different things too.
      questions: file to train on (`search.data.read_questions`); "" for the generated world.
      evaluation: files to be judged by, whose names without their ends are the kinds of their
        questions; none for one in three questions of `questions`. Training leaves theirs out.
      corpus: file of documents (`search.data.read_corpus`); "" for the generated world's.
      index_directory: where the index of `corpus` is kept between processes; "" for nowhere.
      error_rate, verifier_error_rate: how often scripted workers and verifiers err where they are
        imitated.

    Raises:
      ValueError: an unknown option, a number out of range, or questions from a file without a
        corpus. What is wrong with the files is raised on first use.
    """

    name = "search"
    game = None

    def __init__(
        self,
        workflow: str = "routed",
        workers: int = 3,
        rounds: int = 4,
        results: int = 1,
        snippet_words: int = 0,
        reward: str = "exact",
        malformed_penalty: float = 0.01,
        kinds: Sequence[str] = DEFAULT_KINDS,
        people: int = 120,
        world: int = 0,
        held_out: str = "questions",
        questions: str = "",
        evaluation: Sequence[str] = (),
        corpus: str = "",
        index_directory: str = "",
        error_rate: float = 0.0,
        verifier_error_rate: float = 0.0,
    ):
        self.flow = check_option("workflow", workflow, WORKFLOWS)
        self.team = Team(
            WORKFLOWS[workflow],
            check_integer("workers", workers, minimum=1),
            check_integer("rounds", rounds, minimum=1),
            check_integer("results", results, minimum=1),
            check_integer("snippet_words", snippet_words, minimum=0),
        )
        self.roles, self.most_outputs = self.team.roles, self.team.most_outputs
        self.reward = check_option("reward", reward, REWARDS)
        if not (isinstance(malformed_penalty, Real) and 0 <= malformed_penalty < math.inf):
            raise ValueError(f"malformed_penalty={malformed_penalty!r} must be 0 or more")
        self.malformed_penalty = float(malformed_penalty)
        self.error_rates = check_rates(
            error_rate=error_rate, verifier_error_rate=verifier_error_rate
        )
        self.kinds = check_names("kinds", "kind of question", kinds, KINDS)
        if not self.kinds:
            raise ValueError(f"kinds names no kind of question; give some of {', '.join(KINDS)}")
        self.world_seed, self.people = check_world(world, people)
        self.held_out = check_option("held_out", held_out, HELD_OUT)
        files = (evaluation,) if isinstance(evaluation, str) else evaluation
        self.questions, self.evaluation = str(questions), tuple(map(str, files))
        self.corpus_file, self.index_directory = str(corpus), str(index_directory)
        kinds_of_files = [Path(path).stem for path in self.evaluation]
        if len(set(kinds_of_files)) < len(kinds_of_files):
            raise ValueError(f"evaluation={self.evaluation}: two files have one name")
        if self.evaluation and not questions:
            raise ValueError(f"evaluation={self.evaluation} needs questions, a file to train on")
        if bool(questions) != bool(corpus):
            raise ValueError(
                f"questions={questions!r} and corpus={corpus!r}: give both, or neither for the "
                "generated world"
            )

    @property
    def world(self) -> World:
        """The generated world; see `make_world`."""
        return make_world(self.world_seed, self.people)

    @property
    def corpus(self) -> Corpus:
        """The documents that are searched."""
        if self.corpus_file:
            return open_corpus(self.corpus_file, self.index_directory)
        return self.world.corpus

    def workflow(self, task: Mapping[str, Any], seed: int) -> Workflow:
        """The team's work on a question; ValueError for what is no task."""
        check_task(task)
        work = yield from team_work(self.team, self.corpus, task["question"])
        record = work_record(task, work)
        return float(record[self.reward]) - self.malformed_penalty * work.malformed, record

    def training_tasks(self, count: int, seed: int) -> list[dict[str, Any]]:
        """Questions to train on, kinds of the generated world in turn; those of a file each once
        before any comes again."""
        check_integer("count", count, minimum=0)
        if not self.questions:
            return self._generated(count, seed, evaluated=False)
        given = self._given(evaluated=False)
        tasks: list[dict[str, Any]] = []
        while len(tasks) < count:
            cycle = len(tasks) // len(given)
            tasks += stream(seed, "search questions", cycle).sample(given, len(given))
        return tasks[:count]

    def evaluation_tasks(self, count: int, seed: int) -> list[dict[str, Any]]:
        """`count` different questions of each kind that are not trained on; ValueError where there
        are fewer."""
        check_integer("count", count, minimum=0)
        if not self.questions:
            return self._generated(count * len(self.kinds), seed, evaluated=True)
        by_kind: dict[str, list[dict[str, Any]]] = {}
        for task in self._given(evaluated=True):
            by_kind.setdefault(task["kind"], []).append(task)
        tasks: list[dict[str, Any]] = []
        for kind, given in sorted(by_kind.items()):
            _check_enough(count, kind, len(given))
            tasks += stream(seed, "search evaluation", kind).sample(given, count)
        return tasks

    def figures(self, tasks: Sequence[Any], records: Sequence[Any]) -> dict[str, float]:
        """Exact match, F1, valid replies, queries, rounds and workers a round of all questions, and
        "<kind>/exact" and "<kind>/f1" of each kind; sizes of all events (`team_figures`), and
        "avg@n" and "pass@n" of questions that are asked n times in a row. No record counts as
        no answer."""
        found = task_figures(tasks, records, _FIGURES) | team_figures(records)
        exact = [record is not None and record["exact"] for record in records]
        found |= sampled_figures(tasks, exact)
        for kind in dict.fromkeys(task["kind"] for task in tasks):
            places = [place for place, task in enumerate(tasks) if task["kind"] == kind]
            of_kind = [tasks[place] for place in places], [records[place] for place in places]
            scores = task_figures(*of_kind, {"exact": False, "f1": 0.0})
            found |= {f"{kind}/{name}": value for name, value in scores.items()}
        return found

    def baselines(self, tasks: Sequence[Any]) -> dict[str, dict[str, float]]:
        """Figures of an answer drawn from the titles of all documents, of one search for the
        question's own words, and, on questions of the generated world, of the experts."""
        players: dict[str, list[Answer]] = {"random": [], "one_query": []}
        for number in range(len(tasks)):
            players["random"].append(random_title(self.corpus, stream(0, "search", number)))
            players["one_query"].append(one_query)
        if all("chains" in task for task in tasks):
            players["oracle"] = [self.expert(task) for task in tasks]
        found = {}
        for name, members in players.items():
            played = [self.play(*pair) for pair in zip(tasks, members, strict=True)]
            found[name] = self.figures(tasks, [each.record for each in played])
        return found

    def expert_traces(
        self, num_decisions: int, seed: int, *, rationale: bool = False
    ) -> list[tuple[list[Message], str]]:
        """Decisions of all roles' experts on questions to train on of the generated world."""
        check_integer("num_decisions", num_decisions, minimum=0)
        generated = self._of_world()
        traces: list[tuple[list[Message], str]] = []
        cycle = 0
        while len(traces) < num_decisions:
            drawn = derive_seed(seed, "search traces", cycle)
            for task in generated.training_tasks(len(self.kinds), drawn):
                members = Expert(
                    generated.world, task, self.team.workers, rationale, *self.error_rates, drawn
                )
                played = generated.play(task, members)
                traces += played.decisions()
            cycle += 1
        return traces[:num_decisions]

    def expert(self, task: Mapping[str, Any], rationale: bool = False) -> Expert:
        """The scripted members for a question of the generated world; errors of `Expert`."""
        return Expert(self.world, task, self.team.workers, rationale)

    def play(self, task: Mapping[str, Any], answer: Answer) -> Transcript:
        """An episode of scripted members; arguments as of `teams.play_workflow`."""
        return play_workflow(self, task, 0, answer)

    def _of_world(self) -> "SearchTeam":
        """The same team on the generated world."""
        if not self.questions:
            return self
        return SearchTeam(
            workflow=self.flow,
            workers=self.team.workers,
            rounds=self.team.rounds,
            results=self.team.results,
            snippet_words=self.team.snippet_words,
            kinds=self.kinds,
            people=self.people,
            world=self.world_seed,
            held_out=self.held_out,
        )

    def _given(self, evaluated: bool) -> list[dict[str, Any]]:
        """Questions of the files for one of both purposes, each once in a file."""
        listed = _once(opened_questions(self.questions))
        if self.evaluation:
            judged = [
                {**task, "kind": Path(path).stem}
                for path in self.evaluation
                for task in _once(opened_questions(path))
            ]
            held_out = {task["question"] for task in judged}
            given = judged if evaluated else [t for t in listed if t["question"] not in held_out]
        else:
            given = [task for task in listed if _is_evaluated(task["question"]) == evaluated]
        if not given:
            purpose = "to be judged by" if evaluated else "to train on"
            raise ValueError(
                f"questions={self.questions!r}, evaluation={self.evaluation} leave no question "
                f"{purpose}; give larger or other files"
            )
        return given

    def _generated(self, count: int, seed: int, evaluated: bool) -> list[dict[str, Any]]:
        """Questions of the generated world, kinds in turn; those to be judged by are different."""
        purpose = "evaluated" if evaluated else "trained on"
        each = -(-count // len(self.kinds))
        drawn = {}
        for kind in dict.fromkeys(self.kinds):
            number, rng = each * self.kinds.count(kind), stream(seed, "search", purpose, kind)
            drawn[kind] = iter(self._of_kind(kind, number, rng, evaluated))
        return [next(drawn[kind]) for _ in range(each) for kind in self.kinds][:count]

    def _of_kind(self, kind: str, count: int, rng: Any, evaluated: bool) -> list[dict[str, Any]]:
        """Tasks of a kind. To be judged by, each question comes once; to train on, lookups come
        again where they are fewer than asked for, and comparisons as they are drawn."""
        questions = self._candidates(kind, rng, evaluated)
        if evaluated:
            found: dict[str, Question] = {}
            for question in itertools.islice(questions, _TRIES + 10 * count):
                if len(found) == count:
                    break
                found.setdefault(_key(question), question)
            _check_enough(count, kind, len(found))
            return [self.world.task(question) for question in found.values()]
        if kind in HOPS:
            questions = itertools.cycle(list(questions))
        return [self.world.task(question) for question in itertools.islice(questions, count)]

    def _candidates(self, kind: str, rng: Any, evaluated: bool) -> Iterator[Question]:
        """Questions of a kind for one of both purposes, in a random order; comparisons are drawn
        without end."""
        by_entity = self.held_out == "entities"
        parts = (PARTS[int(evaluated)],) if by_entity else PARTS
        if kind in HOPS:
            there = [q for q in self.world.lookups[kind] if self.world.part(q) in parts]
            drawn: Iterator[Question] = iter(rng.sample(there, len(there)))
        else:
            drawn = self.world.comparisons(rng, kind, parts)
        return (q for q in drawn if by_entity or _is_evaluated(_key(q)) == evaluated)


def check_task(task: Any) -> None:
    """Checks a task of the search team; ValueError for what is none."""
    if (
        not isinstance(task, Mapping)
        or not {"question", "answers", "kind"} <= set(task)
        or not isinstance(task["question"], str)
        or not isinstance(task["answers"], Sequence)
        or isinstance(task["answers"], str)
        or not task["answers"]
        or not all(isinstance(each, str) for each in task["answers"])
    ):
        raise ValueError(
            'a task of the search team is {"question": text, "answers": [text, ...], "kind": name}'
            f", not {repr(task)[:80]}"
        )


def work_record(task: Mapping[str, Any], work: Work) -> dict[str, Any]:
    """What an episode leaves of its question, its searches and its answer. None is never right,
    not even where a golden answer has nothing but punctuation and articles."""
    sizes, answered = work.query_sizes, bool(work.answer)
    return {
        "question": task["question"],
        "kind": task["kind"],
        "answer": work.answer,
        "exact": answered and exact_match(work.answer, task["answers"]) == 1,
        "f1": f1_score(work.answer, task["answers"]) if answered else 0.0,
        "searched": work.queries,
        "query_sizes": sizes,
        "found": list(work.evidence),
        "queries": sum(sizes),
        "rounds": len(sizes),
        "workers": sum(sizes) / len(sizes) if sizes else None,
        "malformed": work.malformed,
        "valid": 1 - work.malformed / work.replies,
    }


def _once(tasks: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Tasks with different questions; of one question the first."""
    found: dict[str, Mapping[str, Any]] = {}
    for task in tasks:
        found.setdefault(task["question"], task)
    return list(found.values())


def _key(question: Question) -> str:
    """Equal for questions that ask the same in another order."""
    return repr(sorted(question.chains))


def _is_evaluated(question: str) -> bool:
    return derive_seed(0, "search held out", question) % _EVALUATED_OF == 0


def _check_enough(count: int, kind: str, there: int) -> None:
    if count > there:
        raise ValueError(
            f"{count} questions of kind {kind!r} to be judged by: there are {there}; ask for "
            "fewer, or take more people or a larger file"
        )
