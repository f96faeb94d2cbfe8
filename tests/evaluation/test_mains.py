"""The mains of evaluation as users call them: output, files, one-line errors."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from sepo_jax.policy import save_hf

ROOT = Path(__file__).resolve().parents[2]


def _run(script, *arguments):
    return subprocess.run(
        [sys.executable, str(ROOT / "experiments" / script), *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_report(small_run):
    (small_run / "samples.jsonl").unlink()
    done = _run("report.py", f"--run={small_run}")
    assert done.returncode == 0, done.stderr
    assert f"report: {small_run / 'report.html'}" in done.stdout
    assert "note: samples.jsonl is not there (yet)." in done.stdout
    assert (small_run / "report.html").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("script", "arguments", "message"),
    [
        ("report.py", ("--run=runs/no_such_run",), "no run directory at runs/no_such_run"),
        ("evaluate.py", (), "give either --run=runs/<name> or --policy"),
        ("render_results.py", ("--readme=nowhere.md",), "nowhere.md"),
    ],
)
def test_user_errors_end_in_one_line(script, arguments, message):
    done = _run(script, *arguments)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("flag", ["--seed=-1", "--slots=0", "--episodes=1"])
def test_flags_are_checked_before_anything_is_read(flag):
    done = _run("evaluate.py", "--run=runs/no_such_run", flag)
    assert done.returncode == 1
    assert f"flag {flag}" in done.stderr and "no_such_run" not in done.stderr


def test_a_broken_config_is_named(small_run):
    (small_run / "policy").mkdir()
    (small_run / "config.json").write_text('{"seed": ')
    done = _run("evaluate.py", f"--run={small_run}")
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert f"error: {small_run / 'config.json'} cannot be read: Expecting value" in done.stderr


@pytest.mark.slow
def test_evaluate_a_run(small_run, flat_policy, monkeypatch):
    """Of a machine with more devices than this one."""
    monkeypatch.setenv("XLA_FLAGS", "")
    policy, params = flat_policy
    save_hf(small_run / "policy", policy, params)
    (small_run / "config.json").write_text(
        json.dumps({"domain": {"name": "kuhn"}, "rollout": {"max_action_tokens": 1, "devices": 2}})
    )
    done = _run("evaluate.py", f"--run={small_run}", "--episodes=2", "--slots=4")
    assert done.returncode == 0, done.stderr
    assert "NashConv       0.9167   (uniform play 0.9167" in done.stdout
    record = json.loads((small_run / "evaluation.json").read_text())
    assert record["nash_conv"] == pytest.approx(11 / 12, abs=1e-5)
    assert "AlwaysBet" in (small_run / "report.html").read_text()
