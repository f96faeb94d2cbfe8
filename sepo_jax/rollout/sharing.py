"""One rollout played by several processes: each plays some episodes, all get all results.

What is sampled depends on the seed, the step and a request's group and member, not on who else is
played beside it; so the results are those of one process that plays everything.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from ..sandbox.episodes import EpisodeRequest, EpisodeResult
from ..sandbox.protocol import SandboxError, TooManyFailures

# Errors that other processes raise as what they are; of another kind they are RuntimeErrors.
_KINDS = {kind.__name__: kind for kind in (TooManyFailures, SandboxError, ValueError, RuntimeError)}
# Seconds that pass while all play at the same time; everything else adds up.
_AT_ONCE = ("seconds", "blocked_seconds")


class _Part(NamedTuple):
    """What one process played: for each of its requests the results, or what went wrong."""

    blocks: list[list[EpisodeResult]]
    statistics: dict[str, Any]
    problem: tuple[str, str] | None = None


@dataclass(frozen=True)
class Share:
    """Which part of a rollout a process plays.

    Attributes:
      index, count: which process this is, from 0, of how many.
      gather: takes a picklable object and returns those of all processes in their order; all of
        them call it together.
    """

    index: int
    count: int
    gather: Callable[[Any], list[Any]]

    def places(self, requests: Sequence[EpisodeRequest]) -> list[int]:
        """Of this process's requests. Initial states are dealt in turn; those of a group that have
        one seed stay together, since they share a prompt."""
        number: dict[tuple[int, int], int] = {}
        mine = []
        for place, request in enumerate(requests):
            state = number.setdefault((request.group, request.seed), len(number))
            if state % self.count == self.index:
                mine.append(place)
        return mine

    def played(
        self,
        requests: Sequence[EpisodeRequest],
        play: Callable[[Sequence[EpisodeRequest]], tuple[list[EpisodeResult], dict[str, Any]]],
    ) -> tuple[list[EpisodeResult], dict[str, Any]]:
        """Results and statistics of all requests, in the order of one process that plays them.

        Snapshots that episodes went on from are left out; they are of use to no other process.

        Args:
          requests: the same on every process.
          play: gives results and statistics of requests, each result before those of its
            follow-ups.

        Raises:
          Exception: what `play` raised here.
          SandboxError, ValueError, RuntimeError: it raised that, or something else, on another
            process.
        """
        own, problem = [requests[place] for place in self.places(requests)], None
        try:
            results, statistics = play(own)
            part = _Part(_blocks(results, own), statistics)
        except Exception as error:
            problem = error
            kind = next(
                (k for k, each in _KINDS.items() if isinstance(error, each)), "RuntimeError"
            )
            part = _Part([], {}, (kind, f"{type(error).__name__}: {error}"))
        parts = self.gather(part)
        if problem is not None:
            raise problem
        blocks: dict[int, list[EpisodeResult]] = {}
        for index, part in enumerate(parts):
            if part.problem is not None:
                kind, text = part.problem
                raise _KINDS[kind](f"process {index} stopped playing: {text}")
            blocks |= zip(replace(self, index=index).places(requests), part.blocks, strict=True)
        results = [result for place in range(len(requests)) for result in blocks[place]]
        return results, _merged([part.statistics for part in parts])


def _blocks(
    results: Sequence[EpisodeResult], requests: Sequence[EpisodeRequest]
) -> list[list[EpisodeResult]]:
    """Results by request, each with its follow-ups behind it."""
    blocks: list[list[EpisodeResult]] = []
    for result in results:
        if len(blocks) < len(requests) and result.request is requests[len(blocks)]:
            blocks.append([])
        if result.request.past is not None:
            result = replace(result, request=replace(result.request, state=b""))
        blocks[-1].append(result)
    return blocks


def _merged(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Statistics of all parts as those of one rollout; see `sandbox.statistics`."""
    names = dict.fromkeys(name for part in parts for name in part)
    total = {name: sum(part.get(name, 0) for part in parts) for name in names}
    for name in total.keys() & _AT_ONCE:
        total[name] = max(part.get(name, 0.0) for part in parts)
    if "busy_share" in total:
        busy = total["decoding_slot_seconds"] + total["preparing_slot_seconds"]
        slots = sum(value for name, value in total.items() if name.endswith("_slot_seconds"))
        total["busy_share"] = busy / slots if slots else 0.0
    if "decoding_share" in total:
        # By actions: the time with work of each part is not told.
        weighed = sum(part["decoding_share"] * part["actions"] for part in parts if part)
        total["decoding_share"] = weighed / total["actions"] if total["actions"] else 1.0
    return total
