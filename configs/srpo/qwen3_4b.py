"""SRPO on Qwen3-4B: a team that solves problems of mathematics.

Claim of the paper: Avg@16 61.3 and Pass@16 77.9, against 61.1 and 77.7 of the strongest Dr. MAS row
(AIME 2024 and 2025, AMC 2023, MATH-500, Minerva and OlympiadBench after DAPO-Math). None of it was
measured here. `paper_team_configs` says where its numbers come from.

`data=` names a directory with train.jsonl to train on and other files to be judged by; without it
questions are generated. Every role has an adapter of its own beside the frozen parameters;
`adapters=shared` trains one that all share, `adapters=none` all parameters. `workflow=` is one of
fixed, mixed, routed and single.

Meant for a slice of 16 chips of 95 GiB, v5p:2x2x4: where all parameters are trained, they, their
moments and gradients take 64 GB of it together. Time: not measured; the last command compiles for
the slice and gives least times and whether it fits.

    python experiments/train.py --config=configs/srpo/qwen3_4b.py
    python experiments/train.py --config=configs/srpo/qwen3_4b.py:data=<directory>
    python experiments/train.py --config=configs/srpo/qwen3_4b.py:adapters=none
    python experiments/train.py --config=configs/srpo/qwen3_4b.py:algorithm=dr_mas
    python experiments/train.py --config=configs/srpo/qwen3_4b.py:solvers=5,ratio_scale=mean
    python experiments/dry_run.py --config=configs/srpo/qwen3_4b.py

Paper: SRPO, arXiv 2609.08452.
"""

from ml_collections import config_dict

from sepo_jax.training import paper_team_configs as shared

MODEL, DOMAIN = "qwen3-4b", "math"


def get_config(argument: str | None = None) -> config_dict.ConfigDict:
    """The config; options of the argument are those of `paper_team_configs.team_config`."""
    return shared.team_config("qwen3_4b", MODEL, DOMAIN, argument)


def result(argument: str | None = None) -> dict:
    """What `experiments/sweep.py` tabulates."""
    return shared.team_table("qwen3_4b", MODEL, DOMAIN, argument)


sweep = shared.add_seeds


def plots() -> list[str]:
    """Metrics that a run is read from."""
    return ["reward", "gradient_norm", "team/active_set"]
