"""Examples of the supervised stage: files and memory give the same run; what does not fit."""

import copy
import dataclasses
import json

import chex
import jax
import numpy as np
import pytest

from sepo_jax.credit import assign_credit
from sepo_jax.domains.chat_files import VALIDATION_FILE
from sepo_jax.forest import fill
from sepo_jax.objective import make_objective
from sepo_jax.rollout.play import ChatCodec
from sepo_jax.sandbox.protocol import Prompt
from sepo_jax.training import train
from sepo_jax.training.batches import packing_of
from sepo_jax.training.settings import read_settings
from sepo_jax.training.setup import make_domain, make_policy
from sepo_jax.training.stages import SftStage, supervised_forest
from sepo_jax.training.supervised_data import encode_examples, supervised_data


def write(path, pairs):
    lines = [
        json.dumps({"messages": [*messages, {"role": "assistant", "content": reply}], "extra": 1})
        for messages, reply in pairs
    ]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def split_in_memory(domain, count=40, seed=42, rationale=False):
    """Training and held-out traces as the stage deals them."""
    traces = domain.expert_traces(count, seed, rationale=rationale)
    order = np.random.default_rng(seed).permutation(count)
    return [traces[i] for i in order[count // 5 :]], [traces[i] for i in order[: count // 5]]


@pytest.mark.parametrize(("share", "kept"), [(0.2, 8), (0.1, 4), (0.0, 1)])
def test_the_share_that_is_held_out(small_config, share, kept):
    small_config["sft"] |= {"num_decisions": 40, "held_out": share}
    settings = read_settings(small_config)
    domain = make_domain(settings.domain)
    data = supervised_data(settings, make_policy(settings, domain)[0], domain)
    assert (len(data.training), len(data.validation)) == (40 - kept, kept)


@pytest.fixture
def made(small_config):
    settings = read_settings(small_config)
    domain = make_domain(settings.domain)
    return domain, *make_policy(settings, domain)


@pytest.fixture
def files(made, tmp_path):
    training, validation = split_in_memory(made[0])
    write(tmp_path / VALIDATION_FILE, validation)
    return write(tmp_path / "train.jsonl", training)


def with_file(config, path, **others):
    """The config with a file in place of traces."""
    changed = {"data": str(path), "num_decisions": 8000, **others}
    return {**config, "sft": {**config["sft"], **changed}}


@pytest.mark.slow
def test_training_on_a_file_is_training_on_the_same_traces(small_config, files, tmp_path):
    small_config["sepo"]["steps"] = 0
    runs = [
        train(config, run_directory=tmp_path / name, progress=False)
        for name, config in (
            ("memory", small_config),
            ("file", with_file(small_config, files)),
        )
    ]
    first, second = (jax.device_get(run.params) for run in runs)
    chex.assert_trees_all_equal(first, second)
    metrics = [(tmp_path / name / "metrics.jsonl").read_text() for name in ("memory", "file")]
    assert metrics[0] == metrics[1] and "validation_loss" in metrics[0]


def test_a_file_gives_the_examples_of_memory(made, small_config, files):
    domain, policy, _ = made
    memory = supervised_data(read_settings(small_config), policy, domain)
    read = supervised_data(read_settings(with_file(small_config, files)), policy, domain)
    assert read == memory and len(read.training) == 32 and len(read.validation) == 8
    # A held-out file of another name.
    other = files.with_name("others.jsonl")
    files.with_name(VALIDATION_FILE).rename(other)
    config = with_file(small_config, files, validation_data=str(other))
    assert supervised_data(read_settings(config), policy, domain) == memory


def test_the_loss_is_of_the_whole_reply(made, small_config, files):
    """Reasoning included, and nothing of the prompt."""
    domain, policy, params = made
    training, _ = split_in_memory(domain, rationale=True)
    write(files, training)
    small_config["rollout"]["row_length"] = 512
    stage = SftStage(read_settings(with_file(small_config, files)), policy, domain)
    learned = []
    for step in range(4):  # 4 steps of 8 decisions: one pass
        forest = stage.data(step, params).forest
        learned += [forest.segment_tokens(s) for s in np.flatnonzero(forest.is_action)]
    end = policy.tokenizer.decode([policy.end_ids[0]])
    assert sorted(map(policy.tokenizer.decode, learned)) == sorted(r + end for _, r in training)
    assert all("\n" in reply for _, reply in training)


def test_the_held_out_loss_does_not_depend_on_its_parts(made, small_config):
    """Parts of one row, of two, and all rows at once."""
    domain, policy, params = made
    small_config["sft"]["num_decisions"] = 200
    # Rows of 256 tokens hold one prompt of about 215, so there are several.
    losses, parts = [], []
    for size, micro in ((64, 1), (2, 1), (8, 8)):
        small_config["sft"]["batch_size"] = size
        small_config["optimizer"]["micro_batches"] = micro
        stage = SftStage(read_settings(small_config), policy, domain)
        losses.append(stage.evaluate(params)["validation_loss"])
        parts.append(stage._batch.tokens.shape[0])
    assert parts[0] == 1 < parts[1] < parts[2]
    np.testing.assert_allclose(losses[1:], losses[0], rtol=1e-6)


def test_long_examples_are_named(made, small_config, files):
    domain, policy, _ = made
    lines = files.read_text().splitlines()
    record = json.loads(lines[6])
    record["messages"][1]["content"] *= 9
    lines[6] = lines[30] = json.dumps(record)
    files.write_text("\n".join(lines))
    config = with_file(small_config, files)
    match = r"train\.jsonl, line 7: prompt and reply have \d+ \+ \d+ tokens, more than "
    with pytest.raises(ValueError, match=match + r"rollout\.row_length=256: .*; 1 more examples"):
        supervised_data(read_settings(config), policy, domain)
    config["rollout"]["row_length"] = 8192  # above what a fresh policy can read
    record["messages"][1]["content"] *= 60
    files.write_text("\n".join([*lines[:6], json.dumps(record)]))
    with pytest.raises(ValueError, match=match + "the 4096 positions of the policy"):
        supervised_data(read_settings(config), policy, domain)
    small_config["rollout"]["row_length"] = 40
    with pytest.raises(ValueError, match=r"expert trace 1: .* 39 more examples are too long"):
        supervised_data(read_settings(small_config), policy, domain)


def test_replies_that_play_would_cut_are_counted(made, small_config, files, caplog):
    domain, policy, _ = made
    settings = read_settings(with_file(small_config, files))
    longest = max(
        len(reply) for ((_, reply),) in supervised_data(settings, policy, domain).training
    )
    caplog.clear()
    small_config["rollout"]["max_action_tokens"] = longest
    supervised_data(read_settings(with_file(small_config, files)), policy, domain)
    assert not caplog.records
    training, _ = split_in_memory(domain)
    write(files, [*training[:4], (training[0][0], "I think for long.\nBET"), *training[4:]])
    supervised_data(read_settings(with_file(small_config, files)), policy, domain)
    assert "1 of 33 replies, the first at" in caplog.text and "train.jsonl, line 5" in caplog.text


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"data": "absent.jsonl"}, FileNotFoundError, r"absent\.jsonl'.*make_sft_data\.py"),
        ({"validation_data": "absent.jsonl"}, FileNotFoundError, "held-out data at absent"),
        ({"data": ""}, ValueError, r"sft\.validation_data='.*valid\.jsonl' goes with sft\.data"),
        ({"data": VALIDATION_FILE}, ValueError, "is the held-out file too"),
    ],
)
def test_what_contradicts_is_refused(
    made, small_config, files, monkeypatch, changed, error, message
):
    domain, policy, _ = made
    monkeypatch.chdir(files.parent)
    others = {"validation_data": str(files.with_name(VALIDATION_FILE)), **changed}
    config = with_file(small_config, others.pop("data", files), **others)
    with pytest.raises(error, match=message):
        supervised_data(read_settings(config), policy, domain)


def test_with_a_file_the_numbers_of_traces_say_nothing(made, small_config, files):
    domain, policy, _ = made
    config = with_file(small_config, files)
    others = with_file(small_config, files, num_decisions=40, data_seed=1)
    assert supervised_data(read_settings(config), policy, domain) == supervised_data(
        read_settings(others), policy, domain
    )


def test_a_file_that_no_stage_reads_is_refused(small_config, files, tmp_path):
    config = with_file(small_config, files, steps=0)
    with pytest.raises(ValueError, match=r"train\.jsonl' is read by no stage: sft\.steps=0"):
        train(config, run_directory=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_one_decision_cannot_be_dealt(made, small_config):
    domain, policy, _ = made
    domain.expert_traces = lambda count, seed: made[0].__class__().expert_traces(1, seed)
    with pytest.raises(ValueError, match="leaves no training data; give at least 2"):
        supervised_data(read_settings(small_config), policy, domain)


@pytest.fixture
def corridor(small_config):
    """Settings, policy and parameters for tasks of several turns, and two episodes of an expert."""
    small_config["domain"] = {"name": "corridor", "options": {"length": 3}}
    small_config["rollout"]["row_length"] = 512
    settings = read_settings(small_config)
    domain = make_domain(settings.domain)
    return settings, *make_policy(settings, domain), domain.expert_traces(6, 0)


def test_turns_of_a_conversation_are_one_example_with_the_tokens_of_play(corridor):
    settings, policy, _, traces = corridor
    examples = encode_examples(settings, policy, traces, "trace")
    assert [len(example) for example in examples] == [3, 3]
    codec = ChatCodec(policy)
    for (messages, reply), (given, answer) in zip(traces, examples[0] + examples[1], strict=True):
        first = len(messages) == 2
        ids = codec.start(Prompt(messages)) if first else None
        if not first:
            ids = codec.follow(messages[:-1], Prompt(messages[-1:]), ended=True)
        assert list(given) == list(ids)
        assert policy.tokenizer.decode(answer[:-1]) == reply and answer[-1] in policy.end_ids


def test_a_conversation_teaches_what_its_decisions_teach_one_by_one(corridor):
    settings, policy, params, traces = corridor
    joint = encode_examples(settings, policy, traces, "trace")
    # In another order no pair goes on from the one before it.
    single = encode_examples(settings, policy, traces[::-1], "trace")
    assert len(single) == 6 and {len(example) for example in single} == {1}
    objective = make_objective("sft", policy)
    losses = []
    for examples in (joint, single):
        forest = supervised_forest(examples)
        batch = packing_of(policy)(forest, row_length=512)
        batch = fill(batch, **assign_credit(objective.algorithm, forest).arrays())
        losses.append(jax.value_and_grad(lambda p, b=batch: objective(p, b)[0])(params))
    chex.assert_trees_all_close(*losses, rtol=1e-5, atol=1e-6)
    tokens = [supervised_forest(examples).num_tokens for examples in (joint, single)]
    assert tokens[0] < tokens[1]


def test_turns_that_the_template_rewrites_are_examples_of_their_own(corridor):
    settings, policy, _, traces = corridor
    template = policy.tokenizer.chat_template
    changed = copy.deepcopy(policy.tokenizer)
    changed.chat_template = template.replace(
        "message['content']", "message['content'][: loop.revindex]"
    )
    assert changed.chat_template != template
    examples = encode_examples(settings, dataclasses.replace(policy, tokenizer=changed), traces, "")
    assert {len(example) for example in examples} == {1}


def test_a_conversation_longer_than_a_row_is_named(corridor, small_config):
    _, policy, _, traces = corridor
    small_config["rollout"]["row_length"] = 64
    message = r"trace 1: what is given and the 3 replies have \d+ \+ \d+ tokens.*=64.*1 more"
    with pytest.raises(ValueError, match=message):
        encode_examples(read_settings(small_config), policy, traces, "trace")
