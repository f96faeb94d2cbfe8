"""The claims of the matrix-game benchmark (arXiv 2605.10410).

A success is a valid reply whose two-sided residual is at most a tenth of the payoff range. Means
are over the benchmark's games, which are the same for every seed and none of which is trained on.
"Best baseline" is the larger success of uniform play and of the best pure profiles on these games.
"""

import math

from sepo_jax.evaluation.claims import Finding
from sepo_jax.evaluation.matrix_report import RESULT_COLUMNS
from sepo_jax.evaluation.matrix_tasks import label_of
from sepo_jax.evaluation.results import load_result
from sepo_jax.evaluation.statistics import (
    Interval,
    deviation_interval,
    deviation_ratio_interval,
    rate_difference,
    seed_interval,
)
from sepo_jax.sepo.metrics import Estimate, rate
from sepo_jax.training.matrix_configs import TRAINED

from .base import Claim, Measured, Panel, differences
from .lipschitz import lipschitz
from .matrix_runs import (
    BOTH,
    FORM,
    PAPER_SIZES,
    RL,
    SFT,
    UNSEEN_SIZES,
    MatrixRuns,
    dense,
)
from .residual_control import residual_control

NAMED, RELABELLED, ANONYMOUS = "named", "relabelled", "anonymous"
LARGEST = "dense/12"
NEAR_FAILURE = 0.1  # success below which an arm counts as failed
SURVIVES = 0.1  # loss of success below which what was learned counts as kept
SAME_PAYOFFS = (NAMED, RELABELLED, ANONYMOUS)
ANONYMOUS_SIZES = (2, 3, 5)  # whose success the paper gives
# The results of a pretrained model, and what it is called there before any training.
PRETRAINED, ZERO_SHOT = "matrix_smollm2.json", "zero-shot"
_COMMAND = (
    "python experiments/evaluate.py --benchmark=matrix --policy=models/smollm2-135m --greedy "
    f"--table={PRETRAINED.removesuffix('.json')} --label={ZERO_SHOT}"
)


def shown(bench: MatrixRuns, player: str, arm: str) -> Finding:
    """The success of a player on an arm, which decides nothing."""
    return Finding(f"{label_of(arm)} {player}", seed_interval(bench.values(player, arm)))


def above_baseline(bench: MatrixRuns, player: str, arms, name: str) -> Finding:
    """The success of a player, to be above the best baseline of the same games."""
    return Finding(name, seed_interval(bench.values(player, arms)), "above", bench.baseline(arms))


def size_transfer(bench: MatrixRuns) -> Measured:
    """Success on 5x5 to 7x7 after SFT on 2x2 and 3x3, by the mean over the three sizes.

    It is lifted where it is above that of a policy that has learned the form of an answer alone,
    and knowledge of more than pure strategies where it is above the best baseline. Sizes one by one
    are shown, and so is training on the residual as a reward.
    """
    paper = dense(PAPER_SIZES)
    learned = bench.values(SFT, paper)
    lift = differences(learned, bench.values(FORM, paper))
    findings = [
        above_baseline(bench, SFT, paper, "success 5x5 to 7x7, SFT"),
        Finding("5x5 to 7x7, SFT - form alone", seed_interval(lift), "above"),
        *(shown(bench, SFT, arm) for arm in dense((*TRAINED, *UNSEEN_SIZES))),
        Finding("valid 5x5 to 7x7, SFT", seed_interval(bench.values(SFT, paper, "valid"))),
        *(
            Finding(f"5x5 to 7x7, {player}", seed_interval(bench.values(player, paper)))
            for player in (RL, BOTH)
        ),
    ]
    players = (FORM, SFT, RL, BOTH)
    arms = dense((*TRAINED, *UNSEEN_SIZES, 12))
    return Measured(
        findings,
        [
            *(bench.panel(f"success, {label_of(arm)}", players, arm) for arm in arms),
            bench.panel("valid, 5x5 to 7x7", players, paper, "valid"),
        ],
    )


def padding(bench: MatrixRuns) -> Measured:
    """3x3 games inside larger ones, after SFT, which saw 2x2 and 3x3 alone.

    Padding by dominated actions is solved where success is above the best baseline and above that
    of the same games padded at random; dense 12x12 games are near failure below `NEAR_FAILURE`.
    """
    findings, panels = [], []
    for size in (8, 12):
        dominated, random = f"dominated/3in{size}", f"random/3in{size}"
        name = f"3 in {size}"
        values = {arm: bench.values(SFT, arm) for arm in (dominated, random)}
        change = differences(values[dominated], values[random])
        findings += [
            above_baseline(bench, SFT, dominated, f"success {name}, dominated"),
            Finding(f"{name}, dominated - random", seed_interval(change), "above"),
            Finding(f"valid {name}", seed_interval(bench.values(SFT, dominated, "valid"))),
        ]
        panels.append(
            Panel(
                f"success, {name}",
                {"dominated": values[dominated], "random": values[random]},
                bench.baseline(dominated),
            )
        )
    whole = bench.values(SFT, LARGEST)
    findings += [
        Finding("success 12x12", seed_interval(whole), "below", NEAR_FAILURE),
        Finding("valid 12x12", seed_interval(bench.values(SFT, LARGEST, "valid"))),
        shown(bench, SFT, "dense/3"),
    ]
    sizes = {label_of(arm): bench.values(SFT, arm) for arm in ("dense/3", LARGEST)}
    return Measured(findings, [*panels, Panel("success, dense", sizes, NEAR_FAILURE)])


def payoff_shift(bench: MatrixRuns) -> Measured:
    """The same games with noise on every payoff, after SFT.

    What was learned survives where success is above the best baseline of the shifted games and less
    than `SURVIVES` of it is lost. Neither the games nor the shifted ones were trained on.
    """
    findings, panels = [], []
    for size in TRAINED:
        shifted, plain = f"perturbed/{size}", f"dense/{size}"
        values = {"plain": bench.values(SFT, plain), "shifted": bench.values(SFT, shifted)}
        loss = seed_interval(differences(values["plain"], values["shifted"]))
        name = label_of(plain)
        findings += [
            above_baseline(bench, SFT, shifted, f"success {name}, shifted"),
            Finding(f"{name}, plain - shifted", loss, "below", SURVIVES),
        ]
        panels.append(Panel(f"success, {name}", values, bench.baseline(shifted)))
    return Measured(findings, panels)


def seed_variance(bench: MatrixRuns) -> Measured:
    """The spread over seeds of the success that RL ends with, by that of SFT, at the trained sizes.

    Spreads are sample standard deviations, their intervals chi-square's and F's for normal seeds.
    They contain what a finite number of games adds to either.
    """
    arms, paper = dense(TRAINED), dense(PAPER_SIZES)
    values = {player: bench.values(player, arms) for player in (RL, SFT)}
    unseen = {player: bench.values(player, paper) for player in (RL, SFT)}
    ratio = deviation_ratio_interval(values[RL], values[SFT])
    findings = [
        Finding("deviation over seeds 2x2 and 3x3, RL / SFT", ratio, "above", 1.0),
        *(Finding(f"deviation, {player}", deviation_interval(values[player])) for player in values),
        *(Finding(f"success, {player}", seed_interval(values[player])) for player in values),
        *(
            Finding(f"deviation 5x5 to 7x7, {player}", deviation_interval(each))
            for player, each in unseen.items()
        ),
        *(
            Finding(f"success 5x5 to 7x7, {player}", seed_interval(each))
            for player, each in unseen.items()
        ),
    ]
    panels = [
        Panel("success, 2x2 and 3x3", values, bench.baseline(arms)),
        Panel("success, 5x5 to 7x7", unseen, bench.baseline(paper)),
    ]
    return Measured(findings, panels)


def semantic_gap(bench: MatrixRuns) -> Measured:
    """The same payoffs under a known name, under misplaced labels, and anonymously.

    The claim is about pretrained models, so the zero-shot rows of `PRETRAINED` decide it, by
    Newcombe's interval of the difference; that the games are the same one by one is not used.
    Policies that are trained here, from nothing and on anonymous games alone, are shown.
    """
    found, findings, panels = pretrained(bench), [], []
    missing = found if isinstance(found, str) else ""
    if not isinstance(found, str):
        gaps = [rate_difference(found[NAMED], found[arm]) for arm in (ANONYMOUS, RELABELLED)]
        findings += [
            Finding("zero-shot, named - anonymous", gaps[0], "above"),
            Finding("zero-shot, named - relabelled", gaps[1]),
            *(
                Finding(f"zero-shot, {label_of(arm)}", wilson(found[arm]))
                for arm in (NAMED, *dense(ANONYMOUS_SIZES))
                if arm in found
            ),
        ]
        values = {label_of(arm): [each.value] for arm, each in found.items()}
        panels.append(Panel("success, pretrained, zero-shot", values))
    trained = {arm: bench.values(SFT, arm) for arm in SAME_PAYOFFS}
    for arm in (ANONYMOUS, RELABELLED):
        change = differences(trained[NAMED], trained[arm])
        findings.append(Finding(f"SFT, named - {arm}", seed_interval(change)))
    panels.append(Panel("success, SFT from nothing", trained, bench.baseline(NAMED)))
    return Measured(findings, panels, missing)


def wilson(found: Estimate) -> Interval:
    """A rate as an `Interval`."""
    return Interval(found.value, found.low, found.high, math.inf, found.count, 0.95, "wilson")


def pretrained(bench: MatrixRuns) -> dict[str, Estimate] | str:
    """Arm -> success of a pretrained model zero-shot; or what is missing for it."""
    path = bench.results / PRETRAINED
    if not path.is_file():
        return f"missing: {PRETRAINED} (run {_COMMAND})"
    result = load_result(path)
    if result["columns"] != list(RESULT_COLUMNS):
        return f"missing: columns of {PRETRAINED} that {_COMMAND} writes"
    rows = [dict(zip(RESULT_COLUMNS, row, strict=True)) for row in result["rows"]]
    found = {
        row["arm"]: rate(round(row["success"] * row["games"]), row["games"])
        for row in rows
        if row["policy"] == ZERO_SHOT
    }
    absent = [arm for arm in SAME_PAYOFFS if arm not in found]
    if absent:
        return f"missing: arm {absent[0]!r} of policy {ZERO_SHOT!r} in {PRETRAINED}"
    bench.note(result["commit"], result["seeds"])
    return found


CLAIMS = {
    "matrix/semantic_gap": Claim(
        "A model that recognises named games drops on anonymous ones",
        "anonymous 2x2 34%, 3x3 18%, 5x5 2%; named games: no number",
        semantic_gap,
    ),
    "matrix/size_transfer": Claim(
        "SFT on 2x2 and 3x3 lifts success on unseen 5x5 to 7x7",
        "2% to 61% (SFT), 37% (exploitability reward)",
        size_transfer,
    ),
    "matrix/padding": Claim(
        "3x3 games padded by dominated actions are solved; random padding and dense 12x12 fail",
        "no number",
        padding,
    ),
    "matrix/payoff_shift": Claim(
        "The learned approximate computation survives a shift of payoffs",
        "no number",
        payoff_shift,
    ),
    "matrix/lipschitz": Claim(
        "The residual is 2-Lipschitz in payoffs; the vertex of a linear program is discontinuous",
        "constant 2",
        lipschitz,
    ),
    "matrix/seed_variance": Claim(
        "Training on the exploitability reward varies more over seeds than SFT",
        "5x5 to 7x7: 37% on average with high seed variance; SFT 61%",
        seed_variance,
    ),
    "matrix/residual_control": Claim(
        "The residual as an objective teaches approximate equilibria, language left out",
        "the residual route is real but limited by format; no number",
        residual_control,
    ),
}
