"""Reading an action out of free text: a word, or numbers, on the last non-empty line.

The rules are the same for every domain. They never guess: a line that names no action, two
actions, an action that is not allowed here, or that negates it ("do not BET") gives None, and so
does a word or number that is only part of another ("BETTING", "non-BET", "-5", "5.5").
"""

import re
import unicodedata
from collections.abc import Sequence

_NEGATIONS = frozenset(["NOT", "NO", "NON", "NEVER", "CANNOT", "NEITHER", "NOR", "WITHOUT"])
_VERBS = (
    *("AI", "ARE", "CA", "COULD", "DID", "DO", "DOES", "HAD", "HAS", "HAVE", "IS", "MIGHT"),
    *("MUST", "NEED", "SHA", "SHOULD", "WAS", "WERE", "WO", "WOULD"),
)
_SHORTENED_NOT = frozenset(f"{verb}NT" for verb in _VERBS)
# Combining marks and variation selectors belong to the letter before them.
_WORD = re.compile(r"[\w\u0300-\u036f\ufe00-\ufe0f]+")
# Whatever stands for the apostrophe: writers and keyboards have many.
_CONTRACTION = re.compile(r"n[^a-z0-9\s]+t\b", re.IGNORECASE)
# Words that make another number of the one beside them, or leave it open.
_ALTERING = frozenset(
    [
        *("MINUS", "NEGATIVE", "PLUS", "HALF", "POINT", "THAN", "OR", "EXCEPT", "PERCENT"),
        *("HUNDRED", "THOUSAND", "MILLION"),
    ]
)
_NUMBER = "(?:0|[1-9][0-9]{0,8})"
# A comma with three digits glued to it may be one of thousands.
_SEPARATOR = r"(?:\s*;\s*|\s*,\s+|\s*,(?![0-9]{3}(?![0-9]))|\s+)"
_ENUMERATOR = re.compile(r"[\s*_]*[0-9]+[.)]\s+[^\s*_`]")
_SPACE = " \t\xa0"
_MARKUP = "*_`\"'"
_HYPHEN = r"[-\u2010\u2011\ufe63\uff0d]"


def last_line(text: str) -> str:
    """The last line of `text` that holds anything but white space; "" when there is none."""
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def parse_word(text: str, legal: Sequence[str], known: Sequence[str] = ()) -> int | None:
    """Index in `legal` of the one action word on the last non-empty line, or None.

    Args:
      text: any completion.
      legal: upper-case ASCII action words allowed here.
      known: every action word of the domain; a line that also names one of these that is not
        allowed here is ambiguous and gives None.

    Upper and lower case, surrounding punctuation and markup ("**Bet.**", "Action: bet") are fine.
    Only ASCII letters match, so that no Unicode case folding can create a word. Invisible format
    characters (zero-width spaces, say) can hide or split one: a line that holds any gives None.
    """
    line = last_line(text)
    words = _affirmed_words(line)
    if words is None:
        return None
    named = {*legal, *known}.intersection(words)
    if len(named) != 1:
        return None
    word = named.pop()
    if re.search(rf"\w{_HYPHEN}{word}|{word}{_HYPHEN}\w", line, re.IGNORECASE):
        return None
    return list(legal).index(word) if word in legal else None


def parse_numbers(text: str, count: int) -> tuple[int, ...] | None:
    """The `count` whole numbers that stand on the last non-empty line, or None.

    Args:
      text: any completion.
      count: how many numbers the line must hold, and no digit besides; at least 1.

    They stand in a row, parted by white space, commas or semicolons ("[1, 2, 0]", "1 2 0"); words,
    punctuation and markup around the row are fine ("I demand **5**."). Only plain ASCII digits of
    at most nine places count, without leading zeros. Anything that may mean another number gives
    None: a sign or dash ("-5", "- 5"), a decimal, fraction, per cent or comma of thousands, a digit
    glued to a letter ("5th", "x5"), another script's digits, a list marker ("1. Take all"), a
    negation ("not 5"), a word such as "minus", "half", "or", "than", an invisible character.

    Raises:
      ValueError: count is below 1.
    """
    if count < 1:
        raise ValueError(f"count must be at least 1, not {count}")
    line = last_line(text)
    words = _affirmed_words(line)
    if words is None or _ALTERING.intersection(words) or _ENUMERATOR.match(line):
        return None
    if any(not char.isascii() and unicodedata.numeric(char, None) is not None for char in line):
        return None
    row = rf"{_NUMBER}(?:{_SEPARATOR}{_NUMBER}){{{count - 1}}}"
    match = re.fullmatch(rf"([^0-9]*)({row})([^0-9]*)", line)
    if match is None or not (_may_precede(match[1]) and _may_follow(match[3])):
        return None
    return tuple(int(digits) for digits in re.findall("[0-9]+", match[2]))


def _affirmed_words(line: str) -> list[str] | None:
    """Upper-case ASCII words of a line; None when it negates something or hides characters."""
    if any(unicodedata.category(character) == "Cf" for character in line):
        return None
    words = [word.strip("_") for word in _WORD.findall(line)]
    upper = [word.upper() for word in words if word.isascii()]
    if _CONTRACTION.search(line) or (_NEGATIONS | _SHORTENED_NOT).intersection(upper):
        return None
    return upper


def _may_precede(before: str) -> bool:
    """Whether what stands before a row of numbers leaves them as they are."""
    rest = before.rstrip(_SPACE + _MARKUP + "([{\u201c\u2018")
    if not rest or rest[-1] in ":=":
        return True
    parted = any(char in _SPACE for char in before[len(rest) :])
    return parted and (rest[-1].isalpha() or rest[-1] in ".,;!?)]}")


def _may_follow(after: str) -> bool:
    """Whether what stands behind a row of numbers leaves them as they are."""
    rest = after.lstrip(_SPACE + _MARKUP + ")]}\u201d\u2019")
    if not rest:
        return True
    if rest[0] in ".,;:!?":
        return not rest[1:2].isalnum()
    parted = any(char in _SPACE for char in after[: len(after) - len(rest)])
    return parted and (rest[0].isalpha() or rest[0] == "(")
