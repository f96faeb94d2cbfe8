"""What a snapshot and a restore cost in the sandbox of every domain of several turns."""

import dataclasses
import itertools
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import binom
from tqdm import tqdm

from sepo_jax.evaluation.claims import Finding
from sepo_jax.evaluation.results import source_commit
from sepo_jax.evaluation.statistics import DEFAULT_LEVEL, Interval
from sepo_jax.sandbox.protocol import Call, Pool, SandboxError, Turn
from sepo_jax.training.settings import DomainSettings, SandboxSettings
from sepo_jax.training.setup import make_domain, make_pool

from .base import Measured, Panel
from .runs import Runs

BACKENDS = ("in_process", "processes")
SEED = 0
TURNS = 3  # played before a snapshot
PATIENCE = 120.0  # seconds that an answer may take


class Sandbox(NamedTuple):
    """A sandbox that is timed.

    Attributes:
      published: the paper's milliseconds of snapshot and restore; None for none.
      reply: what is played where no replies are listed.
      repeats: states that are kept and restored.
      processes: that the environment may start.
    """

    published: float | None
    reply: str = ""
    repeats: int = 100
    processes: int = 0


SANDBOXES: dict[str, Sandbox] = {
    "corridor": Sandbox(None),
    "webshop": Sandbox(42.0),
    "alfworld": Sandbox(138.0),
    "repository": Sandbox(1900.0, "run: ls > listed; wc -c *", 30, 64),
}


def ask(pool: Pool, number: int, episode: int, kind: str, payload: Any = None) -> Any:
    """The turn or the state that a call comes to.

    Raises:
      SandboxError: a failure, or no answer in time.
    """
    pool.submit(Call(number, episode, kind, payload))
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        pool.wait(0.5)
        for answer in pool.take():
            if answer.failure is not None:
                raise SandboxError(f"{kind}: {answer.failure.kind}: {answer.failure.message}")
            return answer.state if kind == "snapshot" else answer.turn
    raise SandboxError(f"no answer to a {kind} in {PATIENCE:g} s")


def timed_snapshots(pool: Pool, tasks: Sequence[Any], reply: str) -> list[float]:
    """Milliseconds of a snapshot and its restore into another environment, one for each task, some
    turns into its episode."""
    numbers, times = itertools.count(1), []
    for task in tasks:
        trunk, fork = (next(numbers) for _ in range(2))
        _play_into(pool, numbers, trunk, task, reply)
        begun = time.perf_counter()
        state = ask(pool, next(numbers), trunk, "snapshot")
        ask(pool, next(numbers), fork, "restore", state)
        times.append(1000 * (time.perf_counter() - begun))
        for episode in (trunk, fork):
            pool.submit(Call(next(numbers), episode, "close"))
    return times


def _play_into(pool: Pool, numbers: Any, episode: int, task: Any, reply: str) -> None:
    """Begins an episode and plays some turns of it, fewer where another would end it."""
    for turns in range(TURNS, -1, -1):
        turn: Turn = ask(pool, next(numbers), episode, "reset", (task, SEED))
        for place in range(turns):
            legal = turn.prompts[0].legal_actions
            said = legal[place % len(legal)] if legal else reply
            turn = ask(pool, next(numbers), episode, "step", {0: said})
            if turn.done:
                break
        if not turn.done:
            return
    raise SandboxError(f"no turn of {task} leaves an episode running")


def measured_times(name: str, backend: str, quick: bool) -> list[float]:
    """Milliseconds of a domain's sandbox; the first two, in which it warms up, are left out.

    Raises:
      ImportError: a domain whose packages are not installed.
    """
    sandbox = SANDBOXES[name]
    domain = make_domain(dataclasses.replace(DomainSettings(), name=name))
    count = 2 if quick else sandbox.repeats
    settings = SandboxSettings(backend=backend, workers=1, processes=sandbox.processes)
    with make_pool(settings, domain) as pool:
        return timed_snapshots(pool, domain.training_tasks(count + 2, SEED), sandbox.reply)[2:]


def median_interval(values: Sequence[float], level: float = DEFAULT_LEVEL) -> Interval:
    """The median with the interval between two order statistics that holds for any distribution.

    The number of values below the median is binomial with share 1/2; the ends are the statistics of
    ranks l and n + 1 - l, l the largest with P(fewer than l below) at most (1 - level) / 2. With
    too few values for any such l it is infinitely wide.
    """
    ordered = np.sort(np.asarray(values, np.float64))
    count, median = len(ordered), float(np.median(ordered))
    rank = int(binom.ppf((1 - level) / 2, count, 0.5))
    if not rank:
        return Interval(median, -np.inf, np.inf, np.inf, count, level, "order statistics")
    low, high = float(ordered[rank - 1]), float(ordered[count - rank])
    return Interval(median, low, high, np.inf, count, level, "order statistics")


def snapshot_cost(bench: Runs) -> Measured:
    """Median milliseconds of a snapshot and its restore into another environment, three turns into
    an episode: in this process, and in a worker process.

    Published: 42 ms in WebShop, 138 ms in ALFWorld, 1.9 s in SWE-bench, by containers' file
    systems, pickled interpreters and exported sessions. Here an episode is pickled by value, and a
    repository is an archive of its files; games of ALFWorld are made here, repositories are the
    bundled ones, smaller than those of SWE-bench. Decided by the worker process, the backend that
    confines: medians below the published ones.
    """
    times: dict[str, dict[str, list[float]]] = {}
    missing = ""
    for name in tqdm(SANDBOXES, desc="sandboxes", disable=not bench.progress):
        try:
            times[name] = {b: measured_times(name, b, bench.quick) for b in BACKENDS}
        except ImportError as error:
            missing = f"{name} is not measured: {error}"
    bench.note(source_commit(), [SEED])
    panels = [Panel(f"{name}, ms", times[name], SANDBOXES[name].published) for name in times]
    return Measured(cost_findings(times), panels, missing)


def cost_findings(times: Mapping[str, Mapping[str, Sequence[float]]]) -> list[Finding]:
    """Findings of `snapshot_cost`: domain -> backend -> milliseconds."""
    findings = []
    for name, by_backend in times.items():
        published = SANDBOXES[name].published
        for backend, values in by_backend.items():
            label, found = f"{name}, ms, {backend}", median_interval(values)
            if published is None or backend == "in_process":
                findings.append(Finding(label, found))
            else:
                findings.append(Finding(label, found, "below", published))
    return findings
