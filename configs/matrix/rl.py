"""Reinforcement learning on the equilibrium residual of small matrix games, judged on larger ones.

Imitation of random answers comes first: it teaches the form of a reply and nothing of play, since a
policy whose replies nobody can read is never rewarded.

Claim: exploitability as the reward teaches play of unseen sizes too, but how much differs from seed
to seed more than after imitation of the solver.

Measured: every seed ends at answers that ignore the payoffs: uniform play of all actions or, at
size 3, of two of them.

    python experiments/train.py --config=configs/matrix/rl.py
    python experiments/train.py --config=configs/matrix/rl.py:algorithm=grpo
    python experiments/sweep.py --config=configs/matrix/rl.py --write      # five seeds

Paper: matrix-game benchmark, arXiv 2605.10410 (37% on average at unseen sizes 5 to 7).
"""

from ml_collections import config_dict

from sepo_jax.training import matrix_configs as shared


def get_config(argument: str | None = None) -> config_dict.ConfigDict:
    """The config; options of the argument are those of `matrix_configs.matrix_config`."""
    config = shared.matrix_config("matrix_rl", argument, expert="random")
    shared.add_sft(config, argument, steps=400)
    shared.add_rl(config, argument, steps=150)
    return config


def result(argument: str | None = None) -> dict:
    """What `experiments/sweep.py` tabulates."""
    title = "reinforcement learning on the residual after imitation of random answers"
    return shared.matrix_table("matrix_rl", "rl", argument, title)


sweep = shared.seeds(5)
plots = shared.plots
