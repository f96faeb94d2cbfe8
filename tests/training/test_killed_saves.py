"""A process killed in the middle of a save: the run goes on from the last complete checkpoint, on
other devices too."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STEPS = 4
ON_TWO = {"kind": "pmap", "devices": 2, "fsdp": 1, "tensor": 1}


def start(config, tmp_path, devices, *more):
    environment = os.environ | {
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",  # compiling is most of the time here
    }
    return subprocess.Popen(
        [
            sys.executable, "experiments/train.py", f"--config=configs/saved.py:{config}",
            f"--runs={tmp_path}", "--run=run", *more,
        ],
        cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def complete(directory):
    """Numbers of the checkpoints that have their names."""
    return sorted(int(path.name) for path in directory.glob("*") if path.name.isdecimal())


def being_written(directory):
    """Checkpoints that do not have their names yet."""
    return [path for path in directory.glob("*") if not path.name.isdecimal()]


def kill_in_a_save(process, directory):
    """Ends the process by SIGKILL while it writes a checkpoint and has written others.

    It is stopped first: a save that is found unfinished then stays so.
    """
    deadline = time.monotonic() + 900
    while time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()[0]
        if not (complete(directory) and being_written(directory)):
            time.sleep(0.001)
            continue
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        if being_written(directory):
            process.send_signal(signal.SIGKILL)
            process.communicate()
            return
        process.send_signal(signal.SIGCONT)
    raise TimeoutError("no save was seen")


@pytest.mark.slow
def test_killed_in_a_save_on_eight_devices_and_resumed_on_two(small_config, tmp_path):  # E03
    small_config["sft"]["steps"] = 0
    # An untrained policy's replies are all unparsable: only other deals make rewards differ.
    small_config["sepo"] |= {"steps": STEPS, "group_by": "opponent", "groups_per_opponent": 6}
    small_config["checkpoint"] = {"every": 1, "keep": 2}
    # Rounding differs between layouts; see `layouts.OPTIMIZER`.
    small_config["optimizer"]["epsilon"] = 1e-3
    small_config["evaluation"] |= {"every": STEPS, "untrained": False}
    small_config["parallel"] = {"kind": "mesh", "devices": 8, "fsdp": 2, "tensor": 2}
    config = tmp_path / "config.json"
    config.write_text(json.dumps(small_config))
    run = tmp_path / "run"
    directory = run / "checkpoints/sepo"

    process = start(config, tmp_path, 8)
    try:
        kill_in_a_save(process, directory)
    finally:
        process.kill()
    done, (unfinished,) = complete(directory), being_written(directory)
    last = done[-1]
    # What was to be written is missing, and what it was to replace is all there.
    assert int(unfinished.name.split(".")[0]) == last + 1 <= STEPS
    assert done == list(range(max(1, last - 1), last + 1))
    before = (run / "metrics.jsonl").read_text().splitlines()
    assert len(before) > last  # a step is logged before it is saved

    small_config["parallel"] = ON_TWO
    config.write_text(json.dumps(small_config))
    changed = ",".join(f"parallel.{name}" for name in ON_TWO)
    resumed = start(config, tmp_path, 2, "--resume", f"--allow_change={changed}")
    try:
        output, _ = resumed.communicate(timeout=900)
    finally:
        resumed.kill()
    assert resumed.returncode == 0, output

    lines = (run / "metrics.jsonl").read_text().splitlines()
    assert lines[:last] == before[:last]
    assert [json.loads(line)["step"] for line in lines] == list(range(1, STEPS + 1))
    assert complete(directory)[-1] == STEPS and (run / "report.html").exists()
    # The steps that were lost are done again: other devices, the same episodes and numbers.
    again = list(zip(map(json.loads, lines[last:]), map(json.loads, before[last:]), strict=False))
    assert again
    for line, lost in again:
        assert line.keys() == lost.keys()
        for name in ("loss", "gradient_norm", "reward", "ratio"):
            assert line[name] == pytest.approx(lost[name], abs=1e-5), (name, line["step"])
        assert line["gradient_norm"] > 1e-3
