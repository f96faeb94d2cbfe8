"""Answers of mathematics: where they stand in a reply, their normal form, and which are equal at
sight.

What is not equal or different at sight is for a library (`sandbox.answers`). `plain_equal` says
what that library would say, and only where that is certain.
"""

import re
from fractions import Fraction

MAX_ANSWER = 1000  # characters; no answer that is asked for is nearly as long
_BRACES = re.compile(r"\\(?:boxed|fbox)\s*\{|\\.|[{}]", re.DOTALL)
_NAMED = re.compile(
    r"^[\s*_#>]*(?:the\s+)?(?:final\s+)?answer\b(?:\s+is\b)?[\s*_]*[:=]?[\s*_]*(.*)$", re.IGNORECASE
)
# What only says how an answer looks. Two backslashes, which end a row of a matrix, are taken first:
# the second one begins no command. In "10,\!080" as in "10\,080" the digits are of one number.
_GLUED = re.compile(
    r"(\\\\)|\\(?:left|right)(?![A-Za-z])|(?<=[0-9])\\[,!;:](?=[0-9]{3})"
    r"|(?<=[0-9],)(?:\\!\s*)+(?=[0-9]{3})"
)
_LAYOUT = re.compile(r"(\\\\)|\\(?:(?:displaystyle|limits)(?![A-Za-z])|[!,;: ])")
_FRACTION = re.compile(r"(\\\\)|\\[dtc]frac(?![A-Za-z])")
_BRACKETED = (("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]"))
_INTEGER = re.compile(r"[+-]?[0-9]{1,40}")
_QUOTIENT = re.compile(r"([+-]?[0-9]{1,40})/([0-9]{1,40})")
_LATEX_QUOTIENT = re.compile(r"([+-]?)\\frac\{([+-]?[0-9]{1,40})\}\{([0-9]{1,40})\}")
_DECIMAL = re.compile(r"[+-]?[0-9]{1,15}\.[0-9]{1,15}")


def final_answer(reply: str) -> str | None:
    """The answer that a reply ends with, in normal form; None where it gives none.

    It stands in the last \\boxed{...}, else in the last <answer> tag, else on the last line that
    begins with "Answer:", "The answer is" and the like. What is longer than `MAX_ANSWER` is none.
    """
    boxes = _boxes(reply)
    found = reply[slice(*boxes[-1][1:])] if boxes else None
    if found is None:
        found = last_tagged("answer", reply)
    if found is None:
        named = [match[1] for line in reply.splitlines() if (match := _NAMED.match(line))]
        found = named[-1] if named else None
    if found is None or len(found) > MAX_ANSWER:
        return None
    return normal_form(as_text(found)) or None


def last_tagged(name: str, reply: str) -> str | None:
    """What stands between the last pair of tags <name>...</name>; None where there is no pair."""
    begin, found = None, None
    for tag in re.finditer(rf"<(/?){name}>", reply, re.IGNORECASE):
        if not tag[1]:
            begin = tag.end() if begin is None else begin
        elif begin is not None:
            begin, found = None, reply[begin : tag.start()]
    return found


def as_text(reply: str) -> str:
    """A reply with "?" for half surrogate pairs, which are no text and could not be recorded."""
    return reply.encode("utf-8", "replace").decode()


def _boxes(text: str) -> list[tuple[int, int, int]]:
    """Boxes whose braces close: where each begins, where its contents begin and end."""
    open_braces: list[tuple[int, int] | None] = []
    found = []
    for token in _BRACES.finditer(text):
        if token[0].endswith("{") and token[0] != "\\{":
            open_braces.append((token.start(), token.end()) if len(token[0]) > 1 else None)
        elif token[0] == "}" and open_braces and (box := open_braces.pop()):
            found.append((*box, token.start()))
    return sorted(found)


def normal_form(answer: str) -> str:
    """An answer without what changes nothing of it: delimiters of mathematics, an outer box,
    spacing, sizes of brackets and fractions, a full stop at its end, typographic minus signs.

    The normal form of a normal form is itself.
    """
    text, before = answer, None
    while text != before:
        before = text
        text = _replaced(_LAYOUT, " ", _replaced(_GLUED, "", text))
        text = text.replace("\u2212", "-").replace("\u2013", "-")
        text = " ".join(_replaced(_FRACTION, r"\frac", text).split())
        text = text.rstrip(".").strip("*` ")
        for opening, closing in _BRACKETED:
            inner = text[len(opening) : len(text) - len(closing)]
            if text.startswith(opening) and text.endswith(closing) and opening not in inner:
                text = inner if len(text) >= len(opening) + len(closing) else text
        whole = [box for box in _boxes(text) if (box[0], box[2] + 1) == (0, len(text))]
        if whole:
            text = text[slice(*whole[0][1:])]
    return text


def _replaced(pattern: re.Pattern[str], by: str, text: str) -> str:
    """The text with matches replaced, but for those of the first group, which stay."""
    return pattern.sub(lambda match: match[1] or by, text)


def plain_number(answer: str) -> Fraction | None:
    """The value of a whole number or of a quotient of two, such as "-3/4" or "\\frac{1}{2}", in
    normal form; None for anything else."""
    if _INTEGER.fullmatch(answer):
        return Fraction(int(answer))
    match, sign = _QUOTIENT.fullmatch(answer), ""
    parts = match.groups() if match else None
    if parts is None and (match := _LATEX_QUOTIENT.fullmatch(answer)):
        sign, *parts = match.groups()
        if sign and parts[0][0] in "+-":
            return None
    if parts is None or not int(parts[1]):
        return None
    value = Fraction(int(parts[0]), int(parts[1]))
    return -value if sign == "-" else value


def plain_equal(reference: str, answer: str) -> bool | None:
    """Whether two answers in normal form are equal, where that can be seen; None elsewhere.

    It is seen of whole numbers and their quotients, which are exact, and of a decimal number that
    is written the same twice. Other decimals are equal within a tolerance, and left alone.
    """
    left, right = plain_number(reference), plain_number(answer)
    if left is not None and right is not None:
        return left == right
    if reference == answer and _DECIMAL.fullmatch(answer):
        return True
    return None
