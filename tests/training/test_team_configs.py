"""The config files of teams."""

from pathlib import Path

import numpy as np
import pytest

from sepo_jax.algorithms import ALGORITHMS
from sepo_jax.credit import assign_credit
from sepo_jax.forest import ForestBuilder
from sepo_jax.training import read_settings
from sepo_jax.training import team_configs as shared
from sepo_jax.training.command_line import load_config, load_module, load_sweep, swept_config
from sepo_jax.training.goals import configured_algorithm
from sepo_jax.training.setup import make_domain, make_policy
from sepo_jax.training.supervised_data import encode_examples

DIRECTORY = Path(__file__).parents[2] / "configs" / "srpo"
CONFIGS = ("math_fixed", "math_routed", "search_fixed", "search_routed")


@pytest.fixture(params=CONFIGS)
def path(request):
    return str(DIRECTORY / f"{request.param}.py")


def read(path, argument=""):
    return read_settings(load_config(f"{path}:{argument}"))


def test_the_settings_are_those_of_the_name(path):
    domain, workflow = Path(path).stem.split("_")
    settings = read(path)
    assert settings.name == f"srpo_{domain}_{workflow}"
    made = make_domain(settings.domain)
    assert (made.name, made.flow) == (domain, workflow)
    assert configured_algorithm(settings) == ALGORITHMS["srpo"]
    assert settings.evaluation.task_samples == 16
    # Ratios differ from 1 in the second update of a batch alone.
    assert settings.optimizer.updates_per_batch == 2 and settings.rl.steps > 0


def test_options_reach_the_settings_and_names_tell_runs_apart(path):
    members = "solvers" if "math" in path else "workers"
    arguments = [
        *(f"algorithm={name}" for name in shared.ALGORITHMS),
        *("ratio_scale=sum", "ratio_scale=mean", "ratio_scale=length", "reduce=token_mean"),
        *(f"{members}={count}" for count in (1, 5)),
        f"{members}=5,ratio_scale=sum",
    ]
    found = {argument: read(path, argument) for argument in arguments}
    assert len({settings.name for settings in found.values()}) == len(arguments)
    rows = {argument: configured_algorithm(settings) for argument, settings in found.items()}
    assert rows["algorithm=dr_mas"].compare == "agent"
    assert rows["ratio_scale=length"].ratio_scale == "length"
    assert rows["reduce=token_mean"].reduce == "token_mean"
    both = f"{members}=5,ratio_scale=sum"
    assert rows[both].ratio_scale == "sum" and found[both].domain.options[members] == 5
    roles = make_domain(found[f"{members}=1"].domain).roles
    assert roles["solver" if "math" in path else "worker"] == 1
    # What is usual has no name of its own: a run is not trained twice.
    assert read(path, f"{members}=3,ratio_scale=sqrt,algorithm=srpo") == read(path)


@pytest.mark.parametrize("name", shared.ALGORITHMS)
def test_every_turn_is_credited_with_what_the_team_is_paid_at_the_end(name):
    row = configured_algorithm(read(str(DIRECTORY / "math_fixed.py"), f"algorithm={name}"))
    builder = ForestBuilder()
    for episode, reward in enumerate([1.0, 0.0]):
        for turn in range(3):
            paid = reward if turn == 2 else 0.0
            builder.add(
                [1],
                builder.add([0], agent=turn),
                is_action=True,
                turn=turn,
                episode=episode,
                reward=paid,
                event=3 * episode + turn,
                event_type=turn,
                event_size=1,
            )
    forest = builder.build()
    advantage = assign_credit(row, forest).advantage[forest.is_action[forest.segment_of_token()]]
    np.testing.assert_allclose(advantage, [1, 1, 1, -1, -1, -1], atol=1e-4)


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("algorithm=dr_mass", "algorithm 'dr_mass'.*dr_mas"),
        ("algorithm=ppo", "algorithm 'ppo'"),
        ("ratio_scale=root", "ratio_scale 'root'"),
        ("reduce=event", "reduce 'event'.*event_mean"),
        ("algorithm=dr_mas,ratio_scale=sum", "ratio_scale=sum is a choice of algorithm=srpo"),
        ("algorithm=grpo,reduce=token_mean", "reduce=token_mean is a choice of algorithm=srpo"),
    ],
)
def test_what_is_no_option_is_named(path, argument, message):
    with pytest.raises(ValueError, match=message):
        load_config(f"{path}:{argument}")


def test_members_are_named_as_in_the_domain():
    for name, other in (("math_fixed", "workers"), ("search_fixed", "solvers")):
        with pytest.raises(ValueError, match=f"config argument '{other}'"):
            load_config(f"{DIRECTORY / name}.py:{other}=5")


def test_a_team_without_members_is_refused_with_its_options():
    for name, members in (("math_routed", "solvers"), ("qwen2_5_7b", "workers")):
        with pytest.raises(ValueError, match=f"{members} must be at least 1, not 0"):
            load_config(f"{DIRECTORY / name}.py:{members}=0")


def test_every_run_of_the_sweep_is_a_variant_of_the_table(path):
    table, changes = load_module(path).result(""), load_sweep(path)
    assert {each["argument"] for each in changes} == set(table["variants"])
    names = [(swept_config(path, each).name, each["seed"]) for each in changes]
    assert len(set(names)) == len(names) == 6
    domain = make_domain(read(path).domain)
    tasks = domain.evaluation_tasks(1, 0)
    known, success = domain.baselines(tasks), shared.SUCCESS[domain.name]
    assert all(success in known[player] for player in table["baselines"])
    # What the table calls Avg@16 is that.
    asked = [task for task in tasks for _ in range(16)]
    found = domain.figures(asked, [None] * len(asked))
    assert found[success] == found["avg@16"] == found["pass@16"] == 0.0
    assert {f"rl/{success}", "rl/pass@16"} < set(table["columns"])


def test_there_are_questions_to_be_judged_by(path):
    settings = read(path)
    domain = make_domain(settings.domain)
    tasks = domain.evaluation_tasks(settings.evaluation.tasks, settings.sft.data_seed)
    assert 30 <= len({task["question"] for task in tasks}) == len(tasks) <= 40
    trained = domain.training_tasks(3000, 0)
    assert not {task["question"] for task in tasks} & {task["question"] for task in trained}


@pytest.mark.parametrize("members", [1, 5])
def test_expert_episodes_fit(path, members, caplog):
    name = "solvers" if "math" in path else "workers"
    settings = read(path, f"{name}={members}")
    domain = make_domain(settings.domain)
    policy, _ = make_policy(settings, domain)
    traces = domain.expert_traces(300, settings.sft.data_seed)
    examples = encode_examples(settings, policy, traces, "trace")
    assert not caplog.records  # no reply is longer than play allows
    longest = max(sum(map(len, turn)) for example in examples for turn in example)
    assert longest < settings.rollout.capacity <= settings.rollout.row_length


def test_a_pretrained_model_trains_adapters_for_a_few_steps(path):
    settings = read(path, "policy=smollm2")
    assert settings.name.endswith("_smollm2") and settings.policy.lora_rank == 16
    assert settings.rl.steps < read(path).rl.steps
    table = load_module(path).result("policy=smollm2")
    assert f"rl/pass@{settings.evaluation.task_samples}" in table["columns"]
