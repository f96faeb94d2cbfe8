"""Whole rollouts in real processes: one seed gives one run, and nothing hangs."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
REPEATS = 200


FAST_COMPILATION = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}  # for what is compared with itself


def start(program, *arguments, devices, **more):
    environment = (
        os.environ
        | more
        | {
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
            "PYTHONPATH": str(TESTS),
        }
    )
    return subprocess.Popen(
        [sys.executable, str(TESTS / "rollout" / program), *map(str, arguments)],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def finish(process, seconds):
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        raise AssertionError(f"hung: {process.communicate()}") from None
    assert process.returncode == 0, err
    return out


@pytest.mark.slow
def test_the_same_seeds_give_the_same_bits_however_episodes_are_played():
    found = json.loads(finish(start("identity_run.py", devices=4), 900))
    for ways in found.values():
        assert len(ways) == 16
        whole, tokens = ways["in this process"]
        for name, (other_whole, other_tokens) in ways.items():
            assert other_tokens == tokens, name
            # Another number of slots moves the last bits of log-probabilities, no token.
            assert other_whole == whole or name.endswith("slots"), name
    assert found["Talk"]["again"] != found["Duel"]["again"]


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, 4])
def test_no_repeat_hangs(devices):
    process = start("deadlock_run.py", REPEATS, devices, devices=devices, **FAST_COMPILATION)
    assert int(finish(process, 900)) == REPEATS


@pytest.mark.slow
def test_no_repeat_hangs_in_two_joined_processes():
    with socket.create_server(("127.0.0.1", 0)) as server:
        coordinator = f"127.0.0.1:{server.getsockname()[1]}"
    processes = [
        start("deadlock_run.py", REPEATS, 2, coordinator, number, devices=2, **FAST_COMPILATION)
        for number in (0, 1)
    ]
    assert [int(finish(process, 900).split()[-1]) for process in processes] == [REPEATS] * 2
