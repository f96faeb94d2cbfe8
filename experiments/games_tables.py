"""The tables of `benchmark_games.py`, as `sepo_jax.evaluation.results` wants them.

A table is measured at a seed, a number of turns, and a share `scale` of the full batch sizes.
"""

from functools import partial

from games_workloads import best_rates, matrix_contenders, solver_contenders, tree_contenders
from tqdm import tqdm

COLUMNS = ["measured", "batch", "sepo_jax", "OpenSpiel Python", "OpenSpiel C++", "times Python"]
SOLVERS = ["games/s", "batch", "numpy", "device", "HiGHS", "Nashpy", "times HiGHS", "times Nashpy"]
SIZES = {2: 2**16, 3: 2**16, 5: 2**16, 7: 2**16, 12: 2**14}  # square games: how many at once


def measure(title: str, contenders: dict, turns: int) -> dict[str, float]:
    return best_rates(contenders, turns, partial(tqdm, desc=title, mininterval=1))


def scaled(size: int, scale: float) -> int:
    return max(1, int(size * scale))


def evaluation_table(seed: int, turns: int, scale: float) -> dict:
    """NashConv of tree games beside OpenSpiel, and of matrix games beside memory."""
    rows = []
    for name, batch, count in (("kuhn_poker", 65536, 200), ("leduc_poker", 2048, 10)):
        rows += tree_rows(name, scaled(batch, scale), scaled(count, scale), seed, turns)
    rows += matrix_rows(scaled(1_000_000, scale), 5, seed, turns)
    return {
        "title": "Exact evaluation: NashConv of policies and of matrix games",
        "columns": COLUMNS,
        "rows": rows,
        "notes": "float32 here, float64 in OpenSpiel, which takes one policy at a time; values "
        f"agree to 1e-4. Best of {turns} interleaved turns.",
    }


def tree_rows(name: str, batch: int, count: int, seed: int, turns: int) -> list[list]:
    """Policies a second, in a batch and one by one."""
    speed = measure(name, tree_contenders(name, batch, count, seed), turns)
    rivals = [speed["python"], speed["c++"]]
    return [
        [f"{name}, policies/s", size, rate, *rivals, rate / speed["python"]]
        for size, rate in ((batch, speed["batch"]), (1, speed["one"]))
    ]


def matrix_rows(count: int, size: int, seed: int, turns: int) -> list[list]:
    """Gigabytes of payoffs, strategies and results a second."""
    contenders = matrix_contenders(count, size, seed)
    speed = measure("matrix games", contenders, 10 * turns)  # turns of a few milliseconds
    kernel, copy = speed["nash_conv"], speed["copy"]
    games = kernel / contenders["nash_conv"][0] * count
    title = f"{size}x{size} matrix games"
    return [
        [f"{title}, games/s", count, games, None, None, None],
        [f"{title}, GB/s", count, kernel, None, None, None],
        ["memory copy, GB/s", count, copy, None, None, None],
        [f"{title}, share of the copy's GB/s", count, kernel / copy, None, None, None],
    ]


def solvers_table(seed: int, turns: int, scale: float) -> dict:
    """Games solved a second; the faster of this package's two solvers against each rival."""
    rows = []
    for size, count in SIZES.items():
        batch, few = scaled(count, scale), scaled(200, scale)
        speed = measure(f"{size}x{size}", solver_contenders(batch, few, size, seed), turns)
        rivals = [speed["highs"], speed.get("nashpy")]
        ours = max(speed["numpy"], speed["device"])
        ratios = [rate and ours / rate for rate in rivals]
        rows.append([f"{size}x{size}", batch, speed["numpy"], speed["device"], *rivals, *ratios])
    if rows[0][5] is None:
        print("Nashpy is not installed and was skipped: pip install -e .[nashpy]")
    return {
        "title": "Equilibria of random zero-sum matrix games, games a second",
        "columns": SOLVERS,
        "rows": rows,
        "notes": "numpy and device (JAX) solve batches in float64, certificates included; HiGHS "
        f"and Nashpy solve one game at a time. Best of {turns} interleaved turns.",
    }
