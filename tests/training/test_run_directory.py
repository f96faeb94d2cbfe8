"""Files of a run: nothing half-written, nothing overwritten, changed configs refused."""

import json

import pytest

from sepo_jax.training import read_settings, to_dict
from sepo_jax.training.run_directory import RunDirectory, nonfinite


def test_an_existing_run_is_not_overwritten(tmp_path):
    RunDirectory.create(tmp_path / "run", {"seed": 0})
    with pytest.raises(FileExistsError, match=r"exists.*--resume"):
        RunDirectory.create(tmp_path / "run", {"seed": 0})
    assert json.loads((tmp_path / "run/config.json").read_text()) == {"seed": 0}


def test_resume_needs_a_run(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no run to resume"):
        RunDirectory.resume(tmp_path / "absent", {})


def test_a_changed_config_is_refused_with_every_difference(tmp_path):  # E08
    RunDirectory.create(tmp_path / "run", {"seed": 0, "sft": {"batch_size": 4}})
    with pytest.raises(ValueError) as error:
        RunDirectory.resume(tmp_path / "run", {"seed": 1, "sft": {"batch_size": 8}})
    assert "sft.batch_size: 4 -> 8" in str(error.value)
    assert "seed: 0 -> 1" in str(error.value)
    assert "--allow_change=seed,sft.batch_size" in str(error.value)


def test_a_named_change_is_allowed_and_kept(tmp_path):  # E08
    RunDirectory.create(tmp_path / "run", {"seed": 0, "sft": {"batch_size": 4}})
    new = {"seed": 0, "sft": {"batch_size": 8}}
    RunDirectory.resume(tmp_path / "run", new, allow_change=("sft.batch_size",))
    assert RunDirectory(tmp_path / "run").read_json("config.json") == new


def test_a_field_that_a_run_does_not_know_is_at_its_default(tmp_path):
    RunDirectory.create(tmp_path / "run", {"seed": 0})
    default = to_dict(read_settings({"seed": 0}))
    RunDirectory.resume(tmp_path / "run", default)
    default["rl"]["branch_points"] = 2
    with pytest.raises(ValueError, match=r"rl\.branch_points: 0 -> 2"):
        RunDirectory.resume(tmp_path / "run", default)
    with pytest.raises(ValueError, match=r"own\.field: '\(absent\)' -> 1"):
        RunDirectory.resume(tmp_path / "run", {"seed": 0, "own": {"field": 1}})


def test_a_half_written_line_is_left_out(tmp_path):
    directory = RunDirectory.create(tmp_path / "run", {})
    directory.append("metrics.jsonl", {"stage": "sft", "step": 1})
    with open(directory.path / "metrics.jsonl", "a") as file:
        file.write('{"stage": "sft", "st')
    assert directory.lines("metrics.jsonl") == [{"stage": "sft", "step": 1}]
    directory.keep_lines(lambda line: True)
    assert (directory.path / "metrics.jsonl").read_text() == '{"stage": "sft", "step": 1}\n'


def test_keep_lines_drops_from_every_line_file(tmp_path):
    directory = RunDirectory.create(tmp_path / "run", {})
    for name in ("metrics.jsonl", "timings.jsonl", "samples.jsonl"):
        for step in (1, 2, 3):
            directory.append(name, {"stage": "sft", "step": step})
    directory.keep_lines(lambda line: line["step"] <= 2)
    for name in ("metrics.jsonl", "timings.jsonl", "samples.jsonl"):
        assert [line["step"] for line in directory.lines(name)] == [1, 2]


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path):
    directory = RunDirectory.create(tmp_path / "run", {})
    directory.write_json("summary.json", {"a": 1})
    with pytest.raises(ValueError, match="JSON"):
        directory.write_json("summary.json", {"a": float("nan")})
    assert directory.read_json("summary.json") == {"a": 1}
    assert sorted(p.name for p in directory.path.iterdir()) == ["config.json", "summary.json"]


def test_nonfinite_names_the_metric():
    assert nonfinite({"loss": 1.0, "gradient_norm": float("nan")}) == "gradient_norm"
    assert nonfinite({"loss": float("inf")}) == "loss"
    assert nonfinite({"stage": "sft", "step": 3, "loss": 0.0}) is None
