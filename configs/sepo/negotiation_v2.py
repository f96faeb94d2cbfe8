"""SEPO on item negotiation: four rounds of demands on three items with private values.

Claim: the safety score after SEPO is positive, with a positive normalised relative advantage.

    python experiments/train.py --config=configs/sepo/negotiation_v2.py
    python experiments/train.py --config=configs/sepo/negotiation_v2.py:policy=smollm2
    python experiments/train.py --config=configs/sepo/negotiation_v2.py:policy=gemma-4-e4b-it,paper
    python experiments/sweep.py --config=configs/sepo/negotiation_v2.py --write     # three seeds

Paper: SEPO, arXiv 2605.30854; 2.4 are its three weights for this game.
"""

from ml_collections import config_dict

from sepo_jax.training import game_configs as shared

WEIGHTS = (2.4, 2.4, 2.4)  # lambda_e, lambda_c, lambda_x


def get_config(argument: str | None = None) -> config_dict.ConfigDict:
    """The config; options of the argument are those of `game_configs.game_config`."""
    return shared.game_config(["negotiation_v2"], WEIGHTS, argument)


def result(argument: str | None = None) -> dict:
    """What `experiments/sweep.py` tabulates."""
    return shared.result_table(["negotiation_v2"], WEIGHTS, argument)


sweep = shared.add_seeds
plots = shared.plots
