"""Actions of repository repair, read out of free text, and what an edit does to a file.

The last action of a reply counts; whatever stands before it is reasoning. An action is a line
("run: ls", "edit a.py: x -> y", "submit"), a block of shell code, or a line "edit a.py" with the
old and the new text below it between conflict markers.
"""

import itertools
import re
from dataclasses import dataclass

FORMS = "run: COMMAND", "edit FILE: OLD -> NEW", "submit"
_SHELLS = ("bash", "sh", "shell", "console", "run")
_FENCE = re.compile(r"\s*(`{3,}|~{3,})\s*(\w*)\s*")
# What may stand before an action on its line: a list marker, a label, emphasis.
_BEFORE = r"^[\s>*_`$-]*(?:\d+[.)]\s+)?(?:(?:final\s+|next\s+)?action\s*:[\s*_]*)?[*_`]*"
_RUN = re.compile(_BEFORE + r"(?:run\b|bash\b|sh\b)[*_`]*\s*:?[*_`]*(?=\s|$)(.*)$", re.IGNORECASE)
_EDIT = re.compile(_BEFORE + r"edit\b[*_`]*\s*:?\s+(.*)$", re.IGNORECASE)
_SUBMIT = re.compile(_BEFORE + r"submit(?:\(\))?[\s.!*_`]*$", re.IGNORECASE)
_ARROW = re.compile(r"(?:(?<=\s)|^)->(?=\s|$)")
_MOST_NESTED = 4  # blocks of code within each other that are read
_MOST_ARROWS = 32  # of a line that may part old from new
_MARKERS = re.compile(r"<{5,}"), re.compile(r"={5,}\s*$"), re.compile(r">{5,}")


@dataclass(frozen=True)
class Run:
    """A shell command."""

    command: str


@dataclass(frozen=True)
class Edit:
    """Text in place of other text.

    Attributes:
      path: of the file, as it was written.
      readings: (old, new) in every way the reply can be read, that of the longest old text first;
        the text of the file decides.
    """

    path: str
    readings: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Submit:
    """The end of the episode."""


Action = Run | Edit | Submit


class EditRefused(ValueError):
    """An edit that a file does not allow; the message is what the agent is told."""


def parse_action(reply: str) -> Action | None:
    """The last action of a reply; None where there is none."""
    return _last_action(reply.splitlines(), _MOST_NESTED)


def _last_action(lines: list[str], nested: int) -> Action | None:
    """The last action of lines in which blocks of code are `nested` deep at most."""
    found, at = None, 0
    while at < len(lines):
        action, at = _action_at(lines, at, nested)
        found = action or found
    return found


def _action_at(lines: list[str], at: int, nested: int) -> tuple[Action | None, int]:
    """The action that begins on a line, if one does, and the line after it."""
    line = lines[at]
    if match := _FENCE.fullmatch(line):
        end = _end_of_fence(lines, at)
        return _fenced(match[2].lower(), lines[at + 1 : end], nested), end + 1
    if _SUBMIT.match(line):
        return Submit(), at + 1
    if match := _EDIT.match(line):
        return _edit_at(match[1].strip(), lines, at + 1)
    if match := _RUN.match(line):
        command = _unwrapped(match[1].strip())
        if command:
            return Run(command), at + 1
        if at + 1 < len(lines) and _FENCE.fullmatch(lines[at + 1]):
            end = _end_of_fence(lines, at + 1)
            return _fenced("run", lines[at + 2 : end], nested), end + 1
    return None, at + 1


def _end_of_fence(lines: list[str], at: int) -> int:
    """The line that closes the block of code opened on line `at`, or the number of lines."""
    mark = lines[at].strip()[:3]
    for end in range(at + 1, len(lines)):
        match = _FENCE.fullmatch(lines[end])
        if match and match[1].startswith(mark) and not match[2]:
            return end
    return len(lines)


def _fenced(language: str, inside: list[str], nested: int) -> Action | None:
    """The action of a block of code: one that is written out there, else a command in a shell's."""
    text = "\n".join(inside)
    written = _last_action(inside, nested - 1) if nested else None
    if written is not None and not (language in _SHELLS and isinstance(written, Run)):
        return written
    command = text.strip()
    if language not in _SHELLS or not command:
        return written
    # "run: ls" in a block of shell code is meant, not a program called "run:".
    return written if isinstance(written, Run) and len(command.splitlines()) == 1 else Run(command)


def _edit_at(rest: str, lines: list[str], at: int) -> tuple[Action | None, int]:
    """An edit whose line goes on with `rest`; its text may stand below, from line `at` on."""
    block = at
    while block < len(lines) and (_FENCE.fullmatch(lines[block]) or not lines[block].strip()):
        block += 1
    if block < len(lines) and _MARKERS[0].match(lines[block].strip()):
        middle = _find(lines, block + 1, _MARKERS[1])
        end = _find(lines, middle + 1, _MARKERS[2])
        if end < len(lines):
            old, new = lines[block + 1 : middle], lines[middle + 1 : end]
            path = _unwrapped(rest.rstrip(":").strip())
            after = end + 1
            if after < len(lines) and _FENCE.fullmatch(lines[after]):
                after += 1
            return Edit(path, (("\n".join(old), "\n".join(new)),)), after
    match = re.match(r"([`'\"]?)([^\s:`'\"]+)\1\s*:?\s+(.*)$", rest)
    if match is None:
        return None, at
    text = match[3]
    readings = []
    for arrow in itertools.islice(_ARROW.finditer(text), _MOST_ARROWS):
        old, new = text[: arrow.start()].strip(), text[arrow.end() :].strip()
        if old:
            readings.append((old, new))
    readings.reverse()  # the longest old text first
    readings += [_bare(*pair) for pair in readings if _bare(*pair) != pair]
    return (Edit(match[2], tuple(readings)) if readings else None), at


def _find(lines: list[str], start: int, marker: re.Pattern) -> int:
    """The first line from `start` on with a marker; the number of lines where there is none, or
    another block of old text opens before it."""
    for at in range(start, len(lines)):
        line = lines[at].strip()
        if marker.match(line):
            return at
        if _MARKERS[0].match(line):
            break
    return len(lines)


def _unwrapped(text: str) -> str:
    """Text without one pair of backquotes around it."""
    wrapped = len(text) > 1 and text[0] == text[-1] == "`" and "`" not in text[1:-1]
    return text[1:-1].strip() if wrapped else text.rstrip("`") if text.count("`") == 1 else text


def _bare(old: str, new: str) -> tuple[str, str]:
    """Both texts without the quotes around them, where both have the same."""
    for quote in "`\"'":
        if all(len(text) > 1 and text[0] == text[-1] == quote for text in (old, new)):
            return old[1:-1], new[1:-1]
    return old, new


def apply_edit(text: str, edit: Edit) -> tuple[str, int]:
    """The file's text after an edit, and the number of the first line that it changed.

    Of several readings the first counts whose old text stands in the file exactly once.

    Raises:
      EditRefused: there is none, or it changes nothing.
    """
    for old, new in edit.readings:
        if old and text.count(old) == 1:
            if old == new:
                raise EditRefused("old and new text are the same")
            place = text.index(old)
            return text[:place] + new + text[place + len(old) :], text.count("\n", 0, place) + 1
    count = max(text.count(old) if old else 0 for old, _ in edit.readings)
    if count > 1:
        raise EditRefused(f"old text occurs {count} times in {edit.path}; give more of the line")
    raise EditRefused(f"old text is not in {edit.path}; copy it exactly")
