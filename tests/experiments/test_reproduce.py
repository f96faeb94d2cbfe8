"""Claims of the papers: what is enumerated, what is computed from runs, and the command."""

import json
from pathlib import Path

import numpy as np
import pytest
from script_modules import reproduce, script_module

from sepo_jax.evaluation.claims import FAILS, HOLDS, NOT_COMPARABLE, UNDECIDED, verdict
from sepo_jax.evaluation.results import source_commit, write_result
from sepo_jax.sepo import SepoWeights
from sepo_jax.training.decisions import check_comparison
from sepo_jax.training.goals import configured_algorithm
from sepo_jax.training.setup import make_domain
from sepo_jax.training.step_plan import StepPlan
from sepo_jax.training.tasks import make_tasks

claims = script_module("claims")
bench = script_module("claims.bench")
figure = script_module("claims.figure")
penalties = script_module("claims.penalties")
sampled = script_module("claims.sampled")
sepo = script_module("claims.sepo")
tables = script_module("claims.tables")


class Measurements(bench.Bench):
    """A bench whose figures are given: arm -> figures, the same for each seed but for a little."""

    def __init__(self, arms, results=Path(), logged=None):
        super().__init__((0, 1, 2), Path("runs"), results)
        self.arms, self.logged = arms, logged or {}

    weights = SepoWeights(2.4, 1.0, 1.8)

    def figures(self, arm, seed):
        plain = {"utility": 2.0, "exploit_pool_advantage": 0.5, "collusion": 0.2}
        plain |= {"externality": 0.1, "cooperation": 0.3, "safety": 0.5} | self.arms.get(arm, {})
        return {name: value + 0.001 * seed * len(arm) for name, value in plain.items()}

    def lines(self, arm, seed):
        return self.logged[arm]


def found(claim, *arguments, **options):
    measured = claims.CLAIMS[f"sepo/{claim}"].measure(Measurements(*arguments, **options))
    assert measured.panels and all(panel.values for panel in measured.panels)
    return verdict(measured.findings, measured.missing), measured


def gap(value):
    return {"exploit_pool_advantage": value}


def safe(value):
    return {"safety": value}


E, BETTER, WORSE = gap(0.1), safe(2.0), safe(-2.0)


@pytest.mark.parametrize(
    ("claim", "arms", "expected"),
    [
        ("per_rollout_trains", {"published": BETTER | E, "sft": WORSE | gap(0.9)}, HOLDS),
        ("per_rollout_trains", {"published": BETTER | gap(0.9), "sft": WORSE | E}, FAILS),
        ("pool_separation", {"credited": BETTER, "one_pool": WORSE}, HOLDS),
        ("pool_separation", {"credited": WORSE, "one_pool": BETTER}, FAILS),
        ("pooled_exploiters", {"credited": E, "pooled": gap(0.9)}, HOLDS),
        ("pooled_exploiters", {"credited": gap(0.9), "pooled": E}, FAILS),
        # Seeds differ by more than the arms do.
        ("pooled_exploiters", {"credited": gap(0.9), "pooled": gap(0.9)}, UNDECIDED),
        ("sft_over_cooperates", {"sft": gap(0.9) | {"cooperation": 0.8}, "credited": E}, HOLDS),
        # Imitation gives away no more than tit-for-tat does.
        ("sft_over_cooperates", {"sft": gap(0.2) | {"cooperation": 0.8}, "credited": E}, FAILS),
        ("objectives", {"credited": E | BETTER, "welfare_only": gap(0.9) | WORSE}, HOLDS),
        ("objectives", {"credited": E | WORSE, "welfare_only": gap(0.9) | BETTER}, FAILS),
        # s u - 6.7 s e - c - 1.8 x = 2 - 0.67 - 0.2 - 0.18 > 0, and 2 - 6.03 - 0.38 < 0.
        ("lambda_sweep", {"lambda_6.7": gap(0.1), "sft": gap(0.9)}, HOLDS),
        ("lambda_sweep", {"lambda_6.7": gap(0.9), "sft": gap(0.1)}, FAILS),
    ],
)
def test_verdicts_of_trained_arms(claim, arms, expected):
    assert found(claim, arms)[0] == expected


def test_safety_with_another_weight():
    measured = Measurements({"sft": gap(0.9)})
    # s = 3 / 3; u, e, c, x of seed 0 as above.
    assert measured.safety("sft", 6.7)[0] == pytest.approx(2.0 - 6.7 * 0.9 - 0.2 - 1.8 * 0.1)
    assert measured.safety("sft", 0.0)[0] == pytest.approx(2.0 - 0.2 - 0.18)


def test_rounds_against_episodes():
    def log(first, later):
        return [
            {"no_spread_fraction": first, "gradient_norm": 1.0},
            {"no_spread_fraction": later, "gradient_norm": 3.0},
        ]

    arms = {"immediate": BETTER, "episode": WORSE}
    logged = {"episode": log(0.5, 0.0), "credited": log(0.1, 0.9), "immediate": log(0.1, 0.9)}
    result, measured = found("per_round", arms, logged=logged)
    assert result == HOLDS
    # The groups are those of the warm start, that is the first step; norms are means over all.
    (spread,) = [finding for finding in measured.findings if "groups" in finding.name]
    assert spread.found.mean == pytest.approx(0.4) and not spread.decides
    assert {f.found.mean for f in measured.findings if "norm" in f.name} == {2.0}
    assert found("per_round", arms, logged=logged | {"episode": log(0.0, 0.0)})[0] == HOLDS
    arms = {"immediate": WORSE, "episode": BETTER}
    assert found("per_round", arms, logged=logged)[0] == FAILS


def domain_file(directory, domain, seeds=3, slope=0.0, commit="", **values):
    """A results file; `slope` is what the last value gains from seed to seed."""
    headings = {
        "base": "safety base",
        "untrained": "safety untrained",
        "sft": "safety SFT",
        "sepo": "safety SEPO",
        "nra": "NRA SEPO",
    }
    rows = [[seed, *(value + 0.01 * seed for value in values.values())] for seed in range(seeds)]
    for seed, row in enumerate(rows):
        row[-1] += slope * seed
    mean = ["mean", *["1 ± 2"] * len(values)]
    columns = ["seed", *(headings[name] for name in values)]
    content = {"title": "t", "command": "c", "seeds": [*range(seeds)], "commit": commit}
    content |= {"versions": {}, "columns": columns, "rows": [*rows, mean], "notes": ""}
    write_result(directory / f"sepo_{domain}.json", content)


def counted(directory):
    measured = tables.safety_above_base(Measurements({}, directory))
    return measured, verdict(measured.findings, measured.missing)


def test_domains_above_the_base_are_counted(tmp_path):
    measured, result = counted(tmp_path)
    assert result == NOT_COMPARABLE
    assert "no sepo_ipd_smollm2.json (run python experiments/sweep.py --config=" in measured.missing
    assert "configs/sepo/ipd.py:policy=smollm2 --write)" in measured.missing
    names = [f"{domain}_smollm2" for domain in tables.DOMAINS]
    for domain in names[:3]:
        domain_file(tmp_path, domain, base=-1.0, sft=0.0, sepo=1.0)
    assert counted(tmp_path)[1] == NOT_COMPARABLE
    domain_file(tmp_path, names[3], base=1.0, sft=0.0, sepo=-1.0)
    measured, result = counted(tmp_path)
    assert result == NOT_COMPARABLE  # the fifth decides
    assert measured.findings[0].found.mean == 3 and len(measured.findings) == 5
    domain_file(tmp_path, names[4], sft=0.0, sepo=1.0)
    measured, result = counted(tmp_path)
    assert result == NOT_COMPARABLE and "no column 'safety base'" in measured.missing
    domain_file(tmp_path, names[4], untrained=-1.0, sft=0.0, sepo=1.0)
    assert counted(tmp_path)[1] == HOLDS
    domain_file(tmp_path, names[4], base=1.0, sft=0.0, sepo=1.0)  # no difference is none above
    measured, result = counted(tmp_path)
    assert result == FAILS and not measured.missing
    domain_file(tmp_path, names[4], base=1.0, sft=0.0, sepo=1.0, slope=3.0)
    assert counted(tmp_path)[1] == UNDECIDED  # 0, 3, 6 above the base: the interval crosses 0


def test_a_fresh_network_is_no_base(tmp_path):
    for domain in tables.DOMAINS:
        domain_file(tmp_path, domain, base=-1.0, sft=0.0, sepo=1.0)
    measured, result = counted(tmp_path)
    assert result == NOT_COMPARABLE and measured.findings[0].found.mean == 0
    assert all("SEPO - fresh" in finding.name for finding in measured.findings[1:])
    assert all("base" not in panel.values for panel in measured.panels)
    domain_file(tmp_path, "kuhn_smollm2", base=-1.0, sft=0.0, sepo=1.0)
    measured, _ = counted(tmp_path)
    assert measured.findings[0].found.mean == 1
    assert measured.findings[-1].name == "kuhn, safety SEPO - base"


def test_missing_domains_that_cannot_change_the_count_are_let_be(tmp_path):
    for domain in tables.DOMAINS[:2]:
        domain_file(tmp_path, f"{domain}_smollm2", base=1.0, sft=0.0, sepo=-1.0)
    measured, result = counted(tmp_path)
    assert result == FAILS and not measured.missing


def test_a_single_seed_is_as_good_as_none(tmp_path):
    for domain in tables.DOMAINS:
        for name in (domain, f"{domain}_smollm2"):
            domain_file(tmp_path, name, seeds=1, base=-1.0, sft=0.0, sepo=2.0, nra=0.2)
    for claim in ("safety_above_base", "negotiation_positive"):
        measured = getattr(tables, claim)(Measurements({}, tmp_path))
        assert verdict(measured.findings, measured.missing) == NOT_COMPARABLE
        assert "has 1 seed, and an interval needs two" in measured.missing


def test_negotiation(tmp_path):
    def result():
        measured = tables.negotiation_positive(Measurements({}, tmp_path))
        return verdict(measured.findings, measured.missing)

    assert result() == NOT_COMPARABLE
    domain_file(tmp_path, "negotiation_v2", base=-1.0, sft=0.0, sepo=2.0, nra=0.2)
    assert result() == HOLDS
    domain_file(tmp_path, "negotiation_v1", base=-1.0, sft=0.0, sepo=-2.0, nra=-0.2)
    assert result() == HOLDS  # of the paper's game alone
    domain_file(tmp_path, "negotiation_v2", base=-1.0, sft=0.0, sepo=2.0, nra=-0.2)
    assert result() == FAILS


@pytest.mark.parametrize("name", list(penalties.GAMES))
def test_enumerated_penalties(name):
    norms = penalties.exact_norms(penalties.GAMES[name], seed=7)
    assert norms["shared: e, c"] < penalties.ROUNDING
    assert norms["per_rollout: e, c"] < penalties.ROUNDING
    assert norms["spread"] > 1.0  # of a single rollout it is far from 0
    assert norms["per_rollout: x"] > 0.01 and norms["credited: e, c"] > 0.1


SYSTEMATIC = {"shared: e, c": (0.0, 0.0), "per_rollout: e, c": (0.0, 0.2)}
SYSTEMATIC |= {"per_rollout: x": (0.4, 0.1), "credited: e, c": (0.5, 0.1)}


def with_shares(norms):
    measured = Measurements({})
    measured.run = lambda arm, seed: Path()
    shares = {
        label: [sampled.Share(share, error, 1.0, norms.get(label, 2.0))] * 3
        for label, (share, error) in SYSTEMATIC.items()
    }
    measured.once = lambda key, measure: shares
    return measured


@pytest.mark.parametrize(("norm", "expected"), [(0.0, HOLDS), (1e-6, HOLDS), (0.1, FAILS)])
def test_the_shared_penalty_alone_decides_the_claim_about_it(norm, expected):
    measured = penalties.constant_penalty(with_shares({"shared: e, c": norm}))
    assert verdict(measured.findings) == expected
    assert all("shared" in finding.name for finding in measured.findings if finding.decides)
    assert measured.findings[1].found.mean == pytest.approx(norm / 2.0)


def test_penalties_of_each_rollout_do_not_teach_e_and_c():
    measured = penalties.per_rollout_gradient(with_shares({}))
    assert verdict(measured.findings) == FAILS
    (difference,) = [f.found for f in measured.findings if "credited - per_rollout" in f.name]
    # Three seeds: errors 0.1 and 0.2 a seed have the joint error sqrt(0.01 + 0.04) / sqrt(3).
    assert difference.mean == pytest.approx(0.5)
    assert difference.standard_error == pytest.approx((0.05 / 3) ** 0.5)
    assert difference.high - difference.mean == pytest.approx(1.959964 * (0.05 / 3) ** 0.5)


def test_scores_of_enumerated_outcomes_average_to_zero():
    for game in penalties.GAMES.values():
        logits = np.random.default_rng(1).normal(size=game.size)
        arrays, weight, scores = penalties.rollouts(game, logits)
        assert weight.sum() == pytest.approx(1.0) and len(arrays.own) == 3 * len(weight)
        np.testing.assert_allclose(weight @ scores, 0, atol=1e-14)


# g = mean + noise with |mean|² = 4 and E|noise|² = 12: the share is 4 / 16.
def test_systematic_share_has_no_bias():
    generator = np.random.default_rng(0)
    mean = np.array([2.0, 0.0, 0.0])
    shares = [
        sampled.systematic_share(mean + 2.0 * generator.normal(size=(40, 3))) for _ in range(60)
    ]
    values = np.array([share.share for share in shares])
    assert abs(values.mean() - 0.25) < 5 * values.std() / np.sqrt(60)
    # The jackknife knows the spread of its own estimate.
    assert np.mean([share.error for share in shares]) == pytest.approx(values.std(), rel=0.3)
    assert np.mean([share.norm**2 for share in shares]) == pytest.approx(16, rel=0.05)


def test_systematic_share_of_noise_is_zero_within_its_interval():
    generator = np.random.default_rng(1)
    shares = [sampled.systematic_share(generator.normal(size=(16, 500))) for _ in range(40)]
    assert np.mean([share.ratio for share in shares]) == pytest.approx(1.0, abs=0.05)
    inside = [0.0 in sampled.mean_share([share]) for share in shares]
    assert sum(inside) >= 34  # 38 of 40 expected; fewer than 34 has a probability below 1%
    combined = sampled.mean_share(shares)
    single = sampled.mean_share(shares[:1])
    assert combined.high - combined.low < (single.high - single.low) / 3


def test_systematic_share_at_the_ends():
    assert sampled.systematic_share(np.zeros((3, 2))) == (0.0, 0.0, 0.0, 0.0)
    same = sampled.systematic_share(np.ones((4, 2)))
    assert same.share == pytest.approx(1.0) and same.error == pytest.approx(0.0, abs=1e-12)
    with pytest.raises(ValueError, match="n >= 3"):
        sampled.systematic_share(np.ones((2, 2)))


class Untrained(bench.Bench):
    """A bench whose runs are taken to be there."""

    def run(self, arm, seed):
        return self.runs / arm


def planned(arm):
    """Settings, domain and the episodes of a step of an arm, as training would have them."""
    settings = Untrained((0,), Path("runs"), Path()).settings(arm, 0)
    domain = make_domain(settings.domain)
    tasks = make_tasks(settings, domain)
    return settings, domain, StepPlan(settings, tasks).seats(0, {})


def test_a_row_names_the_revision_and_seeds_of_what_was_measured(tmp_path):
    measured = Measurements({}, tmp_path)
    assert measured.commit() == source_commit() and measured.measured_seeds() == []
    domain_file(tmp_path, "negotiation_v2", seeds=2, commit="old", base=0.0, sft=0.0, sepo=1, nra=1)
    tables.negotiation_positive(measured)
    assert measured.commit() == "old" and measured.measured_seeds() == [0, 1]
    measured.note("new", [4])
    assert measured.commit() == "several" and measured.measured_seeds() == [0, 1, 4]
    measured.start()
    assert measured.measured_seeds() == []


@pytest.mark.parametrize("arm", list(bench.ARMS))
def test_every_arm_can_be_planned(arm):
    settings, _, seats = planned(arm)
    assert settings.policy.source == "runs/sft/policy" and settings.sft.steps == 0
    assert settings.name == f"claim_ipd_{arm}" and seats[0].pool == "train"
    check_comparison(settings.sepo.group_by, settings.sepo.returns)
    assert configured_algorithm(settings).name == ("grpo" if arm == "published" else "rloo")


def test_arms_train_on_equally_many_episodes():
    for arm in bench.ARMS:
        settings, _, seats = planned(arm)
        # No other number of steps comes nearer.
        assert abs(settings.sepo.steps * len(seats) - 1344) <= len(seats) / 2, arm


def test_one_pool_gives_the_others_a_second_role():
    _, domain, _ = planned("one_pool")
    own = bench.IteratedPrisonersDilemma.pools
    assert set(domain.pools["train"]) == {name for pool in own.values() for name in pool}
    assert domain.pools["exploiter"] == own["exploiter"] and len(own["train"]) == 4
    assert domain.name == "ipd"


def test_figures_are_drawn_alike(tmp_path):
    panels = [
        claims.Panel("e", {"SFT": [1.0, 2.0, 1.5], "SEPO": [0.1, 0.2, 0.15]}, 0.3125),
        claims.Panel("u", {"SFT": [1.0]}),
    ]
    first, second = (
        figure.draw_claim(tmp_path / name / "c.svg", "sepo/x: holds", panels) for name in "ab"
    )
    assert first.read_bytes() == second.read_bytes()
    text = first.read_text(encoding="utf-8")
    assert text.startswith("<?xml") and "sepo/x: holds" in text and "SEPO" in text


@pytest.mark.slow
def test_user_errors_end_in_one_line(tmp_path):
    done = reproduce("--claim=sepo/constant_penalti")
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "unknown claim 'sepo/constant_penalti'. Did you mean 'sepo/constant_penalty'" in (
        done.stderr
    )
    done = reproduce("--claim=sepo/per_round", "--quick", "--write", f"--results={tmp_path}")
    assert done.returncode == 2 and "leave out --write or --quick" in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_the_command_trains_judges_and_draws(tmp_path):
    flags = ("--claim=sepo/sft_over_cooperates", "--quick", "--seeds=1", f"--runs={tmp_path}")
    done = reproduce(*flags)
    assert done.returncode == 0, done.stderr
    row = json.loads(done.stdout[done.stdout.index("{") :])
    # One seed has no interval, so nothing is decided.
    assert row["claim"] == "sepo/sft_over_cooperates" and row["verdict"] == NOT_COMPARABLE
    assert "e, SFT - SEPO" in row["ours"] and row["seeds"] == "0" and row["seconds"] > 0
    assert row["command"].endswith("--claim=sepo/sft_over_cooperates --seeds=1 --write")
    summary = tmp_path / "quick_claim_ipd_sft_seed0" / "summary.json"
    assert row["commit"] == json.loads(summary.read_text(encoding="utf-8"))["commit"][:12]
    assert (tmp_path / "figures" / "sepo_sft_over_cooperates.svg").is_file()
    runs = sorted(path.name for path in tmp_path.iterdir() if path.name != "figures")
    assert runs == ["quick_claim_ipd_credited_seed0", "quick_claim_ipd_sft_seed0"]
