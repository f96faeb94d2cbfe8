"""Values of many kinds, and their content hashes, for every process that asks."""

import collections
import functools
import random
import re
from dataclasses import dataclass
from pathlib import PurePosixPath

import numpy as np

from sepo_jax.domains import TablePolicy
from sepo_jax.sandbox.snapshots import content_hash


@dataclass(frozen=True)
class Card:
    rank: int
    suit: str = "spades"


class Seat:
    def __init__(self, name, cards):
        self.name, self.cards = name, cards


def states() -> list:
    """Values that have different contents, all of them."""
    array = np.arange(6, dtype=np.float32)
    drawn = random.Random(1)
    drawn.random()
    return [
        None, 0, 1, -1, True, False, 0.0, -0.0, 1.0, 1j, float("inf"), float("nan"), 10**5000,
        "", "1", "\ud800", "é", b"1", bytearray(b"1"), ..., len, Card, random.Random(1).random,
        (), [], {}, set(), frozenset(), (1,), [1], {1}, {1: 1}, frozenset({1}), [[1]], [1, 2],
        [2, 1], (1, (2, 3)), ((1, 2), 3), ["a", "b"], ["astrb"], {"a": 1, "b": 2},
        {"a": 2, "b": 1}, {"a", "b"}, {("a", 1), ("b", 2)}, {frozenset({1, 2})},
        Card(1), Card(2), Card(1, "hearts"), [Card(1), Card(1)], Seat("n", [1]), Seat("n", [2]),
        random.Random(1), random.Random(2), drawn, functools.partial(max, 1),
        collections.Counter("aab"), collections.deque([1, 2]), collections.deque([1, 2], 5),
        collections.defaultdict(list, a=[1]), re.compile("a"), re.compile("b"), PurePosixPath("a"),
        array, array.astype(np.float64), array.reshape(2, 3), array + 1, np.float32(1), np.int64(1),
        np.array(["a"]), np.array([Card(1)], object), TablePolicy({"J": (0.5, 0.5)}),
        collections.OrderedDict(a=1, b=2), collections.OrderedDict(b=2, a=1),
    ]  # fmt: skip


def state_hashes() -> list[str]:
    """Hash of each of `states`."""
    return [content_hash(state) for state in states()]
