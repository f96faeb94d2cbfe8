"""SEPO on split bargaining: four rounds of simultaneous demands on a pie of 10.

Claim: the safety score after SEPO is above that of imitation and of the untrained policy.

    python experiments/train.py --config=configs/sepo/negotiation_v1.py
    python experiments/train.py --config=configs/sepo/negotiation_v1.py:policy=smollm2
    python experiments/train.py --config=configs/sepo/negotiation_v1.py:policy=gemma-4-e4b-it,paper
    python experiments/sweep.py --config=configs/sepo/negotiation_v1.py --write     # three seeds

Paper: SEPO, arXiv 2605.30854; its weights in training are lambda_e = 3, lambda_c = 2,
lambda_x = 1.8.
"""

from ml_collections import config_dict

from sepo_jax.training import game_configs as shared

WEIGHTS = (3.0, 2.0, 1.8)  # lambda_e, lambda_c, lambda_x


def get_config(argument: str | None = None) -> config_dict.ConfigDict:
    """The config; options of the argument are those of `game_configs.game_config`."""
    return shared.game_config(["negotiation_v1"], WEIGHTS, argument)


def result(argument: str | None = None) -> dict:
    """What `experiments/sweep.py` tabulates."""
    return shared.result_table(["negotiation_v1"], WEIGHTS, argument)


sweep = shared.add_seeds
plots = shared.plots
