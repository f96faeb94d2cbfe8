"""Finite decision processes as tables, and what a tabular policy earns in them, exact.

A policy is a table of action probabilities by observation, [O, A]. Everything is float64 and holds
to rounding: no sampling is involved. Shapes: S states, O observations, A actions, C outcomes of
chance after an action, H decisions of the longest episode.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

OVER = -1
"""Observation of a state in which the episode is over."""


@dataclasses.dataclass(frozen=True, eq=False)
class DecisionProcess:
    """States in an order in which no episode goes back.

    What a state holds and its observation does not is hidden: the policy cannot act on it, but a
    snapshot of the state keeps it.

    Attributes:
      start: probability of each state to begin in, float [S].
      observation: what the policy sees of each state, int [S]; OVER where the episode is over.
      legal: actions allowed at each observation, bool [O, A].
      successor: next state, int [S, A, C]; read at legal actions only.
      chance: probability of each successor, float [S, A, C].
      reward: paid when an action leads to the state, float [S].
      names: key of each observation; may be left out.

    Raises:
      ValueError: arrays whose shapes do not fit, probabilities that do not add up to 1, a start
        where the episode is over, a successor that does not come after its state, or an observation
        that is not there.
    """

    start: np.ndarray
    observation: np.ndarray
    legal: np.ndarray
    successor: np.ndarray
    chance: np.ndarray
    reward: np.ndarray
    names: tuple[str, ...] = ()

    def __post_init__(self):
        states, (seen, actions) = len(self.start), self.legal.shape
        shapes = {
            "observation": (states,),
            "reward": (states,),
            "successor": (states, actions, self.successor.shape[-1]),
            "chance": self.successor.shape,
        }
        for name, shape in shapes.items():
            if getattr(self, name).shape != shape:
                raise ValueError(f"{name} has shape {getattr(self, name).shape}, expected {shape}")
        if self.observation.max(initial=OVER) >= seen or self.observation.min(initial=0) < OVER:
            raise ValueError(f"observation must name one of {seen} rows, or be {OVER} at the end")
        if not self.legal.any(axis=1).all():
            raise ValueError(f"observation {np.argmin(self.legal.any(axis=1))} allows no action")
        if not (self.start.min() >= 0 and abs(self.start.sum() - 1) < 1e-9):
            raise ValueError(f"start must be probabilities that add up to 1, not {self.start}")
        if (self.start[self.observation == OVER] > 0).any():
            raise ValueError("an episode must not start in a state where it is over")
        played = self.played()
        if not np.allclose(self.chance.sum(axis=-1)[played], 1) or self.chance.min(initial=0) < 0:
            raise ValueError("chance must be probabilities that add up to 1 after a legal action")
        later = (self.successor > np.arange(states)[:, None, None]) & (self.successor < states)
        if not later[played].all():
            state = int(np.argmax((~later.all(axis=-1) & played).any(axis=1)))
            raise ValueError(
                f"state {state} leads to {self.successor[state].tolist()}; number the {states} "
                "states so that every action leads to a later one"
            )

    def played(self) -> np.ndarray:
        """State-action pairs that can occur, bool [S, A]; none where the episode is over."""
        return self.legal[self.observation] & (self.observation != OVER)[:, None]

    def uniform_policy(self) -> np.ndarray:
        """Equal probability of the legal actions, [O, A]."""
        return self.legal / self.legal.sum(axis=1, keepdims=True)

    def softmax_policy(self, logits: np.ndarray) -> np.ndarray:
        """Policy of logits [O, A]; what is not legal has probability 0."""
        allowed = np.where(self.legal, logits, -np.inf)
        weight = np.exp(allowed - allowed.max(axis=1, keepdims=True))
        return weight / weight.sum(axis=1, keepdims=True)

    def check_policy(self, policy: np.ndarray) -> np.ndarray:
        """Returns `policy` as float64 [O, A]; ValueError where it is no policy of this process."""
        policy = np.asarray(policy, np.float64)
        if policy.shape != self.legal.shape:
            raise ValueError(f"a policy here has shape {self.legal.shape}, not {policy.shape}")
        bad = (policy < 0) | np.isnan(policy) | ((policy > 0) & ~self.legal)
        wrong = bad.any(axis=1) | (np.abs(policy.sum(axis=1) - 1) > 1e-9)
        if wrong.any():
            row = int(np.argmax(wrong))
            raise ValueError(
                f"row {row} of the policy is {policy[row].tolist()}; it must be probabilities of "
                f"the actions {np.flatnonzero(self.legal[row]).tolist()} that add up to 1"
            )
        return policy


class Exact(NamedTuple):
    """What a policy earns. R is the return of an episode, s_t its state before decision t.

    Attributes:
      value: E[R].
      gradient: d E[R] / d logits of a softmax policy, [O, A].
      variance: Var(R).
      within: E[Var(R | s_t)] for t = 0, ..., H, [H + 1]; 0 where the episode is over by then. It is
        the variance that a snapshot of the state leaves open; Var(R) - within[t] is the part that
        the prefix explains.
      visits: expected number of visits of each observation, [O].
    """

    value: float
    gradient: np.ndarray
    variance: float
    within: np.ndarray
    visits: np.ndarray

    @property
    def explained(self) -> np.ndarray:
        """Share of Var(R) that the prefix before decision t explains, [H + 1]; 0 if Var(R) is."""
        if not self.variance > 0:
            return np.zeros_like(self.within)
        return 1 - self.within / self.variance


def exact(process: DecisionProcess, policy: np.ndarray) -> Exact:
    """Value, gradient and variances by summing over all states.

    With Q(s, a) the expected return to go after a in s, V(s) = sum_a pi(a | s) Q(s, a) and d(s) the
    probability that s is visited, the gradient by the logit of action a at observation o is
    sum over states s seen as o of d(s) pi(a | o) (Q(s, a) - V(s)) (Sutton et al. 2000).
    """
    policy = process.check_policy(policy)
    mean, square, action_value = _returns_to_go(process, policy)
    seen = np.maximum(process.observation, 0)
    pairs = np.where(process.played(), policy[seen], 0.0)
    spread = square - mean**2
    reached, within, visited = process.start, [], np.zeros(len(process.start))
    while (alive := np.where(process.observation != OVER, reached, 0.0)).any():
        within.append(alive @ spread)
        visited += alive
        flow = (alive[:, None] * pairs)[..., None] * process.chance
        target = np.where(process.played()[..., None], process.successor, 0)
        reached = np.bincount(target.ravel(), flow.ravel(), len(process.start))
    terms = visited[:, None] * pairs * (action_value - mean[:, None])
    gradient, visits = np.zeros(policy.shape), np.zeros(len(policy))
    np.add.at(gradient, seen, terms)
    np.add.at(visits, seen, visited)
    value = float(process.start @ mean)
    variance = float(process.start @ square - value**2)
    return Exact(value, gradient, variance, np.array([*within, 0.0]), visits)


def _returns_to_go(process: DecisionProcess, policy: np.ndarray):
    """Mean and mean square of the return to go of each state [S], and its mean by action [S, A]."""
    states = len(process.start)
    mean, square = np.zeros(states), np.zeros(states)
    action_value = np.zeros(process.chance.shape[:2])
    played = process.played()
    for state in reversed(range(states)):
        actions = np.flatnonzero(played[state])
        if not len(actions):
            continue
        after, chance = process.successor[state, actions], process.chance[state, actions]
        paid = process.reward[after]
        first = (chance * (paid + mean[after])).sum(axis=-1)
        second = (chance * (paid**2 + 2 * paid * mean[after] + square[after])).sum(axis=-1)
        probability = policy[process.observation[state], actions]
        action_value[state, actions] = first
        mean[state], square[state] = probability @ first, probability @ second
    return mean, square, action_value


class Path(NamedTuple):
    """Decisions from some state to the end of the episode.

    Attributes:
      chance: probability of the path, given the state that it starts from.
      states: state before each decision.
      actions: taken there.
      rewards: paid after each decision.
    """

    chance: float
    states: tuple[int, ...]
    actions: tuple[int, ...]
    rewards: tuple[float, ...]


def paths_from(process: DecisionProcess, policy: np.ndarray, state: int) -> Iterator[Path]:
    """Every path from a state that has a probability above 0."""
    seen = process.observation[state]
    if seen == OVER:
        yield Path(1.0, (), (), ())
        return
    for action in np.flatnonzero(process.legal[seen] & (policy[seen] > 0)).tolist():
        for after, chance in zip(
            process.successor[state, action].tolist(), process.chance[state, action], strict=True
        ):
            if not chance:
                continue
            step, paid = float(policy[seen, action] * chance), float(process.reward[after])
            for rest in paths_from(process, policy, after):
                yield Path(
                    step * rest.chance,
                    (state, *rest.states),
                    (action, *rest.actions),
                    (paid, *rest.rewards),
                )


def sample_paths(
    process: DecisionProcess, policy: np.ndarray, states: np.ndarray, rng: np.random.Generator
) -> list[Path]:
    """A path from each of `states` [R], all drawn side by side; their `chance` is 1 / R."""
    count, now = len(states), np.array(states)
    visited, actions, rewards = [], [], []
    cumulative = policy.cumsum(axis=1)
    last = policy.shape[1] - 1 - np.argmax(policy[:, ::-1] > 0, axis=1)
    while (alive := process.observation[now] != OVER).any():
        seen = np.where(alive, process.observation[now], 0)
        # Rounding may leave the last sum below the draw: the last possible action is taken then.
        below = (cumulative[seen] <= rng.random((count, 1))).sum(axis=1)
        action = np.minimum(below, last[seen])
        chances = process.chance[now, action].cumsum(axis=1)
        outcome = (chances <= rng.random((count, 1))).sum(axis=1)
        after = process.successor[now, action, np.minimum(outcome, chances.shape[1] - 1)]
        visited.append(np.where(alive, now, -1))
        actions.append(action)
        now = np.where(alive, after, now)
        rewards.append(process.reward[now])
    columns = [np.array(each).T.reshape(count, -1) for each in (visited, actions, rewards)]
    lengths = (columns[0] >= 0).sum(axis=1).tolist()
    rows = zip(*(column.tolist() for column in columns), lengths, strict=True)
    return [Path(1 / count, tuple(s[:n]), tuple(a[:n]), tuple(r[:n])) for s, a, r, n in rows]


def process_of_paths(rewards: Mapping[tuple[int, ...], float]) -> DecisionProcess:
    """A process without chance or hidden state: what was done so far is the state, and is seen.

    Args:
      rewards: sequence of actions -> what the episode that ends there earns. Sequences may differ
        in length; those that go on from a prefix must do so by the actions 0, ..., n - 1.

    Raises:
      ValueError: a sequence that goes on where another one ends, or a missing action.
    """
    prefixes = {path[:size] for path in rewards for size in range(len(path))}
    if not prefixes or prefixes & rewards.keys():
        raise ValueError(f"paths {sorted(rewards)} must be one or more, none a prefix of another")
    states = sorted(prefixes | rewards.keys(), key=lambda path: (len(path), path))
    number = {path: index for index, path in enumerate(states)}
    seen = {path: index for index, path in enumerate(p for p in states if p in prefixes)}
    width = max(path[-1] for path in states if path) + 1
    legal = np.array([[(*path, a) in number for a in range(width)] for path in seen])
    gaps = legal[:, 1:] & ~legal[:, :-1]
    if gaps.any():
        path = list(seen)[int(np.argmax(gaps.any(axis=1)))]
        raise ValueError(f"actions after {path} must be 0, 1, ... without a gap")
    successor = np.zeros((len(states), width, 1), np.int64)
    for path, index in number.items():
        if path:
            successor[number[path[:-1]], path[-1]] = index
    return DecisionProcess(
        start=np.eye(len(states))[0],
        observation=np.array([seen.get(path, OVER) for path in states]),
        legal=legal,
        successor=successor,
        chance=np.ones(successor.shape),
        reward=np.array([float(rewards.get(path, 0.0)) for path in states]),
        names=tuple(",".join(map(str, path)) for path in seen),
    )
