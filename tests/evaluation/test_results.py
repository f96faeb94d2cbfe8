"""README tables from JSON files."""

import json

import pytest

from sepo_jax.algorithms import ALGORITHMS
from sepo_jax.evaluation import results

RESULT = {
    "title": "Speed of things",
    "command": "python experiments/benchmark.py --seed=0",
    "seeds": [0, 1],
    "commit": "0123456789abcdef0123",
    "versions": {"jax": "1.2.3", "hardware": "2 cores"},
    "columns": ["thing", "a second", "error", "note"],
    "rows": [["Kuhn", 21_000_000, 2.2e-16, "a | b"], ["Leduc", 1234.5, None, "line\nbreak"]],
    "notes": "Batches of 8192.",
}
README = """# Title

<!-- results:speed -->
old text
<!-- /results -->

Between.

<!-- results:algorithms -->
<!-- /results -->
"""


@pytest.fixture
def directory(tmp_path):
    (tmp_path / "speed.json").write_text(json.dumps(RESULT))
    return tmp_path


def test_a_result_is_rendered_with_its_provenance(directory):
    text = results.render_named("speed", directory)
    assert "| thing | a second | error | note |\n|---|---:|---:|---|\n" in text
    assert "| Kuhn | 21,000,000 | 2.2e-16 | a \\| b |" in text
    assert "| Leduc | 1,234 | – | line break |" in text
    assert text.startswith("Speed of things\n\n") and "Batches of 8192." in text
    assert (
        "Written by `python experiments/benchmark.py --seed=0`; seeds 0, 1; commit 0123456789ab; "
        "jax 1.2.3, hardware 2 cores." in text
    )


def test_rendering_replaces_blocks_and_nothing_else(directory):
    def render(name):
        return results.render_named(name, directory)

    text = results.render_readme(README, render)
    assert "old text" not in text and "Between." in text and "| Kuhn |" in text
    assert results.render_readme(text, render) == text  # rendering twice changes nothing
    changed = text.replace("21,000,000", "99,000,000")
    assert results.render_readme(changed, render) == text


def test_the_algorithm_table_has_every_row():
    lines = results.algorithm_table().splitlines()
    assert len(lines) == 2 + len(ALGORITHMS)
    assert "| `dapo` | root | mean | population | token | 0.2 / 0.28 | token |" in lines
    assert "| `rloo` | root | leave one out | none | sequence (sum) | none | sequence |" in lines


@pytest.mark.parametrize(
    ("cell", "shown"),
    [(0.09214, "0.09214"), (0.0, "0"), (12345, "12,345"), (-1 / 18, "-0.05556"), (None, "–")],
)
def test_cells(cell, shown):
    assert results.format_cell(cell) == shown


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"notes": ...}, "lacks 'notes'"),
        ({"colour": "red"}, "unknown key"),
        ({"rows": [["short"]]}, "row 0 has 1 cells for the 4 columns"),
        ({"rows": [["x", float("nan"), 1, "y"]]}, "use null"),
    ],
)
def test_files_of_another_form_are_refused(directory, change, message):
    content = {k: v for k, v in {**RESULT, **change}.items() if v is not ...}
    (directory / "speed.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=message):
        results.load_result(directory / "speed.json")


def test_missing_and_broken_files(directory):
    with pytest.raises(FileNotFoundError, match="Did you mean 'speed'"):
        results.load_result(directory / "sped.json")
    (directory / "speed.json").write_text("{")
    with pytest.raises(ValueError, match="not valid JSON"):
        results.load_result(directory / "speed.json")
    (directory / "speed.json").write_text("[]")
    with pytest.raises(ValueError, match="holds a list"):
        results.load_result(directory / "speed.json")


@pytest.mark.parametrize(
    "text",
    ["<!-- results:speed -->\nno end", "<!-- results:a b -->\n<!-- /results -->"],
)
def test_incomplete_blocks_are_refused(text):
    with pytest.raises(ValueError, match="complete blocks"):
        results.render_readme(text, lambda name: "")


def test_a_block_without_a_name_is_refused():
    with pytest.raises(ValueError, match="names no results file"):
        results.render_readme("<!-- results: -->\n<!-- /results -->", lambda name: "")
