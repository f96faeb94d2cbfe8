"""Writes the report page of a run, finished or not, and the page of its trees where it has any.

python experiments/report.py --run=runs/sepo_kuhn_seed0
"""

from absl import flags

from sepo_jax.evaluation import read_run, write_report
from sepo_jax.evaluation.report_trees import TREES
from sepo_jax.training.command_line import run_main

RUN = flags.DEFINE_string("run", "", "directory of the run, such as runs/sepo_kuhn_seed0")
DEBUG = flags.DEFINE_bool("debug", False, "show the traceback of a user error")


def main() -> None:
    """Writes the pages and says what was missing."""
    if not RUN.value:
        raise ValueError("give a run directory: --run=runs/<name>")
    path = write_report(RUN.value)
    for note in read_run(RUN.value).notes:
        print(f"note: {note}")
    print(f"report: {path}")
    if (trees := path.with_name(TREES)).exists():
        print(f"trees: {trees}")


if __name__ == "__main__":
    run_main(main)
