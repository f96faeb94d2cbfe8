"""A process that uses pools of a Ray cluster of its own: ray_driver.py PATHS WHAT."""

import json
import signal
import sys
import time

if __name__ == "__main__":
    sys.path[:] = json.loads(sys.argv[1])

from sandbox import pools, toys

from sepo_jax.sandbox.in_process import InProcessPool
from sepo_jax.sandbox.ray_pool import RayPool

KEPT = []  # to the end of the process


class Mine(toys.Commanded):
    """Workers find it in the main module of their pool's process, not of the actor."""


def make(**options):
    return RayPool(Mine, actors=1, limits=pools.PATIENT, **options)


def two_pools():
    """What is left of the cluster after one of two pools, after both, and when it goes first."""
    import ray

    signal.signal(signal.SIGTERM, handler)
    first, second = make(), make(workers_per_actor=1)
    pools.Client(first).reset(1)
    first.close()
    client = pools.Client(second)
    served = client.reset(1).turn is not None
    secret = client.step(1, "variable RAY_AUTH_TOKEN").turn.record
    after_one = [served, ray.is_initialized()]
    second.close()
    after_both = ray.is_initialized()
    third = make()
    client = pools.Client(third)
    client.reset(1)
    ray.shutdown()
    lost = client.step(1, "a").failure.message
    third.close()
    own = signal.getsignal(signal.SIGTERM) is handler
    return {
        "after_one": after_one,
        "after_both": [after_both, ray.is_initialized()],
        "lost": lost,
        "sigterm": "own" if own else "Ray's",
        "secret": secret,
    }


def handler(*_):
    raise SystemExit


def tell_how_it_closes(manager):
    """Prints whether Ray is still there when a pool gives back what it holds."""
    import ray

    give_back = manager._give_back

    def told(stack):
        print("with Ray" if ray.is_initialized() else "without Ray", flush=True)
        give_back(stack)

    manager._give_back = told


def wait(seconds):
    """Plays until it is ended from outside, or so long."""
    InProcessPool(toys.Toy)  # what it leaves to the exit comes after what Ray leaves to it
    client = pools.Client(make())
    KEPT.append(client)
    tell_how_it_closes(client.pool._manager)
    for episode in range(4):
        client.reset(episode)
    for episode in range(4):
        client.send(episode, "step", {0: "hang"})
    print("playing", flush=True)
    time.sleep(seconds)


def refused():
    """How an address at which nothing runs is refused."""
    try:
        make(address="127.0.0.1:1")
    except Exception as error:
        return {"kind": type(error).__name__, "words": str(error)}


if __name__ == "__main__":
    what = sys.argv[2]
    if what in ("wait", "exit"):
        wait(100 if what == "wait" else 0)
    else:
        print(json.dumps(two_pools() if what == "pools" else refused()))
