"""Building a forest segment by segment, and path by path."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sepo_jax.forest.data import (
    NO_EPISODE,
    NO_EVENT,
    NO_PARENT,
    NO_TRUNK,
    SEGMENT_FIELDS,
    TOKEN_FIELDS,
    Forest,
)
from sepo_jax.names import unknown


def observation_hash(seen: str | bytes | Sequence[int] | np.ndarray) -> int:
    """A 63-bit hash of what an agent saw; equal in every process, unlike Python's `hash`."""
    if isinstance(seen, str):
        seen = seen.encode()
    elif not isinstance(seen, bytes):
        seen = np.asarray(seen, "<i4").tobytes()
    return int.from_bytes(hashlib.blake2b(seen, digest_size=8).digest(), "little") >> 1


class ForestBuilder:
    """Collects segments one by one; `build` returns the Forest.

    Example:
      >>> builder = ForestBuilder()
      >>> prompt = builder.add([5, 6, 7])
      >>> for reward in (0.0, 1.0):
      ...     logp = [-1.0, -0.5]
      ...     _ = builder.add([8, 9], prompt, is_action=True, behavior_logp=logp, reward=reward)
      >>> builder.build().leaves()
      array([1, 2])
    """

    def __init__(self, metadata: Mapping[str, Any] | None = None):
        self._metadata = dict(metadata or {})
        self._segments: list[dict[str, Any]] = []
        self._seen: list[bytes] = []

    def __len__(self) -> int:
        return len(self._segments)

    def add(
        self,
        tokens: Sequence[int] | np.ndarray,
        parent: int = NO_PARENT,
        *,
        is_action: bool = False,
        behavior_logp: Sequence[float] | np.ndarray | None = None,
        entropy: Sequence[float] | np.ndarray | None = None,
        **fields: Any,
    ) -> int:
        """Adds a segment and returns its id.

        Args:
          tokens: token ids of this segment alone.
          parent: id of the segment it continues, or NO_PARENT.
          is_action: whether a policy sampled the tokens.
          behavior_logp: one number per token, 0 when left out.
          entropy: one number per token, 0 when left out.
          **fields: any further field of `Forest` with one value per segment. Left out: reward 0;
            group and agent those of the parent (0 at a root); turn the number of actions above;
            episode an id of its own for each leaf; trunk one for each first action, which its
            leaves share, those with a given trunk among them; no event; observation a hash of all
            tokens above; version 0; not truncated.

        Raises:
          ValueError: an unknown field, a parent not added yet, or not one log-probability per
            token.
        """
        for name in fields:
            if name not in SEGMENT_FIELDS:
                raise unknown("segment field", name, SEGMENT_FIELDS)
        if not NO_PARENT <= parent < len(self):
            raise ValueError(
                f"parent {parent} does not exist; {len(self)} segments were added so far"
            )
        tokens = np.asarray(tokens, np.int32).reshape(-1)
        record: dict[str, Any] = {"tokens": tokens, "parent": parent, "is_action": bool(is_action)}
        for name, values in (("behavior_logp", behavior_logp), ("entropy", entropy)):
            values = np.zeros(len(tokens)) if values is None else np.asarray(values)
            if values.shape != tokens.shape:
                raise ValueError(f"{name} has shape {values.shape} for {len(tokens)} tokens")
            record[name] = values.astype(np.float32)
        above = self._segments[parent] if parent >= 0 else None
        seen = self._seen[parent] if parent >= 0 else b""
        self._seen.append(hashlib.blake2b(seen + tokens.tobytes(), digest_size=16).digest())
        record |= {
            "reward": 0.0,
            "group": above["group"] if above else 0,
            "agent": above["agent"] if above else 0,
            "turn": above["turn"] + above["is_action"] if above else 0,
            "episode": NO_EPISODE,
            "trunk": NO_TRUNK,
            "event": NO_EVENT,
            "event_type": 0,
            "event_size": 0,
            "observation": observation_hash(seen),
            "policy_version": 0,
            "truncated": False,
        }
        self._segments.append(record | fields)
        return len(self) - 1

    def set(self, segment: int, **fields: Any) -> None:
        """Changes fields of a segment added before, such as a reward that arrives late."""
        for name in fields:
            if name not in SEGMENT_FIELDS:
                raise unknown("segment field", name, SEGMENT_FIELDS)
        self._segments[segment] |= fields

    def build(self) -> Forest:
        """The validated forest of everything added."""
        records = self._segments
        columns: dict[str, np.ndarray] = {}
        for name, dtype in TOKEN_FIELDS.items():
            parts = [record[name] for record in records]
            columns[name] = np.concatenate([np.zeros(0), *parts]).astype(dtype)
        for name, dtype in SEGMENT_FIELDS.items():
            columns[name] = np.array([record[name] for record in records], dtype)
        lengths = [len(record["tokens"]) for record in records]
        offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int32)
        forest = Forest(**columns, offsets=offsets, metadata=self._metadata)
        unnamed = [leaf for leaf in forest.leaves() if forest.episode[leaf] == NO_EPISODE]
        first = int(forest.episode.max(initial=NO_EPISODE)) + 1
        forest.episode[unnamed] = np.arange(first, first + len(unnamed))
        _name_trunks(forest)
        return forest.validate()


def _name_trunks(forest: Forest) -> None:
    """Gives the leaves without a trunk that of a leaf below the same first action, or a new one."""
    unnamed = [leaf for leaf in forest.leaves() if forest.trunk[leaf] == NO_TRUNK]
    if not unnamed:
        return
    named = [leaf for leaf in forest.leaves() if forest.trunk[leaf] != NO_TRUNK]
    trunk_of = {_first_action(forest, leaf): forest.trunk[leaf] for leaf in reversed(named)}
    first = int(forest.trunk.max(initial=NO_TRUNK)) + 1
    for leaf in unnamed:
        above = _first_action(forest, leaf)
        forest.trunk[leaf] = trunk_of.get(above, first + above)


def _first_action(forest: Forest, leaf: int) -> int:
    """The first action segment on the path to a leaf, or its root."""
    path = forest.path(leaf)
    return next((segment for segment in path if forest.is_action[segment]), path[0])


def paths(forest: Forest) -> Forest:
    """A forest without branching: each leaf path a tree of its own, in the order of `leaves()`.

    Shared tokens are repeated. Every episode keeps its return; an event keeps the members of its
    first path, as a later copy is the same output again.
    """
    builder = ForestBuilder(forest.metadata)
    counted: set[int] = set()
    earned: set[tuple[int, int]] = set()
    names = [name for name in SEGMENT_FIELDS if name not in ("parent", "is_action")]
    for leaf in forest.leaves():
        parent, episode = NO_PARENT, int(forest.episode[leaf])
        for segment in forest.path(int(leaf)):
            here = slice(forest.offsets[segment], forest.offsets[segment + 1])
            fields = {name: getattr(forest, name)[segment] for name in names}
            if segment in counted:
                fields |= {"event": NO_EVENT, "event_size": 0}
            if (segment, episode) in earned:
                fields["reward"] = 0.0
            counted.add(segment)
            earned.add((segment, episode))
            parent = builder.add(
                forest.tokens[here],
                parent,
                is_action=forest.is_action[segment],
                behavior_logp=forest.behavior_logp[here],
                entropy=forest.entropy[here],
                **fields,
            )
    return builder.build()
