"""The data model: everything that is sampled is a forest of segments.

A *segment* is a run of tokens with one author: a given segment (prompt, observation) or an action
segment (tokens a policy sampled). Each names its parent; a root-to-leaf path is what one context of
the model held.

- N samples of a prompt: one root with N children.
- A branching rollout: the trunk forks again further down.
- An episode with several contexts (agents, or a fresh context per decision): several leaves that
  share one `episode`. Outputs that one transition consumed together share one `event`.

An *episode* is what earns one return: the sum of the rewards of all its segments, each segment
once. A team reward is therefore written once, not once per agent; agents with rewards of their own
have an episode each.

Arrays live on the host (numpy). Shapes: T tokens, N segments, L leaves.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

NO_PARENT = -1
NO_EVENT = -1
NO_EPISODE = -1
NO_TRUNK = -1

TOKEN_FIELDS: dict[str, type] = {
    "tokens": np.int32,
    "behavior_logp": np.float32,
    "entropy": np.float32,
}

SEGMENT_FIELDS: dict[str, type] = {
    "parent": np.int32,
    "is_action": np.bool_,
    "reward": np.float32,
    "group": np.int32,
    "episode": np.int32,
    "trunk": np.int32,
    "agent": np.int32,
    "turn": np.int32,
    "event": np.int32,
    "event_type": np.int32,
    "event_size": np.int32,
    "observation": np.int64,
    "policy_version": np.int32,
    "truncated": np.bool_,
}


@dataclasses.dataclass(frozen=True, eq=False)
class Forest:
    """Many trees of segments as flat arrays; parents precede children.

    Attributes:
      tokens: token ids, int32 [T]; the tokens of segment s are `tokens[offsets[s]:offsets[s + 1]]`.
      behavior_logp: log-probability under the distribution each action token was sampled from,
        natural logarithm, float32 [T]; 0 on given tokens.
      entropy: entropy in nats of that distribution, float32 [T]; 0 on given tokens.
      offsets: first token of each segment and one past the last, int32 [N + 1].
      parent: parent of each segment or NO_PARENT, int32 [N].
      is_action: whether a policy sampled the segment, bool [N].
      reward: reward received when the segment ends, float32 [N]; NaN = missing.
      group: trajectories that may be compared (same prompt or task) share a group; one per tree,
        int32 [N].
      episode: trajectory id, read at leaves; leaves of one several-context episode share it, int32
        [N]; NO_EPISODE is allowed on inner segments only.
      trunk: which trajectory the leaf's own branched off from, however early, or is: leaves of one
        branching tree share it, and separate samples of a prompt do not, whether or not they share
        its tokens; read at leaves, int32 [N]; NO_TRUNK is allowed on inner segments only.
      agent: who wrote the segment or reads it, int32 [N].
      turn: which decision of its agent this is, from 0, int32 [N].
      event: joint decision that the segment is a member of or NO_EVENT, int32 [N].
      event_type: kind of joint decision, int32 [N].
      event_size: number of members the event should have, int32 [N]; 0 outside events.
      observation: hash of what the agent saw before it acted (`observation_hash`), int64 [N].
      policy_version: which update of the policy sampled the segment, int32 [N].
      truncated: whether a length limit cut the segment short, bool [N].
      metadata: JSON-able notes about the whole forest.
    """

    tokens: np.ndarray
    behavior_logp: np.ndarray
    entropy: np.ndarray
    offsets: np.ndarray
    parent: np.ndarray
    is_action: np.ndarray
    reward: np.ndarray
    group: np.ndarray
    episode: np.ndarray
    trunk: np.ndarray
    agent: np.ndarray
    turn: np.ndarray
    event: np.ndarray
    event_type: np.ndarray
    event_size: np.ndarray
    observation: np.ndarray
    policy_version: np.ndarray
    truncated: np.ndarray
    metadata: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def num_segments(self) -> int:
        """N, the number of segments."""
        return len(self.parent)

    @property
    def num_tokens(self) -> int:
        """T, the number of tokens; shared tokens count once."""
        return len(self.tokens)

    def lengths(self) -> np.ndarray:
        """Tokens in each segment, int32 [N]."""
        return np.diff(self.offsets)

    def segment_of_token(self) -> np.ndarray:
        """Segment that each token belongs to, int32 [T]."""
        return np.repeat(np.arange(self.num_segments, dtype=np.int32), self.lengths())

    def child_count(self) -> np.ndarray:
        """Number of children of each segment, int64 [N]."""
        return np.bincount(self.parent[self.parent >= 0], minlength=self.num_segments)

    def children(self, segment: int) -> np.ndarray:
        """Children of one segment in order; `children(NO_PARENT)` are the roots."""
        return np.flatnonzero(self.parent == segment)

    def leaves(self) -> np.ndarray:
        """Segments without children in order, int64 [L]; leaf paths are numbered in this order."""
        return np.flatnonzero(self.child_count() == 0)

    def tree(self) -> np.ndarray:
        """Root above (or equal to) each segment, int32 [N]."""
        root = np.arange(self.num_segments, dtype=np.int32)
        for segment, parent in enumerate(self.parent):
            if parent >= 0:
                root[segment] = root[parent]
        return root

    def starts(self) -> np.ndarray:
        """Position of each segment's first token along its path, int32 [N]."""
        lengths = self.lengths()
        start = np.zeros(self.num_segments, np.int32)
        for segment, parent in enumerate(self.parent):
            if parent >= 0:
                start[segment] = start[parent] + lengths[parent]
        return start

    def path(self, segment: int) -> list[int]:
        """Segments from the root down to `segment`, both included."""
        found = []
        while segment >= 0:
            found.append(int(segment))
            segment = self.parent[segment]
        return found[::-1]

    def segment_tokens(self, segment: int) -> np.ndarray:
        """Token ids of one segment, int32."""
        return self.tokens[self.offsets[segment] : self.offsets[segment + 1]]

    def replace(self, **changes: Any) -> "Forest":
        """A copy with the named fields changed."""
        return dataclasses.replace(self, **changes)

    def validate(self) -> "Forest":
        """Returns self when well formed.

        Raises:
          ValueError: wrong shapes or dtypes; an empty segment; a parent that does not precede its
            child; an action without a token before it; groups that differ within a tree, an
            episode or a trunk; a leaf without an episode or a trunk; event fields that contradict
            each other. The message names the segment.
        """
        _check_arrays(self)
        _check_structure(self)
        _check_groups(self)
        _check_events(self)
        return self


def _check_arrays(forest: Forest) -> None:
    sizes = dict.fromkeys(TOKEN_FIELDS, forest.num_tokens)
    sizes |= dict.fromkeys(SEGMENT_FIELDS, forest.num_segments)
    sizes["offsets"] = forest.num_segments + 1
    dtypes = TOKEN_FIELDS | SEGMENT_FIELDS | {"offsets": np.int32}
    for name, size in sizes.items():
        array = getattr(forest, name)
        if (
            not isinstance(array, np.ndarray)
            or array.shape != (size,)
            or array.dtype != dtypes[name]
        ):
            given = f"{getattr(array, 'dtype', type(array).__name__)} {np.shape(array)}"
            wanted = f"{np.dtype(dtypes[name])} {(size,)}"
            raise ValueError(f"forest field {name!r} is {given}; expected a numpy array {wanted}")


def _refuse_first(bad: np.ndarray, why: str) -> None:
    if bad.any():
        raise ValueError(f"segment {int(np.flatnonzero(bad)[0])} {why}")


def _check_structure(forest: Forest) -> None:
    if forest.offsets[0] != 0 or forest.offsets[-1] != forest.num_tokens:
        raise ValueError(
            f"offsets run from {forest.offsets[0]} to {forest.offsets[-1]}; "
            f"expected 0 to {forest.num_tokens}, the number of tokens"
        )
    _refuse_first(forest.lengths() <= 0, "has no tokens; leave empty segments out")
    index = np.arange(forest.num_segments)
    wrong_parent = (forest.parent >= index) | (forest.parent < NO_PARENT)
    _refuse_first(wrong_parent, "has a parent that does not precede it")
    orphan = forest.is_action & (forest.parent == NO_PARENT)
    _refuse_first(
        orphan,
        "is an action without a parent, so no token predicts its first one; give it a prompt",
    )
    is_leaf = forest.child_count() == 0
    _refuse_first(is_leaf & (forest.episode < 0), "is a leaf without an episode")
    _refuse_first(is_leaf & (forest.trunk < 0), "is a leaf without a trunk")


def _check_groups(forest: Forest) -> None:
    has_parent = forest.parent >= 0
    above = np.where(has_parent, forest.group[forest.parent], forest.group)
    _refuse_first(above != forest.group, "is in another group than its parent")
    leaves = forest.leaves()
    for name in ("episode", "trunk"):
        ids = getattr(forest, name)
        order = leaves[np.argsort(ids[leaves], kind="stable")]
        same = ids[order[1:]] == ids[order[:-1]]
        other = np.zeros(forest.num_segments, bool)
        other[order[1:]] = same & (forest.group[order[1:]] != forest.group[order[:-1]])
        _refuse_first(other, f"shares its {name} with a leaf of another group")


def _check_events(forest: Forest) -> None:
    member = forest.event != NO_EVENT
    _refuse_first(member & (forest.event < 0), "has a negative event that is not NO_EVENT")
    _refuse_first(member & ~forest.is_action, "is a member of an event but no action")
    _refuse_first(member & (forest.event_size < 1), "is a member of an event of size 0")
    _refuse_first(~member & (forest.event_size != 0), "has an event_size but no event")
    members = np.flatnonzero(member)
    if not len(members):
        return
    _, first, inverse, count = np.unique(
        forest.event[members], return_index=True, return_inverse=True, return_counts=True
    )
    for name in ("event_size", "event_type", "group", "policy_version"):
        values = getattr(forest, name)
        differs = np.zeros(forest.num_segments, bool)
        differs[members] = values[members] != values[members[first[inverse]]]
        _refuse_first(differs, f"differs in {name} from another member of its event")
    crowded = np.zeros(forest.num_segments, bool)
    crowded[members] = count[inverse] > forest.event_size[members]
    _refuse_first(crowded, "is in an event with more members than its event_size")


def equal(first: Forest, second: Forest) -> bool:
    """Whether two forests hold the same arrays (NaN equals NaN), dtypes and metadata."""
    for name in (*TOKEN_FIELDS, *SEGMENT_FIELDS, "offsets"):
        a, b = getattr(first, name), getattr(second, name)
        if a.dtype != b.dtype or not np.array_equal(a, b, equal_nan=a.dtype.kind == "f"):
            return False
    return dict(first.metadata) == dict(second.metadata)


def concatenate(forests: Iterable[Forest], *, same_groups: bool = False) -> Forest:
    """One forest of all the trees, in order; segment ids shift.

    Args:
      forests: what to join; at least one.
      same_groups: keep group ids as they are, so that trees of one prompt sampled apart are
        compared. By default groups, like episodes, trunks and events always, are renumbered to stay
        apart.
    """
    forests = list(forests)
    if not forests:
        raise ValueError("concatenate needs at least one forest, got none")
    apart = ["episode", "trunk", "event", *([] if same_groups else ["group"])]
    shift = dict.fromkeys([*apart, "parent"], 0)
    token_offset, pieces, offsets = 0, [], [np.zeros(1, np.int32)]
    for forest in forests:
        moved = {name: getattr(forest, name) for name in (*TOKEN_FIELDS, *SEGMENT_FIELDS)}
        for name, by in shift.items():
            ids = moved[name]
            moved[name] = np.where(ids >= 0, ids + by, ids).astype(ids.dtype)
        pieces.append(moved)
        offsets.append(forest.offsets[1:] + np.int32(token_offset))
        token_offset += forest.num_tokens
        shift["parent"] += forest.num_segments
        for name in apart:
            shift[name] += int(getattr(forest, name).max(initial=-1)) + 1
    joined = {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}
    notes = [dict(forest.metadata) for forest in forests]
    metadata = notes[0] if all(note == notes[0] for note in notes) else {"forests": notes}
    return Forest(**joined, offsets=np.concatenate(offsets).astype(np.int32), metadata=metadata)
