"""Weak scaling: the same work for each of more and more virtual devices, in own processes."""

import contextlib
import dataclasses
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from scaling_worker import Load
from step_sides import Side

ALONE = "one device"
KINDS = {ALONE: "single", "pmap": "pmap", "mesh": "mesh"}
PHASES = ("generate", "update")
COLUMNS = ["devices", "side", "tokens sampled", "tokens in the update"]
REHEARSALS = 2  # the first compiles; the second begins from the layout that an update leaves
COLUMNS += [f"{phase} {what}" for phase in PHASES for what in ("s", "s a device", "times one")]


def loads(quick: bool, devices: int, seed: int) -> dict[str, Load]:
    """What each side does: `devices` times one device's share of work, on as many or on one."""
    groups, group, prompt, reply = (1, 2, 16, 4) if quick else (2, 16, 256, 16)
    return {
        side: Load(
            kind,
            1 if kind == "single" else devices,
            groups * devices,
            group,
            prompt,
            reply,
            seed,
            quick,
        )
        for side, kind in KINDS.items()
    }


@contextlib.contextmanager
def started(loads: Mapping[str, Load]) -> Iterator[dict[str, Side]]:
    """A process for each side, with so many virtual devices; it has compiled all when it is ready.

    Raises:
      RuntimeError: a process has another number of devices.
    """
    with contextlib.ExitStack() as stack:
        sides = {}
        for name, load in loads.items():
            count = f"--xla_force_host_platform_device_count={load.devices}"
            environment = {"XLA_FLAGS": count, "JAX_PLATFORMS": "cpu"}
            side = Side(name, sys.executable, "scaling_worker.py", environment)
            sides[name] = stack.enter_context(side)
            found = side.ask(dataclasses.asdict(load))["devices"]
            if found != load.devices:
                raise RuntimeError(f"the process of {name} has {found} devices, not {load.devices}")
        yield sides


def compete(
    loads: Mapping[str, Load], repetitions: int, progress: Callable[[], Any]
) -> dict[str, list[dict]]:
    """What the sides answer, in turn and so often after `REHEARSALS`."""
    answers: dict[str, list[dict]] = {name: [] for name in loads}
    with started(loads) as sides:
        for number in range(-REHEARSALS, repetitions):
            for name in list(sides)[:: -1 if number % 2 else 1]:
                answer = sides[name].ask({"step": number})
                if number >= 0:
                    answers[name].append(answer)
                progress()
    return answers


def device_rows(devices: int, answers: Mapping[str, Sequence[Mapping]]) -> list[list]:
    """A row a side: tokens, median seconds, those by device, and in times of one device's."""
    medians = {
        side: [
            None if made[0][phase] is None else statistics.median(each[phase] for each in made)
            for phase in PHASES
        ]
        for side, made in answers.items()
    }
    rows = []
    for side, seconds in medians.items():
        row = [devices, side, answers[side][0]["sampled"], answers[side][0]["computed"]]
        for mine, alone in zip(seconds, medians[ALONE], strict=True):
            row += [None] * 3 if mine is None else [mine, mine / devices, mine / alone]
        rows.append(row)
    return rows
