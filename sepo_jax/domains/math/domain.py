"""Mathematics for teams: solvers in parallel, a verifier, a selector, a reviser, a router.

Problems are generated (`math.problems`) or read from files (`math.files`). The team earns 1 where
its answer equals the right one, and 0 elsewhere. Answers that are not equal or different at sight
are compared by the checker, a function that a config names: "module:function" of reference, answer
and seconds of processor time, which returns "equal", "different", or why it does not know.
"""

import copy
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from numbers import Real
from pathlib import Path
from typing import Any

from sepo_jax.domains.arguments import check_integer, check_names, check_rates
from sepo_jax.domains.base import Message
from sepo_jax.domains.figures import sampled_figures, task_figures
from sepo_jax.domains.math.answers import plain_equal
from sepo_jax.domains.math.experts import Experts, Guessers
from sepo_jax.domains.math.files import read_problems
from sepo_jax.domains.math.flows import WORKFLOWS, Notes, Rules, most_outputs, roles_of
from sepo_jax.domains.math.problems import (
    KINDS,
    Problem,
    check_difficulties,
    different_problems,
    is_held_out,
    problems,
)
from sepo_jax.domains.seeds import derive_seed, stream
from sepo_jax.domains.teams import Answer, Member, Workflow, play_workflow, team_figures
from sepo_jax.names import check_option, imported

CHECKER = "sepo_jax.sandbox.answers:check_answer"
ON_FAILURE = ("zero", "missing")
_TASK = ("question", "answer")
_NO_ANSWER = "none"
_LONGEST_CHECK = 3600.0  # seconds of a comparison; more are taken for a slip
_OUTCOMES = ("equal", "different", _NO_ANSWER)


class CheckFailed(ValueError):
    """Whether an answer is right cannot be found out, so its episode has no reward."""


class MathTeam:
    """Problems that a team solves (`domains.teams.TeamDomain`).

    A task is {"question", "answer", "kind", "difficulty"}, with "workings" where it was generated
    and "set" and "id" where it comes from a file.

    Args:
      workflow: of `math.flows.WORKFLOWS`.
      solvers: how many there are.
      rounds: how often a router may have solvers asked.
      candidate_characters: of each candidate's reply that other roles see, its end; 0 for its
        answer alone.
      difficulties, kinds: of generated problems; no kinds for all.
      problems: JSONL file to train on; "" for generated problems.
      evaluation: JSONL files to be judged by; none for a quarter of what is trained on otherwise.
        Training leaves their questions out.
      malformed_penalty: taken off the team's reward for every reply that cannot be read.
      on_failure: what a comparison that does not come to an end is worth: "zero", or "missing",
        which fails the episode.
      checker, check_seconds: how answers are compared; see the module. An environment waits for
        its comparison, and so do all of them where they live in the process that trains (sandbox
        backend "in_process"): a hostile answer then takes up to `check_seconds` of everybody's
        time. Give them processes of their own (backend "processes" with `processes=8`) where
        answers are long.
      error_rate, verifier_error_rate, router_error_rate: how often scripted solvers, verifiers and
        routers err.
      imitate_errors: whether what they get wrong is an example to imitate as well, so that there is
        something to learn from rewards.
      workings: whether scripted solvers, and revisers who correct, write the workings of a problem
        before its answer.

    Raises:
      ValueError: unknown options or numbers out of range.
      FileNotFoundError: no such file of problems.
    """

    name = "math"
    game = None

    def __init__(
        self,
        workflow: str = "fixed",
        solvers: int = 3,
        rounds: int = 2,
        candidate_characters: int = 0,
        difficulties: Sequence[int] = (1, 2, 3),
        kinds: Sequence[str] = (),
        problems: str = "",
        evaluation: Sequence[str] = (),
        malformed_penalty: float = 0.0,
        on_failure: str = "zero",
        checker: str = CHECKER,
        check_seconds: float = 3.0,
        error_rate: float = 0.3,
        verifier_error_rate: float = 0.1,
        router_error_rate: float = 0.0,
        workings: bool = True,
        imitate_errors: bool = False,
    ):
        self.flow = check_option("workflow", workflow, WORKFLOWS)
        self.rules = Rules(
            check_integer("solvers", solvers, minimum=1),
            check_integer("rounds", rounds, minimum=1),
            check_integer("candidate_characters", candidate_characters, minimum=0),
        )
        self.roles = roles_of(self.flow, self.rules)
        self.most_outputs = most_outputs(self.flow, self.rules)
        self.difficulties = check_difficulties(difficulties)
        self.kinds = check_names("kinds", "kind of problem", kinds, KINDS)
        self.files = (problems, *((evaluation,) if isinstance(evaluation, str) else evaluation))
        sets = [Path(path).stem for path in self.files[1:]]
        if len(set(sets)) < len(sets):
            raise ValueError(f"evaluation={evaluation!r}: two files have one name, that of the set")
        for path in filter(None, self.files):
            _tasks_of(path)
        self.on_failure = check_option("on_failure", on_failure, ON_FAILURE)
        self.error_rates = check_rates(
            error_rate=error_rate,
            verifier_error_rate=verifier_error_rate,
            router_error_rate=router_error_rate,
        )
        numbers = {"malformed_penalty": malformed_penalty, "check_seconds": check_seconds}
        for name, value in numbers.items():
            if not isinstance(value, Real):
                raise ValueError(f"{name}={value!r} must be a number")
        if not (0 <= malformed_penalty < math.inf and 0 < check_seconds <= _LONGEST_CHECK):
            raise ValueError(
                f"malformed_penalty={malformed_penalty!r} is a number from 0, and check_seconds="
                f"{check_seconds!r} one above 0 and up to {_LONGEST_CHECK:g}"
            )
        self.malformed_penalty = malformed_penalty
        self.checker, self.check_seconds, self.workings = checker, check_seconds, workings
        self.imitate_errors = imitate_errors
        if not (isinstance(checker, str) and callable(imported("checker", checker, CHECKER))):
            raise ValueError(f'checker={checker!r} must name a function, such as "{CHECKER}"')

    def workflow(self, task: Mapping[str, Any], seed: int) -> Workflow:
        """Plays a task; the team is paid by its answer.

        Raises:
          ValueError: no task.
          CheckFailed: the answer cannot be compared, where that is to be missing.
        """
        texts = [task.get(name) for name in _TASK] if isinstance(task, Mapping) else [None]
        if not all(isinstance(text, str) for text in texts):
            raise ValueError(
                f'a task is {{"question": text, "answer": text}}, not {repr(task)[:80]}; take '
                "tasks from training_tasks or evaluation_tasks"
            )
        notes = Notes()
        answer = yield from WORKFLOWS[self.flow](self.rules, task["question"], notes)
        outcome = self.outcome(task["answer"], answer)
        record = _record(answer, outcome, notes)
        return record["right"] - self.malformed_penalty * notes.malformed, record

    def outcome(self, reference: str, answer: str | None) -> str:
        """What comes of comparing an answer: "equal", "different", "none", or why it is not known.

        Raises:
          CheckFailed: the reference cannot be read; or the comparison did not come to an end, where
            that is to be missing.
        """
        if answer is None:
            return _NO_ANSWER
        same = plain_equal(reference, answer)
        if same is not None:
            return "equal" if same else "different"
        check = imported("checker", self.checker, CHECKER)
        found = check(reference, answer, self.check_seconds)
        if found == "unreadable" or (found not in _OUTCOMES and self.on_failure == "missing"):
            raise CheckFailed(f"{found}: {answer[:80]!r} compared with {reference[:80]!r}")
        return found

    def training_tasks(self, count: int, seed: int) -> list[dict[str, Any]]:
        """Tasks to train on: generated ones with kinds and difficulties in turn, or drawn alike
        from the file, all of them before any comes again."""
        check_integer("count", count, minimum=0)
        if not self.files[0]:
            drawn = problems(
                derive_seed(seed, "training"),
                held_out=False,
                kinds=self.kinds,
                difficulties=self.difficulties,
            )
            return [_generated(problem) for problem in itertools.islice(drawn, count)]
        tasks = self._file_tasks()
        rng, found = stream(seed, "math files"), []
        while len(found) < count:
            found += rng.sample(tasks, min(len(tasks), count - len(found)))
        return found

    def _file_tasks(self) -> list[dict[str, Any]]:
        """What the file holds that is not for evaluation; ValueError where nothing is left."""
        judged = {task["question"] for path in self.files[1:] for task in _tasks_of(path)}
        tasks = [
            task
            for task in _tasks_of(self.files[0])
            if task["question"] not in judged
            and (len(self.files) > 1 or not is_held_out(task["question"]))
        ]
        if not tasks:
            raise ValueError(
                f"{self.files[0]} has no problem left to train on beside those for evaluation; "
                "give a file with others"
            )
        return tasks

    def evaluation_tasks(self, count: int, seed: int) -> list[dict[str, Any]]:
        """`count` different tasks of each file or, of generated ones, of each difficulty; all where
        there are fewer. ValueError where a file leaves none."""
        check_integer("count", count, minimum=0)
        found: list[dict[str, Any]] = []
        if not any(self.files):
            for level in self.difficulties:
                drawn = different_problems(
                    count,
                    derive_seed(seed, "evaluation", level),
                    held_out=True,
                    kinds=self.kinds,
                    difficulty=level,
                )
                found += map(_generated, drawn)
            return found
        for path in self.files[1:] or self.files:
            tasks = _tasks_of(path)
            if len(self.files) == 1:
                tasks = [task for task in tasks if is_held_out(task["question"])]
            if not tasks:
                raise ValueError(
                    f"{path} has no problem left to be judged by: a quarter of what is trained on "
                    "is, by chance; give evaluation=[...], or a larger file"
                )
            # By its name, so that a file has the same questions wherever it lies.
            rng = stream(seed, "math evaluation", Path(path).stem)
            places = rng.sample(range(len(tasks)), min(count, len(tasks)))
            found += [tasks[place] for place in sorted(places)]
        return found

    def figures(self, tasks: Sequence[Any], records: Sequence[Any]) -> dict[str, float]:
        """Figures of all episodes, and accuracies of each difficulty, or file, and kind.

        accuracy: share of episodes whose answer is right; without record it is not. avg@k, pass@k:
        where each question is asked k times in a row, the mean share of right answers to a
        question, and the share of questions answered right at least once. valid: share of replies
        that could be read. answered: share of episodes that gave an answer. unchecked: share whose
        answer could not be compared. solvers: mean number of solvers asked at a time. And of
        `team_figures` active_set, events and calls. Intervals are over questions.
        """
        found = task_figures(tasks, records, {"right": False, "answered": False, "unchecked": None})
        found = {name.replace("right", "accuracy"): value for name, value in found.items()}
        found |= sampled_figures(tasks, [_is_right(record) for record in records])
        left = [record for record in records if record is not None]
        replies = sum(record["replies"] for record in left)
        if replies:
            found["valid"] = 1.0 - sum(record["malformed"] for record in left) / replies
        sizes = [size for record in left for size in _sizes(record, "solve")]
        if sizes:
            found["solvers"] = sum(sizes) / len(sizes)
        found |= team_figures(records)
        for label in (_label, lambda task: task["kind"]):
            for group in dict.fromkeys(map(label, tasks)):
                pairs = zip(tasks, records, strict=True)
                own = [_is_right(record) for task, record in pairs if label(task) == group]
                found[f"{group}/accuracy"] = sum(own) / len(own)
        return found

    def baselines(self, tasks: Sequence[Any]) -> dict[str, dict[str, float]]:
        """Figures of guesses, of a single scripted solver, of the scripted team, and of a team
        whose solvers never err."""
        alone = copy.copy(self)
        alone.flow, alone.roles = "single", roles_of("single", self.rules)
        makers: dict[str, tuple[MathTeam, Callable[[Any, int], Answer]]] = {
            "random": (self, lambda task, number: Guessers(task, number, self.rules.solvers)),
            "solver": (alone, self._experts),
            "experts": (self, self._experts),
            "oracle": (self, lambda task, number: Experts(task, number, self.rules.solvers)),
        }
        played = {
            player: [
                play_workflow(team, task, number, make(task, number)).record
                for number, task in enumerate(tasks)
            ]
            for player, (team, make) in makers.items()
        }
        return {player: self.figures(tasks, records) for player, records in played.items()}

    def _experts(self, task: Any, seed: int, rationale: bool = False) -> Experts:
        workings = self.workings or rationale
        return Experts(task, seed, self.rules.solvers, *self.error_rates, workings)

    def expert_traces(
        self, num_decisions: int, seed: int, *, rationale: bool = False
    ) -> list[tuple[list[Message], str]]:
        """Decisions of scripted teams on training tasks: prompt and reply of every role.

        What the scripted members get wrong is shown to the others, and is no example itself but
        with `imitate_errors`. With `rationale` there are workings whatever the domain's option
        says.

        Raises:
          ValueError: the scripted members get nothing right that could be imitated.
        """
        check_integer("num_decisions", num_decisions, minimum=0)
        traces: list[tuple[list[Message], str]] = []
        for block in itertools.count():
            before = len(traces)
            tasks = self.training_tasks(num_decisions, derive_seed(seed, "traces", block))
            for number, task in enumerate(tasks):
                if len(traces) >= num_decisions:
                    break
                traces += self._examples(task, derive_seed(seed, block, number), rationale)
            if len(traces) >= num_decisions:
                return traces[:num_decisions]
            if len(traces) == before:
                raise ValueError(
                    f"{len(tasks)} episodes of scripted members hold nothing to imitate: "
                    f"error_rate={self.error_rates[0]} leaves no reply right; lower it, or set "
                    "imitate_errors"
                )

    def _examples(self, task: Any, seed: int, rationale: bool) -> list[tuple[list[Message], str]]:
        """What is to be imitated of the scripted members in an episode, each behind its prompt."""
        experts, found = self._experts(task, seed, rationale), []

        def answer(kind: str, member: Member, messages: Sequence[Message]) -> str:
            reply = experts(kind, member, messages)
            if self.imitate_errors or not experts.erred:
                found.append((list(messages), reply))
            return reply

        play_workflow(self, task, seed, answer)
        return found


@cache
def _tasks_of(path: str) -> list[dict[str, Any]]:
    """Tasks of a file, each with its "set", the file's name."""
    return [{**task, "set": Path(path).stem} for task in read_problems(path)]


def _generated(problem: Problem) -> dict[str, Any]:
    return {**problem._asdict(), "workings": list(problem.workings)}


def _label(task: Mapping[str, Any]) -> str:
    """What kind of task it is: of a file, or of a difficulty."""
    return task.get("set") or f"difficulty_{task.get('difficulty', 0)}"


def _record(answer: str | None, outcome: str, notes: Notes) -> dict[str, Any]:
    return {
        "right": outcome == "equal",
        "answer": answer,
        "answered": answer is not None,
        "outcome": outcome,
        "unchecked": outcome not in _OUTCOMES,
        "replies": notes.replies,
        "malformed": notes.malformed,
        "candidates": [
            {"solver": each.number, "answer": each.answer, "approved": each.approved}
            for each in notes.candidates
        ],
    }


def _is_right(record: Mapping[str, Any] | None) -> bool:
    return record is not None and record["right"]


def _sizes(record: Mapping[str, Any], kind: str) -> list[int]:
    """Sizes of an episode's events of a kind."""
    pairs = zip(record["event_kinds"], record["event_sizes"], strict=True)
    return [size for each, size in pairs if each == kind]
