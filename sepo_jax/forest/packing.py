"""Packing: a forest into rows for a device, and back.

Packing many samples into a row and sharing a prefix between samples are one mechanism: a row holds
any segments closed under ancestors, and a token sees its own segment up to itself and the segments
above. A recurrent policy, which carries a state along the row, takes one path a row instead.
"""

import dataclasses
from collections.abc import Mapping

import numpy as np

from sepo_jax.forest.batch import Batch, bucket, empty_batch
from sepo_jax.forest.data import NO_EVENT, NO_PARENT, Forest


@dataclasses.dataclass
class _Chunk:
    """Leaf paths of one tree that fit into one row together."""

    segments: set[int]
    leaves: list[int]
    tokens: int


@dataclasses.dataclass
class _Row:
    segments: set[int] = dataclasses.field(default_factory=set)
    leaves: list[int] = dataclasses.field(default_factory=list)
    trees: set[int] = dataclasses.field(default_factory=set)
    tokens: int = 0


def pack(
    forest: Forest,
    *,
    row_length: int,
    rows: int | None = None,
    parts: int | None = None,
    at_least: Mapping[str, int] | None = None,
    one_path_per_row: bool = False,
) -> Batch:
    """Lays a forest out in rows.

    Leaf paths go into rows in depth-first order, a path never broken. A tree that does not fit into
    one row continues in another, which repeats the ancestors as context. Several trees share a row.
    Columns, segments, action tokens, paths and rows are padded up to `bucket` sizes.

    Args:
      forest: what to pack; validated first.
      row_length: most tokens a row may hold.
      rows: number of rows (of each part); by default the bucket of what is needed.
      parts: deal the rows into this many equal shares, one for each device or micro-batch, and put
        an axis of that size first: [parts, rows, ...]. None gives [rows, ...] without that axis.
          All members of an event
        go to one part; event ids are local to a part.
      at_least: smallest sizes by axis name (B, T, S, A, Q), such as `batch_sizes` of an earlier
        batch, so that shapes repeat.
      one_path_per_row: put every leaf path whole and alone into a row, its tokens in order from
        column 0; what several paths share is repeated, and primary once.

    Returns:
      A Batch with tokens, masks and indices set, every weight 1, and zeros for what `fill`
      provides.

    Raises:
      ValueError: a path longer than `row_length`, or more rows needed than `rows`.
    """
    forest.validate()
    units = _placing_units(forest, row_length, one_path_per_row)
    shares = _deal(forest, units, row_length, rows, parts or 1, one_path_per_row)
    sizes = _sizes(forest, shares, row_length, rows, dict(at_least or {}))
    packed = [_write_part(forest, share, sizes) for share in shares]
    _mark_primary(forest, packed)
    if parts is None:
        return packed[0]
    return Batch(**{name: np.stack([part[name] for part in packed]) for name in packed[0]})


def _chunks(forest: Forest, row_length: int, one_path: bool) -> list[_Chunk]:
    """Cuts every tree, leaves in depth-first order, into chunks of at most `row_length` tokens."""
    lengths, tree = forest.lengths(), forest.tree()
    chunks: list[_Chunk] = []
    current_tree = -1
    for leaf in _leaves_depth_first(forest):
        path = forest.path(leaf)
        whole = int(lengths[path].sum())
        if whole > row_length:
            raise ValueError(
                f"the path to leaf segment {leaf} has {whole} tokens, more than "
                f"row_length={row_length}; raise row_length or shorten the episodes"
            )
        if tree[leaf] == current_tree and not one_path:
            added = int(sum(lengths[s] for s in path if s not in chunks[-1].segments))
            if chunks[-1].tokens + added <= row_length:
                chunks[-1].segments.update(path)
                chunks[-1].leaves.append(leaf)
                chunks[-1].tokens += added
                continue
        chunks.append(_Chunk(set(path), [leaf], whole))
        current_tree = tree[leaf]
    return chunks


def _leaves_depth_first(forest: Forest) -> list[int]:
    children: list[list[int]] = [[] for _ in range(forest.num_segments)]
    roots = []
    for segment, parent in enumerate(forest.parent.tolist()):
        (roots if parent == NO_PARENT else children[parent]).append(segment)
    found, stack = [], roots[::-1]
    while stack:
        segment = stack.pop()
        if not children[segment]:
            found.append(segment)
        stack.extend(reversed(children[segment]))
    return found


def _placing_units(forest: Forest, row_length: int, one_path: bool) -> list[list[_Chunk]]:
    """Chunks that must go to the same part together, largest unit first.

    Trees joined by events of several members form one unit; otherwise each chunk is its own.
    """
    chunks = _chunks(forest, row_length, one_path)
    tree = forest.tree()
    joined = np.arange(forest.num_segments)

    def find(root: int) -> int:
        while joined[root] != root:
            root = joined[root]
        return root

    first_tree: dict[int, int] = {}
    bound = set()
    for segment in _joint_members(forest):
        here = find(tree[segment])
        there = find(first_tree.setdefault(int(forest.event[segment]), here))
        joined[max(here, there)] = min(here, there)
        bound.add(int(tree[segment]))
    units: dict[tuple[int, int], list[_Chunk]] = {}
    for number, chunk in enumerate(chunks):
        root = int(tree[chunk.leaves[0]])
        key = (find(root), -1) if root in bound else (root, number)
        units.setdefault(key, []).append(chunk)
    return sorted(units.values(), key=lambda unit: -sum(chunk.tokens for chunk in unit))


def _joint_members(forest: Forest) -> np.ndarray:
    """Segments that share their event with another one, int64 [n]."""
    members = np.flatnonzero(forest.event != NO_EVENT)
    _, inverse, count = np.unique(forest.event[members], return_inverse=True, return_counts=True)
    return members[count[inverse] > 1]


def _deal(
    forest: Forest,
    units: list[list[_Chunk]],
    row_length: int,
    rows: int | None,
    parts: int,
    one_path: bool,
) -> list[list[_Row]]:
    """Gives every unit to the least loaded part that has room for it, first fit within the part."""
    lengths, tree = forest.lengths(), forest.tree()
    shares: list[list[_Row]] = [[] for _ in range(parts)]
    load = [0] * parts
    for unit in units:
        tokens = sum(chunk.tokens for chunk in unit)
        for part in sorted(range(parts), key=load.__getitem__):
            placed = _place(shares[part], unit, lengths, tree, row_length, rows, one_path)
            if placed is not None:
                shares[part] = placed
                load[part] += tokens
                break
        else:
            events = "its trees share events and must stay in one part; " if len(unit) > 1 else ""
            raise ValueError(
                f"{tokens} tokens of the tree of segment {unit[0].leaves[0]} do not fit: {events}"
                f"each of {parts} parts has rows={rows} of row_length={row_length}; raise rows or "
                f"row_length, or lower parts"
            )
    return shares


def _place(
    share: list[_Row],
    unit: list[_Chunk],
    lengths: np.ndarray,
    tree: np.ndarray,
    row_length: int,
    rows: int | None,
    one_path: bool,
) -> list[_Row] | None:
    """The rows of a part with the chunks of a unit added, or None when they do not fit."""
    share = list(share)
    for chunk in unit:
        root = int(tree[chunk.leaves[0]])

        def added(row: _Row, chunk: _Chunk = chunk, root: int = root) -> int:
            # A row that already holds part of this tree needs only the rest.
            if root not in row.trees:
                return chunk.tokens
            return int(lengths[list(chunk.segments - row.segments)].sum())

        open_rows = [] if one_path else enumerate(share)
        fits = (n for n, row in open_rows if row.tokens + added(row) <= row_length)
        number = next(fits, len(share))
        if number == len(share):
            if rows is not None and len(share) >= rows:
                return None
            share.append(_Row())
        row = share[number]
        share[number] = _Row(
            segments=row.segments | chunk.segments,
            leaves=row.leaves + chunk.leaves,
            trees=row.trees | {root},
            tokens=row.tokens + added(row),
        )
    return share


def _sizes(
    forest: Forest,
    shares: list[list[_Row]],
    row_length: int,
    rows: int | None,
    at_least: dict[str, int],
) -> dict[str, int]:
    unknown = set(at_least) - set("BTSAQ")
    if unknown:
        raise ValueError(f"at_least names the axes B, T, S, A and Q; got {sorted(unknown)}")
    lengths = forest.lengths()
    every_row = [row for share in shares for row in share]

    def largest(count) -> int:
        return max((count(row) for row in every_row), default=0)

    def actions(row: _Row) -> int:
        return int(sum(lengths[s] for s in row.segments if forest.is_action[s]))

    sizes = {
        "B": rows if rows is not None else bucket(max(len(share) for share in shares)),
        "T": min(bucket(largest(lambda row: row.tokens)), row_length),
        "S": bucket(largest(lambda row: len(row.segments))),
        "A": min(bucket(largest(actions)), row_length),
        "Q": bucket(largest(lambda row: len(row.leaves))),
    }
    return {axis: max(size, at_least.get(axis, 0)) for axis, size in sizes.items()}


def _write_part(forest: Forest, share: list[_Row], sizes: dict[str, int]) -> Batch:
    batch = empty_batch(sizes)
    leaf_number = {int(leaf): number for number, leaf in enumerate(forest.leaves())}
    starts = forest.starts()
    local_events: dict[int, int] = {}
    for number, row in enumerate(share):
        view = {name: array[number] for name, array in batch.items()}
        _write_row(forest, row, view, starts, local_events)
        for place, leaf in enumerate(row.leaves):
            view["path_index"][place] = leaf_number[leaf]
    return batch


def _write_row(
    forest: Forest,
    row: _Row,
    view: dict[str, np.ndarray],
    starts: np.ndarray,
    local_events: dict[int, int],
) -> None:
    """Fills one row in place."""
    local = {segment: number for number, segment in enumerate(sorted(row.segments))}
    last_column: dict[int, int] = {}
    column = action = 0
    for segment, number in local.items():
        parent = int(forest.parent[segment])
        first, end = int(forest.offsets[segment]), int(forest.offsets[segment + 1])
        length = end - first
        here = slice(column, column + length)
        view["tokens"][here] = forest.tokens[first:end]
        view["positions"][here] = starts[segment] + np.arange(length)
        view["segment"][here] = number
        view["column_index"][here] = np.arange(first, end)
        view["segment_index"][number] = segment
        view["agent"][number] = forest.agent[segment]
        if parent != NO_PARENT:
            view["ancestors"][number] = view["ancestors"][local[parent]]
        view["ancestors"][number, number] = True
        if forest.is_action[segment]:
            there = slice(action, action + length)
            columns = np.arange(column - 1, column + length - 1)
            columns[0] = last_column[parent]
            view["source"][there] = columns
            view["target"][there] = forest.tokens[first:end]
            view["action_mask"][there] = True
            view["action_segment"][there] = number
            view["behavior_logp"][there] = forest.behavior_logp[first:end]
            view["token_index"][there] = np.arange(first, end)
            view["segment_weight"][number] = 1
            if forest.event[segment] != NO_EVENT:
                event = int(forest.event[segment])
                view["event"][number] = local_events.setdefault(event, len(local_events))
                view["event_size"][number] = forest.event_size[segment]
            action += length
        column += length
        last_column[segment] = column - 1
    for place, leaf in enumerate(row.leaves):
        path = forest.path(leaf)
        view["path"][[local[segment] for segment in path], place] = True
        view["path_mask"][place] = True
        view["path_weight"][place] = 1
        view["truncated"][place] = forest.truncated[path].any()


def _mark_primary(forest: Forest, packed: list[Batch]) -> None:
    """Makes the first copy of each action segment primary; events stay with primary copies."""
    counted: set[int] = set()
    for batch in packed:
        for number in range(len(batch.segment_index)):
            for place, segment in enumerate(batch.segment_index[number].tolist()):
                if segment < 0 or not forest.is_action[segment]:
                    continue
                if segment in counted:
                    batch.event[number, place] = NO_EVENT
                    batch.event_size[number, place] = 0
                else:
                    batch.segment_mask[number, place] = True
                    counted.add(segment)
        segment_mask = np.take_along_axis(batch.segment_mask, batch.action_segment, axis=-1)
        batch.primary[...] = batch.action_mask & segment_mask


def unpack(batch: Batch, like: Forest) -> Forest:
    """The forest that was packed.

    Tokens, offsets, parents, authorship and log-probabilities are read back from the batch; fields
    that a device never sees (rewards, groups, agents, ...) come from `like`.

    Raises:
      ValueError: the batch does not hold every token of `like`.
    """
    flat = {
        name: np.asarray(batch[name]).reshape(
            -1, *np.shape(batch[name])[np.ndim(batch.tokens) - 1 :]
        )
        for name in (
            "tokens",
            "segment",
            "column_index",
            "segment_index",
            "token_index",
            "ancestors",
        )
    }
    flat["behavior_logp"] = np.asarray(batch.behavior_logp).reshape(flat["token_index"].shape)
    columns = flat["column_index"] >= 0
    where = flat["column_index"][columns]
    if len(np.unique(where)) != like.num_tokens or where.max(initial=-1) >= like.num_tokens:
        raise ValueError(
            f"the batch holds {len(np.unique(where))} tokens of a forest; the forest given has "
            f"{like.num_tokens}"
        )
    tokens = np.zeros(like.num_tokens, np.int32)
    tokens[where] = flat["tokens"][columns]
    segment_of_token = np.zeros(like.num_tokens, np.int32)
    owner = np.take_along_axis(flat["segment_index"], np.maximum(flat["segment"], 0), axis=-1)
    segment_of_token[where] = owner[columns]
    behavior_logp = np.zeros(like.num_tokens, np.float32)
    acted = flat["token_index"] >= 0
    behavior_logp[flat["token_index"][acted]] = flat["behavior_logp"][acted]
    is_action = np.zeros(like.num_segments, bool)
    is_action[segment_of_token[flat["token_index"][acted]]] = True
    parent = np.full(like.num_segments, NO_PARENT, np.int32)
    for row, number in np.argwhere(flat["segment_index"] >= 0):
        above = np.flatnonzero(flat["ancestors"][row, number])
        # Parents come before their children in a row, so the nearest ancestor is the last one
        # before it.
        if len(above) > 1:
            parent[flat["segment_index"][row, number]] = flat["segment_index"][row, above[-2]]
    lengths = np.bincount(segment_of_token, minlength=like.num_segments)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return like.replace(
        tokens=tokens,
        offsets=offsets,
        parent=parent,
        is_action=is_action,
        behavior_logp=behavior_logp,
    )
