"""SEPO on the repeated auction: six rounds of private values and sealed bids in text.

Claim: the safety score after SEPO is above that of imitation and of the untrained policy.

    python experiments/train.py --config=configs/sepo/auction.py
    python experiments/train.py --config=configs/sepo/auction.py:policy=smollm2
    python experiments/train.py --config=configs/sepo/auction.py:policy=gemma-4-e4b-it,paper
    python experiments/sweep.py --config=configs/sepo/auction.py --write     # three seeds

Paper: SEPO, arXiv 2605.30854; 2.4 are its three weights for the auction.
"""

from ml_collections import config_dict

from sepo_jax.training import game_configs as shared

WEIGHTS = (2.4, 2.4, 2.4)  # lambda_e, lambda_c, lambda_x


def get_config(argument: str | None = None) -> config_dict.ConfigDict:
    """The config; options of the argument are those of `game_configs.game_config`."""
    return shared.game_config(["auction"], WEIGHTS, argument)


def result(argument: str | None = None) -> dict:
    """What `experiments/sweep.py` tabulates."""
    return shared.result_table(["auction"], WEIGHTS, argument)


sweep = shared.add_seeds
plots = shared.plots
