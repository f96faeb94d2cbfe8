"""The mean row of a sweep, and the time of its runs."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from script_modules import script_module

from sepo_jax.training import read_settings, to_dict
from sepo_jax.training.run_directory import RunDirectory


def test_the_mean_row_has_students_interval():
    # Seed column and minutes are left out; 1, 2, 3 have s = 1 and t(0.975, 2) / sqrt(3) = 2.484.
    rows = [[0, 1.0, 5.0, 1.2], [1, 2.0, 5.0, 1.3], [2, 3.0, 5.0, None]]
    assert script_module("sweep_rows").mean_row("mean", rows) == ["mean", "2 ± 2.5", "5 ± 0", None]


def test_a_run_keeps_the_time_it_took(tmp_path, monkeypatch):
    timed_run = script_module("timed_run")
    asked = []

    def train(config, run_directory, resume, progress):
        asked.append(resume)
        run_directory.mkdir(exist_ok=True)
        (run_directory / "config.json").write_text("{}")
        return SimpleNamespace(summary={"seed": 0})

    monkeypatch.setattr(timed_run, "train", train)
    summary, seconds = timed_run.train_timed({}, tmp_path / "run")
    assert summary == {"seed": 0} and 0 < seconds < 60
    # Gone on with, it is as long as it was.
    assert timed_run.train_timed({}, tmp_path / "run") == (summary, seconds)
    # A run whose first part was cut off has no time.
    train({}, tmp_path / "cut", False, False)
    assert timed_run.train_timed({}, tmp_path / "cut") == (summary, None)
    assert asked == [False, True, False, True]


def test_a_finished_run_is_read_and_not_trained_again(tmp_path, monkeypatch):
    timed_run = script_module("timed_run")
    monkeypatch.setattr(timed_run, "train", None)
    run = RunDirectory.create(tmp_path / "run", to_dict(read_settings({"seed": 3})))
    run.write_json("summary.json", {"seed": 3, "sft/step": 7})
    (run.path / "seconds.json").write_text("12.5")
    (run.path / "policy").mkdir()
    found = timed_run.train_timed({"seed": 3}, run.path)
    assert found == ({"seed": 3, "sft/step": 7}, 12.5)
    with pytest.raises(ValueError, match="seed: 3 -> 4"):
        timed_run.train_timed({"seed": 4}, run.path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--config=configs/sepo/ipd.py:runlocal", "--write"], "runlocal mean nothing"),
        (["--config=configs/sepo/ipd.py: runlocal=true", "--write"], "runlocal mean nothing"),
        (["--config=configs/sepo/ipd.py", "--seeds=0,x"], "seed 'x'"),
        ([], "give a config file"),
    ],
)
def test_what_a_sweep_refuses(arguments, message):
    script = Path(__file__).resolve().parents[2] / "experiments" / "sweep.py"
    found = subprocess.run(
        [sys.executable, str(script), *arguments],
        capture_output=True,
        text=True,
        cwd=script.parents[1],
        check=False,
    )
    assert found.returncode == 2 and message in found.stderr
    assert found.stderr.count("\n") <= 2 and "Traceback" not in found.stderr


def test_variants_have_means_of_their_own(tmp_path, monkeypatch):
    rows = script_module("sweep_rows")
    config = tmp_path / "config.py"
    config.write_text(
        "from ml_collections import config_dict\n"
        "def get_config(argument=''):\n"
        "    return config_dict.ConfigDict({'name': f'run_{argument}', 'seed': 0})\n"
    )

    def train(config, directory):
        directory.mkdir()
        lines = [{"stage": "rl", "step": step, "tokens": 10 * step} for step in (1, 3)]
        text = "".join(f"{json.dumps(line)}\n" for line in lines)
        (directory / "metrics.jsonl").write_text(text)
        (directory / "config.json").write_text("{}")
        return {"rl/success": config.seed + ("b" in config.name), "oracle/success": 1.0}, 60.0

    monkeypatch.setattr(rows, "train_timed", train)
    changes = [{"argument": argument, "seed": seed} for argument in "ab" for seed in (0, 1)]
    table = {
        "columns": {"rl/success": "success", "rl/step_mean/tokens": "tokens"},
        "variants": {"b": "B", "a": "A"},
        "baselines": {"oracle": "oracle"},
    }
    found, summaries = rows.all_rows(table, str(config), changes, str(tmp_path))
    # Tokens: (10 + 30) / 2. Student's t(0.975, 1) / sqrt(2) of s = 0.7071 is 6.35.
    assert found == [
        ["B 0", 1, 20, 1.0],
        ["B 1", 2, 20, 1.0],
        ["B mean", "1.5 ± 6.4", "20 ± 0", None],
        ["A 0", 0, 20, 1.0],
        ["A 1", 1, 20, 1.0],
        ["A mean", "0.5 ± 6.4", "20 ± 0", None],
        ["oracle", 1.0, None, None],
    ]
    assert len(summaries) == 4


def test_figures_over_steps(tmp_path):
    figure_of = script_module("sweep_rows").figure_of
    lines = [("sft", 1, 9.0), ("rl", 1, 1.0), ("rl", 2, 2.0), ("rl", 3, 6.0)]
    for name in ("metrics", "timings"):
        text = (json.dumps({"stage": s, "step": n, name: x}) + "\n" for s, n, x in lines)
        (tmp_path / f"{name}.jsonl").write_text("".join(text))
    summary = {"rl/dense/2/success": 0.5, "rl/loss": 0.1}
    assert figure_of(tmp_path, summary, "rl/step_mean/metrics") == 3.0
    # Deviations -2, -1 and 3: the sample variance is 14 / 2.
    assert figure_of(tmp_path, summary, "rl/step_cv/metrics") == pytest.approx(7**0.5 / 3)
    assert figure_of(tmp_path, summary, "rl/step_seconds/timings") == 2.0
    assert figure_of(tmp_path, summary, "rl/dense/2/success") == 0.5
    assert figure_of(tmp_path, summary, "rl/loss") == 0.1
    with pytest.raises(ValueError, match=r"no figure 'rl/los', .* Did you mean 'rl/loss'\?"):
        figure_of(tmp_path, summary, "rl/los")


@pytest.mark.parametrize(
    ("change", "table"),
    [
        ({"argument": "c", "seed": 0}, {"variants": {"a": "A"}}),
        ({"argument": "a", "seed": 0}, {}),
        ({"argument": "a"}, {"variants": {"a": "A"}}),
    ],
)
def test_runs_that_the_table_has_no_place_for_are_refused(change, table, tmp_path, monkeypatch):
    rows = script_module("sweep_rows")
    monkeypatch.setattr(rows, "train_timed", None)
    with pytest.raises(ValueError, match="every run needs a seed, and an argument that"):
        rows.all_rows({"columns": {}} | table, "config.py", [change], str(tmp_path))
