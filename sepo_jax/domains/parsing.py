"""Reading one action word out of free text: the word stands on the last non-empty line.

The rule is the same for every domain with named actions. It never guesses: a line that names no
action, two actions, an action that is not allowed here, or that negates it ("do not BET") gives
None, and so does a word that is only part of another word ("BETTING").
"""

import re
from collections.abc import Sequence

_NEGATIONS = frozenset(
    ["NOT", "NO", "NEVER", "CANNOT", "DONT", "WONT", "NEITHER", "NOR", "WITHOUT"]
)
_WORD = re.compile(r"\w+")
_CONTRACTION = re.compile(r"n['’]t\b", re.IGNORECASE)


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
    Only ASCII letters match, so that no Unicode case folding can create a word.
    """
    line = last_line(text)
    words = [word.strip("_") for word in _WORD.findall(line)]
    upper = [word.upper() for word in words if word.isascii()]
    if _CONTRACTION.search(line) or _NEGATIONS.intersection(upper):
        return None
    named = {*legal, *known}.intersection(upper)
    if len(named) != 1:
        return None
    word = named.pop()
    return list(legal).index(word) if word in legal else None
