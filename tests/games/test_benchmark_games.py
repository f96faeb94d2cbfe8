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
RESULTS = SCRIPT.parent / "results" / "benchmark_games.json"


@pytest.fixture(scope="module")
def workloads():
    return script_module("games_workloads")


@pytest.mark.slow
def test_small_run_prints_every_row_and_writes_nothing():
    pytest.importorskip("open_spiel.python.algorithms.exploitability")
    before = RESULTS.read_bytes() if RESULTS.exists() else None
    command = [sys.executable, str(SCRIPT), "--turns=1", "--scale=0.001"]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for title in ("kuhn_poker, policies/s", "leduc_poker, policies/s", "5x5 matrix games, GB/s"):
        assert title in output
    assert (RESULTS.read_bytes() if RESULTS.exists() else None) == before


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


def test_random_policies_are_valid(workloads):
    tree.check_policy(KUHN, workloads.random_policies(KUHN, 3, 0))


def test_written_results_are_complete():
    if not RESULTS.exists():
        pytest.skip("not measured yet")
    result = load_result(RESULTS)
    assert json.dumps(result)
    assert all(np.isfinite(row[2]) and row[2] > 0 for row in result["rows"])
