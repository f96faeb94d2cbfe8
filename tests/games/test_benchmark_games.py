"""The benchmark runs and compares values; speed depends on the machine and is not tested."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from script_modules import script_module

from sepo_jax.evaluation.results import load_result
from sepo_jax.games import KUHN, tree

SCRIPT = Path(__file__).parents[2] / "experiments" / "benchmark_games.py"
RESULTS = SCRIPT.parent / "results"
FILES = {
    "evaluation": RESULTS / "benchmark_games.json",
    "solvers": RESULTS / "benchmark_solvers.json",
}


@pytest.fixture(scope="module")
def workloads():
    return script_module("games_workloads")


def small_run(part, *, scale):
    """What a small run of one part prints; it writes nothing."""
    path = FILES[part]
    before = path.read_bytes() if path.exists() else None
    command = [sys.executable, str(SCRIPT), f"--part={part}", "--turns=1", f"--scale={scale}"]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert (path.read_bytes() if path.exists() else None) == before
    return output


@pytest.mark.slow
def test_small_run_prints_every_row_and_writes_nothing():
    pytest.importorskip("open_spiel.python.algorithms.exploitability")
    output = small_run("evaluation", scale=0.001)
    for title in ("kuhn_poker, policies/s", "leduc_poker, policies/s", "5x5 matrix games, GB/s"):
        assert title in output


@pytest.mark.slow
def test_small_run_of_the_solvers():
    output = small_run("solvers", scale=0.01)
    assert "HiGHS" in output
    assert all(f"\n{size}x{size}  " in output for size in (2, 3, 5, 7, 12))


def test_rates_count_work_of_the_best_turn(workloads):
    calls = []
    contenders = {name: (5.0, lambda name=name: calls.append(name)) for name in "ab"}
    rates = workloads.best_rates(contenders, 3, iter)
    assert calls == ["a", "b", *"ab" * 3]  # one call each to compile, then interleaved
    assert set(rates) == {"a", "b"} and min(rates.values()) > 0


def test_matrix_workload_counts_every_byte_once(workloads):
    contenders = workloads.matrix_contenders(1000, 5, 0)
    # 25 payoffs, 2 x 5 probabilities and one result of 4 bytes a game; a copy reads and writes.
    assert contenders["nash_conv"][0] == pytest.approx(1000 * 4 * 36 / 1e9)
    assert contenders["copy"][0] == pytest.approx(1000 * 4 * 50 / 1e9)
    assert contenders["nash_conv"][1]().shape == (1000,)


def test_solvers_of_the_workload_agree(workloads):
    game = np.array([[2.0, -3.0], [-3.0, 4.0]])
    for solve_one in (workloads.highs_solution, workloads.nashpy_solution):
        if solve_one is workloads.nashpy_solution:
            pytest.importorskip("nashpy")
        row, value = solve_one(game)
        np.testing.assert_allclose(row, [7 / 12, 5 / 12], atol=1e-9)
        assert value == pytest.approx(-1 / 12)


def test_solver_workload_counts_games_and_does_without_nashpy(workloads, monkeypatch):
    monkeypatch.setitem(sys.modules, "nashpy", None)  # as if it were not installed
    contenders = workloads.solver_contenders(100, 3, 3, 0)
    assert set(contenders) == {"numpy", "device", "highs"}
    assert [amount for amount, _ in contenders.values()] == [100, 100, 3]
    assert contenders["device"][1]().value.shape == (100,) and len(contenders["highs"][1]()) == 3


def test_random_policies_are_valid(workloads):
    tree.check_policy(KUHN, workloads.random_policies(KUHN, 3, 0))


@pytest.mark.parametrize("part", FILES)
def test_written_results_are_complete(part):
    if not FILES[part].exists():
        pytest.skip("not measured yet")
    result = load_result(FILES[part])
    assert json.dumps(result)
    assert all(np.isfinite(row[2]) and row[2] > 0 for row in result["rows"])
