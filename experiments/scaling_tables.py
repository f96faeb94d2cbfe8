"""The results files and the figure of `benchmark_scaling.py`."""

import os
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

import jax
import scaling_devices
import scaling_growth
from scaling_figure import draw

from sepo_jax.evaluation.results import source_commit, write_result

RESULTS = Path(__file__).resolve().parent / "results"
PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy")
TITLES = {
    "growth": "What a training step costs as it grows, with common beginnings computed once",
    "devices": "Weak scaling on virtual devices: equal work for each",
}
COLUMNS = {"growth": scaling_growth.COLUMNS, "devices": scaling_devices.COLUMNS}
FILES = {"growth": "benchmark_scaling", "devices": "benchmark_scaling_devices"}
NOTES = {
    "growth": (
        "Shared: all samples of one prompt, or the leaves of one tree, which forks at the three "
        "turns in the middle of its trunk. Separate: as many trajectories of the same length that "
        "have nothing in common. New tokens: sampled. Prefilled: tokens of prompts and "
        "observations that generation computes; what is copied from another slot is not computed. "
        "In scores and update: tokens in the rows of both, a row for the whole group or tree, or "
        "one a trajectory, as long as the next multiple of 16. Rows with two sizes are "
        "differences: what the larger takes beyond the smaller. Sizes that are not in a row: "
        "prompts of 512 tokens and replies of 16, groups of 8; slots serve a group of 32 in "
        "generation alone; a path of a tree has 8 turns of 8 tokens and as many of observation "
        "between them. A step generates, scores under the reference policy, and takes one AdamW "
        "step, GRPO's or on trees BPO's, with a KL term. "
        "Medians of {repetitions} steps after one that compiles, sides in turn; 4 layers of "
        "width 128, vocabulary 512, random weights."
    ),
    "devices": (
        "Virtual devices are parts of one processor and share its cores, so that nothing gets "
        "faster here: a device has 2 prompts of 256 tokens with 16 replies of 16, whatever the "
        "number of devices, and one device that does the work of all is what to compare with. "
        "Times one: seconds over those of one device with the same total work; what is above 1 "
        "is the price of the layout. Generate: the loop inside one program a device, which is the "
        "same whatever the layout of the update. Update: GRPO's with AdamW, parameters replicated "
        "by pmap, or on a mesh of as many devices for data. Medians of {repetitions} after "
        "{rehearsals} that warm up, processes in turn; 4 layers of width 128, vocabulary 512, "
        "random weights."
    ),
}


def write_tables(
    rows: Mapping[str, Sequence[Sequence]], repetitions: int, seed: int, directory: Path = RESULTS
) -> list[Path]:
    """Writes a results file for each part that was measured, and the figure where all were."""
    versions = {name: version(name) for name in PACKAGES}
    versions["hardware"] = f"{os.cpu_count()} CPU cores, JAX on {jax.devices()[0].platform}"
    written = []
    for part, found in rows.items():
        options = f"--repetitions={repetitions} --seed={seed}"
        result = {
            "title": TITLES[part],
            "command": f"python experiments/benchmark_scaling.py {options} --write",
            "seeds": [seed],
            "commit": source_commit(),
            "versions": versions,
            "columns": COLUMNS[part],
            "rows": found,
            "notes": NOTES[part].format(
                repetitions=repetitions, rehearsals=scaling_devices.REHEARSALS
            ),
        }
        written.append(write_result(directory / f"{FILES[part]}.json", result))
    path = directory / "figures" / "benchmark_scaling.svg"
    return [*written, draw(path, rows.get("growth", ()), rows.get("devices", ()))]
