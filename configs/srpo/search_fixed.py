"""A team that looks facts up: workers search in parallel, a verifier, an answerer.

Claim: SRPO ends in more right answers than Dr. MAS (Avg@16 40.1 against 36.9 for Qwen2.5-3B, 45.6
against 43.8 for Qwen2.5-7B; `configs/srpo/qwen2_5_3b.py`), and the set ratio over the square root
of five members in more than one member, the sum or the mean. This is a fresh policy in a world of
thirty people, on questions that need one document or two in turn: what it can learn in minutes.

    python experiments/train.py --config=configs/srpo/search_fixed.py
    python experiments/train.py --config=configs/srpo/search_fixed.py:algorithm=dr_mas
    python experiments/train.py --config=configs/srpo/search_fixed.py:workers=5,ratio_scale=sum
    python experiments/sweep.py --config=configs/srpo/search_fixed.py --write  # three seeds of two

Paper: SRPO, arXiv 2609.08452.
"""

from ml_collections import config_dict

from sepo_jax.training import team_configs as shared


def get_config(argument: str | None = None) -> config_dict.ConfigDict:
    """The config; options of the argument are those of `team_configs.team_config`."""
    return shared.search_config("fixed", argument)


def result(argument: str | None = None) -> dict:
    """What `experiments/sweep.py` tabulates."""
    return shared.team_table(get_config(argument))


sweep = shared.sweep_of(3)
plots = shared.plots
