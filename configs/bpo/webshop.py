"""Branching rollouts in the web shop, beside independent episodes.

Claim: +3.6 to +6.1 points of success over GRPO and RLOO at matched compute (Qwen2.5-7B and
Llama-3.1-8B on the official shop; `configs/bpo/qwen2_5_7b.py`). This is a fresh policy in the
bundled shop.

    python experiments/train.py --config=configs/bpo/webshop.py
    python experiments/train.py --config=configs/bpo/webshop.py:algorithm=grpo
    python experiments/sweep.py --config=configs/bpo/webshop.py --write    # three seeds of each

Paper: BPO, arXiv 2607.14171.
"""

from ml_collections import config_dict

from sepo_jax.training import branching_configs as shared


def get_config(argument: str | None = None) -> config_dict.ConfigDict:
    """The config; options of the argument are those of `branching_configs.branching_config`."""
    # A small tokenizer writes a word otherwise at the beginning of brackets than after a blank.
    options = {"max_turns": 8, "title_words": 6, "results_per_page": 4, "brackets": True}
    if shared.parse_branching_options(argument)["policy"] == "fresh":
        # A fresh policy learns which code goes with which goal by heart, and does not learn in
        # minutes to read codes off a page: few products, and the goals that it was trained on.
        options |= {"products": 60, "evaluated": "train"}
    config = shared.branching_config("webshop", argument, options)
    shared.add_sft(config, argument, steps=240, batch_size=8, decisions=5)
    config.evaluation.tasks = 60
    shared.add_rl(config, argument, steps=20, tasks=3, tasks_of_trees=4, learning_rate=5e-4)
    config.rollout.capacity, config.rollout.row_length = 640, 640
    config.rollout.max_action_tokens = 24
    config.policy.individual_digits = config.policy.source == "fresh"
    return config


def result(argument: str | None = None) -> dict:
    """What `experiments/sweep.py` tabulates."""
    figures = {"score": "score", "valid": "valid"}
    baselines = {"random": "random clicks", "rule": "scripted rule", "oracle": "oracle"}
    return shared.branching_table("the web shop", figures, baselines, get_config(argument))


sweep = shared.sweep_of(3)
plots = shared.plots
