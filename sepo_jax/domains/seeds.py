"""Random streams and seeds for one purpose each."""

import hashlib
import random


def stream(seed: int, *labels: object) -> random.Random:
    """An independent random stream for one purpose of one seed.

    Text seeds go through SHA-512 inside `random.Random`, so the stream is the same in every
    process, whatever PYTHONHASHSEED is.
    """
    return random.Random("/".join(str(part) for part in (seed, *labels)))


def derive_seed(seed: int, *labels: object) -> int:
    """A seed in [0, 2^63) for one purpose of `seed`, far from the seeds next to it."""
    text = "/".join(str(part) for part in (seed, *labels))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
