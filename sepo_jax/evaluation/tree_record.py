"""One prompt's trees of a branching rollout as JSON values: what was said, earned and credited.

A record is a line of `trees.jsonl`, and all that `tree_page` reads:

  algorithm   the row that trains: its name, compare, baseline, scale, prefix_credit, node_return,
              segment_weight, lambda_prefix
  entropy_of  what the entropy of a decision is, see `rollout.Branching.entropy_of`
  prompts     prompts of the step; this is the one whose returns differ most, the first of equals
  tokens      {"once": each shared token once, "per_leaf": as often as leaves hold it}
  segments    parents first: "parent", "kind" ("given" or "action"), "tokens" (how many), "leaves"
              (paths through it), "return" (mean of its children's, down to the leaves), and what
              `_said` adds
  leaves      "segment" (where it ends), "return", and what `_leaf` adds; in the order of the forest

Numbers that are missing are null.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..algorithms import Algorithm
from ..credit import Credit, subtree_returns
from ..forest import NO_PARENT, Forest
from ..forest.returns import path_actions
from ..rollout import decision_segments
from ..rollout.branching import decision_entropy
from ..sandbox.episodes import Action, EpisodeResult

TEXT_LIMIT = 1500  # characters of a segment that are kept
TOKEN_LIMIT = 96  # sampled tokens of a segment that are kept
Decode = Callable[[Sequence[int]], str]

_CHOICES = (
    "name", "compare", "baseline", "scale", "prefix_credit", "lambda_prefix", "node_return",
    "segment_weight",
)  # fmt: skip
_UNDECODED = "\ufffd"  # what a tokenizer says for a part of a character


def tree_record(
    results: Sequence[EpisodeResult],
    forest: Forest,
    credit: Credit,
    algorithm: Algorithm,
    *,
    decode: Decode | None = None,
    entropy_of: str = "first_token",
) -> dict[str, Any]:
    """The trees of the prompt whose returns have the greatest spread, the first of equals.

    Args:
      results: of the rollout, one context an episode.
      forest: made of these results (`Rollout.forest`).
      credit: what the update trains on, assigned to this forest by `algorithm`.
      algorithm: the row of the table.
      decode: token ids to text, by the policy's tokenizer; without one tokens stand as their ids.
      entropy_of: as of `Branching`.

    Returns:
      The record, in JSON values; its layout is that of this module.

    Raises:
      ValueError: a forest without leaves, or with another number of actions than the results.
    """
    leaves, earned = forest.leaves(), path_actions(forest).episode
    if not len(leaves):
        raise ValueError("the forest has no leaves: no episode was played to its end")
    group = _most_spread(forest.group[leaves], earned)
    action_of = _actions(results, forest)
    returns, lengths, count = subtree_returns(forest, earned), forest.lengths(), _below(forest)
    chosen = np.flatnonzero(forest.group == group)
    place = {int(segment): number for number, segment in enumerate(chosen)}
    segments = [
        {
            "parent": place.get(int(forest.parent[segment]), NO_PARENT),
            "kind": "action" if forest.is_action[segment] else "given",
            "tokens": int(lengths[segment]),
            "leaves": int(count[segment]),
            "return": _number(returns[segment]),
        }
        | _said(forest, credit, segment, action_of, decode, entropy_of)
        for segment in chosen.tolist()
    ]
    return {
        "algorithm": {name: getattr(algorithm, name) for name in _CHOICES},
        "entropy_of": entropy_of,
        "prompts": len(np.unique(forest.group)),
        "tokens": {
            "once": int(lengths[chosen].sum()),
            "per_leaf": int((lengths * count)[chosen].sum()),
        },
        "segments": segments,
        "leaves": [
            {"segment": place[int(leaf)], "return": _number(earned[number])}
            | _leaf(results[int(forest.episode[leaf])], credit, number)
            for number, leaf in enumerate(leaves)
            if int(leaf) in place
        ],
    }


def _leaf(result: EpisodeResult, credit: Credit, number: int) -> dict[str, Any]:
    """How an episode ended, whether it is a trunk, and its weight and advantage as a path."""
    return {
        "weight": _number(credit.path_weight[number]),
        "advantage": _number(credit.path_advantage[number]),
        "status": result.status,
        "trunk": result.request.past is None,
    }


def _said(forest, credit, segment, action_of, decode, entropy_of) -> dict[str, Any]:
    """Texts of a segment, and of an action its numbers.

    Of what was given: "messages", [role, text] each. Of an action: "text", "turn", "reward" (paid
    from it to the next), "advantage" (of its tokens, their mean where they differ), "weight",
    "entropy" (of the decision), "truncated", and for each token "pieces", "logp", "entropies".
    "cut" counts what the limits left out: characters, tokens.
    """
    if not forest.is_action[segment]:
        below = [child for child in forest.children(segment).tolist() if child in action_of]
        messages = _messages(action_of[below[0]], decode) if below else []
        kept, cut = _shortened([text for _, text in messages])
        roles = [role for role, _ in messages]
        return {
            "messages": [list(pair) for pair in zip(roles, kept, strict=True)],
            "cut": [cut, 0],
        }
    action = action_of[segment]
    here = slice(forest.offsets[segment], forest.offsets[segment + 1])
    first = slice(here.start, min(here.stop, here.start + TOKEN_LIMIT))
    (text,), cut = _shortened([action.text])
    return {
        "text": text,
        "turn": int(forest.turn[segment]),
        "reward": _number(forest.reward[segment]),
        "advantage": _number(credit.advantage[here].mean(dtype=np.float64)),
        "weight": _number(credit.segment_weight[segment]),
        "entropy": _number(decision_entropy([action], entropy_of)[0]),
        "truncated": bool(forest.truncated[segment]),
        "pieces": token_pieces(forest.tokens[first].tolist(), decode),
        "logp": [_number(value, 4) for value in forest.behavior_logp[first]],
        "entropies": [_number(value, 4) for value in forest.entropy[first]],
        "cut": [cut, int(here.stop - first.stop)],
    }


def token_pieces(tokens: Sequence[int], decode: Decode | None) -> list[str]:
    """Text of each token; that of a character spread over several tokens stands at the last."""
    if decode is None:
        return [str(token) for token in tokens]
    pieces, held = [], []
    for number, token in enumerate(tokens):
        held.append(token)
        text = decode(held)
        # A character has at most four bytes, hence no more tokens.
        whole = not text.endswith(_UNDECODED) or len(held) == 4 or number + 1 == len(tokens)
        pieces.append(text if whole else "")
        held = [] if whole else held
    return pieces


def _most_spread(group: np.ndarray, earned: np.ndarray) -> int:
    """The group whose leaves' returns have the greatest standard deviation."""
    groups = np.unique(group)
    returns = [earned[(group == each) & ~np.isnan(earned)] for each in groups]
    return int(groups[np.argmax([each.std() if len(each) else 0.0 for each in returns])])


def _actions(results: Sequence[EpisodeResult], forest: Forest) -> dict[int, Action]:
    """The action that each action segment holds: `build_forest` lays them out in this order."""
    played = [result for result in results if result.status != "failed"]
    actions = dict.fromkeys(action for result in played for action in result.actions)
    segments = decision_segments(forest).tolist()
    if len(actions) != len(segments):
        raise ValueError(
            f"the results hold {len(actions)} actions and the forest {len(segments)}; give the "
            "results that the forest was made of"
        )
    return dict(zip(segments, actions, strict=True))


def _below(forest: Forest) -> np.ndarray:
    """Leaf paths through each segment, int64 [N]."""
    count = np.zeros(forest.num_segments, np.int64)
    count[forest.leaves()] = 1
    for segment in range(forest.num_segments - 1, -1, -1):
        if forest.parent[segment] != NO_PARENT:
            count[forest.parent[segment]] += count[segment]
    return count


def _messages(action: Action, decode: Decode | None) -> list[tuple[str, str]]:
    """What was given before an action: (role, text), or a prompt of tokens as text."""
    if action.prompt.tokens:
        ids = list(action.prompt.tokens)
        return [("tokens", decode(ids) if decode else " ".join(map(str, ids)))]
    return [(message["role"], message["content"]) for message in action.prompt.messages]


def _shortened(texts: Sequence[str]) -> tuple[list[str], int]:
    """The first `TEXT_LIMIT` characters of texts together, and how many are left out."""
    kept, left = [], TEXT_LIMIT
    for text in texts:
        kept.append(text[:left])
        left -= len(kept[-1])
    return kept, sum(map(len, texts)) - sum(map(len, kept))


def _number(value: Any, digits: int = 7) -> float | None:
    """A float to so many significant digits, None for what JSON does not have."""
    value = float(value)
    return float(f"{value:.{digits}g}") if math.isfinite(value) else None
