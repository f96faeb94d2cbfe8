"""The benchmark of branching runs with a small model; speed is the machine's and is not tested."""

import pickle
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from script_modules import script_module

from sepo_jax.domains.corridor import Corridor
from sepo_jax.evaluation.results import load_result
from sepo_jax.rollout import Branching

SCRIPT = Path(__file__).parents[2] / "experiments" / "benchmark_branching.py"
RESULT = SCRIPT.parent / "results" / "branching_speed.json"
WATCHDOG = 900  # seconds, on a busy machine


workloads = script_module("branching_workloads")
sides = script_module("branching_sides")


def run(*flags):
    command = [sys.executable, str(SCRIPT), *flags]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=WATCHDOG)


def number(cell):
    return float(cell.replace(",", ""))


@pytest.mark.slow
def test_quick_run_has_equal_leaves_and_shares_half_of_what_comes_before_the_branch():
    before = RESULT.read_bytes() if RESULT.exists() else None
    done = run("--quick")
    assert done.returncode == 0, done.stderr
    heading, *rows = (re.split(r"\s{2,}", line) for line in done.stdout.strip().splitlines())
    assert heading == sides.COLUMNS
    found = [dict(zip(heading, row, strict=True)) for row in rows]
    assert [row["side"] for row in found] == ["branching", "independent", "times less"] * 2
    for turns, (ours, theirs, times) in ((6, found[:3]), (4, found[3:])):
        # Two tasks, trees of five leaves: a trunk, and two forks at each of the two middle turns.
        assert ours["leaves"] == theirs["leaves"] == "10"
        left = {6: (3 + 4), 4: (2 + 3)}[turns]
        steps = (turns + 2 * left) / 5
        assert number(theirs["environment steps a leaf"]) == turns
        assert number(ours["environment steps a leaf"]) == pytest.approx(steps)
        for side in (ours, theirs):
            assert number(side["in the update a leaf"]) >= number(side["distinct a leaf"])
        for name in ("sampled a leaf", "prefilled a leaf", "distinct a leaf"):
            share = number(theirs[name]) / number(ours[name])
            assert number(times[name]) == pytest.approx(share, rel=1e-2) and share > 1.1
        for name in ("generate s", "update s"):
            assert number(ours[name]) > 0 and number(theirs[name]) > 0
    assert (RESULT.read_bytes() if RESULT.exists() else None) == before


def test_a_quick_run_is_not_written():
    done = run("--quick", "--write")
    assert done.returncode == 2
    assert "--quick" in done.stderr


@pytest.mark.parametrize(
    ("turns", "count", "expected"),
    [(8, 1, [4]), (8, 2, [3, 4]), (8, 5, [2, 3, 4, 5, 6]), (5, 2, [2, 3]), (1, 3, [0])],
)
def test_branch_points_are_nearest_to_the_middle(turns, count, expected):
    assert sides.middle(turns, count) == expected


def result_of(turns, past=None, failure=None):
    made = []
    request = SimpleNamespace(past=past)

    def continuation(turn, member):
        made.append((turn, member))
        return made[-1]

    actions = [None] * turns
    return SimpleNamespace(
        request=request, actions=actions, continuation=continuation, failure=failure
    )


def test_a_trunk_has_the_forks_of_its_tree_and_forks_have_none():
    branching = Branching(2, 3)
    assert sides.forks(result_of(8), branching) == [(3, 1), (3, 2), (4, 3), (4, 4)]
    assert len(sides.forks(result_of(8), branching)) == branching.forks
    assert sides.forks(result_of(8, past=object()), branching) == []
    assert sides.forks(result_of(8, failure=object()), branching) == []


def test_steps_leave_out_what_was_taken_over():
    past = SimpleNamespace(taken=(1, 2, 3))
    results = [result_of(8), result_of(8, past)]
    assert sides.steps_of(SimpleNamespace(results=results)) == 8 + 5


def test_an_episode_takes_one_way_whatever_is_replied():
    domain = workloads.Fixed(Corridor(length=6, early=2, keys=3), avoided=["RED"])
    (task,) = domain.training_tasks(1, 0)
    records = []
    for seed in range(4):
        one, other = domain.new_episode(task, seed), domain.new_episode(task, seed)
        assert "RED" not in one.legal_actions()
        while not one.done:
            assert one.messages() == other.messages() and one.observation == other.observation
            assert one.step("LEFT") == other.step("anything")
            other = pickle.loads(pickle.dumps(other))  # as a fork goes on from a snapshot
        records.append(one.record())
        assert other.record() == records[-1] and records[-1]["valid"] == 6
    assert len({str(record) for record in records}) > 1


def test_a_written_table_reads_back(tmp_path, monkeypatch):
    monkeypatch.setattr(sides, "RESULT", tmp_path / "table.json")
    found = {
        sides.BRANCHING: sides.Measured(8, (10.0, 20.0, 30.0, 40.0, 3.0), 128, 1.0, 2.0),
        sides.INDEPENDENT: sides.Measured(8, (20.0, 30.0, 45.0, 60.0, 6.0), 64, 3.0, 1.0),
    }
    rows = sides.table_rows("corridor", found)
    assert rows == [
        ["corridor", "branching", 8, 10.0, 20.0, 30.0, 40.0, 3.0, 128, 1.0, 2.0],
        ["corridor", "independent", 8, 20.0, 30.0, 45.0, 60.0, 6.0, 64, 3.0, 1.0],
        ["corridor", "times less", None, 2.0, 1.5, 1.5, 1.5, 2.0, None, 3.0, 0.5],
    ]
    written = load_result(sides.write_table(rows, workloads.workloads(False), 3, 4))
    assert written["rows"] == rows and written["seeds"] == [4]
    assert "{" not in written["notes"] and "medians of 3 repetitions" in written["notes"]
    assert written["command"].endswith("--repetitions=3 --seed=4 --write")


def test_published_result_is_complete():
    if not RESULT.exists():
        pytest.skip("not measured yet")
    assert load_result(RESULT)["columns"] == sides.COLUMNS
