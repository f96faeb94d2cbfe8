"""Compiles a config's update and generation for a TPU slice, on a machine without a TPU.

    python experiments/dry_run.py --config=configs/sepo/kuhn.py --topology=v5e:2x2
    python experiments/dry_run.py --config=configs/sepo/kuhn.py --topology=v5p:2x2x2 \\
        --config.parallel.kind=mesh --config.parallel.fsdp=8 --rows=64 --row_length=2048
    python experiments/dry_run.py --config=configs/sepo/kuhn.py          # this machine's devices

Needs `pip install -e .[tpu]` for a topology. Exit code 0: everything fits, 1: something does not.
"""

import os
import sys

# Only the compiler of libtpu is used; looking for a TPU on a machine without one takes minutes.
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
from absl import flags
from ml_collections import config_flags

from sepo_jax.training import read_settings
from sepo_jax.training.chips import describe_topology
from sepo_jax.training.command_line import run_main
from sepo_jax.training.dry_run import dry_run
from sepo_jax.training.dry_run_report import render
from sepo_jax.training.dry_run_sizes import default_sizes

CONFIG = config_flags.DEFINE_config_file("config", lock_config=True)
TOPOLOGY = flags.DEFINE_string("topology", "", "TPU slice, e.g. v5e:4x4; default: local devices")
ROWS = flags.DEFINE_integer("rows", None, "rows of one update over all chips")
ROW_LENGTH = flags.DEFINE_integer("row_length", None, "tokens of a row, and of a slot")
ACTIONS = flags.DEFINE_integer("actions", None, "action tokens of a row")
DEBUG = flags.DEFINE_bool("debug", False, "show the traceback of a user error")


def main() -> None:
    """Compiles, prints the tables, and exits with 1 when something does not fit."""
    if CONFIG.value is None:
        raise ValueError("give a config file: --config=configs/sepo/kuhn.py")
    settings = read_settings(CONFIG.value)
    sizes = default_sizes(
        settings, rows=ROWS.value, row_length=ROW_LENGTH.value, actions=ACTIONS.value
    )
    try:
        devices = describe_topology(TOPOLOGY.value) if TOPOLOGY.value else jax.devices()
    except ModuleNotFoundError as error:
        raise ValueError(str(error)) from error
    report = dry_run(settings, devices, sizes)
    print(render(report))
    if report.fits is False:
        sys.exit(1)


if __name__ == "__main__":
    run_main(main, cache="")
