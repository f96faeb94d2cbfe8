"""A driver with a Ray cluster of two machines, one of which is lost in the middle of episodes.

Prints as JSON what the episodes were, how many workers were replaced, and how long it took.
"""

import json
import os
import secrets
import sys
import time

os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(32))
sys.path[:] = json.loads(sys.argv[1])

from ray.cluster_utils import Cluster  # noqa: E402
from sandbox import pools, toys  # noqa: E402

from sepo_jax.sandbox.ray_pool import RayPool  # noqa: E402

EPISODES = 12
TEXTS = ("hang 0.2", "b", "c")  # the first takes a while, so that some are in progress at the loss
SETTINGS = {  # a lost machine counts as lost soon, and those that are left have time to go on
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 2000,
    "health_check_failure_threshold": 2,
    "worker_niceness": 0,
}


def run(cluster):
    """Plays episodes, and loses a machine in the first step of each."""
    machines = [cluster.add_node(num_cpus=2) for _ in range(2)]
    turns = {episode: [] for episode in range(EPISODES)}
    began = time.monotonic()
    pool = RayPool(
        toys.Commanded, actors=2, workers_per_actor=2, limits=pools.PATIENT, address=cluster.address
    )
    with pool:
        client = pools.Client(pool)
        for episode in turns:
            turns[episode].append(client.reset(episode, seed=episode))
        started = time.monotonic() - began
        numbers = {episode: client.send(episode, "step", {0: TEXTS[0]}) for episode in turns}
        cluster.remove_node(machines[0], allow_graceful=False)
        lost = time.monotonic()
        for episode, number in numbers.items():
            turns[episode].append(client.receive(number, 60))
        recovered = time.monotonic() - lost
        # There is no room for another actor, and the one that is left does all the work.
        for episode in turns:
            turns[episode].append(client.step(episode, TEXTS[1], 1))
        # A machine joins, and the actor that waited for it serves the next episodes.
        cluster.add_node(num_cpus=2)
        joined = pools.wait_for(lambda: len(hosts(pool)) == 2, 40)
        for episode in turns:
            turns[episode].append(client.step(episode, TEXTS[2]))
        counters = dict(pool.counters)
    failures = [str(a.failure) for answers in turns.values() for a in answers if a.failure]
    played = [[a.turn.to_json() for a in answers if a.turn] for answers in turns.values()]
    seconds = {"start": round(started, 2), "recovery": round(recovered, 2)}
    return {
        "failures": failures, "turns": played, "joined": joined, "counters": counters,
        "seconds": seconds,
    }  # fmt: skip


def hosts(pool):
    """Actors that have said something since they were made."""
    return [actor for actor in pool._manager._actors if actor.counted]


def main():
    cluster = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 0, "include_dashboard": False, "_system_config": SETTINGS},
    )
    try:
        result = run(cluster)
    finally:
        cluster.shutdown()
    print(json.dumps(result))


if __name__ == "__main__":
    main()
