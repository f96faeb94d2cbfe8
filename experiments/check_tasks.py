"""Checks that the tests of every task of repository repair say the same every time.

    python experiments/check_tasks.py --config=configs/bpo/repository.py
    python experiments/check_tasks.py --times=10 --output=quarantined.json \\
        --config=configs/bpo/qwen2_5_7b.py:task=repository,data=<file>
    python experiments/train.py --config=configs/bpo/repository.py \\
        --config.domain.options.quarantined=quarantined.json

Each task is played `--times` times without a repair and as often with the known one, in the
sandbox of the config. One whose tests do not all behave each time is quarantined: the file lists
it with the reason, and the option `quarantined` of the domain leaves the tasks of a file out.
Exit code 0: all tasks are sound, 1: some are not.
"""

import sys
from pathlib import Path

from absl import flags
from ml_collections import config_flags
from tqdm import tqdm

from sepo_jax.evaluation.files import check_writable
from sepo_jax.evaluation.quarantine import write_quarantine
from sepo_jax.sandbox.repository_checks import Checked, check_tasks
from sepo_jax.training import read_settings
from sepo_jax.training.command_line import run_main
from sepo_jax.training.setup import make_domain, make_pool

CONFIG = config_flags.DEFINE_config_file("config", lock_config=True)
TIMES = flags.DEFINE_integer("times", 5, "plays of each kind of every task", lower_bound=1)
OUTPUT = flags.DEFINE_string("output", "quarantined.json", "file to write")
DEBUG = flags.DEFINE_bool("debug", False, "show the traceback of a user error")


def render(checked: Checked) -> str:
    """The quarantined tasks with their reasons, then how many there are of each."""
    lines = [f"{task}\n    {reason}" for task, reason in checked.quarantined]
    counts = {"sound": len(checked.sound), "quarantined": len(checked.quarantined)}
    return "\n".join([*lines, *(f"{name:<12}{count:>6}" for name, count in counts.items())])


def main() -> None:
    """Checks, prints the table, writes the file, and exits with 1 when a task is not sound."""
    if CONFIG.value is None:
        raise ValueError("give a config file: --config=configs/bpo/repository.py")
    check_writable(Path(OUTPUT.value))  # a check takes minutes to hours
    settings = read_settings(CONFIG.value)
    domain = make_domain(settings.domain)
    if not hasattr(domain, "oracle"):
        raise ValueError(
            f"domain {domain.name!r} has no tests to check; this is for domain.name='repository'"
        )
    tasks, sandbox = domain.tasks(), settings.sandbox
    with make_pool(sandbox, domain) as pool, tqdm(total=len(tasks), unit="task") as bar:
        actors = sandbox.actors if sandbox.backend == "ray" else 1
        checked = check_tasks(
            pool,
            tasks,
            domain.oracle,
            TIMES.value,
            at_once=1 if sandbox.backend == "in_process" else actors * sandbox.workers,
            done=bar.update,
        )
    print(render(checked))
    print(f"written: {write_quarantine(OUTPUT.value, checked, TIMES.value)}")
    if checked.quarantined:
        sys.exit(1)


if __name__ == "__main__":
    run_main(main)
