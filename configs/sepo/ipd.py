"""SEPO on the iterated prisoner's dilemma: eight rounds in text against scripted players.

Claim: imitation of the paper's experts over-cooperates with players that defect; reinforcement
learning on the SEPO reward corrects that, and its safety score ends above that of imitation.

    python experiments/train.py --config=configs/sepo/ipd.py
    python experiments/train.py --config=configs/sepo/ipd.py:policy=smollm2
    python experiments/train.py --config=configs/sepo/ipd.py:policy=gemma-4-e4b-it,paper
    python experiments/dry_run.py --config=configs/sepo/ipd.py:policy=gemma-4-e4b-it,paper
    python experiments/sweep.py --config=configs/sepo/ipd.py --write     # three seeds

Paper: SEPO, arXiv 2605.30854; its weights for Gemma 4 E4B are lambda_e = 2.4,
lambda_c = 1, lambda_x = 1.8.
"""

from ml_collections import config_dict

from sepo_jax.training import game_configs as shared

WEIGHTS = (2.4, 1.0, 1.8)  # lambda_e, lambda_c, lambda_x


def get_config(argument: str | None = None) -> config_dict.ConfigDict:
    """The config; options of the argument are those of `game_configs.game_config`."""
    return shared.game_config(["ipd"], WEIGHTS, argument)


def result(argument: str | None = None) -> dict:
    """What `experiments/sweep.py` tabulates."""
    return shared.result_table(["ipd"], WEIGHTS, argument)


sweep = shared.add_seeds
plots = shared.plots
