"""Branching rollouts on household tasks of ALFWorld, beside independent episodes.

Claim: +3.6 to +6.1 points of success over GRPO and RLOO at matched compute (Qwen2.5-7B and
Llama-3.1-8B on the official games; `configs/bpo/qwen2_5_7b.py`). This is a fresh policy in made
games. It needs the extra `alfworld`.

    python experiments/train.py --config=configs/bpo/alfworld.py
    python experiments/train.py --config=configs/bpo/alfworld.py:algorithm=grpo
    python experiments/sweep.py --config=configs/bpo/alfworld.py --write    # three algorithms

Paper: BPO, arXiv 2607.14171.
"""

from ml_collections import config_dict

from sepo_jax.training import branching_configs as shared


def get_config(argument: str | None = None) -> config_dict.ConfigDict:
    """The config; options of the argument are those of `branching_configs.branching_config`."""
    options = {}
    if shared.parse_branching_options(argument)["policy"] == "fresh":
        # Two of the six types in small rooms: what a policy of this size learns in minutes.
        options = {"task_types": ("pick_and_place_simple", "look_at_obj_in_light")}
        options |= {"receptacles": 5, "objects": 2, "max_turns": 12}
    config = shared.branching_config("alfworld", argument, options)
    shared.add_sft(config, argument, steps=500, batch_size=8, decisions=7, passes=2)
    config.evaluation.tasks = 40
    shared.add_rl(config, argument, steps=16, tasks=3, tasks_of_trees=4, learning_rate=5e-4)
    config.rollout.capacity, config.rollout.row_length = 768, 768
    config.rollout.max_action_tokens = 24
    return config


def result(argument: str | None = None) -> dict:
    """What `experiments/sweep.py` tabulates."""
    figures = {"valid": "valid", "turns": "turns"}
    baselines = {"random": "random commands", "search": "scripted search", "oracle": "oracle"}
    return shared.branching_table("household tasks", figures, baselines, get_config(argument))


sweep = shared.sweep_of(1)
plots = shared.plots
