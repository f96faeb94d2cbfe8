"""Where the segments of a tree stand on a page: turns from left to right, a row for each leaf.

The trunk of a tree is its first row; what forks from it lies below, the forks of its last branch
point first, so that no line crosses another.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

COMPACT_FROM = 17  # leaves from which a row holds one line
_CHARACTER, _PADDING = 7.3, 20  # width of a letter of an action, and of what surrounds its text
_GIVEN_WIDTH, _GAP, _HEADER = 34, 8, 46


class _Sizes(NamedTuple):
    """Pixels: of a row, its boxes, and what is around their text."""

    row: int
    height: int
    point: int  # width of a branch point
    least: int  # width of an action
    most: int
    beside: int  # letters of an action's line that are not its text


_SIZES = {False: _Sizes(56, 42, 70, 108, 204, 1), True: _Sizes(32, 26, 98, 100, 190, 7)}


class Box(NamedTuple):
    """A segment's place in pixels; `row` counts from 0."""

    x: float
    y: float
    width: float
    height: float
    row: int

    @property
    def middle(self) -> float:
        """Height of the line that leads to it."""
        return self.y + self.height / 2


class Layout(NamedTuple):
    """A drawn tree.

    Attributes:
      boxes: of each segment. rows: number of leaves.
      turns: (x, width) of the actions of each turn.
      width, height: of everything. header: height of the names of turns. row: height of a row.
      compact: whether an action has one line.
    """

    boxes: list[Box]
    rows: int
    turns: list[tuple[float, float]]
    width: float
    height: float
    header: float
    row: float
    compact: bool


def children_of(segments: Sequence[Mapping[str, Any]]) -> list[list[int]]:
    """Children of each segment of a record, in order."""
    children: list[list[int]] = [[] for _ in segments]
    for number, segment in enumerate(segments):
        if segment["parent"] >= 0:
            children[segment["parent"]].append(number)
    return children


def lay_out(segments: Sequence[Mapping[str, Any]]) -> Layout:
    """Places the segments of a record; see `tree_record`."""
    children = children_of(segments)
    rows, turns = _rows(segments, children), _turns(segments, children)
    count = max(rows, default=-1) + 1
    compact = count >= COMPACT_FROM
    sizes = _SIZES[compact]
    row, height = sizes.row, sizes.height
    given, action = _widths(segments, children, turns, sizes)
    x, left, places = _GAP, [], []
    for before, width in zip(given, action, strict=True):
        left.append(x)
        x += before + _GAP
        places.append((x, width))
        x += width + (_GAP if width else 0)
    boxes = []
    for number, segment in enumerate(segments):
        turn = turns[number]
        y = _HEADER + rows[number] * row + (row - height) / 2
        if segment["kind"] == "action":
            boxes.append(Box(places[turn][0], y, action[turn], height, rows[number]))
            continue
        wide = sizes.point if len(children[number]) > 1 else _GIVEN_WIDTH
        start = left[turn] + given[turn] - wide
        boxes.append(Box(start, y, wide, height, rows[number]))
    whole = _HEADER + count * row
    return Layout(boxes, count, places, x, whole, _HEADER, row, compact)


def _rows(segments, children) -> list[int]:
    """A first child stands in its parent's row, every other begins the next free one."""
    rows, used = [0] * len(segments), 0
    pending = [(number, None) for number, s in enumerate(segments) if s["parent"] < 0][::-1]
    while pending:
        number, row = pending.pop()
        if row is None:
            row, used = used, used + 1
        rows[number] = row
        below = [(child, None if place else row) for place, child in enumerate(children[number])]
        pending += below[::-1]
    return rows


def _turns(segments, children) -> list[int]:
    """Column of each segment: actions above it on its path."""
    turns = []
    for segment in segments:
        parent = segment["parent"]
        above = 0
        if parent >= 0:
            above = turns[parent] + (segments[parent]["kind"] == "action")
        turns.append(above)
    return turns


def _widths(segments, children, turns, sizes) -> tuple[list[float], list[float]]:
    """Widths of what is given and of the actions, by turn."""
    count = max(turns, default=-1) + 1
    given, action = [0.0] * count, [0.0] * count
    for number, segment in enumerate(segments):
        turn = turns[number]
        if segment["kind"] == "given":
            wide = sizes.point if len(children[number]) > 1 else _GIVEN_WIDTH
            given[turn] = max(given[turn], wide)
            continue
        letters = len(segment["text"].strip()) + sizes.beside
        letters += 2 if segment["leaves"] > 1 else 0
        wide = min(max(letters * _CHARACTER + _PADDING, sizes.least), sizes.most)
        action[turn] = max(action[turn], wide)
    return given, action
