"""Claims of the matrix benchmark: what decides each, on figures that are given, and the command."""

import itertools
from pathlib import Path

import numpy as np
import pytest
from script_modules import reproduce, rows_of, script_module

from sepo_jax.evaluation.claims import FAILS, HOLDS, NOT_COMPARABLE, UNDECIDED, verdict
from sepo_jax.evaluation.matrix_report import RESULT_COLUMNS
from sepo_jax.evaluation.matrix_tasks import ARMS
from sepo_jax.evaluation.results import source_commit, write_result
from sepo_jax.training.settings import DomainSettings, EvaluationSettings, Settings

claims = script_module("claims")
control = script_module("claims.residual_control")
lipschitz = script_module("claims.lipschitz")
matrix = script_module("claims.matrix")
matrix_runs = script_module("claims.matrix_runs")

# Player -> its success on every arm, where a test says nothing else.
USUAL = {"uniform": 0.0, "best pure": 0.2, "form alone": 0.0, "SFT": 0.6, "RL": 0.4}
USUAL |= {"SFT then RL": 0.6}
FEW = dict.fromkeys(ARMS, 0.05)


class Figures(matrix_runs.MatrixRuns):
    """Runs whose figures are given: player -> arm -> success, which differs a little over seeds.

    `spread` says by how much, for each player.
    """

    def __init__(self, given=None, results=Path(), spread=None, seeds=(0, 1, 2, 3, 4)):
        super().__init__(seeds, Path("runs"), results, quick=True)
        self.given, self.spread = given or {}, spread or {}

    def summary(self, config, seed):
        found = {}
        for player, (own, stage) in matrix_runs.PLAYERS.items():
            for arm in ARMS if own == config else ():
                fixed = player in ("uniform", "best pure")
                change = 0 if fixed else self.spread.get(player, 0.01) * (seed - 2)
                success = self.given.get(player, {}).get(arm, USUAL[player])
                found[f"{stage}/{arm}/success"] = success + change
                found[f"{stage}/{arm}/valid"] = 0.9
        return found


def found(claim, *arguments, **options):
    measured = claims.CLAIMS[f"matrix/{claim}"].measure(Figures(*arguments, **options))
    assert measured.panels and all(panel.values for panel in measured.panels)
    return verdict(measured.findings, measured.missing), measured


def sft(**successes):
    """Successes of SFT, by arms whose slash is a double underscore."""
    return {"SFT": {name.replace("__", "/"): value for name, value in successes.items()}}


PADDED = {
    "dominated__3in8": 0.5,
    "dominated__3in12": 0.4,
    "random__3in8": 0.1,
    "random__3in12": 0.0,
}
SOLVED = PADDED | {"dense__12": 0.02}
SHIFTED = {"perturbed__2": 0.58, "perturbed__3": 0.55}


@pytest.mark.parametrize(
    ("claim", "given", "expected"),
    [
        ("size_transfer", {}, HOLDS),
        # The mean over the paper's three sizes counts, whatever 4x4 is.
        ("size_transfer", sft(dense__4=0.0, dense__6=0.1, dense__7=0.1), HOLDS),
        ("size_transfer", sft(dense__5=0.1, dense__6=0.1, dense__7=0.1), FAILS),
        ("size_transfer", {"form alone": dict.fromkeys(ARMS, 0.7)}, FAILS),
        ("size_transfer", {"uniform": dict.fromkeys(ARMS, 0.7)}, FAILS),
        ("size_transfer", {"best pure": dict.fromkeys(ARMS, 0.6)}, UNDECIDED),
        ("padding", sft(**SOLVED), HOLDS),
        # Solved whatever the padding; no better than pure profiles; large games solved, too.
        ("padding", sft(**(SOLVED | {"random__3in12": 0.4})), FAILS),
        ("padding", sft(**(SOLVED | {"dominated__3in8": 0.15})), FAILS),
        ("padding", sft(**(SOLVED | {"dense__12": 0.3})), FAILS),
        ("padding", sft(**(SOLVED | {"dense__12": 0.1})), UNDECIDED),
        ("payoff_shift", sft(**SHIFTED), HOLDS),
        ("payoff_shift", sft(**(SHIFTED | {"perturbed__3": 0.4})), FAILS),
        # Nothing is lost where nothing was learned, and nothing survives.
        ("payoff_shift", {"SFT": FEW}, FAILS),
    ],
)
def test_verdicts_of_trained_policies(claim, given, expected):
    assert found(claim, given)[0] == expected


def test_a_claim_shows_every_size_and_training():
    _, measured = found("size_transfer")
    names = " ".join(finding.name for finding in measured.findings)
    for part in ("2x2 SFT", "4x4 SFT", "7x7 SFT", "5x5 to 7x7, RL", "5x5 to 7x7, SFT then RL"):
        assert part in names
    assert sum(finding.decides for finding in measured.findings) == 2
    assert len(measured.panels) == 8 and measured.panels[0].reference == 0.2


@pytest.mark.parametrize(
    ("spread", "expected"),
    [
        # Of five seeds each, deviations must differ 3.1-fold: F(0.975; 4, 4) is 9.60.
        ({"RL": 0.04}, HOLDS),
        ({"RL": 0.03}, UNDECIDED),
        ({"RL": 0.003}, FAILS),
        ({"SFT": 0.0}, NOT_COMPARABLE),
    ],
)
def test_spreads_over_seeds(spread, expected):
    assert found("seed_variance", spread=spread)[0] == expected


def test_a_single_seed_has_no_spread():
    assert found("seed_variance", seeds=(3,))[0] == NOT_COMPARABLE


def test_an_arm_that_was_not_judged_is_named():
    bench = Figures()
    with pytest.raises(ValueError, match="seed 0 has no figure 'sft/dense/9/success'"):
        bench.values("SFT", "dense/9")
    with pytest.raises(ValueError, match=r"player 'Sft'.*SFT"):
        bench.values("Sft", "dense/2")


def replies_file(directory, columns=RESULT_COLUMNS, **successes):
    rows = []
    for policy, shift in (("zero-shot", 0.0), ("SFT", 0.3)):
        for arm, success in successes.items():
            cells = dict.fromkeys(RESULT_COLUMNS, 0.0) | {"policy": policy, "games": 100}
            cells |= {"arm": arm.replace("__", "/"), "success": min(success + shift, 1.0)}
            rows.append([cells[column] for column in columns])
    content = {"title": "t", "command": "c", "seeds": [5], "commit": "old", "versions": {}}
    content |= {"columns": list(columns), "rows": rows, "notes": ""}
    write_result(directory / matrix.PRETRAINED, content)


@pytest.mark.parametrize(
    ("named", "anonymous", "expected"),
    [(0.6, 0.2, HOLDS), (0.2, 0.6, FAILS), (0.3, 0.25, UNDECIDED), (0.0, 0.0, UNDECIDED)],
)
def test_a_pretrained_model_decides_about_names(tmp_path, named, anonymous, expected):
    replies_file(tmp_path, named=named, relabelled=0.3, anonymous=anonymous, dense__2=0.4)
    result, measured = found("semantic_gap", results=tmp_path)
    assert result == expected
    by_name = {finding.name: finding.found for finding in measured.findings}
    assert by_name["zero-shot, named - anonymous"].mean == pytest.approx(named - anonymous)
    assert by_name["zero-shot, named - relabelled"].mean == pytest.approx(named - 0.3)
    # Wilson's interval of 40 in 100.
    assert by_name["zero-shot, 2x2"].low == pytest.approx(0.3094, abs=1e-4)
    assert "zero-shot, 3x3" not in by_name and "SFT, named - anonymous" in by_name


def test_without_a_pretrained_model_there_is_nothing_to_compare(tmp_path):
    given = {"SFT": {"named": 0.9, "anonymous": 0.1, "relabelled": 0.1}}
    result, measured = found("semantic_gap", given, results=tmp_path)
    assert result == NOT_COMPARABLE and "missing: matrix_smollm2.json (run" in measured.missing
    assert measured.findings[0].found.mean == pytest.approx(0.8)
    replies_file(tmp_path, columns=("arm", "policy", "games"), named=0.6, anonymous=0.2)
    assert "missing: columns of" in found("semantic_gap", results=tmp_path)[1].missing
    replies_file(tmp_path, named=0.6, anonymous=0.2)
    assert "missing: arm 'relabelled'" in found("semantic_gap", results=tmp_path)[1].missing


def test_what_was_read_is_noted(tmp_path):
    replies_file(tmp_path, named=0.6, relabelled=0.3, anonymous=0.2)
    bench = Figures(results=tmp_path)
    matrix.semantic_gap(bench)
    assert bench.commit() == "old" and bench.measured_seeds() == [5]


def test_the_worst_payoffs_are_the_worst():
    generator = np.random.default_rng(4)
    payoffs, row, col, distance = lipschitz.drawn(20, 2, 2, generator)
    worst = lipschitz.worst_payoffs(payoffs, row, col, distance)
    assert (np.abs(worst - payoffs).max(axis=(1, 2)) <= distance * (1 + 1e-12)).all()
    found = lipschitz.residual(worst, row, col)
    # A convex function of the payoffs is largest at a corner of the box.
    corners = np.array(list(itertools.product((-1, 1), repeat=4))).reshape(-1, 2, 2)
    best = np.full(20, -np.inf)
    for corner in corners:
        other = payoffs + distance[:, None, None] * corner
        best = np.maximum(best, lipschitz.residual(other, row, col))
    np.testing.assert_allclose(found, best, atol=1e-12)


def test_ratios_come_up_to_two_and_not_beyond():
    largest = lipschitz.largest_ratios(4000)
    for kind, by_size in largest.items():
        assert set(by_size) == {"2x2", "3x3", "4x6", "7x7"}
        assert max(by_size.values()) <= 2 + lipschitz.ROUNDING, kind
    assert min(largest["worst"].values()) == pytest.approx(2, abs=1e-9)
    assert max(largest["random"].values()) > 1.5


def test_the_vertex_jumps_and_the_residual_does_not():
    for pattern in lipschitz.JUMPS.values():
        moves, changes = lipschitz.jumps(pattern)
        assert moves == [2.0] * len(lipschitz.EPSILONS) and max(changes) <= 2
    result, measured = found("lipschitz")
    assert result == HOLDS and sum(finding.decides for finding in measured.findings) == 4


def test_a_residual_that_changes_more_fails(monkeypatch):
    plain = lipschitz.residual
    monkeypatch.setattr(lipschitz, "residual", lambda *given: 1.01 * plain(*given))
    assert found("lipschitz")[0] == FAILS


def test_a_claim_that_trains_nothing_names_the_source():
    bench = Figures()
    lipschitz.lipschitz(bench)
    assert bench.commit() == source_commit() and bench.measured_seeds() == [lipschitz.SEED]


ARMS_OF_CONTROL = (*(f"dense/{n}" for n in (2, 3, 4, 5, 6, 7)), *control.OTHERS)


@pytest.mark.parametrize(("success", "expected"), [(0.95, HOLDS), (0.3, FAILS)])
def test_the_control_is_decided_by_the_sizes_it_was_trained_on(monkeypatch, success, expected):
    asked = []

    def given(training, seed, domain, tasks):
        asked.append((training, seed, len(tasks)))
        trained = {f"dense/{n}/success": success + 0.001 * seed for n in (2, 3)}
        figures = dict.fromkeys((f"{arm}/success" for arm in ARMS_OF_CONTROL), 0.0)
        figures |= dict.fromkeys((f"{arm}/residual" for arm in ARMS_OF_CONTROL), 0.5)
        return figures | trained | {"loss": 0.1}

    monkeypatch.setattr(control, "control_figures", given)
    bench = Figures(seeds=(0, 1))
    arms = {"arms": ARMS_OF_CONTROL}
    settings = Settings(
        domain=DomainSettings("matrix", options=arms), evaluation=EvaluationSettings(tasks=10)
    )
    bench.config_of = lambda path, seed: settings
    measured = control.residual_control(bench)
    assert verdict(measured.findings) == expected
    assert asked == [(control.QUICK, seed, 10 * len(ARMS_OF_CONTROL)) for seed in (0, 1)]
    decided = [finding.name for finding in measured.findings if finding.decides]
    assert decided == ["success 2x2", "success 3x3"]
    # Pure profiles succeed wherever there is a saddle point, in two of three 2x2 games.
    assert 0.4 < measured.findings[0].bound < 0.9
    assert any("7x7" in finding.name for finding in measured.findings)


def test_families_have_their_claims():
    for family, entry in claims.FAMILIES.items():
        assert entry.claims and all(name.startswith(f"{family}/") for name in entry.claims)
        assert set(entry.claims) <= set(claims.CLAIMS)
    assert len(claims.FAMILIES["matrix"].claims) == 7


@pytest.mark.slow
def test_the_command_measures_every_claim(tmp_path):
    places = (f"--runs={tmp_path}", f"--results={tmp_path / 'results'}")
    done = reproduce("--claim=matrix/all", "--quick", "--seeds=1", *places)
    assert done.returncode == 0, done.stderr
    rows = {row["claim"]: row for row in rows_of(done.stdout)}
    assert list(rows) == list(claims.FAMILIES["matrix"].claims)
    # One seed has no interval, but what is exact needs none.
    assert {row["claim"] for row in rows.values() if row["verdict"] != NOT_COMPARABLE} == {
        "matrix/lipschitz"
    }
    assert rows["matrix/lipschitz"]["verdict"] == HOLDS
    assert "success 5x5 to 7x7, SFT" in rows["matrix/size_transfer"]["ours"]
    runs = {path.name for path in tmp_path.iterdir() if path.name.startswith("quick_")}
    assert runs == {f"quick_matrix_{config}_seed0" for config in ("sft", "rl", "sft_rl")}
    drawn = {path.stem for path in (tmp_path / "figures").iterdir()}
    assert drawn == {name.replace("/", "_") for name in rows}
