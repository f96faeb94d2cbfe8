"""Sequence form of one player, and the passes over it that every tree quantity is made of.

Policies are batch-last here, [infosets, actions, B]: each step below is then one operation on long
contiguous rows. Sequences of a player are numbered 0 (no own action) and 1 + i * A + a for action a of
its i-th information set; information sets are sorted by own depth, so that parents of one level lie in
the level above. Nothing divides, so unreached information sets cannot produce NaN.

Every function takes `xp`, numpy or jax.numpy: numpy float64 verifies what solvers return.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

MAX_UNROLLED_TERMS = 32


@dataclass(frozen=True, eq=False)
class Level:
    """Information sets of equal own depth.

    Attributes:
      start, stop: their range among the player's information sets.
      parent: int[n], sequence above each one, counted inside the level above (0 at the first level).
      legal: bool[n, A].
      terminal_row: int[n * A], row of `PlayerForm.terms` results for each sequence; the last row is zero.
      child_row: int[n * A], row of `children` for each sequence; the last row is zero.
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
      levels: one `Level` a depth.
      root_row: row of the terms that belong to the empty sequence (may be the zero row).
      terms: groups (opponent sequences int[t, K], own payoffs float[t, K], chance-weighted), by rising K.
      sequences: int[t total], own sequence of each row of terms.
    """

    infosets: np.ndarray
    levels: tuple[Level, ...]
    root_row: int
    terms: tuple[tuple[np.ndarray, np.ndarray], ...]
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
      payoffs: {(sequence of player 0, sequence of player 1): [payoff 0, payoff 1]}, chance-weighted.
    """
    num_actions = legal_mask.shape[1]
    order, local = _own_order(player, players, depths)
    _, opponent_local = _own_order(1 - player, players, depths)

    def number(sequence, position) -> int:
        return 0 if sequence is None else 1 + position[sequence[0]] * num_actions + sequence[1]

    rows: dict[int, list[tuple[int, float]]] = {}
    for pair, values in payoffs.items():
        own = number(pair[player], local)
        rows.setdefault(own, []).append((number(pair[1 - player], opponent_local), values[player]))
    terms, sequences = _padded_terms(rows)
    row_of = {sequence: row for row, sequence in enumerate(sequences)}
    above = np.array([number(parents[infoset], local) for infoset in order], np.int64)
    levels = _levels(depths[order], above, legal_mask[order], row_of, len(sequences))
    return PlayerForm(
        order, levels, row_of.get(0, len(sequences)), terms, np.array(sequences, np.int64)
    )


def _own_order(player, players, depths) -> tuple[np.ndarray, dict[int, int]]:
    own = np.flatnonzero(players == player)
    order = own[np.argsort(depths[own], kind="stable")]
    return order, {int(infoset): position for position, infoset in enumerate(order)}


def _padded_terms(rows) -> tuple[tuple, list[int]]:
    """Groups sequences by number of terms, up to the next power of two, so that padding stays small."""
    groups: dict[int, list[int]] = {}
    for sequence in sorted(rows):
        groups.setdefault((len(rows[sequence]) - 1).bit_length(), []).append(sequence)
    terms, sequences = [], []
    for size in sorted(groups):
        members = groups[size]
        width = max(len(rows[sequence]) for sequence in members)
        opponent = np.zeros((len(members), width), np.int64)
        weight = np.zeros((len(members), width))
        for row, sequence in enumerate(members):
            for column, (index, value) in enumerate(rows[sequence]):
                opponent[row, column], weight[row, column] = index, value
        terms.append((opponent, weight))
        sequences.extend(members)
    return tuple(terms), sequences


def _levels(depths, above, legal, row_of, zero_row) -> tuple[Level, ...]:
    num_actions = legal.shape[1]
    bounds = [
        int(bound) for bound in np.searchsorted(depths, np.arange(depths.max(initial=-1) + 2))
    ]
    levels = []
    for depth, (start, stop) in enumerate(zip(bounds[:-1], bounds[1:], strict=True)):
        first = 1 + start * num_actions  # number of this level's first sequence
        size = (stop - start) * num_actions
        offset = 1 + bounds[depth - 1] * num_actions if depth else 0
        end = bounds[depth + 2] if depth + 2 < len(bounds) else stop
        below: dict[int, list[int]] = {}
        for child in range(stop, end):
            below.setdefault(int(above[child]) - first, []).append(child - stop)
        width = max((len(members) for members in below.values()), default=0)
        children = np.full((len(below), width), end - stop, np.int64)
        child_row = np.full(size, len(below), np.int64)
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
                terminal_row=np.array(terminal, np.int64),
                child_row=child_row,
                children=children,
            )
        )
    return tuple(levels)


def own_reach(form: PlayerForm, policy, xp) -> list[Any]:
    """Probability that the player plays each sequence, given that it is asked to.

    Args:
      policy: the whole table, [infosets, actions, B].

    Returns:
      [[1, B], [n_0 * A, B], [n_1 * A, B], ...]: empty sequence, then one array a level.
    """
    batch = policy.shape[-1]
    own = policy[form.infosets]
    reach = [xp.ones((1, batch), policy.dtype)]
    for level in form.levels:
        above = reach[-1][level.parent]
        reach.append((above[:, None, :] * own[level.start : level.stop]).reshape(-1, batch))
    return reach


def terminal_values(form: PlayerForm, opponent_reach, xp):
    """Payoff that ends at each own sequence, weighted by chance and by the opponent's play.

    Args:
      opponent_reach: [opponent sequences, B], concatenated `own_reach`.

    Returns:
      [t + 1, B] in the order of `form.sequences`, then one zero row.
    """
    dtype = opponent_reach.dtype
    values = []
    for opponent, weight in form.terms:
        weight = xp.asarray(weight, dtype)
        if opponent.shape[1] <= MAX_UNROLLED_TERMS:
            total = opponent_reach[opponent[:, 0]] * weight[:, :1]
            for k in range(1, opponent.shape[1]):
                total = total + opponent_reach[opponent[:, k]] * weight[:, k : k + 1]
        else:
            total = (opponent_reach[opponent] * weight[:, :, None]).sum(axis=1)
        values.append(total)
    values.append(xp.zeros((1, opponent_reach.shape[-1]), dtype))
    return xp.concatenate(values)


def sum_children(level: Level, below, xp):
    """Sum over the next level's information sets under each sequence: [next n, B] -> [n * A, B]."""
    padded = xp.concatenate([below, xp.zeros((1, below.shape[-1]), below.dtype)])
    total = padded[level.children[:, 0]]
    for k in range(1, level.children.shape[1]):
        total = total + padded[level.children[:, k]]
    total = xp.concatenate([total, xp.zeros((1, below.shape[-1]), below.dtype)])
    return total[level.child_row]


def action_values(form: PlayerForm, terminal, fold, xp) -> list[Any]:
    """Counterfactual value of every own action, from the deepest level up.

    Args:
      terminal: [t + 1, B] from `terminal_values`.
      fold: function (level number, values [n, A, B]) -> value of each information set [n, B]; the
        maximum gives best responses, the policy's mean gives the policy's own values.

    Returns:
      one [n, A, B] a level; illegal actions hold the value of nothing following them (0).
    """
    batch = terminal.shape[-1]
    values: list[Any] = [None] * len(form.levels)
    below = None
    for depth in reversed(range(len(form.levels))):
        level = form.levels[depth]
        value = terminal[level.terminal_row]
        if level.children.size:
            value = value + sum_children(level, below, xp)
        values[depth] = value.reshape(*level.legal.shape, batch)
        below = fold(depth, values[depth])
    return values


def best_of(level: Level, value, xp):
    """Maximum over legal actions: [n, A, B] -> [n, B]."""
    return xp.where(level.legal[:, :, None], value, -xp.inf).max(axis=1)


def best_response_pass(form: PlayerForm, terminal, xp) -> tuple[Any, list[Any]]:
    """Best-response value [B] and the counterfactual action values per level against the opponent."""
    values = action_values(form, terminal, lambda d, value: best_of(form.levels[d], value, xp), xp)
    total = terminal[form.root_row]
    if form.levels:
        total = total + best_of(form.levels[0], values[0], xp).sum(axis=0)
    return total, values


def policy_value(form: PlayerForm, own, terminal, xp):
    """Expected payoff [B]: sum over own sequences of own reach times terminal value."""
    return (own[form.sequences] * terminal[:-1]).sum(axis=0)


def gain_pass(form: PlayerForm, policy, terminal, xp):
    """Best-response gain [B] of the player, as a sum of terms that cannot be negative.

    With V the best-response value and Q its action values, the gain below an information set is
    D(I) = Σ_a π(I, a) [V(I) - Q(I, a) + Σ_{J below (I, a)} D(J)]. Subtracting two expected values
    instead would lose the small gains of good policies to rounding.
    """
    own = policy[form.infosets]
    batch = policy.shape[-1]
    below_value = below_gain = None
    for level in reversed(form.levels):
        shape = (*level.legal.shape, batch)
        value = terminal[level.terminal_row]
        gain = 0.0
        if level.children.size:
            value = value + sum_children(level, below_value, xp)
            gain = sum_children(level, below_gain, xp).reshape(shape)
        value = value.reshape(shape)
        below_value = best_of(level, value, xp)
        shortfall = below_value[:, None, :] - value + gain
        below_gain = (own[level.start : level.stop] * shortfall).sum(axis=1)
    return below_gain.sum(axis=0) if form.levels else xp.zeros((batch,), policy.dtype)
