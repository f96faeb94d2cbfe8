"""Simple opponents searched for the one that takes most from a policy: a lower bound.

The family: every move for good; with two moves every deterministic strategy that remembers one
round; every sequence of moves, played over and over, of the greatest length of which there are at
most 256 (with two moves and eight rounds: all sequences); repeating the agent's last move or
answering it with the best reply, from every first move; one move for some rounds and another to the
end. The best of them are the starts of a hill climb over finite machines: change one entry, keep
what does not lose.

Whatever opponent comes out, its mean is at most that of the best response. The episodes by which it
was chosen overrate it, because the best of many noisy means is partly the luckiest; so its mean
is estimated anew from fresh episodes, on which nothing was chosen. That estimate is unbiased, and
its interval that of one mean.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sepo_jax.domains.arguments import check_integer
from sepo_jax.domains.figures import NORMAL_QUANTILE
from sepo_jax.sepo.automata import Automaton, memory_one_machine, sequence_machine
from sepo_jax.sepo.histories import Contexts, HistoryGame, HistoryPolicy

_MOST_OF_A_KIND = 256  # strategies that are listed in full, for each kind


@dataclass(frozen=True)
class SearchSettings:
    """How a search is run.

    Attributes:
      episodes: sampled to choose an opponent, and again, fresh ones, to judge it; at least 2.
      starts: opponents of the family from which a hill climb starts.
      generations: steps of each climb.
      mutants: machines tried in each step.
      seed: fixes everything.
    """

    episodes: int = 1000
    starts: int = 3
    generations: int = 40
    mutants: int = 8
    seed: int = 0

    def __post_init__(self):
        least = {"episodes": 2, "starts": 0, "generations": 0, "mutants": 1, "seed": 0}
        for name, minimum in least.items():
            check_integer(name, getattr(self, name), minimum)


class Found(NamedTuple):
    """What a search found.

    Attributes:
      value: mean payoff a round over fresh episodes.
      low, high: its 95 % interval.
      opponent: the machine.
      num_contexts: distinct contexts at which the policy was asked.
    """

    value: float
    low: float
    high: float
    opponent: Automaton
    num_contexts: int


class _Remembered:
    """A policy that is asked once for each context."""

    def __init__(self, policy: HistoryPolicy):
        self.policy = policy
        self.rows: dict[bytes, np.ndarray] = {}

    def __call__(self, contexts: Contexts) -> np.ndarray:
        keys = [moves.tobytes() for moves in contexts.moves]
        fresh = [place for place, key in enumerate(keys) if key not in self.rows]
        if fresh:
            asked = self.policy(Contexts(contexts.game, contexts.moves[fresh]))
            self.rows.update(zip((keys[place] for place in fresh), asked, strict=True))
        return np.array([self.rows[key] for key in keys])


def search_exploiter(
    game: HistoryGame, policy: HistoryPolicy, payoff: np.ndarray, settings: SearchSettings
) -> Found:
    """The best opponent of the module's family and climbs, judged on fresh episodes.

    Args:
      game: the game.
      policy: a checked function of contexts.
      payoff: [rounds, A, A], what the opponent maximises, by the agent's and its own move.
      settings: of the search.
    """
    remembered = _Remembered(policy)
    generator = np.random.default_rng(settings.seed)
    size = (settings.episodes, game.rounds)
    draws = generator.random(size)

    def chosen_by(machines: Sequence[Automaton]) -> np.ndarray:
        # The same draws for all: their differences are less noisy than their means.
        return sampled_means(game, remembered, machines, payoff, draws).mean(axis=1)

    machines = list(family(game, payoff))
    scores = chosen_by(machines)
    champion, highest = machines[int(scores.argmax())], scores.max()
    for machine, score in _starts(machines, scores, settings.starts):
        for _ in range(settings.generations):
            brood = [_mutant(machine, generator) for _ in range(settings.mutants)]
            found = chosen_by(brood)
            # Equal ones are taken too: a change may pay only together with a later one.
            if found.max() >= score:
                machine, score = brood[int(found.argmax())], found.max()
        if score > highest:
            champion, highest = machine, score
    fresh = sampled_means(game, remembered, [champion], payoff, generator.random(size))[0]
    spread = NORMAL_QUANTILE * fresh.std(ddof=1) / np.sqrt(len(fresh))
    value = float(fresh.mean())
    count = len(remembered.rows)
    return Found(value, value - float(spread), value + float(spread), champion, count)


def _starts(
    machines: Sequence[Automaton], scores: np.ndarray, count: int
) -> list[tuple[Automaton, float]]:
    """The best machines, one for each score: equal scores are mostly the same play written twice.

    Of those the machine with the most states is taken, which has the most to change.
    """
    best: dict[float, Automaton] = {}
    for machine, score in zip(machines, scores.tolist(), strict=True):
        if score not in best or len(machine.outputs) > len(best[score].outputs):
            best[score] = machine
    return [(best[score], score) for score in sorted(best, reverse=True)[:count]]


def sampled_means(
    game: HistoryGame,
    policy: HistoryPolicy,
    machines: Sequence[Automaton],
    payoff: np.ndarray,
    draws: np.ndarray,
) -> np.ndarray:
    """Payoff a round of each machine in each of some episodes, float64 [machines, episodes].

    Args:
      game, policy, payoff: as in `search_exploiter`.
      machines: the opponents; all are played at once.
      draws: [episodes, rounds], uniform in [0, 1): what the agent's moves are drawn by.
    """
    size, episodes = game.num_actions, len(draws)
    states = np.repeat([machine.start for machine in machines], episodes)
    offsets = np.cumsum([0, *(len(machine.outputs) for machine in machines)])
    first = np.repeat(offsets[:-1], episodes)
    outputs = np.concatenate([machine.outputs for machine in machines])
    transitions = np.concatenate([machine.transitions for machine in machines])
    contexts, place = game.root(), np.zeros(len(states), np.int64)
    total = np.zeros(len(states))
    for number in range(game.rounds):
        shares = np.cumsum(policy(contexts), axis=1)[place]
        # Divided by the last sum, so that a draw below 1 always falls on a move that has a share.
        shares /= shares[:, -1:]
        own = (np.tile(draws[:, number], len(machines))[:, None] >= shares).sum(axis=1)
        other = outputs[first + states]
        total += payoff[number, own, other]
        states = transitions[first + states, own]
        reached, place = np.unique(place * size**2 + own * size + other, return_inverse=True)
        contexts = contexts.after(reached // size**2, reached // size % size, reached % size)
    return total.reshape(len(machines), episodes) / game.rounds


def family(game: HistoryGame, payoff: np.ndarray) -> Iterator[Automaton]:
    """The simple opponents of the module's docstring.

    Args:
      game: the game.
      payoff: [rounds, A, A], by the agent's and the opponent's move; it makes the best replies.
    """
    actions, size = game.situations[0].actions, game.num_actions
    moves = range(size)
    reactions = {"copy": np.arange(size), "best reply": payoff.sum(axis=0).argmax(axis=1)}
    for move in moves:
        constant = np.full((size, size), move)
        yield memory_one_machine(actions, constant, move, f"always {actions[move]}")
    for (what, reply), move in itertools.product(reactions.items(), moves):
        replies = np.tile(reply, (size, 1))
        yield memory_one_machine(actions, replies, move, f"{actions[move]}, then {what}")
    if size ** (size**2 + 1) <= _MOST_OF_A_KIND:
        for start, *replies in itertools.product(moves, repeat=size**2 + 1):
            table = np.array(replies).reshape(size, size)
            yield memory_one_machine(actions, table, start, f"memory one {start}:{replies}")
    lengths = [n for n in range(1, game.rounds + 1) if size**n <= _MOST_OF_A_KIND]
    length = max(lengths, default=1)
    for sequence in itertools.product(moves, repeat=length):
        words = " ".join(actions[move] for move in sequence)
        yield sequence_machine(actions, sequence, f"sequence {words}")
    for last, (early, late) in itertools.product(
        range(1, game.rounds), itertools.permutations(moves, 2)
    ):
        sequence = [early] * (game.rounds - last) + [late] * last
        name = f"{actions[early]}, {actions[late]} in the last {last}"
        yield sequence_machine(actions, sequence, name)


def _mutant(machine: Automaton, generator: np.random.Generator) -> Automaton:
    """A copy with one entry drawn anew: the start, a state's move, or a transition."""
    outputs, transitions = machine.outputs.copy(), machine.transitions.copy()
    start, states = machine.start, len(outputs)
    kind = generator.integers(1 + outputs.size + transitions.size)
    if kind == 0:
        start = int(generator.integers(states))
    elif kind <= outputs.size:
        outputs[kind - 1] = generator.integers(len(machine.actions))
    else:
        transitions.flat[kind - 1 - outputs.size] = generator.integers(states)
    name = machine.name if machine.name.startswith("climbed") else f"climbed from {machine.name}"
    return Automaton(machine.actions, outputs, transitions, start, name)
