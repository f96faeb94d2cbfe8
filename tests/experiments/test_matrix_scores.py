"""experiments/evaluate.py on the matrix benchmark, as users call it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from chat_server import error, oracle, serve
from tiny_policies import tiny_policy

from sepo_jax.domains.matrix_game import anonymous, messages
from sepo_jax.evaluation.endpoint import KEY_VARIABLE
from sepo_jax.evaluation.results import load_result
from sepo_jax.policy import save_hf

ROOT = Path(__file__).parents[2]


def run(*arguments, directory=None):
    command = [sys.executable, str(ROOT / "experiments" / "evaluate.py"), *arguments]
    return subprocess.run(
        command, cwd=directory or ROOT, capture_output=True, text=True, timeout=600
    )


@pytest.fixture
def small_policy(tmp_path):
    prompt = messages(anonymous([[0.25, -0.5], [-1, 1]]))
    policy, params = tiny_policy([message["content"] for message in prompt], 300, 1024)
    save_hf(tmp_path / "policy", policy, params)
    return tmp_path / "policy"


@pytest.mark.slow
def test_a_checkpoint(small_policy, tmp_path):
    done = run(
        "--benchmark=matrix",
        f"--policy={small_policy}",
        "--arms=dense/2,named",
        "--count=3",
        "--max_tokens=4",
        "--greedy",
        "--table=scored",
        "--label=small",
        f"--results={tmp_path}",
        directory=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    table = load_result(tmp_path / "scored.json")
    assert [row[:4] for row in table["rows"]] == [
        ["dense/2", "small", 3, 0],
        ["named", "small", 3, 0],
    ]
    assert "--label=small" in table["command"]
    assert "dense/2" in done.stdout and "written: matrix_scores.json" in done.stdout
    record = json.loads((tmp_path / "matrix_scores.json").read_text())
    assert [row["group"] for row in record["rows"]] == ["dense/2", "named"]
    assert record["temperature"] == 0 and record["model"] == str(small_policy)
    for row in record["rows"]:
        assert row["count"] == 3 and row["valid"][0] == row["success"][0] == 0
    assert len(record["replies"]["named"]) == 3


@pytest.mark.slow
def test_an_endpoint(tmp_path):
    pytest.importorskip("openai")
    out = tmp_path / "scores.json"
    with serve(oracle) as served:
        done = run(
            f"--endpoint={served.url}", "--model=oracle", f"--out={out}", "--count=3",
            "--arms=dense/3,dominated/3in8,anonymous",
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    record = json.loads(out.read_text())
    assert all(row["valid"][0] == row["success"][0] == 1 for row in record["rows"])
    assert record["model"] == f"oracle at {served.url}"


@pytest.mark.slow
def test_a_refused_key_ends_in_one_line(tmp_path, monkeypatch):
    pytest.importorskip("openai")
    monkeypatch.setenv(KEY_VARIABLE, "sk-secret-0123456789")
    with serve(lambda _: error(401, "bad key sk-secret-0123456789")) as served:
        done = run(f"--endpoint={served.url}", "--model=m", f"--out={tmp_path}/s.json", "--count=1")
    assert done.returncode == 2
    assert "error: " in done.stderr and "set OPENAI_API_KEY" in done.stderr
    assert "Traceback" not in done.stderr and "sk-secret" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--benchmark=matrix",), "scores one of --policy=<checkpoint>, --run=runs/<name> and"),
        (
            ("--endpoint=http://x/v1", "--model=m", "--out=nowhere/s.json"),
            "no directory nowhere to write s.json into",
        ),
        (
            ("--endpoint=http://x/v1", "--model=m", "--out=tests"),
            "--out=tests is a directory; name",
        ),
        (("--endpoint=http://x/v1", "--model=m", "--arms="), "arms names no arm of the benchmark"),
        (("--benchmark=matrix", "--policy=x", "--model=m"), "--model is read by --endpoint alone"),
        (("--benchmark=matrix", "--policy=x", "--label=m"), "--label is read by --table alone"),
        (
            ("--benchmark=matrix", "--policy=x", "--games=ipd"),
            "--games is read by match play alone",
        ),
        (
            ("--benchmark=matrix", "--policy=x", "--greedy", "--temperature=0.5"),
            "--temperature is read by sampling, not by --greedy, alone: leave it out",
        ),
        (("--run=runs/x", "--arms=dense/2"), "--arms is read by --benchmark=matrix alone"),
    ],
)
def test_user_errors_end_in_one_line(arguments, message):
    done = run(*arguments)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr and "Traceback" not in done.stderr
