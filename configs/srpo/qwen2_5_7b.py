"""SRPO on Qwen2.5-7B-Instruct: a team that answers questions by searching.

Claim of the paper: Avg@16 45.6 and Pass@16 61.6, against 43.8 and 58.3 of the strongest Dr. MAS row
(NQ, TriviaQA, PopQA, HotpotQA, 2WikiMultiHopQA, MuSiQue and Bamboogle after HotpotQA). None of it
was measured here. `paper_team_configs` says where its numbers come from.

`data=` names a directory with train.jsonl to train on, corpus.jsonl to search and other files to be
judged by; without it questions are generated. Every role has an adapter of its own beside the
frozen parameters; `adapters=shared` trains one that all share, `adapters=none` all parameters.
`workflow=` is one of routed, mixed, fixed and verified.

Meant for a slice of 16 chips of 95 GiB, v5p:2x2x4: where all parameters are trained, they, their
moments and gradients take 122 GB of it together. Time: not measured; the last command compiles for
the slice and gives least times and whether it fits, for as many rows as usual episodes fill.

    python experiments/train.py --config=configs/srpo/qwen2_5_7b.py
    python experiments/train.py --config=configs/srpo/qwen2_5_7b.py:data=<directory>
    python experiments/train.py --config=configs/srpo/qwen2_5_7b.py:adapters=none
    python experiments/train.py --config=configs/srpo/qwen2_5_7b.py:algorithm=dr_mas
    python experiments/train.py --config=configs/srpo/qwen2_5_7b.py:workers=5,ratio_scale=mean
    python experiments/dry_run.py --config=configs/srpo/qwen2_5_7b.py --rows=3072

Paper: SRPO, arXiv 2609.08452.
"""

from ml_collections import config_dict

from sepo_jax.training import paper_team_configs as shared

MODEL, DOMAIN = "qwen2.5-7b", "search"


def get_config(argument: str | None = None) -> config_dict.ConfigDict:
    """The config; options of the argument are those of `paper_team_configs.team_config`."""
    return shared.team_config("qwen2_5_7b", MODEL, DOMAIN, argument)


def result(argument: str | None = None) -> dict:
    """What `experiments/sweep.py` tabulates."""
    return shared.team_table("qwen2_5_7b", MODEL, DOMAIN, argument)


sweep = shared.add_seeds


def plots() -> list[str]:
    """Metrics that a run is read from."""
    return ["reward", "gradient_norm", "team/active_set"]
