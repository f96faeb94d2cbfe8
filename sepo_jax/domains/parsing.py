"""Reading an action out of free text: a word, or numbers, on the last non-empty line.

A line that only closes a block of code or a tag ("```", "</answer>") is passed over.

The rules are the same for every domain. They never guess: a line that names no action, two
actions, an action that is not allowed here, or that negates it ("do not BET") gives None, and so
does a word or number that is only part of another ("BETTING", "non-BET", "-5", "5.5").
"""

import re
import unicodedata
from collections.abc import Sequence

_NEGATIONS = frozenset(
    [
        *("NOT", "NO", "NON", "NEVER", "CANNOT", "NEITHER", "NOR", "WITHOUT"),
        *("REFUSE", "AVOID", "INSTEAD", "ANYTHING"),
    ]
)
# Struck out, or negated by a sign.
_STRUCK = re.compile(r"~~|</?(?:s|del|strike)>|\u00ac|\u2260|!=|!\w", re.IGNORECASE)
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
        *("HUNDRED", "THOUSAND", "MILLION", "BILLION", "CENT", "DOUBLE", "TWICE", "ABOVE", "BELOW"),
    ]
)
_NUMBER = "(?:0|[1-9][0-9]{0,8})"
# A comma with three digits glued to it may be one of thousands.
_SEPARATOR = r"(?:\s*;\s*|\s*,\s+|\s*,(?![0-9]{3}(?![0-9]))|\s+)"
_ROW_SEPARATOR = "(?: ?,? ?(?:and|&) | ?[,;] ?| )"
_ENUMERATOR = re.compile(r"[\s*_]*[0-9]+[.)]\s+[^\s*_`]")
_SPACE = " \t\xa0"
_MARKUP = "*_`\"'"
_OPENING = "([{\u201c\u2018\u00ab\u300c\u300e\u3010\uff08"
_CLOSING = ")]}\u201d\u2019\u00bb\u300d\u300f\u3011\uff09"
_HYPHEN = r"[-\u2010\u2011\ufe63\uff0d]"
_CLOSING_LINE = re.compile(r"\s*(?:`{3,}|~{3,}|</[A-Za-z_]+>)\s*")
# What only says how its contents look: none of these strikes out, raises or negates.
_WRAPPERS = (
    r"^\s*#{1,6}\s",
    r"</?(?:final_)?(?:answer|action|move|bid|demand|b|strong|i|em|u|code|p|span)>",
    r"\\(?:boxed|fbox|text|textbf|textit|mathbf|mathrm)\s*(?=\{)",
    r"\\[()\[\]]",
)
_WRAPPER = re.compile("|".join(_WRAPPERS), re.IGNORECASE)
_MATHEMATICS = re.compile(r"(\${1,2})([^$a-z]*)\1", re.IGNORECASE)


def last_line(text: str) -> str:
    """The last line of `text` that holds anything but white space; "" when there is none.

    Lines behind it that only close a block of code or a tag do not count.
    """
    lines = [line for line in text.splitlines() if line.strip()]
    while len(lines) > 1 and _CLOSING_LINE.fullmatch(lines[-1]):
        lines.pop()
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
    punctuation and markup around the row are fine ("I demand **5**.", "$\\boxed{5}$"). Only plain
    ASCII digits of at most nine places count, without leading zeros. Anything that may mean another
    number gives None: a sign or dash ("-5", "- 5"), a decimal, fraction, per cent or comma of
    thousands, a digit glued to a letter ("5th", "x5"), another script's digits, a list marker
    ("1. Take all"), a negation ("not 5"), a word such as "minus", "half", "or", "than", an
    invisible character.

    Raises:
      ValueError: count is below 1.
    """
    if count < 1:
        raise ValueError(f"count must be at least 1, not {count}")
    line = _plain_line(text)
    row = _row_in(line, rf"{_NUMBER}(?:{_SEPARATOR}{_NUMBER}){{{count - 1}}}")
    return None if row is None else tuple(map(int, re.findall("[0-9]+", row)))


def parse_named_numbers(text: str, names: Sequence[str]) -> tuple[int, ...] | None:
    """The whole number beside each of `names` on the last non-empty line, or None.

    All names come before their numbers ("Books: 1, Hats: 2, Balls: 0") or all behind them ("1 book,
    2 hats and 0 balls"), each once, in any order, and no other digit stands on the line. Upper and
    lower case are the same, and an s at the end of a name may be missing. For the numbers and for
    what stands around the row, the rules are those of `parse_numbers`.

    Args:
      text: any completion.
      names: different words of ASCII letters.

    Returns:
      The numbers in the order of `names`.
    """
    # Without markup and runs of blanks, which would make the search slow.
    line = re.sub(r"[\s*_`\"'{}]+", " ", _plain_line(text))
    stems = [name.lower().removesuffix("s") for name in names]
    name = rf"(?:{'|'.join(map(re.escape, stems))})s?"
    for pair in (rf"\b{name}(?: ?[:=] ?| ){_NUMBER}", rf"{_NUMBER} {name}\b"):
        row = _row_in(line, rf"{pair}(?:{_ROW_SEPARATOR}{pair}){{{len(names) - 1}}}")
        if row is None:
            continue
        found = [word.lower().removesuffix("s") for word in re.findall(name, row, re.IGNORECASE)]
        numbers = dict(zip(found, map(int, re.findall("[0-9]+", row)), strict=True))
        return tuple(numbers[stem] for stem in stems) if len(numbers) == len(names) else None
    return None


def named_in_order(text: str, names: Sequence[str]) -> bool:
    """Whether those of `names` that stand on the last non-empty line stand in the order given."""
    line = last_line(text).lower()
    places = [line.find(name.lower().removesuffix("s")) for name in names]
    found = [place for place in places if place >= 0]
    return found == sorted(found)


def _plain_line(text: str) -> str:
    """The last line without what wraps it; "" where no number on it may be taken at its word."""
    line = last_line(text)
    words = _affirmed_words(line)
    if words is None or _ALTERING.intersection(words) or _ENUMERATOR.match(line):
        return ""
    if any(not char.isascii() and unicodedata.numeric(char, None) is not None for char in line):
        return ""
    # Markup in place of markup: what stood glued to a number still does.
    return _MATHEMATICS.sub(r"*\2*", _WRAPPER.sub("*", line))


def _row_in(line: str, row: str) -> str | None:
    """What matches the pattern `row`, where it holds all digits and stands by itself."""
    match = re.fullmatch(rf"([^0-9]*?)({row})([^0-9]*)", line, re.IGNORECASE)
    if match is None or not (_may_precede(match[1]) and _may_follow(match[3])):
        return None
    return match[2]


def _affirmed_words(line: str) -> list[str] | None:
    """Upper-case ASCII words of a line; None when it negates something or hides characters."""
    if any(unicodedata.category(character) == "Cf" for character in line):
        return None
    words = [word.strip("_") for word in _WORD.findall(line)]
    upper = [word.upper() for word in words if word.isascii()]
    struck = _CONTRACTION.search(line) or _STRUCK.search(line)
    if struck or (_NEGATIONS | _SHORTENED_NOT).intersection(upper):
        return None
    return upper


def _may_precede(before: str) -> bool:
    """Whether what stands before a row of numbers leaves them as they are."""
    rest = before.rstrip(_SPACE + _MARKUP + _OPENING)
    if not rest or rest[-1] in ":=\uff1a\u2022\u2192":
        return True
    parted = any(char in _SPACE for char in before[len(rest) :])
    return parted and (rest[-1].isalpha() or rest[-1] in ".,;!?)]}")


def _may_follow(after: str) -> bool:
    """Whether what stands behind a row of numbers leaves them as they are."""
    rest = after.lstrip(_SPACE + _MARKUP + _CLOSING)
    if not rest:
        return True
    if rest[0] in ".,;:!?\u3002":
        return not rest[1:2].isalnum()
    parted = any(char in _SPACE for char in after[: len(after) - len(rest)])
    return parted and (rest[0].isalpha() or rest[0] == "(")
