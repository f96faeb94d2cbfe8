"""Sequence form of one player, and the passes over it that every tree quantity is made of.

Policies are batch-last here, [infosets, actions, B]: each step below is one operation on long
contiguous rows. Sequences of a player are numbered 0 (no own action) and 1 + i * A + a for action a
of its i-th information set; information sets are sorted by own depth, so that parents of one level
lie in the level above. Nothing divides, so unreached information sets cannot produce NaN.

Every function takes `xp`, numpy or jax.numpy: numpy float64 verifies what solvers return.
"""

import functools
import itertools
from dataclasses import dataclass

import jax
import numpy as np

INDEX = np.int32  # one index type, whether JAX has x64 enabled or not
MAX_UNROLLED_TERMS = 32  # longer sums and maxima are left to one reduction


@dataclass(frozen=True, eq=False)
class Level:
    """Information sets of equal own depth.

    Attributes:
      start, stop: their range among the player's information sets.
      parent: int[n], sequence above each one, counted inside the level above (0 at the top).
      legal: bool[n, A].
      terminal_row: int[n * A], row of `terminal_values` for each sequence; the last row is zero.
      child_row: int[n * A], row of `children` for each sequence; the row after the last is zero.
      children: int[parents, K], information sets of the next level below a sequence, counted inside
        that level; its size stands for "none".
    """

    start: int
    stop: int
    parent: np.ndarray
    legal: np.ndarray
    terminal_row: np.ndarray
    child_row: np.ndarray
    children: np.ndarray


@dataclass(frozen=True, eq=False)
class PlayerForm:
    """Arrays of one player.

    Attributes:
      infosets: int[n], rows of the policy table, sorted by own depth.
      parents: int[n], sequence above each one.
      levels: one `Level` a depth.
      root_row: row of the terms that belong to the empty sequence (may be the zero row).
      terms: groups (opponent sequences int[t, K], chance weights float[t, K], own payoffs minus the
        player's offset times chance float[t, K]), K rising.
      sequences: int[t total], own sequence of each row of terms.
    """

    infosets: np.ndarray
    parents: np.ndarray
    levels: tuple[Level, ...]
    root_row: int
    terms: tuple[tuple[np.ndarray, np.ndarray, np.ndarray], ...]
    sequences: np.ndarray

    @property
    def num_sequences(self) -> int:
        return 1 + sum(level.legal.size for level in self.levels)


def player_form(player, players, parents, depths, legal_mask, payoffs) -> PlayerForm:
    """Builds the arrays of `player` from what the compiler collected.

    Args:
      player: 0 or 1.
      players, depths: int[infosets]; parents: last own (infoset, action) or None for each infoset.
      legal_mask: bool[infosets, actions].
      payoffs: {(sequence of player 0, sequence of player 1): both payoffs minus their offsets
        and 1, all chance-weighted}.
    """
    num_actions = legal_mask.shape[1]
    order, local = _own_order(player, players, depths)
    _, opponent_local = _own_order(1 - player, players, depths)

    def number(sequence, position) -> int:
        return 0 if sequence is None else 1 + position[sequence[0]] * num_actions + sequence[1]

    rows: dict[int, list[tuple[int, float, float]]] = {}
    for pair, values in payoffs.items():
        own = number(pair[player], local)
        opponent = number(pair[1 - player], opponent_local)
        rows.setdefault(own, []).append((opponent, values[2], values[player]))
    terms, sequences = _padded_terms(rows)
    row_of = {sequence: row for row, sequence in enumerate(sequences)}
    above = np.array([number(parents[infoset], local) for infoset in order], INDEX)
    levels = _levels(depths[order], above, legal_mask[order], row_of, len(sequences))
    return PlayerForm(
        order, above, levels, row_of.get(0, len(sequences)), terms, np.array(sequences, INDEX)
    )


def _own_order(player, players, depths) -> tuple[np.ndarray, dict[int, int]]:
    own = np.flatnonzero(players == player)
    order = own[np.argsort(depths[own], kind="stable")].astype(INDEX)
    return order, {int(infoset): position for position, infoset in enumerate(order)}


def _padded_terms(rows) -> tuple[tuple, list[int]]:
    """Groups sequences by number of terms, to the next power of two: little padding."""
    groups: dict[int, list[int]] = {}
    for sequence in sorted(rows):
        groups.setdefault((len(rows[sequence]) - 1).bit_length(), []).append(sequence)
    terms, sequences = [], []
    for size in sorted(groups):
        members = groups[size]
        width = max(len(rows[sequence]) for sequence in members)
        opponent = np.zeros((len(members), width), INDEX)
        chance, weight = np.zeros((2, len(members), width))
        for row, sequence in enumerate(members):
            for column, (index, probability, value) in enumerate(rows[sequence]):
                opponent[row, column] = index
                chance[row, column], weight[row, column] = probability, value
        terms.append((opponent, chance, weight))
        sequences.extend(members)
    return tuple(terms), sequences


def _levels(depths, above, legal, row_of, zero_row) -> tuple[Level, ...]:
    num_actions = legal.shape[1]
    bounds = [
        int(bound) for bound in np.searchsorted(depths, np.arange(depths.max(initial=-1) + 2))
    ]
    levels = []
    for depth, (start, stop) in enumerate(itertools.pairwise(bounds)):
        first = 1 + start * num_actions  # number of this level's first sequence
        size = (stop - start) * num_actions
        offset = 1 + bounds[depth - 1] * num_actions if depth else 0
        end = bounds[depth + 2] if depth + 2 < len(bounds) else stop
        below: dict[int, list[int]] = {}
        for child in range(stop, end):
            below.setdefault(int(above[child]) - first, []).append(child - stop)
        width = max((len(members) for members in below.values()), default=0)
        children = np.full((len(below), width), end - stop, INDEX)
        child_row = np.full(size, len(below), INDEX)
        for row, (sequence, members) in enumerate(sorted(below.items())):
            children[row, : len(members)] = members
            child_row[sequence] = row
        terminal = [row_of.get(first + sequence, zero_row) for sequence in range(size)]
        levels.append(
            Level(
                start=start,
                stop=stop,
                parent=above[start:stop] - offset,
                legal=legal[start:stop],
                terminal_row=np.array(terminal, INDEX),
                child_row=child_row,
                children=children,
            )
        )
    return tuple(levels)


def settle(array, xp):
    """Keeps XLA from fusing a step into its readers, which would repeat it for every element."""
    return array if xp is np else jax.lax.optimization_barrier(array)


def own_reach(form: PlayerForm, policy, xp):
    """Probability that the player plays each own sequence, given that it is asked to.

    Args:
      policy: the whole table, [infosets, actions, B].

    Returns:
      [sequences, B]; row 0 is 1.
    """
    batch = policy.shape[-1]
    own = policy[form.infosets]
    reach = [xp.ones((1, batch), policy.dtype)]
    for level in form.levels:
        above = reach[-1][level.parent]
        step = above[:, None, :] * own[level.start : level.stop]
        reach.append(step.reshape(level.legal.size, batch))
    return settle(xp.concatenate(reach), xp)


def terminal_values(form: PlayerForm, opponent_reach, xp, offset: float = 0.0):
    """Payoff that ends at each own sequence, weighted by chance and by the opponent's play.

    Args:
      opponent_reach: [opponent sequences, B] from `own_reach`.
      offset: the player's offset, to be added to each payoff, where values and not only gains are
        asked for: at the leaves, so that derivatives see it too.

    Returns:
      [t + 1, B] in the order of `form.sequences`, then one zero row.
    """
    dtype = opponent_reach.dtype
    values = []
    for opponent, chance, weight in form.terms:
        weight = weight + offset * chance if offset else weight
        weight = xp.asarray(weight, dtype)
        if opponent.shape[1] <= MAX_UNROLLED_TERMS:
            columns = range(opponent.shape[1])
            terms = [opponent_reach[opponent[:, k]] * weight[:, k : k + 1] for k in columns]
            values.append(functools.reduce(xp.add, terms))
        else:
            values.append((opponent_reach[opponent] * weight[:, :, None]).sum(axis=1))
    values.append(xp.zeros((1, opponent_reach.shape[-1]), dtype))
    return settle(xp.concatenate(values), xp)


def _sum_children(level: Level, below, xp):
    """Sum over the next level's information sets under each sequence: [next n, B] -> [n * A, B]."""
    zero = xp.zeros((1, below.shape[-1]), below.dtype)
    padded = xp.concatenate([below, zero])
    terms = [padded[level.children[:, k]] for k in range(level.children.shape[1])]
    return xp.concatenate([functools.reduce(xp.add, terms), zero])[level.child_row]


def _action_values(level: Level, terminal, below, xp):
    """Counterfactual value of each action, [n, A, B]; 0 for illegal actions.

    Args:
      terminal: [t + 1, B] from `terminal_values`; below: values [next n, B] of the next level.
    """
    values = terminal[level.terminal_row]
    if level.children.size:
        values = values + _sum_children(level, below, xp)
    return settle(values, xp).reshape(*level.legal.shape, terminal.shape[-1])


def _best_of(level: Level, values, xp):
    """Maximum over legal actions: [n, A, B] -> [n, B]."""
    if not level.legal.all():
        values = xp.where(level.legal[:, :, None], values, -xp.inf)
    if values.shape[1] > MAX_UNROLLED_TERMS:
        return settle(values.max(axis=1), xp)
    options = [values[:, action] for action in range(values.shape[1])]
    return settle(functools.reduce(xp.maximum, options), xp)


def best_value(form: PlayerForm, terminal, xp):
    """Best-response value [B] of the player against the opponent that is in `terminal`."""
    below = None
    for level in reversed(form.levels):
        below = _best_of(level, _action_values(level, terminal, below, xp), xp)
    value = terminal[form.root_row]
    return value + below.sum(axis=0) if form.levels else value


def best_choices(form: PlayerForm, terminal, xp):
    """Pure best response [n, A, B], n >= 1, in the order of `form.infosets`; first of ties."""
    below, choices = None, []
    for level in reversed(form.levels):
        values = _action_values(level, terminal, below, xp)
        below = _best_of(level, values, xp)
        best = xp.where(level.legal[:, :, None], values, -xp.inf).argmax(axis=1)
        choices.append(best[:, None, :] == xp.arange(values.shape[1])[None, :, None])
    return xp.concatenate(choices[::-1])


def policy_action_values(form: PlayerForm, policy, terminal, xp):
    """Counterfactual values under the player's own policy.

    Returns:
      ([n, A, B], [n, B]): values of actions and information sets, ordered as `form.infosets`.
    """
    own = policy[form.infosets]
    if not form.levels:
        return own, own[:, 0]
    below, actions, infosets = None, [], []
    for level in reversed(form.levels):
        actions.append(_action_values(level, terminal, below, xp))
        below = settle((own[level.start : level.stop] * actions[-1]).sum(axis=1), xp)
        infosets.append(below)
    return xp.concatenate(actions[::-1]), xp.concatenate(infosets[::-1])


def policy_value(form: PlayerForm, own, terminal, xp):
    """Expected payoff [B]: sum over own sequences of own reach times terminal value."""
    return (own[form.sequences] * terminal[:-1]).sum(axis=0)


def best_gain(form: PlayerForm, policy, terminal, xp):
    """Best-response gain [B] of the player, as a sum of terms that cannot be negative.

    With V the best-response value of an information set and Q its action values, the gain below it
    is D(I) = Σ_a π(I, a) [V(I) - Q(I, a) + Σ_{J below (I, a)} D(J)]. Subtracting two expected
    values instead would lose the small gains of good policies to rounding.
    """
    own = policy[form.infosets]
    value = gain = None
    for level in reversed(form.levels):
        values = _action_values(level, terminal, value, xp)
        value = _best_of(level, values, xp)
        shortfall = value[:, None, :] - values
        if level.children.size:
            shortfall = shortfall + settle(_sum_children(level, gain, xp), xp).reshape(values.shape)
        weighted = own[level.start : level.stop] * shortfall
        if values.shape[1] > MAX_UNROLLED_TERMS:
            gain = settle(weighted.sum(axis=1), xp)
        else:
            parts = [weighted[:, action] for action in range(values.shape[1])]
            gain = settle(functools.reduce(xp.add, parts), xp)
    return gain.sum(axis=0) if form.levels else xp.zeros_like(terminal[-1])
