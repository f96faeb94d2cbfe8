"""The games of the matrix benchmark, arm by arm, and training games that are none of them.

A game belongs to training or to the benchmark by the hash of its payoffs alone, whatever seed drew
it: `training_payoffs` and `benchmark_tasks` have no game in common for any two seeds.

Arms. Dense games have payoffs uniform in [-1, 1] in hundredths; the games of one size are the same
in every arm that starts from them, so that arms can be compared game by game.

  dense/N                  N by N
  dominated/3inN           dense/3 inside N by N, all other actions strictly dominated
  random/3inN              dense/3 inside N by N of random payoffs, a control
  perturbed/N              dense/N plus noise of at most `NOISE`
  named                    well-known games under their names; beyond the first of each, variants
                           of them in another order of actions and unit of payoff
  relabelled, anonymous    the same payoffs: with labels moved on by one, and with neither labels
                           nor title
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import numpy as np

from ..domains.arguments import check_integer
from ..domains.matrix_game import MatrixTask, anonymous, named, relabelled
from ..domains.seeds import derive_seed, stream
from ..games import generate
from ..names import check_option

DENSE = (2, 3, 4, 5, 6, 7, 12)
PADDED = (8, 12)
PERTURBED = (2, 3)
CORE = 3
NOISE = 0.1
DECIMALS = 2
UNITS = (2.0, 3.0, 5.0, 10.0)
NAMED_ARMS = ("named", "relabelled", "anonymous")
ARMS = (
    *(f"dense/{n}" for n in DENSE),
    *(f"{kind}/{CORE}in{n}" for kind in ("dominated", "random") for n in PADDED),
    *(f"perturbed/{n}" for n in PERTURBED),
    *NAMED_ARMS,
)
SPLIT_SHARES = (0.5, 0.5)  # training, benchmark
SPLIT_SEED = 0
_MOST_DRAWS = 200
_DIGITS = 9  # 3 times 0.583 is 1.749


class BenchmarkGame(NamedTuple):
    """A task and its payoffs as an array, float64[m, n]."""

    task: MatrixTask
    payoffs: np.ndarray


def benchmark_tasks(
    count: int = 100, *, seed: int = 0, arms: Sequence[str] = ARMS
) -> dict[str, list[BenchmarkGame]]:
    """The benchmark: `count` games of each arm.

    Args:
      count: games an arm.
      seed: of all draws; game k of an arm does not depend on which other arms are asked for.
      arms: of `ARMS`.

    Raises:
      ValueError: fewer than one game, a negative seed, no arm, or an unknown one.
    """
    if not arms:
        raise ValueError(f"arms names no arm of the benchmark; give one or more of {list(ARMS)}")
    check_integer("count", count, minimum=1)
    check_integer("seed", seed, minimum=0)
    return {arm: _arm(check_option("arm", arm, ARMS), count, seed) for arm in arms}


def label_of(arm: str) -> str:
    """What tables call an arm: "5x5" for "dense/5", "3 in 8, random" for "random/3in8"."""
    kind, _, size = arm.partition("/")
    if kind == "dense":
        return f"{size}x{size}"
    if "in" in size:
        return f"{size.replace('in', ' in ')}, {kind}"
    return f"{size}x{size}, {kind}" if size else kind


def training_payoffs(count: int, m: int, n: int, *, seed: int = 0) -> np.ndarray:
    """Dense games to train on, float64[count, m, n]; none is ever in a benchmark.

    Raises:
      ValueError: a count or size below 1, or a negative seed.
    """
    for name, value in (("count", count), ("m", m), ("n", n)):
        check_integer(name, value, minimum=1)
    check_integer("seed", seed, minimum=0)
    return _dense(count, m, n, seed, "training", part=0)


def _arm(arm: str, count: int, seed: int) -> list[BenchmarkGame]:
    if arm in NAMED_ARMS:
        show: dict[str, Callable[[MatrixTask], MatrixTask]] = {
            "named": lambda task: task,
            "relabelled": relabelled,
            "anonymous": lambda task: anonymous(task.payoffs),
        }
        return [_game(show[arm](task)) for task in _named_tasks(count, seed)]
    kind, _, size = arm.partition("/")
    core, _, outer = size.partition("in")
    n = int(core)
    payoffs = _dense(count, n, n, seed, "benchmark", part=1)
    if kind == "perturbed":
        payoffs = _perturbed(payoffs, seed)
    elif kind != "dense":
        payoffs = _padded(kind, payoffs, int(outer), seed)
    return [_game(anonymous(table)) for table in payoffs]


def _game(task: MatrixTask) -> BenchmarkGame:
    return BenchmarkGame(task, np.array(task.payoffs))


def _key(seed: int, *labels: object) -> jax.Array:
    return jax.random.key(derive_seed(seed, "matrix", *labels) % 2**31)


def _is_held_out(payoffs: np.ndarray) -> np.ndarray:
    """bool[G]: which games [G, m, n] belong to the benchmark."""
    _, test = generate.split(payoffs, SPLIT_SHARES, seed=SPLIT_SEED)
    return np.isin(np.arange(len(payoffs)), test)


def _dense(count: int, m: int, n: int, seed: int, use: str, part: int) -> np.ndarray:
    """The first `count` dense games of one part of the split."""
    kept: list[np.ndarray] = []
    for draw in range(_MOST_DRAWS):
        key = _key(seed, use, m, n, draw)
        games = generate.dense(key, count, m, n, decimals=DECIMALS)
        kept.extend(games[_is_held_out(games) == bool(part)])
        if len(kept) >= count:
            return np.stack(kept[:count])
    raise ArithmeticError(f"{_MOST_DRAWS} draws of {count} games gave {len(kept)} of part {part}")


def _perturbed(payoffs: np.ndarray, seed: int) -> np.ndarray:
    """Payoffs plus noise; a game whose hash falls into training gets other noise."""
    shifted, open_games = payoffs.copy(), np.ones(len(payoffs), bool)
    for draw in range(_MOST_DRAWS):
        key = _key(seed, "perturbed", *payoffs.shape, draw)
        games = np.round(generate.perturb(key, payoffs, NOISE), DECIMALS)
        taken = open_games & _is_held_out(games)
        shifted[taken], open_games = games[taken], open_games & ~taken
        if not open_games.any():
            return shifted
    raise ArithmeticError(f"{_MOST_DRAWS} draws of noise left {open_games.sum()} games in training")


def _padded(kind: str, payoffs: np.ndarray, size: int, seed: int) -> np.ndarray:
    """Cores inside `size` by `size` games, in hundredths as every game that is shown.

    The gaps of dominated actions are many hundredths, so that rounding keeps their order.
    """
    key = _key(seed, kind, size)
    if kind == "dominated":
        padded = generate.pad_dominated(key, payoffs, size, size).payoffs
    else:
        padded = generate.pad_random(key, payoffs, size, size, decimals=DECIMALS).payoffs
    return np.round(padded, DECIMALS)


def _named_tasks(count: int, seed: int) -> list[MatrixTask]:
    """Each named game once, then each in a drawn order of actions and unit of payoff, and so on."""
    games = list(generate.NAMED.values())
    tasks = []
    for number in range(count):
        game = games[number % len(games)]
        table = np.asarray(game.payoffs, np.float64)
        m, n = table.shape
        rows, cols, unit = list(range(m)), list(range(n)), 1.0
        if number >= len(games):
            draws = stream(seed, "matrix named", number)
            draws.shuffle(rows)
            draws.shuffle(cols)
            unit = draws.choice(UNITS)
        payoffs = np.round(unit * table[np.ix_(rows, cols)], _DIGITS)
        row_actions = [game.row_actions[row] for row in rows]
        tasks.append(named(payoffs, game.title, row_actions, [game.col_actions[c] for c in cols]))
    return tasks
