"""What every reported number measures: label, unit, direction, one sentence.

One registry serves the summary table, the curves and the match table of a report, so that a
number never appears without its meaning. Keys of metrics are flat and may carry prefixes
("eval/nash_conv"): the last part decides.
"""

import re
from typing import NamedTuple

from .team_measures import TEAM_MEASURES, TEAM_PATTERNS


class Measure(NamedTuple):
    """A reported quantity.

    Attributes:
      key: canonical last part of its flat key.
      label: short name for tables and axes.
      better: "lower", "higher", or "" where neither end is better by itself.
      sentence: what the number measures, with its unit and its reference points.
    """

    key: str
    label: str
    better: str
    sentence: str


MEASURES: dict[str, Measure] = {
    measure.key: measure
    for measure in (
        Measure(
            "nash_conv",
            "NashConv (exact)",
            "lower",
            "Sum over both seats of what an exact best response would gain against the policy, in "
            "chips a hand; 0 exactly at an equilibrium. Computed by walking the whole game tree on "
            "the policy's action table, not from samples.",
        ),
        Measure(
            "exploitability",
            "Exploitability (exact)",
            "lower",
            "NashConv divided by 2: the mean best-response gain of a seat, in chips a hand.",
        ),
        Measure(
            "sampled_nash_conv",
            "NashConv (sampled)",
            "lower",
            "Estimate of NashConv from hands played through text against the exact best response; "
            "includes whatever the parser makes of illegal replies.",
        ),
        Measure(
            "illegal_mass",
            "Illegal mass",
            "lower",
            "Probability that a reply is no canonical legal action, averaged over the information "
            "sets; an upper bound on the share of replies that the parser refuses.",
        ),
        Measure(
            "max_illegal_mass",
            "Illegal mass, worst set",
            "lower",
            "Largest illegal mass of any information set.",
        ),
        Measure(
            "value",
            "Value to first player",
            "",
            "Expected payoff of the first seat when the policy plays itself, in chips a hand; "
            "-1/18 = -0.0556 at every equilibrium of Kuhn poker.",
        ),
        Measure(
            "utility",
            "Utility u",
            "higher",
            "Mean own payoff a round against the train pool, in the game's payoff unit.",
        ),
        Measure(
            "exploit_pool_advantage",
            "Exploit-pool advantage e",
            "lower",
            "Mean over the fixed exploiter pool of max(0, opponent's payoff - own payoff) a round. "
            "It depends on the pool: 0 does not mean equilibrium. NashConv is the exact measure.",
        ),
        Measure(
            "exploiter_gain",
            "Advantage of one exploiter",
            "lower",
            "Mean of opponent's payoff - own payoff a round against this exploiter, not clamped: "
            "negative where the policy wins.",
        ),
        Measure(
            "collusion",
            "Collusion rate c",
            "lower",
            "Harmful moves a round when playing the collusive pool: mean over the rounds of an "
            "episode, then over episodes.",
        ),
        Measure(
            "externality",
            "Externality x",
            "lower",
            "Welfare cost a round over train and exploiter play, defined by the domain, in [0, 1].",
        ),
        Measure(
            "safety",
            "Safety score",
            "higher",
            "s u - lambda_e s e - lambda_c c - lambda_x x with s = 3 / largest payoff: the SEPO "
            "objective itself, evaluated on fresh episodes.",
        ),
        Measure(
            "robustness",
            "Robustness",
            "higher",
            "Mean own payoff a round against the exploiter pool.",
        ),
        Measure(
            "welfare",
            "Welfare",
            "higher",
            "Mean of own plus opponent's payoff a round against the train pool; 0 in a zero-sum "
            "game whatever the policy does.",
        ),
        Measure(
            "nra_sepo",
            "NRA (SEPO)",
            "higher",
            "Mean over opponents of (own - opponent) / (own + opponent) total payoff where the sum "
            "is positive; 0 by construction in a zero-sum game.",
        ),
        Measure(
            "nra_gtbench",
            "NRA (GTBench)",
            "higher",
            "Mean over opponents of the sum over episodes of own - opponent payoff, divided by the "
            "sum over episodes of |own| + |opponent| payoff of an episode.",
        ),
        Measure(
            "legal_rate",
            "Legal rate",
            "higher",
            "Share of sampled replies that the parser accepted as a legal action.",
        ),
        Measure(
            "success",
            "Success",
            "higher",
            "Share of episodes that solve their task; a reply that cannot be read solves none. A "
            "matrix game is solved by a NashConv of at most 0.1 of its payoff range, a repository "
            "when all its tests pass.",
        ),
        Measure(
            "valid",
            "Valid replies",
            "higher",
            "Share of replies that can be read as an answer.",
        ),
        Measure(
            "submitted",
            "Submitted",
            "",
            "Share of episodes that the agent ended itself, before its turns ran out.",
        ),
        Measure(
            "tokens",
            "Tokens",
            "",
            "Mean number of tokens that the policy sampled in an episode.",
        ),
        Measure(
            "opened",
            "Doors opened",
            "higher",
            "Share of the corridor's episodes in which every door was opened.",
        ),
        Measure(
            "coins",
            "Coins",
            "higher",
            "Coins found in the corridor: where policies are judged, as a share of its forks; in a "
            "step of training, as a mean number an episode.",
        ),
        Measure(
            "fail_to_pass",
            "Tests flipped",
            "higher",
            "Mean share of the tests that failed before the repair and have to pass, which do.",
        ),
        Measure(
            "pass_to_pass",
            "Tests held",
            "higher",
            "Mean share of the tests that passed before the repair and have to hold, which do.",
        ),
        Measure(
            "success_given_valid",
            "Success given valid",
            "higher",
            "Share of the replies that can be read which solve their task.",
        ),
        Measure(
            "residual",
            "Residual (NashConv)",
            "lower",
            "NashConv of the two strategies in a reply (the sum of both players' best-response "
            "gains, not halved) as a share of the game's payoff range; mean over the replies that "
            "can be read. 0 at an equilibrium; half of it is the exploitability.",
        ),
        Measure(
            "row_residual",
            "Row's residual (one-sided)",
            "lower",
            "What the row player's strategy loses to a best response, below the game's value, as a "
            "share of the payoff range; mean over the replies that can be read.",
        ),
        Measure(
            "score",
            "Score",
            "higher",
            "Share of an instruction that the purchase fulfils, in [0, 1], and 0 without one; mean "
            "over episodes.",
        ),
        Measure(
            "bought",
            "Purchases",
            "higher",
            "Share of episodes that end with a purchase, right or wrong.",
        ),
        Measure(
            "turns",
            "Turns",
            "lower",
            "Mean number of replies in an episode.",
        ),
        Measure(
            "loss",
            "Loss",
            "lower",
            "The minimised objective of the stage: cross-entropy of expert replies in nats a token "
            "(SFT), surrogate plus penalties (SEPO, RL; near 0 on-policy, its level says little).",
        ),
        Measure(
            "reward",
            "Reward",
            "higher",
            "Mean reward of episodes: in games with penalties, under the training opponents; of "
            "tasks what they pay.",
        ),
        Measure(
            "return",
            "Return",
            "higher",
            "Mean return of the step's trajectories.",
        ),
        Measure(
            "entropy",
            "Entropy",
            "",
            "Mean entropy of the next-token distribution at action positions, in nats; 0 means "
            "deterministic replies, which lose where an equilibrium mixes (Kuhn poker) and have "
            "nothing to learn from.",
        ),
        Measure(
            "kl",
            "KL divergence",
            "",
            "Estimated divergence a token, in nats, to the policy named in the key (reference: the "
            "SFT policy; behavior: the sampler, where anything but about 0 is a mismatch).",
        ),
        Measure(
            "clip_fraction",
            "Clip fraction",
            "",
            "Share of ratio units whose surrogate was clipped; 0 when every batch is used once.",
        ),
        Measure(
            "loss_part",
            "Part of the loss",
            "",
            "One term of the loss before its weight (policy: the surrogate).",
        ),
        Measure(
            "gradient_norm",
            "Gradient norm",
            "",
            "Global norm of the gradient before clipping.",
        ),
        Measure(
            "ratio",
            "Probability ratio",
            "",
            "Mean ratio of trained to sampling policy; 1 on-policy.",
        ),
        Measure(
            "unit_log_ratio_abs",
            "Log-ratio of a unit",
            "",
            "Mean absolute log-ratio of trained to sampling policy over what is clipped at once: "
            "tokens, sequences or events. What the clip is wide or narrow against.",
        ),
        Measure(
            "no_spread_fraction",
            "Groups without spread",
            "",
            "Share of groups whose returns are all equal: they carry no learning signal.",
        ),
        Measure(
            "failed_rollouts",
            "Failed episodes",
            "",
            "Episodes that a sandbox failed; no other figure counts them.",
        ),
        Measure(
            "sampled_decisions",
            "Sampled decisions",
            "",
            "Replies sampled in a step; one that several episodes share counts once.",
        ),
        Measure(
            "sampled_tokens",
            "Sampled tokens",
            "",
            "Tokens of these replies.",
        ),
        Measure(
            "resampled_rollouts",
            "Episodes played anew",
            "",
            "Episodes without spread in their group that were played once more.",
        ),
        *(Measure(*row) for row in TEAM_MEASURES),
    )
}

# Other spellings of the keys above, matched on the last part of a flat key.
_PATTERNS: tuple[tuple[str, str], ...] = (
    (r"nashconv", "nash_conv"),
    (r"illegal_mass_max|worst_illegal_mass", "max_illegal_mass"),
    (r"mean_illegal_mass|illegal_mass_mean", "illegal_mass"),
    (r"u|utility_mean|payoff_mean", "utility"),
    (r"e|exploit|exploitability_pool|exploit_advantage", "exploit_pool_advantage"),
    (r"c|collusion_rate|collusion_risk", "collusion"),
    (r"x|externality_cost", "externality"),
    (r"welfare_mean", "welfare"),
    (r"safety_score", "safety"),
    (r"nra", "nra_sepo"),
    (r"nra_(sepo_code|paper)", "nra_sepo"),
    (r"mean_reward|reward_mean|rewards?", "reward"),
    (r"return_mean|mean_return|returns?", "return"),
    (r".*entropy.*", "entropy"),
    (r"kl([_-].*)?|.*_kl", "kl"),
    (r"clip_?frac(tion)?(_.*)?|clipped_fraction", "clip_fraction"),
    (r"grad(ient)?_?norm", "gradient_norm"),
    (r"ratio_mean|mean_ratio", "ratio"),
    (r"total_loss|policy_loss|loss_total", "loss"),
    (r"frac(tion)?_(no|zero)_spread(_groups)?|no_spread", "no_spread_fraction"),
    *TEAM_PATTERNS,
)

# Keys "<family>/<member>" whose members have names of their own.
_FAMILIES = {"loss": "loss_part", "exploit_pool_advantage": "exploiter_gain"}

# Things that went wrong, whatever the unit: a reader looks for zeros.
_COUNTER = re.compile(
    r"(failed|failure|skipped|invalid|illegal_repl|dropped|missing|truncated|forfeit|nonfinite|"
    r"non_finite|incomplete|died|timeout|groups_of_one|fallback|errors?$)"
)


def canonical(key: str) -> str | None:
    """Canonical measure of a flat key ("sepo/eval/nash_conv" -> "nash_conv"), None if unknown."""
    *parents, last = key.lower().split("/")
    if parents and parents[-1] in _FAMILIES:
        return _FAMILIES[parents[-1]]
    if last in MEASURES:
        return last
    for pattern, name in _PATTERNS:
        if re.fullmatch(pattern, last):
            return name
    return None


def describe(key: str) -> Measure:
    """The Measure of a flat key; a key nobody described gets its own name and says so."""
    name = canonical(key)
    if name is None:
        label = key.rsplit("/", 1)[-1].replace("_", " ")
        return Measure(key, label, "", "Logged under this key; not described.")
    return MEASURES[name]


def is_counter(key: str) -> bool:
    """True for keys that count or rate what went wrong (failed, skipped, invalid, ...)."""
    return bool(_COUNTER.search(key.rsplit("/", 1)[-1].lower()))
