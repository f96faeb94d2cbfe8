"""What `benchmark_games.py` times: {contender: (amount of work, function that does it)}."""

import time
from collections.abc import Callable, Iterable

import jax
import numpy as np
from scipy.optimize import linprog

from sepo_jax.games import TreeGame, from_open_spiel, matrix, nash_conv, solve_zero_sum

Contenders = dict[str, tuple[float, Callable[[], object]]]


def best_rates(contenders: Contenders, turns: int, progress: Callable[[Iterable], Iterable]):
    """Best work a second of each contender over interleaved turns, {contender: rate}."""
    best = dict.fromkeys(contenders, float("inf"))
    for _, function in contenders.values():
        function()  # compiles
    for name in progress(list(contenders) * turns):
        start = time.perf_counter()
        contenders[name][1]()
        best[name] = min(best[name], time.perf_counter() - start)
    return {name: amount / best[name] for name, (amount, _) in contenders.items()}


def random_policies(game: TreeGame, count: int, seed: int) -> np.ndarray:
    """float32[count, infosets, actions]."""
    weights = np.random.default_rng(seed).random((count, *game.legal_mask.shape)) * game.legal_mask
    return (weights / weights.sum(-1, keepdims=True)).astype(np.float32)


def tree_contenders(name: str, batch: int, count: int, seed: int) -> Contenders:
    """NashConv of random policies of an OpenSpiel game, in policies.

    "batch" and "one" are this package's; "python" and "c++" evaluate `count` of the same policies
    one by one. Values are compared before anything is timed.
    """
    import pyspiel
    from open_spiel.python import policy as python_policy
    from open_spiel.python.algorithms import exploitability

    game, theirs = from_open_spiel(name), pyspiel.load_game(name)
    tables = random_policies(game, batch, seed)
    policies, one = jax.device_put(tables), jax.device_put(tables[:1])
    evaluate = jax.jit(lambda policies: nash_conv(game, policies))
    python, native = [], []
    for table in tables[:count].astype(float):
        python.append(python_policy.TabularPolicy(theirs))
        entries = {}
        for infoset, row, legal in zip(game.infoset_names, table, game.legal_mask, strict=True):
            python[-1].policy_for_key(infoset)[:] = row
            entries[infoset] = [(action, row[action]) for action in np.flatnonzero(legal)]
        native.append(pyspiel.TabularPolicy(entries))
    ours = np.asarray(evaluate(policies))[:count]
    np.testing.assert_allclose(ours, [exploitability.nash_conv(theirs, p) for p in python], 1e-4)
    np.testing.assert_allclose(ours, [pyspiel.nash_conv(theirs, p) for p in native], 1e-4)
    return {
        "batch": (batch, lambda: evaluate(policies).block_until_ready()),
        "one": (count, lambda: [evaluate(one).block_until_ready() for _ in range(count)]),
        "python": (count, lambda: [exploitability.nash_conv(theirs, p) for p in python]),
        "c++": (count, lambda: [pyspiel.nash_conv(theirs, p) for p in native]),
    }


def matrix_contenders(count: int, size: int, seed: int) -> Contenders:
    """NashConv of `count` games, and a copy of their payoffs, in gigabytes read and written."""
    rng = np.random.default_rng(seed)
    payoffs = rng.uniform(-1, 1, (count, size, size)).astype(np.float32)
    row, col = (rng.dirichlet(np.ones(size), count).astype(np.float32) for _ in range(2))
    arrays = [jax.device_put(array) for array in (payoffs, row, col)]
    evaluate, target = jax.jit(matrix.nash_conv), np.empty_like(payoffs)
    moved = payoffs.nbytes + row.nbytes + col.nbytes + 4 * count
    return {
        "nash_conv": (moved / 1e9, lambda: evaluate(*arrays).block_until_ready()),
        "copy": (2 * payoffs.nbytes / 1e9, lambda: np.copyto(target, payoffs)),
    }


def highs_solution(payoffs: np.ndarray) -> tuple[np.ndarray, float]:
    """Row strategy and value of one game by scipy's HiGHS: max v, xᵀA >= v, x a distribution."""
    m, n = payoffs.shape
    found = linprog(
        np.append(np.zeros(m), -1),
        A_ub=np.hstack([-payoffs.T, np.ones((n, 1))]),
        b_ub=np.zeros(n),
        A_eq=np.append(np.ones(m), 0)[None],
        b_eq=[1],
        bounds=[(0, None)] * m + [(None, None)],
        method="highs",
    )
    return found.x[:m], -found.fun


def nashpy_solution(payoffs: np.ndarray) -> tuple[np.ndarray, float] | None:
    """The same by Nashpy's linear program, which answers for both players; None without Nashpy."""
    try:
        import nashpy
    except ImportError:
        return None
    row, col = nashpy.Game(payoffs).linear_program()
    return row, row @ payoffs @ col


def solver_contenders(count: int, few: int, size: int, seed: int) -> Contenders:
    """Equilibria of random games, in games.

    "numpy" and "device" solve `count` games at once; "highs" and "nashpy" (where it is installed)
    solve `few` of the same games one by one. Values are compared before anything is timed.
    """
    games = np.random.default_rng(seed).uniform(-1, 1, (count, size, size)).round(2)
    contenders = {}
    methods = {"numpy": "simplex", "device": "device"}
    for name, method in methods.items():
        contenders[name] = (count, lambda method=method: solve_zero_sum(games, method=method))
    values = [contenders[name][1]().value[:few] for name in methods]
    for name, solve_one in (("highs", highs_solution), ("nashpy", nashpy_solution)):
        if solve_one(games[0]) is None:
            continue
        values.append([solve_one(game)[1] for game in games[:few]])
        contenders[name] = (
            len(games[:few]),
            lambda solve_one=solve_one: [solve_one(game) for game in games[:few]],
        )
    np.testing.assert_allclose(values, np.broadcast_to(values[0], np.shape(values)), atol=1e-9)
    return contenders
