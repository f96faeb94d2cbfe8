"""Threads that stand for the processes of a rollout."""

import functools
import pickle
import threading

from sepo_jax.rollout import Share


class Threads:
    """What lies between the processes: everything that crosses it is a pickled copy."""

    def __init__(self, count):
        self.sent, self.barrier = [b""] * count, threading.Barrier(count)

    def gather(self, index, content):
        self.sent[index] = pickle.dumps(content)
        self.barrier.wait(300)
        found = [pickle.loads(each) for each in self.sent]
        self.barrier.wait(300)
        return found


def together(count, function):
    """What `function(share)` returns or raises in each of `count` threads."""
    between, found = Threads(count), [None] * count

    def run(index):
        share = Share(index, count, functools.partial(between.gather, index))
        try:
            found[index] = function(share)
        except Exception as error:
            found[index] = error

    threads = [threading.Thread(target=run, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
        assert not thread.is_alive()
    return found
