"""The README shows what the results files hold."""

from pathlib import Path

from sepo_jax.evaluation.results import load_result, render_named, render_readme

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "experiments" / "results"


def test_readme_agrees_with_the_results_files():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    fresh = render_readme(text, lambda name: render_named(name, RESULTS))
    assert fresh == text, "README.md is out of date: run python experiments/render_results.py"


def test_every_results_file_is_well_formed_and_shown():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for path in RESULTS.glob("*.json"):
        load_result(path)
        assert f"<!-- results:{path.stem} -->" in text, f"README.md does not show {path.name}"
