"""Imitation of the exact solver, then reinforcement learning on the residual, on matrix games.

Claim: the residual as the reward improves on imitation at the trained sizes; the rest of the
benchmark shows whether it does at others.

Measured: no more than the noise of three seeds, in 100 steps.

    python experiments/train.py --config=configs/matrix/sft_rl.py
    python experiments/sweep.py --config=configs/matrix/sft_rl.py --write  # three seeds

Paper: matrix-game benchmark, arXiv 2605.10410.
"""

from ml_collections import config_dict

from sepo_jax.training import matrix_configs as shared


def get_config(argument: str | None = None) -> config_dict.ConfigDict:
    """The config; options of the argument are those of `matrix_configs.matrix_config`."""
    config = shared.matrix_config("matrix_sft_rl", argument)
    shared.add_sft(config, argument, steps=1200)
    shared.add_rl(config, argument)
    return config


def result(argument: str | None = None) -> dict:
    """What `experiments/sweep.py` tabulates."""
    title = "imitation of the solver, then reinforcement learning on the residual"
    return shared.matrix_table("matrix_sft_rl", "rl", argument, title)


sweep = shared.seeds(3)
plots = shared.plots
