"""Compiles a config's update and generation for a TPU slice, on a machine without a TPU.

    python experiments/dry_run.py --config=configs/srpo/qwen3_8b.py      # the slice it is meant for
    python experiments/dry_run.py --config=configs/sepo/kuhn.py --topology=v5e:2x2
    python experiments/dry_run.py --config=configs/sepo/kuhn.py --topology=v5p:2x2x2 \\
        --config.parallel.kind=mesh --config.parallel.fsdp=8 --rows=64 --row_length=2048
    python experiments/dry_run.py --config=configs/srpo/qwen3_8b.py --gpu=h100x16
    python experiments/dry_run.py --config=configs/sepo/kuhn.py          # this machine's devices

`--gpu` compiles nothing: it is an estimate by arithmetic, and says so. `--write` puts the figures
into README's table. Needs `pip install -e .[tpu]` for a topology. Exit code 0: everything fits, 1:
something does not.
"""

import os
import sys

# Only the compiler of libtpu is used; looking for a TPU on a machine without one takes minutes.
os.environ.setdefault("JAX_PLATFORMS", "cpu")

from absl import flags
from ml_collections import config_flags

from sepo_jax.training import read_settings
from sepo_jax.training.chips import LOCAL, devices_for
from sepo_jax.training.command_line import run_main
from sepo_jax.training.dry_run import dry_run
from sepo_jax.training.dry_run_report import PARTS
from sepo_jax.training.dry_run_results import write_row
from sepo_jax.training.dry_run_sizes import default_sizes
from sepo_jax.training.dry_run_tables import render
from sepo_jax.training.estimate import estimate

CONFIG = config_flags.DEFINE_config_file("config", lock_config=True)
TOPOLOGY = flags.DEFINE_string(
    "topology", "", 'TPU slice, e.g. v5e:4x4, or "local"; default: the config\'s own, else local'
)
GPU = flags.DEFINE_string("gpu", "", "model and number, e.g. h100x8: an estimate for it")
ROWS = flags.DEFINE_integer("rows", None, "rows of one update over all chips")
ROW_LENGTH = flags.DEFINE_integer("row_length", None, "tokens of a row, and of a slot")
ACTIONS = flags.DEFINE_integer("actions", None, "action tokens of a row")
CHOSEN = flags.DEFINE_list("parts", list(PARTS), f"what is compiled of {', '.join(PARTS)}")
WRITE = flags.DEFINE_bool("write", False, "write a row of experiments/results/dry_run.json")
DEBUG = flags.DEFINE_bool("debug", False, "show the traceback of a user error")


def main() -> None:
    """Compiles, prints the tables, and exits with 1 when something does not fit."""
    if CONFIG.value is None:
        raise ValueError("give a config file: --config=configs/sepo/kuhn.py")
    if GPU.value and TOPOLOGY.value:
        raise ValueError(
            f"--gpu={GPU.value} estimates and --topology={TOPOLOGY.value} compiles: give one"
        )
    settings = read_settings(CONFIG.value)
    target = GPU.value or TOPOLOGY.value or settings.parallel.topology or LOCAL
    if WRITE.value and target == LOCAL:
        raise ValueError("--write is of a slice or of GPUs: give --topology or --gpu")
    if WRITE.value and "update" not in CHOSEN.value:
        raise ValueError(f"--write is of the update at least, and --parts={CHOSEN.value} lacks it")
    sizes = default_sizes(
        settings, rows=ROWS.value, row_length=ROW_LENGTH.value, actions=ACTIONS.value
    )
    if GPU.value:
        report = estimate(settings, GPU.value, sizes)
    else:
        try:
            devices = devices_for(settings.parallel, TOPOLOGY.value)
        except ModuleNotFoundError as error:
            raise ValueError(str(error)) from error
        report = dry_run(settings, devices, sizes, parts=CHOSEN.value)
    print(render(report))
    if WRITE.value:
        path = write_row(report, config_flags.get_config_filename(flags.FLAGS["config"]), target)
        print(f"wrote {path}")
    if report.fits is False:
        sys.exit(1)


if __name__ == "__main__":
    run_main(main, cache="")
