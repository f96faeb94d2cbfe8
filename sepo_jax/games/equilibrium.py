"""Equilibria of constant-sum tree games: linear programming, CFR and CFR+ on the compiled arrays.

- `solve_sequence_form`: exact up to rounding, by SciPy's HiGHS; the reference of reports.
- `cfr`, `cfr_plus`: iterative, jitted; approximate, but they need no solver and scale further.
"""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sepo_jax.games import sequence
from sepo_jax.games.arrays import check_magnitude
from sepo_jax.games.compiler import TreeGame
from sepo_jax.games.tree import evaluate_on_host
from sepo_jax.names import check_option

UNREACHED = 1e-12  # realization weight below which an information set counts as not reached
AVERAGES = ("uniform", "linear")


@dataclass(frozen=True)
class TreeEquilibrium:
    """A verified equilibrium.

    Attributes:
      policy: float64[infosets, actions], a full profile; uniform over legal actions at information
        sets that their owner's plan never reaches.
      values: expected payoff of each player, float64[2].
      gains: best-response gain of each player, float64[2], recomputed by a best-response pass.
    """

    policy: np.ndarray
    values: np.ndarray
    gains: np.ndarray

    @property
    def nash_conv(self) -> float:
        return float(self.gains.sum())


def solve_sequence_form(game: TreeGame, *, tolerance: float = 1e-8) -> TreeEquilibrium:
    """Solves a constant-sum game by one linear program a player.

    Player p's realization plan r maximises the opponent's best-response constraint value:
    max w_root s.t. w_J(s) <= Σ payoff(r, s) + Σ_{J' below s} w_J' for every opponent sequence s
    (Koller, Megiddo, von Stengel, "Fast algorithms for finding randomized strategies in game
    trees", STOC 1994). The answer is one of possibly many equilibria. The plan says nothing about
    information sets that it never reaches itself: they are filled with uniform play, which keeps
    the guarantee.

    Args:
      tolerance: largest NashConv accepted, relative to `TreeGame.payoff_scale`.

    Raises:
      ValueError: a general-sum game.
      ArithmeticError: the solver failed, or its result fails the best-response check.
    """
    if game.payoff_sum is None:
        raise ValueError(
            f"{game.name} is general-sum; the sequence-form program solves constant-sum games. "
            "Judge a given profile with tree.gains."
        )
    policy = game.uniform_policy().astype(np.float64)
    for player, form in enumerate(game.forms):
        plan = _optimal_plan(game, player)
        rows = plan[1:].reshape(-1, game.num_actions)
        reached = plan[form.parents] > UNREACHED
        total = rows.sum(axis=1, keepdims=True)
        safe = np.where(total > UNREACHED, total, 1)
        filled = reached[:, None] & (total > UNREACHED)
        policy[form.infosets] = np.where(filled, rows / safe, policy[form.infosets])
    # Rounding of float32 uniform rows and of the solver is taken out.
    policy /= policy.sum(axis=1, keepdims=True)
    return check_equilibrium(game, policy, tolerance=tolerance * game.payoff_scale)


def check_equilibrium(game: TreeGame, policy, *, tolerance: float = 1e-8) -> TreeEquilibrium:
    """Verifies that a profile is a Nash equilibrium, in float64, by best responses.

    Args:
      policy: [infosets, actions]; tolerance: largest sum of gains accepted, in payoff units.

    Raises:
      ValueError: not a full profile of the game.
      ArithmeticError: a player gains more; both gains are named.
    """
    gains = evaluate_on_host(game, "gains", policy)
    if not gains.sum() <= tolerance:
        raise ArithmeticError(
            f"not an equilibrium of {game.name}: best responses gain {gains[0]:.6g} for player 0, "
            f"{gains[1]:.6g} for player 1; NashConv {gains.sum():.6g} > {tolerance:.3g}"
        )
    values = evaluate_on_host(game, "expected", policy)
    return TreeEquilibrium(np.asarray(policy, np.float64), values, gains)


def _optimal_plan(game: TreeGame, player: int) -> np.ndarray:
    """Max-min realization plan [sequences] of one player."""
    from scipy.optimize import linprog
    from scipy.sparse import coo_array, hstack

    own, other = game.forms[player], game.forms[1 - player]
    num_own, num_other = own.num_sequences, 1 + len(other.infosets)
    own_legal = _legal_sequences(game, own)
    kept = np.flatnonzero(_legal_sequences(game, other))
    payoffs = _payoff_matrix(own, other)
    # The solver's tolerances are absolute; the plan does not depend on the unit of payoffs.
    payoffs = payoffs / (abs(payoffs).max() or 1)
    guarantee = hstack([-payoffs, _flow(game, other).T], format="csr")[kept]
    flow = _flow(game, own)
    empty = coo_array((flow.shape[0], num_other))
    start = np.zeros(flow.shape[0])
    start[0] = 1
    objective = np.zeros(num_own + num_other)
    objective[num_own] = -1  # w_root
    bounds = [(0, None if legal else 0) for legal in own_legal] + [(None, None)] * num_other
    result = linprog(
        objective,
        A_ub=guarantee,
        b_ub=np.zeros(len(kept)),
        A_eq=hstack([flow, empty], format="csr"),
        b_eq=start,
        bounds=bounds,
        method="highs",
        options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
    )
    if result.x is None:
        raise ArithmeticError(f"linear program of {game.name} failed: {result.message}")
    return np.maximum(result.x[:num_own], 0)


def _legal_sequences(game: TreeGame, form: sequence.PlayerForm) -> np.ndarray:
    return np.concatenate([[True], game.legal_mask[form.infosets].ravel()])


def _flow(game: TreeGame, form: sequence.PlayerForm):
    """E with E r = (1, 0, ...) for realization plans: [1 + infosets, sequences]."""
    from scipy.sparse import coo_array

    count, width = len(form.infosets), game.num_actions
    infoset = np.arange(1, count + 1)
    rows = np.concatenate([[0], np.repeat(infoset, width), infoset])
    cols = np.concatenate([[0], 1 + np.arange(count * width), form.parents])
    values = np.concatenate([np.ones(1 + count * width), -np.ones(count)])
    return coo_array((values, (rows, cols)), shape=(1 + count, form.num_sequences)).tocsr()


def _payoff_matrix(own: sequence.PlayerForm, other: sequence.PlayerForm):
    """Own chance-weighted payoffs, [opponent sequences, own sequences]."""
    from scipy.sparse import coo_array

    rows, cols, values, start = [], [], [], 0
    for opponent, _, weight in own.terms:
        members = own.sequences[start : start + len(opponent)]
        start += len(opponent)
        rows.append(opponent.ravel())
        cols.append(np.repeat(members, opponent.shape[1]))
        values.append(weight.ravel())
    entries = (np.concatenate(values), (np.concatenate(rows), np.concatenate(cols)))
    return coo_array(entries, shape=(other.num_sequences, own.num_sequences)).tocsr()


class CfrState(NamedTuple):
    """Where CFR stands: cumulative regrets and plans [infosets, actions], steps done."""

    regrets: jax.Array
    weights: jax.Array
    iteration: jax.Array


def cfr(
    game: TreeGame,
    iterations: int,
    *,
    plus: bool = False,
    alternating: bool = True,
    average: str = "uniform",
    delay: int = 0,
    state: CfrState | None = None,
) -> tuple[jax.Array, CfrState]:
    """Counterfactual regret minimization (Zinkevich et al., NIPS 2007).

    Each step adds counterfactual regrets Q(I, a) - V(I), plays in proportion to their positive
    part, and averages the realization plans of its policies. In constant-sum games the NashConv
    of the average policy goes to 0; in others no such promise holds.

    Args:
      iterations: steps to do.
      plus: cumulative regrets are cut at 0 after each step (regret matching+).
      alternating: the second player answers the first one's update in the same step.
      average: "uniform", or "linear" (step t weighs t - delay).
      delay: first steps that the average leaves out.
      state: where to go on from; None starts at the uniform policy.

    Returns:
      (average policy [infosets, actions], state).

    Raises:
      ValueError: unknown `average`, no step that the average could use, or payoffs near the end of
        the float32 range.
    """
    check_option("average", average, AVERAGES)
    check_magnitude(game.largest_payoff, np.float32)
    done = 0 if state is None else int(state.iteration)
    if done + iterations <= delay:
        raise ValueError(f"{done + iterations} iterations with delay {delay}: nothing to average")
    if state is None:
        zeros = jnp.zeros(game.legal_mask.shape)
        state = CfrState(zeros, zeros, jnp.int32(0))
    return _run_cfr(game, plus, alternating, average, delay, iterations, state)


def cfr_plus(game: TreeGame, iterations: int, **options) -> tuple[jax.Array, CfrState]:
    """CFR+ (Tammelin, arXiv 1407.5042): `cfr` with regret matching+ and linear averaging."""
    return cfr(game, iterations, plus=True, average="linear", **options)


@partial(jax.jit, static_argnums=(0, 1, 2, 3, 4))
def _run_cfr(game, plus, alternating, average, delay, iterations, state):
    legal = jnp.asarray(game.legal_mask)

    def step(_, state: CfrState) -> CfrState:
        step_number = state.iteration + 1
        weight = jnp.maximum(step_number - delay, 0)
        if average == "uniform":
            weight = jnp.minimum(weight, 1)
        regrets, weights = state.regrets, state.weights
        policy = _proportional(regrets, legal)
        for player in (0, 1):
            rows = game.forms[player].infosets
            added, plan = _player_step(game, player, policy[:, :, None])
            updated = regrets[rows] + added
            updated = jnp.maximum(updated, 0) if plus else updated
            regrets = regrets.at[rows].set(updated)
            weights = weights.at[rows].add(weight.astype(plan.dtype) * plan)
            if alternating:
                policy = _proportional(regrets, legal)
        return CfrState(regrets, weights, step_number)

    state = jax.lax.fori_loop(0, iterations, step, state)
    return _proportional(state.weights, legal), state


def _player_step(game: TreeGame, player: int, policy) -> tuple[jax.Array, jax.Array]:
    """Counterfactual regrets and realization plan of one player, [own infosets, actions] each."""
    own, other = game.forms[player], game.forms[1 - player]
    opponent_reach = sequence.own_reach(other, policy, jnp)
    terminal = sequence.terminal_values(own, opponent_reach, jnp)
    actions, infosets = sequence.policy_action_values(own, policy, terminal, jnp)
    plan = sequence.own_reach(own, policy, jnp)[1:].reshape(actions.shape)
    regrets = jnp.where(game.legal_mask[own.infosets][:, :, None], actions - infosets[:, None], 0)
    return regrets[..., 0], plan[..., 0]


def _proportional(weights, legal):
    """Positive parts made probabilities; uniform over legal actions where none is positive."""
    positive = jnp.where(legal, jnp.maximum(weights, 0), 0)
    total = positive.sum(axis=1, keepdims=True)
    uniform = legal / jnp.maximum(legal.sum(axis=1, keepdims=True), 1)
    return jnp.where(total > 0, positive / jnp.where(total > 0, total, 1), uniform)
