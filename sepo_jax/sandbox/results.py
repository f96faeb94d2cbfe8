"""What the episodes of a run came to, in an order that does not depend on when they ended."""

from collections.abc import Iterable

from sepo_jax.sandbox.episodes import EpisodeResult
from sepo_jax.sandbox.protocol import Failure, SandboxError, TooManyFailures

Index = tuple[int, ...]
"""Place of an episode: (i,) for request i, (*j, k) for follow-up k of the episode at j."""


class Results:
    """Results by place, and the limit on failures.

    Requests are judged as they fail, requests and follow-ups together at the end: how many
    follow-ups there are by then does not decide whether a run is given up.
    """

    def __init__(self, requests: Iterable[Index], max_failed_fraction: float):
        """No result yet; ValueError for a share outside [0, 1]."""
        if not 0 <= max_failed_fraction <= 1:
            raise ValueError(f"max_failed_fraction must be in [0, 1], got {max_failed_fraction}")
        self._results: dict[Index, EpisodeResult | None] = dict.fromkeys(requests)
        self._share = max_failed_fraction
        self._requests, self._failed = len(self._results), 0

    def expect(self, index: Index) -> None:
        """An episode is under way that no request asked for."""
        self._results[index] = None

    def put(self, index: Index, result: EpisodeResult) -> None:
        """Takes a result; raises TooManyFailures when too many requests have failed."""
        self._results[index] = result
        if result.failure is not None and len(index) == 1:
            self._failed += 1
            self._check(self._failed, self._requests, result.failure)

    def ordered(self) -> list[EpisodeResult]:
        """One result a request, in their order, each before those of its follow-ups.

        Raises:
          SandboxError: before all episodes have ended.
          TooManyFailures: too many of all episodes failed.
        """
        results = [self._results[index] for index in sorted(self._results)]
        missing = sum(result is None for result in results)
        if missing:
            raise SandboxError(f"{missing} of {len(results)} episodes have not ended")
        failures = [result.failure for result in results if result.failure is not None]
        if failures:
            self._check(len(failures), len(results), failures[-1])
        return results

    def _check(self, failed: int, total: int, last: Failure) -> None:
        too_many = failed > self._share * total
        if too_many or failed == total:
            most = f", more than the allowed share of {self._share:g}" if too_many else ""
            raise TooManyFailures(
                f"{failed} of {total} episodes failed{most}; the last: {last.kind}: {last.message}"
            )
