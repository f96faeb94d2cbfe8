"""The report page: complete, honest about gaps, self-contained, escaped."""

import json
import re
import shutil

import pytest
from report_pages import checked_page

from sepo_jax.domains import Kuhn
from sepo_jax.evaluation import read_run, write_report
from sepo_jax.evaluation.measures import MEASURES, canonical, describe, is_counter
from sepo_jax.evaluation.nash_family import kuhn_member
from sepo_jax.evaluation.page import number
from sepo_jax.evaluation.plots import Series, line_chart
from sepo_jax.evaluation.report_baselines import with_baselines
from sepo_jax.sepo import SepoWeights
from sepo_jax.sepo.exact import exact_terms


def test_a_finished_run_gives_a_wholechecked_page(run_directory):
    source, text = checked_page(run_directory)
    assert "http" not in source
    for part in (
        "Run kuhn-fixture",
        "sft: last logged step 100 of 100; sepo: last logged step 80 of 80. Seed 0.",
        "NashConv over training",
        "Curves: SFT",
        "Curves: SEPO",
        "Clip fraction",
        "Illegal mass",
        "KL divergence",
        "0.030 (+0.030)",
        "You hold the Queen. You passed and your opponent bet.",
        "credited",
        "0123456789abcdef",
        "[0.050, 0.130]",
    ):
        assert part in text, part
    assert source.count("<svg") >= 12


def test_every_number_stands_beside_its_baselines(run_directory):  # F22
    _, text = checked_page(run_directory)
    # Uniform play scores 11/12 = 0.9167 (0.4583 halved), and the label says which is which.
    row = text[text.index("NashConv (exact)") :]
    assert row.split("Sum over both seats")[0].split()[-5:] == [
        "0.9167",
        "0.8857",
        "0.2887",
        "0.0399",
        "0.0000",
    ]
    assert "Exploitability (exact)" in text and "0.4583" in text
    assert "Exact NashConv in chips a hand (not halved)" in text
    assert "uniform 0.9167" in text and "best known 0" in text


def test_baselines_of_kuhn_are_shown_before_the_run_has_any(small_run):  # F22
    (small_run / "summary.json").unlink()
    (small_run / "tables.json").unlink()
    _, text = checked_page(small_run)
    assert "0.9167" in text and "no final summary" in text
    assert "uniform 0.9167" in text


def test_match_play_figures_have_exact_baselines(small_run):  # F22
    path = small_run / "config.json"
    config = json.loads(path.read_text())
    config["sepo"] |= {
        "exploitability_weight": 1.5,
        "collusion_weight": 0.0,
        "externality_weight": 0.0,
    }
    path.write_text(json.dumps(config))
    stages = with_baselines(read_run(small_run))
    table = dict.fromkeys(kuhn_member(0.0), (0.5, 0.5))
    exact = exact_terms(Kuhn(), table, SepoWeights(1.5))
    for name in ("utility", "exploit_pool_advantage", "safety"):
        assert stages["uniform"][name] == pytest.approx(exact[name]), name
    assert stages["uniform"]["illegal_mass"] == 0.0
    assert "utility" not in stages["untrained"]  # its illegal replies are in no table
    # Another version's config, or none: no guess.
    path.write_text(json.dumps({"domain": {"name": "kuhn", "hands": "six"}, "sepo": {}}))
    assert "utility" not in with_baselines(read_run(small_run))["uniform"]


def test_a_figure_that_its_own_table_contradicts_is_marked(small_run):  # F20
    path = small_run / "summary.json"
    summary = json.loads(path.read_text())
    assert checked_page(small_run)[1].count("agrees") == 3
    path.write_text(json.dumps({**summary, "sepo/nash_conv": 0.0}))
    _, text = checked_page(small_run)
    assert text.count("agrees") == 2 and "the run says 0.0000" in text and "0.0399" in text


ALL_FILES = ("config.json", "metrics.jsonl", "timings.jsonl", "summary.json", "tables.json")


@pytest.mark.parametrize("missing", [*ALL_FILES, "samples.jsonl", "everything"])
def test_missing_files_leave_a_page_that_says_so(small_run, missing):
    names = [p.name for p in small_run.iterdir()] if missing == "everything" else [missing]
    for name in names:
        (small_run / name).unlink()
    _, text = checked_page(small_run)
    for name in names:
        assert f"{name} is not there (yet)." in text
    if missing == "everything":
        assert "no step logged yet" in text and "No action table was written yet" in text


@pytest.mark.parametrize(
    "line",
    [
        {"stage": "sft", "step": 1, "loss": 2.0},
        {"stage": "sepo", "step": 1, "nash_conv": 0.7},
        {"step": 1, "loss": 2.0},
        {"stage": "sft", "step": "one", "loss": "NaN", "note": "text", "list": [1]},
        {"stage": "a <b> stage", "step": 0, "odd/<key>": 1},
        {},
    ],
)
def test_one_line_of_metrics_gives_achecked_page(tmp_path, line):
    (tmp_path / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    source, _ = checked_page(tmp_path)
    assert "<b> stage" not in source and "<key>" not in source


@pytest.mark.parametrize("spelling", ["NaN", '"NaN"', "Infinity"])
def test_values_that_are_not_finite_are_shown_and_counted(small_run, spelling):
    path = small_run / "metrics.jsonl"
    lines = path.read_text().splitlines()
    for index in (25, 30):
        lines[index] = re.sub(r'"loss": [^,}]+', f'"loss": {spelling}', lines[index])
    path.write_text("\n".join(lines) + "\n")
    summary = (small_run / "summary.json").read_text()
    (small_run / "summary.json").write_text(
        summary.replace('"sepo/utility": 0.11', f'"sepo/utility": {spelling}')
    )
    _, text = checked_page(small_run)
    assert "loss: 2 of 20 values are not finite" in text


def test_a_series_of_nothing_but_nan_still_draws():
    svg = line_chart([Series([1, 2], [float("nan")] * 2, "loss")], title="Loss")
    assert svg.startswith("<svg")


def test_text_from_the_run_is_escaped(small_run):
    attack = "<script>alert('x')</script><img src=http://example.org/x.png onerror=alert(1)>\ud800"
    for name in ("samples.jsonl", "metrics.jsonl"):
        with open(small_run / name, "a", encoding="utf-8") as file:
            decision = {"observation": attack, "prompt": attack, "reply": attack, "valid": False}
            row = {"stage": attack, "step": 1, attack: 1.0, "text": attack}
            row |= {"decisions": [decision, attack], "messages": [{"role": attack}, attack]}
            file.write(json.dumps(row) + "\n")
    for name in ("config.json", "summary.json", "tables.json"):
        content = json.loads((small_run / name).read_text())
        content[f"{attack}/nash_conv"] = 1.0 if name == "summary.json" else {"J": [0.5, 0.4]}
        content["note" + attack] = attack
        (small_run / name).write_text(json.dumps(content))
    source, text = checked_page(small_run)
    assert "<script" not in source and "<img" not in source
    assert "<script>alert('x')</script>" in text  # shown as text


def test_tables_of_another_game_are_listed_plainly(small_run):
    tables = {
        "sepo": {"Ks:": [0.2, 0.3, 0.5]},
        "sft": {f"set {i}": [0.5, 0.5, 0] for i in range(79)},
    }
    (small_run / "tables.json").write_text(json.dumps(tables))
    _, text = checked_page(small_run)
    assert "Ks: – 0.200, 0.300, 0.500" in text and "sets are shown" not in text
    tables["sft"] |= {f"set {i}": [0.5, 0.5, 0] for i in range(79, 90)}
    (small_run / "tables.json").write_text(json.dumps(tables))
    _, text = checked_page(small_run)
    assert "The first 80 of 91 sets are shown" in text and "Ks:" not in text


def test_half_of_nash_conv_is_named_exploitability_only_in_kuhn(small_run):
    assert "exploitability" in with_baselines(read_run(small_run))["sepo"]
    (small_run / "config.json").write_text(json.dumps({"domain": {"name": "auction"}}))
    (small_run / "tables.json").unlink()
    assert "exploitability" not in with_baselines(read_run(small_run))["sepo"]
    _, text = checked_page(small_run)
    assert "Half of this number" not in text and "Exploitability (exact)" not in text


HUGE = "1" + "0" * 400


@pytest.mark.parametrize(
    ("name", "lines", "shown"),
    [
        ("samples.jsonl", [f'{{"stage": "sepo", "step": {HUGE}}}'], "100000... (401 digits)"),
        ("metrics.jsonl", ['{"stage": "sft", "step": Infinity, "loss": 1.0}'], "no finite step"),
        (
            "metrics.jsonl",
            [f'{{"stage": "sft", "step": {s}, "loss": 1.0}}' for s in (HUGE, "1e308", "-1e308")],
            "3 line(s) have no finite step",
        ),
        (
            "metrics.jsonl",
            [f'{{"stage": "sft", "step": {21 + i}, "loss": {"-" * i}1e308}}' for i in (0, 1)],
            "loss: 2 of 22 values are not finite or beyond 1e30",
        ),
    ],
)
def test_no_number_breaks_thechecked_page(small_run, name, lines, shown):
    with open(small_run / name, "a", encoding="utf-8") as file:
        file.write("".join(f"{line}\n" for line in lines))
    _, text = checked_page(small_run)
    assert shown in text and "could not be drawn" not in text


def test_a_weight_beyond_floats_leaves_a_dash(small_run):
    config = json.loads((small_run / "config.json").read_text())
    config["sepo"] |= {"exploitability_weight": int(HUGE), "collusion_weight": 0}
    (small_run / "config.json").write_text(json.dumps(config | {"sft": {}}))
    _, text = checked_page(small_run)
    assert "could not be drawn" not in text and "NashConv (exact)" in text


def test_a_section_that_fails_becomes_a_note(small_run, monkeypatch):
    def broken(run):
        raise RuntimeError("odd <content>")

    monkeypatch.setattr("sepo_jax.evaluation.report.samples_section", broken)
    source, text = checked_page(small_run)
    assert "This section could not be drawn: RuntimeError: odd <content>" in text
    assert "<content>" not in source and "NashConv over training" in text and "Versions" in text


def test_a_broken_table_is_reported_not_guessed(small_run):
    path = small_run / "tables.json"
    tables = json.loads(path.read_text())
    tables["sepo"]["J"] = [0.6, 0.6]
    tables["sft"]["K"] = ["NaN", 0.5]
    del tables["untrained"]["Q"]
    path.write_text(json.dumps(tables))
    _, text = checked_page(small_run)
    assert "does not sum to 1" in text and "holds NaN" in text and "have no row: Q" in text


def test_failures_are_counted(run_directory):
    _, text = checked_page(run_directory)
    # invalid_replies is 1 at steps 17, 34, 51, 68 of 80.
    assert "invalid_replies 4 of 80 1.0000 0.0000" in text
    assert "skipped_updates 0 of 80" in text


def test_match_play_is_shown_from_evaluation_json(small_run):
    match = {"pool": "train", "opponent": "NashApprox", "episodes": 9, "own": -0.1, "low": None}
    record = {
        "nash_conv": 0.5,
        "sampled_nash_conv": {"mean": 0.1, "low": 0.0, "high": 0.2, "count": 100},
        "matches": [match, {**match, "opponent": "AlwaysBet", "low": -0.2, "high": 0.0}, "odd"],
    }
    (small_run / "evaluation.json").write_text(json.dumps(record))
    _, text = checked_page(small_run)
    assert "[-0.200, 0.000]" in text and "AlwaysBet" in text
    assert "from 100 hands" in text and "lies outside this interval" in text


def test_equal_runs_give_equal_pages(small_run, tmp_path):
    copy = tmp_path / "elsewhere" / small_run.name
    shutil.copytree(small_run, copy)
    assert write_report(small_run).read_bytes() == write_report(copy).read_bytes()
    assert not list(small_run.glob(".report*"))


def test_every_measure_is_described_and_names_resolve():
    for key, measure in MEASURES.items():
        assert measure.key == key and measure.sentence.endswith(".")
        assert measure.better in ("lower", "higher", "")
    assert canonical("exact/nash_conv") == "nash_conv"
    assert canonical("kl_behavior") == canonical("loss_kl") == "kl"
    assert canonical("loss/entropy") == "loss_part" and canonical("entropy") == "entropy"
    assert canonical("exploit_pool_advantage/AlwaysBet") == "exploiter_gain"
    assert "not described" in describe("some/own_metric").sentence
    # A pool number is never called exploitability.
    assert "pool" in describe("e").label.lower() and "exact" in describe("exploitability").label


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("accuracy", "accuracy"),
        ("task/right", "accuracy"),
        ("2_hops/exact", "exact"),
        ("avg@16", "avg"),
        ("pass@2", "pass"),
        ("team/active_set", "active_set"),
        ("team/active_set_solve", "active_set_of_kind"),
        ("team/tokens", "tokens"),
        ("team/tokens_solver", "tokens_of_role"),
        ("dropped_events", "dropped_events"),
        ("trees/tokens_per_leaf", None),
    ],
)
def test_figures_of_teams_are_described(key, name):
    assert canonical(key) == name


def test_counters_are_recognised():
    for key in ("failed_episodes", "skipped_updates", "invalid_replies", "x/missing_rewards"):
        assert is_counter(key), key
    for key in ("loss", "nash_conv", "reward", "illegal_mass"):
        assert not is_counter(key), key


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.91666, "0.9167"),
        (2.2e-16, "0.0000"),
        (3e-7, "3e-07"),
        (12345, "12,345"),
        (1234.5, "1,234.5"),
        (7, "7"),
        (True, "True"),
        ("<", "&lt;"),
    ],
)
def test_numbers_are_written(value, shown):
    assert number(value) == shown
