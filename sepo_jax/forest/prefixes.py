"""Prompts that begin alike, computed once: a packing in which roots share their common tokens.

Prompts of one task mostly repeat its rules and differ at the end. For packing alone, their common
beginning becomes a given segment of its own with the rest of each prompt below it, and so on down.
What the forest means (its trees, groups and credit) is untouched: the batch refers to the forest
that was given.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from sepo_jax.forest.batch import Batch
from sepo_jax.forest.data import (
    NO_EPISODE,
    NO_EVENT,
    NO_PARENT,
    SEGMENT_FIELDS,
    TOKEN_FIELDS,
    Forest,
)
from sepo_jax.forest.packing import pack


class Merged(NamedTuple):
    """A forest laid out for packing.

    Attributes:
      forest: with shared beginnings as segments; its groups mean nothing.
      token: token of the original forest that each token is, int32.
      segment: segment of the original forest, int32; -1 where several begin alike.
    """

    forest: Forest
    token: np.ndarray
    segment: np.ndarray


def pack_sharing_prefixes(
    forest: Forest,
    *,
    row_length: int,
    parts: int | None = None,
    at_least: Mapping[str, int] | None = None,
) -> Batch:
    """`pack` with the common beginnings of prompts once in a row.

    Every action token has the context it has under `pack`, at the same positions, and the indices
    refer to `forest`; columns of a shared beginning to the first prompt that has it. Such a batch
    cannot be unpacked. Forests with events in several parts are packed as they are: the trees of an
    event must stay together, and merging would bind all of them.

    Args and errors: of `pack`.
    """
    forest.validate()
    if (parts or 1) > 1 and (forest.event != NO_EVENT).any():
        return pack(forest, row_length=row_length, parts=parts, at_least=at_least)
    merged = merge_prefixes(forest)
    batch = pack(merged.forest, row_length=row_length, parts=parts, at_least=at_least)
    number = np.full(forest.num_segments, -1, np.int32)
    leaves = forest.leaves()
    number[leaves] = np.arange(len(leaves))
    leaf = number[merged.segment[merged.forest.leaves()]]
    tables = {
        "column_index": merged.token,
        "token_index": merged.token,
        "segment_index": merged.segment,
        "path_index": leaf,
    }

    def translate(index, table):
        return np.where(index < 0, -1, np.append(table, -1)[index]).astype(np.int32)

    return batch.replace(**{name: translate(batch[name], table) for name, table in tables.items()})


def merge_prefixes(forest: Forest) -> Merged:
    """The forest with the common beginnings of its roots as segments above them.

    Of every root at least one token stays its own, so that no segment is empty.
    """
    roots = np.flatnonzero(forest.parent == NO_PARENT)
    spans = {int(root): forest.segment_tokens(root).tolist() for root in roots}
    layout = _Layout(forest)
    order = sorted(spans, key=spans.__getitem__)
    layout.add_roots(order, spans)
    layout.add_rest()
    return layout.result()


class _Layout:
    """Segments in the order they are laid out, parents first."""

    def __init__(self, forest: Forest):
        self.forest = forest
        self.segment: list[int] = []
        self.parent: list[int] = []
        self.token: list[np.ndarray] = []
        self.place: dict[int, int] = {}  # of each original segment

    def _add(self, segment: int, parent: int, first: int, end: int) -> int:
        self.segment.append(segment)
        self.parent.append(parent)
        self.token.append(np.arange(first, end))
        return len(self.segment) - 1

    def add_roots(self, roots: list[int], spans: dict[int, list[int]]) -> None:
        """Places roots, given sorted by their tokens, below what they share."""
        pending = [(roots, 0, NO_PARENT)]
        while pending:
            roots, done, parent = pending.pop()
            for alike in _runs(roots, spans, done):
                first = alike[0]
                begin, end = (int(self.forest.offsets[first + i]) for i in (0, 1))
                if len(alike) == 1:
                    self.place[first] = self._add(first, parent, begin + done, end)
                    continue
                # Sorted, so what the outermost two share, all do.
                shared = _common(spans[first], spans[alike[-1]], done)
                shared = min(shared, *(len(spans[root]) - 1 for root in alike))
                above = self._add(-1, parent, begin + done, begin + shared)
                pending.append((alike, shared, above))

    def add_rest(self) -> None:
        """Places every segment that is no root, in order."""
        offsets = self.forest.offsets
        for segment, parent in enumerate(self.forest.parent.tolist()):
            if parent != NO_PARENT:
                place = self._add(
                    segment, self.place[parent], int(offsets[segment]), int(offsets[segment + 1])
                )
                self.place[segment] = place

    def result(self) -> Merged:
        segment = np.array(self.segment, np.int32)
        token = np.concatenate([np.zeros(0, int), *self.token]).astype(np.int32)
        fields = {name: getattr(self.forest, name)[token] for name in TOKEN_FIELDS}
        blank = {"episode": NO_EPISODE, "event": NO_EVENT}
        for name, dtype in SEGMENT_FIELDS.items():
            values = np.append(getattr(self.forest, name), np.array(blank.get(name, 0), dtype))
            fields[name] = values[segment].astype(dtype)
        fields["parent"] = np.array(self.parent, np.int32)
        fields["group"] = np.zeros(len(segment), np.int32)
        lengths = [len(piece) for piece in self.token]
        offsets = np.cumsum([0, *lengths]).astype(np.int32)
        return Merged(Forest(**fields, offsets=offsets), token, segment)


def _runs(roots: list[int], spans: dict[int, list[int]], done: int) -> list[list[int]]:
    """Sorted roots cut into runs that may share their token number `done`.

    A root that ends with that token keeps it and shares nothing.
    """
    runs: list[list[int]] = []
    for root in roots:
        last = spans[runs[-1][0]] if runs else []
        both_go_on = min(len(last), len(spans[root])) > done + 1
        if both_go_on and last[done] == spans[root][done]:
            runs[-1].append(root)
        else:
            runs.append([root])
    return runs


def _common(first: list[int], second: list[int], start: int) -> int:
    """Number of leading tokens that two prompts share, given that `start` of them are equal."""
    limit = min(len(first), len(second))
    while start < limit and first[start] == second[start]:
        start += 1
    return start
