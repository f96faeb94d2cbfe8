"""Branching rollouts in the corridor of doors and forks, beside independent episodes.

Claim: where what comes before a decision explains most of the return's variance, siblings of a
branch point are compared with less noise: BPO learns more from as many sampled decisions.

    python experiments/train.py --config=configs/bpo/corridor.py
    python experiments/train.py --config=configs/bpo/corridor.py:algorithm=grpo
    python experiments/sweep.py --config=configs/bpo/corridor.py --write  # five seeds of each

Paper: BPO, arXiv 2607.14171.
"""

from ml_collections import config_dict

from sepo_jax.training import branching_configs as shared

_LENGTH = 8


def get_config(argument: str | None = None) -> config_dict.ConfigDict:
    """The config; options of the argument are those of `branching_configs.branching_config`."""
    options = {"length": _LENGTH, "early": 2, "keys": 3, "expert_skill": 0.3}
    config = shared.branching_config("corridor", argument, options)
    shared.add_sft(config, argument, steps=120, batch_size=16, decisions=_LENGTH)
    shared.add_rl(config, argument, steps=30, tasks=4, tasks_of_trees=5)
    config.rollout.capacity, config.rollout.row_length = 384, 384
    config.rollout.max_action_tokens = 6
    return config


def result(argument: str | None = None) -> dict:
    """What `experiments/sweep.py` tabulates."""
    figures = {"return": "return", "coins": "coins"}
    baselines = {"uniform": "uniform play", "oracle": "oracle"}
    return shared.branching_table("the corridor", figures, baselines, get_config(argument))


sweep = shared.sweep_of(5)
plots = shared.plots
