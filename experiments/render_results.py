"""Renders the README's tables from experiments/results/*.json.

    python experiments/render_results.py            # rewrites README.md
    python experiments/render_results.py --check    # says what is out of date, changes nothing

A table stands between `<!-- results:NAME -->` and `<!-- /results -->`, each on its own line, and
comes from experiments/results/NAME.json:

    {"title": "...", "command": "python experiments/... ", "seeds": [0, 1, 2], "commit": "...",
     "versions": {"jax": "..."}, "columns": ["...", ...], "rows": [["...", 1.5, null], ...],
     "notes": "..."}

All keys are required; null is a value that was not measured. The table `algorithms` has no file: it
is `sepo_jax.algorithms.ALGORITHMS` itself.
"""

import sys
from pathlib import Path

from absl import flags

from sepo_jax.evaluation.files import replace_text
from sepo_jax.evaluation.results import render_named, render_readme
from sepo_jax.training.command_line import run_main

ROOT = Path(__file__).resolve().parent.parent
README = flags.DEFINE_string("readme", str(ROOT / "README.md"), "file to render")
RESULTS = flags.DEFINE_string(
    "results", str(ROOT / "experiments" / "results"), "directory of the JSON files"
)
CHECK = flags.DEFINE_bool("check", False, "only compare; exit code 1 when out of date")
DEBUG = flags.DEFINE_bool("debug", False, "show the traceback of a user error")


def main() -> None:
    """Rewrites the README, or compares."""
    path = Path(README.value)
    old = path.read_text(encoding="utf-8")
    new = render_readme(old, lambda name: render_named(name, RESULTS.value))
    if new == old:
        print(f"{path} agrees with {RESULTS.value}")
    elif CHECK.value:
        print(f"{path} is out of date: run experiments/render_results.py", file=sys.stderr)
        sys.exit(1)
    else:
        replace_text(path, new)
        print(f"rendered {path}")


if __name__ == "__main__":
    run_main(main)
