"""Claims about the training of BPO: their rules on made runs."""

import json

import pytest
from script_modules import script_module

from sepo_jax.evaluation.claims import verdict

bpo_runs = script_module("claims.bpo_runs")


def gains(corridor, webshop):
    tasks = {"corridor": corridor, "webshop": webshop, "alfworld": [0.5], "repository": [0.25]}
    base = {task: [0.4, 0.5, 0.45][: len(values)] for task, values in tasks.items()}
    return {
        task: {"bpo": [b + v for b, v in zip(base[task], values, strict=True)]}
        | dict.fromkeys(("grpo", "rloo"), base[task])
        for task, values in tasks.items()
    }


@pytest.mark.parametrize(
    ("corridor", "webshop", "expected"),
    [
        ([0.05, 0.06, 0.055], [0.04, 0.05, 0.045], "holds"),
        ([-0.05, -0.06, -0.055], [0.04, 0.05, 0.045], "fails"),
        ([0.05, -0.06, 0.01], [0.04, 0.05, 0.045], "undecided"),
    ],
)
def test_success_is_decided_by_the_tasks_of_several_seeds(corridor, webshop, expected):
    findings = bpo_runs.success_findings(gains(corridor, webshop))
    assert verdict(findings) == expected
    assert [f.decides for f in findings] == [True] * 4 + [False] * 4
    assert findings[4].found.mean == pytest.approx(0.5)


def test_updates_until_a_level():
    rewards = [0.0, 0.2, 0.4, 0.6, 0.8]
    # Means of two: 0.1, 0.3, 0.5, 0.7, after 2, 3, 4 and 5 updates.
    assert [bpo_runs.updates_until(rewards, x, 2) for x in (0.1, 0.3, 0.31, 0.7, 0.71)] == [
        *(2, 3, 4, 5, 6)
    ]


def test_the_level_is_that_of_the_better_baseline():
    slow, fast = [0.0] * 10 + [0.5] * 10, [0.0] * 5 + [0.5] * 15
    # Both baselines end at 0.5; grpo, the later in the order of rewards, is there after 15.
    rewards = {"bpo": [fast, fast, fast], "grpo": [slow] * 3, "rloo": [[0.1] * 20] * 3}
    ratio, level = bpo_runs.match_findings(rewards)
    assert level.found.mean == 0.5 and ratio.found.mean == pytest.approx(10 / 15)
    rewards = {"bpo": [[0.0] * 20] * 3, "grpo": [slow] * 3, "rloo": [[0.1] * 20] * 3}
    assert bpo_runs.match_findings(rewards)[0].found.mean == pytest.approx(21 / 15)


def test_runs_are_those_of_the_sweep(tmp_path):
    class Bench(bpo_runs.Runs):
        def finished(self, config):
            path = tmp_path / f"{config.name}_{config.seed}"
            path.mkdir(exist_ok=True)
            return path, json.loads('{"rl/success": 0.5}')

    bench = Bench(None, tmp_path, tmp_path, quick=True, progress=False)
    assert bpo_runs.successes(bench, "corridor", "grpo") == [0.5]
    assert [path.name for path in tmp_path.iterdir()] == ["bpo_corridor_grpo_0"]
