# ruff: noqa: E501  (a table reads best unbroken)
"""The field on one page: an algorithm is a row of independent choices.

Everything sampled is a forest of segments (`forest.data`). An algorithm then decides four things:

1. What is compared with what?      `compare`: which units form a group.
2. With what is a unit compared?    `baseline` and `scale`: advantage = (return - baseline) / scale.
3. What is the ratio of?            `ratio`: one token, a whole sequence, or a set of outputs.
4. How are losses averaged?         `reduce`: what counts as one.

`credit.assign_credit` reads 1 and 2, `objective.make_objective` reads 3 and 4. A variant is
`dataclasses.replace(ALGORITHMS["grpo"], clip_high=0.28)`; an own loss is
`dataclasses.replace(ALGORITHMS["grpo"], surrogate=my_function)`.
"""

import dataclasses
from collections.abc import Callable

from sepo_jax.advantages import NODE_RETURNS, SCALES
from sepo_jax.losses import (
    KL_KINDS,
    SET_SCALES,
    cispo_surrogate,
    clipped_surrogate,
    on_policy_surrogate,
)
from sepo_jax.names import check_option, unknown

__all__ = ["ALGORITHMS", "Algorithm", "cispo_surrogate", "get_algorithm"]

# Comparisons of whole episodes; a "sequence" is then a leaf path. Otherwise it is an action segment.
TRAJECTORY_COMPARISONS = ("none", "root", "root_then_tree", "root_plus_tree")

OPTIONS: dict[str, tuple[str, ...]] = {
    "compare": (*TRAJECTORY_COMPARISONS, "parent", "observation", "agent", "turn", "event_type"),
    "baseline": ("none", "mean", "leave_one_out", "critic", "monte_carlo"),
    "scale": SCALES,
    "ratio": ("none", "token", "sequence", "event"),
    "reduce": ("token_mean", "sequence_mean", "constant_length", "event_mean", "sequence_sum_mean"),
    "returns": ("episode", "to_go", "immediate", "one"),
    "ratio_scale": SET_SCALES,
    "prefix_credit": ("tree", "lambda", "none"),
    "node_return": NODE_RETURNS,
    "segment_weight": ("path", "uniform"),
    "kl_kind": KL_KINDS,
    "kl_place": ("loss", "reward"),
}


@dataclasses.dataclass(frozen=True)
class Algorithm:
    """One row of the table; immutable and hashable.

    Attributes:
      name: what the row is called.
      compare: which units form a group.
        "none": nothing is compared.
        "root": episodes of one prompt. "root_then_tree": these, then the results within each tree;
        "root_plus_tree": the sum of both comparisons instead of one after the other.
        "parent": continuations of one branch point, samples of a prompt among them.
        "observation": "root", plus action segments that saw the same observation.
        "agent": action segments of one agent; "turn": of one agent at one turn.
        "event_type": events of one kind whose members are of the same agents, or roles. All within
        one prompt.
      baseline: what is subtracted from a unit's return. "none"; "mean" of the group;
        "leave_one_out" mean of the others; "critic": generalised advantages from a value head;
        "monte_carlo": value of the state before, from all continuations sampled there.
      scale: what it is divided by: "none", the group's "population" or "sample" standard deviation.
      ratio: what the ratio of policies is taken of. "none": the data are on-policy; "token";
        "sequence": a leaf path where episodes are compared, else an action segment; "event": the
        set of outputs that one transition consumed.
      clip_low: distance of the ratio's lower bound from 1; None for no bound.
      clip_high: distance of its upper bound from 1; None for no bound.
      reduce: what counts as one in the mean. "token_mean": a token (once, however many paths share
        it, times its `segment_weight`). "sequence_mean": a leaf path, over the mean of its tokens.
        "sequence_sum_mean": a leaf path, over the sum. "constant_length": that sum divided by
        `constant_length`. "event_mean": a complete event.
      ratio_scale: how log-ratios combine into that of a sequence ("sum", or "mean" = geometric mean
        of token ratios) or of an event's members ("sum", "mean", "sqrt": sum / sqrt(K), "length":
        the same with each member's mean over tokens in place of its sum).
      constant_length: divisor in tokens of "constant_length": the length limit of a reply.
      surrogate: `(log_ratio, advantage, *, clip_low, clip_high) -> loss`, elementwise on units, to be
        minimised. With ratio "none" the first argument is the log-probability.
      returns: what a unit earns. "episode": all rewards of its episode; "to_go": those from its turn
        on; "immediate": those of its turn; "one": always 1 (imitation).
      gamma: discount of one step in "to_go" returns and generalised advantages: of a model token
        where `compare` is "none", of a turn otherwise.
      gae_lambda: weight of longer estimates in generalised advantages.
      prefix_credit: credit of tokens above a branch point when siblings are compared. "tree": that
        of the next branch point above, up to the comparison of whole samples; "none": the same, but
        separate trees of a prompt are not compared; "lambda": as "none", plus what follows,
        discounted by `lambda_prefix` per action.
      lambda_prefix: that discount.
      node_return: return of a branch: "subtree_mean" over what was sampled below it, or of one "leaf".
      segment_weight: "path": a segment weighs the product of 1/K over the branch points above it;
        "uniform": 1.
      observation_weight: weight of the "observation" comparison next to that of episodes.
      importance_cap: with ratio "none", weigh tokens by min(ratio, cap) without gradient, against a
        sampler that differs from the trainer; None for no weights.
      kl_weight: weight of the divergence from the reference policy, nats.
      kl_kind: its estimate, see `losses.kl_estimate`.
      kl_place: "loss": a term of the loss; "reward": subtracted from the rewards, token by token.
      entropy_weight: weight of the entropy bonus, nats.
      value_weight: weight of the value head's loss; needs the critic.
      value_clip: largest move of the value head in one update, units of the return; None for no bound.
      mask_truncated: leave out episodes that a length limit cut short.
      count_no_spread: whether groups without spread, which teach nothing, still count in the
        denominators, the divergence and the entropy.
      source: paper.

    Raises:
      ValueError: an unknown option, or choices that contradict each other.
    """

    name: str
    compare: str
    baseline: str
    scale: str
    ratio: str
    clip_low: float | None
    clip_high: float | None
    reduce: str
    ratio_scale: str = "sum"
    constant_length: int | None = None
    surrogate: Callable = clipped_surrogate
    returns: str = "episode"
    gamma: float = 1.0
    gae_lambda: float = 1.0
    prefix_credit: str = "tree"
    lambda_prefix: float = 0.95
    node_return: str = "subtree_mean"
    segment_weight: str = "uniform"
    observation_weight: float = 1.0
    importance_cap: float | None = None
    kl_weight: float = 0.0
    kl_kind: str = "k3"
    kl_place: str = "loss"
    entropy_weight: float = 0.0
    value_weight: float = 0.0
    value_clip: float | None = None
    mask_truncated: bool = False
    count_no_spread: bool = True
    source: str = ""

    def __post_init__(self):
        for field, allowed in OPTIONS.items():
            check_option(field, getattr(self, field), allowed)
        for field in ("gamma", "gae_lambda", "lambda_prefix"):
            if not 0 <= getattr(self, field) <= 1:
                raise ValueError(f"{field} lies in [0, 1], got {getattr(self, field)}")
        for wrong, why in (*_contradictions_of_credit(self), *_contradictions_of_loss(self)):
            if wrong:
                raise ValueError(f"algorithm {self.name!r}: {why}")

    @property
    def compares_trajectories(self) -> bool:
        """Whether the compared unit is a whole episode."""
        return self.compare in TRAJECTORY_COMPARISONS

    @property
    def compares_within_trees_alone(self) -> bool:
        """Whether independent episodes of a prompt are compared with nothing."""
        return self.compare == "root_then_tree" or (
            self.compare == "parent" and self.prefix_credit != "tree"
        )


def _contradictions_of_credit(row: Algorithm) -> list[tuple[bool, str]]:
    """Pairs of choices that make no sense together, and what to do instead."""
    no_group = row.baseline in ("none", "critic")
    return [
        (
            (row.compare == "none") != no_group,
            f"compare={row.compare!r} does not go with baseline={row.baseline!r}; without a group the baseline is 'none' or 'critic', and only then",
        ),
        (
            row.baseline == "monte_carlo" and row.compare != "parent",
            "baseline='monte_carlo' values branch points; set compare='parent'",
        ),
        (
            row.baseline == "monte_carlo" and row.prefix_credit == "lambda",
            "prefix_credit='lambda' discounts the advantages of siblings; values need 'tree' or 'none'",
        ),
        (
            row.scale != "none" and row.baseline != "mean",
            f"scale={row.scale!r} belongs to baseline='mean'; set scale='none'",
        ),
        (
            row.returns == "one" and row.compare != "none",
            "equal returns cannot be compared; set compare='none'",
        ),
    ]


def _contradictions_of_loss(row: Algorithm) -> list[tuple[bool, str]]:
    """As above, for what the objective reads."""
    clipped = row.clip_low is not None or row.clip_high is not None
    return [
        (
            row.ratio == "none" and clipped,
            "ratio='none' leaves nothing to clip; set clip_low and clip_high to None",
        ),
        (
            row.ratio == "sequence" and row.ratio_scale not in ("sum", "mean"),
            f"ratio_scale={row.ratio_scale!r} is for the members of an event; a sequence takes 'sum' or 'mean'",
        ),
        (
            row.ratio == "none" and row.surrogate in (clipped_surrogate, cispo_surrogate),
            "this surrogate needs a ratio; set ratio='token' or surrogate=on_policy_surrogate",
        ),
        (
            row.ratio != "none" and row.surrogate is on_policy_surrogate,
            "on_policy_surrogate takes log-probabilities; set ratio='none'",
        ),
        (
            row.ratio != "none" and row.importance_cap is not None,
            "importance_cap corrects ratio='none' only; the other ratios correct themselves",
        ),
        (
            row.reduce == "event_mean" and row.ratio != "event",
            "reduce='event_mean' averages events; set ratio='event'",
        ),
        (
            row.reduce == "sequence_mean" and row.ratio == "event",
            "an event has members in several sequences; set reduce='event_mean' or 'token_mean'",
        ),
        (
            row.reduce == "constant_length"
            and not (row.constant_length and row.constant_length > 0),
            "reduce='constant_length' needs constant_length, a number of tokens above 0",
        ),
        (
            row.value_weight > 0 and row.baseline != "critic",
            "value_weight trains a critic; set baseline='critic'",
        ),
    ]


# fmt: off
_ROWS = (
    #         name         compare           baseline         scale         ratio       clip low, high   reduce
    Algorithm("sft",       "none",           "none",          "none",       "none",     None, None,      "token_mean",
              surrogate=on_policy_surrogate, returns="one",
              source="negative log-likelihood of expert replies: REINFORCE where every return is 1"),
    Algorithm("reinforce", "none",           "none",          "none",       "none",     None, None,      "token_mean",
              surrogate=on_policy_surrogate, returns="to_go",
              source="Williams 1992, Machine Learning 8"),
    Algorithm("ppo",       "none",           "critic",        "none",       "token",    0.2,  0.2,       "token_mean",
              returns="to_go", gae_lambda=0.95, value_weight=0.5, value_clip=0.2,
              source="arXiv 1707.06347; generalised advantages, arXiv 1506.02438"),
    Algorithm("rloo",      "root",           "leave_one_out", "none",       "sequence", None, None,      "sequence_mean",
              source="arXiv 2402.14740"),
    Algorithm("grpo",      "root",           "mean",          "population", "token",    0.2,  0.2,       "sequence_mean",
              source="arXiv 2402.03300"),
    Algorithm("dr_grpo",   "root",           "mean",          "none",       "token",    0.2,  0.2,       "constant_length",
              constant_length=1024,
              source="arXiv 2503.20783"),
    Algorithm("dapo",      "root",           "mean",          "population", "token",    0.2,  0.28,      "token_mean",
              mask_truncated=True, count_no_spread=False,
              source="arXiv 2503.14476"),
    Algorithm("gspo",      "root",           "mean",          "population", "sequence", 3e-4, 4e-4,      "sequence_mean",
              ratio_scale="mean",
              source="arXiv 2507.18071"),
    Algorithm("bpo",       "parent",         "leave_one_out", "none",       "token",    0.2,  0.2,       "token_mean",
              segment_weight="path",
              source="arXiv 2607.14171; prefix credit 'tree' and weights 'path' are this package's"),
    Algorithm("vineppo",   "parent",         "monte_carlo",   "none",       "token",    0.2,  0.2,       "token_mean",
              segment_weight="path",
              source="arXiv 2410.01679"),
    Algorithm("tree_grpo", "root_then_tree", "mean",          "population", "token",    0.2,  0.2,       "sequence_mean",
              source="arXiv 2509.21240; the sum of both comparisons is compare='root_plus_tree'"),
    Algorithm("gigpo",     "observation",    "mean",          "population", "token",    0.2,  0.2,       "token_mean",
              returns="to_go", gamma=0.95,
              source="arXiv 2505.10978"),
    Algorithm("dr_mas",    "agent",          "mean",          "population", "token",    0.2,  0.2,       "token_mean",
              source="Dr. MAS: statistics per prompt and agent"),
    Algorithm("at_grpo",   "turn",           "mean",          "population", "token",    0.2,  0.2,       "token_mean",
              returns="immediate",
              source="arXiv 2510.11062"),
    Algorithm("srpo",      "event_type",     "mean",          "population", "event",    0.2,  0.2,       "event_mean",
              ratio_scale="sqrt",
              source="arXiv 2609.08452"),
)
# fmt: on

ALGORITHMS: dict[str, Algorithm] = {row.name: row for row in _ROWS}


def get_algorithm(name: str | Algorithm, **overrides) -> Algorithm:
    """A row by name (or one's own), with fields replaced.

    Raises:
      ValueError: an unknown name or field, with the nearest one, or contradicting choices.
    """
    if isinstance(name, str):
        if name not in ALGORITHMS:
            raise unknown("algorithm", name, ALGORITHMS)
        name = ALGORITHMS[name]
    fields = [field.name for field in dataclasses.fields(Algorithm)]
    for given in overrides:
        if given not in fields:
            raise unknown("field of an algorithm", given, fields)
    return dataclasses.replace(name, **overrides)
