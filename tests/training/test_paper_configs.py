"""The configs of the paper's models: its numbers, room for its horizons, updates that compile."""

import random
from pathlib import Path

import jax
import pytest
from extras import needs

from sepo_jax.policy.models import MODELS
from sepo_jax.rollout import Branching
from sepo_jax.training import paper_configs as shared
from sepo_jax.training import read_settings
from sepo_jax.training.chips import CHIPS
from sepo_jax.training.command_line import load_config, load_module, load_sweep
from sepo_jax.training.dry_run import dry_run
from sepo_jax.training.dry_run_sizes import default_sizes
from sepo_jax.training.goals import configured_algorithm
from sepo_jax.training.setup import branching_of, branching_of_step, make_domain

DIRECTORY = Path(__file__).parents[2] / "configs" / "bpo"
FILES = {"qwen2_5_7b": "qwen2.5-7b", "llama3_1_8b": "llama-3.1-8b"}
PARAMETERS = {"qwen2.5-7b": 7_615_616_512, "llama-3.1-8b": 8_030_261_248}
HORIZON = {"webshop": "max_turns", "alfworld": "max_turns", "repository": "turns"}
TASKS = [pytest.param(task, marks=needs(task)) for task in shared.TASKS]
CHARACTERS = 3  # of a token at least, in English with names and numbers


@pytest.fixture(params=FILES)
def path(request):
    return str(DIRECTORY / f"{request.param}.py")


def read(path, argument=""):
    return read_settings(load_config(f"{path}:{argument}"))


@pytest.mark.parametrize("task", TASKS)
def test_the_numbers_are_those_that_are_known(path, task):
    settings = read(path, f"task={task}")
    assert settings.policy.source == FILES[Path(path).stem]
    domain = make_domain(settings.domain)
    assert domain.name == task
    assert getattr(getattr(domain, "rules", domain), HORIZON[task]) == shared.HORIZONS[task]
    rl, row = settings.rl, configured_algorithm(settings)
    assert (rl.continuations, rl.branch_points, rl.rollouts_per_task) == (4, 2, 7)
    assert branching_of(rl) == Branching(2, 4, selector="entropy", spacing=64, trees_per_prompt=1)
    assert rl.learning_rate == rl.final_learning_rate == 1e-6
    assert (row.name, row.clip_low, row.clip_high, row.gamma) == ("bpo", 0.2, 0.2, 1.0)
    assert (row.kl_weight, row.kl_kind, row.kl_place) == (0.01, "k3", "loss")
    assert settings.sft.steps == settings.sepo.steps == 0 < rl.steps


def test_credits_and_algorithms_are_choices(path):
    rows = {
        credit: configured_algorithm(read(path, f"credit={credit}")) for credit in shared.CREDITS
    }
    assert [row.prefix_credit for row in rows.values()] == ["tree", "lambda", "none", "tree"]
    assert rows["lambda"].lambda_prefix == 0.95 and rows["lambda"].segment_weight == "uniform"
    mixed = branching_of_step(read(path, "credit=root").rl)
    assert [each.forks for each in mixed] == [0] * 8 + [6] * 8
    assert {each.leaves for each in mixed} == {7} and not rows["root"].count_no_spread
    grpo = read(path, "algorithm=grpo").rl
    assert branching_of(grpo).forks == 0 and branching_of(grpo).trees_per_prompt == 7
    tree_grpo = read(path, "algorithm=tree_grpo").rl
    assert branching_of(tree_grpo).forks == 6
    arguments = [f"task={task}" for task in shared.TASKS] + ["credit=root", "algorithm=grpo"]
    assert len({read(path, argument).name for argument in arguments}) == 5


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("task=webshp", "task 'webshp'.*webshop"),
        ("credit=lamda", "credit 'lamda'.*lambda"),
        ("algorithm=gpro", "algorithm 'gpro'.*grpo"),
        ("algorithm=grpo,credit=root", "credit=root is a choice of algorithm=bpo"),
        ("policy=fresh", "policy"),
    ],
)
def test_what_is_no_option_is_named(path, argument, message):
    with pytest.raises(ValueError, match=message):
        load_config(f"{path}:{argument}")


def longest_talk(domain, tasks):
    """Most characters that an episode of random moves shows; it goes on as long as it may."""
    found = []
    for number, task in enumerate(tasks):
        stream, episode, shown = random.Random(number), domain.new_episode(task, number), 0
        while not episode.done:
            shown += sum(len(message["content"]) for message in episode.messages())
            legal = [each for each in episode.legal_actions() if "buy" not in each.lower()]
            episode.step(stream.choice(legal or list(episode.legal_actions())))
        found.append(shown)
    return max(found)


@pytest.mark.parametrize("task", TASKS)
def test_a_whole_episode_fits(path, task):
    settings = read(path, f"task={task}")
    domain, rollout = make_domain(settings.domain), settings.rollout
    turns = shared.HORIZONS[task]
    if task == "repository":
        prompt = max(
            len(message["content"])
            for messages, _ in domain.expert_traces(60, 0)
            for message in messages
        )
        shown = 2 * prompt + turns * domain.rules.output_limit
    else:
        shown = longest_talk(domain, domain.training_tasks(8, 0))
    whole = shown / CHARACTERS + turns * rollout.max_action_tokens
    assert whole <= rollout.capacity <= rollout.row_length
    assert rollout.capacity <= MODELS[settings.policy.source].config.max_positions


def test_official_data_are_named_by_the_argument(path):
    shop = load_config(f"{path}:task=webshop,data=/shop").domain.options
    assert (shop.data, shop.products) == ("/shop", 0)
    assert load_config(f"{path}:task=alfworld,data=official").domain.options.data == "official"
    bench = load_config(f"{path}:task=repository,data=verified.jsonl")
    assert bench.domain.options.instances == "verified.jsonl" and bench.sandbox.network


def test_the_table_and_the_sweep(path):
    table = load_module(path).result("task=alfworld,credit=root")
    assert "alfworld root" in table["title"] and "at most 40 turns" in table["notes"]
    assert load_sweep(path) == [{"seed": 0}, {"seed": 1}, {"seed": 2}]


@pytest.mark.slow
def test_the_update_compiles_at_its_full_size(path):
    """Over the eight devices of the tests; layers are scanned, so depth costs no time."""
    config = load_config(path)
    config.parallel.fsdp = 8
    settings = read_settings(config)
    chip, model = CHIPS["TPU v5"], MODELS[settings.policy.source].config
    report = dry_run(
        settings, jax.devices(), default_sizes(settings), chip=chip, parts=["update", "score"]
    )
    rows = {row.name: row for row in report.rows}
    assert list(rows) == ["update", "score"] and not any(row.error for row in report.rows)
    assert report.num_parameters == report.num_trained == PARAMETERS[settings.policy.source]
    # Parameters, two moments and the reference policy in float32, over eight devices.
    assert report.state_bytes == pytest.approx(16 * report.num_parameters / 8, rel=0.01)
    assert rows["update"].work.collectives["all-gather"].num_bytes > 0
    # At least 6 operations for each token and parameter outside embedding and head.
    tokens = settings.optimizer.micro_batches * settings.rollout.row_length
    inside = report.num_parameters - 2 * model.vocab_size * model.hidden_size
    assert rows["update"].work.flops > 6 * inside * tokens
