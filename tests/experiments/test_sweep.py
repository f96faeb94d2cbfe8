"""The mean row of a sweep, and the time of its runs."""

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
    assert script_module("sweep").mean_row(rows) == ["mean", "2 ± 2.5", "5 ± 0", None]


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
