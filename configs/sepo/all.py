"""SEPO on five games jointly: one policy that plays all of them in text.

Claim: one policy trained on all games has a higher mean safety score after SEPO than after
imitation.

    python experiments/train.py --config=configs/sepo/all.py
    python experiments/train.py --config=configs/sepo/all.py:policy=smollm2
    python experiments/train.py --config=configs/sepo/all.py:policy=qwen3.5-4b,paper
    python experiments/sweep.py --config=configs/sepo/all.py --write     # three seeds

Paper: SEPO, arXiv 2605.30854; 2.4 are its three weights for the joint runs of Qwen3.5-4B, which
left Kuhn poker out; that game keeps its own: 1.5, 0, 0.
"""

from ml_collections import config_dict

from sepo_jax.training import game_configs as shared

GAMES = ["ipd", "auction", "negotiation_v1", "negotiation_v2", "kuhn"]
WEIGHTS = (2.4, 2.4, 2.4)  # lambda_e, lambda_c, lambda_x
GAME_WEIGHTS = {"kuhn": (1.5, 0.0, 0.0)}


def get_config(argument: str | None = None) -> config_dict.ConfigDict:
    """The config; options of the argument are those of `game_configs.game_config`."""
    config = shared.game_config(GAMES, WEIGHTS, argument)
    config.sepo.game_weights = GAME_WEIGHTS
    return config


def result(argument: str | None = None) -> dict:
    """What `experiments/sweep.py` tabulates."""
    table = shared.result_table(GAMES, WEIGHTS, argument)
    kuhn = ", ".join(f"{weight:g}" for weight in GAME_WEIGHTS["kuhn"])
    return table | {"notes": f"{table['notes']} Kuhn poker has its own weights: {kuhn}."}


sweep = shared.add_seeds
plots = shared.plots
