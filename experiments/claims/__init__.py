"""Claims of the papers, each with what measures it and the rule of its verdict.

    bench = FAMILIES["sepo"].bench(None, Path("runs"), Path("experiments/results"))
    CLAIMS["sepo/constant_penalty"].measure(bench)

A family, the part of a name before the slash, is a module here with its own `CLAIMS`.
`experiments/reproduce.py` runs them; `sepo_jax.evaluation.claims` has the rule of verdicts.
"""

from .base import NOTES, Claim, Family, Measured, Panel
from .bench import Bench
from .bpo import CLAIMS as BPO_CLAIMS
from .matrix import CLAIMS as MATRIX_CLAIMS
from .matrix_runs import MatrixRuns
from .runs import Runs
from .sepo import CLAIMS as SEPO_CLAIMS
from .srpo import CLAIMS as SRPO_CLAIMS
from .srpo_runs import TeamRuns

FAMILIES = {
    "sepo": Family(
        "Claims of SEPO (arXiv 2605.30854) on policies that are trained here.",
        "Intervals are 95%, Student's t over the seeds; of sampled shares, of the jackknife over "
        "batches at these seeds' warm starts.",
        Bench,
        SEPO_CLAIMS,
    ),
    "matrix": Family(
        "Claims of the matrix-game benchmark (arXiv 2605.10410) on policies that are trained here.",
        "Intervals are 95%, Student's t over the seeds, on games that are the same for all seeds; "
        "of spreads, chi-square's and F's; of a single model's rates, Wilson's and Newcombe's over "
        "games; extremes of what was enumerated have none.",
        MatrixRuns,
        MATRIX_CLAIMS,
    ),
    "bpo": Family(
        "Claims of BPO (arXiv 2607.14171) in processes that can be enumerated, in the corridor and "
        "in its sandboxes.",
        "What is enumerated has no interval. Others are 95%: of ratios of noise, Student's t of "
        "their logarithms over the seeds; of ratios of variances, of the jackknife over batches; "
        "of medians, between order statistics. Noise: variance of a gradient that is scaled to go "
        "as far along the exact one as that does, over its squared norm.",
        Runs,
        BPO_CLAIMS,
    ),
    "srpo": Family(
        "Claims of SRPO (arXiv 2609.08452) on teams that are trained here.",
        "Intervals are 95%, Student's t over the seeds, of differences within a seed where arms "
        "are compared. Avg@16: share of right answers, 16 to each question; Pass@16: share of "
        "questions with one that is right. CV: standard deviation over the mean, of the batches "
        "of a run. First and last: fifths of the batches.",
        TeamRuns,
        SRPO_CLAIMS,
    ),
}
CLAIMS: dict[str, Claim] = {
    name: claim for family in FAMILIES.values() for name, claim in family.claims.items()
}

__all__ = ["CLAIMS", "FAMILIES", "NOTES", "Claim", "Family", "Measured", "Panel"]
