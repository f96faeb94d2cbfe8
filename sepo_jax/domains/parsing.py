"""Reading one action word out of free text: the word stands on the last non-empty line.

The rule is the same for every domain with named actions. It never guesses: a line that names no
action, two actions, an action that is not allowed here, or that negates it ("do not BET") gives
None, and so does a word that is only part of another word ("BETTING", "non-BET").
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
    if any(unicodedata.category(character) == "Cf" for character in line):
        return None
    words = [word.strip("_") for word in _WORD.findall(line)]
    upper = [word.upper() for word in words if word.isascii()]
    if _CONTRACTION.search(line) or (_NEGATIONS | _SHORTENED_NOT).intersection(upper):
        return None
    named = {*legal, *known}.intersection(upper)
    if len(named) != 1:
        return None
    word = named.pop()
    if re.search(rf"\w{_HYPHEN}{word}|{word}{_HYPHEN}\w", line, re.IGNORECASE):
        return None
    return list(legal).index(word) if word in legal else None
