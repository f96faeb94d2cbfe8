"""Reading run directories: whole, partial, broken."""

import json
import math

import pytest

from sepo_jax.evaluation.run_data import read_run, to_number


def test_a_finished_run_reads_whole(run_directory):
    run = read_run(run_directory)
    assert run.notes == []
    assert run.stages() == ["sft", "sepo"]
    steps, values = run.series("sepo", "nash_conv")
    assert steps == [10, 20, 30, 40, 50, 60, 70, 80] and len(values) == 8
    assert "kl_reference" in run.metric_keys("sepo")
    assert "kl_reference" not in run.metric_keys("sft")
    assert run.versions == {"jax": "0.0.1", "numpy": "0.0.2"}
    assert len(run.samples) == 20 and set(run.tables) == {"untrained", "sft", "sepo"}


@pytest.mark.parametrize(
    ("value", "expected"),
    [(1, 1.0), (2.5, 2.5), (True, 1.0), ("inf", math.inf), ("-Infinity", -math.inf)],
)
def test_numbers(value, expected):
    assert to_number(value) == expected


@pytest.mark.parametrize("value", ["NaN", "nan", None, math.nan])
def test_nan_in_any_spelling_is_a_number_that_is_nan(value):
    assert math.isnan(to_number(value))


@pytest.mark.parametrize("value", ["fast", "1.5", [], {}])
def test_what_is_no_number(value):
    assert to_number(value) is None


def test_integers_beyond_float_do_not_fail():
    assert to_number(10**400) == math.inf


def test_a_killed_runs_last_line_is_noted_and_left_out(run_directory):
    path = run_directory / "metrics.jsonl"
    text = path.read_text()
    path.write_text(text[: len(text) - 25])
    run = read_run(run_directory)
    assert len(run.metrics) == 179
    assert any("line 180" in note for note in run.notes)


def test_steps_written_twice_count_once_with_the_last_writing(run_directory):
    path = run_directory / "metrics.jsonl"
    again = {"stage": "sepo", "step": 80, "loss": 123.0}
    path.write_text(path.read_text() + json.dumps(again) + "\n")
    run = read_run(run_directory)
    assert run.series("sepo", "loss")[1][-1] == 123.0
    assert len(run.series("sepo", "loss")[0]) == 80
    assert any("written more than once" in note for note in run.notes)


def test_broken_files_become_notes(tmp_path):
    (tmp_path / "config.json").write_text("{")
    (tmp_path / "summary.json").write_text("[1, 2]")
    (tmp_path / "tables.json").write_text('{"sft": 3, "sepo": {"J": "x", "Q": [0.5, 0.5]}}')
    (tmp_path / "metrics.jsonl").write_bytes(b'\xff\xfe\n[1]\n{"stage": "sft", "step": 1}\n')
    run = read_run(tmp_path)
    assert run.config == {} and run.summary == {}
    assert run.tables == {"sepo": {"Q": [0.5, 0.5]}}
    assert len(run.metrics) == 1
    text = " ".join(run.notes)
    for part in ("config.json", "summary.json", "'sft' is no table", "sepo, J", "line 1, 2"):
        assert part in text, part


def test_a_missing_directory_offers_the_nearest(run_directory):
    with pytest.raises(FileNotFoundError, match=r"Did you mean .*kuhn-fixture"):
        read_run(run_directory.parent / "kuhn-fixtur")
