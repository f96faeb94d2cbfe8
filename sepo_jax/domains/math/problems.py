"""Generated problems by kind and difficulty, each with its exact answer and workings.

Answers are whole numbers, or fractions in lowest terms such as "-3/4". They are known by
construction: a problem is put together from numbers, and its answer computed from them with exact
arithmetic, as are the workings, whose last line ends with the answer.

A problem is held out for evaluation when the hash of its question says so, whatever seed drew it,
so no problem is trained on and judged by.
"""

import hashlib
import itertools
import math
import random
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import NamedTuple

from sepo_jax.domains.arguments import check_integer
from sepo_jax.domains.seeds import stream
from sepo_jax.names import check_option

DIFFICULTIES = (1, 2, 3, 4, 5)
_HELD_OUT_ONE_IN = 4
_DRAWS = 1000  # without a new problem, after which there are taken to be no more


class Problem(NamedTuple):
    """A problem.

    Attributes:
      question: as the solver reads it.
      answer: a whole number or a fraction in lowest terms.
      workings: lines of a solution; the last ends with "= <answer>".
      kind: of `KINDS`.
      difficulty: of `DIFFICULTIES`.
    """

    question: str
    answer: str
    workings: tuple[str, ...]
    kind: str
    difficulty: int


def problems(
    seed: int,
    *,
    held_out: bool,
    kinds: Sequence[str] = (),
    difficulties: Sequence[int] = DIFFICULTIES,
) -> Iterator[Problem]:
    """Endless problems of a seed, kinds and difficulties in turn.

    Args:
      seed: decides everything.
      held_out: whether they are those for evaluation, one in four, or the others.
      kinds: of `KINDS`; empty for all.
      difficulties: of `DIFFICULTIES`.

    Raises:
      ValueError: an unknown kind or difficulty, or no difficulty.
    """
    chosen = [check_option("kind of problem", kind, KINDS) for kind in kinds] or list(KINDS)
    levels = check_difficulties(difficulties)
    rng = stream(seed, "math", "held out" if held_out else "training")
    for level, kind in itertools.cycle(itertools.product(levels, chosen)):
        problem = make_problem(rng, kind, level)
        while is_held_out(problem.question) != held_out:
            problem = make_problem(rng, kind, level)
        yield problem


def different_problems(
    count: int, seed: int, *, held_out: bool, kinds: Sequence[str] = (), difficulty: int = 1
) -> list[Problem]:
    """The first `count` different problems of a seed and difficulty, fewer where there are fewer.

    Arguments and errors as in `problems`.
    """
    check_integer("count", count, minimum=0)
    found: dict[str, Problem] = {}
    drawn = problems(seed, held_out=held_out, kinds=kinds, difficulties=(difficulty,))
    in_vain = 0
    while len(found) < count and in_vain < _DRAWS:
        problem = next(drawn)
        in_vain = in_vain + 1 if problem.question in found else 0
        found.setdefault(problem.question, problem)
    return list(found.values())


def check_difficulties(difficulties: Sequence[int]) -> tuple[int, ...]:
    """The difficulties; ValueError where one is unknown or comes twice, or there is none."""
    levels = tuple(difficulties) if isinstance(difficulties, Sequence) else ()
    known = all(type(level) is int and level in DIFFICULTIES for level in levels)
    if not levels or not known or len(set(levels)) < len(levels):
        raise ValueError(
            f"difficulties={difficulties!r} must be one or more of "
            f"{', '.join(map(str, DIFFICULTIES))}, such as (1, 2)"
        )
    return levels


def is_held_out(question: str) -> bool:
    """Whether a question is for evaluation."""
    return hashlib.sha256(question.encode()).digest()[0] % _HELD_OUT_ONE_IN == 0


def make_problem(rng: random.Random, kind: str, difficulty: int) -> Problem:
    """Draws a problem; ValueError for an unknown kind or difficulty."""
    check_option("kind of problem", kind, KINDS)
    check_difficulties((difficulty,))
    question, answer, workings = KINDS[kind](rng, difficulty)
    return Problem(question, str(answer), tuple(workings), kind, difficulty)


Drawn = tuple[str, Fraction | int, list[str]]


def _chain(rng: random.Random, difficulty: int) -> Drawn:
    """A chain of sums; from 3 on with a product, from 4 on with brackets."""
    high = 9 if difficulty <= 3 else 19
    a, b, c = (rng.randint(1, high) for _ in range(3))
    if difficulty <= 3:
        first = f"{a} * {b}" if difficulty == 3 else str(a)
        value, workings = a, []
        if difficulty == 3:
            value = a * b
            workings.append(f"{a} * {b} = {value}")
        sums = 1 if difficulty == 1 else 2
    else:
        b_sign = rng.choice("+-")
        inner = a + b if b_sign == "+" else a - b
        value = inner * c
        first = f"({a} {b_sign} {b}) * {c}"
        workings = [f"{a} {b_sign} {b} = {inner}", f"{_low(inner)} * {c} = {value}"]
        sums = difficulty - 3
    question = first
    for _ in range(sums):
        sign, term = rng.choice("+-"), rng.randint(1, high)
        # The smallest sums stay above zero.
        if difficulty == 1 and term > value:
            sign = "+"
        after = value + term if sign == "+" else value - term
        workings.append(f"{value} {sign} {term} = {after}")
        question, value = f"{question} {sign} {term}", after
    return f"Compute {question}.", value, workings


def _equation(rng: random.Random, difficulty: int) -> Drawn:
    """A linear equation in x, with a fraction for its root at difficulty 5."""
    root, b = rng.randint(1, 9), rng.randint(1, 9)
    if difficulty == 1:
        total = root + b
        return f"Solve x + {b} = {total} for x.", root, [f"x = {total} - {b} = {root}"]
    if difficulty == 2:
        a = rng.randint(2, 9)
        total = a * root + b
        workings = [f"{a}x = {total} - {b} = {a * root}", f"x = {a * root} / {a} = {root}"]
        return f"Solve {a}x + {b} = {total} for x.", root, workings
    a = rng.randint(4, 9)
    c = rng.randint(2, a - 2)
    slope, workings = a - c, []
    left, constant = f"{a}x + {b}", b
    if difficulty == 4:
        left, constant = f"{a}(x + {b})", a * b
        workings = [f"{a} * {b} = {constant}"]
    rest = slope * root
    if difficulty == 5:
        rest = rng.choice([number for number in range(-19, 20) if number % slope])
    right, value = rest + constant, Fraction(rest, slope)
    workings += [f"{slope}x = {right} - {constant} = {rest}", f"x = {rest} / {slope} = {value}"]
    return f"Solve {left} = {c}x {_signed(right)} for x.", value, workings


def _remainder(rng: random.Random, difficulty: int) -> Drawn:
    """A remainder of a number, of a product, or of a power."""
    if difficulty <= 2:
        number, divisor = (
            (rng.randint(5, 29), rng.randint(2, 5))
            if difficulty == 1
            else (rng.randint(30, 199), rng.randint(3, 12))
        )
        quotient, rest = divmod(number, divisor)
        workings = [
            f"{divisor} * {quotient} = {divisor * quotient}",
            f"{number} - {divisor * quotient} = {rest}",
        ]
        return _remainder_of(str(number), divisor), rest, workings
    divisor = rng.randint(3, 9) if difficulty == 3 else rng.randint(5, 13)
    if difficulty == 3:
        a, b = rng.randint(11, 49), rng.randint(11, 49)
        left, right = a % divisor, b % divisor
        workings = [
            f"{a} mod {divisor} = {left}",
            f"{b} mod {divisor} = {right}",
            f"{left} * {right} mod {divisor} = {a * b % divisor}",
        ]
        return _remainder_of(f"{a} * {b}", divisor), a * b % divisor, workings
    base = rng.randint(2, 9)
    exponent = rng.randint(3, 8) if difficulty == 4 else rng.randint(9, 40)
    return (
        _remainder_of(f"{base}^{exponent}", divisor),
        pow(base, exponent, divisor),
        _powers(base, exponent, divisor),
    )


def _powers(base: int, exponent: int, divisor: int) -> list[str]:
    """Workings of a power's remainder, by squaring and multiplying."""
    power, value = 1, base % divisor
    workings = [f"{base}^1 mod {divisor} = {value}"]
    for digit in bin(exponent)[3:]:
        before, power = value, 2 * power
        value = value * value % divisor
        workings.append(f"{base}^{power}: {before} * {before} mod {divisor} = {value}")
        if digit == "1":
            before, power = value, power + 1
            value = value * base % divisor
            workings.append(f"{base}^{power}: {before} * {base} mod {divisor} = {value}")
    return workings


def _remainder_of(number: str, divisor: int) -> str:
    return f"What is the remainder when {number} is divided by {divisor}?"


def _fraction(rng: random.Random, difficulty: int) -> Drawn:
    """Fractions to add, subtract, multiply and divide."""
    most = (9, 6, 9, 6, 6)[difficulty - 1]
    a, b, c = (_proper(rng, most) for _ in range(3))
    if difficulty == 1:
        parts = rng.randint(2, most)
        left, right = rng.randint(1, most), rng.randint(1, most)
        value = Fraction(left + right, parts)
        workings = [f"({left} + {right}) / {parts} = {_lowest(left + right, parts)}"]
        return _as_fraction(f"{left}/{parts} + {right}/{parts}"), value, workings
    if difficulty in (2, 3):
        sign = rng.choice("+-") if difficulty == 2 else "*"
        value, workings = _step(a, sign, b)
        return _as_fraction(f"{_ratio(a)} {sign} {_ratio(b)}"), value, workings
    if difficulty == 4:
        product, first = _step(b, "*", c)
        value, second = _step(a, "+", product)
        question = f"{_ratio(a)} + {_ratio(b)} * {_ratio(c)}"
    else:
        total, first = _step(a, "+", b)
        value, second = _step(total, "/", c)
        question = f"({_ratio(a)} + {_ratio(b)}) / ({_ratio(c)})"
    return _as_fraction(question), value, first + second


def _proper(rng: random.Random, most: int) -> Fraction:
    """A fraction that is no whole number, of numbers up to `most`."""
    while True:
        value = Fraction(rng.randint(1, most), rng.randint(2, most))
        if value.denominator > 1:
            return value


def _step(a: Fraction, sign: str, b: Fraction) -> tuple[Fraction, list[str]]:
    """An operation on two fractions, and its workings."""
    (p, q), (r, s) = a.as_integer_ratio(), b.as_integer_ratio()
    if sign == "/":
        sign, r, s = "*", s, r
    if sign == "*":
        return Fraction(p * r, q * s), [f"({p} * {r}) / ({q} * {s}) = {_lowest(p * r, q * s)}"]
    common = math.lcm(q, s)
    left, right = p * common // q, r * common // s
    top = left + right if sign == "+" else left - right
    return Fraction(top, common), [
        f"{left}/{common} {sign} {right}/{common} = {_lowest(top, common)}"
    ]


def _lowest(top: int, bottom: int) -> str:
    """A fraction as it came out, and in lowest terms where that is another form."""
    raw, value = f"{top}/{bottom}", str(Fraction(top, bottom))
    return value if raw == value else f"{raw} = {value}"


def _ratio(value: Fraction) -> str:
    return f"{value.numerator}/{value.denominator}"


def _as_fraction(expression: str) -> str:
    return f"Compute {expression} as a fraction in lowest terms."


def _counting(rng: random.Random, difficulty: int) -> Drawn:
    """Counts of pairs, multiples, choices, unions and words."""
    if difficulty == 1:
        a, b = rng.randint(2, 12), rng.randint(2, 12)
        question = f"How many ways are there to pick one of {a} hats and one of {b} coats?"
        return question, a * b, [f"{a} * {b} = {a * b}"]
    if difficulty == 2:
        most, step = rng.randint(20, 150), rng.randint(3, 9)
        count = most // step
        question = f"How many whole numbers from 1 to {most} are divisible by {step}?"
        workings = [f"{step} * {count} = {step * count}", f"{step * count} / {step} = {count}"]
        return question, count, workings
    if difficulty == 3:
        people, chosen = rng.randint(5, 12), rng.randint(2, 4)
        question = f"In how many ways can {chosen} of {people} people be chosen?"
        factors = list(range(people, people - chosen, -1))
        ordered, orders = math.prod(factors), math.factorial(chosen)
        count = ordered // orders
        workings = [
            f"{' * '.join(map(str, factors))} = {ordered}",
            f"{' * '.join(map(str, range(chosen, 0, -1)))} = {orders}",
            f"{ordered} / {orders} = {count}",
        ]
        return question, count, workings
    if difficulty == 4:
        most = rng.randint(40, 300)
        a, b = rng.sample(range(3, 13), 2)
        common = math.lcm(a, b)
        counts = most // a, most // b, most // common
        count = counts[0] + counts[1] - counts[2]
        question = f"How many whole numbers from 1 to {most} are divisible by {a} or {b}?"
        pairs = zip((a, b, common), counts, strict=True)
        workings = [f"multiples of {step}: {number}" for step, number in pairs]
        workings.append(f"{counts[0]} + {counts[1]} - {counts[2]} = {count}")
        return question, count, workings
    letters, length = rng.randint(3, 9), rng.randint(3, 6)
    count = letters * (letters - 1) ** (length - 1)
    question = (
        f"How many words of {length} letters over an alphabet of {letters} letters have no two "
        "equal letters in a row?"
    )
    value, workings = letters, []
    for _ in range(length - 1):
        workings.append(f"{value} * {letters - 1} = {value * (letters - 1)}")
        value *= letters - 1
    return question, count, workings


def _signed(value: int) -> str:
    """A number as it follows another: "+ 3", "- 3"."""
    return f"+ {value}" if value >= 0 else f"- {-value}"


def _low(value: int) -> str:
    """A number as a factor or subtrahend, in brackets where it is negative."""
    return str(value) if value >= 0 else f"({value})"


KINDS: dict[str, Callable[[random.Random, int], Drawn]] = {
    "chain": _chain,
    "equation": _equation,
    "remainder": _remainder,
    "fraction": _fraction,
    "counting": _counting,
}
