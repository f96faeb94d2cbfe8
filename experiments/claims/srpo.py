"""The claims of SRPO (arXiv 2609.08452), on teams that are trained here.

Avg@16 is the share of right answers, 16 to each question; Pass@16 the share of questions that are
answered rightly at least once. Questions are the same for every seed, and none is trained on. Arms
of a seed start from the same imitation, unless their teams are of different sizes.
"""

from collections.abc import Mapping, Sequence

from sepo_jax.evaluation.claims import Finding
from sepo_jax.evaluation.statistics import seed_interval

from .base import Claim, Measured, Panel, differences
from .srpo_runs import TeamRuns, at_equal_tokens

SEARCH, MATH = "search_fixed", "math_routed"
DR_MAS, TOKEN_MEAN = "algorithm=dr_mas", "reduce=token_mean"
# Members of a search -> argument of its arm.
SIZES = {1: "workers=1", 3: "", 5: "workers=5"}
SCALES = {
    "sqrt": SIZES[5],
    **{scale: f"{SIZES[5]},ratio_scale={scale}" for scale in ("sum", "mean")},
}
# Equal tokens: each arm samples at most so many times as many as the other while it is trained.
EQUAL = 1.1
# Workflows in which every episode has as many outputs, whoever is trained, and those routed.
COMPARED, ROUTED = ("math_fixed", "search_fixed"), ("math_routed", "search_routed")


def difference(
    name: str, first: Sequence[float], second: Sequence[float], side: str = "shown"
) -> Finding:
    """first - second within each seed, to be on `side` of 0."""
    return Finding(name, seed_interval(differences(first, second)), side)


def shown(name: str, values: Sequence[float]) -> Finding:
    """A mean over seeds that decides nothing."""
    return Finding(name, seed_interval(values))


def both_rates(bench: TeamRuns, arms: Mapping[str, tuple[str, str]]) -> list[Panel]:
    """Panels of Avg@16 and Pass@16 of labelled arms."""
    return [
        Panel("Avg@16", {label: bench.success(*arm) for label, arm in arms.items()}),
        Panel("Pass@16", {label: bench.passed(*arm) for label, arm in arms.items()}),
    ]


def set_size(bench: TeamRuns) -> Measured:
    """Search with one, three and five workers at a time; Avg@16 of five against one decides.

    More workers ask more queries and sample more tokens, which are shown.
    """
    arms = {f"K = {size}": (SEARCH, argument) for size, argument in SIZES.items()}
    average = {label: bench.success(*arm) for label, arm in arms.items()}
    most = {label: bench.passed(*arm) for label, arm in arms.items()}
    tokens = {label: bench.values(*arm, "rl/tokens") for label, arm in arms.items()}
    findings = [
        difference("Avg@16, K = 5 - K = 1", average["K = 5"], average["K = 1"], "above"),
        difference("Avg@16, K = 3 - K = 1", average["K = 3"], average["K = 1"]),
        difference("Pass@16, K = 5 - K = 1", most["K = 5"], most["K = 1"]),
        *(shown(f"Avg@16, {label}", values) for label, values in average.items()),
        *(shown(f"tokens a question, {label}", values) for label, values in tokens.items()),
    ]
    return Measured(findings, [*both_rates(bench, arms), Panel("tokens a question", tokens)])


def ratio_scale(bench: TeamRuns) -> Measured:
    """Search with five workers, whose log-ratios are combined in three ways; Avg@16 of the square
    root against the sum and against the mean decides.

    In the first update of a batch all ratios are 1 and arms differ in weights alone; what the clip
    does is seen in the second, whose figures are logged.
    """
    arms = {scale: (SEARCH, argument) for scale, argument in SCALES.items()}
    average = {label: bench.success(*arm) for label, arm in arms.items()}
    most = {label: bench.passed(*arm) for label, arm in arms.items()}
    moved = {
        label: bench.values(*arm, "rl/step_mean/unit_log_ratio_abs") for label, arm in arms.items()
    }
    clipped = {
        label: bench.values(*arm, "rl/step_mean/clip_fraction") for label, arm in arms.items()
    }
    findings = [
        difference("Avg@16, sqrt - sum", average["sqrt"], average["sum"], "above"),
        difference("Avg@16, sqrt - mean", average["sqrt"], average["mean"], "above"),
        difference("Pass@16, sqrt - sum", most["sqrt"], most["sum"]),
        difference("Pass@16, sqrt - mean", most["sqrt"], most["mean"]),
        *(shown(f"Avg@16, {label}", values) for label, values in average.items()),
        *(shown(f"clipped, {label}", values) for label, values in clipped.items()),
    ]
    panels = [Panel("log-ratio of an event", moved), Panel("share of events clipped", clipped)]
    return Measured(findings, [*both_rates(bench, arms), *panels])


def reduction(bench: TeamRuns) -> Measured:
    """Routed mathematics, the mean over events against that over tokens: the event mean has the
    smaller gradient and the smaller coefficient of variation, the token mean more right answers.

    A run's gradient norm is the mean over its batches, its coefficient of variation over the same.
    """
    arms = {"event mean": (MATH, ""), "token mean": (MATH, TOKEN_MEAN)}
    found = {
        title: {label: bench.values(*arm, key) for label, arm in arms.items()}
        for title, key in (
            ("gradient norm", "rl/step_mean/gradient_norm"),
            ("CV of the gradient norm", "rl/step_cv/gradient_norm"),
        )
    }
    average = {label: bench.success(*arm) for label, arm in arms.items()}
    findings = [
        *(
            difference(f"{title}, event - token", each["event mean"], each["token mean"], "below")
            for title, each in found.items()
        ),
        difference("Avg@16, token - event", average["token mean"], average["event mean"], "above"),
        *(
            shown(f"{title}, {label}", values)
            for title, each in ({"Avg@16": average} | found).items()
            for label, values in each.items()
        ),
    ]
    panels = [Panel(title, each) for title, each in found.items()]
    return Measured(findings, [*both_rates(bench, arms), *panels])


def router(bench: TeamRuns) -> Measured:
    """The mean active set and the tokens of routed mathematics, the last fifth of training against
    the first: both fall. Routed search is shown."""
    findings, panels = [], []
    for name in ROUTED:
        decides, domain = name == MATH, name.partition("_")[0]
        for title, metric in (
            ("active set", "team/active_set"),
            ("tokens an episode", "team/tokens"),
        ):
            first, last = bench.first_and_last(name, "", metric)
            side = "below" if decides else "shown"
            findings.append(difference(f"{title} {domain}, last - first", last, first, side))
            findings.append(shown(f"{title} {domain}, last", last))
            panels.append(Panel(f"{title}, {domain}", {"first fifth": first, "last fifth": last}))
        gained = bench.success(name), bench.success(name, stage="sft")
        findings.append(difference(f"Avg@16 {domain}, RL - SFT", *gained))
        panels.append(Panel(f"Avg@16, {domain}", {"SFT": gained[1], "RL": gained[0]}))
    return Measured(findings, panels)


def dr_mas(bench: TeamRuns) -> Measured:
    """SRPO against Dr. MAS, on the same workflows, batches and steps: Avg@16 of fixed mathematics
    and of fixed search, where all teams have as many outputs, decide.

    There is nothing to compare where one of them sampled more than `EQUAL` times as many tokens in
    training. Training rewards at exactly as many tokens are shown.
    """
    findings, panels, apart = [], [], []
    for name in (*COMPARED, *ROUTED):
        title, decides = name.replace("_", " "), name in COMPARED
        arms = {"SRPO": (name, ""), "Dr. MAS": (name, DR_MAS)}
        average = {label: bench.success(*arm) for label, arm in arms.items()}
        most = {label: bench.passed(*arm) for label, arm in arms.items()}
        side = "above" if decides else "shown"
        findings += [
            difference(
                f"Avg@16 {title}, SRPO - Dr. MAS", average["SRPO"], average["Dr. MAS"], side
            ),
            difference(f"Pass@16 {title}, SRPO - Dr. MAS", most["SRPO"], most["Dr. MAS"]),
            *(shown(f"Avg@16 {title}, {label}", values) for label, values in average.items()),
        ]
        rewards, ratios = equal_tokens(bench, name)
        findings.append(difference(f"reward at equal tokens {title}, SRPO - Dr. MAS", *rewards))
        findings.append(shown(f"tokens of training {title}, SRPO / Dr. MAS", ratios))
        if decides and not all(1 / EQUAL <= ratio <= EQUAL for ratio in ratios):
            apart.append(f"{title} ({', '.join(f'{ratio:.2f}' for ratio in ratios)} times)")
        panels += [Panel(f"Avg@16, {title}", average), Panel(f"Pass@16, {title}", most)]
    missing = f"missing: equal tokens of training in {', '.join(apart)}" if apart else ""
    return Measured(findings, panels, missing)


def equal_tokens(bench: TeamRuns, name: str) -> tuple[tuple[list[float], list[float]], list[float]]:
    """Training rewards of SRPO and of Dr. MAS at the tokens that both have sampled, and how many
    times as many SRPO sampled in all; for each seed."""
    arms = [
        list(
            zip(
                bench.series(name, argument, "reward"),
                bench.series(name, argument, "sampled_tokens"),
                strict=True,
            )
        )
        for argument in ("", DR_MAS)
    ]
    rewards: tuple[list[float], list[float]] = ([], [])
    ratios = []
    for pair in zip(*arms, strict=True):
        totals = [sum(tokens) for _, tokens in pair]
        for found, (earned, tokens) in zip(rewards, pair, strict=True):
            found.append(at_equal_tokens(earned, tokens, min(totals)))
        ratios.append(totals[0] / totals[1])
    return rewards, ratios


CLAIMS = {
    "srpo/set_size": Claim(
        "Five members at a time end in more right answers than one",
        "search, Qwen2.5-3B, Avg@16 / Pass@16: K = 1 37.2 / 52.4, K = 5 40.1 / 56.1",
        set_size,
    ),
    "srpo/ratio_scale": Claim(
        "Log-ratios of five members over the root of five do better than their sum and their mean",
        "search, Qwen2.5-3B, Avg@16 / Pass@16: sqrt 40.1 / 56.1, sum 38.6 / 54.3, mean 34.7 / 48.6",
        ratio_scale,
    ),
    "srpo/reduction": Claim(
        "The mean over events has a smaller and steadier gradient, the mean over tokens ends in "
        "more right answers",
        "math, Qwen3-8B, event and token: gradient norm 72.1 and 90.7, CV .107 and .142, Avg@16 "
        "53.2 and 58.5; active set 2.233 to 2.421",
        reduction,
    ),
    "srpo/router": Claim(
        "A router learns to ask few members, which saves tokens",
        "math: mean active set 1.638 at the end, tokens 1,144 to 788, Avg@16 / Pass@16 57.7 / 69.7",
        router,
    ),
    "srpo/dr_mas": Claim(
        "SRPO ends in more right answers than Dr. MAS at equal tokens",
        "Avg@16 / Pass@16, SRPO and Dr. MAS: math, Qwen3-4B 61.3 / 77.9 and 61.1 / 77.7, Qwen3-8B "
        "62.5 / 77.8 and 62.3 / 77.6; search, Qwen2.5-3B 40.1 / 56.1 and 36.9 / 53.0, Qwen2.5-7B "
        "45.6 / 61.6 and 43.8 / 58.3",
        dr_mas,
    ),
}
