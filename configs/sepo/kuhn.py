"""SEPO on text Kuhn poker, judged by exact NashConv.

Claim: after supervised fine-tuning on the paper's expert mixture, reinforcement learning on the
SEPO reward, with the exact best response in the exploiter pool, brings the NashConv of the policy's
action table below 0.15 (uniform play: 0.9167; equilibrium: 0) while fewer than 1% of replies are
illegal. Expected: 0.13 to 0.18 after SFT, 0.01 to 0.02 after SEPO; about 2 minutes on two
cores.

    python experiments/train.py --config=configs/sepo/kuhn.py
    python experiments/train.py --config=configs/sepo/kuhn.py --config.seed=1
    python experiments/train.py --config=configs/sepo/kuhn.py:runlocal          # a smoke run
    python experiments/train.py --config=configs/sepo/kuhn.py:exploiters=paper  # the fixed pool

With a real model, by adapters of rank 16: at least 95% of replies are legal and the SEPO objective
is above that of the untrained model, within 15 minutes on two cores.

    python experiments/get_smollm2.py                                  # once: models/smollm2-135m
    python experiments/train.py --config=configs/sepo/kuhn.py:policy=smollm2
    python experiments/train.py --config=configs/sepo/kuhn.py:policy=qwen3-4b     # needs a network
    python experiments/train.py --config=configs/sepo/kuhn.py:policy=<directory, .gguf or hub id>

Paper: SEPO, arXiv 2605.30854; lambda_e = 1.5 and lambda_x = 0 are its weights for Kuhn poker. The
collusion measure does not apply to a two-player poker (lambda_c = 0).
"""

from ml_collections import config_dict

from sepo_jax.names import check_option
from sepo_jax.training import game_configs as shared

EXPLOITERS = {"best_response": ("best_response",), "paper": ()}
RESULT_NOTES = (
    "Safety is J over sampled hands against the fixed pools, {episodes} hands an opponent. Minutes "
    "are of the whole run, compilation included."
)


def parse(argument: str | None) -> dict:
    """The argument's options by name."""
    options = shared.parse_options(
        argument, exploiters="best_response", credit="credited", algorithm="rloo"
    )
    check_option("exploiters", options["exploiters"], EXPLOITERS)
    return options


def get_config(argument: str | None = None) -> config_dict.ConfigDict:
    """The config.

    Args:
      argument: comma-separated `policy=fresh|smollm2|<model name, hub id, directory or .gguf>`,
        `exploiters=best_response|paper`, `credit=credited|per_rollout|shared`,
        `algorithm=<row of the table>`, `runlocal`.
    """
    options = parse(argument)
    config = shared.new_config("sepo_kuhn", options["policy"])
    config.name += shared.variant(
        options, exploiters="best_response", credit="credited", algorithm="rloo"
    )
    config.sft.steps = 400
    config.sft.learning_rate = 3e-3
    config.sft.final_learning_rate = 3e-4
    config.sepo.steps = 100
    config.sepo.learning_rate = 1e-3
    config.algorithm.name = options["algorithm"]
    config.sepo.credit = options["credit"]
    config.sepo.exploiter_pool = EXPLOITERS[options["exploiters"]]
    config.rollout.capacity = 128  # prompts of a tokenizer trained on this domain have up to 113
    if options["policy"] != "fresh":
        _use_adapters(config, options["policy"])
    if options["runlocal"]:
        config.sft.steps = 20 if options["policy"] == "fresh" else 4
        config.sft.num_decisions = 400
        config.sepo.steps = 4 if options["policy"] == "fresh" else 2
        config.sepo.groups_per_opponent = 2
        config.evaluation.every = 2
        config.evaluation.match_episodes = 20
        config.checkpoint.every = 2
    return config


def _use_adapters(config: config_dict.ConfigDict, policy: str) -> None:
    """A policy that knows language: few steps, adapters alone trained."""
    shared.use_adapters(config, policy)
    config.sft.steps = 40
    config.sft.learning_rate = 5e-4
    config.sft.final_learning_rate = 5e-5
    config.sft.warmup_steps = 4
    config.sft.num_decisions = 1200
    config.sepo.steps = 20
    config.sepo.learning_rate = 3e-4
    config.sepo.groups_per_opponent = 4
    config.sepo.rollouts_per_group = 6
    config.rollout.capacity = (
        160 if policy in shared.SOURCES else 256
    )  # SmolLM2's prompts: up to 133
    config.rollout.row_length = 1024  # a step's replies below the shared rules, in one row
    config.evaluation.every = 10
    config.evaluation.match_episodes = 100
    config.checkpoint.every = 10


def result(argument: str | None = None) -> dict:
    """Title, columns (keys of `summary.json` and their headings) and notes of the results table."""
    options = parse(argument)
    episodes = get_config(argument).evaluation.match_episodes
    table = {"notes": RESULT_NOTES.format(episodes=episodes)}
    if options["policy"] == "fresh":
        table["title"] = (
            "Exact NashConv of a fresh policy (two layers of width 64) that plays single hands "
            "through text; uniform play 0.9167, equilibrium 0."
        )
        table["columns"] = {
            "untrained/nash_conv": "NashConv untrained",
            "sft/nash_conv": "NashConv SFT",
            "sepo/nash_conv": "NashConv SEPO",
            "sepo/illegal_mass": "illegal mass SEPO",
            "untrained/safety": "safety base",
            "sft/safety": "safety SFT",
            "sepo/safety": "safety SEPO",
        }
        return table
    table["title"] = (
        f"Adapters of rank 16 on `{options['policy']}`, which plays single hands of Kuhn poker "
        "through text; untrained is the model as it was published."
    )
    stages = {"untrained": "untrained", "sft": "SFT", "sepo": "SEPO"}
    table["columns"] = {
        f"{stage}/{figure}": f"{name} {heading}"
        for figure, name in (
            ("legal_rate", "legal replies"),
            ("safety", "safety"),
            ("nash_conv", "NashConv"),
        )
        for stage, heading in stages.items()
    }
    return table


sweep = shared.add_seeds


def plots() -> list[str]:
    """Metrics that the claim is read from."""
    return ["exact/nash_conv", "exact/illegal_mass", "utility", "safety"]
