"""Exact quantities of two-player games in extensive form, for batches of policies.

    game = compile_game(root)                       # or KUHN, LEDUC, from_open_spiel("liars_dice")
    nash_conv(game, game.uniform_policy())          # one policy [infosets, actions]
    nash_conv(game, policies)                       # any leading axes: [..., infosets, actions]

A policy is a full profile: one table with the rows of both players. Give batches as leading axes,
not through `jax.vmap`: the axes are moved last and cut into cache-sized chunks, which is several
times faster. Everything can be jitted and differentiated; computation is float32, and float64 for
float64 policies where JAX has x64 enabled. Outside jit a policy is checked first; inside only its
shape can be.

A best response chooses one action per information set, weighted by reach: it does not see hidden
cards. NashConv is that of Lanctot et al., "A unified game-theoretic approach to multiagent
reinforcement learning" (arXiv 1711.00832).
"""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from sepo_jax.games import sequence
from sepo_jax.games.arrays import as_float, as_numbers, check_magnitude, float_type
from sepo_jax.games.compiler import CHANCE, State, TreeGame, compile_game
from sepo_jax.games.open_spiel import from_open_spiel

__all__ = [
    "CHANCE",
    "State",
    "TreeGame",
    "best_response",
    "best_response_values",
    "check_policy",
    "compile_game",
    "expected_values",
    "exploitability",
    "from_open_spiel",
    "gains",
    "nash_conv",
    "normal_form",
]

SUM_TOLERANCE = 1e-5  # of a policy row; float32 softmax rows are within 1e-6
CHUNK_ELEMENTS = 2**18  # sequences times policies worked on at once: about one core's L2 in float32
MAX_PURE_PROFILES = 2**20


def expected_values(game: TreeGame, policy) -> jax.Array:
    """Expected payoff of each player when both follow the policy.

    Args:
      game: a compiled game.
      policy: [..., infosets, actions], rows sum to 1 over legal actions.

    Returns:
      [..., 2]. Differentiable: the derivative by π(I, a) is reach of I times action value.

    Raises:
      ValueError: a wrong shape, NaN, negative entries, illegal mass, rows not summing to 1; payoffs
        above a quarter of the float range.
    """
    return _evaluate(game, "expected", policy)


def best_response_values(game: TreeGame, policy) -> jax.Array:
    """Payoff [..., 2] of each player's best response to the other player's part of the policy.

    Args and errors as in `expected_values`.
    """
    return _evaluate(game, "best", policy)


def gains(game: TreeGame, policy) -> jax.Array:
    """Best-response value minus expected value of each player, [..., 2], each >= 0.

    The measure for general-sum games; both are 0 exactly at a Nash equilibrium. Small gains keep
    their digits. Arguments and errors as in `expected_values`.
    """
    return _evaluate(game, "gains", policy)


def nash_conv(game: TreeGame, policy) -> jax.Array:
    """Sum of both players' gains, [...], not halved; 0 exactly at a Nash equilibrium.

    In constant-sum games it is computed as the sum of the best-response values minus the constant:
    twice as fast as `gains`, but at an equilibrium rounding may leave it 1e-7 to either side of 0.
    """
    if game.payoff_sum is None:
        return gains(game, policy).sum(axis=-1)
    return _evaluate(game, "nash_conv", policy)


def exploitability(game: TreeGame, policy) -> jax.Array:
    """NashConv / 2, [...]: the mean loss to a best-responding opponent over both seats.

    Raises:
      ValueError: the game's payoffs do not add up to a constant; use `gains` or `nash_conv` there.
    """
    if game.payoff_sum is None:
        raise ValueError(
            f"exploitability is defined for constant-sum games and {game.name} is general-sum; "
            "use gains(game, policy) for each player's gain or nash_conv for their sum"
        )
    return nash_conv(game, policy) / 2


def best_response(game: TreeGame, policy) -> jax.Array:
    """Pure best responses of both players, each against the other's part of the policy.

    Args and errors as in `expected_values`.

    Returns:
      [..., infosets, actions] of 0 and 1: the row of an information set belongs to its owner's best
      response to the opponent in `policy`. Ties, and information sets that the opponent's play
      never reaches, take the first legal action.
    """
    return _evaluate(game, "response", policy)


def normal_form(game: TreeGame) -> tuple[np.ndarray, np.ndarray]:
    """Payoff matrices (row player 0, column player 1) over all pure policies, each [m, n].

    Pure policies assign an action to every own information set, the first one varying slowest. For
    small games only: brute-force checks, and matrix-game tools on tree games.

    Raises:
      ValueError: more than 2^20 pure profiles.
    """
    counts = game.legal_mask.sum(axis=1).astype(object)
    sizes = [int(np.prod(counts[game.infoset_players == player], initial=1)) for player in (0, 1)]
    if sizes[0] * sizes[1] > MAX_PURE_PROFILES:
        raise ValueError(
            f"{game.name} has {sizes[0]} x {sizes[1]} pure policies; at most {MAX_PURE_PROFILES} "
            "profiles are written out"
        )
    plans = [_pure_reach(game, player) for player in (0, 1)]
    matrices = []
    for player, form in enumerate(game.forms):
        own, other = plans[player], plans[1 - player]
        values = sequence.terminal_values(form, other, np, game.offsets[player])[:-1]
        matrices.append(own[form.sequences].T @ values)
    return matrices[0], matrices[1].T


def check_policy(game: TreeGame, policy) -> None:
    """Refuses what is not a full profile of the game.

    Raises:
      ValueError: the shape (both are named; the rows of one player alone are no profile), NaN,
        negative entries, mass on illegal actions, rows that do not sum to 1; the first bad
        information set is named.
    """
    _check_shape(game, np.shape(policy))
    table = np.asarray(as_numbers("policy", policy), np.float64)
    table = table.reshape(math.prod(table.shape[:-2]), *table.shape[-2:])
    for fault, bad in (
        ("holds NaN or infinity", ~np.isfinite(table).all(-1)),
        ("has a negative entry", (table < 0).any(-1)),
        ("has mass on an illegal action", (np.where(game.legal_mask, 0, table) != 0).any(-1)),
        ("does not sum to 1", ~(np.abs(table.sum(-1) - 1) <= SUM_TOLERANCE)),
    ):
        if bad.any():
            member, row = (int(index) for index in np.argwhere(bad)[0])
            player = int(game.infoset_players[row])
            missing = (table[member, game.infoset_players == player] == 0).all()
            hint = f" Player {player} has no policy at all: give a full profile." if missing else ""
            where = f" (batch member {member})" if table.shape[0] > 1 else ""
            legal = np.flatnonzero(game.legal_mask[row]).tolist()
            raise ValueError(
                f"policy for {game.name}{where}: row {row}, information set "
                f"{game.infoset_names[row]!r} of player {player}, {fault}: "
                f"{table[member, row].tolist()}, legal actions {legal}.{hint}"
            )


def _check_shape(game: TreeGame, shape: tuple[int, ...]) -> None:
    expected = (game.num_infosets, game.num_actions)
    if len(shape) >= 2 and shape[-2:] == expected:
        return
    hint = ""
    for player in (0, 1):
        if len(shape) >= 2 and shape[-2] == int((game.infoset_players == player).sum()):
            hint = (
                f" A full profile holds the rows of both players; is player {1 - player} missing?"
            )
    raise ValueError(
        f"policy of shape {list(shape)} for {game.name}; "
        f"expected [..., {expected[0]} infosets, {expected[1]} actions].{hint}"
    )


def _evaluate(game: TreeGame, quantity: str, policy) -> jax.Array:
    if isinstance(policy, jax.core.Tracer):
        _check_shape(game, policy.shape)
        return _batched(game, quantity, _as_float(game, policy))
    _check_shape(game, np.shape(policy))
    table = _as_float(game, policy)
    if not bool(_all_valid(game, table)):
        check_policy(game, policy)
    return _batched(game, quantity, table)


def _as_float(game: TreeGame, policy) -> jax.Array:
    policy = as_numbers("policy", policy)
    dtype = float_type(policy)
    check_magnitude(game.largest_payoff, dtype)
    return as_float(policy, dtype)


@partial(jax.jit, static_argnums=0)
def _all_valid(game: TreeGame, policy):
    # Written so that NaN fails.
    legal = game.legal_mask.reshape((1,) * (policy.ndim - 2) + game.legal_mask.shape)
    entries = jnp.where(legal, policy >= 0, policy == 0).all()
    return entries & (jnp.abs(policy.sum(-1) - 1) <= SUM_TOLERANCE).all()


@partial(jax.jit, static_argnums=(0, 1))
def _batched(game: TreeGame, quantity: str, policy: jax.Array) -> jax.Array:
    """Runs `_QUANTITIES[quantity]` over chunks of the flattened leading axes."""
    lead = policy.shape[:-2]
    table_shape = policy.shape[-2:]
    flat = policy.reshape(math.prod(lead), *table_shape)
    num_sequences = sum(form.num_sequences for form in game.forms)
    chunk = 1 << max(0, (CHUNK_ELEMENTS // num_sequences).bit_length() - 1)

    def run(members):  # [C, infosets, actions] -> [C, ...]
        table = jnp.moveaxis(members, 0, -1)
        return jnp.moveaxis(_QUANTITIES[quantity](game, table, jnp), -1, 0)

    if flat.shape[0] <= chunk:
        result = run(flat)
    else:
        count = -(-flat.shape[0] // chunk)
        padded = jnp.pad(flat, ((0, count * chunk - flat.shape[0]), (0, 0), (0, 0)), mode="edge")
        result = jax.lax.map(run, padded.reshape(count, chunk, *table_shape))
        result = result.reshape(-1, *result.shape[2:])[: flat.shape[0]]
    return result.reshape(*lead, *result.shape[1:])


def _passes(game: TreeGame, policy, xp, offsets=(0.0, 0.0)):
    """Own reach [sequences, B] and terminal values [t + 1, B] of both players."""
    reach = [sequence.own_reach(form, policy, xp) for form in game.forms]
    terminal = [
        sequence.terminal_values(game.forms[p], reach[1 - p], xp, offsets[p]) for p in (0, 1)
    ]
    return reach, terminal


def _expected(game: TreeGame, policy, xp):
    reach, terminal = _passes(game, policy, xp, game.offsets)
    first = sequence.policy_value(game.forms[0], reach[0], terminal[0], xp)
    if game.payoff_sum is not None:
        return xp.stack([first, game.payoff_sum - first])
    return xp.stack([first, sequence.policy_value(game.forms[1], reach[1], terminal[1], xp)])


def _best(game: TreeGame, policy, xp, *, with_offsets: bool = True):
    _, terminal = _passes(game, policy, xp, game.offsets if with_offsets else (0.0, 0.0))
    return xp.stack([sequence.best_value(game.forms[p], terminal[p], xp) for p in (0, 1)])


def _constant_sum_nash_conv(game: TreeGame, policy, xp):
    best = _best(game, policy, xp, with_offsets=False)
    return best.sum(axis=0) - (game.payoff_sum - sum(game.offsets))


def _gains(game: TreeGame, policy, xp):
    _, terminal = _passes(game, policy, xp)
    return xp.stack([sequence.best_gain(game.forms[p], policy, terminal[p], xp) for p in (0, 1)])


def _response(game: TreeGame, policy, xp):
    _, terminal = _passes(game, policy, xp)
    acting = [player for player in (0, 1) if game.forms[player].levels]
    if not acting:
        return policy
    rows = [sequence.best_choices(game.forms[p], terminal[p], xp) for p in acting]
    order = np.argsort(np.concatenate([game.forms[p].infosets for p in acting]))
    return xp.concatenate(rows)[order.astype(sequence.INDEX)].astype(policy.dtype)


_QUANTITIES = {
    "expected": _expected,
    "best": _best,
    "nash_conv": _constant_sum_nash_conv,
    "gains": _gains,
    "response": _response,
}


def evaluate_on_host(game: TreeGame, quantity: str, policy: np.ndarray) -> np.ndarray:
    """The same passes in numpy float64 for one policy: what solvers are verified with.

    Args:
      quantity: "expected", "best", "gains", "response", or "nash_conv" in constant-sum games.
      policy: [infosets, actions].

    Returns:
      [2]; [infosets, actions] for "response"; one number for "nash_conv".
    """
    check_policy(game, policy)
    table = np.asarray(policy, np.float64)[:, :, None]
    return _QUANTITIES[quantity](game, table, np)[..., 0]


def _pure_reach(game: TreeGame, player: int) -> np.ndarray:
    """Own reach [sequences, plans] of every pure plan of one player."""
    rows = np.flatnonzero(game.infoset_players == player)
    options = [np.flatnonzero(game.legal_mask[row]) for row in rows]
    count = math.prod(len(actions) for actions in options)
    plans = np.zeros((game.num_infosets, game.num_actions, count))
    plan, stride = np.arange(count), count
    for row, actions in zip(rows, options, strict=True):
        stride //= len(actions)
        plans[row, actions[plan // stride % len(actions)], plan] = 1.0
    return sequence.own_reach(game.forms[player], plans, np)
