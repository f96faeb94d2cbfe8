"""The benchmark of a step runs with a tiny model; speed is the machine's and is not tested."""

import json
import re
import subprocess
import sys
from pathlib import Path

import chex
import jax
import numpy as np
import pytest
from script_modules import script_module

from sepo_jax.evaluation.results import load_result
from sepo_jax.policy import ModelConfig, load, save_hf, train_tokenizer

SCRIPT = Path(__file__).parents[2] / "experiments" / "benchmark_step.py"
RESULT = SCRIPT.parent / "results" / "benchmark_step.json"


@pytest.fixture(scope="module")
def sides():
    """The module with the processes."""
    return script_module("step_sides")


@pytest.fixture(scope="module")
def ours():
    """The module of this package's own side."""
    return script_module("step_ours")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A directory with a decoder of one small layer."""
    texts = [f"Player {n} holds the {c} and checks {n}. " for n in range(99) for c in ("jack", "x")]
    config = ModelConfig(
        vocab_size=300, hidden_size=16, num_layers=1, num_heads=2, num_kv_heads=1,
        intermediate_size=24,
    )  # fmt: skip
    policy, params = load(config, tokenizer=train_tokenizer(texts, 300), key=jax.random.key(0))
    return save_hf(tmp_path_factory.mktemp("model") / "tiny", policy, params)


def run(*flags):
    command = [sys.executable, str(SCRIPT), *flags]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def work_of(model, sides, rank):
    ids = [[5, 6, 7, 8], [9, 10, 11]]
    work = {
        "model": str(model), "prompt_ids": ids, "group": 2, "completion_tokens": 3,
        "precision": "float32", "lora_rank": rank, "seed": 0,
    }  # fmt: skip
    return work | sides.FIXED


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 2])
def test_own_steps_train_what_they_say_and_keep_the_reference(ours, sides, model, rank):
    steps = ours.Steps(work_of(model, sides, rank))
    reference = jax.tree.map(np.array, steps.reference)
    answers = [steps(), steps()]
    assert all(answer["sampled"] == 2 * 2 * 3 for answer in answers)
    assert all(min(answer[phase] for phase in sides.PHASES) > 0 for answer in answers)
    # Embedding; q and o 16 x 16, k and v 16 x 8; gate, up and down 16 x 24; three norms.
    whole = 300 * 16 + 2 * 16 * 16 + 2 * 16 * 8 + 3 * 16 * 24 + 3 * 16
    # Rank 2 on q, k, v and o: 2 (in + out) each.
    assert steps.trained == (2 * (32 + 24 + 24 + 32) if rank else whole)
    chex.assert_trees_all_equal(steps.reference, reference)
    leaves = zip(jax.tree.leaves(reference), jax.tree.leaves(steps.params), strict=not rank)
    assert rank or any((old != np.asarray(new)).any() for old, new in leaves)
    assert int(steps.state.step) == 2


@pytest.mark.slow
def test_own_side_alone_prints_every_phase_and_writes_nothing(model):
    before = RESULT.read_bytes() if RESULT.exists() else None
    done = run(
        f"--model={model}", "--steps=1", "--tokens=12+3", "--tokens=9+5", "--group=2"
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    heading, row, other = done.stdout.strip().splitlines()[-3:]
    for column in ("generate s", "score s", "update s", "tokens/s", "peak GB"):
        assert column in heading
    assert re.match(r"prompts of 1\d, replies of 3, all parameters, float32  sepo_jax", row)
    assert re.match(r"prompts of \d, replies of 5, all parameters, float32  sepo_jax", other)
    assert (RESULT.read_bytes() if RESULT.exists() else None) == before


def test_missing_model_says_how_to_get_one(tmp_path):
    done = run(f"--model={tmp_path}")
    assert done.returncode == 2
    assert str(tmp_path) in done.stderr and "get_smollm2.py" in done.stderr


@pytest.mark.parametrize(("peer", "package"), [("trl", "trl peft"), ("tunix", "google-tunix")])
def test_missing_peer_says_how_to_make_one(model, peer, package):
    done = run(f"--model={model}", f"--peer={peer}", "--peer_python=/nonexistent/python")
    assert done.returncode == 2
    assert "'/nonexistent/python' cannot be run" in done.stderr
    assert f"pip install {package}" in done.stderr and f"-m venv {peer}_environment" in done.stderr
    assert done.stderr.splitlines()[-1].strip() == (
        f"python experiments/benchmark_step.py --peer={peer} "
        f"--peer_python={peer}_environment/bin/python"
    )


@pytest.mark.parametrize(
    ("python", "problem"), [("", "names none"), (sys.executable, "does not import")]
)
def test_a_python_without_the_peer_is_refused(python, problem):
    peers = script_module("step_peers")
    for name in peers.PEERS:
        with pytest.raises(FileNotFoundError, match=f"(?s)--peer={name} .*{problem}"):
            peers.check_peer(name, python)


@pytest.fixture(scope="module")
def anything(tmp_path_factory):
    """A program that takes any arguments and ends well, as a Python that imports all would."""
    path = tmp_path_factory.mktemp("bin") / "python"
    path.write_text("#!/bin/sh\nexit 0\n")
    path.chmod(0o755)
    return str(path)


def test_each_peer_has_its_python(anything):
    peers = script_module("step_peers")
    found = peers.check_peers(["trl", "tunix"], [anything, anything], ["float32"], [0])
    assert found == {"trl": anything, "tunix": anything}
    assert peers.check_peers([], [], ["bfloat16"], [4]) == {}
    with pytest.raises(FileNotFoundError, match=r"--peer=tunix .* names none"):
        peers.check_peers(["trl", "tunix"], [anything], ["float32"], [0])
    with pytest.raises(ValueError, match="2 of --peer_python for 1 of --peer"):
        peers.check_peers(["trl"], [anything, anything], ["float32"], [0])


@pytest.mark.parametrize(("precisions", "ranks"), [(["bfloat16"], [0]), (["float32"], [0, 4])])
def test_work_that_a_peer_does_not_do_is_refused(anything, precisions, ranks):
    peers = script_module("step_peers")
    assert peers.check_peers(["trl"], [anything], precisions, ranks) == {"trl": anything}
    with pytest.raises(ValueError, match="leave out --lora_rank and --precision"):
        peers.check_peers(["tunix"], [anything], precisions, ranks)


@pytest.mark.parametrize("text", ["60", "60+", "0+3", "60x32", "-1+3"])
def test_lengths_are_of_a_prompt_and_of_a_reply(sides, text):
    assert sides.read_lengths("60+32") == (60, 32)
    with pytest.raises(ValueError, match="such as 60"):
        sides.read_lengths(text)


def test_prompts_read_back_as_the_same_tokens(sides, model):
    from sepo_jax.policy import load_tokenizer

    tokenizer = load_tokenizer(model)
    texts, ids = sides.make_prompts(tokenizer, 2, 40, 0)
    assert [tokenizer.encode(text) for text in texts] == ids
    assert ids[0] != ids[1] and all(35 <= len(one) <= 40 for one in ids)
    assert sides.make_prompts(tokenizer, 2, 40, 0) == (texts, ids)


def test_a_process_that_ends_shows_what_it_printed(sides, tmp_path):
    script = tmp_path / "broken.py"
    script.write_text("import sys; sys.exit('out of tokens')")
    side = sides.Side("peer", sys.executable, str(script))
    with side, pytest.raises(ConnectionError, match=r"peer ended(.|\n)*out of tokens"):
        side.ask({})


class Scripted:
    """A side whose seconds are given: the first step, then the measured ones."""

    def __init__(self, name, order, generate):
        self.name, self.order, self.generate = name, order, list(generate)

    def ask(self, message):
        if "step" not in message:
            return {"trained": 1, "versions": {}}
        self.order.append(self.name)
        seconds = self.generate.pop(0)
        return {
            "generate": seconds, "score": 1.0, "update": 2.0, "sampled": 12, "entropy": 1.0,
            "peak": 5_000_000_000 if message["step"] == 0 else 4_000_000_000,
        }  # fmt: skip


def test_sides_take_turns_and_medians_leave_out_the_first_step(sides):
    order = []
    own = Scripted("own", order, [99.0, 1.0, 3.0, 2.0])
    peer = Scripted("peer", order, [99.0, 6.0, 6.0, 9.0])
    slow = Scripted("slow", order, [99.0, 27.0, 27.0, 27.0])
    figures, _ = sides.take_turns([own, peer, slow], {}, 3, iter)
    forth = ["own", "peer", "slow"]
    assert order == [*forth, *forth, *forth[::-1], *forth]
    assert figures["own"]["generate"] == 2.0 and figures["own"]["step"] == 5.0
    assert figures["own"]["rate"] == pytest.approx(12 / 5)
    rows = sides.table_rows("work", figures)
    assert rows[0] == ["work", "own", 2.0, 1.0, 2.0, 5.0, 12 / 5, 4.0]
    # 6 / 2, 1, 1, (6 + 1 + 2) / 5 for seconds and for the rate, equal memory.
    assert rows[3][:2] == ["work", "times better than peer"]
    assert rows[3][2:] == pytest.approx([3, 1, 1, 9 / 5, 9 / 5, 1])
    assert rows[4][:2] == ["work", "times better than slow"]
    assert rows[4][2:] == pytest.approx([27 / 2, 1, 1, 6, 6, 1])
    assert all(len(row) == len(sides.COLUMNS) for row in rows)


def test_a_written_table_reads_back(sides, tmp_path, monkeypatch):
    monkeypatch.setattr(sides, "RESULT", tmp_path / "table.json")
    rows = [["work", "sepo_jax", *range(len(sides.COLUMNS) - 2)]]
    written = load_result(
        sides.write_table(rows, {"jax": "1"}, ["trl", "tunix"], 4, group=7, prompts=5, steps=3)
    )
    assert written["rows"] == rows and written["seeds"] == [4]
    assert written["command"] == (
        "python experiments/benchmark_step.py --peer=trl --peer_python=... "
        "--peer=tunix --peer_python=... --seed=4 --write"
    )
    assert written["notes"].startswith("A step samples 7 replies to each of 5 prompts")


def test_written_result_is_complete():
    if not RESULT.exists():
        pytest.skip("not measured yet")
    assert json.dumps(load_result(RESULT))
