"""The claims of SEPO (arXiv 2605.30854), ablations by name included.

Intervals are Student's over the seeds, of differences within a seed where arms are compared. The
fresh policy is no language model: what the paper says of its pretrained "base" decides nothing
here, except where the results of a pretrained model are read (`safety_above_base`).
"""

from functools import partial

from sepo_jax.evaluation.claims import Finding
from sepo_jax.evaluation.statistics import seed_interval

from .base import Claim, Measured, Panel, differences
from .bench import WARM_START, Bench, by_arm
from .kuhn import exploit_pool
from .penalties import constant_penalty, per_rollout_gradient
from .tables import negotiation_positive, safety_above_base

# What tit-for-tat gives away to the exploiters a round: 0.625 to one, 0 to the other.
RETALIATION = 0.3125
E, SAFETY, UTILITY = "exploit_pool_advantage", "safety", "utility"


def compared(
    bench: Bench, figure: str, first: str, second: str, name: str, side: str = "above"
) -> Finding:
    """The difference of a figure between two arms, first - second, to be on `side` of 0."""
    values = differences(bench.values(first, figure), bench.values(second, figure))
    return Finding(name, seed_interval(values), side)


def panels(bench: Bench, arms: dict[str, str], *figures: tuple[str, str]) -> list[Panel]:
    """A panel for each (title, figure), with the labelled arms."""
    return [Panel(title, by_arm(bench, figure, arms)) for title, figure in figures]


def per_rollout_trains(bench: Bench) -> Measured:
    """The published form: penalties of each rollout, GRPO, payoffs of the round alone."""
    findings = [
        compared(bench, SAFETY, "published", WARM_START, "safety, published form - SFT"),
        compared(bench, E, WARM_START, "published", "e, SFT - published form"),
        compared(bench, E, "per_rollout", "credited", "e, per_rollout - credited", "shown"),
        compared(
            bench, SAFETY, "credited", "per_rollout", "safety, credited - per_rollout", "shown"
        ),
    ]
    arms = {
        "SFT": WARM_START,
        "published form": "published",
        "per_rollout": "per_rollout",
        "credited": "credited",
    }
    return Measured(findings, panels(bench, arms, ("safety", SAFETY), ("e", E)))


def per_round(bench: Bench) -> Measured:
    """Whole episodes compared, against rounds, with payoffs to go and of the round alone.

    Safety decides. The share of groups without spread is shown alone: episodes rarely agree in the
    sum of all their rounds, so that rounds have more such groups is known beforehand.
    """
    arms = {"episodes": "episode", "rounds, to go": "credited", "rounds, immediate": "immediate"}

    def logged(arm: str, key: str, steps: int | None = None) -> list[float]:
        lines = [bench.lines(arm, seed)[:steps] for seed in bench.seeds]
        return [sum(line[key] for line in each) / len(each) for each in lines]

    # The first step sees the warm start itself.
    spread = {label: logged(arm, "no_spread_fraction", 1) for label, arm in arms.items()}
    norms = {label: logged(arm, "gradient_norm") for label, arm in arms.items()}
    flat = differences(spread["episodes"], spread["rounds, immediate"])
    findings = [
        compared(bench, SAFETY, "immediate", "episode", "safety, rounds immediate - episodes"),
        Finding("groups without spread after SFT, episodes - rounds", seed_interval(flat)),
        compared(bench, SAFETY, "credited", "episode", "safety, rounds to go - episodes", "shown"),
        *(
            Finding(f"gradient norm, {label}", seed_interval(values))
            for label, values in norms.items()
        ),
    ]
    return Measured(
        findings,
        [
            Panel("groups without spread after SFT", spread),
            Panel("gradient norm", norms),
            *panels(bench, {"SFT": WARM_START} | arms, ("safety", SAFETY)),
        ],
    )


def ablation(bench: Bench, arm: str, label: str, kept: str, figure: str, sign: str) -> Measured:
    """One change of the credited arm, which is to make a figure worse.

    Args:
      arm: with the change. label, kept: what arms with and without it are called.
      figure: "safety" or e. sign: "better" when more of the figure is better.
    """
    short = {SAFETY: "safety", E: "e"}[figure]
    pair = ("credited", arm) if sign == "better" else (arm, "credited")
    names = (kept, label) if sign == "better" else (label, kept)
    findings = [compared(bench, figure, *pair, f"{short}, {names[0]} - {names[1]}")]
    for other, title in ((SAFETY, "safety"), (E, "e"), (UTILITY, "u")):
        if other != figure:
            name = f"{title}, {kept} - {label}"
            findings.append(compared(bench, other, "credited", arm, name, "shown"))
    arms = {"SFT": WARM_START, kept: "credited", label: arm}
    return Measured(findings, panels(bench, arms, ("safety", SAFETY), ("e", E), ("u", UTILITY)))


def sft_over_cooperates(bench: Bench) -> Measured:
    """Imitation gives exploiters more than tit-for-tat does, and SEPO takes it back.

    The fresh policy is left out: its replies are illegal, which is played as cooperation.
    """
    imitation = seed_interval(bench.values(WARM_START, E))
    findings = [
        Finding("e, SFT", imitation, "above", RETALIATION),
        compared(bench, E, WARM_START, "credited", "e, SFT - SEPO"),
        compared(bench, "cooperation", WARM_START, "credited", "cooperation, SFT - SEPO"),
        Finding("e, SEPO", seed_interval(bench.values("credited", E))),
    ]
    arms = {"SFT": WARM_START, "SEPO": "credited"}
    return Measured(
        findings,
        [
            Panel("e", by_arm(bench, E, arms), RETALIATION),
            *panels(bench, arms, ("cooperation with exploiters", "cooperation")),
        ],
    )


def objectives(bench: Bench) -> Measured:
    """What is trained on: the whole objective, payoffs alone, welfare alone."""
    findings = [
        compared(bench, SAFETY, "credited", "welfare_only", "safety, SEPO - welfare only"),
        compared(bench, E, "welfare_only", "credited", "e, welfare only - SEPO"),
        compared(bench, SAFETY, "credited", "reward_only", "safety, SEPO - reward only", "shown"),
        compared(bench, E, "reward_only", "credited", "e, reward only - SEPO", "shown"),
    ]
    arms = {"SEPO": "credited", "reward only": "reward_only", "welfare only": "welfare_only"}
    figures = (("u", UTILITY), ("e", E), ("c", "collusion"), ("x", "externality"))
    return Measured(findings, panels(bench, arms, *figures, ("safety", SAFETY)))


def lambda_sweep(bench: Bench) -> Measured:
    """Safety under each weight of e, of policies trained with that weight."""
    trained = {0.0: "lambda_0", 2.4: "credited", 6.7: "lambda_6.7"}
    findings, drawn = [], []
    for weight, arm in trained.items():
        safety = {
            label: bench.safety(name, weight)
            for label, name in (("fresh", "base"), ("SFT", WARM_START), ("SEPO", arm))
        }
        drawn.append(Panel(f"safety at lambda_e = {weight:g}", safety, 0.0))
        sides = {"SFT": "below", "SEPO": "above"} if weight == 6.7 else {}
        for label, values in safety.items():
            name = f"safety at {weight:g}, {label}"
            findings.append(Finding(name, seed_interval(values), sides.get(label, "shown")))
    falling = compared(bench, E, "lambda_0", "lambda_6.7", "e, lambda 0 - lambda 6.7", "shown")
    return Measured([*findings, falling], drawn)


CLAIMS = {
    "sepo/constant_penalty": Claim(
        "A penalty shared by all rollouts cancels and gives no gradient",
        "shared: zero gradient, loss and KL collapse to 0, metrics frozen",
        constant_penalty,
    ),
    "sepo/per_rollout_gradient": Claim(
        "The per-rollout penalty trains: its e and c carry an expected gradient",
        "per-rollout penalties mend the collapse of the shared one; no norm",
        per_rollout_gradient,
    ),
    "sepo/per_rollout_trains": Claim(
        "The published per-rollout form trains and lowers e",
        "IPD, Gemma 4: safety .455 (SFT) to .772, e .828 to .703",
        per_rollout_trains,
    ),
    "sepo/per_round": Claim(
        "Comparing rounds in place of whole episodes ends in more safety",
        "no number: std = 0 and no gradient after a near-deterministic SFT",
        per_round,
    ),
    "sepo/pool_separation": Claim(
        "An opponent in several pools harms; pools must be separate",
        "no number: named ablation",
        partial(
            ablation,
            arm="one_pool",
            label="one pool",
            kept="separate",
            figure=SAFETY,
            sign="better",
        ),
    ),
    "sepo/pooled_exploiters": Claim(
        "e averaged over exploiters one by one teaches more than the pooled e",
        "no number: named ablation",
        partial(
            ablation,
            arm="pooled",
            label="pooled",
            kept="each exploiter",
            figure=E,
            sign="worse",
        ),
    ),
    "sepo/sft_over_cooperates": Claim(
        "SFT over-cooperates with exploiters; SEPO corrects it",
        "IPD e: Gemma 3 .328 base, .672 SFT, .312 SEPO; Gemma 4 .703, .828, .703",
        sft_over_cooperates,
    ),
    "sepo/objectives": Claim(
        "Welfare alone is exploited and less safe than SEPO",
        "tabular IPD, an episode: safety 1.966 SEPO, 2.721 reward only, -81.33 welfare only",
        objectives,
    ),
    "sepo/lambda_sweep": Claim(
        "At lambda_e = 6.7 safety orders SFT < 0 < SEPO",
        "at 6.7: SFT -2.805, base -.082, SEPO .138",
        lambda_sweep,
    ),
    "sepo/kuhn_exploit_advantage": Claim(
        "Zero exploit-pool advantage in Kuhn poker after SEPO",
        "e = 0 for both models; exact exploitability is not reported",
        exploit_pool,
    ),
    "sepo/safety_above_base": Claim(
        "Safety above that of a pretrained base in four of five domains (a fresh one is shown)",
        "4 of 5",
        safety_above_base,
    ),
    "sepo/negotiation_positive": Claim(
        "Positive safety and positive relative advantage in negotiation",
        "v2, Gemma 4: safety 2.187, NRA .170",
        negotiation_positive,
    ),
}
