r"""Problems in JSONL files, with the fields of the common sets of competition mathematics.

Question and answer are found by these fields, whatever the case of their names:

| set | question | answer |
|---|---|---|
| DAPO-Math-17k | `prompt`, a list of chat messages | `reward_model.ground_truth` |
| DAPO-Math-17k-Processed | `prompt`, a text | `solution` |
| AIME 2024, 2025 | `problem` or `question` | `answer`, a text or a number |
| AMC 2023, Minerva | `question` or `problem` | `answer`, or \boxed{} in `solution` |
| MATH, MATH-500 | `problem` | `answer`, or \boxed{} in `solution` |
| OlympiadBench | `question` | `final_answer`, a list |
| GSM8K | `question` | behind "####" in `answer` |

The instructions that DAPO-Math wraps around a question are taken off: roles have their own.
"""

import math
import os
import re
import warnings
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from sepo_jax.domains.json_lines import read_json_lines, short
from sepo_jax.domains.math.answers import MAX_ANSWER, final_answer, normal_form

_QUESTIONS = ("problem", "question", "prompt")
_ANSWERS = ("answer", "final_answer", "ground_truth")
_NAMES = ("unique_id", "id", "problem_idx", "index")
_DAPO_BEFORE = re.compile(r"^Solve the following math problem step by step\..*?\n\s*\n", re.DOTALL)
_DAPO_AFTER = re.compile(r"\n\s*\nRemember to put your answer on its own line.*$", re.DOTALL)
_NO_LEVEL = 0


def read_problems(path: str | os.PathLike) -> list[dict[str, Any]]:
    """Tasks of a file, in its order, each {"question", "answer", "kind", "difficulty", "id"}.

    A question that comes again counts once, with its first answer.

    "kind" is the subject or the set where the line names one, "difficulty" its level from 1, or 0
    where it has none; "id" is its name, or the number of the problem in the file.

    Raises:
      FileNotFoundError: no such file.
      ValueError: a line without a question or an answer, or with one that no reply could equal
        (longer than `MAX_ANSWER`, or no number); the message names file and line.
    """
    found: dict[str, dict[str, Any]] = {}
    differing = 0
    for number, task in enumerate(read_json_lines(path, "problems", _task)):
        kept = found.setdefault(task["question"], {**task, "id": task["id"] or str(number)})
        differing += kept["answer"] != task["answer"]
    if differing:
        warnings.warn(
            f"{path}: {differing} lines repeat a question with another answer; the first counts",
            RuntimeWarning,
            stacklevel=2,
        )
    return list(found.values())


def _task(record: Mapping[str, Any]) -> dict[str, Any]:
    fields = {str(name).lower(): value for name, value in record.items()}
    return {
        "question": _question(fields),
        "answer": _answer(fields),
        "kind": _kind(fields),
        "difficulty": _difficulty(fields.get("level")),
        "id": _name(fields),
    }


def _question(fields: Mapping[str, Any]) -> str:
    name = next((each for each in _QUESTIONS if fields.get(each)), None)
    if name is None:
        raise ValueError(f"no question: one of the fields {', '.join(_QUESTIONS)} holds it")
    value = fields[name]
    if isinstance(value, list):
        said = [each for each in value if isinstance(each, Mapping) and each.get("role") == "user"]
        value = said[-1].get("content") if said else None
    if not isinstance(value, str) or not value.strip():
        raise ValueError(
            f"{name!r} is a text, or chat messages of which one is a user's, not "
            f"{short(fields[name])}"
        )
    text = _DAPO_AFTER.sub("", _DAPO_BEFORE.sub("", value.strip()))
    return text.strip()


def _answer(fields: Mapping[str, Any]) -> str:
    model = fields.get("reward_model")
    if isinstance(model, Mapping) and "ground_truth" in model:
        return _text("reward_model.ground_truth", model["ground_truth"])
    name = next((each for each in _ANSWERS if fields.get(each) not in (None, "", [])), None)
    if name is not None:
        value = fields[name]
        if isinstance(value, list):
            return ", ".join(_text(name, each) for each in value)
        return _text(name, value)
    solution = fields.get("solution")
    if isinstance(solution, list) and solution:
        solution = solution[0]
    if isinstance(solution, str) and solution.strip():
        # A solution that is worked out boxes its answer; one of a processed set is the answer.
        boxed = final_answer(solution) if "\\boxed" in solution else None
        if boxed is not None or len(solution.split()) <= _FEW_WORDS:
            return boxed or _text("solution", solution)
    raise ValueError(
        f"no answer: one of the fields {', '.join(_ANSWERS)}, reward_model.ground_truth holds it, "
        "or solution with \\boxed{...}"
    )


_FEW_WORDS = 8


def _text(name: str, value: Any) -> str:
    """An answer as text in normal form; whole numbers that are stored as 27.0 are 27."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    text = ""
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        text = format(Decimal(repr(value)), "f")  # "1e-05" would be read as e - 5
    elif isinstance(value, str):
        answer = value.rpartition("####")[2].strip()
        if len(answer) > MAX_ANSWER:
            raise ValueError(
                f"{name!r} has {len(answer)} characters; at most {MAX_ANSWER} are read"
            )
        text = normal_form(answer)
    if not text:
        raise ValueError(f"{name!r} is an answer, a text or a number, not {short(value)}")
    return text


def _kind(fields: Mapping[str, Any]) -> str:
    named = (fields.get(name) for name in ("subject", "type", "subfield", "data_source"))
    return next((value for value in named if isinstance(value, str) and value), "file")


def _difficulty(level: Any) -> int:
    """A level such as 5 or "Level 5"; 0 where there is none."""
    digits = re.search(r"[1-9]\d?", level) if isinstance(level, str) else None
    if digits:
        return int(digits[0])
    known = isinstance(level, int) and not isinstance(level, bool) and level > 0
    return level if known else _NO_LEVEL


def _name(fields: Mapping[str, Any]) -> str:
    extra = fields.get("extra_info")
    places = (fields, extra if isinstance(extra, Mapping) else {})
    for place in places:
        for name in _NAMES:
            if isinstance(place.get(name), str | int):
                return str(place[name])
    return ""
