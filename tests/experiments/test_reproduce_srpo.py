"""Claims of SRPO: what decides each, on runs that are given, and the command."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from script_modules import reproduce, rows_of, script_module

from sepo_jax.evaluation.claims import FAILS, HOLDS, NOT_COMPARABLE, UNDECIDED, verdict
from sepo_jax.training.command_line import load_config

claims = script_module("claims")
srpo = script_module("claims.srpo")
srpo_runs = script_module("claims.srpo_runs")

BATCHES = 10
# What a run is like where a test says nothing else.
USUAL = {"avg": 0.5, "pass": 0.8, "sft": 0.4, "tokens": 40.0}
METRICS = {
    "gradient_norm": [1.0, 2.0] * (BATCHES // 2),
    "reward": [0.5] * BATCHES,
    "sampled_tokens": [100.0] * BATCHES,
    "team/active_set": [2.0] * BATCHES,
    "team/tokens": [50.0] * BATCHES,
    "unit_log_ratio_abs": [0.1] * BATCHES,
    "clip_fraction": [0.2] * BATCHES,
}


class Given(srpo_runs.TeamRuns):
    """Runs that are given: "<config>:<argument>" -> figures and metrics of every batch.

    Avg@16 differs a little over seeds, by what `spread` says for an arm.
    """

    def __init__(self, directory, given=None, spread=None, seeds=(0, 1, 2)):
        super().__init__(seeds, directory, directory)
        self.given, self.spread = given or {}, spread or {}

    def runs_of(self, name, argument=""):
        arm = f"{name}:{argument}"
        found = USUAL | METRICS | self.given.get(arm, {})
        runs = []
        for seed in self.seeds:
            path = self.runs / f"{arm}_{seed}"
            path.mkdir(exist_ok=True)
            lines = [
                {"stage": "rl", "step": step} | {key: found[key][step] for key in METRICS}
                for step in range(len(found["reward"]))
            ]
            text = "".join(f"{json.dumps(line)}\n" for line in lines)
            (path / "metrics.jsonl").write_text(text)
            average = found["avg"] + self.spread.get(arm, 0.001) * (seed - 1)
            success = "accuracy" if name.startswith("math") else "exact"
            summary = {f"rl/{success}": average, f"sft/{success}": found["sft"]}
            summary |= {"rl/pass@16": found["pass"], "rl/tokens": found["tokens"]}
            config = SimpleNamespace(evaluation=SimpleNamespace(task_samples=16))
            runs.append((config, path, summary))
        return runs


@pytest.fixture
def measure(tmp_path):
    def measured(claim, given=None, **options):
        found = claims.CLAIMS[f"srpo/{claim}"].measure(Given(tmp_path, given, **options))
        assert found.panels and all(panel.values for panel in found.panels)
        return verdict(found.findings, found.missing), found

    return measured


FIVE, ONE = "search_fixed:workers=5", "search_fixed:workers=1"
SUM, MEAN = f"{FIVE},ratio_scale=sum", f"{FIVE},ratio_scale=mean"
EVENT, TOKEN = "math_routed:", "math_routed:reduce=token_mean"
STEADY = {"gradient_norm": [1.0, 1.2] * (BATCHES // 2)}
FALLING = {
    "team/active_set": [2.0] * 5 + [1.5] * 5,
    "team/tokens": [50.0] * 5 + [30.0] * 5,
}
RISING = {name: values[::-1] for name, values in FALLING.items()}
BETTER = {"math_fixed:": {"avg": 0.6}, "search_fixed:": {"avg": 0.6}}


@pytest.mark.parametrize(
    ("claim", "given", "expected"),
    [
        ("set_size", {FIVE: {"avg": 0.6}}, HOLDS),
        # Three members and Pass@16 are shown alone.
        ("set_size", {FIVE: {"avg": 0.6, "pass": 0.1}, "search_fixed:": {"avg": 0.1}}, HOLDS),
        ("set_size", {ONE: {"avg": 0.6}}, FAILS),
        ("ratio_scale", {FIVE: {"avg": 0.6}}, HOLDS),
        ("ratio_scale", {FIVE: {"avg": 0.6}, SUM: {"avg": 0.7}}, FAILS),
        ("ratio_scale", {FIVE: {"avg": 0.6}, MEAN: {"avg": 0.7}}, FAILS),
        # Pass@16 is shown alone.
        ("ratio_scale", {FIVE: {"avg": 0.6, "pass": 0.1}, SUM: {"pass": 0.9}}, HOLDS),
        ("reduction", {EVENT: STEADY, TOKEN: {"avg": 0.6}}, HOLDS),
        ("reduction", {EVENT: STEADY, TOKEN: {"avg": 0.4}}, FAILS),
        # A larger gradient as steady as before, and a smaller one that is less steady.
        ("reduction", {TOKEN: {"avg": 0.6} | STEADY}, FAILS),
        (
            "reduction",
            {EVENT: {"gradient_norm": [0.1, 0.9] * 5}, TOKEN: {"avg": 0.6}},
            FAILS,
        ),
        ("router", {EVENT: FALLING}, HOLDS),
        ("router", {EVENT: RISING}, FAILS),
        ("router", {EVENT: FALLING | {"team/tokens": RISING["team/tokens"]}}, FAILS),
        ("router", {EVENT: FALLING, "search_routed:": RISING}, HOLDS),
        ("dr_mas", BETTER, HOLDS),
        ("dr_mas", BETTER | {"search_fixed:": {"avg": 0.4}}, FAILS),
        ("dr_mas", BETTER | {"math_routed:": {"avg": 0.1}}, HOLDS),
    ],
)
def test_verdicts(measure, claim, given, expected):
    assert measure(claim, given)[0] == expected


@pytest.mark.parametrize(
    ("claim", "given", "arm"),
    [
        ("set_size", {FIVE: {"avg": 0.52}}, FIVE),
        ("ratio_scale", {FIVE: {"avg": 0.52}}, SUM),
        ("reduction", {EVENT: STEADY, TOKEN: {"avg": 0.52}}, TOKEN),
        ("dr_mas", BETTER | {"search_fixed:": {"avg": 0.52}}, "search_fixed:"),
    ],
)
def test_what_differs_less_than_seeds_do_is_undecided(measure, claim, given, arm):
    """A difference of 0.02 with s = 0.05: half an interval of three seeds is 2.48 s."""
    assert measure(claim, given)[0] == HOLDS
    assert measure(claim, given, spread={arm: 0.05})[0] == UNDECIDED


def test_one_seed_decides_nothing(measure):
    assert measure("set_size", {FIVE: {"avg": 0.6}}, seeds=(0,))[0] == NOT_COMPARABLE


def test_tokens_that_are_not_equal_are_not_compared(measure):
    more = {"avg": 0.6, "sampled_tokens": [120.0] * BATCHES}
    result, measured = measure("dr_mas", BETTER | {"math_fixed:": more})
    assert result == NOT_COMPARABLE
    assert (
        measured.missing
        == "missing: equal tokens of training in math fixed (1.20, 1.20, 1.20 times)"
    )
    # Routed teams may, since they decide nothing.
    assert measure("dr_mas", BETTER | {"math_routed:": more})[0] == HOLDS


def test_rewards_are_compared_at_equal_tokens(measure):
    """SRPO's tenth batch ends at 1,000 tokens, Dr. MAS's fifth; of these the last fifth counts."""
    rising = {"reward": [step / 10 for step in range(BATCHES)]}
    dear = rising | {"sampled_tokens": [200.0] * BATCHES}
    given = {"math_routed:": rising, "math_routed:algorithm=dr_mas": dear}
    _, measured = measure("dr_mas", BETTER | given)
    by_name = {finding.name: finding.found.mean for finding in measured.findings}
    # Batches that end after 800 tokens: the ninth and tenth; of the other the fifth.
    expected = (0.8 + 0.9) / 2 - 0.4
    assert by_name["reward at equal tokens math routed, SRPO - Dr. MAS"] == pytest.approx(expected)
    assert by_name["tokens of training math routed, SRPO / Dr. MAS"] == 0.5


def test_the_ends_of_a_training():
    assert srpo_runs.ends_of(range(10)) == (0.5, 8.5)
    assert srpo_runs.ends_of([3.0, 7.0]) == (3.0, 7.0)
    # The first batch counts, although it is dearer than the budget.
    assert srpo_runs.at_equal_tokens([0.1, 0.2], [90, 90], 50) == 0.1
    assert srpo_runs.at_equal_tokens([0.1, 0.2, 0.3], [50, 50, 50], 101) == 0.2


def test_arms_are_configs_with_names_of_their_own():
    arms = {
        *(("search_fixed", argument) for argument in (*srpo.SIZES.values(), *srpo.SCALES.values()))
    }
    arms |= {(srpo.MATH, srpo.TOKEN_MEAN)}
    arms |= {(name, each) for name in (*srpo.COMPARED, *srpo.ROUTED) for each in ("", srpo.DR_MAS)}
    configs = [load_config(f"{srpo_runs.CONFIGS / name}.py:{argument}") for name, argument in arms]
    assert len({config.name for config in configs}) == len(arms) == 13


def test_a_claim_shows_what_its_members_cost(measure):
    _, measured = measure("set_size", {FIVE: {"tokens": 90.0}})
    by_name = {finding.name: finding.found.mean for finding in measured.findings}
    assert by_name["tokens a question, K = 5"] == 90.0
    assert by_name["Avg@16, K = 3"] == 0.5
    assert sum(finding.decides for finding in measured.findings) == 1


@pytest.mark.slow
def test_the_command_measures_a_claim(tmp_path):
    places = (f"--runs={tmp_path}", f"--results={tmp_path / 'results'}")
    done = reproduce("--claim=srpo/reduction", "--quick", "--seeds=1", *places)
    assert done.returncode == 0, done.stderr
    (row,) = rows_of(done.stdout)
    assert row["claim"] == "srpo/reduction" and row["verdict"] == NOT_COMPARABLE
    assert "gradient norm, event - token" in row["ours"]
    runs = {path.name for path in tmp_path.iterdir() if path.name.startswith("quick_")}
    assert runs == {f"quick_srpo_math_routed{change}_seed0" for change in ("", "_token_mean")}
    assert Path(tmp_path / "figures" / "srpo_reduction.svg").is_file()
