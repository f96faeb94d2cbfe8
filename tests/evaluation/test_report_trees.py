"""What the pages of a run make of the trees that it kept."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from grown_trees import decode, grow
from report_pages import checked_page

from sepo_jax.algorithms import get_algorithm
from sepo_jax.credit import assign_credit
from sepo_jax.domains.corridor import Corridor
from sepo_jax.evaluation import write_report
from sepo_jax.evaluation.tree_record import tree_record
from sepo_jax.rollout import build_forest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def branched_run(small_run):
    """A run that kept the trees of two steps."""
    corridor, row = Corridor(length=5, early=1), get_algorithm("bpo")
    lines = []
    for step, points in ((5, (1,)), (10, (0, 2))):
        results = grow(
            corridor,
            corridor.training_tasks(1, step)[0],
            lambda episode, rng: str(rng.choice(episode.legal_actions())),
            points,
            4,
        )
        forest = build_forest(results)
        record = tree_record(results, forest, assign_credit(row, forest), row, decode=decode)
        lines.append(json.dumps({"stage": "rl", "step": step} | record) + "\n")
    (small_run / "trees.jsonl").write_text("".join(lines))
    return small_run


def test_a_report_lists_the_trees_and_leads_to_their_page(branched_run):
    source, text = checked_page(branched_run)
    assert source.count('href="trees.html"') == 1
    records = [json.loads(x) for x in (branched_run / "trees.jsonl").read_text().splitlines()]
    for record, leaves, points in zip(records, (4, 7), (1, 2), strict=True):
        tokens = record["tokens"]
        root = f"{record['segments'][0]['return']:.4f}"
        row = f"rl {record['step']} {leaves} {points} {root} {tokens['once']} {tokens['per_leaf']}"
        assert row in text
    page = (branched_run / "trees.html").read_text(encoding="utf-8")
    assert page.count("data-leaf=") == 11 and page.count("<option") == 2


def test_the_main_writes_both_pages_again(branched_run):
    command = [sys.executable, "experiments/report.py", f"--run={branched_run}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert f"trees: {branched_run / 'trees.html'}" in done.stdout


def test_without_trees_there_is_neither_section_nor_page(small_run):
    source, _ = checked_page(small_run)
    assert "trees.html" not in source and 'id="trees"' not in source
    assert not (small_run / "trees.html").exists()


@pytest.mark.parametrize(
    "line",
    ["{", "[]", "{}", '{"segments": 3, "leaves": null}', '{"stage": "rl", "step": NaN}'],
)
def test_a_broken_record_leaves_the_other_trees(branched_run, line):
    with open(branched_run / "trees.jsonl", "a") as file:
        file.write(line + "\n")
    write_report(branched_run)
    page = (branched_run / "trees.html").read_text(encoding="utf-8")
    assert page.count("data-leaf=") == 11
    assert ("cannot be drawn" in page) == line.startswith(('{"', "{}"))
    report = (branched_run / "report.html").read_text(encoding="utf-8")
    assert 'id="trees"' in report and "Settings and provenance" in report
