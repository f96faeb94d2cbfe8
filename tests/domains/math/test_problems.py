"""Generated problems: answers and workings checked from the questions alone, splits, seeds."""

import itertools
import math
import os
import random
import re
import subprocess
import sys
from fractions import Fraction

import pytest

from sepo_jax.domains.math.problems import (
    DIFFICULTIES,
    KINDS,
    different_problems,
    is_held_out,
    make_problem,
    problems,
)


def value_of(expression, x=None):
    """An expression in numbers and x, as exact fractions."""
    text = re.sub(r"(\d)(x|\()", r"\1*\2", expression).replace("^", "**").replace("mod", "%")
    text = re.sub(r"\d+", r"F(\g<0>)", text)
    return eval(text, {"F": Fraction, "x": x})


def words_without_doubles(letters, length):
    """Number of words without two equal neighbours, by their last letter."""
    ends = dict.fromkeys(range(letters), 1)
    for _ in range(length - 1):
        ends = {last: sum(n for e, n in ends.items() if e != last) for last in ends}
    return sum(ends.values())


def counted(question):
    """The answer of a counting problem, by listing what it counts."""
    numbers = [int(digits) for digits in re.findall(r"\d+", question)]
    if "hats" in question:
        return len(list(itertools.product(range(numbers[0]), range(numbers[1]))))
    if "divisible" in question:
        low, high, *steps = numbers
        return sum(any(n % step == 0 for step in steps) for n in range(low, high + 1))
    if "chosen" in question:
        chosen, people = numbers
        return len(list(itertools.combinations(range(people), chosen)))
    length, letters = numbers
    return words_without_doubles(letters, length)


def solved(problem):
    """The answer of a problem, from its question alone."""
    question = problem.question
    if problem.kind == "equation":
        left, right = re.fullmatch(r"Solve (.*) = (.*) for x\.", question).groups()
        at = [value_of(left, x) - value_of(right, x) for x in (Fraction(0), Fraction(1))]
        return at[0] / (at[0] - at[1])
    if problem.kind == "remainder":
        number, divisor = re.search(r"when (.*) is divided by (.*)\?", question).groups()
        return value_of(number) % value_of(divisor)
    if problem.kind == "counting":
        return counted(question)
    return value_of(re.match(r"Compute (.*?)( as a fraction.*)?\.$", question)[1])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("difficulty", DIFFICULTIES)
def test_answers_and_workings_follow_from_the_question(kind, difficulty):
    rng = random.Random(f"{kind} {difficulty}")
    for _ in range(60):
        problem = make_problem(rng, kind, difficulty)
        assert (problem.kind, problem.difficulty) == (kind, difficulty)
        answer = Fraction(problem.answer)
        assert answer == solved(problem), problem
        assert str(answer) == problem.answer  # in lowest terms
        assert problem.workings[-1].endswith(f"= {problem.answer}"), problem
        for line in problem.workings:
            # "2^4: ", "3x = " and "multiples of 3: " say what a line is about.
            parts = line.rpartition(": ")[2].split(" = ")
            values = {value_of(part) for part in parts if "x" not in part}
            assert len(values) == 1, (problem, line)


def test_known_problems_have_known_answers():
    # 2^5 = 32 = 6 * 5 + 2; by squaring: 2, 4, 4 * 4 = 16 = 4 (mod 6), 4 * 2 = 8 = 2 (mod 6).
    assert value_of("2^5 mod 6") == 2
    # 5(x + 2) = 3x + 4: 2x = 4 - 10 = -6, x = -3.
    assert value_of("5(x + 2)", Fraction(-3)) == value_of("3x + 4", Fraction(-3)) == -5
    assert counted("In how many ways can 2 of 5 people be chosen?") == 10
    # 3 * 2 * 2: any first letter, then any but the one before.
    assert words_without_doubles(3, 3) == 12
    assert counted("How many whole numbers from 1 to 12 are divisible by 4 or 6?") == 4


def test_no_problem_is_trained_on_and_judged_by():
    for difficulty in DIFFICULTIES:
        trained = {
            problem.question
            for seed in (0, 1)
            for problem in itertools.islice(
                problems(seed, held_out=False, difficulties=(difficulty,)), 400
            )
        }
        judged = {p.question for p in different_problems(60, 0, held_out=True, kinds=(),
                                                         difficulty=difficulty)}  # fmt: skip
        assert judged and not judged & trained
        assert all(map(is_held_out, judged)) and not any(map(is_held_out, trained))


def test_one_problem_in_four_is_held_out():
    rng = random.Random(5)
    questions = {make_problem(rng, "chain", 5).question for _ in range(4000)}
    # Standard error of the share: sqrt(3 / 16 / 4000) = 0.007.
    assert len(questions) > 3900
    assert abs(sum(map(is_held_out, questions)) / len(questions) - 0.25) < 0.03


def test_kinds_and_difficulties_come_in_turn():
    drawn = problems(7, held_out=False, kinds=("fraction", "chain"), difficulties=(2, 5))
    found = [(p.difficulty, p.kind) for p in itertools.islice(drawn, 8)]
    assert found == [(2, "fraction"), (2, "chain"), (5, "fraction"), (5, "chain")] * 2


def test_problems_are_a_function_of_the_seed():
    code = (
        "import itertools; from sepo_jax.domains.math.problems import problems;"
        "print(*(p.question for p in itertools.islice(problems(3, held_out=True), 30)), sep='|')"
    )
    runs = [
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True, text=True, check=True,
        ).stdout.strip()
        for seed in ("1", "2")
    ]  # fmt: skip
    here = [p.question for p in itertools.islice(problems(3, held_out=True), 30)]
    assert runs[0].split("|") == runs[1].split("|") == here
    others = [p.question for p in itertools.islice(problems(4, held_out=True), 30)]
    assert sum(map(str.__eq__, here, others)) < 10


def test_different_problems_end_where_there_are_no_more():
    found = different_problems(10_000, 0, held_out=True, kinds=("equation",), difficulty=1)
    # x + b = a + b for a and b from 1 to 9: 81 problems, of which these are held out.
    every = {f"Solve x + {b} = {a + b} for x." for a in range(1, 10) for b in range(1, 10)}
    assert {p.question for p in found} == set(filter(is_held_out, every))
    assert len(found) == len({p.question for p in found})
    assert math.isclose(len(found) / 81, 0.25, abs_tol=0.15)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kinds": ("fractions",)}, "Did you mean 'fraction'"),
        ({"difficulties": (0,)}, r"difficulties=\(0,\) must be one or more of 1, 2, 3, 4, 5"),
        ({"difficulties": ()}, "one or more"),
    ],
)
def test_unknown_problems_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        next(problems(0, held_out=False, **options))
