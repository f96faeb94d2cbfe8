"""SEPO on text Kuhn poker, judged by exact NashConv.

Claim: after supervised fine-tuning on the paper's expert mixture, reinforcement learning on the
SEPO reward, with the exact best response in the exploiter pool, brings the NashConv of the policy's
action table below 0.15 (uniform play: 0.9167; equilibrium: 0) while fewer than 1% of replies are
illegal. Expected: 0.14 to 0.18 after SFT, 0.01 to 0.02 after SEPO; about 2 minutes on two
cores.

    python experiments/train.py --config=configs/sepo/kuhn.py
    python experiments/train.py --config=configs/sepo/kuhn.py --config.seed=1
    python experiments/train.py --config=configs/sepo/kuhn.py:runlocal          # a smoke run
    python experiments/train.py --config=configs/sepo/kuhn.py:exploiters=paper  # the fixed pool
    python experiments/train.py --config=configs/sepo/kuhn.py:policy=<Hugging Face directory>

Paper: SEPO, arXiv 2605.30854; lambda_e = 1.5 and lambda_x = 0 are its weights for Kuhn poker. The
collusion measure does not apply to a two-player poker (lambda_c = 0).
"""

from ml_collections import config_dict

from sepo_jax.names import check_option
from sepo_jax.training import Settings, to_dict
from sepo_jax.training.command_line import parse_argument

RESULT_TITLE = (
    "Exact NashConv of a fresh policy (two layers of width 64) that plays single hands through "
    "text; uniform play 0.9167, equilibrium 0."
)
RESULT_COLUMNS = {
    "untrained/nash_conv": "NashConv untrained",
    "sft/nash_conv": "NashConv SFT",
    "sepo/nash_conv": "NashConv SEPO",
    "sepo/illegal_mass": "illegal mass SEPO",
    "sft/safety": "safety SFT",
    "sepo/safety": "safety SEPO",
}
RESULT_NOTES = (
    "Safety is J over sampled hands against the fixed pools, 200 hands an opponent. Minutes are of "
    "the whole run, compilation included in the first."
)
EXPLOITERS = {"best_response": ("best_response",), "paper": ()}


def get_config(argument: str | None = None) -> config_dict.ConfigDict:
    """The config.

    Args:
      argument: comma-separated `policy=fresh|<Hugging Face directory>`, `exploiters=best_response|
        paper`, `credit=credited|per_rollout|shared`, `algorithm=<row of the table>`, `runlocal`.
    """
    options = parse_argument(
        argument,
        policy="fresh",
        exploiters="best_response",
        credit="credited",
        algorithm="rloo",
        runlocal=False,
    )
    config = config_dict.ConfigDict(to_dict(Settings()), convert_dict=True)
    config.name = "sepo_kuhn"
    config.policy.source = options["policy"]
    config.sft.steps = 400
    config.sft.learning_rate = 3e-3
    config.sft.final_learning_rate = 3e-4
    config.sepo.steps = 100
    config.sepo.learning_rate = 1e-3
    config.algorithm.name = options["algorithm"]
    config.sepo.credit = options["credit"]
    check_option("exploiters", options["exploiters"], EXPLOITERS)
    config.sepo.exploiter_pool = EXPLOITERS[options["exploiters"]]
    if options["runlocal"]:
        config.sft.steps = 20
        config.sft.num_decisions = 400
        config.sepo.steps = 4
        config.sepo.groups_per_opponent = 2
        config.evaluation.every = 2
        config.evaluation.match_episodes = 20
        config.checkpoint.every = 2
    return config


def sweep(add) -> None:
    """Three seeds of the claim; `add(**overrides)` collects the runs."""
    for seed in (0, 1, 2):
        add(seed=seed)


def plots() -> list[str]:
    """Metrics that the claim is read from."""
    return ["exact/nash_conv", "exact/illegal_mass", "utility", "safety"]
