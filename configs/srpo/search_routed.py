"""A team that looks facts up: a router names the workers to search, a verifier, an answerer.

Claim: the router learns the smallest set of workers that suffices, and SRPO ends in more right
answers than Dr. MAS (Avg@16 40.1 against 36.9 for Qwen2.5-3B; `configs/srpo/qwen2_5_3b.py`). This
is a fresh policy in a world of thirty people, on questions that need one document, two in turn, or
two walks at a time: what it can learn in minutes.

    python experiments/train.py --config=configs/srpo/search_routed.py
    python experiments/train.py --config=configs/srpo/search_routed.py:algorithm=dr_mas
    python experiments/train.py --config=configs/srpo/search_routed.py:workers=5,ratio_scale=sum
    python experiments/sweep.py --config=configs/srpo/search_routed.py --write  # three seeds of two

Paper: SRPO, arXiv 2609.08452.
"""

from ml_collections import config_dict

from sepo_jax.training import team_configs as shared


def get_config(argument: str | None = None) -> config_dict.ConfigDict:
    """The config; options of the argument are those of `team_configs.team_config`."""
    return shared.search_config("routed", argument)


def result(argument: str | None = None) -> dict:
    """What `experiments/sweep.py` tabulates."""
    return shared.team_table(get_config(argument))


sweep = shared.sweep_of(3)
plots = shared.plots
