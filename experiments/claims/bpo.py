"""Claims of BPO (arXiv 2607.14171) that need no trained policy: what its estimates come to on
average, how they vary, what chooses branch points, and what a snapshot costs."""

from .base import Claim
from .bpo_exact import estimator_bias, local_unbiasedness
from .bpo_gradients import gradient_variance
from .bpo_selectors import selectors
from .bpo_snapshots import snapshot_cost
from .bpo_variance import variance_condition

CLAIMS = {
    "bpo/local_unbiasedness": Claim(
        "Siblings compared at a branch point give an unbiased gradient there (tree credit, of this "
        "package, gives the whole)",
        "theorem 4.1: unbiased; no number",
        local_unbiasedness,
    ),
    "bpo/estimator_bias": Claim(
        "The gradient estimate of a tree is unbiased",
        "unbiased; whole gradient, no number",
        estimator_bias,
    ),
    "bpo/variance_condition": Claim(
        "The variance is strictly below that of independent samples, by what the prefix explains",
        "theorem 4.3: at most K / (K - 1) E[Var(R | s_t)], strictly below GRPO's for t > 0",
        variance_condition,
    ),
    "bpo/gradient_variance": Claim(
        "Gradient-norm variance is halved at matched compute",
        "at most 0.5 of GRPO's and RLOO's",
        gradient_variance,
    ),
    "bpo/selectors": Claim(
        "Branch points of highest entropy are better than uniform ones and those of lowest entropy",
        "ablation named; no number found",
        selectors,
    ),
    "bpo/snapshot_cost": Claim(
        "A snapshot and its restore cost little",
        "42 ms WebShop, 138 ms ALFWorld, 1.9 s SWE-bench",
        snapshot_cost,
    ),
}
