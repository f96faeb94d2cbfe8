"""Trains a policy by a config file and judges it exactly.

    python experiments/train.py --config=configs/sepo/kuhn.py --run=my_run
    python experiments/train.py --config=configs/sepo/kuhn.py --config.seed=1
    python experiments/train.py --config=configs/saved.py:runs/my_run/config.json --run=again
    python experiments/train.py --config=configs/sepo/kuhn.py --run=my_run --resume

On several hosts, the same command on each; on a cluster that JAX knows `--distributed` is enough:

    python experiments/train.py --config=configs/sepo/kuhn.py --distributed
    python experiments/train.py --config=configs/sepo/kuhn.py --coordinator=10.0.0.1:9876 \
        --num_processes=2 --process_id=0

Everything a run writes lies in `<runs>/<run>/`; the last lines printed are its summary. Process 0
of several writes and prints alone.
"""

import json
from pathlib import Path

from absl import flags
from ml_collections import config_flags

from sepo_jax.training import train
from sepo_jax.training.command_line import define_process_flags, run_main
from sepo_jax.training.distributed import is_first

CONFIG = config_flags.DEFINE_config_file("config", lock_config=True)
RUN = flags.DEFINE_string("run", "", "name of the run; default: the config's name and seed")
RUNS = flags.DEFINE_string("runs", "runs", "directory of all runs")
RESUME = flags.DEFINE_bool("resume", False, "go on with a run that was interrupted")
ALLOW_CHANGE = flags.DEFINE_list("allow_change", [], "config keys that may differ at --resume")
JOIN = define_process_flags()
DEBUG = flags.DEFINE_bool("debug", False, "show the traceback of a user error")


def headlines(summary: dict) -> dict:
    """The summary without versions and interval ends, exact figures last."""
    kept = {
        key: value
        for key, value in summary.items()
        if not key.endswith(("_low", "_high")) and not key.startswith("versions/")
    }
    exact = [key for key in kept if key.endswith(("/illegal_mass", "/nash_conv"))]
    return {key: kept[key] for key in kept if key not in exact} | {key: kept[key] for key in exact}


def main() -> None:
    """Runs the training and prints its summary."""
    if CONFIG.value is None:
        raise ValueError("give a config file: --config=configs/sepo/kuhn.py")
    JOIN()
    config = CONFIG.value
    if "/" in RUN.value:
        raise ValueError(f"--run={RUN.value} is a name below --runs={RUNS.value}, not a path")
    name = RUN.value or f"{config.name}_seed{config.seed}"
    run = train(
        config,
        run_directory=Path(RUNS.value) / name,
        resume=RESUME.value,
        allow_change=tuple(ALLOW_CHANGE.value),
    )
    if is_first():
        print(f"report: {run.directory / 'report.html'}")
        print(json.dumps(headlines(run.summary), indent=1))


if __name__ == "__main__":
    run_main(main)
