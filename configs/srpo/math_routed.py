"""A team that does sums: a router names the solvers to ask, or stops; a reviser answers.

Claim: the router learns to ask few solvers: its mean active set ends at 1.638, at 788 tokens a
question after 1,144 (Qwen3-8B, Avg@16 57.7). This is a fresh policy on sums of two and three
numbers, which it can learn in minutes.

    python experiments/train.py --config=configs/srpo/math_routed.py
    python experiments/train.py --config=configs/srpo/math_routed.py:algorithm=dr_mas
    python experiments/train.py --config=configs/srpo/math_routed.py:reduce=token_mean
    python experiments/sweep.py --config=configs/srpo/math_routed.py --write  # three seeds of two

Paper: SRPO, arXiv 2609.08452.
"""

from ml_collections import config_dict

from sepo_jax.training import team_configs as shared


def get_config(argument: str | None = None) -> config_dict.ConfigDict:
    """The config; options of the argument are those of `team_configs.team_config`."""
    return shared.math_config("routed", argument)


def result(argument: str | None = None) -> dict:
    """What `experiments/sweep.py` tabulates."""
    return shared.team_table(get_config(argument))


sweep = shared.sweep_of(3)
plots = shared.plots
