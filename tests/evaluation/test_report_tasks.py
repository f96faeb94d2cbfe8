"""The page of a run over tasks: every stage beside its baselines, curves, samples, odd content."""

import json
import re

import pytest
from report_pages import checked_page
from scripted_tasks import matrix_script, write_task_run
from training.parity_tasks import Parity

from sepo_jax.evaluation import read_run
from sepo_jax.evaluation.matrix_domain import MatrixBenchmark
from sepo_jax.evaluation.plots import Line, curve_chart
from sepo_jax.evaluation.report_baselines import with_baselines

ARMS = ("dense/2", "dense/3", "named")
SCRIPTS = {
    "untrained": matrix_script(0, broken=1.0),
    "sft": matrix_script(0.5),
    "rl": matrix_script(1.0, broken=0.0),
}
PLAYERS = ["Uniform", "Best pure", "Untrained", "SFT", "RL", "Best known"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "matrix"
    return write_task_run(path, MatrixBenchmark(arms=ARMS), SCRIPTS)


@pytest.fixture
def task_run(finished, tmp_path):
    """A copy that a test may break."""
    target = tmp_path / "matrix"
    target.mkdir()
    for file in finished.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    return target


def test_every_figure_of_every_kind_stands_beside_its_baselines(finished):  # F22
    _, text = checked_page(finished)
    summary = json.loads((finished / "summary.json").read_text())
    for heading, figure in (
        ("Success ↑ Share of episodes that solve", "success"),
        ("Valid replies ↑ Share of replies that can", "valid"),
        ("Success given valid ↑", "success_given_valid"),
        ("Residual (NashConv) ↓ NashConv of the two", "residual"),
    ):
        # The first such heading is of the summary, where there is one.
        part = text[text.rindex(heading) :]
        assert part[part.index("Kind of task") :].startswith(" ".join(["Kind of task", *PLAYERS]))
        for arm in ARMS:
            row = part[part.index(f" {arm} ") :]
            for player in ("uniform", "best_pure", "sft", "rl", "best_known"):
                value = f"{summary[f'{player}/{arm}/{figure}']:.4f}"
                assert value in row[:300], (figure, arm, player)
    # The label says which: NashConv, not halved.
    assert "not halved" in text and "half of it is the exploitability" in text
    # The tiles at the top.
    assert "0.0000 Untrained" in text and "1.0000 RL 1.0000 Best known" in text


def test_intervals_stand_beside_their_figures(finished):
    _, text = checked_page(finished)
    # No reply of 18 was valid: Wilson's interval is [0, z² / (18 + z²)].
    assert "0.0000 [0.000, 0.176]" in text
    assert "success_low" not in text and "valid_high" not in text


def test_a_line_for_every_player(finished):
    source, text = checked_page(finished)
    for title in ("Success by size, dense games", *(f"Success by threshold, {a}" for a in ARMS)):
        assert source.count(f'aria-label="{title}"') == 1
    legend = text[text.index("interval over tasks.") :]
    assert legend.split("interval over tasks.")[1].strip().startswith(" ".join(PLAYERS))
    assert source.count("border-top-style:dashed") == 3  # the baselines


def test_a_run_over_tasks_has_no_sections_of_games(finished):
    source, text = checked_page(finished)
    for absent in ("Match play", "NashConv over training", "Policy table", "Illegal mass"):
        assert absent not in text
    assert "could not be drawn" not in text and "tables.json" not in text
    assert "exact/nash_conv" not in source
    assert "nash_conv" not in with_baselines(read_run(finished))["uniform"]


def test_curves_of_what_episodes_record(finished):
    source, text = checked_page(finished)
    stage = text[text.index("Curves: RL") :]
    stage = stage[: stage.index("Samples The latest")]
    # Named ones by their label, others by their key; none is folded away.
    assert "reward. Mean reward of episodes" in stage
    assert "task/valid. Share of replies" in stage and "task/own_count." in stage
    assert "Other metrics" not in stage
    assert 'aria-label="Valid replies"' in source and 'aria-label="own count"' in source


def test_replies_to_evaluation_tasks_are_shown(finished):
    source, text = checked_page(finished)
    samples = text[text.index("Samples The latest") : text.index("Failures Counts")]
    assert samples.index("Untrained step 0 reward 0.0000") < samples.index("RL step 3 reward")
    assert "no idea" in samples and "status not_parsable" in samples and "None" not in samples
    assert '<span class="tag bad">valid False</span>' in source
    assert "status valid" in samples and "Rows with payoffs:" in samples


def test_domains_without_kinds_or_curves(tmp_path):
    script = {"untrained": lambda *_: "odd", "sft": lambda *_: "even", "rl": lambda *_: None}
    path = write_task_run(tmp_path / "parity", Parity(), script, tasks=10)
    source, text = checked_page(path)
    assert re.search(r"Success ↑ 0\.5000 0\.5000 0\.0000 0\.5000", text)
    assert "Untrained SFT RL always_even" in text
    assert "Kind of task" not in text and 'class="legend"' not in source
    assert "are of one kind: their figures are those of the summary" in text
    assert "right True" in text


@pytest.mark.parametrize(
    "content",
    [
        {"players": 3},
        {"players": {"sft": 3, "rl": {"curves": [1], "samples": {"a": 1}}}},
        {"players": {"rl": {"curves": {"A <u>": 1, "B": {"x": [1, 2], "y": [1]}}}}},
        {"players": {"rl": {"curves": {"A": {"x": ["1"], "y": [1]}}, "samples": [1, {"a": 2}]}}},
        {"players": {"rl": {"curves": {"A": {"x": [1, 2], "y": [None, 1e300]}}}}},
        {"players": {"x<u>": {"curves": {"A<u>": {"x": [1], "y": [9], "y_label": "<u>"}}}}},
    ],
)
def test_no_content_breaks_the_page(task_run, content):
    (task_run / "tasks.json").write_text(json.dumps(content))
    source, text = checked_page(task_run)
    assert "could not be drawn" not in text and "Kind of task" in text
    assert "<u>" not in source


def test_a_lost_file_leaves_the_summary(task_run):
    (task_run / "tasks.json").unlink()
    _, text = checked_page(task_run)
    assert "dense/2/ success" in text or "dense/2/success" in text.replace(" ", "")
    (task_run / "tasks.json").write_text("{")
    _, text = checked_page(task_run)
    assert "tasks.json is not valid JSON" in text


def test_curves_keep_every_point():
    """Without smoothing, gaps where nothing can be drawn, shares on an axis of shares."""
    line = Line([0, 1, 2], [0, float("nan"), 1], "#123456", True)
    svg = curve_chart([line, Line([], [], "#000000", False)], title="T", x_label="x", y_label="y")
    assert svg.startswith("<svg") and "#123456" in svg and ">T<" in svg
    steep = Line(list(range(60)), [float(i == 30) for i in range(60)], "#abcdef", False)
    svg = curve_chart([steep], title="T", x_label="x", y_label="y")
    (path,) = re.findall(r'<path d="([^"]*)"[^>]*stroke: #abcdef', svg)
    heights = {round(float(y), 1) for y in re.findall(r"[ML] [\d.]+ ([\d.]+)", path)}
    assert len(heights) == 2
