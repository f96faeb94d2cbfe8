"""Imitation of the exact solver on small matrix games, judged on larger ones.

Claim: trained on dense anonymous games of sizes 2 and 3 alone, the policy answers with a
distribution at least 95% of the time at these sizes and succeeds at four of five 2x2 games, where
the best pure profile succeeds at two of three; the rest of the benchmark shows what transfers.

Measured: no reply at any other size is valid.

    python experiments/train.py --config=configs/matrix/sft.py
    python experiments/train.py --config=configs/matrix/sft.py:policy=smollm2
    python experiments/sweep.py --config=configs/matrix/sft.py --write     # five seeds

Paper: matrix-game benchmark, arXiv 2605.10410 (imitation: 2% to 61% at unseen sizes 5 to 7).
"""

from ml_collections import config_dict

from sepo_jax.training import matrix_configs as shared


def get_config(argument: str | None = None) -> config_dict.ConfigDict:
    """The config; options of the argument are those of `matrix_configs.matrix_config`."""
    config = shared.matrix_config("matrix_sft", argument)
    shared.add_sft(config, argument)
    return config


def result(argument: str | None = None) -> dict:
    """What `experiments/sweep.py` tabulates."""
    return shared.matrix_table("matrix_sft", "sft", argument, "imitation of the solver")


sweep = shared.seeds(5)
plots = shared.plots
