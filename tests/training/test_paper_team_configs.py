"""The configs of SRPO's models: the numbers they take, room for contexts, updates that compile."""

import dataclasses
import json
from pathlib import Path

import jax
import pytest

from sepo_jax.domains.teams import play_workflow
from sepo_jax.policy.models import MODELS
from sepo_jax.training import paper_team_configs as shared
from sepo_jax.training import read_settings
from sepo_jax.training.chips import CHIPS
from sepo_jax.training.command_line import load_config, load_module, load_sweep
from sepo_jax.training.dry_run import dry_run
from sepo_jax.training.dry_run_sizes import default_sizes
from sepo_jax.training.goals import configured_algorithm
from sepo_jax.training.setup import make_domain

DIRECTORY = Path(__file__).parents[2] / "configs" / "srpo"
FILES = {
    "qwen3_4b": ("qwen3-4b", "math"),
    "qwen3_8b": ("qwen3-8b", "math"),
    "qwen2_5_3b": ("qwen2.5-3b", "search"),
    "qwen2_5_7b": ("qwen2.5-7b", "search"),
}
PARAMETERS = {
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-7b": 7_615_616_512,
}
CHARACTERS = 3  # of a token at least, in English with names and numbers


@pytest.fixture(params=FILES)
def path(request):
    return str(DIRECTORY / f"{request.param}.py")


def read(path, argument=""):
    return read_settings(load_config(f"{path}:{argument}"))


def test_the_numbers_are_those_that_are_known(path):
    settings = read(path)
    model, domain = FILES[Path(path).stem]
    assert settings.policy.source == model and settings.policy.adapters == "per_role"
    made, rl, row = make_domain(settings.domain), settings.rl, configured_algorithm(settings)
    assert made.name == domain and max(made.roles.values()) == 3
    group, batch, reply, penalty = (8, 32, 4096, 0.1) if domain == "math" else (5, 128, 800, 0.01)
    assert (rl.rollouts_per_task, rl.tasks_per_step) == (group, batch)
    assert settings.rollout.max_action_tokens == reply and made.malformed_penalty == penalty
    whole = read(path, "adapters=none")
    assert whole.rl.learning_rate == whole.rl.final_learning_rate == 1e-6
    assert whole.policy.lora_rank == 0 < settings.policy.lora_rank
    assert (row.name, row.clip_low, row.clip_high, row.kl_weight) == ("srpo", 0.2, 0.2, 0.0)
    assert settings.evaluation.task_samples == 16
    assert settings.sft.steps == settings.sepo.steps == 0 < rl.steps
    if domain == "search":
        assert made.team.rounds == 4 and made.flow == "routed"


def test_choices_reach_the_settings_and_names_tell_runs_apart(path):
    domain = FILES[Path(path).stem][1]
    members = {"math": "solvers", "search": "workers"}[domain]
    arguments = ["", "algorithm=dr_mas", f"{members}=5,ratio_scale=mean"]
    arguments += ["adapters=shared", "adapters=none"]
    arguments += [f"workflow={name}" for name in ("routed", "fixed", "mixed")]
    found = {argument: read(path, argument) for argument in arguments}
    assert len({settings.name for settings in found.values()}) == len(arguments) - 1
    assert configured_algorithm(found["algorithm=dr_mas"]).compare == "agent"
    assert make_domain(found["workflow=mixed"].domain).flow == "mixed"
    adapted = found["adapters=shared"].policy
    assert adapted.lora_rank == 32 and adapted.param_dtype == "bfloat16"
    assert adapted.adapters == "shared" and found["adapters=none"].policy.param_dtype == "float32"


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("workflow=route", "workflow 'route'.*routed"),
        ("adapters=share", "adapters 'share'.*shared"),
        ("algorithm=dr_mas,ratio_scale=sum", "ratio_scale=sum is a choice of algorithm=srpo"),
        ("policy=fresh", "policy"),
    ],
)
def test_what_is_no_option_is_named(path, argument, message):
    with pytest.raises(ValueError, match=message):
        load_config(f"{path}:{argument}")


def test_the_longest_prompts_fit(path):
    """What members see of each other where all say as much as they may, in characters."""
    settings = read(path)
    domain, rollout = make_domain(settings.domain), settings.rollout
    seen = []

    def reply(kind, member, messages):
        seen.append(sum(len(message["content"]) for message in messages))
        if domain.name == "math":
            return f"{'x' * 1000}\\boxed{{{member[1]}}}"
        return {"route": "workers: 1 2 3", "verify": "enough: no"}.get(kind, f"search: the {kind}")

    for task in domain.training_tasks(5, 0):
        play_workflow(domain, task, 0, reply)
    shown = max(seen) / CHARACTERS
    if domain.name == "search":  # documents of real corpora have as many words as are shown
        words = domain.team.workers * domain.team.rounds * domain.team.results
        shown += 1.4 * words * domain.team.snippet_words
    assert shown + rollout.max_action_tokens <= rollout.capacity <= rollout.row_length
    assert rollout.capacity <= MODELS[settings.policy.source].config.max_positions


def write_lines(path, *lines):
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def test_questions_of_a_directory(path, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"has no train\.jsonl"):
        load_config(f"{path}:data={tmp_path}")
    domain = FILES[Path(path).stem][1]
    asked = [{"problem": f"What is {n} + 1?", "answer": str(n + 1)} for n in range(4)]
    if domain == "search":
        asked = [{"question": f"Who is {n}?", "answer": [f"Ada {n}"]} for n in range(4)]
    write_lines(tmp_path / "train.jsonl", *asked[:2])
    write_lines(tmp_path / "held_out.jsonl", *asked[2:])
    if domain == "search":
        with pytest.raises(FileNotFoundError, match=r"has no corpus\.jsonl"):
            load_config(f"{path}:data={tmp_path}")
        write_lines(tmp_path / "corpus.jsonl", {"id": "1", "title": "Ada", "text": "Ada is one."})
    made = make_domain(read(path, f"data={tmp_path}").domain)
    questions = {task["question"] for task in made.training_tasks(2, 0)}
    assert questions == {each.get("problem", each.get("question")) for each in asked[:2]}
    judged = made.evaluation_tasks(2, 0)
    assert len(judged) == 2 and not questions & {task["question"] for task in judged}


def test_the_table_and_the_sweep(path):
    table = load_module(path).result("algorithm=dr_mas")
    assert "dr_mas" in table["title"] and "replies of at most" in table["notes"]
    assert load_sweep(path) == [{"seed": 0}, {"seed": 1}, {"seed": 2}]


@pytest.mark.slow
@pytest.mark.parametrize("adapters", ["per_role", "none"])
def test_the_update_compiles_at_its_full_size(path, adapters):
    """Over the eight devices of the tests; layers are scanned, so depth costs no time."""
    config = load_config(f"{path}:adapters={adapters}")
    config.parallel.fsdp = 8
    settings = read_settings(config)
    sizes = dataclasses.replace(default_sizes(settings), rows=3 * 8 * shared.MICRO_BATCHES["math"])
    chip, model = CHIPS["TPU v5"], MODELS[settings.policy.source].config
    report = dry_run(settings, jax.devices(), sizes, chip=chip, parts=["update"])
    (row,) = report.rows
    assert row.name == "update" and not row.error
    total = PARAMETERS[settings.policy.source]
    # Parameters and two moments in float32, over eight devices; frozen parameters in bfloat16.
    frozen = 0 if adapters == "none" else 2 * total
    trained = report.num_trained
    if adapters == "per_role":
        roles = len(make_domain(settings.domain).roles)
        assert roles == 4 and trained % roles == 0
    assert trained == total if adapters == "none" else 0 < trained < 0.04 * total
    assert report.num_parameters == total + (trained if frozen else 0)
    assert report.frozen_bytes == frozen
    # Small adapters need not be spread over all devices.
    most = 12 * trained if frozen else 12 * trained / 8
    assert (12 * trained + frozen) / 8 <= report.state_bytes <= 1.01 * (most + frozen / 8)
    assert row.work.collectives["all-gather"].num_bytes > 0
    # At least 6 operations for each token and parameter outside embedding and head; 4 where most
    # parameters have no gradient.
    tokens = settings.optimizer.micro_batches * settings.rollout.row_length
    inside = total - 2 * model.vocab_size * model.hidden_size
    assert row.work.flops > (6 if adapters == "none" else 4) * inside * tokens
