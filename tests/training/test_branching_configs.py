"""The config files of branching rollouts."""

import re
from pathlib import Path

import pytest
from extras import needs

from sepo_jax.training import branching_configs as shared
from sepo_jax.training import read_settings
from sepo_jax.training.command_line import load_config, load_module, load_sweep, swept_config
from sepo_jax.training.setup import branching_of, make_domain, make_policy
from sepo_jax.training.supervised_data import encode_examples

DIRECTORY = Path(__file__).parents[2] / "configs" / "bpo"
TASKS = [
    "corridor",
    "webshop",
    "repository",
    pytest.param("alfworld", marks=needs("alfworld")),
]


@pytest.fixture(params=TASKS)
def path(request):
    return str(DIRECTORY / f"{request.param}.py")


def test_trees_have_as_many_leaves_as_others_have_episodes(path):
    trees, flat = (
        read_settings(load_config(f"{path}:algorithm={name}")).rl for name in ("bpo", "grpo")
    )
    branching = branching_of(trees)
    assert branching.leaves == trees.rollouts_per_task == flat.rollouts_per_task == 14
    assert branching.trees_per_prompt == 2 and branching_of(flat).forks == 0
    assert trees.tasks_per_step > flat.tasks_per_step and trees.steps == flat.steps


def test_options_reach_the_settings_and_names_tell_runs_apart(path):
    arguments = ["", "algorithm=grpo", "prefix_credit=lambda", "selector=uniform", "runlocal"]
    read = [read_settings(load_config(f"{path}:{argument}")) for argument in arguments]
    assert len({settings.name for settings in read[:4]}) == 4
    assert read[2].algorithm.overrides == {"prefix_credit": "lambda"}
    assert read[3].rl.branch_selector == "uniform"
    assert read[4].rl.steps == 2 and read[4].evaluation.tasks == 2
    with pytest.raises(ValueError, match=r"selector 'unform'.*uniform"):
        load_config(f"{path}:selector=unform")
    with pytest.raises(ValueError, match=r"prefix_credit 'lamda'.*lambda"):
        load_config(f"{path}:prefix_credit=lamda")


@pytest.mark.parametrize(
    ("argument", "rows"),
    [
        ("algorithm=grpo,selector=uniform", "bpo|vineppo|tree_grpo"),
        ("algorithm=rloo,selector=entropy", "bpo|vineppo|tree_grpo"),
        ("algorithm=grpo,prefix_credit=lambda", "bpo|vineppo"),
        ("algorithm=tree_grpo,prefix_credit=none", "bpo|vineppo"),
    ],
)
def test_a_choice_that_the_algorithm_does_not_read_is_refused(path, argument, rows):
    algorithm, choice = (part.split("=") for part in argument.split(","))
    words = (
        f"{choice[0]}={choice[1]} is a choice of algorithm={rows}, and the algorithm is "
        f"{algorithm[1]}; leave {choice[0]} out"
    )
    with pytest.raises(ValueError, match=re.escape(words)):
        load_config(f"{path}:{argument}")


def test_choices_of_every_row_that_reads_them_are_taken(path):
    chosen = "selector=lowest,prefix_credit=none"
    settings = read_settings(load_config(f"{path}:algorithm=vineppo,{chosen}"))
    assert settings.rl.branch_selector == "lowest"
    assert settings.algorithm.overrides == {"prefix_credit": "none"}
    settings = read_settings(load_config(f"{path}:algorithm=tree_grpo,selector=lowest"))
    assert settings.rl.branch_selector == "lowest"


def test_every_run_of_the_sweep_is_a_variant_of_the_table(path):
    table, changes = load_module(path).result(""), load_sweep(path)
    assert {each["argument"] for each in changes} == set(table["variants"]) == set(shared.COMPARED)
    names = [(swept_config(path, each).name, each["seed"]) for each in changes]
    assert len(set(names)) == len(names)
    player = next(iter(table["baselines"]))
    domain = make_domain(read_settings(load_config(path)).domain)
    known = domain.baselines(domain.evaluation_tasks(1, 0))[player]
    assert "success" in known


def test_expert_episodes_fit(path, caplog):
    settings = read_settings(load_config(path))
    domain = make_domain(settings.domain)
    policy, _ = make_policy(settings, domain)
    traces = domain.expert_traces(100, settings.sft.data_seed)
    examples = encode_examples(settings, policy, traces, "trace")
    assert not caplog.records  # no reply is longer than play allows
    assert len(traces) / len(examples) > 2
    longest = max(sum(map(len, turn)) for example in examples for turn in example)
    assert longest < settings.rollout.capacity
