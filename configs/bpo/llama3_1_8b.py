"""BPO on Llama-3.1-8B-Instruct with the horizons of the paper: WebShop, ALFWorld or SWE-bench.

Claim of the paper: 3.6 to 6.1 points more success than GRPO and RLOO over both of its models at
equal compute (this model's own share of that range is not known), half the variance of the
gradient's norm, and the best baseline's success after 0.62 of its updates. None of it was measured
here.

Its horizons: 50 turns of WebShop (500 test instructions), 40 of ALFWorld (134 unseen tasks), 25
tool calls of SWE-bench Verified. From its re-implementations: leave-one-out over siblings, 1 + M
(K - 1) = N episodes a prompt, branch points of highest entropy at least 64 tokens apart, prefix
credit of lambda = 0.95 (`credit=lambda`). Not known of it: K, M, batch, steps, learning rate, KL
weight, temperature, full training or adapters, and whether imitation came first. K = 4, M = 2,
N = 7, learning rate 1e-6, clip 0.2, KL 0.01 (k3) and gamma 1 are this package's choice, without
imitation. With one tree a prompt, as N = 7 makes it, nothing above the first branch point of a
trunk is compared; `--config.rl.rollouts_per_task=14` grows two, and `credit=root` plays half of the
tasks without branch points.

Meant for a slice of 16 chips of 95 GiB, v5p:2x2x4: parameters, moments and gradients of all weights
take 128 GB of it together, and whole copies for generation and of the reference policy 32 GB each
of its first chip. A row holds at most 8,192 tokens, because attention forms its scores of a row
whole; outputs of commands are cut to 400 characters for it. Time: not measured; the last command
compiles for the slice and gives least times and whether it fits.

    python experiments/train.py --config=configs/bpo/llama3_1_8b.py
    python experiments/train.py --config=configs/bpo/llama3_1_8b.py:task=webshop,data=<directory>
    python experiments/train.py --config=configs/bpo/llama3_1_8b.py:task=alfworld,data=official
    python experiments/train.py --config=configs/bpo/llama3_1_8b.py:task=repository,data=<file>
    python experiments/train.py --config=configs/bpo/llama3_1_8b.py:task=alfworld,algorithm=grpo
    python experiments/train.py --config=configs/bpo/llama3_1_8b.py:task=alfworld,credit=lambda
    python experiments/dry_run.py --config=configs/bpo/llama3_1_8b.py

Paper: BPO, arXiv 2607.14171.
"""

from ml_collections import config_dict

from sepo_jax.training import paper_configs as shared

MODEL = "llama-3.1-8b"


def get_config(argument: str | None = None) -> config_dict.ConfigDict:
    """The config; options of the argument are those of `paper_configs.model_config`."""
    return shared.model_config("llama3_1_8b", MODEL, argument)


def result(argument: str | None = None) -> dict:
    """What `experiments/sweep.py` tabulates."""
    return shared.model_table("llama3_1_8b", MODEL, argument)


sweep = shared.add_seeds


def plots() -> list[str]:
    """Metrics that a run is read from."""
    return ["reward", "gradient_norm", "trees/branch_entropy"]
