"""Claims of BPO (arXiv 2607.14171): what its estimates come to on average, how they vary, what
chooses branch points, what a snapshot costs, and what training gains."""

from .base import Claim
from .bpo_exact import estimator_bias, local_unbiasedness
from .bpo_gradients import gradient_variance, sandbox_gradient_variance
from .bpo_runs import success, updates_to_match
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
    "bpo/sandbox_gradient_variance": Claim(
        "Gradient-norm variance is halved in WebShop, ALFWorld and repositories",
        "at most 0.5 of GRPO's and RLOO's",
        sandbox_gradient_variance,
    ),
    "bpo/success": Claim(
        "Success rises above that of GRPO and RLOO at matched compute",
        "+3.6 to +6.1 points (Qwen2.5-7B, Llama-3.1-8B)",
        success,
    ),
    "bpo/updates_to_match": Claim(
        "The best baseline is matched with fewer updates",
        "0.62 of them",
        updates_to_match,
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
