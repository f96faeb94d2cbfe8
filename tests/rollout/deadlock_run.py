"""Repeats a short in-jit rollout while answers are delayed at random; run as a program.

    deadlock_run.py <repeats> <devices> [<coordinator> <process>]

With a coordinator it is one of two processes that `jax.distributed` joins. Sizes go round the
reports that configs have, up to the largest that is allowed.
"""

import dataclasses
import functools
import sys

import jax
from rollout.identity_run import BASE, REQUESTS, agent, digest
from rollout.talks import Talk

from sepo_jax.rollout.play import play
from sepo_jax.sandbox.exchange import MAX_REPORT_BYTES, ExchangeShape
from sepo_jax.sandbox.process_pool import ProcessPool
from sepo_jax.training.distributed import connect

# (slots, tokens an exchange): the defaults of the engine and of the configs, and the largest.
SIZES = ((8, 4), (64, 4), (128, 4), (128, 42), (16, 340))


def main():
    """Prints the number of repeats that gave the same tokens as the first of their size."""
    repeats, devices = map(int, sys.argv[1:3])
    if len(sys.argv) > 3:
        connect(sys.argv[3], 2, int(sys.argv[4]))
    largest = max(ExchangeShape(slots, interval).report_bytes for slots, interval in SIZES)
    assert largest > 0.98 * MAX_REPORT_BYTES
    assert len(jax.local_devices()) >= devices
    policy, params = agent()
    first, same = {}, 0
    with ProcessPool(functools.partial(Talk, delay=0.004), workers=3) as pool:
        for repeat in range(repeats):
            slots, interval = SIZES[repeat % len(SIZES)]
            options = dataclasses.replace(
                BASE, slots=slots, exchange_interval=interval, capacity=256, max_action_tokens=4,
                driver="in_jit", devices=devices,
            )  # fmt: skip
            requests = REQUESTS[: 4 + repeat % 5]
            rollout = play(policy, params[0], requests, pool, options, seed=1)
            key = (repeat % len(SIZES), len(requests))
            found = digest(rollout.results)
            same += first.setdefault(key, found) == found
    print(same)


if __name__ == "__main__":
    main()
