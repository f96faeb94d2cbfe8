"""TPU slices and GPUs by name, and what one of their chips can do."""

import dataclasses
import os
import re
from collections.abc import Sequence
from typing import NamedTuple

import jax

from ..names import unknown
from .settings import ParallelSettings

GIB = 2**30
EXAMPLES = "v4:2x2x1, v5e:2x2, v5e:4x4, v5p:2x2x2, v6e:2x4"
HINT = "compiling for a TPU needs the libtpu wheel of this jax: pip install sepo_jax[tpu]"
# Generations, and what JAX calls their devices.
_FAMILIES = {
    "v2": "TPU v2",
    "v3": "TPU v3",
    "v4": "TPU v4",
    "v5e": "TPU v5 lite",
    "v5p": "TPU v5",
    "v6e": "TPU v6 lite",
    "tpu7x": "TPU7x",
}
_FLAT = ("v2", "v3", "v5e", "v6e")  # slices of two axes


class Chip(NamedTuple):
    """One device of a slice, as JAX counts devices.

    Attributes:
      name: what it is called.
      memory: bytes that a program may use of its main memory.
      flops: peak of bfloat16 products, per second.
      bandwidth: of its main memory, bytes per second.
      links: of its links to other chips together, bytes per second.
    """

    name: str
    memory: float
    flops: float
    bandwidth: float
    links: float


# Memory: what libtpu reports as available. The rest: Google's pages of each generation. A device of
# v2, v3 and tpu7x is half a chip.
CHIPS: dict[str, Chip] = {
    "TPU v2": Chip("TPU v2 core", 7.48 * GIB, 23e12, 350e9, 31e9),
    "TPU v3": Chip("TPU v3 core", 15.48 * GIB, 61e12, 450e9, 41e9),
    "TPU v4": Chip("TPU v4", 30.75 * GIB, 275e12, 1228e9, 300e9),
    "TPU v5 lite": Chip("TPU v5e", 15.75 * GIB, 197e12, 819e9, 200e9),
    "TPU v5": Chip("TPU v5p", 95.73 * GIB, 459e12, 2765e9, 600e9),
    "TPU v6 lite": Chip("TPU v6e", 31.24 * GIB, 918e12, 1640e9, 448e9),
    "TPU7x": Chip("TPU7x core", 94.74 * GIB, 1154e12, 3690e9, 600e9),
}
# With NVLink (SXM). Memory: what the driver reports; JAX takes three quarters of it unless
# XLA_PYTHON_CLIENT_MEM_FRACTION says otherwise. The rest: NVIDIA's data sheets, products without
# sparsity, links both ways together.
GPUS: dict[str, Chip] = {
    "a100": Chip("A100 80 GB", 80 * GIB, 312e12, 2039e9, 600e9),
    "h100": Chip("H100 80 GB", 79.6 * GIB, 989e12, 3350e9, 900e9),
    "h200": Chip("H200", 140.4 * GIB, 989e12, 4800e9, 900e9),
    "b200": Chip("B200", 178 * GIB, 2250e12, 8000e9, 1800e9),
}


@dataclasses.dataclass(frozen=True)
class PlannedDevice:
    """Stands for a device that nothing is compiled for, where only its place in a mesh counts."""

    id: int
    device_kind: str
    platform: str = "gpu"

    @property
    def process_index(self) -> int:
        """Its host: GPUs come eight to one."""
        return self.id // 8


def describe_gpus(name: str) -> tuple[Chip, int]:
    """The chip, and how many, of a name such as "h100x8".

    Raises:
      ValueError: no such GPU, or no number of them.
    """
    match = re.fullmatch(r"(\w+?)x([1-9]\d*)", name)
    if not match:
        raise ValueError(
            f"gpu {name!r} is not of the form <model>x<number>; examples: h100x8, a100x16"
        )
    if match.group(1) not in GPUS:
        raise unknown("GPU", match.group(1), GPUS)
    return GPUS[match.group(1)], int(match.group(2))


LOCAL = "local"


def devices_for(settings: ParallelSettings, topology: str = "") -> list[jax.Device]:
    """Devices of the slice that is named, else of the one that a config is meant for, else those of
    this machine, which `LOCAL` names too; errors as `describe_topology`."""
    name = topology or settings.topology or LOCAL
    return jax.devices() if name == LOCAL else describe_topology(name)


def describe_topology(name: str) -> list[jax.Device]:
    """Devices of a TPU slice such as "v5e:4x4"; they can be compiled for, not run on.

    Raises:
      ModuleNotFoundError: libtpu is not installed.
      ValueError: no such slice, with libtpu's reason.
    """
    match = re.fullmatch(r"([\w ]+):(\d+(?:x\d+)+)", name)
    if not match:
        raise ValueError(
            f"topology {name!r} is not of the form <generation>:<chips by axis>; examples: "
            f"{EXAMPLES}"
        )
    if match.group(1) not in _FAMILIES:
        raise ValueError(f"{unknown('TPU generation', match.group(1), _FAMILIES)}")
    try:
        import libtpu  # noqa: F401  (the wheel that compiles)
    except ImportError as error:
        raise ModuleNotFoundError(HINT) from error
    from jax.experimental import topologies

    # Without these libtpu asks a metadata server, which only a TPU host has, what it runs on.
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
    # Nor does a compiler need a chip to itself: several processes may load it.
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
    # A v4 chip is one device only when its two cores are joined.
    options = {"chip_config_name": "megacore"} if match.group(1) == "v4" else {}
    try:
        found = topologies.get_topology_desc(topology_name=name, platform="tpu", **options)
    except (RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"topology {name!r} is refused by libtpu ({reason}); examples: {EXAMPLES}"
        ) from error
    return list(found.devices)


def chip_of(device: jax.Device) -> Chip | None:
    """What is known of a device's kind; None for what is no TPU of the table."""
    return CHIPS.get(device.device_kind)


def num_hosts(devices: Sequence[jax.Device]) -> int:
    """How many processes a run on these devices has: one a host."""
    return len({device.process_index for device in devices})


def host_of(own: Sequence[jax.Device], devices: Sequence[jax.Device]) -> list[jax.Device]:
    """The devices that programs of one host of a slice are compiled for.

    Of a slice that is described and not there, libtpu compiles for all chips or for one: those of
    one host are then a slice of their own.

    Args:
      own: those of the host. devices: of the whole slice.
    """
    if len(own) == len(devices) or own[0].platform != "tpu" or jax.default_backend() == "tpu":
        return list(own)
    family = next(name for name, kind in _FAMILIES.items() if kind == own[0].device_kind)
    corners = [[device.coords[axis] for device in own] for axis in range(len(own[0].coords))]
    extents = [max(places) - min(places) + 1 for places in corners]
    extents = extents[:2] if family in _FLAT else extents
    return describe_topology(f"{family}:{'x'.join(map(str, extents))}")
