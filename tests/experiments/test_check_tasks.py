"""experiments/check_tasks.py as users call it: what is flaky ends in a file that domains read."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from sandbox.flaky_repairs import FLAKY, FlakyRepairs

from sepo_jax.evaluation.repository_domain import RepositoryRepair

ROOT = Path(__file__).resolve().parents[2]
CONFIG = """from ml_collections import config_dict

from sepo_jax.training.settings import Settings, to_dict


def get_config(argument=None):
    config = config_dict.ConfigDict(to_dict(Settings()), convert_dict=True)
    config.domain.name = argument
    config.sandbox.processes = 64
    return config
"""


def check(place, domain, *arguments):
    config = place / "config.py"
    config.write_text(CONFIG)
    return subprocess.run(
        [
            sys.executable, str(ROOT / "experiments/check_tasks.py"), f"--config={config}:{domain}",
            f"--output={place / 'out.json'}", *arguments,
        ],
        cwd=ROOT, env=os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["in_process", "processes"])
def test_a_flaky_task_is_quarantined_and_left_out(tmp_path, backend):  # C14
    """It comes through 15 runs of both kinds with probability 2^-30."""
    name = f"{FlakyRepairs.__module__}:{FlakyRepairs.__name__}"
    done = check(tmp_path, name, "--times=15", f"--config.sandbox.backend={backend}")
    assert done.returncode == 1, done.stderr
    assert "3/3" in done.stderr  # the progress bar
    path = tmp_path / "out.json"
    (listed,) = json.loads(path.read_text())["quarantined"]
    assert listed["task"] == FLAKY and "test_by_chance" in listed["reason"]
    words = [f"{FLAKY}", listed["reason"], "sound            2", "quarantined      1", str(path)]
    assert all(word in done.stdout for word in words), done.stdout
    domain = RepositoryRepair(quarantined=str(path))
    drawn = domain.training_tasks(3000, 0) + domain.evaluation_tasks(1000, 0)
    assert FLAKY not in drawn
    assert FLAKY in RepositoryRepair().training_tasks(
        3000, 0
    ) + RepositoryRepair().evaluation_tasks(1000, 0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("corridor",), "domain 'corridor' has no tests to check"),
        (("repository", "--config.sandbox.backend=docker"), "unknown sandbox.backend 'docker'"),
    ],
)
def test_user_errors_end_in_one_line(tmp_path, arguments, message):
    done = check(tmp_path, *arguments)
    assert done.returncode == 2, done.stdout
    assert message in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "out.json").exists()


@pytest.mark.parametrize(("name", "message"), [("", "is a directory"), ("file/x", "cannot be")])
def test_an_output_that_cannot_be_written_is_refused_before_the_check(tmp_path, name, message):
    (tmp_path / "file").write_text("")
    done = check(tmp_path, "repository", f"--output={tmp_path / name}")
    assert done.returncode == 2, done.stdout
    assert f"error: {tmp_path / name} {message}" in done.stderr
    assert "task/s" not in done.stderr and "Traceback" not in done.stderr  # no progress bar
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.py", "file"]
