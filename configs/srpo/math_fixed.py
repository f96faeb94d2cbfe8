"""A team that does sums: three solvers in parallel, a verifier, a selector, a reviser.

Claim: one ratio and one clip for all that a transition consumes end in as many right answers as
Dr. MAS, or more (Avg@16 61.3 against 61.1 for Qwen3-4B, 62.5 against 62.3 for Qwen3-8B;
`configs/srpo/qwen3_4b.py`). This is a fresh policy on sums of two and three numbers, which it can
learn in minutes.

    python experiments/train.py --config=configs/srpo/math_fixed.py
    python experiments/train.py --config=configs/srpo/math_fixed.py:algorithm=dr_mas
    python experiments/train.py --config=configs/srpo/math_fixed.py:reduce=token_mean
    python experiments/sweep.py --config=configs/srpo/math_fixed.py --write  # three seeds of two

Paper: SRPO, arXiv 2609.08452.
"""

from ml_collections import config_dict

from sepo_jax.training import team_configs as shared


def get_config(argument: str | None = None) -> config_dict.ConfigDict:
    """The config; options of the argument are those of `team_configs.team_config`."""
    return shared.math_config("fixed", argument)


def result(argument: str | None = None) -> dict:
    """What `experiments/sweep.py` tabulates."""
    return shared.team_table(get_config(argument))


sweep = shared.sweep_of(3)
plots = shared.plots
