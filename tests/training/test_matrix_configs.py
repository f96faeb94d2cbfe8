"""The config files of the matrix benchmark."""

import json
from pathlib import Path

import numpy as np
import pytest

from sepo_jax.domains.matrix_game import messages, reply, workings
from sepo_jax.domains.matrix_rules import game_of_task
from sepo_jax.evaluation.matrix_tasks import ARMS
from sepo_jax.policy import render
from sepo_jax.training import read_settings
from sepo_jax.training.command_line import load_config, load_module
from sepo_jax.training.setup import make_domain, make_policy

FILES = sorted((Path(__file__).parents[2] / "configs" / "matrix").glob("*.py"))
NAMES = [path.stem for path in FILES]


@pytest.fixture(params=FILES, ids=NAMES)
def path(request):
    return str(request.param)


@pytest.mark.parametrize("argument", ["", ":policy=smollm2", ":runlocal", ":algorithm=grpo"])
def test_every_config_reads(path, argument):
    settings = read_settings(load_config(path + argument))
    domain = make_domain(settings.domain)
    assert set(domain.sizes) == {2, 3}
    assert settings.sepo.steps == 0
    assert (settings.rl.steps > 0) == ("rl" in Path(path).stem)
    usual = "solver" if "smollm2" in argument else "worked"
    assert domain.expert == ("random" if Path(path).stem == "rl" else usual)


def test_prompts_and_replies_of_every_arm_fit():
    settings = read_settings(load_config(str(FILES[NAMES.index("sft")])))
    domain = make_domain(settings.domain)
    assert domain.arms == ARMS
    policy, _ = make_policy(settings, domain)
    longest = [0, 0]
    for task in domain.evaluation_tasks(14, seed=settings.sft.data_seed):
        game = game_of_task(task)
        mixed = [np.full(count, 1 / count) for count in game.shape]
        answer = f"{workings(game)}\n{reply(*mixed)}"
        lengths = [
            len(render(policy.tokenizer, messages(game))),
            len(policy.tokenizer.encode(answer, add_special_tokens=False)) + 1,
        ]
        longest = np.maximum(longest, lengths)
        assert sum(lengths) <= settings.rollout.capacity, task["arm"]
    assert longest[1] <= settings.rollout.max_action_tokens
    rl = read_settings(load_config(str(FILES[NAMES.index("rl")])))
    trained = max(len(render(policy.tokenizer, prompt)) for prompt, _ in domain.expert_traces(8, 0))
    assert trained + rl.rollout.max_action_tokens <= rl.rollout.row_length
    assert longest[0] + settings.rollout.max_action_tokens <= settings.rollout.capacity


def test_choices_have_names_of_their_own(path):
    arguments = ["", "expert=solver", "algorithm=grpo", "policy=smollm2", "policy=smollm2,runlocal"]
    names = [load_config(f"{path}:{argument}").name for argument in arguments]
    assert names[0] == f"matrix_{Path(path).stem}"
    assert len(set(names[:4])) == 4


def test_five_seeds_of_either_stage_alone_and_three_of_both(path):
    seeds = []
    load_module(path).sweep(lambda seed: seeds.append(seed))
    assert seeds == list(range(3 if path.endswith("sft_rl.py") else 5))


def test_the_table_names_figures_that_a_run_has(path):
    table = load_module(path).result("")
    stage = "rl" if "rl" in Path(path).stem else "sft"
    expected = {f"{stage}/{arm}/success" for arm in ARMS}
    assert expected | {f"{stage}/dense/{n}/valid" for n in (2, 3)} == set(table["columns"])
    assert len(set(table["columns"].values())) == len(table["columns"])
    assert json.loads(json.dumps(table)) == table
    smaller = load_module(path).result("policy=smollm2")
    assert "smollm2" in smaller["title"] and set(smaller["columns"]) <= set(table["columns"])


def test_unknown_options_are_refused(path):
    with pytest.raises(ValueError, match=r"exprt.*expert"):
        load_config(f"{path}:exprt=solver")
    with pytest.raises(ValueError, match="policy"):
        load_config(f"{path}:policy=smolm2")
