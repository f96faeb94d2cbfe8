"""Zero-sum matrix games as text: prompts with and without names, canonical replies, the parser.

    task = anonymous([[0.37, -0.52], [-0.11, 0.98]])      # or named(payoffs, title, rows, columns)
    text = ask(messages(task))                            # any completion
    answer = parse(text, *task.shape)                     # status, and both players' probabilities

One decision a game, and both players' mixed strategies in one reply: no opponent, no episode. The
prompts of one payoff table differ in title and labels only, line by line. What is printed is the
payoffs themselves, to the last digit.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sepo_jax.domains.arguments import check_integer
from sepo_jax.domains.base import Message
from sepo_jax.names import check_option

VALID, NOT_DISTRIBUTION, NOT_PARSABLE = STATUSES = ("valid", "not_distribution", "not_parsable")
RELABELLINGS = ("swapped", "neutral")
SUM_TOLERANCE = 1e-2
UNITS = 100  # a reply has two decimals
LARGEST_FIXED = 1e6
_ROUNDING = 1e-9  # three times 0.33 is 0.99 up to this

_SYSTEM = (
    "You solve zero-sum matrix games. The row player wins the payoff shown, the column player loses"
    " it, and both choose at once. Give the equilibrium probabilities of both players, in the order"
    ' of the actions, as one line of JSON: {"row": [0.20, 0.30, 0.50], "col": [0.60, 0.40]}'
)


@dataclass(frozen=True)
class MatrixTask:
    """A zero-sum game with the words it is shown in.

    Attributes:
      payoffs: of the row player, m rows of n numbers.
      row_actions, col_actions: labels of the m and n actions.
      title: what the game is called; "" for an anonymous one.

    Raises:
      ValueError: no cells, rows of unequal length, a payoff that is no finite number, another
        number of labels than of actions, a label twice, or text that is not one line.
    """

    payoffs: tuple[tuple[float, ...], ...]
    row_actions: tuple[str, ...]
    col_actions: tuple[str, ...]
    title: str = ""

    def __post_init__(self):
        object.__setattr__(self, "payoffs", _table(self.payoffs))
        for name, count in (("row_actions", self.shape[0]), ("col_actions", self.shape[1])):
            object.__setattr__(self, name, _labels(name, getattr(self, name), count))
        if not isinstance(self.title, str) or (self.title and not _is_one_line(self.title)):
            raise ValueError(f"title must be one line of text, not {self.title!r}")

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of actions of the row and of the column player, (m, n)."""
        return len(self.payoffs), len(self.payoffs[0])

    def record(self) -> dict[str, Any]:
        """The task in JSON values; `from_record` reads it."""
        return {
            "payoffs": [list(row) for row in self.payoffs],
            "row_actions": list(self.row_actions),
            "col_actions": list(self.col_actions),
            "title": self.title,
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> "MatrixTask":
        """The task of a `record`; ValueError where it lacks a field or has another."""
        fields = tuple(cls.__dataclass_fields__)
        if not isinstance(record, Mapping) or set(record) != set(fields):
            given = ", ".join(map(str, record)) if isinstance(record, Mapping) else repr(record)
            raise ValueError(f"a record of a matrix game has {', '.join(fields)}; got {given}")
        return cls(**record)


def anonymous(payoffs: Sequence[Sequence[float]]) -> MatrixTask:
    """The game without a title, its actions called A1, A2, ... and B1, B2, ..."""
    table = _table(payoffs)
    return MatrixTask(table, _neutral("A", len(table)), _neutral("B", len(table[0])))


def named(
    payoffs: Sequence[Sequence[float]],
    title: str,
    row_actions: Sequence[str],
    col_actions: Sequence[str],
) -> MatrixTask:
    """The game under its own name; ValueError for an empty title, see `MatrixTask` for others."""
    if not title:
        raise ValueError("a named game needs a title; use anonymous(payoffs) for one without")
    return MatrixTask(payoffs, row_actions, col_actions, title)  # type: ignore[arg-type]


def relabelled(task: MatrixTask, how: str = "swapped") -> MatrixTask:
    """The same payoffs and title under labels that no longer say what an action does.

    Args:
      task: any game.
      how: "swapped": each player's labels move on by one action, so that knowing the game by name
        misleads wherever its equilibrium tells the actions apart; "neutral": A1, ... and B1, ...

    Raises:
      ValueError: unknown `how`.
    """
    m, n = task.shape
    if check_option("how", how, RELABELLINGS) == "neutral":
        rows, cols = _neutral("A", m), _neutral("B", n)
    else:
        rows = (*task.row_actions[1:], task.row_actions[0])
        cols = (*task.col_actions[1:], task.col_actions[0])
    return MatrixTask(task.payoffs, rows, cols, task.title)


def messages(task: MatrixTask) -> list[Message]:
    """The prompt, [system, user]: rules and answer format, then the game, one line a row.

    Payoffs carry a sign and, where all of them are hundredths below 1e6, two decimals; any other
    table is printed with all digits that it has, so no prompt shows another game than is scored.
    """
    shown = _formatter(task.payoffs)
    rows = (
        f"{label}: {' '.join(map(shown, row))}"
        for label, row in zip(task.row_actions, task.payoffs, strict=True)
    )
    lines = (
        f"Game: {task.title or 'anonymous'}",
        f"Columns: {', '.join(task.col_actions)}",
        "Rows with payoffs:",
        *rows,
    )
    return [
        {"role": "system", "content": _SYSTEM},
        {"role": "user", "content": "\n".join(lines)},
    ]


def reply(row: Sequence[float], col: Sequence[float]) -> str:
    """The canonical answer: one line of JSON, two decimals, either vector summing to exactly 1.

    By largest remainder: every probability is rounded down to hundredths, and what is missing goes
    one by one to the largest remainders, ties to the earlier action. No entry moves by 0.01 or
    more, k entries by at most k/200 in sum, so NashConv rises by at most (m + n) / 400 of the
    payoff range.

    Args:
      row: probabilities [m]; col: probabilities [n].

    Raises:
      ValueError: negative or non-finite probabilities, or a sum off 1 by more than 1e-6.
    """
    return f'{{"row": [{_hundredths("row", row)}], "col": [{_hundredths("col", col)}]}}'


def workings(task: MatrixTask) -> str:
    """Both players' best replies to each action of the other: "B1: A1, B2: A1; A1: B1, A2: B2".

    First the columns with the best row of each, then the rows with the best column of each; of
    equals the earlier. Two actions that are best replies to each other are a pure equilibrium.
    """
    table = np.asarray(task.payoffs)
    columns = _best_replies(task.col_actions, task.row_actions, table.T)
    return f"{columns}; {_best_replies(task.row_actions, task.col_actions, -table)}"


def _best_replies(actions: Sequence[str], replies: Sequence[str], table: np.ndarray) -> str:
    """The best of `replies` to each of `actions` by table [actions, replies]."""
    pairs = zip(actions, table.argmax(-1), strict=True)
    return ", ".join(f"{action}: {replies[best]}" for action, best in pairs)


@dataclass(frozen=True)
class Answer:
    """What a reply says.

    Attributes:
      status: "valid"; "not_distribution" where both vectors stand there, but one has another length
        than the player has actions, a negative or non-finite entry, or a sum off 1 by more than
        0.01; "not_parsable" where no two vectors stand there.
      row, col: probabilities that sum to 1, None unless valid.

    Raises:
      ValueError: another status, a valid answer without both vectors, or others with one.
    """

    status: str
    row: tuple[float, ...] | None = None
    col: tuple[float, ...] | None = None

    def __post_init__(self):
        check_option("status", self.status, STATUSES)
        given = [self.row is not None, self.col is not None]
        if given != [self.valid] * 2:
            raise ValueError(
                f"an answer that is {self.status} with row {self.row} and col {self.col}: a valid "
                "one has both vectors, any other none"
            )

    @property
    def valid(self) -> bool:
        """Whether both players' strategies are there."""
        return self.status == VALID


def parse(text: str, m: int, n: int) -> Answer:
    """Reads the last pair of vectors that stands in `text`.

    A vector is a key and a list: `"row": [0.25, 0.75]`, in either order of the players, any case
    and quotes, `column` for `col`, further words in the key ("Row player's strategy"), `=` for `:`,
    round brackets, line breaks. The two stand beside each other, parted by nothing but punctuation,
    "and" or "the". Entries are decimals, fractions (1/3) or percentages (25%), quoted or not. Any
    text, code fences and earlier answers may stand before, and any text behind. A list with
    anything but numbers is none, so an ellipsis in a copied template is passed over.

    Args:
      text: any completion.
      m, n: numbers of actions of the row and of the column player.

    Returns:
      The Answer; vectors whose sum is within 0.01 of 1 are divided by it.

    Raises:
      ValueError: m or n below 1.
    """
    check_integer("m", m, minimum=1)
    check_integer("n", n, minimum=1)
    pair = _last_pair(text)
    if pair is None:
        return Answer(NOT_PARSABLE)
    row, col = _distribution(pair["row"], m), _distribution(pair["col"], n)
    return Answer(NOT_DISTRIBUTION) if row is None or col is None else Answer(VALID, row, col)


_NUMBER = r"(?:[0-9]{1,400}(?:\.[0-9]{0,400})?|\.[0-9]{1,400})"
_EXPONENT = r"(?:[eE][+-]?[0-9]{1,9})"
_ENTRY = re.compile(
    rf"([+-]?)(?:(nan|inf|infinity)|({_NUMBER}{_EXPONENT}?)(?:\s?(%)|\s?/\s?({_NUMBER}))?)",
    re.IGNORECASE,
)
# Bounded repeats keep the search linear in the length of any text.
_VECTOR = re.compile(
    r"(?<![A-Za-z0-9])(row|col(?:umn)?)s?(?![A-Za-z0-9])(?:[A-Za-z _\-'\u2019]{0,40})[\"'*`]{0,4}"
    r"\s{0,8}[:=]\s{0,8}[*`]{0,4}\s{0,8}[\[(]([^\[\](){}:=]{0,4000})[\])]",
    re.IGNORECASE,
)
_BETWEEN = re.compile(r"(?:[^A-Za-z0-9{}\[\]()]|\b(?:and|the)\b){0,200}", re.IGNORECASE)


def _last_pair(text: str) -> dict[str, list[float]] | None:
    """The numbers of the last two vectors beside each other that are one of each player."""
    found, open_vector = None, None
    for match in _VECTOR.finditer(text):
        numbers = _numbers(match[2])
        if numbers is None:
            open_vector = None
            continue
        player = match[1].lower()[:3]
        if open_vector is not None:
            other, before, end = open_vector
            if other != player and _BETWEEN.fullmatch(text, end, match.start()):
                found, open_vector = {other: before, player: numbers}, None
                continue
        open_vector = player, numbers, match.end()
    return found


def _numbers(inside: str) -> list[float] | None:
    """The numbers of a list, [] for an empty one, None where anything else stands in it."""
    inside = inside.replace("\u2212", "-").strip()
    parts = re.split(r"[,;]", inside) if re.search("[,;]", inside) else inside.split()
    if parts and not parts[-1].strip():
        parts.pop()  # a comma behind the last entry
    numbers = []
    for part in parts:
        match = _ENTRY.fullmatch(part.strip().strip("\"'`*").strip())
        if match is None:
            return None
        sign, special, decimal, percent, divisor = match.groups()
        number = math.nan if special else float(decimal)
        if percent:
            number /= 100
        if divisor:
            number = number / float(divisor) if float(divisor) else math.nan
        numbers.append(-number if sign == "-" else number)
    return numbers


def _distribution(numbers: list[float], count: int) -> tuple[float, ...] | None:
    # Written so that NaN fails; +0.0 for -0.0.
    if len(numbers) != count or not all(0 <= number < math.inf for number in numbers):
        return None
    total = sum(numbers)
    if not abs(total - 1) <= SUM_TOLERANCE + _ROUNDING:
        return None
    return tuple(abs(number) / total for number in numbers)


def _hundredths(name: str, strategy: Sequence[float]) -> str:
    probabilities = [float(probability) for probability in strategy]
    total = math.fsum(probabilities) if all(map(math.isfinite, probabilities)) else math.nan
    if not (probabilities and min(probabilities) >= 0 and abs(total - 1) <= 1e-6):
        raise ValueError(
            f"{name} must be probabilities that sum to 1, not {probabilities}; clip and divide by "
            "the sum first"
        )
    exact = [probability / total * UNITS for probability in probabilities]
    # A product one rounding below a whole number is that number.
    units = [math.floor(share + _ROUNDING) for share in exact]
    by_remainder = sorted(range(len(exact)), key=lambda k: (round(units[k] - exact[k], 9), k))
    for k in by_remainder[: UNITS - sum(units)]:
        units[k] += 1
    return ", ".join(f"{unit // UNITS}.{unit % UNITS:02d}" for unit in units)


def _formatter(payoffs: tuple[tuple[float, ...], ...]):
    """How one payoff of the table is printed."""
    cells = [cell for row in payoffs for cell in row]
    if all(abs(cell) < LARGEST_FIXED and round(cell, 2) == cell for cell in cells):
        return "{:+.2f}".format
    return lambda cell: ("+" if cell >= 0 else "") + repr(cell)


def _table(payoffs: Any) -> tuple[tuple[float, ...], ...]:
    """Payoffs as tuples of floats, zeros without a sign."""
    try:
        rows = [tuple(row) for row in payoffs]
        if any(isinstance(cell, str | bytes) for row in rows for cell in row):
            raise TypeError("text")
        table = tuple(tuple(float(cell) + 0.0 for cell in row) for row in rows)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"payoffs must be rows of numbers, not {repr(payoffs)[:200]}") from None
    lengths = sorted({len(row) for row in table})
    if not table or lengths[0] == 0 or len(lengths) > 1:
        raise ValueError(
            f"payoffs have {len(table)} rows of lengths {lengths}; give m rows of n numbers, m and "
            "n at least 1"
        )
    if not all(math.isfinite(cell) for row in table for cell in row):
        raise ValueError(f"payoffs hold NaN or infinity: {repr(payoffs)[:200]}")
    return table


def _labels(name: str, labels: Any, count: int) -> tuple[str, ...]:
    given = tuple(labels) if isinstance(labels, Iterable) else ()
    good = all(isinstance(label, str) and _is_one_line(label) for label in given)
    if not good or len(given) != count or len(set(given)) != count:
        raise ValueError(
            f"{name} must be {count} different labels of one line each, one an action, not "
            f"{labels!r}"
        )
    return given


def _is_one_line(text: str) -> bool:
    return text.strip() == text != "" and len(text.splitlines()) == 1


def _neutral(letter: str, count: int) -> tuple[str, ...]:
    return tuple(f"{letter}{number}" for number in range(1, count + 1))
