"""The configs of SEPO's games: their options, and the authors' numbers."""

from pathlib import Path

import pytest

from sepo_jax.training import read_settings
from sepo_jax.training.command_line import load_config, load_module

PLACE = str(Path(__file__).resolve().parents[2] / "configs" / "sepo" / "{}.py")
GAMES = ("ipd", "auction", "negotiation_v1", "negotiation_v2")


@pytest.mark.parametrize("game", [*GAMES, "all"])
@pytest.mark.parametrize("argument", ["", "runlocal", "policy=smollm2", "policy=qwen3-4b,paper"])
def test_every_config_reads(game, argument):
    settings = read_settings(load_config(f"{PLACE.format(game)}:{argument}"))
    assert settings.sepo.steps and settings.sft.steps
    # Both seats of a group are compared, and a row holds what a slot holds.
    assert settings.sepo.groups_per_opponent % 2 == 0
    assert settings.rollout.row_length >= settings.rollout.capacity


@pytest.mark.parametrize("game", GAMES)
def test_the_authors_numbers_are_of_whole_matches(game):
    """arXiv 2605.30854: 100 steps of GRPO by round, temperature 0.8, penalties of each rollout."""
    config = load_config(f"{PLACE.format(game)}:policy=gemma-4-e4b-it,paper")
    settings = read_settings(config)
    assert settings.domain.rounds == 0 and settings.domain.invalid_penalty == 1.0
    assert settings.optimizer.micro_batches == 1
    assert settings.algorithm.name == "grpo" and settings.algorithm.overrides["kl_weight"] == 0.1
    sepo = settings.sepo
    assert (sepo.credit, sepo.returns, sepo.steps) == ("per_rollout", "immediate", 100)
    assert (settings.rollout.temperature, settings.policy.lora_rank) == (0.8, 16)


def test_the_authors_models_are_spread_over_a_slice():
    """Billions of frozen parameters; a model on this disk is trained where it is."""
    for name in ("gemma-4-e4b-it", "qwen3.5-4b"):
        config = load_config(f"{PLACE.format('ipd')}:policy={name},paper")
        parallel = config.parallel
        assert (parallel.topology, parallel.kind, parallel.fsdp) == ("v5e:4x4", "mesh", 16)
        assert config.policy.cache_dtype == "bfloat16" and config.rollout.slots == 32
    for argument in ("policy=smollm2,paper", "paper", "policy=qwen3.5-4b"):
        parallel = load_config(f"{PLACE.format('ipd')}:{argument}").parallel
        assert (parallel.topology, parallel.kind) == ("", "auto")


def test_what_is_given_wins_over_the_authors_numbers():
    given = "credit=shared,algorithm=rloo,returns=to_go,paper"
    config = load_config(f"{PLACE.format('ipd')}:{given}")
    assert (config.sepo.credit, config.sepo.returns) == ("shared", "to_go")
    assert config.algorithm.name == "rloo"


def test_variants_have_names_of_their_own():
    names = {}
    for argument in ("", "objective=reward_only", "credit=shared,algorithm=grpo", "paper",
                     "policy=smollm2", "policy=smollm2,returns=immediate"):  # fmt: skip
        names[argument] = load_config(f"{PLACE.format('ipd')}:{argument}").name
    assert names[""] == "sepo_ipd" and names["policy=smollm2"] == "sepo_ipd_smollm2"
    assert names["credit=shared,algorithm=grpo"] == "sepo_ipd_shared_grpo"
    assert len(set(names.values())) == len(names)
    kuhn = [load_config(f"{PLACE.format('kuhn')}:{each}").name for each in ("", "exploiters=paper")]
    assert kuhn == ["sepo_kuhn", "sepo_kuhn_paper"]


# lambda_e, lambda_c, lambda_x: papers 1.4, of Gemma 4 E4B; the joint runs are of Qwen3.5-4B.
@pytest.mark.parametrize(
    ("game", "weights"),
    [
        ("ipd", (2.4, 1.0, 1.8)),
        ("auction", (2.4, 2.4, 2.4)),
        ("negotiation_v1", (3.0, 2.0, 1.8)),
        ("negotiation_v2", (2.4, 2.4, 2.4)),
        ("all", (2.4, 2.4, 2.4)),
        ("kuhn", (1.5, 0.0, 0.0)),
    ],
)
def test_weights_of_the_paper(game, weights):
    sepo = load_config(PLACE.format(game)).sepo
    found = (sepo.exploitability_weight, sepo.collusion_weight, sepo.externality_weight)
    assert found == weights


def test_the_table_names_stages_by_what_they_are():
    columns = load_module(PLACE.format("ipd")).result("")["columns"]
    assert columns["untrained/safety"] == "safety base"
    assert columns["sft/utility"] == "utility SFT"
    assert columns["sepo/exploit_pool_advantage"] == "e SEPO"
    notes = load_module(PLACE.format("ipd")).result("policy=smollm2")["notes"]
    assert "Matches have 3 rounds." in notes


def test_without_options_each_episode_is_credited():
    config = load_config(f"{PLACE.format('ipd')}")
    assert (config.sepo.credit, config.sepo.returns) == ("credited", "to_go")
    assert (config.algorithm.name, config.sepo.objective) == ("rloo", "sepo")


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("credit=shard", "credit 'shard'.*'shared'"),
        ("algorithm=grp", "algorithm 'grp'.*'grpo'"),
        ("objective=reward", "objective 'reward'.*reward_only"),
        ("returns=x", "returns 'x'.*to_go"),
        ("policy=smolm2", "policy 'smolm2'.*'smollm2'"),
        ("papr", "'papr'.*'paper'"),
    ],
)
def test_names_are_checked_when_the_config_is_read(argument, message):
    with pytest.raises(ValueError, match=message):
        load_config(f"{PLACE.format('ipd')}:{argument}")


def test_kuhns_names_are_checked_too():
    with pytest.raises(ValueError, match="credit 'shard'"):
        load_config(f"{PLACE.format('kuhn')}:credit=shard")


@pytest.mark.parametrize("game", [*GAMES, "all", "kuhn"])
def test_a_module_names_its_seeds_and_its_table(game):
    module = load_module(PLACE.format(game))
    seeds = []
    module.sweep(lambda **changes: seeds.append(changes["seed"]))
    assert seeds == [0, 1, 2]
    assert {"title", "columns", "notes"} <= set(module.result(""))
