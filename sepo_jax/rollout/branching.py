"""Branching rollouts: episodes that go on from states of another one, the trunk of their tree.

    branching = Branching(branch_points=2, continuations=4)
    rollout = play_branching(policy, params, requests, pool, options, branching, seed=0)
    forest = rollout.forest()

A trunk is played to its end, with a snapshot of every state in which it acted. Then branch points
are chosen among these states, and at each of them forks go on with fresh samples: the environment
from the snapshot, the context from a copy of the trunk's cache. A tree thus has 1 + M (K - 1)
leaves, for M branch points with K continuations each, the trunk's own among them. BPO, arXiv
2607.14171.

What a selector may look at decides whether the gradient is unbiased (`advantages.tree`): that needs
branch points chosen without looking ahead. "threshold" with the entropy of the first token is such
a choice, as long as it finds all its branch points: it depends on the states up to the branch
alone. The others rank the decisions of the finished trunk, leave out its last and therefore know
how it went; so does the mean entropy of an action, which is known once the action is sampled.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import chex
import numpy as np

from ..names import check_option
from ..policy import Policy
from ..sandbox.episodes import Action, EpisodeRequest, EpisodeResult
from ..sandbox.protocol import EnvironmentFactory, Pool
from .driver import EngineOptions
from .play import DEFAULT_OPTIONS, Rollout, check_requests, play
from .selectors import ENTROPIES, SELECTORS, first_above, highest, lowest, shares, uniform
from .sharing import Share


@dataclass(frozen=True)
class Branching:
    """How trees grow.

    Attributes:
      branch_points: M, of each trunk; with 0 trunks are all there is.
      continuations: K, of each branch point, the trunk's own among them; with 1 likewise.
      selector: which decisions of a trunk are branch points. "entropy": those of highest entropy;
        "uniform": any; "lowest": those of lowest entropy; "threshold": the first ones whose entropy
        is above `threshold`. Ties go to the earlier. The last decision of a trunk is left out,
        unless it is the only one; but not by "threshold", which could not know it for the last.
      spacing: least distance of two branch points: tokens of the context, what was given included,
        between the beginnings of their actions.
      trees_per_prompt: trunks of each request.
      entropy_of: the entropy of a decision, exact and of the distribution that was sampled from: at
        its "first_token", or the "mean" over its tokens.
      threshold: nats.

    Raises:
      ValueError: an unknown option or a number out of range.
    """

    branch_points: int = 2
    continuations: int = 4
    selector: str = "entropy"
    spacing: int = 64
    trees_per_prompt: int = 1
    entropy_of: str = "first_token"
    threshold: float = 1.0

    def __post_init__(self):
        check_option("selector", self.selector, SELECTORS)
        check_option("entropy_of", self.entropy_of, ENTROPIES)
        least_of = {"branch_points": 0, "continuations": 1, "spacing": 0, "trees_per_prompt": 1}
        for name, least in least_of.items():
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ValueError(f"{name} must be a whole number from {least} on, got {value!r}")
        if not math.isfinite(self.threshold):
            raise ValueError(f"threshold must be a finite number of nats, got {self.threshold}")

    @property
    def forks(self) -> int:
        """Episodes of a tree beside its trunk: M (K - 1)."""
        return self.branch_points * (self.continuations - 1)

    @property
    def leaves(self) -> int:
        """Leaves of all trees of a prompt."""
        return self.trees_per_prompt * (1 + self.forks)


def choose(
    branching: Branching,
    entropy: np.ndarray,
    offsets: np.ndarray,
    generator: np.random.Generator,
) -> np.ndarray:
    """The branch points of a trunk: at least one, and fewer than M where the selector finds fewer.

    Where "threshold" finds none, the first decision is the only one. Entropies count to four
    decimals: the last bits change with the number of slots, and branch points must not.

    Args:
      branching: the choice.
      entropy: float [n], n >= 1, of each decision. offsets: int [n], where it begins.
      generator: for "uniform".

    Returns:
      int64 [1 to M], ascending positions.
    """
    count, spacing = branching.branch_points, branching.spacing
    entropy = np.round(entropy, 4)
    if branching.selector == "threshold":
        found = first_above(entropy, offsets, count, spacing, branching.threshold)
        return found if len(found) else np.zeros(1, np.int64)
    known = max(len(entropy) - 1, 1)
    entropy, offsets = entropy[:known], offsets[:known]
    if branching.selector == "uniform":
        return uniform(generator, offsets, count, spacing)
    rank = {"entropy": highest, "lowest": lowest}[branching.selector]
    return rank(entropy, offsets, count, spacing)


def decision_entropy(actions: Sequence[Action], entropy_of: str) -> np.ndarray:
    """Entropy of each decision in nats, float64 [n]; see `Branching.entropy_of`."""
    check_option("entropy_of", entropy_of, ENTROPIES)
    if entropy_of == "first_token":
        return np.array([action.entropy[0] for action in actions], np.float64)
    return np.array([action.entropy.mean(dtype=np.float64) for action in actions])


def decision_offsets(actions: Sequence[Action]) -> np.ndarray:
    """Tokens of the context before each action, int64 [n]."""
    given = np.array([len(action.given) for action in actions], np.int64)
    sampled = np.array([len(action.tokens) for action in actions], np.int64)
    return np.cumsum(given + sampled) - sampled


# ---- rollouts


def play_branching(
    policy: Policy | Sequence[Policy],
    params: chex.ArrayTree | Sequence[chex.ArrayTree],
    requests: Sequence[EpisodeRequest],
    pool: Pool | EnvironmentFactory,
    options: EngineOptions = DEFAULT_OPTIONS,
    branching: Branching | Sequence[Branching] | None = None,
    *,
    seed: int,
    step: int = 0,
    seats: Sequence[int] = (0,),
    share: Share | None = None,
    progress: str = "",
) -> Rollout:
    """Plays trees: trunks, and the forks that go on from their branch points.

    A trunk with fewer branch points than M spreads all M (K - 1) forks over those that it has, so
    that it has as many leaves as any other; only one that ends before its first decision has no
    forks. With M = 0 or K = 1 this is `play` of the trunks. A trunk that failed has no forks, and a
    fork that failed is left out of its siblings' comparison as if it had not been asked for.

    Args:
      policy, params: the agent, or one of each agent.
      requests: prompts. Trunk t of a request has member `member * trees_per_prompt + t`, by the
        largest trees_per_prompt of all, and forks have members above those of all trunks; so
        nothing that is sampled depends on the order of work.
      pool, options, seed, step, seats, share, progress: as of `play`.
      branching: how trees grow, of all requests or one of each, so that some may be played without
        branch points beside others; `Branching()` by default.

    Returns:
      Rollout: each trunk, then its forks in order of their branch points. Its forest joins forks to
      their trunk; its statistics have the figures of `figures` beside those of `play`.

    Raises:
      ValueError: as `play`; requests that go on from another episode; another number of Branching
        than of requests; a trunk whose decisions do not lie in one context.
      TooManyFailures: as `play`; environments that keep no snapshots fail all trunks.
    """
    grows = _of_each(Branching() if branching is None else branching, check_requests(requests))
    trunks, grows = _trunks(requests, grows)
    stride = 1 + max((trunk.member for trunk in trunks), default=0)
    of_trunk = {(t.group, t.member): each for t, each in zip(trunks, grows, strict=True)}

    def follow_ups(result: EpisodeResult) -> list[EpisodeRequest]:
        request = result.request
        if result.failure is not None or request.past is not None:
            return []
        return _forks(result, of_trunk[request.group, request.member], seed, step, stride)

    rollout = play(
        policy,
        params,
        trunks,
        pool,
        options,
        seed=seed,
        step=step,
        seats=seats,
        follow_ups=follow_ups if any(each.forks for each in grows) else None,
        share=share,
        progress=progress,
    )
    if not rollout.results:
        return rollout
    found = figures(rollout.results, grows)
    computed = rollout.statistics["prefilled_tokens"] + rollout.statistics["sampled_tokens"]
    found["computed_tokens_per_leaf"] = computed / max(found["leaves"], 1)
    return replace(rollout, statistics=rollout.statistics | found)


def _of_each(branching: Branching | Sequence[Branching], prompts: Sequence) -> list[Branching]:
    """How the tree of each prompt grows."""
    if isinstance(branching, Branching):
        return [branching] * len(prompts)
    if len(branching) != len(prompts):
        raise ValueError(
            f"{len(branching)} Branching for {len(prompts)} requests; give one for each, or a "
            "single one for all"
        )
    return list(branching)


def _trunks(
    requests: Sequence[EpisodeRequest], grows: Sequence[Branching]
) -> tuple[list[EpisodeRequest], list[Branching]]:
    """The trunks of all requests, and how the tree of each grows."""
    trees = max((each.trees_per_prompt for each in grows), default=1)
    trunks, of_trunk = [], []
    for request, each in zip(requests, grows, strict=True):
        if request.past is not None:
            raise ValueError(
                f"the request of group {request.group}, member {request.member} goes on from "
                "another episode; trunks begin anew: leave its past out"
            )
        for tree in range(each.trees_per_prompt):
            member = request.member * trees + tree
            trunks.append(replace(request, member=member, keep_snapshots=each.forks > 0))
            of_trunk.append(each)
    return trunks, of_trunk


def _forks(
    result: EpisodeResult, branching: Branching, seed: int, step: int, stride: int
) -> list[EpisodeRequest]:
    """The forks of a trunk, in order of their branch points."""
    actions, request = result.actions, result.request
    if not (actions and branching.forks):
        return []
    fresh = [action.turn for action in actions if action.context != actions[0].context]
    if fresh:
        raise ValueError(
            f"the episode of group {request.group}, member {request.member} has a context of its "
            f"own at turn {fresh[0]}; a tree branches within one context, which its prompts "
            "continue (Prompt.continues): set branch_points=0 for this environment"
        )
    generator = np.random.default_rng([seed, step, request.group, request.member])
    entropy = decision_entropy(actions, branching.entropy_of)
    points = choose(branching, entropy, decision_offsets(actions), generator)
    turns = [
        actions[point].turn
        for point, count in zip(points, shares(branching.forks, len(points)), strict=True)
        for _ in range(count)
    ]
    return [
        result.continuation(turn, member=request.member + stride * (number + 1))
        for number, turn in enumerate(turns)
    ]


# ---- what came out


@dataclass(frozen=True)
class BranchPoint:
    """A state of a trunk from which forks went on.

    Attributes:
      turn: of the trunk.
      entropy: of the trunk's decision there, nats.
      forks: places of the forks among the results, failed ones too.
    """

    turn: int
    entropy: float
    forks: tuple[int, ...]


@dataclass(frozen=True)
class Tree:
    """A trunk, by its place among the results, and its branch points in order."""

    trunk: int
    points: tuple[BranchPoint, ...]


def trees(
    results: Sequence[EpisodeResult], entropy_of: str | Sequence[str] = "first_token"
) -> list[Tree]:
    """The trees of a branching rollout, in the order of their trunks; `entropy_of` is of all their
    branch points, or one of each trunk's."""
    trunk_of: dict[Action, int] = {}
    forks: dict[int, dict[int, list[int]]] = {}
    for index, result in enumerate(results):
        past = result.request.past
        if past is None:
            trunk_of |= dict.fromkeys(result.actions, index)
            forks[index] = {}
        else:
            trunk = trunk_of[past.asked[0]]
            forks[trunk].setdefault(past.turn, []).append(index)
    found = []
    for number, (trunk, by_turn) in enumerate(forks.items()):
        kind = entropy_of if isinstance(entropy_of, str) else entropy_of[number]
        entropy = decision_entropy(results[trunk].actions, kind)
        of_turn = dict(zip((a.turn for a in results[trunk].actions), entropy, strict=True))
        points = [
            BranchPoint(turn, float(of_turn[turn]), tuple(by_turn[turn]))
            for turn in sorted(by_turn)
        ]
        found.append(Tree(trunk, tuple(points)))
    return found


def leaf_weights(results: Sequence[EpisodeResult]) -> np.ndarray:
    """Weight of each episode in means over what the policy does, float64 [results].

    The product of 1/K over the branch points above its leaf, K the continuations that did not fail:
    states that were forked count no more than others. The weights of a tree add up to 1; a failed
    episode has 0.
    """
    weights = np.zeros(len(results))
    for tree in trees(results):
        left = float(results[tree.trunk].failure is None)
        for point in tree.points:
            played = [fork for fork in point.forks if results[fork].failure is None]
            left /= len(played) + 1
            weights[played] = left
        weights[tree.trunk] = left
    return weights


def figures(
    results: Sequence[EpisodeResult], branching: Branching | Sequence[Branching]
) -> dict[str, float]:
    """Figures of a branching rollout.

    Args:
      results: of all its episodes.
      branching: how trees grow, of all trunks or one of each.

    Returns:
      leaves: episodes that did not fail. missing_leaves: what the budget has beyond them, which are
      forks that failed and whole trees of trunks that did. branch_points: how many. short_trees:
      trunks with fewer than M, failed ones apart. Where there are branch points, branch_entropy:
      mean over them, and decision_entropy: over all decisions of trunks, nats.
    """
    leaves = sum(result.failure is None for result in results)
    grows = _of_each(branching, [each for each in results if each.request.past is None])
    grown = trees(results, [each.entropy_of for each in grows])
    whole = [
        (tree, each)
        for tree, each in zip(grown, grows, strict=True)
        if results[tree.trunk].failure is None
    ]
    points = [point for tree, _ in whole for point in tree.points]
    short = [len(tree.points) < each.branch_points for tree, each in whole if each.forks]
    found = {
        "leaves": leaves,
        "missing_leaves": sum(1 + each.forks for each in grows) - leaves,
        "branch_points": len(points),
        "short_trees": sum(short),
    }
    if points:
        decided = [
            decision_entropy(results[tree.trunk].actions, each.entropy_of) for tree, each in whole
        ]
        found["branch_entropy"] = float(np.mean([point.entropy for point in points]))
        found["decision_entropy"] = float(np.concatenate(decided).mean())
    return found
