"""Runs that claims share: their names, seeds and configs, and that each is trained once."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from script_modules import script_module

CONFIG = """
from ml_collections import config_dict

def get_config(argument=None):
    steps = 1 if "runlocal" in (argument or "") else 50
    config = {"name": "mine", "seed": 0, "steps": steps, "rate": 0.1, "given": argument}
    return config_dict.ConfigDict(config)

def sweep(add):
    add(seed=4)
    add(seed=4, rate=0.2)
    add(seed=7, rate=0.3)
"""


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(CONFIG)
    return path


@pytest.fixture
def trained(monkeypatch):
    """Directories that training was asked for, with the config of each."""
    asked = []

    def train(config, run_directory, resume, progress):
        asked.append((run_directory.name, config.to_dict(), resume))
        run_directory.mkdir(parents=True, exist_ok=True)
        (run_directory / "config.json").write_text("{}")
        summary = {"commit": "abc", "seed": config.seed, "sft/dense/2/success": 0.5}
        return SimpleNamespace(summary=summary)

    monkeypatch.setattr(script_module("timed_run"), "train", train)
    return asked


def made(tmp_path, seeds=None, **options):
    return script_module("claims.runs").Runs(seeds, tmp_path, tmp_path, progress=False, **options)


def test_seeds_are_those_given_or_of_the_sweep(tmp_path, config):
    assert made(tmp_path).seeds_of(config) == [4, 7]
    assert made(tmp_path, range(3)).seeds_of(config) == [0, 1, 2]
    assert made(tmp_path, quick=True).seeds_of(config) == [4]
    assert made(tmp_path, range(3), quick=True).seeds_of(config) == [0, 1, 2]


def test_a_config_is_what_the_sweep_makes_of_it(tmp_path, config):
    runs = made(tmp_path)
    assert runs.config_of(config, 7).to_dict() == {
        "name": "mine",
        "seed": 7,
        "steps": 50,
        "rate": 0.3,
        "given": None,
    }
    assert runs.config_of(config, 4).rate == 0.1 and runs.config_of(config, 9).seed == 9
    quick = made(tmp_path, quick=True).config_of(config, 7)
    assert quick.steps == 1 and quick.rate == 0.3
    # An argument that follows the path stays.
    assert runs.config_of(f"{config}:fast", 7).given == "fast"
    quick = made(tmp_path, quick=True).config_of(f"{config}:fast", 7)
    assert quick.given == "fast,runlocal" and quick.steps == 1


def test_a_run_of_a_sweep_is_gone_on_with_and_trained_once(tmp_path, config, trained):
    (tmp_path / "mine_seed7").mkdir()
    (tmp_path / "mine_seed7" / "config.json").write_text("{}")
    (tmp_path / "mine_seed7" / "seconds.json").write_text("100.0")
    runs = made(tmp_path)
    for seed in (4, 7, 7):
        path, summary = runs.finished(runs.config_of(config, seed))
        assert path == tmp_path / f"mine_seed{seed}" and summary["seed"] == seed
    assert [(name, resume) for name, _, resume in trained] == [
        ("mine_seed4", False),
        ("mine_seed7", True),
    ]
    assert runs.commit() == "abc" and runs.measured_seeds() == [4, 7]
    # As if it were trained in this claim, and again in the next one.
    assert 100 < runs.seconds() < 101
    runs.start()
    assert runs.seconds() < 1 and runs.measured_seeds() == []
    runs.finished(runs.config_of(config, 7))
    assert 100 < runs.seconds() < 101 and runs.measured_seeds() == [7]
    assert len(trained) == 2


def test_a_smoke_test_has_runs_of_its_own(tmp_path, config, trained):
    runs = made(tmp_path, quick=True)
    runs.finished(runs.config_of(config, 7))
    assert [name for name, *_ in trained] == ["quick_mine_seed7"]
    assert json.loads((tmp_path / "quick_mine_seed7" / "seconds.json").read_text()) < 60


def test_what_is_measured_once_is_kept():
    runs, asked = made(Path()), []
    for key in ("a", "a", "b"):
        assert runs.once(key, lambda key=key: asked.append(key) or len(asked)) > 0
    assert asked == ["a", "b"]
