"""What a config says of a policy reaches the policy, from whatever source."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from extras import installed

from sepo_jax.domains import Kuhn
from sepo_jax.domains.ipd import IteratedPrisonersDilemma
from sepo_jax.domains.joint import JointDomain
from sepo_jax.domains.tasks import is_task_domain
from sepo_jax.policy.models import MODELS
from sepo_jax.training.command_line import load_config, load_module
from sepo_jax.training.settings import DomainSettings, PolicySettings, read_settings
from sepo_jax.training.setup import (
    DOMAINS,
    load_options,
    make_domain,
    make_policy,
    model_config,
)

KUHN = str(Path(__file__).parents[2] / "configs/sepo/kuhn.py")


def test_a_fresh_policy_is_what_its_settings_say():
    settings = read_settings(
        {"policy": {"initializer_range": 0.3, "hidden_size": 32, "individual_digits": True}}
    )
    policy, params = make_policy(settings, Kuhn())
    table = np.asarray(params["embed"]["embedding"])
    # Of some 10,000 draws: the standard error of a deviation is 0.3 / sqrt(20,000) = 0.002.
    assert abs(table.std() - 0.3) < 0.01
    assert len(policy.tokenizer.encode("10", add_special_tokens=False)) == 2


def test_every_choice_of_a_config_reaches_the_model():
    chosen = PolicySettings(
        compute_dtype="bfloat16", param_dtype="bfloat16", cache_dtype="bfloat16", remat="dots",
        logits_budget=1000, value_head=True, lora_rank=4, lora_alpha=6.0, lora_targets=("up_proj",),
    )  # fmt: skip
    for source in ("fresh", "qwen3-4b"):
        config = model_config(dataclasses.replace(chosen, source=source))
        for name in ("compute_dtype", "param_dtype", "cache_dtype", "remat", "logits_budget"):
            assert getattr(config, name) == getattr(chosen, name), name
        assert config.value_head
        assert (config.lora.rank, config.lora.scale) == (4, 1.5)
        assert config.lora.targets == ("up_proj",)
    # What is not chosen is the checkpoint's.
    named = model_config(PolicySettings(source="qwen3-4b"))
    assert named.param_dtype == MODELS["qwen3-4b"].config.param_dtype == "bfloat16"
    assert named.num_layers == 36 and named.lora is None
    assert not {"param_dtype", "value_head", "lora"} & load_options(PolicySettings()).keys()


def refusal(**policy):
    settings = read_settings({"policy": policy})
    with pytest.raises((ValueError, FileNotFoundError)) as caught:
        make_policy(settings, make_domain(settings.domain))
    return str(caught.value)


def test_what_cannot_be_loaded_is_named_with_what_to_do(tmp_path):
    absent = refusal(source=str(tmp_path / "absent"))
    assert "absent" in absent and "python experiments/get_smollm2.py" in absent
    assert "qwen3-4b" in absent
    assert "config.json is absent" in refusal(source=str(tmp_path))
    assert "policy.hidden_size describe a fresh policy" in refusal(
        source=str(tmp_path), hidden_size=32
    )
    assert "Did you mean 'layer'" in refusal(remat="layers")
    assert "Did you mean 'q_proj'" in refusal(lora_rank=2, lora_targets=("q_prj",))
    assert "matches no layer" in refusal(lora_rank=2, lora_targets=("in_proj_qkv",))


def test_policies_of_the_kuhn_config_have_runs_and_tables_of_their_own():
    module = load_module(KUHN)
    names, titles = set(), set()
    for argument in ("", "policy=smollm2", "policy=Qwen/Qwen3-4B", "policy=models/my.gguf"):
        config = load_config(f"{KUHN}:{argument}")
        read_settings(config)
        names.add(config.name)
        table = module.result(argument)
        titles.add(table["title"])
        assert f"{config.evaluation.match_episodes} hands" in table["notes"]
        assert (config.policy.lora_rank == 16) == bool(argument)
    assert names == {
        "sepo_kuhn", "sepo_kuhn_smollm2", "sepo_kuhn_Qwen3-4B", "sepo_kuhn_my.gguf"
    }  # fmt: skip
    assert len(titles) == 4
    small = load_config(f"{KUHN}:policy=smollm2,runlocal")
    assert small.sft.steps == 4 and small.policy.source == "models/smollm2-135m"


class Own(IteratedPrisonersDilemma):
    """A domain of the user's: takes `rounds` and nothing else."""

    name = "own"

    def __init__(self, rounds: int = 3):
        super().__init__(rounds)


class Half:
    """No domain."""

    name, max_payoff = "half", 1.0


@pytest.mark.parametrize("name", DOMAINS)
def test_every_domain_is_made_by_its_name(name):
    if not installed(name):
        pytest.skip(f"the extra `{name}` is not installed")
    domain = make_domain(DomainSettings(name=name))
    assert domain.name == name
    assert domain.expert_traces(3, 0)
    if is_task_domain(domain):
        assert domain.training_tasks(3, 0) and domain.evaluation_tasks(1, 0)
    else:
        assert set(domain.pools) == {"train", "exploiter", "collusive"}


def test_tasks_are_not_joined_with_games():
    with pytest.raises(ValueError, match="'matrix' has no opponents"):
        make_domain(DomainSettings("all", games=("ipd", "matrix")))


def test_options_reach_the_domains_that_have_them():
    domain = make_domain(DomainSettings(hands=6, collusion="fold_rate", on_invalid="forfeit"))
    assert (domain.hands, domain.collusion, domain.on_invalid) == (6, "fold_rate", "forfeit")
    ipd = make_domain(DomainSettings("ipd", rounds=2, faithful=True))
    assert (ipd.rounds, ipd.faithful) == (2, True)
    assert make_domain(DomainSettings("ipd")).rounds == 8
    own = make_domain(DomainSettings(f"{__name__}:Own"))
    assert (type(own).__name__, own.rounds) == ("Own", 3)
    joint = make_domain(DomainSettings("all", games=("ipd", "kuhn"), rounds=2, hands=3))
    assert isinstance(joint, JointDomain) and joint.name == "all"
    assert (joint.games["ipd"].rounds, joint.games["kuhn"].hands) == (2, 3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "ipdd"}, "Did you mean 'ipd'.*my_module:MyClass"),
        ({"name": "ipd", "hands": 6}, r"domain.hands=6 is no option of ipd.*rounds.*leave it at 1"),
        ({"name": "kuhn", "rounds": 4}, r"domain.rounds=4 is no option of kuhn.*leave it at 0"),
        ({"name": f"{__name__}:Own", "faithful": True}, "domain.faithful=True is no option of"),
        ({"games": ("ipd", "auction"), "hands": 2}, "no option of ipd, auction"),
        ({"games": ("ipd",)}, "needs two games or more"),
        ({"games": ("ipd", "ipd")}, "needs two games or more, each once"),
        ({"name": f"{__name__}:Half"}, "Half is no domain: it lacks pools, experts, new_episode"),
        ({"name": f"{__name__}:Absent"}, "domain.name=.*Absent.* must be .*my_module:MyClass"),
        ({"name": "no_such_module:Own"}, "no_such_module"),
    ],
)
def test_domains_that_cannot_be_made_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        make_domain(DomainSettings(**options))


def test_the_default_domain_is_single_hands_of_kuhn_poker():
    domain = make_domain(DomainSettings())
    assert isinstance(domain, Kuhn) and domain.hands == 1
