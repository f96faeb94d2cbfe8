"""The report page of a run over several games, and of one without a compiled tree."""

import html
import json
import re

import pytest

from sepo_jax.evaluation import read_run, write_report
from sepo_jax.evaluation.report_baselines import by_stage, experts, run_is_kuhn, with_baselines


def text_of(directory):
    source = re.sub(r"<svg.*?</svg>", "", write_report(directory).read_text(), flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", source)).split())


@pytest.fixture
def joint_run(small_run):
    """A run over Kuhn poker and another game."""
    table = json.loads((small_run / "tables.json").read_text())
    config = json.loads((small_run / "config.json").read_text())
    config["domain"] = {"name": "all", "games": ["ipd", "kuhn"]}
    summary = {
        "games": ["ipd", "kuhn"],
        "uniform/kuhn/nash_conv": 0.9167,
        "uniform/ipd/safety": -1.25,
        "uniform/safety": -1.5,
        "expert/TitForTat/ipd/safety": 0.75,
        "expert/NashApprox/kuhn/safety": 0.031,
        "untrained/ipd/utility": 1.5,
        "sft/ipd/utility": 2.5,
        "sepo/ipd/utility": 2.75,
        "sepo/ipd/utility_low": 2.625,
        "sepo/ipd/utility_high": 2.875,
        "sepo/ipd/exploit_pool_advantage/AlwaysDefect": 0.625,
        "sepo/kuhn/nash_conv": 0.0399,
        "sepo/safety": 0.5,
    }
    for name, content in (
        ("summary", summary),
        ("tables", {f"{stage}/kuhn": rows for stage, rows in table.items()}),
        ("config", config),
    ):
        (small_run / f"{name}.json").write_text(json.dumps(content))
    return small_run


def test_every_game_has_a_table_of_its_own(joint_run):
    text = text_of(joint_run)
    summary = text[text.index("Final figures by stage") : text.index("NashConv over training")]
    overall, ipd = summary.index("Over all games"), summary.index("ipd Measure")
    kuhn = summary.index("kuhn Measure")
    assert overall < ipd < kuhn
    assert "Safety score" in summary[overall:ipd] and "0.5000" in summary[overall:ipd]
    rows = summary[ipd:kuhn]
    head = rows.split("What it measures")[0]
    names = [head.index(name) for name in ("Uniform", "Untrained", "SFT", "SEPO", "Best expert")]
    assert names == sorted(names)
    # A dash for uniform play, base, SFT and SEPO with its interval, a dash for the expert.
    utility = rows[rows.index("Utility u") :].split("Mean own payoff")[0].split()
    assert utility[-7:] == ["–", "1.5000", "2.5000", "2.7500", "[2.625,", "2.875]", "–"]
    assert "Advantage of AlwaysDefect" in rows and "0.7500" in rows and "-1.2500" in rows
    assert "ipd/" not in rows
    assert "0.0399" in summary[kuhn:] and "0.9167" in summary[kuhn:]
    assert "Best expert, by safety: TitForTat (ipd), NashApprox (kuhn)." in summary


def test_a_table_has_the_stages_that_have_figures_of_its_game(joint_run):
    path = joint_run / "summary.json"
    summary = json.loads(path.read_text()) | {"sepo/step": 40, "best_known/kuhn/nash_conv": 0.0}
    path.write_text(json.dumps(summary))
    text = text_of(joint_run)
    text = text[text.index("Final figures by stage") : text.index("NashConv over training")]
    overall, ipd, kuhn = (text.index(f"{name} Measure") for name in ("all games", "ipd", "kuhn"))
    assert "Best known" not in text[overall:kuhn] and "Best known" in text[kuhn:]
    # Only the mean over the games stands above: of uniform play and after SEPO.
    assert text[overall:ipd].startswith("all games Measure Uniform SEPO What it measures Safety")
    assert "step" not in text


def test_no_baseline_of_kuhn_alone_is_filled_in(joint_run):
    run = read_run(joint_run)
    assert not run_is_kuhn(run)
    assert with_baselines(run) == by_stage(run.summary)
    assert "nash_conv" not in with_baselines(run)["uniform"]


def test_the_headline_is_safety_where_no_figure_is_exact(joint_run):
    text = text_of(joint_run)
    head = text[: text.index("Final figures")]
    assert "0.5000 SEPO" in head and "-1.5000 Uniform" in head
    assert "Safety score: the SEPO objective" in head and "NashConv in chips" not in head


def test_tables_of_a_game_stand_beside_its_own_figures(joint_run):
    text = text_of(joint_run)
    costs = text[text.index("What the deviations cost") :]
    row = costs[costs.index("sepo/kuhn") :].split("Match play")[0]
    assert "agrees" in row


def test_experts_of_runs_over_one_game_and_over_several():
    assert experts({"expert/TitForTat/safety": 1.0, "expert/TitForTat/utility_low": 0.0}) == {
        "": "TitForTat"
    }
    several = {
        "games": ["ipd", "v1"],
        "expert/Grim/ipd/safety": 1.0,
        "expert/Fair/v1/exploit_pool_advantage/Hard": 0.0,
    }
    assert experts(several) == {"ipd": "Grim", "v1": "Fair"}
    assert experts({"sepo/safety": 1.0, "expert": 2.0}) == {}
    assert by_stage(several) == {
        "expert": {"ipd/safety": 1.0, "v1/exploit_pool_advantage/Hard": 0.0}
    }


def test_matches_of_every_game_are_shown(joint_run):
    row = {"pool": "train", "opponent": "TitForTat", "own": 2.5, "low": 2.0, "high": 3.0}
    record = {"matches": [row]}
    (joint_run / "evaluation.json").write_text(
        json.dumps({"games": {"ipd": record, "kuhn": "odd"}})
    )
    text = text_of(joint_run)
    matches = text[text.index("Episodes played through text") :]
    assert matches.index("ipd Pool") < matches.index("TitForTat") < matches.index("kuhn No matches")


def test_a_list_of_games_that_is_none_is_passed_over(small_run):
    path = small_run / "summary.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"games": "ipd"}))
    assert "Over all games" not in text_of(small_run)
