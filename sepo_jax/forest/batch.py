"""What a device sees of a forest: rows of tokens with an ancestor mask, padded to bucketed sizes.

Sizes: B rows, T columns, S segments of a row, A action tokens of a row, Q leaf paths of a row.
  Further leading
axes (shares of a device or a micro-batch) may stand before B.
"""

import chex
import numpy as np

Array = chex.Array


@chex.dataclass(frozen=True)
class Batch:
    """Packed rows of a forest; a pytree, numpy when made, with any leading axes before B.

    A row holds segments closed under ancestors, parents first. When a tree is spread over several
    rows, the later rows repeat ancestors as context: every copy has its tokens in `action_mask`,
      one copy is `primary`.

    Attributes:
      tokens: token ids, int32 [B, T]; 0 on padding.
      positions: place along the path from 0, int32 [B, T].
      segment: row-local segment of each column, int32 [B, T]; -1 on padding.
      ancestors: `ancestors[i, j]` says j is i or above i, bool [B, S, S].
      source: column whose hidden state predicts the target (the previous token along the path),
        int32 [B, A].
      target: the action token, int32 [B, A]; source and target are 0 on padding.
      action_mask: real action tokens, bool [B, A].
      primary: action tokens counted here; each token of the forest once over all rows, bool [B, A].
      action_segment: row-local segment of the action token, int32 [B, A]; 0 on padding.
      behavior_logp: log-probability under the sampling distribution, float32 [B, A].
      reference_logp: log-probability under the reference policy, float32 [B, A]; 0 until filled.
      advantage: float32 [B, A]; 0 until filled.
      value: the critic's value when the data were gathered, float32 [B, A]; 0 until filled.
      value_target: what the critic should have said, float32 [B, A]; 0 until filled.
      segment_weight: how much each token of a segment weighs, float32 [B, S]; 0 leaves the segment
        out.
      segment_mask: primary action segments, bool [B, S].
      agent: who wrote the segment or reads it, int32 [B, S]; 0 on padding and where several begin
        alike (`pack_sharing_prefixes`).
      event: event of a primary member, local to the rows of one share, int32 [B, S]; -1 none.
      event_size: members the event should have, int32 [B, S].
      path: segment s lies on leaf path q, bool [B, S, Q]; each leaf path lives in one row.
      path_mask: real leaf paths, bool [B, Q].
      path_weight: how much each leaf path weighs, float32 [B, Q]; 0 leaves the path out.
      path_advantage: float32 [B, Q]; 0 until filled.
      truncated: leaf paths cut short by a length limit, bool [B, Q].
      column_index: token of the forest in each column, int32 [B, T]; -1 on padding, like all below.
      token_index: token of the forest at each action token, int32 [B, A].
      segment_index: segment of the forest, int32 [B, S].
      path_index: place of the leaf in `forest.leaves()`, int32 [B, Q].
    """

    tokens: Array
    positions: Array
    segment: Array
    ancestors: Array
    source: Array
    target: Array
    action_mask: Array
    primary: Array
    action_segment: Array
    behavior_logp: Array
    reference_logp: Array
    advantage: Array
    value: Array
    value_target: Array
    segment_weight: Array
    segment_mask: Array
    agent: Array
    event: Array
    event_size: Array
    path: Array
    path_mask: Array
    path_weight: Array
    path_advantage: Array
    truncated: Array
    column_index: Array
    token_index: Array
    segment_index: Array
    path_index: Array


TOKEN_FILLS = ("behavior_logp", "reference_logp", "advantage", "value", "value_target")
SEGMENT_FILLS = ("segment_weight",)
PATH_FILLS = ("path_weight", "path_advantage")

# Axes of each field after the leading ones, its type, and what padding holds.
LAYOUT: dict[str, tuple[str, type, int]] = {
    "tokens": ("T", np.int32, 0),
    "positions": ("T", np.int32, 0),
    "segment": ("T", np.int32, -1),
    "ancestors": ("SS", np.bool_, 0),
    "source": ("A", np.int32, 0),
    "target": ("A", np.int32, 0),
    "action_mask": ("A", np.bool_, 0),
    "primary": ("A", np.bool_, 0),
    "action_segment": ("A", np.int32, 0),
    "behavior_logp": ("A", np.float32, 0),
    "reference_logp": ("A", np.float32, 0),
    "advantage": ("A", np.float32, 0),
    "value": ("A", np.float32, 0),
    "value_target": ("A", np.float32, 0),
    "segment_weight": ("S", np.float32, 0),
    "segment_mask": ("S", np.bool_, 0),
    "agent": ("S", np.int32, 0),
    "event": ("S", np.int32, -1),
    "event_size": ("S", np.int32, 0),
    "path": ("SQ", np.bool_, 0),
    "path_mask": ("Q", np.bool_, 0),
    "path_weight": ("Q", np.float32, 0),
    "path_advantage": ("Q", np.float32, 0),
    "truncated": ("Q", np.bool_, 0),
    "column_index": ("T", np.int32, -1),
    "token_index": ("A", np.int32, -1),
    "segment_index": ("S", np.int32, -1),
    "path_index": ("Q", np.int32, -1),
}


def bucket(n: int) -> int:
    """The smallest of 1, 2, 3, 4, 6, 8, 12, 16, 24, ... that is at least n.

    Sizes of batches come from this ladder, so a jitted step compiles for a few shapes and not for
    each forest.
    """
    if n < 0:
        raise ValueError(f"a size is at least 0, got {n}")
    power = 1
    while power < n:
        if power > 1 and n <= power + power // 2:
            return power + power // 2
        power *= 2
    return power


def empty_batch(sizes: dict[str, int]) -> Batch:
    """A batch of padding; `sizes` gives B, T, S, A and Q."""
    return Batch(
        **{
            name: np.full((sizes["B"], *(sizes[axis] for axis in axes)), padding, dtype)
            for name, (axes, dtype, padding) in LAYOUT.items()
        }
    )


def batch_sizes(batch: Batch) -> dict[str, int]:
    """The sizes B, T, S, A and Q of a batch; `pack(at_least=)` takes them for equal shapes."""
    rows, tokens = batch.tokens.shape[-2:]
    segments, paths = batch.path.shape[-2:]
    return {"B": rows, "T": tokens, "S": segments, "A": batch.target.shape[-1], "Q": paths}


def fill(batch: Batch, **arrays: np.ndarray) -> Batch:
    """A copy of the batch with fields gathered from arrays over the forest.

    Args:
      batch: made by `pack`.
      **arrays: over tokens [T]: behavior_logp, reference_logp, advantage, value, value_target; over
        segments [N]: segment_weight; over leaves [L], in the order of `forest.leaves()`:
        path_weight, path_advantage. Padding becomes 0.

    Raises:
      ValueError: a field that cannot be filled, or an array shorter than the forest.
    """
    places = dict.fromkeys(TOKEN_FILLS, "token_index")
    places |= dict.fromkeys(SEGMENT_FILLS, "segment_index") | dict.fromkeys(
        PATH_FILLS, "path_index"
    )
    filled = {}
    for name, values in arrays.items():
        if name not in places:
            raise ValueError(f"{name!r} cannot be filled; one of {', '.join(places)} can")
        index, values = np.asarray(batch[places[name]]), np.asarray(values, np.float32)
        needed = int(index.max(initial=-1)) + 1
        if values.ndim != 1 or len(values) < needed:
            raise ValueError(
                f"{name!r} has shape {values.shape}; the batch refers to {needed} entries"
            )
        padded = np.append(values, np.float32(0))
        filled[name] = np.where(index < 0, np.float32(0), padded[index])
    return batch.replace(**filled)
