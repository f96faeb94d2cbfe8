"""What a snapshot costs: the medians that decide the claim, and how they are taken."""

import numpy as np
import pytest
from script_modules import script_module

from sepo_jax.domains.tasks import is_task_domain
from sepo_jax.evaluation.claims import FAILS, HOLDS, NOT_COMPARABLE, UNDECIDED, verdict
from sepo_jax.names import imported
from sepo_jax.sandbox.in_process import InProcessPool
from sepo_jax.sandbox.protocol import SandboxError
from sepo_jax.training.setup import DOMAINS

runs = script_module("claims.runs")
snapshots = script_module("claims.bpo_snapshots")


def cost(webshop, repository=(400.0, 500.0)):
    generator = np.random.default_rng(0)
    given = {"corridor": (9e9, 9e9), "webshop": webshop, "repository": repository}
    return {
        name: {b: generator.uniform(low, high, 40) for b in snapshots.BACKENDS}
        for name, (low, high) in given.items()
    }


@pytest.mark.parametrize(
    ("webshop", "expected"),
    [((1.0, 3.0), HOLDS), ((50.0, 60.0), FAILS), ((22.0, 62.0), UNDECIDED)],
)
def test_medians_below_the_published_ones(webshop, expected):
    findings = snapshots.cost_findings(cost(webshop))
    assert verdict(findings) == expected
    assert all("processes" in finding.name for finding in findings if finding.decides)


def test_a_domain_that_is_not_installed_leaves_the_claim_open(monkeypatch):
    def measured(name, backend, quick):
        if name == "alfworld":
            raise ImportError("install the extra 'alfworld'")
        return [1.0] * 20

    monkeypatch.setattr(snapshots, "measured_times", measured)
    found = snapshots.snapshot_cost(runs.Runs(None, None, None, progress=False))
    assert "alfworld is not measured: install the extra" in found.missing
    assert verdict(found.findings, found.missing) == NOT_COMPARABLE
    assert len(found.panels) == len(snapshots.SANDBOXES) - 1


def test_the_interval_of_a_median():
    # Of nine values the second and the eighth: P(Binomial(9, 1/2) <= 1) = 10 / 512 < 1/40, and
    # with the next, 46 / 512, it is more.
    found = snapshots.median_interval([9, 1, 8, 2, 7, 3, 6, 4, 5])
    assert (found.low, found.mean, found.high) == (2, 5, 8)
    assert snapshots.median_interval([1, 2, 3]).low == -np.inf  # 1/8 is too much already
    generator = np.random.default_rng(0)
    inside = sum(0.0 in snapshots.median_interval(generator.normal(size=25)) for _ in range(400))
    assert inside >= 372  # 383 expected at the exact coverage of 0.957; below 372 P < 1%


def test_every_sandbox_of_several_turns_is_timed():
    classes = {name: imported("domain", place, "a:B") for name, place in DOMAINS.items()}
    # Teams are several contexts, which no tree branches.
    of_tasks = {n for n, c in classes.items() if is_task_domain(c) and not hasattr(c, "workflow")}
    assert set(snapshots.SANDBOXES) == of_tasks - {"matrix"}  # which ends with one reply


@pytest.mark.parametrize("name", ["corridor", "webshop"])
def test_snapshots_are_timed_in_the_midst_of_episodes(name):
    times = snapshots.measured_times(name, "in_process", quick=True)
    assert len(times) == 2 and all(0 < each < 60_000 for each in times)


def test_a_failed_call_is_told():
    with InProcessPool(_broken) as pool, pytest.raises(SandboxError, match=r"raised: .*no floor"):
        snapshots.ask(pool, 1, 1, "reset", ({}, 0))


def _broken(scratch):
    raise RuntimeError("no floor to stand on")
