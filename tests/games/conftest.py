"""Independent oracles (plain recursion over histories) and random games."""

import functools
import itertools
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest

from sepo_jax.games.compiler import CHANCE, compile_game


@functools.lru_cache
def _plan(seed):
    """Who moves, how many actions, which moves are hidden, and the weights of the types."""
    rng = np.random.default_rng(seed)
    depth = int(rng.integers(2, 5))
    movers = np.append(rng.permutation(2), rng.integers(0, 2, depth - 2))
    widths = rng.choice([1, 2, 2, 3], depth)
    return movers, widths, rng.random(depth) < 0.5, rng.dirichlet([1, 1], 2)


@functools.lru_cache
def _payoffs(seed, types, moves):
    rng = np.random.default_rng((seed, *types, 7, *moves))
    first, second = rng.integers(-3, 4, 2).tolist()
    return (first, second if seed % 2 else -first)  # odd seeds are general-sum


@dataclass(frozen=True)
class RandomState:
    """A random game with hidden types: chance deals each player one of two types, players move in
    random order with one to three actions, and some moves stay hidden from the opponent.

    Perfect recall holds by construction: a player sees the own type, own moves and open moves.
    """

    seed: int
    types: tuple[int, ...] = ()
    moves: tuple[int, ...] = ()

    def is_terminal(self):
        return len(self.moves) == len(_plan(self.seed)[0])

    def current_player(self):
        return CHANCE if len(self.types) < 2 else int(_plan(self.seed)[0][len(self.moves)])

    def legal_actions(self):
        return range(int(_plan(self.seed)[1][len(self.moves)]))

    def chance_outcomes(self):
        return list(enumerate(_plan(self.seed)[3][len(self.types)].tolist()))

    def child(self, action):
        if len(self.types) < 2:
            return RandomState(self.seed, (*self.types, action), self.moves)
        return RandomState(self.seed, self.types, (*self.moves, action))

    def information_state(self):
        movers, _, hidden, _ = _plan(self.seed)
        player = self.current_player()
        seen = [
            str(move) if movers[turn] == player or not hidden[turn] else "?"
            for turn, move in enumerate(self.moves)
        ]
        return f"player {player}, type {self.types[player]}: {''.join(seen)}"

    def returns(self):
        return _payoffs(self.seed, self.types, self.moves)


def expected(root, game, policy):
    """Expected payoffs by recursion over histories."""
    rows = {name: row for row, name in enumerate(game.infoset_names)}

    def walk(state):
        if state.is_terminal():
            return np.array(state.returns(), float)
        if state.current_player() == CHANCE:
            return sum(p * walk(state.child(o)) for o, p in state.chance_outcomes())
        row = policy[rows[state.information_state()]]
        return sum(row[action] * walk(state.child(action)) for action in state.legal_actions())

    return walk(root)


def best_value(root, game, policy, player, peek=False):
    """Best-response value by histories grouped into information sets; `peek` groups nothing, which
    is the mistake of a best response that sees hidden cards."""
    rows = {name: row for row, name in enumerate(game.infoset_names)}
    members = {}

    def collect(state, reach, path):
        if state.is_terminal():
            return
        mover = state.current_player()
        if mover == CHANCE:
            for outcome, p in state.chance_outcomes():
                collect(state.child(outcome), reach * p, (*path, outcome))
            return
        key = path if peek else state.information_state()
        if mover == player:
            members.setdefault(key, []).append((state, reach, path))
        for action in state.legal_actions():
            weight = policy[rows[state.information_state()], action] if mover != player else 1.0
            collect(state.child(action), reach * weight, (*path, action))

    choices = {}

    def choose(key):
        if key not in choices:
            state = members[key][0][0]
            values = [
                sum(
                    reach * walk(s.child(action), (*path, action))
                    for s, reach, path in members[key]
                )
                for action in state.legal_actions()
            ]
            choices[key] = list(state.legal_actions())[int(np.argmax(values))]
        return choices[key]

    def walk(state, path):
        if state.is_terminal():
            return state.returns()[player]
        mover = state.current_player()
        if mover == CHANCE:
            outcomes = state.chance_outcomes()
            return sum(p * walk(state.child(o), (*path, o)) for o, p in outcomes)
        if mover == player:
            action = choose(path if peek else state.information_state())
            return walk(state.child(action), (*path, action))
        row = policy[rows[state.information_state()]]
        return sum(
            row[action] * walk(state.child(action), (*path, action))
            for action in state.legal_actions()
        )

    collect(root, 1.0, ())
    return walk(root, ())


def gains(root, game, policy, peek=False):
    values = expected(root, game, policy)
    return np.array([best_value(root, game, policy, p, peek) - values[p] for p in (0, 1)])


def brute_force_best(root, game, policy, player):
    """Best value over every pure policy of one player."""
    own = [row for row in range(game.num_infosets) if game.infoset_players[row] == player]
    options = [np.flatnonzero(game.legal_mask[row]) for row in own]
    best = -np.inf
    for choice in itertools.product(*options):
        table = np.array(policy, float)
        table[own] = 0
        table[own, list(choice)] = 1
        best = max(best, expected(root, game, table)[player])
    return best


def random_policies(game, count, seed=0, pure=0.0):
    """[count, infosets, actions]; a share of `pure` entries is set to 0 to make dead branches."""
    rng = np.random.default_rng(seed)
    table = rng.random((count, game.num_infosets, game.num_actions)) + 1e-3
    table *= (rng.random(table.shape) >= pure) + 1e-9
    table *= game.legal_mask
    table = np.where(table < 1e-6, 0, table)
    empty = table.sum(-1, keepdims=True) == 0
    table = np.where(empty, game.legal_mask, table)
    return table / table.sum(-1, keepdims=True)


@pytest.fixture(scope="session")
def oracle():
    return SimpleNamespace(
        RandomState=RandomState,
        expected=expected,
        best_value=best_value,
        brute_force_best=brute_force_best,
        gains=gains,
        random_policies=random_policies,
    )


@pytest.fixture(scope="session")
def random_games():
    """{seed: (root, compiled game)}; odd seeds are general-sum."""
    roots = {seed: RandomState(seed) for seed in (2, 3, 5, 7, 8, 10, 11, 14)}
    return {seed: (root, compile_game(root, f"random {seed}")) for seed, root in roots.items()}
